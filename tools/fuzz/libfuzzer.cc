// Accepted() in a libFuzzer binary: nothing, or the planted overflow (WC_PLANT_OVERFLOW).
#include "fuzz/accepted.h"

#ifdef WC_PLANT_OVERFLOW
#include <cstring>
#include <memory>

void weightcast::fuzz::Accepted(const uint8_t* data, size_t size) {
  const auto copy = std::make_unique<uint8_t[]>(size);
  std::memcpy(copy.get(), data, size);
  volatile const uint8_t* bytes = copy.get();
  [[maybe_unused]] const uint8_t past_the_end = bytes[size];
}
#else
void weightcast::fuzz::Accepted(const uint8_t*, size_t) {}
#endif
