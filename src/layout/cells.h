// Cells: the grid that the inventory alone fixes, the same for every trainer layout; and chunks:
// what one rank owns of one cell. docs/formats/cells.md.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "layout/plan.h"

namespace weightcast::layout {

// 1 Mi units: one cell of base and next lies in a core's L2 twice, an index entry of about 90 bytes
// is 1 % of its payload at 1 % density, and a refetched piece costs little (docs/design/cells.md).
inline constexpr int64_t kCellUnits = int64_t{1} << 20;

// Cells of one tensor: row bands of rows_per_cell rows; rows longer than kCellUnits are cut into
// column bands of cols_per_cell. Numbered row band by row band.
struct CellGrid {
  tensor::Matrix matrix;
  int64_t rows_per_cell = 1;
  int64_t cols_per_cell = 1;
  int64_t row_bands = 0;
  int64_t col_bands = 0;

  static CellGrid For(const tensor::Matrix& matrix);
  int64_t cells() const { return row_bands * col_bands; }
  Box CellBox(int64_t cell) const;
  // The cell that holds unit (row, col).
  int64_t CellAt(int64_t row, int64_t col) const;
};

// Where a cell lies in its tensor's canonical bytes: always one run.
struct CellRun {
  int64_t offset = 0;
  int64_t bytes = 0;

  ByteSpan Of(ByteSpan tensor) const {  // all of the tensor's bytes
    return tensor.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes));
  }
};
CellRun RunOf(const tensor::Matrix& matrix, int64_t cell);

// A fragment of a slice inside a chunk: the units of `box` (a sub-box of the chunk's box, in tensor
// coordinates) and where they lie in the shard, as in Slice.
struct Fragment {
  Box box;
  int32_t param = 0;
  int64_t source = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
  ValueMap map = ValueMap::kCopy;
};

// What one rank owns of one cell, as one box: adjacent slices are merged, so that a chunk is
// usually the rank's whole share of the cell; a share that is no box becomes several chunks.
struct Chunk {
  int32_t tensor = 0;
  int64_t cell = 0;
  Box box;         // in tensor coordinates, inside the cell
  int64_t at = 0;  // byte offset of the packed chunk in the rank's packed bytes (the baseline)
  std::vector<Fragment> fragments;  // tile the box exactly
};

// A rank's chunks, sorted by (tensor, cell, box.row, box.col), packed one after the other.
struct ChunkList {
  std::vector<Chunk> chunks;
  int64_t packed_bytes = 0;
  int64_t chunk_bytes_max = 0;
};
ChunkList CutIntoChunks(const tensor::Inventory& inventory, const RankPlan& rank);

}  // namespace weightcast::layout
