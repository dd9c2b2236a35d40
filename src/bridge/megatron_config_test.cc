#include "bridge/megatron_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weightcast::bridge {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Result<MegatronConfig> Parse(const std::string& config, const std::string& world = "4") {
  return MegatronConfig::Parse("{\"world\": " + world + ", \"config\": {" + config + "}}");
}
std::string Fault(const std::string& config, const std::string& world = "4") {
  const auto result = Parse(config, world);
  if (result.ok()) return "";
  EXPECT_EQ(result.error().code, Code::kInvalidData);
  return result.error().message;
}

TEST(Trainer, ReadsMegatronsOwnNames) {
  const auto config = Parse(R"("tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2,
      "virtual_pipeline_model_parallel_size": null, "num_layers": 4, "num_layers_in_first_pipeline_stage": 1,
      "transformer_impl": "local", "params_dtype": "torch.float32", "hidden_size": 32,
      "share_embeddings_and_output_weights": true)");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->topology.tp, 2);
  EXPECT_EQ(config->topology.pp, 2);
  EXPECT_EQ(config->topology.vpp, 1);
  EXPECT_EQ(config->topology.layers_in_first_stage, 1);
  EXPECT_EQ(config->topology.layers_in_last_stage, -1);
  EXPECT_EQ(config->topology.etp, 2) << "expert tensor parallelism defaults to tensor parallelism";
  EXPECT_TRUE(config->local_spec);
  EXPECT_EQ(config->params_dtype, tensor::DType::kF32);
  EXPECT_EQ(config->ints.at("hidden_size"), 32);
  EXPECT_EQ(config->tied, true);
  EXPECT_THAT(Unsupported(*config, {}), IsEmpty());
}

TEST(Trainer, DefaultsArePlain) {
  const auto config = Parse(R"("num_layers": 4)");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->topology.dp(), 4);
  EXPECT_FALSE(config->local_spec);
  EXPECT_EQ(config->params_dtype, tensor::DType::kBf16);
  EXPECT_EQ(config->padded_vocab, 0);
  EXPECT_EQ(config->tied, std::nullopt);
}

TEST(Trainer, ThePaddedVocabularyIsWhatItSaysElseRoundedUpElseUnknown) {
  const std::string layers = R"("num_layers": 4, "tensor_model_parallel_size": 2, )";
  EXPECT_EQ(Parse(layers + R"("padded_vocab_size": 224)")->padded_vocab, 224);
  EXPECT_EQ(
      Parse(layers +
            R"("should_pad_vocab": true, "vocab_size": 200, "make_vocab_size_divisible_by": 16)")
          ->padded_vocab,
      224);
  EXPECT_EQ(
      Parse(layers +
            R"("should_pad_vocab": false, "vocab_size": 200, "make_vocab_size_divisible_by": 16)")
          ->padded_vocab,
      0);
  EXPECT_EQ(Parse(layers + R"("should_pad_vocab": true, "vocab_size": 200)")->padded_vocab, 0);
}

TEST(Trainer, SettingsWithoutRulesAreNamed) {
  const auto config = Parse(R"("num_layers": 4, "num_moe_experts": 8,
      "layernorm_zero_centered_gamma": true, "attention_output_gate": false, "fp8_param": null,
      "transformer_impl": "inference_optimized")");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_THAT(Unsupported(*config, {}),
              ElementsAre("layernorm_zero_centered_gamma = true", "num_moe_experts = 8",
                          "transformer_impl = \"inference_optimized\""));
}

TEST(Trainer, RefusesWhatDoesNotFit) {
  EXPECT_THAT(Fault(""), HasSubstr("num_layers 0"));
  EXPECT_THAT(Fault(R"("num_layers": "4")"), HasSubstr("num_layers"));
  EXPECT_THAT(Fault(R"("num_layers": -4)"), HasSubstr("num_layers -4"));
  EXPECT_THAT(Fault(R"("num_layers": 4)", "0"), HasSubstr("world 0"));
  EXPECT_THAT(Fault(R"("num_layers": 4)", "\"4\""), HasSubstr("world"));
  EXPECT_THAT(Fault(R"("num_layers": 4)", "9223372036854775807"), HasSubstr("world"));
  EXPECT_THAT(Fault(R"("num_layers": 4)", "-9223372036854775808"), HasSubstr("world"));
  EXPECT_THAT(Fault(R"("num_layers": 4, "tensor_model_parallel_size": 3)"),
              HasSubstr("not divisible"));
  EXPECT_THAT(Fault(R"("num_layers": 4, "tensor_model_parallel_size": 4611686018427387904)"),
              HasSubstr("is not in 0.."));
  EXPECT_THAT(Fault(R"("num_layers": 4, "params_dtype": "torch.int8")"), HasSubstr("torch.int8"));
  EXPECT_THAT(Fault(R"("num_layers": 4, "should_pad_vocab": 1)"), HasSubstr("should_pad_vocab"));
  EXPECT_FALSE(MegatronConfig::Parse(R"({"world": 1})").ok());
  EXPECT_FALSE(MegatronConfig::Parse(R"({"world": 1, "config": []})").ok());
  EXPECT_FALSE(MegatronConfig::Parse("{").ok());
}

