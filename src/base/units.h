// Units, so that a number never stands without one.
#pragma once

#include <chrono>
#include <cstdint>

namespace weightcast {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;

using Duration = std::chrono::nanoseconds;
using SteadyTime = std::chrono::time_point<std::chrono::steady_clock, Duration>;  // see os::Clock
using std::chrono::milliseconds;
using std::chrono::seconds;

inline double ToSeconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace weightcast
