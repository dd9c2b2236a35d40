#include <algorithm>
#include <string>

#include "store/wrappers.h"

namespace weightcast::store {
namespace {

// splitmix64: a well mixed number for each input.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool OnlyForGet(Fault fault) {
  return fault == Fault::kCut || fault == Fault::kCutUnnoticed || fault == Fault::kFlip;
}

Error Broken(std::string_view key, std::string_view when) {
  return {Code::kUnavailable, "object " + std::string(key) + ": connection broken " +
                                  std::string(when) + " (injected)"};
}

}  // namespace

class FaultyStore::FaultyUpload final : public Upload {
 public:
  FaultyUpload(FaultyStore& store, std::unique_ptr<Upload> inner, std::string_view key)
      : store_(store), inner_(std::move(inner)), key_(key) {}
  Status Append(ByteSpan bytes) override { return inner_->Append(bytes); }
  Status Commit() override {
    return store_.PutAround(key_, [this] { return inner_->Commit(); });
  }

 private:
  FaultyStore& store_;
  const std::unique_ptr<Upload> inner_;
  const std::string key_;
};

FaultyStore::Met FaultyStore::Next(StoreCall call) {
  const auto kind = static_cast<size_t>(call);
  const int64_t ordinal = ordinals_[kind].fetch_add(1);
  Met met;
  for (const ScheduledFault& scheduled : plan_.faults) {
    if (scheduled.call == call && scheduled.ordinal == ordinal) {
      WC_CHECK(call == StoreCall::kGet || !OnlyForGet(scheduled.fault));
      met = {true, scheduled.fault, scheduled.amount};
    }
  }
  uint64_t random = Mix(Mix(plan_.seed * kStoreCalls + kind) + static_cast<uint64_t>(ordinal));
  auto die = static_cast<int64_t>(random % 1000);
  for (size_t i = 0; i < kFaults && !met.any; ++i) {
    const auto fault = static_cast<Fault>(i);
    if (call != StoreCall::kGet && OnlyForGet(fault)) continue;
    die -= plan_.per_mille[i];
    if (die < 0) met = {true, fault, static_cast<int64_t>(Mix(random) >> 1)};
  }
  if (met.any) ++faults_;
  if (met.any && met.fault == Fault::kDelay) clock_.SleepFor(plan_.delay);
  return met;
}

Status FaultyStore::Around(StoreCall call, std::string_view key,
                           const std::function<Status()>& perform) {
  const Met met = Next(call);
  if (met.any && met.fault == Fault::kFailBefore) return Broken(key, "before the request");
  Status status = perform();
  if (met.any && met.fault == Fault::kFailAfter) return Broken(key, "before the answer");
  return status;
}

Status FaultyStore::PutAround(std::string_view key, const std::function<Status()>& perform) {
  return Around(StoreCall::kPut, key, [&] {
    Status status = perform();
    if (status.ok() && plan_.unlisted > 0) {
      MutexLock lock(mu_);
      newest_.emplace_back(key);
      if (newest_.size() > plan_.unlisted) newest_.pop_front();
    }
    return status;
  });
}

Status FaultyStore::Put(std::string_view key, ByteSpan bytes) {
  return PutAround(key, [&] { return inner_.Put(key, bytes); });
}

Result<std::unique_ptr<Upload>> FaultyStore::StartUpload(std::string_view key, int64_t bytes_hint) {
  auto upload = WC_TRY(inner_.StartUpload(key, bytes_hint));
  return std::unique_ptr<Upload>(std::make_unique<FaultyUpload>(*this, std::move(upload), key));
}

Status FaultyStore::Get(std::string_view key, int64_t offset, MutableByteSpan out) {
  const Met met = Next(StoreCall::kGet);
  if (!met.any || met.fault == Fault::kDelay) return inner_.Get(key, offset, out);
  if (met.fault == Fault::kFailBefore) return Broken(key, "before the request");
  if (met.fault == Fault::kFlip) {
    WC_TRY(inner_.Get(key, offset, out));
    if (!out.empty()) out[static_cast<size_t>(met.amount) % out.size()] ^= 0x10;
    return Ok();
  }
  if (met.fault == Fault::kFailAfter) {
    WC_TRY(inner_.Get(key, offset, out));
    return Broken(key, "before the answer");
  }
  const size_t arrived = std::min(static_cast<size_t>(met.amount), out.size());
  WC_TRY(inner_.Get(key, offset, out.first(arrived)));
  return met.fault == Fault::kCutUnnoticed ? Ok() : Broken(key, "in the body");
}

Result<int64_t> FaultyStore::Size(std::string_view key) {
  Result<int64_t> size = 0;
  const Status status = Around(StoreCall::kSize, key, [&] {
    size = inner_.Size(key);
    return size.ok() ? Ok() : Status(size.error());
  });
  if (!status.ok()) return status.error();
  return size;
}

Status FaultyStore::List(std::string_view prefix,
                         const std::function<Status(const ObjectInfo&)>& visit) {
  std::deque<std::string> hidden;
  {
    MutexLock lock(mu_);
    hidden = newest_;
  }
  return Around(StoreCall::kList, prefix, [&] {
    return inner_.List(prefix, [&](const ObjectInfo& object) -> Status {
      if (std::find(hidden.begin(), hidden.end(), object.key) != hidden.end()) return Ok();
      return visit(object);
    });
  });
}

Status FaultyStore::Delete(std::string_view key) {
  return Around(StoreCall::kDelete, key, [&] { return inner_.Delete(key); });
}

}  // namespace weightcast::store
