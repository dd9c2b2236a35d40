// The other way to a plan: converters written by hand, one a family, each saying what the
// parameters of one rank hold. It exists to disagree with the rules: it knows none of them, and
// both must give the same plan. docs/design/raw.md.
#pragma once

#include <vector>

#include "base/status.h"
#include "bridge/compiled_plan.h"
#include "bridge/hf_config.h"
#include "bridge/megatron_config.h"

namespace weightcast::bridge {

// As CompilePlan, for fewer ranks: a plan of at most kRawParamsMax parameters.
// Errors: as CompilePlan; every size that does not fit, at once.
Result<CompiledPlan> CompileRaw(const HfConfig& model, const MegatronConfig& trainer,
                                const CompileOptions& options);

// Every parameter of every rank is listed with all that it holds before equal ones are found.
inline constexpr int64_t kRawParamsMax = int64_t{1} << 21;

// Rows of the embedding over all tensor ranks, as one rank's shard shows them; 0 if it has none.
int64_t RawVocabRowsOf(const MegatronConfig& trainer, const std::vector<tensor::TensorSpec>& shard);

}  // namespace weightcast::bridge
