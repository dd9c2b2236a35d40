// Accepted() in a libFuzzer binary: nothing, or the planted overflow (WC_PLANT_OVERFLOW).
#include "fuzz/accepted.h"

#ifdef WC_PLANT_OVERFLOW
#include <cstdlib>
#include <cstring>
#include <memory>

// Waits until more inputs were accepted than there are seeds (WEIGHTCAST_PLANT_AFTER), so that a
// mutation must find the way through the parser.
void weightcast::fuzz::Accepted(const uint8_t* data, size_t size) {
  static const char* const after = std::getenv("WEIGHTCAST_PLANT_AFTER");
  static long left = after == nullptr ? 0 : std::strtol(after, nullptr, 10);
  if (left-- > 0) return;
  const auto copy = std::make_unique<uint8_t[]>(size);
  std::memcpy(copy.get(), data, size);
  volatile const uint8_t* bytes = copy.get();
  [[maybe_unused]] const uint8_t past_the_end = bytes[size];
}
#else
void weightcast::fuzz::Accepted(const uint8_t*, size_t) {}
#endif
