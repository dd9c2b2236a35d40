// Strided copies between shards, canonical tensors and packed boxes. Pure, any thread; runs of
// contiguous units move at the speed of memcpy. Buffers may lie at any alignment.
#pragma once

#include <span>

#include "base/bytes.h"
#include "layout/cells.h"
#include "layout/plan.h"

namespace weightcast::layout {

// A chunk's canonical units, row by row, from a rank's shards: where they lie if one run of one
// parameter holds them, else packed into `buffer`, which is resized.
//   Requires: params[i] holds the bytes of RankPlan::params[i] (contiguous, row-major).
//   Returns a view of a parameter or of `buffer`.
ByteSpan GatherChunk(const tensor::TensorSpec& spec, const Chunk& chunk,
                     std::span<const ByteSpan> params, Bytes* buffer);

// Writes a slice's canonical units into a buffer that holds the whole tensor.
//   Requires: `shard` holds the bytes of the slice's parameter; canonical.size() == matrix.bytes().
void ScatterSlice(const tensor::Matrix& matrix, const Slice& slice, ByteSpan shard,
                  MutableByteSpan canonical);

// Packs a box of a canonical tensor (`canonical` holds all its bytes).
void GatherBox(const tensor::Matrix& matrix, const Box& box, ByteSpan canonical,
               MutableByteSpan packed);

// The way back: writes a packed box into a buffer that holds the units of `frame` (a box that
// contains it, packed; Box::All for a whole tensor).
//   Requires: `box` lies inside `frame`; frame steps are 1.
void ScatterBox(const tensor::Matrix& matrix, const Box& box, ByteSpan packed, const Box& frame,
                MutableByteSpan frame_bytes);
// Packs `box` out of a buffer that holds `frame`.
void GatherFromFrame(const tensor::Matrix& matrix, const Box& box, const Box& frame,
                     ByteSpan frame_bytes, MutableByteSpan packed);

}  // namespace weightcast::layout
