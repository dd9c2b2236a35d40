// What tells families of the same modules apart.
#include "bridge/families/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bridge/compile_plan.h"
#include "bridge/raw/families.h"
#include "bridge/raw/raw.h"
#include "bridge/toy_worlds_testing.h"

namespace weightcast::bridge {
namespace {

using ::testing::HasSubstr;

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

TEST(Families, TakeExpertsIfTheyHaveRulesForThem) {
  constexpr auto kKey = "num_moe_experts";
  for (size_t i = 0; i < std::size(kFamilies); ++i) {
    const Family& family = *kFamilies[i];
    const raw::Family& by_hand = *raw::kFamilies[i];
    SCOPED_TRACE(family.name);
    ASSERT_EQ(by_hand.name, family.name);
    const bool experts = AnyRule(family, [](const Rule& rule) { return rule.per_expert(); });
    EXPECT_EQ(by_hand.experts, experts);
    EXPECT_EQ(std::ranges::count(family.settings, kKey, &Setting::key), experts ? 1 : 0);
    EXPECT_EQ(std::ranges::count(by_hand.settings, kKey, &Setting::key), experts ? 1 : 0);
  }
}

TEST(Families, DenseQwen35HasNoExperts) {
  for (const char* architecture : {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"}) {
    SCOPED_TRACE(architecture);
    const ToyModel m = ToyOf(architecture);
    MegatronConfig trainer = TrainerOf(m, World(m.layers, 2));
    trainer.settings["num_moe_experts"] = "8";
    trainer.topology.ep = 2;
    trainer.topology.etp = 1;
    for (const auto compile : {CompilePlan, CompileRaw}) {
      const std::string said = Message(compile(ModelOf(m), trainer, {}));
      EXPECT_THAT(said, HasSubstr("num_moe_experts = 8"));
      EXPECT_THAT(said, HasSubstr("expert_model_parallel_size = 2"));
    }
  }
}

}  // namespace
}  // namespace weightcast::bridge
