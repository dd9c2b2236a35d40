// Config and topology in, plan out. Pure: every rank compiles the same plan from the same inputs
// and the catalog compares the hashes.
#pragma once

#include <vector>

#include "base/status.h"
#include "bridge/compiled_plan.h"
#include "bridge/hf_config.h"
#include "bridge/megatron_config.h"
#include "bridge/rule.h"

namespace weightcast::bridge {

// Errors: kInvalidData: no family for the architecture; a size that is missing or does not fit;
// configs that describe different models; a setting or flag for which there is no rule; experts
// that the reference has otherwise than they are asked for; a difference to the reference, with all
// missing, unknown and different tensors. kInvalidArgument: a carry pattern without reference, or
// one that matches nothing or what the trainer produces; an expert layout asked of a family that
// has none to choose.
Result<CompiledPlan> CompilePlan(const HfConfig& model, const MegatronConfig& trainer,
                                 const CompileOptions& options);

// The same for a family that is not in the list (tests).
Result<CompiledPlan> CompilePlanFor(const Family& family, const HfConfig& model,
                                    const MegatronConfig& trainer, const CompileOptions& options);

// Whether embedding and output layer share one weight.
bool IsTied(const Family& family, const HfConfig& model);

// Rows of the embedding over all tensor ranks, told by the embedding or output layer that one
// rank's shard holds; 0 if it holds neither. make_vocab_size_divisible_by is not to be trusted, a
// shard is.
int64_t VocabRowsOf(const Family& family, const MegatronConfig& trainer,
                    const std::vector<tensor::TensorSpec>& shard);

}  // namespace weightcast::bridge
