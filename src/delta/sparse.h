// Positions and values of changed units in the clear, for files that are written once and applied
// soon on the same host (redo journals): as fast as memory, about three times a coded chunk's size.
// Values are absolute: writing them again does no harm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace weightcast::delta {

// Appends ascending positions as LEB128 gaps: what lies between a position and the one before.
void AppendGaps(std::span<const uint32_t> positions, Bytes* out);

// Appends the units of `chunk` at `positions`.
void AppendUnits(ByteSpan chunk, std::span<const uint32_t> positions, int unit_bytes, Bytes* out);

// The positions of exactly `count` gaps. False, with `positions` unspecified, if `gaps` is
// malformed or leaves a chunk of `chunk_units`.
bool ReadGaps(ByteSpan gaps, size_t count, uint64_t chunk_units, std::vector<uint32_t>* positions);

// Writes `units`, one for each gap, into `chunk`. False if `gaps` is malformed, leaves the chunk or
// does not hold just as many as `units`; `chunk` is then written in part.
//   Requires: unit_bytes is 1, 2, 4 or 8.
bool ScatterUnits(int unit_bytes, ByteSpan gaps, ByteSpan units, MutableByteSpan chunk);

}  // namespace weightcast::delta
