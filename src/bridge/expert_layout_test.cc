// How a checkpoint has its experts, stack by stack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/compile_plan.h"

namespace weightcast::bridge {
namespace {

using tensor::DType;
using tensor::Inventory;
using tensor::TensorSpec;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kExperts = 2;
constexpr int64_t kHidden = 8;
constexpr int64_t kExpertFfn = 4;

HfConfig Model() {
  return HfConfig::Parse(R"({
    "architectures": ["Qwen3_5MoeForCausalLM"], "vocab_size": 16, "hidden_size": 8,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4,
    "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4,
    "num_experts": 2, "moe_intermediate_size": 4, "shared_expert_intermediate_size": 4})")
      .value();
}

MegatronConfig Trainer() {
  return MegatronConfig::Parse(R"({"world": 2, "config": {
    "num_layers": 2, "mtp_num_layers": 1, "expert_model_parallel_size": 2,
    "layernorm_zero_centered_gamma": true, "attention_output_gate": true}})")
      .value();
}

Result<CompiledPlan> Compile(std::shared_ptr<const Inventory> reference) {
  CompileOptions options;
  options.reference = std::move(reference);
  return CompilePlan(Model(), Trainer(), options);
}

// The family's own, with the packed experts of names that begin with `prefix` each by its name.
std::shared_ptr<const Inventory> ByNameBelow(std::string_view prefix) {
  const CompiledPlan usual = Compile(nullptr).value();
  std::vector<TensorSpec> specs;
  for (const TensorSpec& spec : usual.plan->inventory->tensors()) {
    const size_t packed = spec.name.find("gate_up_proj");
    const size_t down = spec.name.find("experts.down_proj");
    if (!spec.name.starts_with(prefix) || (packed == down && packed == std::string::npos)) {
      specs.push_back(spec);
      continue;
    }
    if (down != std::string::npos) continue;
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::string expert = spec.name.substr(0, packed) + std::to_string(e);
      specs.push_back({expert + ".gate_proj.weight", DType::kBf16, {kExpertFfn, kHidden}});
      specs.push_back({expert + ".up_proj.weight", DType::kBf16, {kExpertFfn, kHidden}});
      specs.push_back({expert + ".down_proj.weight", DType::kBf16, {kHidden, kExpertFfn}});
    }
  }
  return std::make_shared<const Inventory>(Inventory::Make(std::move(specs)).value());
}

TEST(ExpertLayout, EveryStackHasThatOfTheReferencesNames) {
  for (const char* by_name : {"mtp.", "model.", "", "none"}) {
    SCOPED_TRACE(by_name);
    const auto reference = ByNameBelow(by_name);
    const auto compiled = Compile(reference);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    EXPECT_EQ(*compiled->plan->inventory, *reference);
  }
}

TEST(ExpertLayout, OneStackWithBothIsRefused) {
  const auto reference = ByNameBelow("model.layers.0.");
  const auto compiled = Compile(reference);
  ASSERT_FALSE(compiled.ok());
  EXPECT_THAT(compiled.error().message,
              AllOf(HasSubstr("model.layers.0.mlp.experts.0."),
                    HasSubstr("model.layers.1.mlp.experts.gate_up_proj")));
}

}  // namespace
}  // namespace weightcast::bridge