TEST(Prediction, ItsSpellingIsSaidOrShown) {
  const auto said = MegatronConfig::Parse(
      R"({"world": 1, "config": {"num_layers": 1}, "mtp_inner": "transformer_layer", "mtp_at_root": true})");
  EXPECT_EQ(said->spelling.mtp_inner, "transformer_layer");
  EXPECT_TRUE(said->spelling.mtp_known() && *said->spelling.mtp_at_root);
  EXPECT_THAT(Fault(R"("num_layers": 1}, "mtp_inner": "layer", "rest": {)", "1"),
              HasSubstr("expected one of mtp_model_layer, transformer_layer, found \"layer\""));
  Spelling shown;
  shown.Learn({{"vp0/decoder.layers.0.transformer_layer.x", {}, {}}});
  EXPECT_TRUE(shown.mtp_inner.empty() && !shown.mtp_at_root);
  shown.Learn({{"vp1/language_model.mtp.layers.0.enorm.weight", {}, {}}});
  EXPECT_TRUE(shown.mtp_inner.empty() && shown.mtp_at_root == false);
  shown.Learn({{"vp1/mtp.layers.0.transformer_layer.mlp.linear_fc2.weight", {}, {}}});
  EXPECT_TRUE(shown.mtp_inner == "transformer_layer" &&
              shown.mtp_at_root == false);  // what is known stays
  EXPECT_EQ(shown.Or(said->spelling).mtp_at_root, false);
  EXPECT_EQ(Spelling().Or(said->spelling).mtp_inner, "transformer_layer");
}

TEST(Tower, ItsSpellingIsSaidOrShown) {
  const auto said = MegatronConfig::Parse(
      R"({"world": 1, "config": {"num_layers": 1}, "tower": "model.visual"})");
  EXPECT_EQ(said->spelling.tower, "model.visual");
  EXPECT_TRUE(said->spelling.keeps_tower());
  EXPECT_THAT(Fault(R"("num_layers": 1}, "tower": "visual", "rest": {)", "1"),
              HasSubstr("tower: expected one of megatron, vision_model, model.visual, found "
                        "\"visual\""));
  const std::pair<const char*, const char*> shows[] = {
      {"vp0/vision_model.decoder.layers.0.mlp.linear_fc1.bias", "megatron"},
      {"vp0/vision_model.merger.patch_norm.bias", "megatron"},
      {"vp0/vision_model.blocks.0.norm1.bias", "vision_model"},
      {"vp0/vision_model.merger.norm.bias", "vision_model"},
      {"vp0/model.visual.patch_embed.proj.bias", "model.visual"},
      {"vp0/vision_model.pos_embed.weight", ""},  // either of two
      {"vp0/decoder.layers.0.mlp.linear_fc1.weight", ""},
  };
  for (const auto& [name, tower] : shows) {
    Spelling shown;
    shown.Learn({{name, {}, {}}});
    EXPECT_EQ(shown.tower, tower) << name;
    EXPECT_EQ(shown.Or(said->spelling).tower, *tower == '\0' ? "model.visual" : tower);
    shown.tower = "megatron";
    shown.Learn({{name, {}, {}}});
    EXPECT_EQ(shown.tower, "megatron") << "what is known stays";
  }
  EXPECT_FALSE(Spelling().keeps_tower());
}

