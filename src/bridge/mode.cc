#include "bridge/mode.h"

#include <algorithm>
#include <iterator>

#include "bridge/compile_plan.h"
#include "bridge/families/families.h"
#include "bridge/raw/raw.h"

namespace weightcast::bridge {

Mode ModeOf(std::string_view name) {
  const auto* found = std::ranges::find(kModes, name);
  WC_CHECK(found != std::end(kModes));
  return static_cast<Mode>(found - std::begin(kModes));
}

Result<CompiledPlan> Compile(Mode mode, const HfConfig& model, const MegatronConfig& trainer,
                             const CompileOptions& options) {
  return mode == Mode::kRaw ? CompileRaw(model, trainer, options)
                            : CompilePlan(model, trainer, options);
}

Result<int64_t> VocabRowsOf(Mode mode, const HfConfig& model, const MegatronConfig& trainer,
                            const std::vector<tensor::TensorSpec>& shard) {
  if (mode == Mode::kRaw) return RawVocabRowsOf(trainer, shard);
  return VocabRowsOf(*WC_TRY(FindFamily(model)), trainer, shard);
}

}  // namespace weightcast::bridge
