#include "bridge/plan_report.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "bridge/compile_plan.h"
#include "layout/gather.h"

namespace weightcast::bridge {
namespace {

struct Model {
  const char* name;
  const char* config;    // config.json
  const char* topology;  // topology.json
};

constexpr Model kModels[] = {
    // The sizes of Qwen3-0.6B: 1.19 GB.
    {"dense",
     R"({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 1024,
         "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
         "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": true})",
     R"({"world": 8, "config": {"tensor_model_parallel_size": 4, "num_layers": 28,
         "pipeline_model_parallel_size": 2, "padded_vocab_size": 152064}})"},
    // 128 experts, 1.34 GB.
    {"moe",
     R"({"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4, "hidden_size": 1024,
         "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 4,
         "head_dim": 128, "vocab_size": 32000, "num_experts": 128, "moe_intermediate_size": 384,
         "tie_word_embeddings": false})",
     R"({"world": 8, "config": {"tensor_model_parallel_size": 2, "num_layers": 4,
         "pipeline_model_parallel_size": 2, "expert_model_parallel_size": 2,
         "expert_tensor_parallel_size": 2, "moe_grouped_gemm": true}})"},
    // DeepSeek-V3 without its prediction module, on 1024 ranks.
    {"deepseek-v3",
     R"({"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 7168,
         "intermediate_size": 18432, "num_attention_heads": 128, "num_key_value_heads": 128,
         "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
         "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
         "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "vocab_size": 129280,
         "tie_word_embeddings": false})",
     R"({"world": 1024, "config": {"tensor_model_parallel_size": 8, "num_layers": 61,
         "pipeline_model_parallel_size": 16, "num_layers_in_first_pipeline_stage": 4,
         "num_layers_in_last_pipeline_stage": 1, "expert_model_parallel_size": 64,
         "expert_tensor_parallel_size": 1, "moe_grouped_gemm": true}})"},
};
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
  for (const Model& model : kModels) names.emplace_back(model.name);
  return names;
}

Result<PlanReport> RunPlanBench(const std::string& name, bool apply, os::Clock& clock) {
  const auto* model = std::ranges::find(kModels, name, &Model::name);
  if (model == std::end(kModels)) {
    return Error{Code::kInvalidArgument,
                 "no model " + Quoted(name) + "; known: " + JoinNames(PlanBenchModels())};
  }
  const HfConfig config = WC_TRY(HfConfig::Parse(model->config));
  const MegatronConfig trainer = WC_TRY(MegatronConfig::Parse(model->topology));
  PlanReport report;
  const SteadyTime begin = clock.Now();
  const CompiledPlan compiled = WC_TRY(CompilePlan(config, trainer, {}));
  report.compile_seconds = ToSeconds(clock.Now() - begin);
  const layout::Plan& plan = *compiled.plan;
  report.ranks = std::ssize(plan.ranks);
  report.tensors = static_cast<int64_t>(plan.inventory->size());
  report.bytes = plan.inventory->bytes();
  for (const layout::RankPlan& rank : plan.ranks) report.slices += std::ssize(rank.slices);
  if (!apply) return report;
  if (report.bytes > kApplyBytesMax) {
    return Error{Code::kInvalidArgument, name + " is too large to apply: " +
                                             std::to_string(report.bytes) + " bytes, at most " +
                                             std::to_string(kApplyBytesMax)};
  }
  Apply(plan, &report, clock);
  return report;
}

}  // namespace weightcast::bridge
