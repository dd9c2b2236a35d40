// Inside of the scans: what each kernel file gives to scan.cc. Kernels see raw pointers and whole
// groups of 64 units; scan.cc pads the last one.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace weightcast::delta {

// Limits of class c: a unit is in it if limit[c] < magnitude <= limit[c + 1], as signed numbers of
// the unit's width. Classes that do not exist have limit[c] = limit[c + 1] = the largest magnitude.
struct ScanLimits {
  int64_t limit[9];
  int mantissa_bits;
  const uint8_t* class_of_octave;
};

// Countdown of a selection that goes on over several calls.
struct SelectState {
  const uint32_t** rank;  // of each of 8 classes: its next wanted rank
  uint32_t* seen;         // and its units so far
};

struct ScanKernels {
  // Indexed by log2 of the unit's bytes.
  size_t (*diff[4])(const uint8_t* base, const uint8_t* next, size_t groups, uint64_t* mask);
  uint32_t* (*rank[4])(const ScanLimits& limits, const uint8_t* base, size_t groups,
                       const uint64_t* mask, uint32_t* seen, uint32_t* ranks);
  size_t (*select[4])(const ScanLimits& limits, const uint8_t* base, size_t groups,
                      const SelectState& state, uint64_t* mask, uint8_t* next);
};

extern const ScanKernels kScanPortable;
#if defined(__x86_64__)
extern const ScanKernels kScanAvx2;
extern const ScanKernels kScanAvx512;
#endif

}  // namespace weightcast::delta
