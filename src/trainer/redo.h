// The redo file of a baseline: what an announced version changes in it, as absolute values, so that
// it can be applied when the version is READY, and again after any death. Local and short-lived:
// written while encoding, applied by the same host, removed. Layout (little endian), one record a
// changed chunk:
//
//   u32 chunk (index in the rank's list)   u32 bytes of gaps (0: whole)   u64 bytes of units
//   u64 XXH3 of the record without this field   gaps   units
//
// `gaps` and `units` as in delta/sparse.h; a whole chunk has no gaps and all its units.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "layout/cells.h"
#include "os/fs.h"
#include "tensor/inventory.h"

namespace weightcast::trainer {

// The record of a chunk whose units at `changed` become those of `next`; empty if nothing changed.
void EncodeRedo(size_t chunk, int unit_bytes, ByteSpan next, std::span<const uint32_t> changed,
                Bytes* record);

// Writes every record of `redo` into `baseline`, the chunks packed as the list says. May be
// repeated. Errors: kDataLoss if a record is damaged or fits no chunk: `baseline` is then written
// in part.
Status ApplyRedo(ByteSpan redo, const tensor::Inventory& inventory, const layout::ChunkList& chunks,
                 os::Mapping& baseline, int threads);

}  // namespace weightcast::trainer
