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

// Gives each slice to one of its places, as slices of `ranks` (sorted). A slice that several ranks
// hold is first cut at the borders of cell rows, so that no chunk becomes smaller than its cell.
// Deterministic: the largest piece first, to the rank that has least so far, ties to the lowest
// rank.
void AssignOwners(const tensor::Inventory& inventory, const std::vector<SharedShard>& shards,
                  std::vector<RankPlan>* ranks);

}  // namespace weightcast::layout