TEST(Topology, ACustomLayoutTellsTheChunks) {
  for (const char* spelling :
       {R"("Ett||tm|L")", R"([["embedding","decoder","decoder"],[],["decoder","mtp"],["loss"]])",
        R"("[['embedding', 'decoder', 'decoder'], [], ['decoder', 'mtp'], ['loss']]")"}) {
    const auto config = Parse(R"("num_layers": 3, "mtp_num_layers": 1,
      "pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": )" +
                                  std::string(spelling),
                              "2");
    ASSERT_TRUE(config.ok()) << config.error().message;
    const layout::Topology& t = config->topology;
    EXPECT_EQ(t.vpp, 2);
    EXPECT_EQ(t.LayersOf(0, 0), (layout::Topology::LayerRange{0, 2}));
    EXPECT_EQ(t.LayersOf(1, 0), (layout::Topology::LayerRange{2, 0}));
    EXPECT_EQ(t.LayersOf(0, 1), (layout::Topology::LayerRange{2, 1}));
    EXPECT_EQ(t.MtpAt(), (layout::Topology::Chunk{0, 1}));
    EXPECT_TRUE(CheckRankRecord(t, 0, R"({"coords": {"rank": 0},
      "params": {"_layers": {"vp0/decoder.layers.1": 2, "vp1/decoder.layers.0": 3}}})")
                    .ok());
    EXPECT_FALSE(CheckRankRecord(t, 1, R"({"coords": {"rank": 1},
      "params": {"_layers": {"vp0/decoder.layers.0": 3}}})")
                     .ok());
  }
}

TEST(Topology, ACustomLayoutThatDoesNotFitIsRefused) {
  const auto fault = [](const std::string& layout) {
    return Fault(R"("num_layers": 4, "pipeline_model_parallel_size": 2, )" + layout, "2");
  };
  EXPECT_THAT(fault(R"("pipeline_model_parallel_layout": 7)"),
              HasSubstr("expected a text or a list of lists, found number"));
  EXPECT_THAT(fault(R"("pipeline_model_parallel_layout": "Ett|ttx")"),
              HasSubstr("topology.json: pipeline_model_parallel_layout: at 6"));
  EXPECT_THAT(
      fault(
          R"("pipeline_model_parallel_layout": "Ett|ttL", "num_layers_in_first_pipeline_stage": 2)"),
      HasSubstr("excludes num_layers_in_first"));
  EXPECT_THAT(
      fault(
          R"("pipeline_model_parallel_layout": "Ett|ttL", "virtual_pipeline_model_parallel_size": 2)"),
      HasSubstr("has 2 stages, expected pipeline parallel size 2 x virtual pipeline chunks 2"));
  EXPECT_THAT(fault(R"("pipeline_model_parallel_layout": "Ett|t|tL")"), HasSubstr("has 3 stages"));
  EXPECT_THAT(fault(R"("pipeline_model_parallel_layout": "Ett|tL")"),
              HasSubstr("has 3 decoder layers (t), expected num_layers 4"));
  EXPECT_THAT(fault(R"("pipeline_model_parallel_layout": "Ett|ttmL")"),
              HasSubstr("has 1 prediction modules (m), expected mtp_num_layers 0"));
}

layout::Topology TwoStagesOfTwoChunks() {
  return Parse(
             R"("num_layers": 4, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2)",
             "2")
      ->topology;
}

TEST(RankRecord, EqualCoordinatesAndLayersPass) {
  const Status same =
      CheckRankRecord(TwoStagesOfTwoChunks(), 1, R"({"coords": {"rank": 1, "pp": 1, "tp": 0},
      "params": {"_layers": {"vp0/decoder.layers.0": 2, "vp1/decoder.layers.0": 4, "vp1/mtp.layers.0": 1}}})");
  EXPECT_TRUE(same.ok()) << same.error().message;
}

TEST(RankRecord, EveryDifferenceIsNamed) {
  const Status different =
      CheckRankRecord(TwoStagesOfTwoChunks(), 1, R"({"coords": {"rank": 0, "pp": 1, "tp": 1},
      "params": {"_layers": {"vp0/decoder.layers.0": 1, "vp1/decoder.layers.1": 5, "vp2/decoder.layers.0": 5}}})");
  ASSERT_FALSE(different.ok());
  EXPECT_EQ(different.error().code, Code::kInvalidData);
  EXPECT_THAT(different.error().message,
              AllOf(HasSubstr("rank1.json"), HasSubstr("rank: recorded 0, computed 1"),
                    HasSubstr("tp: recorded 1, computed 0"), Not(HasSubstr("pp: recorded")),
                    HasSubstr("vp0/decoder.layers.0: recorded as layer 1, computed 2"),
                    HasSubstr("vp1/decoder.layers.1: recorded as layer 5, computed none"),
                    HasSubstr("vp2/decoder.layers.0: there are 2 chunks")));
}

TEST(RankRecord, RefusesWhatIsNoRecord) {
  EXPECT_FALSE(CheckRankRecord(TwoStagesOfTwoChunks(), 1, "{}").ok());
  EXPECT_FALSE(CheckRankRecord(TwoStagesOfTwoChunks(), 1, R"({"coords": {"rank": "1"}})").ok());
}

}  // namespace
}  // namespace weightcast::bridge
