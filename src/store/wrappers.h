// Stores around a store: counting, throttling, faults. They compose, and any thread may call them.
//   FaultyStore faulty(directory, clock, {.faults = {{StoreCall::kGet, 3, Fault::kCut, 512}}});
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "os/world.h"
#include "store/store.h"

namespace weightcast::store {

// Passes every call on; the wrappers below change some.
class StoreWrapper : public Store {
 public:
  explicit StoreWrapper(Store& inner) : inner_(inner) {}

  std::string url() const override { return inner_.url(); }
  Status Put(std::string_view key, ByteSpan bytes) override { return inner_.Put(key, bytes); }
  Result<std::unique_ptr<Upload>> StartUpload(std::string_view key, int64_t bytes_hint) override {
    return inner_.StartUpload(key, bytes_hint);
  }
  Status Get(std::string_view key, int64_t offset, MutableByteSpan out) override {
    return inner_.Get(key, offset, out);
  }
  Result<int64_t> Size(std::string_view key) override { return inner_.Size(key); }
  Status List(std::string_view prefix,
              const std::function<Status(const ObjectInfo&)>& visit) override {
    return inner_.List(prefix, visit);
  }
  Status Delete(std::string_view key) override { return inner_.Delete(key); }

 protected:
  Store& inner_;
};

// An upload's Commit is a kPut; StartUpload and Append are not counted as calls.
enum class StoreCall : uint8_t { kPut, kGet, kSize, kList, kDelete };
inline constexpr size_t kStoreCalls = 5;

// --- counting ---

struct StoreCounts {
  std::array<int64_t, kStoreCalls> calls{};
  std::array<int64_t, kStoreCalls> failed{};
  int64_t put_bytes = 0;  // appended and put, whatever became of them
  int64_t got_bytes = 0;  // read with success

  int64_t of(StoreCall call) const { return calls[static_cast<size_t>(call)]; }
  int64_t failures(StoreCall call) const { return failed[static_cast<size_t>(call)]; }
};

class CountingStore final : public StoreWrapper {
 public:
  using StoreWrapper::StoreWrapper;
  StoreCounts counts() const;

  Status Put(std::string_view key, ByteSpan bytes) override;
  Result<std::unique_ptr<Upload>> StartUpload(std::string_view key, int64_t bytes_hint) override;
  Status Get(std::string_view key, int64_t offset, MutableByteSpan out) override;
  Result<int64_t> Size(std::string_view key) override;
  Status List(std::string_view prefix,
              const std::function<Status(const ObjectInfo&)>& visit) override;
  Status Delete(std::string_view key) override;

 private:
  class CountingUpload;
  void Count(StoreCall call, bool ok, int64_t put_bytes = 0, int64_t got_bytes = 0);

  mutable Mutex mu_;
  StoreCounts counts_ WC_GUARDED_BY(mu_);
};

// --- throttling ---

// All transfers of all threads share one pipe of `bytes_per_second`.
class ThrottledStore final : public StoreWrapper {
 public:
  //   Requires: bytes_per_second > 0.
  ThrottledStore(Store& inner, os::Clock& clock, int64_t bytes_per_second);

  Status Put(std::string_view key, ByteSpan bytes) override;
  Result<std::unique_ptr<Upload>> StartUpload(std::string_view key, int64_t bytes_hint) override;
  Status Get(std::string_view key, int64_t offset, MutableByteSpan out) override;

 private:
  class ThrottledUpload;
  void Pass(size_t bytes);

  os::Clock& clock_;
  const int64_t bytes_per_second_;
  Mutex mu_;
  SteadyTime free_at_ WC_GUARDED_BY(mu_);
};

// --- faults ---

enum class Fault : uint8_t {
  kFailBefore,    // kUnavailable, and nothing happened
  kFailAfter,     // it happened, and the answer is kUnavailable
  kDelay,         // FaultPlan::delay passes first
  kCut,           // Get only: `amount` bytes arrive, then kUnavailable
  kCutUnnoticed,  // Get only: `amount` bytes arrive, the rest stays as it was, and the answer is ok
  kFlip,          // Get only: one bit of byte `amount` (modulo the size) is wrong, the answer is ok
};
inline constexpr size_t kFaults = 6;

struct ScheduledFault {
  StoreCall call = StoreCall::kGet;
  int64_t ordinal = 0;  // among the calls of its kind, from 0
  Fault fault = Fault::kFailBefore;
  int64_t amount = 0;
};

struct FaultPlan {
  std::vector<ScheduledFault> faults = {};
  // Beyond the schedule: of a thousand calls so many meet each fault, by the seed and the call's
  // ordinal (and so the same ones whatever the threads do).
  uint64_t seed = 0;
  std::array<int, kFaults> per_mille =
      {};  // indexed by Fault; the Get-only ones count for Get only
  Duration delay = milliseconds(10);
  // The newest objects put through this wrapper that List does not show yet.
  size_t unlisted = 0;
};

class FaultyStore final : public StoreWrapper {
 public:
  FaultyStore(Store& inner, os::Clock& clock, FaultPlan plan)
      : StoreWrapper(inner), clock_(clock), plan_(std::move(plan)) {}

  int64_t faults() const { return faults_.load(); }  // that happened so far

  Status Put(std::string_view key, ByteSpan bytes) override;
  Result<std::unique_ptr<Upload>> StartUpload(std::string_view key, int64_t bytes_hint) override;
  Status Get(std::string_view key, int64_t offset, MutableByteSpan out) override;
  Result<int64_t> Size(std::string_view key) override;
  Status List(std::string_view prefix,
              const std::function<Status(const ObjectInfo&)>& visit) override;
  Status Delete(std::string_view key) override;

 private:
  class FaultyUpload;
  struct Met {
    bool any = false;
    Fault fault = Fault::kDelay;
    int64_t amount = 0;
  };
  // What the next call of this kind meets.
  Met Next(StoreCall call);
  // Performs a call that only fails or not.
  Status Around(StoreCall call, std::string_view key, const std::function<Status()>& perform);
  Status PutAround(std::string_view key, const std::function<Status()>& perform);

  os::Clock& clock_;
  const FaultPlan plan_;
  std::array<std::atomic<int64_t>, kStoreCalls> ordinals_{};
  std::atomic<int64_t> faults_ = 0;
  Mutex mu_;
  std::deque<std::string> newest_ WC_GUARDED_BY(mu_);  // at most plan_.unlisted keys
};

}  // namespace weightcast::store
