#include "trainer/part_stream.h"

namespace weightcast::trainer {

Result<std::unique_ptr<PartStream>> PartStream::Start(store::Store& store, catalog::ObjectRole role,
                                                      const std::string& key,
                                                      const delta::PartIdentity& identity,
                                                      int64_t spool_bytes_max) {
  std::unique_ptr<PartStream> stream(new PartStream());
  stream->role_ = role;
  stream->key_ = key;
  stream->upload_ = WC_TRY(store.StartUpload(key, /*bytes_hint=*/0));
  PartStream* self = stream.get();
  stream->spool_ = std::make_unique<Spool>(
      spool_bytes_max, [self](ByteSpan bytes) { return self->upload_->Append(bytes); });
  stream->writer_ = std::make_unique<delta::PartWriter>(
      identity, [self](ByteSpan bytes) { return self->spool_->Append(bytes); });
  return stream;
}

Status PartStream::EndEncoding() {
  seal_ = WC_TRY(writer_->Finish());
  return Ok();
}

Result<catalog::ObjectRef> PartStream::Commit() {
  WC_TRY(spool_->Finish());
  WC_TRY(upload_->Commit());
  return catalog::ObjectRef{.role = role_,
                            .key = key_,
                            .bytes = seal_.object_bytes,
                            .footer_bytes = seal_.footer_bytes,
                            .footer_sha256 = seal_.footer_sha256};
}

}  // namespace weightcast::trainer
