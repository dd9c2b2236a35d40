// What tells families of the same modules apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/compile_plan.h"

namespace weightcast::bridge {
namespace {

std::shared_ptr<const tensor::Inventory> LatentInventory(const std::string& architecture) {
  const std::string model = R"({"architectures": [")" + architecture + R"("], "vocab_size": 16,
    "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "kv_lora_rank": 4, "q_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
    "v_head_dim": 4, "n_routed_experts": 2, "moe_intermediate_size": 4, "n_shared_experts": 1,
    "first_k_dense_replace": 1})";
  const std::string trainer =
      R"({"world": 1, "config": {"num_layers": 2, "multi_latent_attention": true}})";
  return CompilePlan(HfConfig::Parse(model).value(), MegatronConfig::Parse(trainer).value(), {})
      .value()
      .plan->inventory;
}

TEST(Families, OnlyDeepseekV3CorrectsItsRouter) {
  const auto v2 = LatentInventory("DeepseekV2ForCausalLM");
  const auto v3 = LatentInventory("DeepseekV3ForCausalLM");
  EXPECT_EQ(v2->Find("model.layers.1.mlp.gate.e_score_correction_bias"), -1);
  EXPECT_GE(v3->Find("model.layers.1.mlp.gate.e_score_correction_bias"), 0);
  EXPECT_EQ(v2->size() + 1, v3->size());
}

}  // namespace
}  // namespace weightcast::bridge
