// The loops of the scans, once for every kernel file. An Isa gives groups of 64 units:
//
//   Group<W>::Load(bytes)        the magnitudes of 64 units of W bytes
//     .Above(limit)              mask of the units whose magnitude is above, as signed numbers
//     .CountsAbove(limits)       byte k of the result: how many are above limits.limit[k + 1], k <
//     7
//   Limits<W>(ScanLimits)        the limits as CountsAbove wants them
//   Differ<W>(base, next)        mask of 64 units that differ
//   Counts                       eight running numbers: Add(bytes), Store(to),
//                                Hits(bytes): bit c set if number c is below byte c
//
// Everything is in an anonymous namespace and calls no inline function of others: each kernel file
// is compiled with flags of its own, and the linker must not keep one file's copy for all.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "delta/scan_kernel.h"

namespace weightcast::delta {
namespace {

inline unsigned CountOnes(uint64_t bits) {
  return static_cast<unsigned>(__builtin_popcountll(bits));
}
inline unsigned LowestOne(uint64_t bits) { return static_cast<unsigned>(__builtin_ctzll(bits)); }

// Position of the one bit of `bits` that has `rank` ones below it. Not pdep: it is microcode on
// some CPUs that have it.
//   Requires: rank < CountOnes(bits).
inline unsigned SelectOne(uint64_t bits, unsigned rank) {
  constexpr uint64_t kEach = 0x0101010101010101;
  uint64_t sums = bits - ((bits >> 1) & 0x5555555555555555);
  sums = (sums & 0x3333333333333333) + ((sums >> 2) & 0x3333333333333333);
  sums = ((sums + (sums >> 4)) & 0x0f0f0f0f0f0f0f0f) * kEach;  // byte b: ones in bytes 0 ... b
  // Bytes whose sum is at most `rank` lie wholly below the wanted bit.
  const uint64_t below = ((rank * kEach | 0x8080808080808080) - sums) & 0x8080808080808080;
  const unsigned byte = CountOnes(below);
  unsigned left = rank - (byte == 0 ? 0 : static_cast<unsigned>(sums >> (8 * (byte - 1))) & 0xff);
  uint64_t rest = bits >> (8 * byte);
  for (; left > 0; --left) rest &= rest - 1;
  return 8 * byte + LowestOne(rest);
}

template <int W>
inline uint64_t LoadUnit(const uint8_t* from) {
  uint64_t bits = 0;
  memcpy(&bits, from, W);
  return bits;
}

// Counts above each limit to counts of each class: byte c of the result.
inline uint64_t ClassCounts(uint64_t above) { return ((above << 8) | 64) - above; }

template <typename Isa, int W>
size_t DiffLoop(const uint8_t* base, const uint8_t* next, size_t groups, uint64_t* mask) {
  size_t changed = 0;
  for (size_t g = 0; g < groups; ++g) {
    const uint64_t bits = Isa::template Differ<W>(base + g * 64 * W, next + g * 64 * W);
    mask[g] = bits;
    changed += CountOnes(bits);
  }
  return changed;
}

template <typename Isa, int W>
uint32_t* RankLoop(const ScanLimits& scan, const uint8_t* base, size_t groups, const uint64_t* mask,
                   uint32_t* seen, uint32_t* ranks) {
  constexpr uint64_t kMagnitude = ~uint64_t{0} >> (64 - 8 * W + 1);
  const typename Isa::template Limits<W> limits(scan);
  typename Isa::Counts counts(seen);
  for (size_t g = 0; g < groups; ++g) {
    const uint8_t* const units = base + g * 64 * W;
    const auto group = Isa::template Group<W>::Load(units);
    if (mask[g] != 0) {
      counts.Store(seen);
      for (uint64_t left = mask[g]; left != 0; left &= left - 1) {
        const unsigned i = LowestOne(left);
        const uint64_t magnitude = LoadUnit<W>(units + size_t{i} * W) & kMagnitude;
        const uint32_t c = scan.class_of_octave[magnitude >> scan.mantissa_bits];
        const uint64_t members = group.Above(scan.limit[c]) & ~group.Above(scan.limit[c + 1]);
        *ranks++ = (c << 24) | (seen[c] + CountOnes(members & ((uint64_t{1} << i) - 1)));
      }
    }
    counts.Add(ClassCounts(group.CountsAbove(limits)));
  }
  counts.Store(seen);
  return ranks;
}

template <typename Isa, int W>
size_t SelectLoop(const ScanLimits& scan, const uint8_t* base, size_t groups,
                  const SelectState& state, uint64_t* mask, uint8_t* next) {
  const typename Isa::template Limits<W> limits(scan);
  uint32_t left[8];  // units of the class to pass before the wanted one
  for (int c = 0; c < 8; ++c) left[c] = *state.rank[c] - state.seen[c];
  typename Isa::Counts counts(left);
  size_t found = 0;
  for (size_t g = 0; g < groups; ++g) {
    const uint8_t* const units = base + g * 64 * W;
    const auto group = Isa::template Group<W>::Load(units);
    const uint64_t members = ClassCounts(group.CountsAbove(limits));
    uint64_t bits = 0;
    if (unsigned hits = counts.Hits(members); hits != 0) {
      counts.Store(left);
      for (; hits != 0; hits &= hits - 1) {
        const unsigned c = LowestOne(hits);
        const auto in_group = static_cast<uint32_t>((members >> (8 * c)) & 0xff);
        const uint64_t of_class = group.Above(scan.limit[c]) & ~group.Above(scan.limit[c + 1]);
        do {
          bits |= uint64_t{1} << SelectOne(of_class, left[c]);
          const uint32_t rank = *state.rank[c]++;
          left[c] += *state.rank[c] - rank;
        } while (left[c] < in_group);
      }
      counts = typename Isa::Counts(left);
    }
    counts.Subtract(members);
    mask[g] = bits;
    found += CountOnes(bits);
    memcpy(next + g * 64 * W, units, size_t{64} * W);
  }
  counts.Store(left);
  for (int c = 0; c < 8; ++c) state.seen[c] = *state.rank[c] - left[c];
  return found;
}

template <typename Isa>
constexpr ScanKernels MakeScanKernels() {
  return {{DiffLoop<Isa, 1>, DiffLoop<Isa, 2>, DiffLoop<Isa, 4>, DiffLoop<Isa, 8>},
          {RankLoop<Isa, 1>, RankLoop<Isa, 2>, RankLoop<Isa, 4>, RankLoop<Isa, 8>},
          {SelectLoop<Isa, 1>, SelectLoop<Isa, 2>, SelectLoop<Isa, 4>, SelectLoop<Isa, 8>}};
}

}  // namespace
}  // namespace weightcast::delta
