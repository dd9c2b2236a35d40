// Configs that no trainer writes: both ways to a plan refuse them by name, soon, and in little
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "bridge/mode.h"
#include "layout/pipeline_layout.h"

namespace weightcast::bridge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Mode kBoth[] = {Mode::kBridge, Mode::kRaw};

Json DenseModel() {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"hidden_size", 16},
          {"intermediate_size", 32},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 4},
          {"vocab_size", 12},
          {"tie_word_embeddings", false}};
}

Json VisionModel() {
  Json model = DenseModel();
  model["architectures"] = {"Qwen3VLForConditionalGeneration"};
  model["vision_config"] = {{"depth", 1},
                            {"hidden_size", 8},
                            {"intermediate_size", 16},
                            {"num_heads", 2},
                            {"in_channels", 3},
                            {"temporal_patch_size", 2},
                            {"patch_size", 2},
                            {"spatial_merge_size", 2},
                            {"num_position_embeddings", 16},
                            {"out_hidden_size", 16},
                            {"deepstack_visual_indexes", {0}}};
  return model;
}

Json MixedModel() {  // linear and full attention, experts
  Json model = DenseModel();
  model["architectures"] = {"Qwen3NextForCausalLM"};
  model.update({{"num_experts", 2},
                {"moe_intermediate_size", 8},
                {"shared_expert_intermediate_size", 8},
                {"linear_num_key_heads", 2},
                {"linear_num_value_heads", 4},
                {"linear_key_head_dim", 4},
                {"linear_value_head_dim", 4},
                {"linear_conv_kernel_dim", 4},
                {"layer_types", {"linear_attention", "full_attention"}}});
  return model;
}

Json Trainer(const Json& settings = Json::object()) {
  Json config = {{"num_layers", 2}};
  config.update(settings);
  return {{"world", 1}, {"config", config}};
}

// What is said against them; "" if nothing.
std::string Fault(Mode mode, const Json& model, const Json& trainer,
                  const CompileOptions& options = {}) {
  const auto config = HfConfig::Parse(model.dump());
  if (!config.ok()) return config.error().message;
  const auto topology = MegatronConfig::Parse(trainer.dump());
  if (!topology.ok()) return topology.error().message;
  const auto compiled = Compile(mode, *config, *topology, options);
  return compiled.ok() ? "" : compiled.error().message;
}

Json With(Json object, const char* key, const Json& value) {
  object[key] = value;
  return object;
}

TEST(Configs, OfTheseTestsAreGood) {
  for (const Mode mode : kBoth) {
    for (const Json& model : {DenseModel(), VisionModel(), MixedModel()}) {
      EXPECT_EQ(Fault(mode, model, Trainer()), "") << model;
    }
  }
}

// Rows of gate and up in alternating blocks have the names and shapes of any others.
TEST(Configs, InterleavedGateAndUpAreRefused) {
  for (const char* key : {"moe_mlp_glu_interleave_size", "moe_shared_expert_glu_interleave_size"}) {
    for (const Mode mode : kBoth) {
      EXPECT_THAT(Fault(mode, DenseModel(), Trainer({{key, 8}})),
                  HasSubstr(std::string(key) + " = 8"));
    }
  }
}

TEST(Configs, SizesOfTheTrainerAreSizesOrRefused) {
  for (const Json& wrong : {Json(-16), Json("16"), Json(16.0), Json(17), Json(true)}) {
    for (const Mode mode : kBoth) {
      EXPECT_THAT(Fault(mode, DenseModel(), Trainer({{"hidden_size", wrong}})),
                  AllOf(HasSubstr("hidden_size: model 16, trainer " + wrong.dump())));
    }
  }
}

TEST(Configs, FlagsOfTheTrainerAreFlagsOrRefused) {
  for (const char* key : {"share_embeddings_and_output_weights", "moe_grouped_gemm",
                          "moe_router_enable_expert_bias"}) {
    for (const Json& wrong : {Json("true"), Json(0)}) {
      EXPECT_THAT(Fault(Mode::kBridge, DenseModel(), Trainer({{key, wrong}})), HasSubstr(key));
    }
    EXPECT_EQ(Fault(Mode::kBridge, DenseModel(), Trainer({{key, nullptr}})), "");
  }
}

