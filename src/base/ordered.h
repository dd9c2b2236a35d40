// Results of parallel work, taken in item order: worker i waits for its turn. Items of ParallelFor
// start in order, so the lowest unfinished item never waits and there is no deadlock.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>

#include "base/status.h"

namespace weightcast {

class InOrder {
 public:
  // Runs `take` when all items below `item` had their turn. After a failed turn (or Fail), every
  // later turn is kAborted. Each item must call this exactly once, or Fail.
  Status Turn(size_t item, const std::function<Status()>& take) {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return failed_ || next_ == item; });
    if (failed_) return Error{Code::kAborted, "an earlier item failed"};
    Status status = take();
    if (!status.ok()) failed_ = true;
    ++next_;
    changed_.notify_all();
    return status;
  }
  void Fail() {
    std::lock_guard lock(mu_);
    failed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  size_t next_ = 0;
  bool failed_ = false;
};

}  // namespace weightcast
