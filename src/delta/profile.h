// What the encoder learns about a chunk before it chooses a method: classes of base magnitude, and
// about how many bits positions and values will take. Sampled and counted in integers, so that
// equal chunks give equal profiles on every CPU. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "delta/scan.h"

namespace weightcast::delta {

struct ChunkProfile {
  ClassTable classes;
  uint64_t gap_bits = 0;     // positions, given the classes
  uint64_t bitmap_bits = 0;  // positions, without classes
  uint64_t step_bits = 0;    // values as step codes
  uint64_t word_bits = 0;    // values as XOR words in planes
  uint64_t plane_bits = 0;   // XOR words of all units in planes
};

// `old_units` and `new_units` are the changed ones, packed; `base` all units.
//   Requires: at least one unit changed.
ChunkProfile ProfileChunk(const UnitFormat& format, ByteSpan base, ByteSpan old_units,
                          ByteSpan new_units);

}  // namespace weightcast::delta
