#include "layout/cells.h"

#include <algorithm>
#include <tuple>

namespace weightcast::layout {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Places of a progression of `count` with `start` and `step` inside [from, to): the index of the
// first one and how many.
struct Span {
  int64_t first = 0;
  int64_t count = 0;
};
Span Within(int64_t start, int64_t step, int64_t count, int64_t from, int64_t to) {
  const int64_t first = start >= from ? 0 : CeilDiv(from - start, step);
  const int64_t end = std::min(count, start >= to ? 0 : CeilDiv(to - start, step));
  return {first, std::max<int64_t>(0, end - first)};
}

// The part of a slice that lies in `cell` (a box with steps 1), as a fragment; empty box if none.
Fragment Cut(const Slice& s, const Box& cell) {
  const Span rows = Within(s.box.row, s.box.row_step, s.box.rows, cell.row, cell.row + cell.rows);
  const Span cols = Within(s.box.col, s.box.col_step, s.box.cols, cell.col, cell.col + cell.cols);
  Fragment f{s.box, s.param, s.source, s.row_stride, s.col_stride, s.map};
  f.box.row += rows.first * s.box.row_step;
  f.box.rows = rows.count;
  f.box.col += cols.first * s.box.col_step;
  f.box.cols = cols.count;
  f.source += rows.first * s.row_stride + cols.first * s.col_stride;
  return f;
}

bool SameRows(const Box& a, const Box& b) {
  return a.row == b.row && a.rows == b.rows && a.row_step == b.row_step;
}
bool SameCols(const Box& a, const Box& b) {
  return a.col == b.col && a.cols == b.cols && a.col_step == b.col_step;
}

// Appends b to a if together they are one box; `b` comes after `a` in (row, col) order.
bool MergeInto(Chunk& a, Chunk& b) {
  const bool below = SameCols(a.box, b.box) && a.box.row_step == b.box.row_step &&
                     b.box.row == a.box.row + a.box.rows * a.box.row_step;
  const bool beside = SameRows(a.box, b.box) && a.box.col_step == b.box.col_step &&
                      b.box.col == a.box.col + a.box.cols * a.box.col_step;
  if (!below && !beside) return false;
  (below ? a.box.rows : a.box.cols) += below ? b.box.rows : b.box.cols;
  a.fragments.insert(a.fragments.end(), b.fragments.begin(), b.fragments.end());
  return true;
}

// One pass over neighbours in the order that `key` gives. True if anything was merged.
template <typename Key>
bool MergePass(std::vector<Chunk>& chunks, Key key) {
  std::ranges::sort(chunks, {}, key);
  size_t kept = 0;
  for (size_t i = 1; i < chunks.size(); ++i) {
    if (MergeInto(chunks[kept], chunks[i])) continue;
    ++kept;
    if (kept != i) chunks[kept] = std::move(chunks[i]);
  }
  const bool merged = kept + 1 < chunks.size();
  chunks.resize(std::min(chunks.size(), kept + 1));
  return merged;
}

// The chunks of one cell: side by side first, then one below the other, until nothing fits any
// more.
void Merge(std::vector<Chunk>& chunks) {
  const auto by_row = [](const Chunk& c) { return std::pair(c.box.row, c.box.col); };
  const auto by_col = [](const Chunk& c) { return std::pair(c.box.col, c.box.row); };
  for (bool merged = true; merged;) {
    merged = MergePass(chunks, by_row);
    merged = MergePass(chunks, by_col) || merged;
  }
  std::ranges::sort(chunks, {}, by_row);
}

}  // namespace

CellGrid CellGrid::For(const tensor::Matrix& matrix) {
  CellGrid grid;
  grid.matrix = matrix;
  grid.cols_per_cell = std::clamp<int64_t>(matrix.cols, 1, kCellUnits);
  grid.rows_per_cell = std::max<int64_t>(1, kCellUnits / std::max<int64_t>(1, matrix.cols));
  if (matrix.units() == 0) return grid;  // no cell
  grid.row_bands = CeilDiv(matrix.rows, grid.rows_per_cell);
  grid.col_bands = CeilDiv(matrix.cols, grid.cols_per_cell);
  return grid;
}

Box CellGrid::CellBox(int64_t cell) const {
  Box box;
  box.row = cell / col_bands * rows_per_cell;
  box.rows = std::min(rows_per_cell, matrix.rows - box.row);
  box.col = cell % col_bands * cols_per_cell;
  box.cols = std::min(cols_per_cell, matrix.cols - box.col);
  return box;
}

int64_t CellGrid::CellAt(int64_t row, int64_t col) const {
  return row / rows_per_cell * col_bands + col / cols_per_cell;
}

CellRun RunOf(const tensor::Matrix& matrix, int64_t cell) {
  const Box box = CellGrid::For(matrix).CellBox(cell);
  // The grid cuts columns only where one row alone is larger than a cell.
  WC_CHECK(box.rows == 1 || box.cols == matrix.cols);
  return {(box.row * matrix.cols + box.col) * matrix.unit_bytes, box.units() * matrix.unit_bytes};
}

ChunkList CutIntoChunks(const tensor::Inventory& inventory, const RankPlan& rank) {
  ChunkList list;
  // Slices are sorted by tensor; a tensor's fragments are collected by cell, then merged.
  for (size_t begin = 0; begin < rank.slices.size();) {
    const int32_t tensor = rank.slices[begin].tensor;
    const tensor::Matrix matrix = inventory[static_cast<size_t>(tensor)].matrix();
    const CellGrid grid = CellGrid::For(matrix);
    std::vector<std::pair<int64_t, Fragment>> fragments;  // cell, part
    size_t end = begin;
    for (; end < rank.slices.size() && rank.slices[end].tensor == tensor; ++end) {
      const Slice& s = rank.slices[end];
      const int64_t last_row = s.box.row + (s.box.rows - 1) * s.box.row_step;
      const int64_t last_col = s.box.col + (s.box.cols - 1) * s.box.col_step;
      for (int64_t r = s.box.row / grid.rows_per_cell; r <= last_row / grid.rows_per_cell; ++r) {
        for (int64_t c = s.box.col / grid.cols_per_cell; c <= last_col / grid.cols_per_cell; ++c) {
          const int64_t cell = r * grid.col_bands + c;
          const Fragment f = Cut(s, grid.CellBox(cell));
          if (f.box.units() > 0) fragments.emplace_back(cell, f);
        }
      }
    }
    std::ranges::stable_sort(fragments, {}, [](const auto& f) { return f.first; });
    for (size_t i = 0; i < fragments.size();) {
      std::vector<Chunk> chunks;
      const int64_t cell = fragments[i].first;
      for (; i < fragments.size() && fragments[i].first == cell; ++i) {
        chunks.push_back({tensor, cell, fragments[i].second.box, 0, {fragments[i].second}});
      }
      Merge(chunks);
      for (Chunk& chunk : chunks) {
        const int64_t bytes = chunk.box.units() * matrix.unit_bytes;
        chunk.at = list.packed_bytes;
        list.packed_bytes += bytes;
        list.chunk_bytes_max = std::max(list.chunk_bytes_max, bytes);
        list.chunks.push_back(std::move(chunk));
      }
    }
    begin = end;
  }
  return list;
}

}  // namespace weightcast::layout