TEST(Configs, CountsAboveAllBoundsAreRefusedNotCapped) {
  for (const char* key : {"mtp_num_layers", "tensor_model_parallel_size", "num_layers"}) {
    EXPECT_THAT(Fault(Mode::kBridge, DenseModel(), Trainer({{key, 2000000000}})),
                HasSubstr(std::string(key) + " 2000000000"));
  }
}

TEST(Configs, ListsOfLayersHaveOneEntryForEach) {
  const std::vector<Json> wrong = {
      Json::array({"linear_attention"}),
      Json::array({"linear_attention", "full_attention", "full_attention"}),
      Json::array({"liner_attention", "full_attention"})};
  for (const Mode mode : kBoth) {
    for (const Json& types : wrong) {
      EXPECT_THAT(Fault(mode, With(MixedModel(), "layer_types", types), Trainer()),
                  HasSubstr("layer_types"));
    }
    EXPECT_THAT(Fault(mode, MixedModel(), Trainer({{"linear_attention_freq", {1, 0, 0}}})),
                HasSubstr("linear_attention_freq has 3 entries, expected 2"));
  }
}

// Which layers have experts is said by two keys in one family's configs, by two others in
// another's.
TEST(Configs, OnlyTheFamilysOwnKeysSayWhichLayersHaveExperts) {
  Json model = DenseModel();
  model["architectures"] = {"Qwen3MoeForCausalLM"};
  model.update({{"num_experts", 2},
                {"moe_intermediate_size", 8},
                {"first_k_dense_replace", 1},
                {"moe_layer_freq", 2}});
  const auto trainer = MegatronConfig::Parse(Trainer().dump()).value();
  for (const Mode mode : kBoth) {
    const auto plan = Compile(mode, HfConfig::Parse(model.dump()).value(), trainer, {});
    ASSERT_TRUE(plan.ok());
    for (const char* layer : {"0", "1"}) {
      const std::string gate = std::string("model.layers.") + layer + ".mlp.gate.weight";
      EXPECT_GE(plan->plan->inventory->Find(gate), 0) << gate;
    }
  }
}

TEST(Configs, TheTrainersListOfMixturesIsComparedInEveryFamily) {
  Json model = DenseModel();
  model["architectures"] = {"MixtralForCausalLM"};
  model["num_local_experts"] = 2;
  for (const Mode mode : kBoth) {
    EXPECT_EQ(Fault(mode, model, Trainer({{"moe_layer_freq", {1, 1}}})), "");
    EXPECT_THAT(Fault(mode, model, Trainer({{"moe_layer_freq", {0, 1}}})),
                HasSubstr("moe_layer_freq differ in layer"));
  }
}

TEST(Configs, ALayerThatPredictsIsMadeAsTheLastOne) {
  Json model = MixedModel();
  model["layer_types"] = {"full_attention", "full_attention"};
  model["architectures"] = {"DeepseekV3ForCausalLM"};
  model.update({{"n_routed_experts", 2},
                {"first_k_dense_replace", 0},
                {"moe_layer_freq", 2},
                {"n_shared_experts", 1},
                {"kv_lora_rank", 4},
                {"qk_nope_head_dim", 4},
                {"qk_rope_head_dim", 2},
                {"v_head_dim", 4}});
  const auto config = HfConfig::Parse(model.dump()).value();
  const auto trainer = MegatronConfig::Parse(Trainer({{"mtp_num_layers", 1}}).dump()).value();
  const auto rules = Compile(Mode::kBridge, config, trainer, {});
  const auto raw = Compile(Mode::kRaw, config, trainer, {});
  ASSERT_TRUE(rules.ok() && raw.ok());
  EXPECT_EQ(rules->hash, raw->hash);
  // Layer 0 is a mixture, 1 is dense, and so is what predicts.
  EXPECT_GE(rules->plan->inventory->Find("model.layers.0.mlp.gate.weight"), 0);
  EXPECT_GE(rules->plan->inventory->Find("model.layers.2.mlp.up_proj.weight"), 0);
}

// Rows of the embedding that config.json does not know would be cut off with the padding.
TEST(Configs, AVocabularyBelowTheTrainersIsRefused) {
  for (const Mode mode : kBoth) {
    EXPECT_THAT(Fault(mode, DenseModel(), Trainer({{"vocab_size", 13}})),
                AllOf(HasSubstr("vocab_size"), HasSubstr("13")));
    EXPECT_EQ(Fault(mode, DenseModel(), Trainer({{"vocab_size", 11}})), "");  // the tokenizer's
  }
}

