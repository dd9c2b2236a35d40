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

}  // namespace

void AssignOwners(const tensor::Inventory& inventory, const std::vector<SharedShard>& shards,
                  std::vector<RankPlan>* ranks) {
  std::vector<Piece> pieces;
  for (const SharedShard& shard : shards) {
    for (const Slice& slice : shard.slices) {
      const tensor::Matrix matrix = inventory[static_cast<size_t>(slice.tensor)].matrix();
      const int64_t rows_per_cell = CellGrid::For(matrix).rows_per_cell;
      for (const Slice& part :
           CutAtCells(slice, rows_per_cell, static_cast<int64_t>(shard.places.size()))) {
        pieces.push_back({part, part.box.units() * matrix.unit_bytes, &shard});
      }
    }
  }
  std::ranges::stable_sort(pieces, std::greater(), &Piece::bytes);
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
    std::ranges::sort(rank.slices, {},
                      [](const Slice& s) { return std::tuple(s.tensor, s.box.row, s.box.col); });
  }
}

}  // namespace weightcast::layout
