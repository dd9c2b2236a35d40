#include "store/wrappers.h"

#include <algorithm>

namespace weightcast::store {

class CountingStore::CountingUpload final : public Upload {
 public:
  CountingUpload(CountingStore& store, std::unique_ptr<Upload> inner)
      : store_(store), inner_(std::move(inner)) {}
  Status Append(ByteSpan bytes) override {
    bytes_ += static_cast<int64_t>(bytes.size());
    return inner_->Append(bytes);
  }
  Status Commit() override {
    Status status = inner_->Commit();
    store_.Count(StoreCall::kPut, status.ok(), bytes_);
    return status;
  }

 private:
  CountingStore& store_;
  const std::unique_ptr<Upload> inner_;
  int64_t bytes_ = 0;
};

StoreCounts CountingStore::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

void CountingStore::Count(StoreCall call, bool ok, int64_t put_bytes, int64_t got_bytes) {
  MutexLock lock(mu_);
  ++counts_.calls[static_cast<size_t>(call)];
  if (!ok) ++counts_.failed[static_cast<size_t>(call)];
  counts_.put_bytes += put_bytes;
  counts_.got_bytes += got_bytes;
}

Status CountingStore::Put(std::string_view key, ByteSpan bytes) {
  Status status = inner_.Put(key, bytes);
  Count(StoreCall::kPut, status.ok(), static_cast<int64_t>(bytes.size()));
  return status;
}

Result<std::unique_ptr<Upload>> CountingStore::StartUpload(std::string_view key,
                                                           int64_t bytes_hint) {
  auto upload = WC_TRY(inner_.StartUpload(key, bytes_hint));
  return std::unique_ptr<Upload>(std::make_unique<CountingUpload>(*this, std::move(upload)));
}

Status CountingStore::Get(std::string_view key, int64_t offset, MutableByteSpan out) {
  Status status = inner_.Get(key, offset, out);
  Count(StoreCall::kGet, status.ok(), 0, status.ok() ? static_cast<int64_t>(out.size()) : 0);
  return status;
}

Result<int64_t> CountingStore::Size(std::string_view key) {
  Result<int64_t> size = inner_.Size(key);
  Count(StoreCall::kSize, size.ok());
  return size;
}

Status CountingStore::List(std::string_view prefix,
                           const std::function<Status(const ObjectInfo&)>& visit) {
  Status status = inner_.List(prefix, visit);
  Count(StoreCall::kList, status.ok());
  return status;
}

Status CountingStore::Delete(std::string_view key) {
  Status status = inner_.Delete(key);
  Count(StoreCall::kDelete, status.ok());
  return status;
}

class ThrottledStore::ThrottledUpload final : public Upload {
 public:
  ThrottledUpload(ThrottledStore& store, std::unique_ptr<Upload> inner)
      : store_(store), inner_(std::move(inner)) {}
  Status Append(ByteSpan bytes) override {
    store_.Pass(bytes.size());
    return inner_->Append(bytes);
  }
  Status Commit() override { return inner_->Commit(); }

 private:
  ThrottledStore& store_;
  const std::unique_ptr<Upload> inner_;
};

ThrottledStore::ThrottledStore(Store& inner, os::Clock& clock, int64_t bytes_per_second)
    : StoreWrapper(inner), clock_(clock), bytes_per_second_(bytes_per_second) {
  WC_CHECK(bytes_per_second > 0);
}

void ThrottledStore::Pass(size_t bytes) {
  const double transfer_s = static_cast<double>(bytes) / static_cast<double>(bytes_per_second_);
  const auto transfer =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(transfer_s));
  const SteadyTime now = clock_.Now();
  SteadyTime done;
  {
    MutexLock lock(mu_);
    free_at_ = std::max(free_at_, now) + transfer;
    done = free_at_;
  }
  clock_.SleepFor(done - now);
}

Status ThrottledStore::Put(std::string_view key, ByteSpan bytes) {
  Pass(bytes.size());
  return inner_.Put(key, bytes);
}

Result<std::unique_ptr<Upload>> ThrottledStore::StartUpload(std::string_view key,
                                                            int64_t bytes_hint) {
  auto upload = WC_TRY(inner_.StartUpload(key, bytes_hint));
  return std::unique_ptr<Upload>(std::make_unique<ThrottledUpload>(*this, std::move(upload)));
}

Status ThrottledStore::Get(std::string_view key, int64_t offset, MutableByteSpan out) {
  Pass(out.size());
  return inner_.Get(key, offset, out);
}

}  // namespace weightcast::store
