// What a process takes from outside: files, time, randomness. Passed by reference from main; tests
// and the crash simulator pass their own.
#pragma once

#include <string>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/units.h"
#include "os/fs.h"

namespace weightcast::os {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual SteadyTime Now() = 0;      // for deadlines and durations
  virtual int64_t UnixMillis() = 0;  // for people and labels, never for ordering
  virtual void SleepFor(Duration d) = 0;
};

class Random {
 public:
  virtual ~Random() = default;
  virtual void Fill(MutableByteSpan out) = 0;
};

struct World {
  Fs& fs;
  Clock& clock;
  Random& random;
  // Changes when the host restarts (and so page cache and tmpfs were lost): the kernel's boot id.
  std::string boot_id;
};

template <typename Id>
Id NewId(Random& random) {
  Id id;
  random.Fill(id.value);
  return id;
}

// A point after which a wait ends with kDeadlineExceeded.
class Deadline {
 public:
  Deadline(Clock& clock, Duration timeout) : clock_(&clock), at_(clock.Now() + timeout) {}
  bool passed() const { return clock_->Now() >= at_; }
  Duration left() const {
    const Duration d = at_ - clock_->Now();
    return d > Duration::zero() ? d : Duration::zero();
  }

 private:
  Clock* clock_;
  SteadyTime at_;
};

// The machine this process runs on. Lives as long as the process.
World& RealWorld();

}  // namespace weightcast::os
