// The two ways to a plan: the families' rules, or converters written by hand. They must agree.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bridge/compiled_plan.h"
#include "bridge/hf_config.h"
#include "bridge/megatron_config.h"

namespace weightcast::bridge {

enum class Mode : uint8_t { kBridge, kRaw };

inline constexpr const char* kModes[] = {"bridge", "raw"};  // by Mode
// Requires: one of kModes.
Mode ModeOf(std::string_view name);

// Errors: as CompilePlan, or CompileRaw.
Result<CompiledPlan> Compile(Mode mode, const HfConfig& model, const MegatronConfig& trainer,
                             const CompileOptions& options);

// Rows of the embedding over all tensor ranks, as a rank's shard shows them; 0 if it has none.
Result<int64_t> VocabRowsOf(Mode mode, const HfConfig& model, const MegatronConfig& trainer,
                            const std::vector<tensor::TensorSpec>& shard);

}  // namespace weightcast::bridge
