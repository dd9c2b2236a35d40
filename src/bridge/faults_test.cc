// Faults that others had in converting weights, each with the property that would have caught it. A
// test bears the number of its fault in the collection of known bugs of converters (B) or in the
// public field reports (N, G, P, D). All say it on toys whose elements all differ, cut by a trainer
// that shares nothing with the rules.
//
// Not of conversion, and so not here:
//   B2, B3, B4  collectives in a loop over chunks, groups connected in different orders,
//               broadcasts from different sources: a plan is compiled by every rank alone, and
//               conversion has no collective
//   B28         a group of one taken for the world: as above
//   B34         a receiver that restarts with every chunk: engines
//   N5          engine's names that change with its release: engines
//   D2          strided views handed over by pointer and count: the Python package
//   D3          scalars: no family has one; tensors without dimensions are tested where files
//               are read
// Tested elsewhere: N2, N3, G1, G4, D1, P1, P2 (tied copies) in compile_plan_test.cc; G5, D5 in
// convert_test.cc; P3 (a plan is a function of its inputs) and P4 in toy_trainer_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>

#include "bridge/shard_keys.h"
#include "bridge/toy_worlds_testing.h"
#include "layout/gather.h"

namespace weightcast::bridge {
namespace {

using layout::Plan;
using layout::Topology;
using tensor::DType;
using tensor::Shape;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kQwenVl = "Qwen3VLForConditionalGeneration";
constexpr const char* kQwenVlMoe = "Qwen3VLMoeForConditionalGeneration";

Topology WithExpertRanks(Topology t, int32_t ep, int32_t etp) {
  t.ep = ep;
  t.etp = etp;
  return t;
}

CompiledPlan Compiled(const ToyModel& m, const Topology& t, const CompileOptions& options = {}) {
  Result<CompiledPlan> compiled = Compile(m, t, options);
  EXPECT_TRUE(compiled.ok()) << Message(compiled);
  return std::move(compiled).value();
}

std::vector<std::string> NamesOf(const Plan& plan) {
  std::vector<std::string> names;
  for (const tensor::TensorSpec& spec : plan.inventory->tensors()) names.push_back(spec.name);
  return names;
}

const tensor::TensorSpec& SpecOf(const Plan& plan, const std::string& name) {
  const int64_t at = plan.inventory->Find(name);
  WC_CHECK(at >= 0);
  return (*plan.inventory)[static_cast<size_t>(at)];
}

const layout::Param* FindParam(const Plan& plan, int32_t rank, const std::string& key) {
  const auto& params = plan.ranks[static_cast<size_t>(rank)].params;
  const auto it = std::ranges::find(params, key, &layout::Param::key);
  return it == params.end() ? nullptr : &*it;
}

// The tensors that a rank's parameter fills.
std::set<std::string> FilledBy(const Plan& plan, int32_t rank, const std::string& key) {
  std::set<std::string> names;
  const layout::RankPlan& ranks = plan.ranks[static_cast<size_t>(rank)];
  for (const layout::Slice& s : ranks.slices) {
    if (ranks.params[static_cast<size_t>(s.param)].key == key) {
      names.insert((*plan.inventory)[static_cast<size_t>(s.tensor)].name);
    }
  }
  return names;
}

// Where a canonical unit lies: "rank 1 row 6 col 0 of KEY" without the chunk.
struct Source {
  int32_t rank = 0;
  std::string key;
  int64_t row = 0;
  int64_t col = 0;
};
Source SourceOf(const Plan& plan, const std::string& tensor, int64_t row, int64_t col) {
  const auto owner =
      layout::FindOwner(plan, static_cast<int32_t>(plan.inventory->Find(tensor)), row, col);
  WC_CHECK(owner.has_value());
  const layout::Param& param =
      plan.ranks[static_cast<size_t>(owner->rank)].params[static_cast<size_t>(owner->slice->param)];
  const int64_t cols = tensor::TensorSpec{param.key, param.dtype, param.shape}.matrix().cols;
  return {owner->rank, param.key, owner->unit / cols, owner->unit % cols};
}
std::vector<std::pair<int32_t, int64_t>> RowsOf(const Plan& plan, const std::string& tensor) {
  std::vector<std::pair<int32_t, int64_t>> rows;
  for (int64_t r = 0; r < SpecOf(plan, tensor).matrix().rows; ++r) {
    const Source source = SourceOf(plan, tensor, r, 0);
    rows.emplace_back(source.rank, source.row);
  }
  return rows;
}

// The complaint about one rank's shard, after `spoil`.
std::string Complaint(const ToyModel& m, const Topology& t, int32_t rank,
                      const std::function<void(ToyTensors&)>& spoil) {
  ToyTensors shard = ShardTensors(m, t, rank);
  spoil(shard);
  const CompiledPlan compiled = Compiled(m, t);
  const auto checked =
      CheckShardKeys(compiled.plan->ranks[static_cast<size_t>(rank)], SpecsOf(shard), RankId{rank});
  return checked.ok() ? "" : checked.error().message;
}

void Rename(ToyTensors& shard, const std::string& from, const std::string& to) {
  ToyTensors renamed;
  for (auto& [key, tensor] : shard) {
    std::string name = key;
    if (const size_t at = name.find(from); at != std::string::npos) {
      name.replace(at, from.size(), to);
    }
    renamed.emplace(name, std::move(tensor));
  }
  shard = std::move(renamed);
}

// ---- names ----

TEST(Faults, B01_N1_EveryVisionParameterHasANameOfItsOwn) {
  for (const ToyModel& m : ToyFamilies()) {
    if (!m.vision) continue;
    const CompiledPlan compiled = Compiled(m, World(2, 1));
    const Plan& plan = *compiled.plan;
    std::set<std::string> seen;
    for (const layout::Param& p : plan.ranks[0].params) {
      for (const std::string& name : FilledBy(plan, 0, p.key)) {
        if (name.find(".mlp.experts.") != std::string::npos) continue;  // several make one
        EXPECT_TRUE(seen.insert(name).second) << name;
        EXPECT_EQ(name.starts_with("model.visual."), p.key.starts_with("vp0/vision_model."))
            << name;
      }
    }
    // Text and vision both have a decoder.layers.0.
    EXPECT_THAT(
        FilledBy(plan, 0, "vp0/vision_model.decoder.layers.0.self_attention.linear_qkv.weight"),
        ElementsAre("model.visual.blocks.0.attn.qkv.weight"));
    EXPECT_THAT(
        FilledBy(plan, 0, "vp0/language_model.decoder.layers.1.self_attention.linear_qkv.weight"),
        Contains("model.language_model.layers.1.self_attn.q_proj.weight"));
  }
}

TEST(Faults, B24_N2_AnotherSchemeOfNamesIsRefusedWithAllOfThem) {
  const ToyModel m = ToyOf("Qwen3_5ForConditionalGeneration");
  EXPECT_EQ(Complaint(m, World(2, 1), 0, [](ToyTensors&) {}), "");
  const std::string complaint = Complaint(m, World(2, 1), 0, [](ToyTensors& shard) {
    Rename(shard, "language_model.decoder.layers.0.self_attention.in_proj.weight",
           "language_model.decoder.layers.0.self_attention.linear_attn.in_proj_qkv.weight");
    Rename(shard, "vision_model.patch_embed", "model.visual.patch_embed");
  });
  EXPECT_THAT(complaint, AllOf(HasSubstr("layers.0.self_attention.linear_attn.in_proj_qkv.weight"),
                               HasSubstr("vp0/model.visual.patch_embed.proj.bias"),
                               HasSubstr("vp0/model.visual.patch_embed.proj.weight"),
                               HasSubstr("layers.0.self_attention.in_proj.weight")));
}

TEST(Faults, N4_WhatOneRankHasBesidesIsNamed) {
  const ToyModel m = ToyOf("Qwen3MoeForCausalLM");
  EXPECT_THAT(Complaint(m, World(2, 2), 1,
                        [](ToyTensors& shard) {
                          shard["vp0/decoder.layers.1.mlp.router.expert_bias"] = {{4},
                                                                                  {1, 2, 3, 4}};
                        }),
              HasSubstr("rank 1 is not what the plan expects; unknown: "
                        "vp0/decoder.layers.1.mlp.router.expert_bias"));
}

TEST(Faults, B15_AGatedProjectionUnderAnotherNameIsRefused) {
  const ToyModel m = ToyOf("Qwen3NextForCausalLM");
  EXPECT_THAT(Complaint(m, World(2, 1), 0,
                        [](ToyTensors& shard) {
                          Rename(shard, "linear_qkv.weight", "linear_qgkv.weight");
                        }),
              AllOf(HasSubstr("unknown: vp0/decoder.layers.1.self_attention.linear_qgkv.weight"),
                    HasSubstr("missing: vp0/decoder.layers.1.self_attention.linear_qkv.weight")));
  // And a gate where the family has none.
  ToyModel gated = ToyOf("Qwen3ForCausalLM");
  gated.attention = ToyAttention::kGated;
  EXPECT_THAT(Message(Compile(gated, World(2, 1))), HasSubstr("attention_output_gate"));
}

// What VL and text models share is one set of rules: a change for one shows in both or in neither.
TEST(Faults, B25_TheTextPartOfAVlModelIsTheTextModel) {
  const std::pair<const char*, const char*> siblings[] = {
      {"Qwen3ForCausalLM", kQwenVl},
      {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"},
      {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"}};
  const auto listed = [](const Plan& plan, bool vl) {
    std::set<std::string> all;
    for (size_t r = 0; r < plan.ranks.size(); ++r) {
      for (const layout::Param& p : plan.ranks[r].params) {
        std::string key = p.key;
        if (vl && key.find("language_model.") == std::string::npos) continue;
        if (vl) key.erase(key.find("language_model."), 15);
        for (std::string name : FilledBy(plan, static_cast<int32_t>(r), p.key)) {
          const Source first = SourceOf(plan, name, 0, 0);
          if (vl && name.starts_with("model.")) name.erase(6, 15);
          all.insert(key + " " + tensor::ShapeText(p.shape) + " " + name + " " +
                     std::to_string(first.row));
        }
      }
    }
    return all;
  };
  for (const auto& [text, vl] : siblings) {
    const CompiledPlan a = Compiled(ToyOf(text), World(2, 2));
    const CompiledPlan b = Compiled(ToyOf(vl), World(2, 2));
    EXPECT_EQ(listed(*a.plan, false), listed(*b.plan, true)) << vl;
  }
}

// ---- vocabulary, tied embeddings ----

TEST(Faults, B05_PaddedRowsOfTheVocabularyNeverLeave) {
  for (const ToyModel& toy : ToyFamilies()) {
    ToyModel m = toy;
    m.padded_vocab = 24;  // of four ranks the last two hold nothing else
    m = Fitted(m, World(2, 4));
    ExpectRightPlan(m, World(2, 4));
    const CompiledPlan compiled = Compiled(m, World(2, 4));
    EXPECT_EQ(SpecOf(*compiled.plan, m.hf_prefix() + "embed_tokens.weight").shape[0], m.vocab);
    EXPECT_EQ(SpecOf(*compiled.plan, "lm_head.weight").shape[0], m.vocab);
  }
}

TEST(Faults, B38_TheVocabularyIsPaddedToAMultipleOfDivisorTimesRanks) {
  struct Case {
    int64_t vocab, divisor;
    int32_t tp;
    int64_t padded;
  };
  for (const Case& c :
       {Case{151936, 128, 1, 151936}, Case{151936, 128, 2, 152064}, Case{151936, 128, 4, 152064},
        Case{151936, 128, 8, 152576}, Case{151936, 128, 16, 153600}, Case{128256, 128, 8, 129024},
        Case{201088, 128, 8, 201728}, Case{248320, 128, 8, 248832}, Case{151552, 128, 8, 151552},
        Case{129280, 1280, 8, 133120}}) {
    const auto trainer = MegatronConfig::Parse(
        "{\"world\": " + std::to_string(c.tp) +
        R"(, "config": {"num_layers": 1, "should_pad_vocab": true,
        "tensor_model_parallel_size": )" +
        std::to_string(c.tp) + ", \"vocab_size\": " + std::to_string(c.vocab) +
        ", \"make_vocab_size_divisible_by\": " + std::to_string(c.divisor) + "}}");
    ASSERT_TRUE(trainer.ok()) << trainer.error().message;
    EXPECT_EQ(trainer->padded_vocab, c.padded) << c.vocab << " on " << c.tp;
  }
}

// By any family's name of the embedding, on one stage and on several.
TEST(Faults, B06_N3_ATiedModelsReferenceMayListTheOutputLayer) {
  for (ToyModel m : ToyFamilies()) {
    m.tied = true;
    ToyTensors listed = CanonicalTensors(m);
    listed["lm_head.weight"] = listed.at(m.hf_prefix() + "embed_tokens.weight");
    for (const Topology& t : {World(2, 2), World(2, 2, 2)}) {
      const CompiledPlan compiled = Compiled(m, t, {.reference = InventoryOf(listed)});
      EXPECT_EQ(Gather(*compiled.plan, AllShards(m, t)), BytesOf(listed)) << m.architecture;
    }
  }
}

TEST(Faults, B07_TheTiedCopyIsInTheLastChunkOfTheLastStage) {
  for (ToyModel m : {ToyOf("Qwen3ForCausalLM"), ToyOf(kQwenVl)}) {
    m.tied = true;
    m.layers = 4;
    const CompiledPlan compiled = Compiled(m, World(4, 1, 2, 2));
    const std::string key = m.megatron_prefix() + "output_layer.weight";
    EXPECT_EQ(FindParam(*compiled.plan, 0, "vp0/" + key), nullptr);
    EXPECT_EQ(FindParam(*compiled.plan, 1, "vp0/" + key), nullptr);
    EXPECT_NE(FindParam(*compiled.plan, 1, "vp1/" + key), nullptr);
    EXPECT_THAT(FilledBy(*compiled.plan, 1, "vp1/" + key), IsEmpty());
  }
}

// The text's own flag is a default that means nothing.
TEST(Faults, B08_AnUntiedVlModelsOutputLayerIsItsOwn) {
  const ToyModel m = ToyOf(kQwenVl);
  std::string config = ConfigJson(m);
  const std::string text = "\"text_config\":{";
  config.insert(config.find(text) + text.size(), "\"tie_word_embeddings\":true,");
  const auto compiled = CompilePlan(HfConfig::Parse(config).value(), TrainerOf(m, World(2, 1)), {});
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  EXPECT_THAT(compiled->aliases, IsEmpty());
  EXPECT_EQ(SourceOf(*compiled->plan, "lm_head.weight", 0, 0).key,
            "vp0/language_model.output_layer.weight");
}

// ---- attention ----

TEST(Faults, B27_TwoKvHeadsOnEightRanks) {
  ToyModel m = ToyOf("Qwen2ForCausalLM");
  m.heads = 16, m.kv_heads = 2, m.head_dim = 8, m.padded_vocab = 16;
  const Topology t = World(2, 8);
  ExpectRightPlan(m, t);
  const CompiledPlan compiled = Compiled(m, t);
  const std::string qkv = "vp0/decoder.layers.0.self_attention.linear_qkv.";
  EXPECT_EQ(FindParam(*compiled.plan, 3, qkv + "weight")->shape,
            (Shape{20, 20}));  // not whole heads
  EXPECT_THAT(FilledBy(*compiled.plan, 0, qkv + "bias"),
              ElementsAre("model.layers.0.self_attn.q_proj.bias"));
}

TEST(Faults, G3_GatesLieBehindTheQueriesOfTheirGroup) {
  ToyModel m = ToyOf("Qwen3_5ForCausalLM");
  m.head_dim = 1;
  const CompiledPlan compiled = Compiled(m, World(2, 1));
  const std::string attention = "model.layers.1.self_attn.";
  const auto rows = [&](const char* name) {
    std::vector<int64_t> all;
    for (const auto& [rank, row] : RowsOf(*compiled.plan, attention + name)) all.push_back(row);
    return all;
  };
  EXPECT_THAT(rows("q_proj.weight"), ElementsAre(0, 2, 1, 3, 6, 8, 7, 9));
  EXPECT_THAT(rows("k_proj.weight"), ElementsAre(4, 10));
  EXPECT_THAT(rows("v_proj.weight"), ElementsAre(5, 11));
}

TEST(Faults, B26_NeighboursHoldTheSameNormOfKeys) {
  const ToyModel m = ToyOf("MiniMaxM2ForCausalLM");  // two KV heads of 3
  ExpectRightPlan(m, World(2, 4));
  const CompiledPlan compiled = Compiled(m, World(2, 4));
  const std::string key = "vp0/decoder.layers.0.self_attention.k_layernorm.weight";
  const std::string name = "model.layers.0.self_attn.k_norm.weight";
  EXPECT_EQ(SpecOf(*compiled.plan, name).shape, Shape{6});
  std::vector<std::vector<int32_t>> replicas;
  for (const ReplicaSet& set : compiled.replicas) {
    const layout::Place& first = set.places.front();
    const auto& params = compiled.plan->ranks[static_cast<size_t>(first.rank)].params;
    if (params[static_cast<size_t>(first.param)].key != key) continue;
    replicas.emplace_back();
    for (const layout::Place& p : set.places) replicas.back().push_back(p.rank);
  }
  EXPECT_THAT(replicas, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_EQ(FindParam(*compiled.plan, 3, key)->shape, Shape{3});
}

// The parts of a rank's input, each joined by itself: q 0, k 1, v 2..3, z 4..5, b 6..7, a 8..9.
CompiledPlan TinyDeltaNet(const char* architecture) {
  ToyModel m = ToyOf(architecture);
  m.key_heads = 2, m.value_heads = 4, m.key_dim = m.linear_value_dim = 1;
  ExpectRightPlan(m, World(2, 2));
  return Compiled(m, World(2, 2));
}

TEST(Faults, B14_G2_TheDeltaNetsPartsAreJoinedEachByItself) {
  const CompiledPlan next = TinyDeltaNet("Qwen3NextForCausalLM");
  const std::string attention = "model.layers.0.linear_attn.";
  using At = std::pair<int32_t, int64_t>;
  EXPECT_THAT(RowsOf(*next.plan, attention + "in_proj_qkvz.weight"),
              ElementsAre(At{0, 0}, At{0, 1}, At{0, 2}, At{0, 3}, At{0, 4}, At{0, 5}, At{1, 0},
                          At{1, 1}, At{1, 2}, At{1, 3}, At{1, 4}, At{1, 5}));
  EXPECT_THAT(
      RowsOf(*next.plan, attention + "conv1d.weight"),
      ElementsAre(At{0, 0}, At{1, 0}, At{0, 1}, At{1, 1}, At{0, 2}, At{0, 3}, At{1, 2}, At{1, 3}));
  const CompiledPlan five = TinyDeltaNet("Qwen3_5ForCausalLM");
  EXPECT_THAT(
      RowsOf(*five.plan, attention + "in_proj_qkv.weight"),
      ElementsAre(At{0, 0}, At{1, 0}, At{0, 1}, At{1, 1}, At{0, 2}, At{0, 3}, At{1, 2}, At{1, 3}));
  EXPECT_THAT(RowsOf(*five.plan, attention + "in_proj_a.weight"),
              ElementsAre(At{0, 8}, At{0, 9}, At{1, 8}, At{1, 9}));
}

TEST(Faults, B40_BetaAndAlphaAreGroupedByKeyHead) {
  const CompiledPlan next = TinyDeltaNet("Qwen3NextForCausalLM");
  using At = std::pair<int32_t, int64_t>;
  EXPECT_THAT(
      RowsOf(*next.plan, "model.layers.0.linear_attn.in_proj_ba.weight"),
      ElementsAre(At{0, 6}, At{0, 7}, At{0, 8}, At{0, 9}, At{1, 6}, At{1, 7}, At{1, 8}, At{1, 9}));
}

// The nearest bf16, ties to even, by search.
uint16_t NearestBf16(double value) {
  const auto at = [](uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float f = 0;
    std::memcpy(&f, &bits, 4);
    return static_cast<double>(f);
  };
  uint16_t best = 0x3f00;  // 0.5; the search ends below 2
  for (uint16_t half = 0x3f00; half < 0x4000; ++half) {
    const double better = std::abs(at(best) - value) - std::abs(at(half) - value);
    if (better > 0 || (better == 0 && half % 2 == 0)) best = half;
  }
  return best;
}

// A trained gain is finer near 0 than near 1: what is exported is the nearest, not a chopped or
// drifting one.
TEST(Faults, B36_ARecentredNormIsRoundedOnceToTheNearest) {
  const ToyModel m = ToyOf("Qwen3NextForCausalLM");
  const CompiledPlan compiled = Compiled(m, World(2, 1));
  const std::string name = "model.layers.0.linear_attn.norm.weight";
  const auto tensor = static_cast<int32_t>(compiled.plan->inventory->Find(name));
  const auto slice =
      std::ranges::find(compiled.plan->ranks[0].slices, tensor, &layout::Slice::tensor);
  ASSERT_EQ(slice->box.units(), m.linear_value_dim);
  for (const float w : {0.0F, 1.0F / 256, 3.0F / 256, 5.0F / 256, -1.0F / 512, -3.0F / 512, 0.0039F,
                        1e-6F, -0.25F, 0.7F}) {
    uint32_t bits = 0;
    std::memcpy(&bits, &w, 4);
    const auto held = static_cast<uint16_t>(bits >> 16);
    const uint32_t held_bits = static_cast<uint32_t>(held) << 16;
    float held_value = 0;
    std::memcpy(&held_value, &held_bits, 4);
    Bytes shard(6), out(6);
    for (size_t i = 0; i < 3; ++i) std::memcpy(&shard[i * 2], &held, 2);
    layout::ScatterSlice(SpecOf(*compiled.plan, name).matrix(), *slice, shard, out);
    EXPECT_EQ(LoadLe<uint16_t>(&out[2]), NearestBf16(1.0 + static_cast<double>(held_value))) << w;
  }
}

// ---- experts ----

TEST(Faults, B09_ExpertRanksWithoutStagesGatherTheModel) {
  for (const ToyModel& m : ToyFamilies()) {
    if (m.experts > 0) ExpectRightPlan(m, WithExpertRanks(World(2, 1, 1, 1, 4), 4, 1));
  }
}

TEST(Faults, B29_G5_EveryExpertHasItsGlobalNumber) {
  for (const ToyModel& toy : ToyFamilies()) {
    if (toy.experts == 0) continue;
    ToyModel m = toy;
    m.experts = 8;
    const Topology t = WithExpertRanks(World(2, 2, 1, 1, 4), 8, 1);
    ExpectRightPlan(m, t);  // each rank calls its one expert 0
    const CompiledPlan compiled = Compiled(m, t);
    EXPECT_NE(
        FindParam(*compiled.plan, 7,
                  "vp0/" + m.megatron_prefix() + "decoder.layers.1.mlp.experts.linear_fc2.weight0"),
        nullptr);
  }
}

TEST(Faults, B10_PackedExpertsOverExpertRanksAndTheirTensorRanks) {
  for (const ToyExperts layout : {ToyExperts::kInOut, ToyExperts::kOutIn, ToyExperts::kByName}) {
    ToyModel m = ToyOf(kQwenVlMoe);
    m.layout = layout;
    for (const auto& [ep, etp] : {std::pair(1, 2), {2, 1}, {2, 2}, {4, 1}, {1, 4}}) {
      ExpectRightPlan(m, WithExpertRanks(World(2, 4), ep, etp));
      ExpectRightPlan(m, WithExpertRanks(World(2, 2, 2, 1, 2), ep, etp));
    }
  }
}

// Square matrices hide a wrong orientation from every check of shapes.
TEST(Faults, B11_SquareExpertsKeepTheirOrientation) {
  ToyModel gpt_oss = ToyOf("GptOssForCausalLM");
  gpt_oss.ffn = gpt_oss.expert_ffn = gpt_oss.hidden;
  ExpectRightPlan(gpt_oss, WithExpertRanks(World(2, 2), 2, 1));
  const CompiledPlan compiled = Compiled(gpt_oss, World(2, 1));
  const Source down = SourceOf(*compiled.plan, "model.layers.0.mlp.experts.down_proj", 20 + 3, 5);
  EXPECT_EQ(down.key, "vp0/decoder.layers.0.mlp.experts.linear_fc2.weight1");
  EXPECT_EQ(std::pair(down.row, down.col), std::pair(int64_t{5}, int64_t{3}));
  for (const ToyExperts layout : {ToyExperts::kInOut, ToyExperts::kOutIn}) {
    ToyModel vl = ToyOf(kQwenVlMoe);
    vl.layout = layout;
    vl.expert_ffn = vl.hidden / 2;  // gate and up together are square
    ExpectRightPlan(vl, WithExpertRanks(World(2, 2), 2, 1));
  }
}

TEST(Faults, B12_GptOsssGateAndUpAlternate) {
  const ToyModel m = ToyOf("GptOssForCausalLM");
  const CompiledPlan compiled = Compiled(m, WithExpertRanks(World(2, 2), 1, 2));
  const Plan& plan = *compiled.plan;
  const std::string experts = "model.layers.0.mlp.experts.";
  EXPECT_THAT(NamesOf(plan), Not(Contains(HasSubstr(".experts.0."))));
  for (int64_t i = 0; i < m.expert_ffn; ++i) {
    // Of two ranks, each with its gate rows and then its up rows.
    const int64_t half = m.expert_ffn / 2;
    for (const int64_t up : {0, 1}) {
      const Source at = SourceOf(plan, experts + "gate_up_proj", 3, 2 * i + up);
      EXPECT_EQ(at.rank, i / half);
      EXPECT_EQ(std::pair(at.row, at.col), std::pair(i % half + up * half, int64_t{3}));
      EXPECT_EQ(SourceOf(plan, experts + "gate_up_proj_bias", 0, 2 * i + up).row,
                i % half + up * half);
    }
  }
}

TEST(Faults, B13_SiblingsAreTurnedTogether) {
  for (const ToyModel& toy : ToyFamilies()) {
    if (toy.experts == 0 || toy.layout == ToyExperts::kSparseMoe) continue;
    if (toy.layout == ToyExperts::kAlternating) continue;  // has one layout
    const std::string experts = toy.hf_prefix() + "layers.1.mlp.experts.";
    const int64_t h = toy.hidden;
    const int64_t i = toy.expert_ffn;
    ToyModel m = toy;
    m.layout = ToyExperts::kOutIn;
    const CompiledPlan out_in = Compiled(m, World(2, 1));
    EXPECT_EQ(SpecOf(*out_in.plan, experts + "gate_up_proj").shape, (Shape{4, 2 * i, h}));
    EXPECT_EQ(SpecOf(*out_in.plan, experts + "down_proj").shape, (Shape{4, h, i}));
    m.layout = ToyExperts::kInOut;
    const CompiledPlan in_out = Compiled(m, World(2, 1));
    EXPECT_EQ(SpecOf(*in_out.plan, experts + "gate_up_proj").shape, (Shape{4, h, 2 * i}));
    EXPECT_EQ(SpecOf(*in_out.plan, experts + "down_proj").shape, (Shape{4, i, h}));
  }
}

TEST(Faults, B23_ExpertTensorRanksOfTheirOwnHoldTheirShareOfRows) {
  const ToyModel m = ToyOf("Qwen3MoeForCausalLM");
  for (const auto& [tp, dp] : {std::pair(1, 2), {2, 1}, {4, 1}}) {
    const Topology t = WithExpertRanks(World(2, tp, 1, 1, dp), 1, 2);
    ExpectRightPlan(m, t);
    const CompiledPlan compiled = Compiled(m, t);
    EXPECT_EQ(
        FindParam(*compiled.plan, 1, "vp0/decoder.layers.1.mlp.experts.linear_fc1.weight3")->shape,
        (Shape{m.expert_ffn, m.hidden}));
  }
}

// Nobody holds a whole packed tensor, nor waits for the others' experts.
TEST(Faults, B30_B42_APackedTensorIsMadeExpertByExpert) {
  const ToyModel m = ToyOf("Qwen3_5MoeForCausalLM");
  const Topology t = WithExpertRanks(World(2, 2, 1, 1, 2), 4, 1);
  const CompiledPlan compiled = Compiled(m, t);
  int slices = 0;
  for (size_t r = 0; r < compiled.plan->ranks.size(); ++r) {
    for (const layout::Slice& s : compiled.plan->ranks[r].slices) {
      const tensor::TensorSpec& spec = (*compiled.plan->inventory)[static_cast<size_t>(s.tensor)];
      if (spec.name.find(".mlp.experts.") == std::string::npos) continue;
      const int64_t rows = spec.matrix().rows / spec.shape[0];
      EXPECT_EQ(s.box.row / rows, (s.box.row + s.box.rows - 1) / rows) << spec.name;
      EXPECT_EQ(s.box.row / rows, t.At(static_cast<int32_t>(r)).ep) << spec.name;
      ++slices;
    }
  }
  EXPECT_GT(slices, 20);
}

TEST(Faults, B31_PackedCheckpointsOfTrainersWithOneModuleAnExpert) {
  for (const char* architecture : {kQwenVlMoe, "Qwen3_5MoeForCausalLM", "GptOssForCausalLM"}) {
    ToyModel m = ToyOf(architecture);
    m.sequential = true;
    ExpectRightPlan(m, WithExpertRanks(World(2, 2), 2, 1));
  }
}

// As many experts as expert ranks, and sizes that are that number too.
TEST(Faults, B37_ASizeThatIsTheNumberOfExpertRanksMeansNothing) {
  for (const ToyExperts layout : {ToyExperts::kInOut, ToyExperts::kOutIn, ToyExperts::kByName}) {
    ToyModel m = ToyOf(kQwenVlMoe);
    m.layout = layout;
    m.hidden = m.heads = m.kv_heads = m.experts = m.expert_ffn = m.ffn = 4;
    ExpectRightPlan(m, WithExpertRanks(World(2, 4), 4, 1));
  }
}

TEST(Faults, B39_OneParameterOfAllExpertsIsRefused) {
  const ToyModel m = ToyOf("Qwen3_5MoeForCausalLM");
  const std::string complaint = Complaint(m, World(2, 1), 0, [&](ToyTensors& shard) {
    for (int e = 0; e < 4; ++e) {
      shard.erase("vp0/decoder.layers.0.mlp.experts.linear_fc1.weight" + std::to_string(e));
    }
    shard["vp0/decoder.layers.0.mlp.experts.linear_fc1.weight"] =
        ToyTensor{.dims = {4, 2 * m.expert_ffn, m.hidden}};
  });
  EXPECT_THAT(complaint, HasSubstr("unknown: vp0/decoder.layers.0.mlp.experts.linear_fc1.weight;"));
}

TEST(Faults, B19_EveryRouterHasItsBias) {
  for (const ToyModel& toy : ToyFamilies()) {
    if (!toy.router_bias) continue;
    ToyModel m = toy;
    m.layers = 4;
    const CompiledPlan compiled = Compiled(m, World(4, 1, 2));
    int64_t biases = 0;
    for (const std::string& name : NamesOf(*compiled.plan)) {
      biases += name.ends_with("e_score_correction_bias") ? 1 : 0;
    }
    EXPECT_EQ(biases, m.layers - m.dense_layers + m.mtp_layers) << m.architecture;
  }
}

TEST(Faults, B20_D1_ARoutersBiasIsThereAndHasAllItsBits) {
  ToyModel m = ToyOf("DeepseekV3ForCausalLM");
  m.bf16 = true;
  ExpectRightPlan(m, World(2, 2));
  const std::string key = "vp0/decoder.layers.1.mlp.router.expert_bias";
  EXPECT_THAT(Complaint(m, World(2, 1), 0, [&](ToyTensors& s) { s.at(key).dtype = DType::kBf16; }),
              HasSubstr(key + " is BF16 [4], expected F32 [4]"));
  EXPECT_THAT(Complaint(m, World(2, 1), 0, [&](ToyTensors& s) { s.erase(key); }),
              HasSubstr("missing: " + key));
}

// ---- vision ----

TEST(Faults, B21_LayersWithoutGateArePlainlyCut) {
  const ToyModel m = ToyOf(kQwenVl);
  const CompiledPlan compiled = Compiled(m, World(2, 2));
  for (const auto& [name, rows] :
       {std::pair<std::string, int64_t>{"model.visual.blocks.0.mlp.linear_fc1.", m.vision_ffn},
        {"model.visual.merger.linear_fc1.", 4 * m.vision_hidden},
        {"model.visual.deepstack_merger_list.1.linear_fc1.", 4 * m.vision_hidden}}) {
    for (int64_t r = 0; r < rows; ++r) {
      for (const char* kind : {"weight", "bias"}) {
        const Source at = SourceOf(*compiled.plan, name + kind, r, 0);
        EXPECT_EQ(std::pair(at.rank, at.row),
                  std::pair(static_cast<int32_t>(r / (rows / 2)), r % (rows / 2)));
      }
    }
  }
}

TEST(Faults, B41_StagesOfAVlModelHaveTheirGlobalLayers) {
  const ToyModel m = Fitted(ToyOf(kQwenVl), World(4, 1));
  const CompiledPlan compiled = Compiled(m, World(4, 1, 2));
  const std::string key = "vp0/language_model.decoder.layers.1.mlp.linear_fc2.weight";
  EXPECT_THAT(FilledBy(*compiled.plan, 0, key),
              ElementsAre("model.language_model.layers.1.mlp.down_proj.weight"));
  EXPECT_THAT(FilledBy(*compiled.plan, 1, key),
              ElementsAre("model.language_model.layers.3.mlp.down_proj.weight"));
  for (const layout::Param& p :
       compiled.plan->ranks[1].params) {  // the tower is not cut into stages
    EXPECT_THAT(p.key, Not(HasSubstr("vision_model")));
  }
}

TEST(Faults, B32_UnevenStagesBeginWhereTheTrainerSays) {
  ToyModel m = ToyOf("Qwen3ForCausalLM");
  m.layers = 48;
  Topology t = World(48, 1, 4);
  t.layers_in_first_stage = 10;
  t.layers_in_last_stage = 14;
  const CompiledPlan compiled = Compiled(m, t);
  const int firsts[] = {0, 10, 22, 34};
  for (int32_t stage = 0; stage < 4; ++stage) {
    EXPECT_THAT(
        FilledBy(*compiled.plan, stage, "vp0/decoder.layers.0.mlp.linear_fc2.weight"),
        ElementsAre("model.layers." + std::to_string(firsts[stage]) + ".mlp.down_proj.weight"));
  }
}

// ---- further tokens ----

TEST(Faults, B16_ModulesThatPredictFurtherTokensAreExportedOrRefused) {
  for (const ToyModel& toy : ToyFamilies()) {
    if (toy.mtp_layers == 0) continue;
    for (const char* inner : {"mtp_model_layer", "transformer_layer"}) {
      ToyModel m = toy;
      m.mtp_inner = inner;
      ExpectRightPlan(m, World(2, 2, 2));
    }
    // A trainer that holds them and does not say so.
    ToyModel silent = toy;
    silent.mtp_layers = 0;
    const CompiledPlan compiled = Compiled(silent, World(2, 1));
    const auto checked = CheckShardKeys(compiled.plan->ranks[0],
                                        SpecsOf(ShardTensors(toy, World(2, 1), 0)), RankId{0});
    ASSERT_FALSE(checked.ok());
    EXPECT_THAT(checked.error().message, HasSubstr("mtp.layers.0.eh_proj.weight"));
  }
}

TEST(Faults, B17_ExpertsOfFurtherTokensAreAsTheReferenceHasThem) {
  const ToyModel packed = ToyOf("Qwen3_5MoeForCausalLM");
  ToyModel by_name = packed;
  by_name.layout = ToyExperts::kByName;
  // The decoder's packed and the further tokens' by name, as checkpoints are that were published.
  ToyTensors mixed = CanonicalTensors(packed);
  std::erase_if(mixed, [](const auto& t) { return t.first.starts_with("mtp."); });
  for (const auto& [name, tensor] : CanonicalTensors(by_name)) {
    if (name.starts_with("mtp.")) mixed.emplace(name, tensor);
  }
  for (const auto& reference :
       {CanonicalTensors(packed), CanonicalTensors(by_name), std::move(mixed)}) {
    const Topology t = WithExpertRanks(World(2, 2), 2, 1);
    const CompiledPlan compiled = Compiled(packed, t, {.reference = InventoryOf(reference)});
    EXPECT_EQ(*compiled.plan->inventory, *InventoryOf(reference));
  }
}

TEST(Faults, B18_AnotherPrefixOfFurtherTokensIsRefused) {
  const ToyModel m = ToyOf("Qwen3_5ForConditionalGeneration");
  EXPECT_THAT(Complaint(m, World(2, 1), 0,
                        [](ToyTensors& shard) { Rename(shard, "language_model.mtp.", "mtp."); }),
              AllOf(HasSubstr("unknown: vp0/mtp.layers.0.eh_proj.weight"),
                    HasSubstr("missing: vp0/language_model.mtp.layers.0.eh_proj.weight")));
}

TEST(Faults, B22_OnlyMiMosProjectionChangesItsHalves) {
  for (const ToyModel& m : ToyFamilies()) {
    if (m.mtp_layers == 0) continue;
    const std::string name = m.mtp == ToyMtp::kTop ? "mtp.fc.weight"
                             : m.mtp == ToyMtp::kAfterLayers
                                 ? "model.layers.2.eh_proj.weight"
                                 : "model.mtp_layers.0.input_proj.weight";
    const CompiledPlan compiled = Compiled(m, World(2, 2));
    const bool swapped = m.architecture == "MiMoForCausalLM";
    for (const int64_t col : {int64_t{0}, m.hidden - 1, m.hidden, 2 * m.hidden - 1}) {
      const int64_t expected = swapped ? (col + m.hidden) % (2 * m.hidden) : col;
      EXPECT_EQ(SourceOf(*compiled.plan, name, 3, col).col, expected) << m.architecture;
    }
  }
}

TEST(Faults, B33_AModelWithoutThemHasNone) {
  for (const ToyModel& toy : ToyFamilies()) {
    if (toy.mtp_layers == 0) continue;
    ToyModel m = toy;
    m.mtp_layers = 0;
    const std::string without = TopologyJson(m, World(2, 1));
    for (const char* value : {"", "\"mtp_num_layers\": null, ", "\"mtp_num_layers\": 0, "}) {
      std::string text = without;
      text.insert(text.find("\"num_layers\""), value);
      const auto trainer = MegatronConfig::Parse(text);
      ASSERT_TRUE(trainer.ok()) << trainer.error().message;
      const auto compiled = CompilePlan(ModelOf(m), *trainer, {});
      ASSERT_TRUE(compiled.ok()) << Message(compiled);
      EXPECT_THAT(NamesOf(*compiled->plan), Not(Contains(HasSubstr("mtp"))));
    }
  }
}

TEST(Faults, B35_CopiesInAModuleAreCarriedOrNamed) {
  const ToyModel m = ToyOf("Glm4MoeForCausalLM");
  ToyTensors listed = CanonicalTensors(m);
  const std::string copies[] = {"model.layers.2.embed_tokens.weight",
                                "model.layers.2.shared_head.head.weight"};
  const Topology t = World(2, 2);
  EXPECT_EQ(Message(Compile(m, t, {.reference = InventoryOf(listed)})), "");
  listed[copies[0]] = listed.at("model.embed_tokens.weight");
  listed[copies[1]] = listed.at("lm_head.weight");
  EXPECT_THAT(Message(Compile(m, t, {.reference = InventoryOf(listed)})),
              AllOf(HasSubstr(copies[0]), HasSubstr(copies[1])));
  EXPECT_THAT(
      Compiled(m, t, {.reference = InventoryOf(listed), .carry = {copies[0], copies[1]}}).carried,
      ElementsAre(copies[0], copies[1]));
}

TEST(Faults, P2_TheEmbeddingWhereFurtherTokensArePredictedIsAReplica) {
  for (const ToyModel& m : ToyFamilies()) {
    if (m.mtp_layers == 0) continue;
    const Topology t = World(2, 2, 2);
    const CompiledPlan compiled = Compiled(m, t);
    const std::string key = "vp0/" + m.megatron_prefix() + "embedding.word_embeddings.weight";
    ASSERT_NE(FindParam(*compiled.plan, 3, key), nullptr);
    EXPECT_THAT(FilledBy(*compiled.plan, 3, key), IsEmpty());
    const auto is_pair = [&](const ReplicaSet& set) {
      const auto& params = compiled.plan->ranks[1].params;
      return set.places.size() == 2 && set.places[0].rank == 1 && set.places[1].rank == 3 &&
             params[static_cast<size_t>(set.places[0].param)].key == key;
    };
    EXPECT_TRUE(std::ranges::any_of(compiled.replicas, is_pair)) << m.architecture;
  }
}

// ---- values ----

TEST(Faults, D4_NansKeepTheirBits) {
  const ToyModel m = ToyOf("LlamaForCausalLM");
  const Topology t = World(2, 2);
  const ToyTensors hf = CanonicalTensors(m);
  const uint32_t kinds[] = {0x7f800001, 0xffc12345, 0x7fffffff, 0x80000000};  // and a negative zero
  ToyTensors odd = hf;
  for (auto& [name, tensor] : odd) {
    for (uint32_t& bits : tensor.bits) bits = kinds[bits % 4];
  }
  ToyShards shards;
  for (int32_t r = 0; r < t.world; ++r) {
    shards.push_back(std::make_shared<const ToyTensors>(ShardTensors(m, t, r, odd)));
  }
  const CompiledPlan compiled = Compiled(m, t);
  EXPECT_EQ(Gather(*compiled.plan, shards), BytesOf(odd));
}

}  // namespace
}  // namespace weightcast::bridge
