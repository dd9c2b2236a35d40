// A part on its way: writer → bounded spool → upload, and optionally a local copy.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/spool.h"
#include "base/status.h"
#include "catalog/catalog.h"
#include "delta/part.h"
#include "os/fs.h"
#include "store/store.h"

namespace weightcast::trainer {

class PartStream {
 public:
  // `keep`, if set, gets the same bytes (the caller owns it).
  static Result<std::unique_ptr<PartStream>> Start(store::Store& store, catalog::ObjectRole role,
                                                   const std::string& key,
                                                   const delta::PartIdentity& identity,
                                                   int64_t spool_bytes_max, os::File* keep);

  Status Add(const delta::PartChunk& chunk, ByteSpan payload) {
    return writer_->Add(chunk, payload);
  }
  // The last byte is in the spool: the shards may change from here on.
  Status EndEncoding();
  // The object is durable and visible.
  Result<catalog::ObjectRef> Commit();

  int64_t payload_bytes() const { return writer_->payload_bytes(); }
  const delta::PartSeal& seal() const { return seal_; }  // after EndEncoding

 private:
  PartStream() = default;

  catalog::ObjectRole role_{};
  std::string key_;
  os::File* keep_ = nullptr;
  int64_t kept_bytes_ = 0;
  std::unique_ptr<store::Upload> upload_;
  std::unique_ptr<Spool> spool_;
  std::unique_ptr<delta::PartWriter> writer_;
  delta::PartSeal seal_;
};

}  // namespace weightcast::trainer
