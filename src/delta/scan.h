// The three passes over whole chunks that decide the codec's speed. Portable, AVX2 and AVX-512; the
// best one that the CPU has is chosen at the first use. All give equal results.
//
// Pure; safe on many threads. A *mask* has one bit a unit, 64 units a word, bit i of word w for
// unit 64 w + i; bits behind the last unit are 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "delta/unit_format.h"

namespace weightcast::delta {

inline constexpr size_t kClassesMax = 8;

inline size_t MaskWords(size_t units) { return (units + 63) / 64; }

// Ranges of octaves of the base. Class c holds the octaves from first_octave[c] to that of c + 1.
struct ClassTable {
  UnitFormat format;
  size_t classes = 1;
  std::array<uint32_t, kClassesMax> first_octave{};  // [0] is 0; strictly ascending
};

// Behind the ranks of each class in SelectUnits.
inline constexpr uint32_t kNoRank = 0x7fffffff;

// Sets the mask of units that differ; returns how many.
//   Requires: base.size() == next.size() == units * unit_bytes; mask.size() == MaskWords(units).
size_t DiffUnits(size_t unit_bytes, ByteSpan base, ByteSpan next, std::span<uint64_t> mask);

// For each unit in the mask, ascending: its class in the bits from 24, its rank among the units of
// its class in the bits below.
//   Requires: ranks has room for as many as bits are set; at most 2^24 units.
void RankUnits(const ClassTable& table, ByteSpan base, std::span<const uint64_t> mask,
               uint32_t* ranks);

// The inverse: sets the mask of the units that have the given ranks in their classes, and copies
// base to next. Returns how many it found: fewer than given if a rank is beyond its class.
//   Requires: ranks[c] ascends strictly and ends with kNoRank, for every c < table.classes.
size_t SelectUnits(const ClassTable& table, ByteSpan base,
                   const std::array<const uint32_t*, kClassesMax>& ranks, std::span<uint64_t> mask,
                   MutableByteSpan next);

enum class ScanKernel : uint8_t { kPortable, kAvx2, kAvx512 };
// For tests and benches: forces a kernel. False if this CPU lacks it.
bool ForceScanKernel(ScanKernel kernel);

}  // namespace weightcast::delta
