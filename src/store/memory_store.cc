#include "store/memory_store.h"

#include <algorithm>
#include <cstring>

#include "store/errors.h"

namespace weightcast::store {

class MemoryStore::MemoryUpload final : public Upload {
 public:
  MemoryUpload(MemoryStore& store, std::string_view key) : store_(store), key_(key) {}
  Status Append(ByteSpan bytes) override {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return Ok();
  }
  Status Commit() override { return store_.Add(key_, std::move(bytes_)); }

 private:
  MemoryStore& store_;
  const std::string key_;
  Bytes bytes_;
};

Status MemoryStore::Put(std::string_view key, ByteSpan bytes) {
  WC_TRY(CheckKey(key));
  return Add(key, Bytes(bytes.begin(), bytes.end()));
}

Result<std::unique_ptr<Upload>> MemoryStore::StartUpload(std::string_view key, int64_t) {
  WC_TRY(CheckKey(key));
  return std::unique_ptr<Upload>(std::make_unique<MemoryUpload>(*this, key));
}

Status MemoryStore::Add(std::string_view key, Bytes bytes) {
  auto object = std::make_shared<const Object>(Object{std::move(bytes), clock_.UnixMillis()});
  MutexLock lock(mu_);
  if (!objects_.try_emplace(std::string(key), std::move(object)).second) {
    return ObjectExists(url_, key);
  }
  return Ok();
}

Result<std::shared_ptr<const MemoryStore::Object>> MemoryStore::Find(std::string_view key) {
  WC_TRY(CheckKey(key));
  MutexLock lock(mu_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return NoObject(url_, key);
  return found->second;
}

Status MemoryStore::Get(std::string_view key, int64_t offset, MutableByteSpan out) {
  const auto object = WC_TRY(Find(key));
  const auto size = static_cast<int64_t>(object->bytes.size());
  WC_TRY(CheckRange(url_, key, size, offset, out.size()));
  std::copy_n(object->bytes.begin() + offset, out.size(), out.begin());
  return Ok();
}

Result<int64_t> MemoryStore::Size(std::string_view key) {
  return static_cast<int64_t>(WC_TRY(Find(key))->bytes.size());
}

Status MemoryStore::List(std::string_view prefix,
                         const std::function<Status(const ObjectInfo&)>& visit) {
  std::vector<ObjectInfo> found;  // `visit` may call the store
  {
    MutexLock lock(mu_);
    for (auto it = objects_.lower_bound(prefix); it != objects_.end(); ++it) {
      if (!it->first.starts_with(prefix)) break;
      found.push_back({it->first, static_cast<int64_t>(it->second->bytes.size()),
                       it->second->modified_unix_ms});
    }
  }
  for (const ObjectInfo& object : found) WC_TRY(visit(object));
  return Ok();
}

Status MemoryStore::Delete(std::string_view key) {
  WC_TRY(CheckKey(key));
  MutexLock lock(mu_);
  if (const auto found = objects_.find(key); found != objects_.end()) objects_.erase(found);
  return Ok();
}

}  // namespace weightcast::store
