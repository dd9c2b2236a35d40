// A mutex that clang's thread-safety analysis understands (-Wthread-safety, clang preset).
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define WC_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define WC_THREAD_ATTRIBUTE(x)
#endif
#define WC_GUARDED_BY(mutex) WC_THREAD_ATTRIBUTE(guarded_by(mutex))
#define WC_REQUIRES(mutex) WC_THREAD_ATTRIBUTE(requires_capability(mutex))

namespace weightcast {

class WC_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void Lock() WC_THREAD_ATTRIBUTE(acquire_capability()) { mu_.lock(); }
  void Unlock() WC_THREAD_ATTRIBUTE(release_capability()) { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class WC_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mu) WC_THREAD_ATTRIBUTE(acquire_capability(mu)) : mu_(mu) {
    mu_.Lock();
  }
  ~MutexLock() WC_THREAD_ATTRIBUTE(release_capability()) { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

class CondVar {
 public:
  void Wait(Mutex& mu) WC_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when `deadline` passed first. Any std::chrono time point.
  template <typename TimePoint>
  bool WaitUntil(Mutex& mu, TimePoint deadline) WC_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  // False when `timeout` passed first.
  template <typename Duration>
  bool WaitFor(Mutex& mu, Duration timeout) WC_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool in_time = cv_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace weightcast
