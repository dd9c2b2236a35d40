#include "delta/cost.h"

#include <array>
#include <bit>

#include "base/status.h"

namespace weightcast::delta {
namespace {

constexpr unsigned kTableBits = 8;

// log2(m) * 2^16 for 1 <= m < 2, m = 1 + i / 256: squares m sixteen times and notes when it
// passes 2.
constexpr uint32_t Log2Mantissa(uint64_t i) {
  uint64_t m = (uint64_t{1} << 31) + (i << (31 - kTableBits));  // 1 <= m / 2^31 < 2
  uint32_t log = 0;
  for (int bit = 15; bit >= 0; --bit) {
    m = (m * m) >> 31;
    if (m >= uint64_t{1} << 32) {
      m >>= 1;
      log |= uint32_t{1} << bit;
    }
  }
  return log;
}

constexpr auto kLog2 = [] {
  std::array<uint32_t, (1 << kTableBits) + 1> table{};
  for (uint64_t i = 0; i < 1 << kTableBits; ++i) table[i] = Log2Mantissa(i);
  table.back() = 1 << 16;
  return table;
}();

}  // namespace

uint64_t Log2Fixed(uint64_t x) {
  WC_CHECK(x > 0);
  const auto whole = static_cast<unsigned>(std::bit_width(x) - 1);
  const uint64_t fraction = (x << (63 - whole)) << 1;  // of 2^64
  const uint64_t at = fraction >> (64 - kTableBits);
  const uint64_t between = (fraction >> (64 - kTableBits - 16)) & 0xffff;
  return (uint64_t{whole} << 16) + kLog2[at] + (((kLog2[at + 1] - kLog2[at]) * between) >> 16);
}

uint64_t EntropyBits(std::span<const uint32_t> counts) {
  uint64_t all = 0;
  for (const uint32_t count : counts) all += count;
  if (all == 0) return 0;
  const uint64_t log_all = Log2Fixed(all);
  uint64_t bits = 0;
  for (const uint32_t count : counts) {
    if (count > 0) bits += count * (log_all - Log2Fixed(count));
  }
  return bits >> 16;
}

uint64_t MarkBits(uint64_t set, uint64_t all) {
  if (set == 0 || set == all) return 0;
  const uint64_t log_all = Log2Fixed(all);
  if (set <
      all /
          16) {  // -(all - set) log2(1 - set / all), where a difference of logarithms is too coarse
    constexpr uint64_t kLog2E = 94548;  // * 2^16
    return (set * (log_all - Log2Fixed(set)) + set * kLog2E - set * set * kLog2E / (2 * all)) >> 16;
  }
  return (set * (log_all - Log2Fixed(set)) + (all - set) * (log_all - Log2Fixed(all - set))) >> 16;
}

}  // namespace weightcast::delta