TEST(Configs, MorePredictionModulesThanTheCheckpointHasAreRefused) {
  Json model = MixedModel();
  for (const Mode mode : kBoth) {
    const Json trainer = Trainer({{"mtp_num_layers", 1}});
    EXPECT_EQ(Fault(mode, model, trainer), "");
    EXPECT_EQ(Fault(mode, With(model, "mtp_num_hidden_layers", 1), trainer), "");
    EXPECT_EQ(Fault(mode, With(model, "mtp_num_hidden_layers", 1), Trainer()), "");  // left out
    EXPECT_THAT(Fault(mode, With(model, "mtp_num_hidden_layers", 0), trainer),
                HasSubstr("mtp_num_hidden_layers"));
  }
}

TEST(Configs, AllThatDoesNotFitIsSaidAtOnce) {
  const std::string said = Fault(Mode::kBridge, DenseModel(),
                                 Trainer({{"num_layers", 2},
                                          {"fp8_param", true},
                                          {"num_attention_heads", 8},
                                          {"hidden_size", 32}}));
  EXPECT_THAT(said, AllOf(HasSubstr("family qwen3"), HasSubstr("fp8_param = true"),
                          HasSubstr("num_attention_heads: model 4, trainer 8"),
                          HasSubstr("hidden_size: model 16, trainer 32")));
  Json odd = DenseModel();
  odd.update({{"vocab_size", 13}, {"intermediate_size", 33}});
  Json two = Trainer({{"tensor_model_parallel_size", 2}});
  two["world"] = 2;
  EXPECT_THAT(Fault(Mode::kBridge, odd, two),
              AllOf(HasSubstr("embedding.word_embeddings.weight: 13 rows"),
                    HasSubstr("output_layer.weight: 13 rows"),
                    HasSubstr("decoder.layers.*.mlp.linear_fc1.weight: 33 rows"),
                    HasSubstr("decoder.layers.*.mlp.linear_fc2.weight: 33 columns")));
}

TEST(Configs, AnErrorNamesTheKeyThatWasRead) {
  Json model = DenseModel();
  model["architectures"] = {"MixtralForCausalLM"};
  model["num_local_experts"] = -1;
  for (const Mode mode : kBoth) {
    EXPECT_THAT(Fault(mode, model, Trainer()), HasSubstr("num_local_experts is -1"));
  }
}

// ---- amounts ----

TEST(Configs, ExpertsWithoutEndAreRefused) {
  Json model = DenseModel();
  model["architectures"] = {"Qwen3MoeForCausalLM"};
  model.update({{"num_experts", 1000000}, {"moe_intermediate_size", 8}});
  EXPECT_THAT(Fault(Mode::kBridge, model, Trainer()), HasSubstr("more than 524288 slices"));
  EXPECT_THAT(Fault(Mode::kRaw, model, Trainer()), HasSubstr("more than 524288 slices"));
}

TEST(Configs, AKeyThatIsSentCannotBeIgnored) {
  for (const Mode mode : kBoth) {
    CompileOptions options;
    options.ignore = {"*.adapter.*"};
    EXPECT_EQ(Fault(mode, DenseModel(), Trainer(), options), "");
    options.ignore = {"*.linear_qkv.weight"};
    EXPECT_THAT(Fault(mode, DenseModel(), Trainer(), options),
                HasSubstr("covers vp0/decoder.layers.0.self_attention.linear_qkv.weight"));
  }
}

TEST(Configs, HeadsWithoutEndAreRefused) {
  Json model = DenseModel();
  model.update(
      {{"num_attention_heads", 1 << 24}, {"num_key_value_heads", 1 << 24}, {"head_dim", 1}});
  for (const Mode mode : kBoth) EXPECT_NE(Fault(mode, model, Trainer()), "");
  EXPECT_THAT(Fault(Mode::kBridge, model, Trainer()),
              HasSubstr("slices, at decoder.layers.*.self_attention.linear_qkv.weight"));
  EXPECT_THAT(Fault(Mode::kRaw, model, Trainer()), HasSubstr("more than 524288 slices"));
}

