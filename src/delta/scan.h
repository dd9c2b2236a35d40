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
#include "delta/scan_kernel.h"
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

// The class of each octave, looked up.
class OctaveClasses {
 public:
  explicit OctaveClasses(const ClassTable& table);
  uint8_t operator[](uint32_t octave) const { return class_of_octave_[octave]; }
  const uint8_t* data() const { return class_of_octave_.data(); }

 private:
  std::array<uint8_t, kOctavesMax> class_of_octave_;
};

// A class table as the kernels want it. Neither copied nor moved: it points into itself.
struct ScanTable {
  explicit ScanTable(const ClassTable& table);
  ScanTable(const ScanTable&) = delete;
  ScanTable& operator=(const ScanTable&) = delete;

  OctaveClasses class_of;
  ScanLimits limits;
};

// Behind the ranks of each class in UnitSelector.
inline constexpr uint32_t kNoRank = 0x7fffffff;

// Sets the mask of units that differ; returns how many.
//   Requires: base.size() == next.size() == units * unit_bytes; mask.size() == MaskWords(units).
size_t DiffUnits(size_t unit_bytes, ByteSpan base, ByteSpan next, std::span<uint64_t> mask);

// For each unit in the mask, ascending: its class in the bits from 24, its rank among the units of
// its class in the bits below.
//   Requires: ranks has room for as many as bits are set; at most 2^24 units.
void RankUnits(const ClassTable& table, ByteSpan base, std::span<const uint64_t> mask,
               uint32_t* ranks);

// The inverse, block by block, so that what is found can be used while it is in the cache: sets the
// mask of the units that have the given ranks in their classes.
class UnitSelector {
 public:
  //   Requires: ranks[c] ascends strictly and ends with kNoRank, for every c < table.classes. Table
  //   and ranks outlive the selector.
  UnitSelector(const ClassTable& table, const std::array<const uint32_t*, kClassesMax>& ranks);

  // The next units of the base. Copies them to `next` as well and returns how many it found; a rank
  // beyond its class is never found.
  //   Requires: every block but the last has a multiple of 64 units.
  size_t Next(ByteSpan base, std::span<uint64_t> mask, MutableByteSpan next);

 private:
  size_t NextPositions(size_t units, std::span<uint64_t> mask);

  const ClassTable& table_;
  ScanTable scan_;
  std::array<const uint32_t*, kClassesMax> ranks_{};  // next wanted ones
  std::array<uint32_t, kClassesMax> seen_{};          // units of each class so far
};

enum class ScanKernel : uint8_t { kPortable, kAvx2, kAvx512 };
// For tests and benches: forces a kernel. False if this CPU lacks it.
bool ForceScanKernel(ScanKernel kernel);

}  // namespace weightcast::delta
