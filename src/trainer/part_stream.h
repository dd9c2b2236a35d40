// A part on its way: writer → bounded spool → upload.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/spool.h"
#include "base/status.h"
#include "catalog/catalog.h"
#include "delta/part.h"
#include "store/store.h"

namespace weightcast::trainer {

class PartStream {
 public:
  static Result<std::unique_ptr<PartStream>> Start(store::Store& store, catalog::ObjectRole role,
                                                   const std::string& key,
                                                   const delta::PartIdentity& identity,
                                                   int64_t spool_bytes_max);

  Status Add(const delta::PartChunk& chunk, ByteSpan payload) {
    return writer_->Add(chunk, payload);
  }
  // The last byte is in the spool: the shards may change from here on.
  Status EndEncoding();
  // The object is durable and visible.
  Result<catalog::ObjectRef> Commit();

  int64_t payload_bytes() const { return writer_->payload_bytes(); }

 private:
  PartStream() = default;

  catalog::ObjectRole role_{};
  std::string key_;
  std::unique_ptr<store::Upload> upload_;
  std::unique_ptr<Spool> spool_;
  std::unique_ptr<delta::PartWriter> writer_;
  delta::PartSeal seal_;
};

}  // namespace weightcast::trainer