TEST(Configs, TowersWithoutEndAreRefused) {
  const Json vision = VisionModel()["vision_config"];
  const Json many = Json::parse("[" + [] {
    std::string text = "0";
    for (int i = 0; i < 100000; ++i) text += ",0";
    return text;
  }() + "]");
  for (const Mode mode : kBoth) {
    const auto fault = [&](const char* key, const Json& value) {
      return Fault(mode, With(VisionModel(), "vision_config", With(vision, key, value)), Trainer());
    };
    EXPECT_THAT(fault("deepstack_visual_indexes", many), HasSubstr("deepstack_visual_indexes"));
    EXPECT_THAT(fault("depth", 1 << 20), HasSubstr("vision_config.depth"));
    EXPECT_NE(fault("spatial_merge_size", 1 << 20), "");
    Json huge = vision;
    huge.update({{"patch_size", 1 << 24}, {"in_channels", 1 << 24}, {"hidden_size", 1 << 24}});
    EXPECT_NE(Fault(mode, With(VisionModel(), "vision_config", huge), Trainer()), "");
    // As many faults as layers: named once, and soon.
    EXPECT_NE(fault("num_heads", 3), "");
  }
}

TEST(Configs, AVocabularyWithoutEndIsRefused) {
  for (const Mode mode : kBoth) {
    for (const int64_t rows : {int64_t{-1}, INT64_MAX - 1, kVocabRowsMax + 1}) {
      CompileOptions options;
      options.vocab_rows = rows;
      EXPECT_THAT(Fault(mode, DenseModel(), Trainer(), options), HasSubstr(std::to_string(rows)));
    }
    const auto model = HfConfig::Parse(DenseModel().dump()).value();
    auto trainer = MegatronConfig::Parse(Trainer().dump()).value();
    trainer.topology.tp = trainer.topology.world = 16;
    const std::vector<tensor::TensorSpec> shard = {
        {"vp0/embedding.word_embeddings.weight", tensor::DType::kBf16, {int64_t{1} << 61, 0}}};
    EXPECT_EQ(VocabRowsOf(mode, model, trainer, shard).value(), 0);
  }
}

TEST(Configs, AnEmptyGroupOfAPipelineLayoutIsRefused) {
  EXPECT_THAT(layout::ParsePipelineLayout("Et|()*1000|tL").error().message,
              HasSubstr("something in the group"));
}

// ---- receivers ----

TEST(Configs, AReferenceAndNamesTogetherAreRefused) {
  const auto model = HfConfig::Parse(DenseModel().dump()).value();
  const auto trainer = MegatronConfig::Parse(Trainer().dump()).value();
  for (const Mode mode : kBoth) {
    CompileOptions options;
    options.reference = Compile(mode, model, trainer, {}).value().plan->inventory;
    options.names = {"extra"};
    options.carry = {"extra"};
    EXPECT_THAT(Fault(mode, DenseModel(), Trainer(), options), HasSubstr("expected one of them"));
  }
}

TEST(Configs, BothWaysServeATextModelAsAPartOfALargerOne) {
  const auto trainer = MegatronConfig::Parse(Trainer().dump()).value();
  Json moe = DenseModel();
  moe["architectures"] = {"Qwen3MoeForCausalLM"};
  moe.update({{"num_experts", 2}, {"moe_intermediate_size", 8}});
  for (const Json& json : {DenseModel(), moe}) {
    const auto model = HfConfig::Parse(json.dump()).value();
    CompileOptions options;
    const CompiledPlan plain = Compile(Mode::kBridge, model, trainer, {}).value();
    for (const auto& spec : plain.plan->inventory->tensors()) {
      const bool text = spec.name.starts_with("model.");
      options.names.push_back(text ? "model.language_model." + spec.name.substr(6) : spec.name);
    }
    options.names.emplace_back("model.visual.pos_embed.weight");
    options.carry = {"model.visual.*"};
    const auto rules = Compile(Mode::kBridge, model, trainer, options);
    const auto raw = Compile(Mode::kRaw, model, trainer, options);
    ASSERT_TRUE(rules.ok()) << rules.error().message;
    ASSERT_TRUE(raw.ok()) << raw.error().message;
    EXPECT_EQ(rules->hash, raw->hash);
  }
}

}  // namespace
}  // namespace weightcast::bridge
