#include "os/world.h"

#include <sys/random.h>

#include <cerrno>
#include <string_view>
#include <thread>

#include "os/fs_real.h"

namespace weightcast::os {
namespace {

class RealClock final : public Clock {
 public:
  SteadyTime Now() override { return std::chrono::steady_clock::now(); }
  int64_t UnixMillis() override {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<milliseconds>(since).count();
  }
  void SleepFor(Duration d) override { std::this_thread::sleep_for(d); }
};

class RealRandom final : public Random {
 public:
  void Fill(MutableByteSpan out) override {
    while (!out.empty()) {
      const ssize_t n = ::getrandom(out.data(), out.size(), 0);
      WC_CHECK(n > 0 || errno == EINTR);  // nothing else can fail for a valid buffer
      if (n > 0) out = out.subspan(static_cast<size_t>(n));
    }
  }
};

// "" where the kernel does not tell, for example in a container without /proc.
std::string ReadBootId() {
  const Result<std::unique_ptr<File>> file =
      RealFs().OpenFile("/proc/sys/kernel/random/boot_id", Open::kRead);
  std::string id(36, '\0');  // a UUID; the file's size reads as zero
  if (!file.ok()) return "";
  if (!(*file)->Read(0, {reinterpret_cast<uint8_t*>(id.data()), id.size()}).ok()) return "";
  return id;
}

}  // namespace

World& RealWorld() {
  static RealClock clock;
  static RealRandom random;
  static World world{RealFs(), clock, random, ReadBootId()};
  return world;
}

}  // namespace weightcast::os
