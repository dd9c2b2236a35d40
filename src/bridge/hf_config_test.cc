#include "bridge/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/dims.h"
#include "bridge/families/families.h"

namespace weightcast::bridge {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Fault(std::string_view json) {
  const auto config = HfConfig::Parse(json);
  if (config.ok()) return "";
  EXPECT_EQ(config.error().code, Code::kInvalidData);
  return config.error().message;
}

TEST(Config, ReadsWhatAMappingNeeds) {
  const auto config =
      HfConfig::Parse(R"({"architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16",
      "hidden_size": 32, "attention_bias": false, "head_dim": null, "rope_theta": 1e6, "tie_word_embeddings": true,
      "transformers_version": "5.12.1"})");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_THAT(config->architectures, ElementsAre("Qwen3ForCausalLM"));
  EXPECT_EQ(config->dtype, tensor::DType::kBf16);
  EXPECT_EQ(config->transformers_version, "5.12.1");
  EXPECT_EQ(config->tie_word_embeddings, true);
  EXPECT_EQ(config->Int("hidden_size"), 32);
  EXPECT_EQ(config->Int("head_dim"), std::nullopt);
  EXPECT_EQ(config->Int("attention_bias"), std::nullopt);
  EXPECT_FALSE(config->Flag("attention_bias"));
  EXPECT_FALSE(config->Flag("nothing"));
}

TEST(Config, TheTopLevelWinsOverTextConfigAndOnlyItsTieCounts) {
  const auto config = HfConfig::Parse(R"({"architectures": ["A"], "hidden_size": 8,
      "text_config": {"hidden_size": 16, "vocab_size": 99, "torch_dtype": "float32", "tie_word_embeddings": true}})");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->Int("hidden_size"), 8);
  EXPECT_EQ(config->Int("vocab_size"), 99);
  EXPECT_EQ(config->dtype, tensor::DType::kF32);
  EXPECT_EQ(config->tie_word_embeddings, std::nullopt);
}

TEST(Config, RefusesWhatDoesNotFit) {
  EXPECT_THAT(Fault("[]"), HasSubstr("architectures"));
  EXPECT_THAT(Fault(R"({"hidden_size": 8})"), HasSubstr("architectures"));
  EXPECT_THAT(Fault(R"({"architectures": []})"), HasSubstr("expected a name, found none"));
  EXPECT_THAT(Fault(R"({"architectures": [7]})"), HasSubstr("found 7"));
  EXPECT_THAT(Fault(R"({"architectures": ["A"], "dtype": "float7"})"), HasSubstr("float7"));
  EXPECT_THAT(Fault(R"({"architectures": ["A"], "dtype": 7})"), HasSubstr("dtype"));
  EXPECT_THAT(Fault(R"({"architectures": ["A"], "text_config": 7})"), HasSubstr("text_config"));
  EXPECT_THAT(Fault(R"({"architectures": ["A"], "tie_word_embeddings": 1})"),
              HasSubstr("tie_word"));
  EXPECT_THAT(Fault(R"({"architectures": ["A"], "a": 1, "a": 2})"), HasSubstr("duplicate"));
  EXPECT_THAT(Fault(R"({"architectures": ["A"])"), HasSubstr("byte"));
}

HfConfig Sized(const char* fields) {
  return HfConfig::Parse(std::string(R"({"architectures": ["A"], )") + fields + "}").value();
}

TEST(Sizes, DefaultsAreHeadsAndHiddenOverHeads) {
  const auto dims = ReadDims(Sized(
      R"("hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 200)"));
  ASSERT_TRUE(dims.ok()) << dims.error().message;
  EXPECT_EQ((*dims)[Dim::kKvHeads], 4);
  EXPECT_EQ((*dims)[Dim::kHeadDim], 8);
  EXPECT_EQ((*dims)({Dim::kHeads, Dim::kHeadDim}), 32);
}

TEST(Sizes, AHeadDimOfItsOwnIsNotHiddenOverHeads) {
  const auto dims = ReadDims(Sized(
      R"("hidden_size": 1024, "num_attention_heads": 16, "head_dim": 128, "intermediate_size": 48, "vocab_size": 200)"));
  EXPECT_EQ((*dims)({Dim::kHeads, Dim::kHeadDim}), 2048);
}

TEST(Sizes, EveryFaultIsListed) {
  const auto dims = ReadDims(Sized(
      R"("hidden_size": 0, "num_attention_heads": 3, "vocab_size": 99999999999, "num_key_value_heads": -1)"));
  ASSERT_FALSE(dims.ok());
  EXPECT_THAT(
      dims.error().message,
      AllOf(HasSubstr("hidden_size is 0"), HasSubstr("vocab_size is 99999999999"),
            HasSubstr("intermediate_size is missing"), HasSubstr("num_key_value_heads is -1")));
}

TEST(Sizes, KvHeadsDivideHeads) {
  EXPECT_THAT(
      ReadDims(Sized(R"("hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 3,
                                "intermediate_size": 48, "vocab_size": 200)"))
          .error()
          .message,
      HasSubstr("num_attention_heads 4 is not divisible by num_key_value_heads 3"));
}

TEST(Families, EachArchitectureHasOneFamilyAndItsRulesFitTogether) {
  std::map<std::string_view, int> architectures;
  for (const Family* family : kFamilies) {
    SCOPED_TRACE(family->name);
    for (const std::string_view name : family->architectures) ++architectures[name];
    for (const std::span<const Rule> group : family->rules) {
      for (const Rule& rule : group) {
        SCOPED_TRACE(rule.name);
        const auto outputs = rule.used_outputs();
        ASSERT_FALSE(outputs.empty());
        EXPECT_EQ(outputs.size() > 1, rule.fusion != Fusion::kNone);
        const bool layered = rule.holder == Holder::kLayer;
        EXPECT_EQ(std::string_view(rule.name).find('*') != std::string_view::npos, layered);
        for (const Output& output : outputs) {
          EXPECT_EQ(std::string_view(output.name).find('*') != std::string_view::npos, layered);
          EXPECT_EQ(output.cols.has_value(), outputs[0].cols.has_value());
        }
        if (rule.cut == Cut::kCols) {
          EXPECT_TRUE(outputs[0].cols.has_value());
        }
      }
    }
  }
  for (const auto& [name, count] : architectures) EXPECT_EQ(count, 1) << name;
}

}  // namespace
}  // namespace weightcast::bridge
