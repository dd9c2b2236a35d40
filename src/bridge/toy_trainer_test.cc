// The forward trainer against small vectors that were worked out by hand, since all else rests on
// it; and the rules against the forward trainer, in all small worlds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "bridge/families/families.h"
#include "bridge/toy_trainer_testing.h"
#include "bridge/toy_worlds_testing.h"

namespace weightcast::bridge {
namespace {

using layout::Topology;

// The rows of a parameter as the rows of the checkpoint's tensors that are in it: "q0 q1 k0 v0".
std::string RowNames(const ToyTensor& param, const ToyTensors& hf,
                     const std::map<std::string, std::string>& names) {
  std::map<uint32_t, std::string> row_of;  // by a row's first number
  for (const auto& [name, letter] : names) {
    const ToyTensor& t = hf.at(name);
    for (int64_t r = 0; r < t.dims[0]; ++r) {
      row_of[t.Rows(r, 1).bits[0]] = letter + std::to_string(r);
    }
  }
  std::string text;
  for (int64_t r = 0; r < param.dims[0]; ++r) {
    text += (r > 0 ? " " : "") + row_of.at(param.Rows(r, 1).bits[0]);
  }
  return text;
}

std::string LayerRows(const ToyModel& m, int32_t tp, int32_t rank, const std::string& key,
                      const std::map<std::string, std::string>& names) {
  const ToyTensors hf = CanonicalTensors(m);
  const Topology t = World(m.layers, tp);
  std::map<std::string, std::string> full;
  for (const auto& [name, letter] : names) full["model.layers.0." + name] = letter;
  return RowNames(ShardTensors(m, t, rank, hf).at("vp0/decoder.layers.0." + key), hf, full);
}

TEST(ToyTrainer, QueriesKeysAndValuesAreInterleavedByKvHead) {
  ToyModel m{.architecture = "LlamaForCausalLM"};
  m.heads = 4, m.kv_heads = 2, m.head_dim = 1;
  const std::map<std::string, std::string> names = {{"self_attn.q_proj.weight", "q"},
                                                    {"self_attn.k_proj.weight", "k"},
                                                    {"self_attn.v_proj.weight", "v"}};
  const std::string key = "self_attention.linear_qkv.weight";
  EXPECT_EQ(LayerRows(m, 1, 0, key, names), "q0 q1 k0 v0 q2 q3 k1 v1");
  // Four ranks, two KV heads: the rows are cut where they lie.
  EXPECT_EQ(LayerRows(m, 4, 1, key, names), "k0 v0");
  EXPECT_EQ(LayerRows(m, 4, 2, key, names), "q2 q3");
  m.attention = ToyAttention::kGated;  // q and its gate are rows 2h and 2h + 1 of the checkpoint
  EXPECT_EQ(LayerRows(m, 1, 0, key, names), "q0 q2 q1 q3 k0 v0 q4 q6 q5 q7 k1 v1");
}

TEST(ToyTrainer, EveryRankHasItsGateAndUpRows) {
  ToyModel m{.architecture = "LlamaForCausalLM"};
  m.ffn = 4;
  const std::map<std::string, std::string> names = {{"mlp.gate_proj.weight", "g"},
                                                    {"mlp.up_proj.weight", "u"}};
  EXPECT_EQ(LayerRows(m, 2, 0, "mlp.linear_fc1.weight", names), "g0 g1 u0 u1");
  EXPECT_EQ(LayerRows(m, 2, 1, "mlp.linear_fc1.weight", names), "g2 g3 u2 u3");
}

TEST(ToyTrainer, TheDeltaNetsInputIsCutPartByPart) {
  ToyModel m = ToyOf("Qwen3NextForCausalLM");
  m.key_heads = 2, m.value_heads = 4, m.key_dim = m.linear_value_dim = 1;
  // q, k, two v and two z of each key head; then two b and two a of each.
  EXPECT_EQ(
      LayerRows(m, 2, 1, "self_attention.in_proj.weight",
                {{"linear_attn.in_proj_qkvz.weight", "x"}, {"linear_attn.in_proj_ba.weight", "y"}}),
      "x6 x7 x8 x9 x10 x11 y4 y5 y6 y7");
  EXPECT_EQ(
      LayerRows(m, 1, 0, "self_attention.in_proj.weight",
                {{"linear_attn.in_proj_qkvz.weight", "x"}, {"linear_attn.in_proj_ba.weight", "y"}}),
      "x0 x6 x1 x7 x2 x3 x8 x9 x4 x5 x10 x11 y0 y1 y4 y5 y2 y3 y6 y7");
  EXPECT_EQ(
      LayerRows(m, 2, 1, "self_attention.conv1d.weight", {{"linear_attn.conv1d.weight", "c"}}),
      "c1 c3 c6 c7");
}

TEST(ToyTrainer, VisionHeadsAreInterleaved) {
  ToyModel m = ToyOf("Qwen3VLForConditionalGeneration");
  m.vision_heads = m.vision_hidden = 2;
  const ToyTensors hf = CanonicalTensors(m);
  const ToyTensors shard = ShardTensors(m, World(m.layers, 1), 0, hf);
  EXPECT_EQ(RowNames(shard.at("vp0/vision_model.decoder.layers.1.self_attention.linear_qkv.weight"),
                     hf, {{"model.visual.blocks.1.attn.qkv.weight", "x"}}),
            "x0 x2 x4 x1 x3 x5");
}

TEST(ToyTrainer, ExpertsAreNumberedOnTheirRank) {
  const ToyModel m = ToyOf("Qwen3VLMoeForConditionalGeneration");
  Topology t = World(2, 2);
  t.ep = 2, t.etp = 1;
  const ToyTensors hf = CanonicalTensors(m);
  const ToyTensor gate_up = hf.at("model.language_model.layers.0.mlp.experts.gate_up_proj").At(3);
  // Rank 1's second expert is the model's fourth.
  EXPECT_EQ(ShardTensors(m, t, 1, hf)
                .at("vp0/language_model.decoder.layers.0.mlp.experts.linear_fc1.weight1")
                .bits,
            gate_up.Transposed().bits);
}

TEST(ToyTrainer, NoTwoElementsAreEqual) {
  for (const ToyModel& m : ToyFamilies()) {
    std::set<std::pair<ToyValues, uint32_t>> seen;
    size_t elements = 0;
    for (const auto& [name, tensor] : CanonicalTensors(m)) {
      for (const uint32_t bits : tensor.bits) seen.emplace(tensor.values, bits);
      elements += tensor.bits.size();
    }
    EXPECT_EQ(seen.size(), elements) << m.architecture;
  }
}

TEST(ToyTrainer, EveryFamilyHasAToy) {
  std::set<std::string> families;
  for (const ToyModel& m : ToyFamilies()) families.insert(FindFamily(ModelOf(m)).value()->name);
  EXPECT_EQ(families.size(), std::size(kFamilies));
}

// ---- the rules against the trainer ----

class Worlds : public ::testing::TestWithParam<ToyModel> {
 protected:
  // Every (TP, EP, ETP, DP) up to 4, with the given pipeline.
  static std::vector<Topology> Cuts(const ToyModel& m, int32_t layers, int32_t pp, int32_t vpp) {
    const int32_t expert_ranks = m.experts > 0 ? 4 : 1;
    std::vector<Topology> worlds;
    for (int32_t tp = 1; tp <= 4; ++tp) {
      for (int32_t dp = 1; dp <= 4; ++dp) {
        for (int32_t ep = 1; ep <= expert_ranks; ++ep) {
          for (int32_t etp = 1; etp <= expert_ranks; ++etp) {
            Topology t = World(layers, tp, pp, vpp, dp);
            t.ep = ep;
            t.etp = m.experts > 0 ? etp : tp;
            if (t.Check().ok()) worlds.push_back(t);
          }
        }
      }
    }
    return worlds;
  }
};

std::string TestName(const ::testing::TestParamInfo<ToyModel>& toy) {
  return FindFamily(ModelOf(toy.param)).value()->name;
}
INSTANTIATE_TEST_SUITE_P(Families, Worlds, ::testing::ValuesIn(ToyFamilies()), TestName);

// Each element exactly once (ProveCoverage runs in CompilePlan), from the right place, by balanced
// owners. Which ranks of a stage hold what does not depend on the stage, and which layers a stage
// holds not on the ranks: so every cut of a stage meets the pipelines without and with virtual
// chunks, and every pipeline meets each cut in turn.
TEST_P(Worlds, EveryCutOfAStageGathersTheModel) {
  std::set<std::string> hashes;
  size_t worlds = 0;
  for (const Topology& t : Cuts(GetParam(), 2, 1, 1)) {
    const ToyModel m = Fitted(GetParam(), t);
    ASSERT_NO_FATAL_FAILURE(ExpectRightPlan(m, t));
    const PlanHash hash = Compile(m, t)->hash;
    EXPECT_EQ(hash, Compile(m, t)->hash) << "nothing is kept from one to the next";
    hashes.insert(hash.hex());
    ++worlds;
  }
  EXPECT_EQ(hashes.size(), worlds) << "no two worlds share a plan";
}

TEST_P(Worlds, EveryPipelineGathersTheModel) {
  const std::vector<Topology> cuts = Cuts(GetParam(), 1, 1, 1);
  size_t next = 0;
  for (int32_t pp = 2; pp <= 4; ++pp) {
    for (int32_t vpp = 1; vpp <= 4; ++vpp) {
      for (int32_t tp = 1; tp <= 4; ++tp) {
        do {
          next = (next + 1) % cuts.size();
        } while (cuts[next].tp != tp);
        Topology t = cuts[next];
        t.pp = pp;
        t.vpp = vpp;
        t.world *= pp;
        t.num_layers = pp * vpp;
        ASSERT_NO_FATAL_FAILURE(ExpectRightPlan(Fitted(GetParam(), t), t));
      }
    }
  }
}

// The whole product: 15,000 worlds, half a minute of one CPU, so only when asked for (make
// deep-worlds).
class AllWorlds : public Worlds {};
INSTANTIATE_TEST_SUITE_P(Families, AllWorlds,
                         ::testing::ValuesIn(std::getenv("WEIGHTCAST_ALL_WORLDS") != nullptr
                                                 ? ToyFamilies()
                                                 : std::vector<ToyModel>()),
                         TestName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AllWorlds);

TEST_P(AllWorlds, EachGathersTheModel) {
  for (int32_t pp = 2; pp <= 4; ++pp) {
    for (int32_t vpp = 1; vpp <= 4; ++vpp) {
      for (const Topology& t : Cuts(GetParam(), pp * vpp, pp, vpp)) {
        ASSERT_NO_FATAL_FAILURE(ExpectRightPlan(Fitted(GetParam(), t), t));
      }
    }
  }
}

// What a family may be besides: with one weight for embedding and output, the local spec's names,
// experts that are modules, other layouts of experts, another name for the layer in an MTP module
// and the checkpoint's own vision tower.
std::vector<ToyModel> Variants(const ToyModel& toy) {
  std::vector<ToyModel> variants;
  const auto vary = [&](auto change) {
    ToyModel m = toy;
    change(m);
    variants.push_back(std::move(m));
  };
  vary([](ToyModel& m) { m.tied = true; });
  if (toy.attention != ToyAttention::kLatent) {  // Megatron has no local spec for it
    vary([](ToyModel& m) { m.local_spec = true; });
  }
  if (toy.experts > 0) vary([](ToyModel& m) { m.sequential = true; });
  if (toy.layout <= ToyExperts::kInOut && toy.layout != ToyExperts::kSparseMoe && toy.experts > 0) {
    for (const ToyExperts layout : {ToyExperts::kByName, ToyExperts::kOutIn, ToyExperts::kInOut}) {
      vary([&](ToyModel& m) {
        m.layout = layout;
        m.sequential = true;
      });
      vary([&](ToyModel& m) { m.layout = layout; });
    }
  }
  if (toy.mtp_layers > 0) {
    vary([](ToyModel& m) { m.mtp_layers = 0; });
    vary([](ToyModel& m) { m.mtp_inner = "transformer_layer"; });
    if (toy.mtp != ToyMtp::kTop) vary([](ToyModel& m) { m.mtp_layers = 2; });
  }
  if (toy.vision) {
    vary([](ToyModel& m) { m.tower = "vision_model"; });
    vary([](ToyModel& m) { m.tower = "model.visual"; });
  }
  if (toy.attention == ToyAttention::kLatent) vary([](ToyModel& m) { m.query_rank = 0; });
  if (toy.architecture == "Qwen3ForCausalLM" || toy.architecture == "Glm4MoeForCausalLM") {
    vary([](ToyModel& m) { m.qkv_bias = !m.qkv_bias; });
  }
  if (toy.architecture == "Glm4MoeForCausalLM") vary([](ToyModel& m) { m.qk_norm = false; });
  return variants;
}

TEST_P(Worlds, EveryVariantGathersTheModel) {
  Topology stages = World(4, 2, 2, 1, 2);
  Topology chunks = World(4, 4, 2, 2);
  if (GetParam().experts > 0) {
    stages.ep = stages.etp = 2;
    chunks.ep = 4, chunks.etp = 1;
  }
  for (const ToyModel& variant : Variants(GetParam())) {
    for (const Topology& t : {World(2, 1), stages, chunks}) {
      ASSERT_NO_FATAL_FAILURE(ExpectRightPlan(Fitted(variant, t), t));
    }
  }
}

// P4: whatever the layout, the same tensors with the same bytes. Each world fits one model here.
TEST_P(Worlds, TheLayoutLeavesNoTrace) {
  const ToyModel m = Fitted(GetParam(), World(4, 1));
  const auto one = Compile(m, World(4, 1));
  ASSERT_TRUE(one.ok()) << Message(one);
  for (Topology t : {World(4, 4), World(4, 1, 4), World(4, 2, 2, 2, 2, 2)}) {
    if (m.experts > 0) t.ep = t.tp, t.etp = 1;
    const auto other = Compile(m, t);
    ASSERT_TRUE(other.ok()) << Message(other);
    EXPECT_EQ(one->plan->inventory->signature(), other->plan->inventory->signature());
    EXPECT_EQ(Gather(*one->plan, AllShards(m, World(4, 1))), Gather(*other->plan, AllShards(m, t)));
  }
}

TEST_P(Worlds, UnevenStagesGatherTheModel) {
  Topology t = World(7, 2, 3, 1, 2, 2);
  t.layers_in_first_stage = 1;
  t.layers_in_last_stage = 2;
  ExpectRightPlan(Fitted(GetParam(), t), t);
}

}  // namespace
}  // namespace weightcast::bridge
