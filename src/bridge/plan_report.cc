#include "bridge/plan_report.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "bridge/families/large_models.h"
#include "layout/gather.h"

namespace weightcast::bridge {
namespace {

constexpr int64_t kApplyBytesMax = 4 * kGiB;

// Bytes that were written once: pages are there.
Bytes Touched(int64_t bytes) { return Bytes(static_cast<size_t>(bytes), 1); }

void Apply(const layout::Plan& plan, PlanReport* report, os::Clock& clock) {
  std::vector<std::vector<Bytes>> shards;
  for (const layout::RankPlan& rank : plan.ranks) {
    std::vector<Bytes>& params = shards.emplace_back();
    for (const layout::Param& p : rank.params) {
      params.push_back(Touched(tensor::TensorSpec{p.key, p.dtype, p.shape}.bytes()));
    }
  }
  std::vector<Bytes> tensors;
  for (const tensor::TensorSpec& spec : plan.inventory->tensors()) {
    tensors.push_back(Touched(spec.bytes()));
  }
  const SteadyTime begin = clock.Now();
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    for (const layout::Slice& slice : plan.ranks[r].slices) {
      const auto t = static_cast<size_t>(slice.tensor);
      layout::ScatterSlice((*plan.inventory)[t].matrix(), slice,
                           shards[r][static_cast<size_t>(slice.param)], tensors[t]);
    }
  }
  const SteadyTime applied = clock.Now();
  // As much, from buffers of the same sizes, in the same order.
  for (size_t t = 1; t < tensors.size(); ++t) {
    const size_t n = std::min(tensors[t - 1].size(), tensors[t].size());
    std::memcpy(tensors[t].data(), tensors[t - 1].data(), n);
    report->memcpy_gb_per_s += static_cast<double>(n);
  }
  const double gb = static_cast<double>(report->bytes) / 1e9;
  report->apply_gb_per_s = gb / ToSeconds(applied - begin);
  report->memcpy_gb_per_s /= 1e9 * ToSeconds(clock.Now() - applied);
}

}  // namespace

std::vector<std::string> PlanBenchModels() {
  std::vector<std::string> names;
  for (const LargeModel& model : kLargeModels) names.emplace_back(model.name);
  return names;
}

Result<PlanReport> RunPlanBench(const std::string& name, Mode mode, bool apply, os::Clock& clock) {
  const auto* model = std::ranges::find(kLargeModels, name, &LargeModel::name);
  if (model == std::end(kLargeModels)) {
    return Error{Code::kInvalidArgument,
                 "no model " + Quoted(name) + "; known: " + JoinNames(PlanBenchModels())};
  }
  const HfConfig config = WC_TRY(HfConfig::Parse(model->config));
  const MegatronConfig trainer = WC_TRY(MegatronConfig::Parse(model->topology));
  PlanReport report;
  const SteadyTime begin = clock.Now();
  const CompiledPlan compiled = WC_TRY(Compile(mode, config, trainer, {}));
  report.compile_seconds = ToSeconds(clock.Now() - begin);
  report.hash = compiled.hash;
  const layout::Plan& plan = *compiled.plan;
  report.ranks = std::ssize(plan.ranks);
  report.tensors = static_cast<int64_t>(plan.inventory->size());
  report.bytes = plan.inventory->bytes();
  for (const layout::RankPlan& rank : plan.ranks) report.slices += std::ssize(rank.slices);
  if (!apply) return report;
  if (report.bytes > kApplyBytesMax) {
    return Error{Code::kInvalidArgument,
                 name + " is too large to apply: " + std::to_string(report.bytes) +
                     " bytes, at most " + std::to_string(kApplyBytesMax)};
  }
  Apply(plan, &report, clock);
  return report;
}

}  // namespace weightcast::bridge
