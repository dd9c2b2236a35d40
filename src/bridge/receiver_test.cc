#include "bridge/receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/compile_plan.h"
#include "bridge/declared.h"
#include "bridge/families/families.h"

namespace weightcast::bridge {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Fault(const char* text) { return ParseNames(text).error().message; }

TEST(Names, AreThoseOfAnIndexOfAListOrOfLines) {
  for (
      const char* text :
      {R"({"metadata": {"total_size": 1}, "weight_map": {"b": "x.safetensors", "a": "x.safetensors"}})",
       R"(["b", "a"])", "b\na\n", "b\r\n\r\na"}) {
    EXPECT_THAT(ParseNames(text).value(), ElementsAre("a", "b")) << text;
  }
}

TEST(Names, AreRefusedIfTheyAreNone) {
  EXPECT_THAT(Fault(""), HasSubstr("found none"));
  EXPECT_THAT(Fault("[]"), HasSubstr("found none"));
  EXPECT_THAT(Fault("a\nb\na\n"), HasSubstr("lists \"a\" twice"));
  EXPECT_THAT(Fault("[1]"), HasSubstr("list of names"));
  EXPECT_THAT(Fault(R"({"weight": {}})"), HasSubstr("weight_map"));
  EXPECT_THAT(Fault("{"), HasSubstr("byte"));
}

// One layer of a small dense model.
Result<CompiledPlan> Compile(const CompileOptions& options, bool tied = true) {
  const std::string config = R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 4,
      "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 2,
      "vocab_size": 6, "tie_word_embeddings": )" +
                             std::string(tied ? "true}" : "false}");
  return CompilePlan(HfConfig::Parse(config).value(),
                     MegatronConfig::Parse(R"({"world": 1, "config": {"num_layers": 1}})").value(),
                     options);
}
std::vector<std::string> Produced() {
  std::vector<std::string> names;
  const auto compiled = Compile({});
  for (const auto& spec : compiled->plan->inventory->tensors()) names.push_back(spec.name);
  return names;
}
std::string Message(const Result<CompiledPlan>& result) {
  return result.ok() ? "" : result.error().message;
}

TEST(Receiver, TheProducedNamesAreThoseThatItLists) {
  std::vector<std::string> names = Produced();
  EXPECT_EQ(Message(Compile({.names = names})), "");
  names.push_back("model.visual.a");
  EXPECT_THAT(Message(Compile({.names = names})),
              AllOf(HasSubstr("missing: model.visual.a"), Not(HasSubstr("unexpected"))));
  const auto carried = Compile({.names = names, .carry = {"model.visual.*"}});
  ASSERT_TRUE(carried.ok()) << Message(carried);
  EXPECT_THAT(carried->carried, ElementsAre("model.visual.a"));
  EXPECT_THAT(Message(Compile({.names = names, .carry = {"model.audio.*"}})),
              HasSubstr("model.audio.*"));
  names = Produced();
  names.erase(names.begin());
  EXPECT_THAT(Message(Compile({.names = names})), HasSubstr("unexpected: " + Produced().front()));
}

TEST(Receiver, ATiedOutputLayerIsProducedWhereItIsListed) {
  std::vector<std::string> names = Produced();
  names.emplace_back("lm_head.weight");
  const auto compiled = Compile({.names = names});
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  ASSERT_EQ(compiled->aliases.size(), 1u);
}

// A text model that is trained alone, and served as a part of a larger one.
TEST(Receiver, ALargerModelHasTheTextPartUnderNamesOfItsOwn) {
  std::vector<std::string> names = {"model.visual.a", "lm_head.weight"};
  for (const std::string& name : Produced()) {
    names.push_back("model.language_model." + name.substr(6));
  }
  const auto compiled = Compile({.names = names, .carry = {"model.visual.*"}});
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  EXPECT_GE(compiled->plan->inventory->Find("model.language_model.layers.0.mlp.up_proj.weight"), 0);
  ASSERT_EQ(compiled->aliases.size(), 1u);
  EXPECT_EQ(compiled->aliases[0].of, "model.language_model.embed_tokens.weight");
}

TEST(Receiver, ItsNamesTellHowExpertsLie) {
  const HfConfig model = HfConfig::Parse(R"({"architectures": ["A"]})").value();
  const auto layout = [&](const Family& family, std::vector<std::string> names) {
    return ChooseExpertLayout(family, model, "model.layers.*.", ExpertLayout::kAuto, names);
  };
  EXPECT_EQ(layout(kQwen3Moe, {}).value(), ExpertLayout::kPerName);
  EXPECT_EQ(layout(kQwen3Moe, {"model.layers.0.mlp.experts.gate_up_proj"}).value(),
            ExpertLayout::kPackedOutIn);
  EXPECT_EQ(layout(kQwen35Moe, {}).value(), ExpertLayout::kPackedOutIn);
  EXPECT_EQ(layout(kQwen35Moe, {"model.layers.0.mlp.experts.0.up_proj.weight"}).value(),
            ExpertLayout::kPerName);
  const auto both = layout(kQwen3Moe, {"model.layers.0.mlp.experts.0.up_proj.weight",
                                       "model.layers.1.mlp.experts.gate_up_proj"});
  EXPECT_THAT(both.error().message,
              AllOf(HasSubstr("experts.0.up_proj"), HasSubstr("gate_up_proj")));
}

}  // namespace
}  // namespace weightcast::bridge
