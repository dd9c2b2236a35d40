#include "layout/owners.h"

#include <algorithm>
#include <tuple>

#include "layout/cells.h"

namespace weightcast::layout {
namespace {

struct Piece {
  Slice slice;
  int64_t bytes = 0;
  const SharedShard* shard = nullptr;
};

// Cuts a slice into at most `parts` of about equally many cell rows.
std::vector<Slice> CutAtCells(const Slice& slice, int64_t rows_per_cell, int64_t parts) {
  if (slice.box.row_step != 1 || parts == 1) return {slice};
  const int64_t first_band = slice.box.row / rows_per_cell;
  const int64_t bands = (slice.box.row + slice.box.rows - 1) / rows_per_cell - first_band + 1;
  const int64_t end = slice.box.row + slice.box.rows;
  parts = std::min(parts, bands);
  std::vector<Slice> cut;
  int64_t row = slice.box.row;
  for (int64_t i = 1; i <= parts; ++i) {
    const int64_t to = i == parts ? end : (first_band + bands * i / parts) * rows_per_cell;
    Slice part = slice;
    part.box.row = row;
    part.box.rows = to - row;
    part.source += (row - slice.box.row) * slice.row_stride;
    cut.push_back(part);
    row = to;
  }
  return cut;
}

// Whether b is a's rows further down, in the tensor and in the shard.
bool GoesOnBelow(const Slice& a, const Slice& b) {
  return a.box.col == b.box.col && a.box.cols == b.box.cols &&
         b.box.row == a.box.row + a.box.rows * a.box.row_step &&
         b.source == a.source + a.box.rows * a.row_stride;
}

// ... a's columns further right.
bool GoesOnBeside(const Slice& a, const Slice& b) {
  return a.box.row == b.box.row && a.box.rows == b.box.rows &&
         b.box.col == a.box.col + a.box.cols * a.box.col_step &&
         b.source == a.source + a.box.cols * a.col_stride;
}

bool MergeInto(Slice& a, const Slice& b) {
  const auto same = [](const Slice& s) {
    return std::tuple(s.tensor, s.map, s.box.row_step, s.box.col_step, s.row_stride, s.col_stride);
  };
  if (same(a) != same(b)) return false;
  if (GoesOnBelow(a, b)) {
    a.box.rows += b.box.rows;
  } else if (GoesOnBeside(a, b)) {
    a.box.cols += b.box.cols;
  } else {
    return false;
  }
  return true;
}

// One pass over neighbours in the order that `key` gives. True if anything was merged.
template <typename Key>
bool MergePass(std::vector<Slice>& slices, Key key) {
  std::ranges::sort(slices, {}, key);
  size_t kept = 0;
  for (size_t i = 1; i < slices.size(); ++i) {
    if (!MergeInto(slices[kept], slices[i])) slices[++kept] = slices[i];
  }
  const bool merged = kept + 1 < slices.size();
  slices.resize(std::min(slices.size(), kept + 1));
  return merged;
}

std::tuple<int32_t, int64_t, int64_t> Where(const Slice& s) {
  return {s.tensor, s.box.row, s.box.col};
}

}  // namespace

std::vector<Slice> Merged(std::vector<Slice> slices) {
  // What goes on lies next in the shard; rows that alternate in the tensor do not part it.
  const auto by_col = [](const Slice& s) { return std::tuple(s.tensor, s.box.col, s.source); };
  const auto by_row = [](const Slice& s) { return std::tuple(s.tensor, s.box.row, s.source); };
  for (bool merged = true; merged;) {
    merged = MergePass(slices, by_col);
    merged = MergePass(slices, by_row) || merged;
  }
  for (Slice& s : slices) {
    if (s.box.cols == 1) s.box.col_step = s.col_stride = 1;
    if (s.box.rows == 1) s.box.row_step = 1, s.row_stride = s.box.cols * s.col_stride;
  }
  std::ranges::sort(slices, {}, Where);
  return slices;
}

void AssignOwners(const tensor::Inventory& inventory, const std::vector<SharedShard>& shards,
                  std::vector<RankPlan>* ranks) {
  std::vector<Piece> pieces;
  for (const SharedShard& shard : shards) {
    for (const Slice& slice : Merged(shard.slices)) {
      const tensor::Matrix matrix = inventory[static_cast<size_t>(slice.tensor)].matrix();
      const int64_t rows_per_cell = CellGrid::For(matrix).rows_per_cell;
      for (const Slice& part :
           CutAtCells(slice, rows_per_cell, static_cast<int64_t>(shard.places.size()))) {
        pieces.push_back({part, part.box.units() * matrix.unit_bytes, &shard});
      }
    }
  }
  std::ranges::sort(pieces, {}, [](const Piece& p) { return std::pair(-p.bytes, Where(p.slice)); });
  std::vector<int64_t> load(ranks->size());
  for (Piece& piece : pieces) {
    const Place owner = *std::ranges::min_element(piece.shard->places, {}, [&](const Place& p) {
      return std::pair(load[static_cast<size_t>(p.rank)], p.rank);
    });
    load[static_cast<size_t>(owner.rank)] += piece.bytes;
    piece.slice.param = owner.param;
    (*ranks)[static_cast<size_t>(owner.rank)].slices.push_back(piece.slice);
  }
  for (RankPlan& rank : *ranks) {
    std::ranges::sort(rank.slices, {}, Where);
  }
}

}  // namespace weightcast::layout
