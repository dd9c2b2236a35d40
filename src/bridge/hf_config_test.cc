#include "bridge/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

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

DimSet Attention() {
  DimSet set;
  for (const Dim d : {Dim::kVocab, Dim::kHidden, Dim::kFfn, Dim::kHeads, Dim::kKvHeads,
                      Dim::kHeadDim, Dim::kHeadsPerKvHead}) {
    set.set(static_cast<size_t>(d));
  }
  return set;
}
Result<Dims> Read(const char* fields) { return ReadDims(Sized(fields), Attention()); }

TEST(Sizes, DefaultsAreHeadsAndHiddenOverHeads) {
  const auto dims = Read(
      R"("hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 200)");
  ASSERT_TRUE(dims.ok()) << dims.error().message;
  EXPECT_EQ((*dims)[Dim::kKvHeads], 4);
  EXPECT_EQ((*dims)[Dim::kHeadDim], 8);
  EXPECT_EQ((*dims)(Dim::kHeads * Dim::kHeadDim), 32);
}

TEST(Sizes, AHeadDimOfItsOwnIsNotHiddenOverHeads) {
  const auto dims = Read(
      R"("hidden_size": 1024, "num_attention_heads": 16, "head_dim": 128, "intermediate_size": 48, "vocab_size": 200)");
  EXPECT_EQ((*dims)(Dim::kHeads * Dim::kHeadDim), 2048);
}

TEST(Sizes, EveryFaultIsListed) {
  const auto dims = Read(
      R"("hidden_size": 0, "num_attention_heads": 3, "vocab_size": 99999999999, "num_key_value_heads": -1)");
  ASSERT_FALSE(dims.ok());
  EXPECT_THAT(
      dims.error().message,
      AllOf(HasSubstr("hidden_size is 0"), HasSubstr("vocab_size is 99999999999"),
            HasSubstr("intermediate_size is missing"), HasSubstr("num_key_value_heads is -1")));
}

TEST(Sizes, KvHeadsDivideHeads) {
  EXPECT_THAT(Read(R"("hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 3,
              "intermediate_size": 48, "vocab_size": 200)")
                  .error()
                  .message,
              HasSubstr("num_attention_heads 4 is not divisible by num_key_value_heads 3"));
}

// What the compiler takes for granted.
void ExpectFits(const Rule& rule) {
  SCOPED_TRACE(rule.name);
  const auto outputs = rule.used_outputs();
  ASSERT_FALSE(outputs.empty());
  std::set<int> filled;
  if (rule.rows == nullptr) filled.insert(0);
  constexpr Rows kNone;
  for (const Section& section : (rule.rows == nullptr ? kNone : *rule.rows).sections) {
    for (const Part& part : section.parts) {
      if (part.rows.given()) filled.insert(part.output);
    }
  }
  EXPECT_EQ(filled.size(), outputs.size());
  EXPECT_LT(*filled.rbegin(), static_cast<int>(outputs.size()));
  for (const Output& output : outputs) {
    const bool numbered = std::string_view(output.name).find('#') != std::string_view::npos;
    EXPECT_EQ(numbered || output.packed, rule.per_expert());
    EXPECT_EQ(output.packed, outputs[0].packed);
    for (size_t d = 1; d < std::size(output.shape); ++d) {  // only the rows are theirs
      EXPECT_EQ(output.shape[d].given(), outputs[0].shape[d].given());
    }
  }
  const bool matrix = outputs[0].shape[1].given();
  EXPECT_TRUE(matrix || (rule.cut != Cut::kCols && !rule.transposed && !rule.halves_swapped));
  EXPECT_TRUE(rule.cut != Cut::kVocabRows || rule.rows == nullptr);
  EXPECT_FALSE(rule.halves_swapped && rule.cut == Cut::kCols);
}

TEST(Families, EachArchitectureHasOneFamilyAndItsRulesFitTogether) {
  std::map<std::string_view, int> architectures;
  for (const Family* family : kFamilies) {
    SCOPED_TRACE(family->name);
    for (const std::string_view name : family->architectures) ++architectures[name];
    for (const Stack& stack : family->stacks) {
      const std::string_view prefixes[] = {stack.megatron, stack.hf};
      const bool numbered =
          stack.holder == Holder::kLayers || stack.holder == Holder::kVisionLayers ||
          stack.holder == Holder::kDeepstack || stack.holder == Holder::kMtpLayers;
      EXPECT_EQ(std::ranges::count(prefixes[0], '*'), numbered ? 1 : 0) << prefixes[0];
      EXPECT_EQ(prefixes[1].find_first_of("*+") != std::string_view::npos, numbered);
      for (const std::span<const Rule> group : stack.rules) {
        for (const Rule& rule : group) ExpectFits(rule);
      }
    }
  }
  for (const auto& [name, count] : architectures) EXPECT_EQ(count, 1) << name;
}

}  // namespace
}  // namespace weightcast::bridge
