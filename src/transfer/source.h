// A source answers "give me bytes [a, b) of object X": an object store, a peer, a trainer's memory,
// a local directory. Payload and source are independent choices.
#pragma once

#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "store/store.h"

namespace weightcast::transfer {

class Source {
 public:
  virtual ~Source() = default;
  virtual std::string kind() const = 0;  // "store", "peer", ...: a key of pull's `sources`
  virtual std::string name() const = 0;  // for messages
  // Fills `out` from `offset` of the object. Any thread. Errors: as Store::Get.
  virtual Status Read(std::string_view key, int64_t offset, MutableByteSpan out) = 0;
};

class StoreSource : public Source {
 public:
  explicit StoreSource(store::Store& store) : store_(store) {}
  std::string kind() const override { return "store"; }
  std::string name() const override { return store_.url(); }
  Status Read(std::string_view key, int64_t offset, MutableByteSpan out) override {
    return store_.Get(key, offset, out);
  }

 private:
  store::Store& store_;
};

}  // namespace weightcast::transfer
