// Does a rank's shard hold what the plan says it holds?
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "layout/plan.h"

namespace weightcast::bridge {

// Compares names, dtypes and shapes; a publisher calls it at every publish, before a byte moves.
// Returns the names that an `ignored` pattern of the plan covers.
// Errors: kInvalidData listing every unknown, missing and wrongly shaped or typed parameter of
// `rank`.
Result<std::vector<std::string>> CheckShardKeys(const layout::RankPlan& plan,
                                                const std::vector<tensor::TensorSpec>& shard,
                                                RankId rank);

}  // namespace weightcast::bridge
