#include "delta/part.h"
#include "delta/part_format.h"

namespace weightcast::delta {
namespace {

Bytes MakeHeader() {
  Bytes header;
  ByteWriter writer(&header);
  writer.PutBytes(kPartMagic);
  writer.Put(kPartVersion);
  writer.Put(uint32_t{0});
  WC_CHECK(header.size() == kPartHeaderBytes);
  return header;
}

void PutDigest(const tensor::TensorDigest& digest, ByteWriter& writer) {
  std::array<uint8_t, 16> bytes;
  digest.Store(bytes.data());
  writer.PutBytes(bytes);
}

void PutIdentity(const PartIdentity& identity, ByteWriter& writer) {
  writer.Put(identity.kind);
  writer.PutBytes(identity.run.bytes());
  writer.PutBytes(identity.version.bytes());
  writer.PutBytes(identity.base.bytes());
  writer.PutVarint(static_cast<uint64_t>(identity.epoch.value));
  writer.PutVarint(static_cast<uint64_t>(identity.rank.value));
  writer.PutBytes(identity.plan.bytes());
  writer.PutBytes(identity.layout.bytes());
}

void PutRecord(const PartChunk& chunk, int32_t tensor_before, ByteWriter& writer) {
  const tensor::Box& box = chunk.box;
  const bool steps = box.row_step != 1 || box.col_step != 1;
  writer.Put(static_cast<uint8_t>(static_cast<uint8_t>(chunk.method) | (steps ? kHeadSteps : 0) |
                                  (chunk.without_base ? kHeadWithoutBase : 0)));
  writer.PutVarint(static_cast<uint64_t>(chunk.tensor - tensor_before));
  for (const int64_t value : {box.row, box.rows, box.col, box.cols}) {
    writer.PutVarint(static_cast<uint64_t>(value));
  }
  if (steps) {
    writer.PutVarint(static_cast<uint64_t>(box.row_step));
    writer.PutVarint(static_cast<uint64_t>(box.col_step));
  }
  writer.PutVarint(static_cast<uint64_t>(chunk.payload_bytes));
  if (!chunk.without_base) {
    writer.PutVarint(static_cast<uint64_t>(chunk.changed_units));
    PutDigest(chunk.base_digest, writer);
  }
  PutDigest(chunk.next_digest, writer);
  writer.PutBytes(chunk.sha256.bytes());
}

}  // namespace

PartWriter::PartWriter(PartIdentity identity, Sink sink)
    : identity_(identity), sink_(std::move(sink)) {
  WC_CHECK((identity_.kind == PartKind::kFull) == identity_.base.empty());
}

Status PartWriter::Write(ByteSpan bytes) {
  if (at_ == 0) {
    WC_TRY(sink_(MakeHeader()));
    at_ = kPartHeaderBytes;
  }
  WC_TRY(sink_(bytes));
  at_ += static_cast<int64_t>(bytes.size());
  return Ok();
}

Status PartWriter::Add(PartChunk chunk, ByteSpan payload) {
  WC_CHECK(chunk.method != Method::kAbsent && !payload.empty());
  WC_CHECK(chunk.tensor >= (chunks_.empty() ? 0 : chunks_.back().tensor));
  chunk.payload_bytes = static_cast<int64_t>(payload.size());
  chunk.sha256 = Sha256::Of(payload);
  WC_TRY(Write(payload));
  chunk.offset = at_ - chunk.payload_bytes;
  payload_bytes_ += chunk.payload_bytes;
  chunks_.push_back(chunk);
  return Ok();
}

Result<PartSeal> PartWriter::Finish() {
  Bytes footer;
  ByteWriter writer(&footer);
  PutIdentity(identity_, writer);
  writer.PutVarint(chunks_.size());
  int32_t tensor_before = 0;
  for (const PartChunk& chunk : chunks_) {
    PutRecord(chunk, tensor_before, writer);
    tensor_before = chunk.tensor;
  }
  const uint64_t check = IndexCheck(footer);
  writer.Put(static_cast<uint64_t>(footer.size() + kPartTrailerBytes));
  writer.Put(check);
  writer.Put(kPartVersion);
  writer.PutBytes(kPartTrailerMagic);
  WC_TRY(Write(footer));
  return PartSeal{.object_bytes = at_,
                  .footer_bytes = static_cast<int64_t>(footer.size()),
                  .footer_sha256 = Sha256::Of(footer)};
}

}  // namespace weightcast::delta
