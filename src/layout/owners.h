// Who sends what several ranks hold: exactly one owner a unit, bytes spread evenly over the
// replicas.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/plan.h"

namespace weightcast::layout {

// Where a shard lies: a parameter of a rank.
struct Place {
  int32_t rank = 0;
  int32_t param = 0;
  bool operator==(const Place&) const = default;
};

// A shard that is the same on every one of `places`, and the slices that it holds; their `param` is
// not set yet.
struct SharedShard {
  std::vector<Place> places;
  std::vector<Slice> slices;
};

// The same units in as few slices as neighbours allow: those that go on in the next rows (or
// columns) of the tensor and at the next place of the shard become one. A lone row or column gets
// the step and stride that it would have in dense data. So plans of the same meaning are the same,
// however finely a compiler cuts. Sorted by (tensor, box.row, box.col).
std::vector<Slice> Merged(std::vector<Slice> slices);

// Gives each slice to one of its places, as slices of `ranks` (sorted): first merges a shard's
// slices; then cuts those that several ranks hold at the borders of cell rows, so that no chunk
// becomes smaller than its cell. Deterministic, in whatever order shards and places are given: the
// largest piece first, of equal ones the first in the inventory, to the rank that has least so far,
// ties to the lowest rank. Time grows with pieces times the ranks that hold them.
void AssignOwners(const tensor::Inventory& inventory, const std::vector<SharedShard>& shards,
                  std::vector<RankPlan>* ranks);

}  // namespace weightcast::layout
