#include <type_traits>

#include "delta/scan_loops.h"

namespace weightcast::delta {
namespace {

template <int W>
using SignedOf = std::conditional_t<
    W == 1, int8_t,
    std::conditional_t<W == 2, int16_t, std::conditional_t<W == 4, int32_t, int64_t>>>;

// Loops over 64 numbers of the unit's own width, which compilers turn into vectors by themselves.
struct Portable {
  template <int W>
  struct Group {
    using Int = SignedOf<W>;
    Int magnitude[64];

    static Group Load(const uint8_t* from) {
      constexpr auto kMagnitude = static_cast<Int>(~uint64_t{0} >> (64 - 8 * W + 1));
      Group group;
      memcpy(group.magnitude, from, sizeof group.magnitude);
      for (Int& unit : group.magnitude) unit = static_cast<Int>(unit & kMagnitude);
      return group;
    }
    uint64_t Above(int64_t limit) const {
      uint64_t bits = 0;
      for (int i = 0; i < 64; ++i) bits |= uint64_t{magnitude[i] > limit} << i;
      return bits;
    }
    uint64_t CountsAbove(const ScanLimits& limits) const {
      uint64_t counts = 0;
      for (int k = 0; k < 7; ++k) {
        const auto limit = static_cast<Int>(limits.limit[k + 1]);
        Int above = 0;
        for (const Int unit : magnitude) above = static_cast<Int>(above + (unit > limit ? 1 : 0));
        counts |= static_cast<uint64_t>(above) << (8 * k);
      }
      return counts;
    }
  };

  template <int W>
  using Limits = const ScanLimits&;

  template <int W>
  static uint64_t Differ(const uint8_t* base, const uint8_t* next) {
    typename Group<W>::Int old_units[64];
    typename Group<W>::Int new_units[64];
    memcpy(old_units, base, sizeof old_units);
    memcpy(new_units, next, sizeof new_units);
    if (memcmp(old_units, new_units, sizeof old_units) == 0) return 0;
    uint64_t bits = 0;
    for (int i = 0; i < 64; ++i) bits |= uint64_t{old_units[i] != new_units[i]} << i;
    return bits;
  }

  struct Counts {
    uint32_t number[8];

    explicit Counts(const uint32_t* from) { memcpy(number, from, sizeof number); }
    void Add(uint64_t bytes) {
      for (int c = 0; c < 8; ++c) number[c] += static_cast<uint8_t>(bytes >> (8 * c));
    }
    void Subtract(uint64_t bytes) {
      for (int c = 0; c < 8; ++c) number[c] -= static_cast<uint8_t>(bytes >> (8 * c));
    }
    void Store(uint32_t* to) const { memcpy(to, number, sizeof number); }
    unsigned Hits(uint64_t bytes) const {
      unsigned hits = 0;
      for (int c = 0; c < 8; ++c) {
        if (number[c] < static_cast<uint8_t>(bytes >> (8 * c))) hits |= 1u << c;
      }
      return hits;
    }
  };
};

}  // namespace

const ScanKernels kScanPortable = MakeScanKernels<Portable>();

}  // namespace weightcast::delta
