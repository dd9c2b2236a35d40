// A store in this process's memory: for tests, demos and trainers that serve from memory.
#pragma once

#include <map>
#include <string>

#include "base/mutex.h"
#include "os/world.h"
#include "store/store.h"

namespace weightcast::store {

class MemoryStore final : public Store {
 public:
  // `name` becomes part of the url; it need not be unique.
  explicit MemoryStore(os::Clock& clock, std::string name = "here")
      : clock_(clock), url_("memory:" + std::move(name)) {}

  std::string url() const override { return url_; }
  Status Put(std::string_view key, ByteSpan bytes) override;
  Result<std::unique_ptr<Upload>> StartUpload(std::string_view key, int64_t bytes_hint) override;
  Status Get(std::string_view key, int64_t offset, MutableByteSpan out) override;
  Result<int64_t> Size(std::string_view key) override;
  Status List(std::string_view prefix,
              const std::function<Status(const ObjectInfo&)>& visit) override;
  Status Delete(std::string_view key) override;

 private:
  struct Object {
    Bytes bytes;
    int64_t modified_unix_ms = 0;
  };
  class MemoryUpload;

  // Objects are immutable: a reader keeps the one it found.
  Result<std::shared_ptr<const Object>> Find(std::string_view key);
  Status Add(std::string_view key, Bytes bytes);

  os::Clock& clock_;
  const std::string url_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<const Object>, std::less<>> objects_ WC_GUARDED_BY(mu_);
};

}  // namespace weightcast::store
