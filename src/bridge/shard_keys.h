// Does a rank's shard hold what the plan says it holds?
#pragma once

#include <map>
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

// Names of a shard that mean one tensor: each alias, and the name that stands for all of them.
using SameTensor = std::map<std::string, std::string>;

// The shard without the names that the plan does not know, where it knows another name of the same
// tensor (an output layer that lists the embedding it is tied to). Nothing else is dropped.
std::vector<tensor::TensorSpec> WithoutAliases(const layout::RankPlan& plan,
                                               const std::vector<tensor::TensorSpec>& shard,
                                               const SameTensor& same);

}  // namespace weightcast::bridge
