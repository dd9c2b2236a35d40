#include "bridge/compile_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/text.h"
#include "bridge/families/families.h"
#include "bridge/raw/raw.h"
#include "bridge/shard_keys.h"
#include "bridge/toy_worlds_testing.h"
#include "layout/gather.h"

namespace weightcast::bridge {
namespace {

using layout::Topology;
using tensor::DType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const ToyModel kToys[] = {
    {.architecture = "LlamaForCausalLM"},
    {.architecture = "Qwen2ForCausalLM", .qkv_bias = true},
    {.architecture = "Qwen3ForCausalLM", .qk_norm = true},
};

void ExpectSameByRaw(const CompiledPlan& compiled, const HfConfig& model,
                     const MegatronConfig& trainer) {
  const auto raw = CompileRaw(model, trainer, {});
  ASSERT_TRUE(raw.ok()) << Message(raw);
  EXPECT_EQ(compiled.hash, raw->hash);
}

// The toy trainer asks the topology for its layers alone, so that any layout can be put into it.
TEST(Worlds, CustomLayoutsGatherTheModel) {
  struct Case {
    const char* layout;
    int32_t layers, pp, vpp;
  };
  const Case cases[] = {{"Ett|t*3|tL", 6, 3, 1}, {"E|tt||tL", 3, 4, 1}, {"Ett|t||tttL", 6, 2, 2}};
  for (const bool tied : {false, true}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.layout);
      ToyModel m = kToys[2];
      m.tied = tied;
      m.layers = c.layers;
      MegatronConfig trainer = TrainerOf(m, World(c.layers, 1));
      trainer.topology = World(c.layers, 2, c.pp, c.vpp, 2);
      trainer.topology.layout = layout::ParsePipelineLayout(c.layout).value();
      const auto compiled = CompilePlan(ModelOf(m), trainer, {});
      ASSERT_TRUE(compiled.ok()) << Message(compiled);
      ExpectRight(m, trainer.topology, *compiled);
      ExpectSameByRaw(*compiled, ModelOf(m), trainer);
    }
  }
}

// A small model that predicts further tokens, and a trainer of its with a custom layout.
constexpr const char* kMiMoConfig =
    R"({"architectures": ["MiMoForCausalLM"], "hidden_size": 4, "intermediate_size": 8,
    "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2,
    "vocab_size": 6, "tie_word_embeddings": TIED})";
// By both ways, to one plan.
Result<CompiledPlan> CompilePredicting(const std::string& layout, int32_t pp, bool tied) {
  std::string config = kMiMoConfig;
  config.replace(config.find("TIED"), 4, tied ? "true" : "false");
  const HfConfig model = HfConfig::Parse(config).value();
  const MegatronConfig trainer =
      MegatronConfig::Parse("{\"world\": " + std::to_string(pp) +
                            ", \"config\": {\"num_layers\": 3, \"mtp_num_layers\": 1, "
                            "\"pipeline_model_parallel_size\": " +
                            std::to_string(pp) + ", \"pipeline_model_parallel_layout\": \"" +
                            layout + "\"}}")
          .value();
  Result<CompiledPlan> compiled = CompilePlan(model, trainer, {});
  if (compiled.ok()) ExpectSameByRaw(*compiled, model, trainer);
  return compiled;
}
// Keys of a rank that are not of its decoder layers.
std::vector<std::string> OtherKeys(const CompiledPlan& compiled, size_t rank) {
  std::vector<std::string> keys;
  for (const layout::Param& param : compiled.plan->ranks[rank].params) {
    if (!MatchesGlob("*.layers.*", param.key)) keys.push_back(param.key);
  }
  return keys;
}
int64_t PredictingKeys(const CompiledPlan& compiled, size_t rank) {
  return std::ranges::count_if(compiled.plan->ranks[rank].params, [](const layout::Param& p) {
    return MatchesGlob("vp*/mtp.layers.0.*", p.key);
  });
}

TEST(Prediction, AStageOfItsOwnEmbedsAndLeavesNormAndOutputWhereTheyAre) {
  const auto compiled = CompilePredicting("Et|tt|m|L", 4, /*tied=*/false);
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  EXPECT_THAT(OtherKeys(*compiled, 0), ElementsAre("vp0/embedding.word_embeddings.weight"));
  EXPECT_THAT(OtherKeys(*compiled, 1), ElementsAre("vp0/decoder.final_layernorm.weight"));
  EXPECT_THAT(OtherKeys(*compiled, 2), ElementsAre("vp0/embedding.word_embeddings.weight"));
  EXPECT_THAT(OtherKeys(*compiled, 3), ElementsAre("vp0/output_layer.weight"));
  EXPECT_GT(PredictingKeys(*compiled, 2), 0);
  EXPECT_EQ(PredictingKeys(*compiled, 3), 0);
  ASSERT_EQ(compiled->replicas.size(), 1u);  // the embedding
  EXPECT_EQ(compiled->replicas[0].places.size(), 2u);
}

TEST(Prediction, TheFirstStagesLastChunkEmbedsToo) {
  const auto compiled = CompilePredicting("Et|tt|m|L", 2, /*tied=*/false);
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  EXPECT_THAT(OtherKeys(*compiled, 0), ElementsAre("vp0/embedding.word_embeddings.weight",
                                                   "vp1/embedding.word_embeddings.weight"));
  EXPECT_THAT(OtherKeys(*compiled, 1),
              ElementsAre("vp0/decoder.final_layernorm.weight", "vp1/output_layer.weight"));
}

// Megatron allocates the output layer there, and uses the embedding beside it in its place.
TEST(Prediction, ATiedOutputLayerBesideItIsThereAndNotCompared) {
  for (const bool together : {true, false}) {
    const auto compiled = CompilePredicting(together ? "Ett|tmL" : "Ettt||m|L", 2, /*tied=*/true);
    ASSERT_TRUE(compiled.ok()) << Message(compiled);
    const std::vector<std::string> keys = OtherKeys(*compiled, 1);
    const std::string output = together ? "vp0/output_layer.weight" : "vp1/output_layer.weight";
    EXPECT_EQ(std::ranges::count(keys, output), 1);
    ASSERT_EQ(compiled->replicas.size(), 1u);
    for (const layout::Place& p : compiled->replicas[0].places) {
      const std::string& key = compiled->plan->ranks[static_cast<size_t>(p.rank)]
                                   .params[static_cast<size_t>(p.param)]
                                   .key;
      EXPECT_TRUE(!together || key != output) << key;
    }
    EXPECT_EQ(compiled->replicas[0].places.size(), together ? 2u : 3u);
  }
}

TEST(Prediction, BothSpellingsOfEitherPartArePlanned) {
  const auto model = HfConfig::Parse(R"({"architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {"hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2, "vocab_size": 6,
    "layer_types": ["full_attention"]},
    "vision_config": {"depth": 1, "hidden_size": 4, "intermediate_size": 8, "num_heads": 2,
    "in_channels": 3, "temporal_patch_size": 2, "patch_size": 2, "num_position_embeddings": 4,
    "out_hidden_size": 4, "spatial_merge_size": 2}})");
  ASSERT_TRUE(model.ok()) << model.error().message;
  auto trainer = MegatronConfig::Parse(R"({"world": 1, "config": {"num_layers": 1,
    "mtp_num_layers": 1, "layernorm_zero_centered_gamma": true, "attention_output_gate": true}})");
  for (const char* inner : kMtpInners) {
    for (const char* parent : {"language_model.", ""}) {
      const std::string module = std::string("vp0/") + parent + "mtp.layers.0.";
      trainer->spelling = {};
      trainer->spelling.Learn({{module + inner + ".mlp.linear_fc2.weight", {}, {}}});
      const auto compiled = CompilePlan(*model, *trainer, {});
      ASSERT_TRUE(compiled.ok()) << Message(compiled);
      ExpectSameByRaw(*compiled, *model, *trainer);
      const std::vector<layout::Param>& params = compiled->plan->ranks[0].params;
      for (const std::string& key :
           {module + "enorm.weight", module + inner + ".mlp.linear_fc1.weight"}) {
        EXPECT_EQ(std::ranges::count(params, key, &layout::Param::key), 1) << key;
      }
    }
  }
}

TEST(Vocabulary, TheCopyWhereFurtherTokensArePredictedTellsToo) {
  const auto trainer = MegatronConfig::Parse(
      R"({"world": 2, "config": {"num_layers": 3, "mtp_num_layers": 1,
      "pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et|tt|m|L"}})");
  EXPECT_EQ(VocabRowsOf(kMiMo, *trainer,
                        {{"vp1/embedding.word_embeddings.weight", DType::kBf16, {8, 4}}}),
            8);
}

TEST(Owners, ReplicasOfALargeModelShareItsBytesEvenly) {
  ToyModel m = kToys[2];  // Qwen3-0.6B's sizes, tied
  m.tied = true;
  m.layers = 28;
  m.hidden = 1024, m.ffn = 3072, m.heads = 16, m.kv_heads = 8, m.head_dim = 128;
  m.vocab = 151936, m.padded_vocab = 152064;
  for (const Topology& t :
       {World(28, 2, 1, 1, 4), World(28, 1, 1, 1, 8), World(28, 2, 1, 1, 2, 3)}) {
    const auto compiled = Compile(m, t);
    ASSERT_TRUE(compiled.ok()) << Message(compiled);
    std::vector<int64_t> loads;
    for (const layout::RankPlan& rank : compiled->plan->ranks) {
      int64_t units = 0;
      for (const layout::Slice& s : rank.slices) units += s.box.units();
      loads.push_back(units);
    }
    const auto [low, high] = std::ranges::minmax(loads);
    EXPECT_LE(static_cast<double>(high), 1.03 * static_cast<double>(low)) << low << " " << high;
  }
}

TEST(Owners, ANormHasOneOwnerAmongAllItsReplicas) {
  const auto compiled = Compile(kToys[0], World(2, 2, 1, 1, 2));
  const int64_t norm = compiled->plan->inventory->Find("model.norm.weight");
  int owners = 0;
  for (const layout::RankPlan& rank : compiled->plan->ranks) {
    for (const layout::Slice& s : rank.slices) owners += s.tensor == norm ? 1 : 0;
  }
  EXPECT_EQ(owners, 1);
  EXPECT_TRUE(std::ranges::any_of(compiled->replicas, [](const ReplicaSet& set) {
    return set.places.size() == 4 && set.bytes == 6 * 4;
  }));
}

// G1: every rank holds [gate_t | up_t]; splitting the plain concatenation in two would be wrong.
TEST(FieldReports, G1GateAndUpAreTakenApartRankByRank) {
  ToyModel m = kToys[0];
  m.layers = 1;
  const Topology t = World(1, 4);
  const auto compiled = Compile(m, t);
  const auto canonical = Gather(*compiled->plan, AllShards(m, t));
  const ToyTensors hf = CanonicalTensors(m);
  for (const char* name :
       {"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"}) {
    EXPECT_EQ(canonical.at(name), BytesOf(hf.at(name)));
  }
}

// G4: tokenizer 9, config 12, trainer 16 rows: 12 are exported, the padding (NaN) never leaves.
TEST(FieldReports, G4ExactlyTheConfigsVocabularyLeaves) {
  ToyModel m = kToys[0];
  m.vocab = 12;
  m.padded_vocab = 16;
  for (const int32_t tp : {1, 2, 4}) {
    const Topology t = World(m.layers, tp);
    const auto compiled = Compile(m, t);
    ASSERT_TRUE(compiled.ok()) << Message(compiled);
    for (const auto& [name, bytes] : Gather(*compiled->plan, AllShards(m, t))) {
      for (size_t i = 0; i < bytes.size(); i += 4)
        ASSERT_NE(LoadLe<uint32_t>(&bytes[i]), kPadding) << name;
    }
    const int64_t embed = compiled->plan->inventory->Find("model.embed_tokens.weight");
    EXPECT_EQ((*compiled->plan->inventory)[static_cast<size_t>(embed)].shape[0], 12);
  }
  m.vocab = 17;  // more than the trainer holds
  EXPECT_THAT(Message(Compile(m, World(m.layers, 2))),
              HasSubstr("padded to 16 rows, fewer than the model's 17"));
}

TEST(Vocabulary, TheShardsRowsTellThePadding) {
  ToyModel m = kToys[0];
  const Topology t = World(m.layers, 2);
  MegatronConfig trainer = TrainerOf(m, t);
  trainer.padded_vocab = 0;  // a trainer that does not say
  std::vector<tensor::TensorSpec> shard;
  EXPECT_EQ(VocabRowsOf(kLlama, trainer, shard), 0);
  shard.push_back({"vp0/embedding.word_embeddings.weight", DType::kF32, {6, 6}});
  EXPECT_EQ(VocabRowsOf(kLlama, trainer, shard), 12);
  EXPECT_EQ(VocabRowsOf(kLlama, trainer, {{"vp0/output_layer.weight", DType::kF32, {7, 6}}}), 14);
  const auto compiled = CompilePlan(ModelOf(m), trainer, {.vocab_rows = 12});
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  ExpectRight(m, t, *compiled);
  m.vocab = 11;  // 11 rows on 2 ranks: nobody said how they are padded
  EXPECT_THAT(Message(CompilePlan(ModelOf(m), trainer, {})),
              HasSubstr("11 rows are not divisible"));
}

std::shared_ptr<const tensor::Inventory> Reference(const ToyModel& m,
                                                   std::vector<tensor::TensorSpec> more = {},
                                                   const std::string& less = "") {
  for (const auto& [name, tensor] : CanonicalTensors(m)) {
    if (name != less) more.push_back({name, DType::kF32, tensor.shape()});
  }
  return std::make_shared<const tensor::Inventory>(
      tensor::Inventory::Make(std::move(more)).value());
}

// N1: what is produced must be exactly what the target expects, or the plan is refused with the
// names.
TEST(FieldReports, N1TheProducedNamesAreTheReferences) {
  const ToyModel m = kToys[1];
  const Topology t = World(m.layers, 2);
  EXPECT_TRUE(Compile(m, t, {.reference = Reference(m)}).ok());
  const auto missing = Compile(m, t,
                               {.reference = Reference(m, {{"model.visual.a", DType::kF32, {3}},
                                                           {"model.visual.b", DType::kF32, {3}}})});
  EXPECT_EQ(missing.error().code, Code::kInvalidData);
  EXPECT_THAT(Message(missing), AllOf(HasSubstr("model.visual.a"), HasSubstr("model.visual.b")));
  const auto unknown = Compile(m, t, {.reference = Reference(m, {}, "model.norm.weight")});
  EXPECT_THAT(Message(unknown), HasSubstr("model.norm.weight"));
  const auto different = Compile(
      m, t,
      {.reference = Reference(m, {{"model.norm.weight", DType::kBf16, {6}}}, "model.norm.weight")});
  EXPECT_THAT(Message(different), AllOf(HasSubstr("model.norm.weight"), HasSubstr("BF16")));
}

// N2: a trainer that spells by another scheme is refused with all names that are unknown.
TEST(FieldReports, N2AnotherSpellingIsRefusedWithAllUnknownNames) {
  ToyModel local = kToys[0];
  local.local_spec = true;
  local.layers = 1;
  ToyModel te = local;
  te.local_spec = false;
  const Topology t = World(1, 1);
  std::vector<tensor::TensorSpec> shard;
  for (const auto& [key, tensor] : ShardTensors(local, t, 0))
    shard.push_back({key, DType::kF32, tensor.shape()});
  EXPECT_TRUE(CheckShardKeys(Compile(local, t)->plan->ranks[0], shard, RankId{0}).ok());
  const auto refused = CheckShardKeys(Compile(te, t)->plan->ranks[0], shard, RankId{0});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("unknown: vp0/decoder.layers.0.input_layernorm.weight, "
                              "vp0/decoder.layers.0.pre_mlp_layernorm.weight"),
                    HasSubstr("missing: vp0/decoder.layers.0.mlp.linear_fc1.layer_norm_weight, "
                              "vp0/decoder.layers.0.self_attention.linear_qkv.layer_norm_weight")));
}

constexpr std::string_view kNestedArchitectures[] = {"NestedForTest"};
constexpr Rule kNestedEmbedding[] = {
    {.name = "embedding.word_embeddings.weight",
     .cut = Cut::kVocabRows,
     .outputs = {{"embed_tokens.weight", {Dim::kVocab, Dim::kHidden}}}},
};
constexpr Rule kNestedRules[] = {
    {.name = "router.expert_bias", .fp32 = true, .outputs = {{"gate.bias", {Dim::kHidden}}}},
    {.name = "norm.weight",
     .map = layout::ValueMap::kAddOneBf16,
     .outputs = {{"norm.weight", {Dim::kHidden}}}},
    {.name = "wide.weight",
     .map = layout::ValueMap::kWidenToF32,
     .outputs = {{"wide.weight", {Dim::kHidden}}}},
};
constexpr std::span<const Rule> kNestedFirst[] = {kNestedEmbedding};
constexpr std::span<const Rule> kNestedGroups[] = {kNestedRules};
constexpr Stack kNestedStacks[] = {
    {Holder::kFirstStage, "", "model.language_model.", kNestedFirst},
    {Holder::kLayers, "decoder.layers.*.", "model.layers.*.", kNestedGroups},
};
constexpr Family kNested = {
    .name = "nested",
    .architectures = kNestedArchitectures,
    .stacks = kNestedStacks,
    .tied_alias = "lm_head.weight",
    .tied_to = "model.language_model.embed_tokens.weight",
};

ToyModel NestedModel() { return {.architecture = "NestedForTest", .tied = true, .layers = 1}; }

// N3: the tie is a property of config and target, not of one literal name.
TEST(FieldReports, N3ATiedOutputLayerIsAnAliasIfTheReferenceListsItAndOmittedOtherwise) {
  const ToyModel m = NestedModel();
  MegatronConfig trainer = TrainerOf(m, World(1, 2));
  trainer.params_dtype = DType::kBf16;
  const auto plain = CompilePlanFor(kNested, ModelOf(m), trainer, {});
  ASSERT_TRUE(plain.ok()) << Message(plain);
  EXPECT_EQ(plain->plan->inventory->Find("lm_head.weight"), -1);
  EXPECT_THAT(plain->aliases, IsEmpty());

  std::vector<tensor::TensorSpec> specs = plain->plan->inventory->tensors();
  specs.push_back({"lm_head.weight", DType::kBf16, {m.vocab, m.hidden}});
  const auto reference =
      std::make_shared<const tensor::Inventory>(tensor::Inventory::Make(specs).value());
  const auto aliased = CompilePlanFor(kNested, ModelOf(m), trainer, {.reference = reference});
  ASSERT_TRUE(aliased.ok()) << Message(aliased);
  EXPECT_EQ(*aliased->plan->inventory, *reference);
  ASSERT_EQ(aliased->aliases.size(), 1U);
  EXPECT_EQ(aliased->aliases[0].of, "model.language_model.embed_tokens.weight");
  // Both names are filled from the same units of the embedding.
  const auto source_of = [&](const char* name) {
    const auto owner = layout::FindOwner(
        *aliased->plan, static_cast<int32_t>(aliased->plan->inventory->Find(name)), 7, 2);
    return std::tuple(owner->rank, owner->slice->param, owner->unit);
  };
  EXPECT_EQ(source_of("lm_head.weight"), source_of("model.language_model.embed_tokens.weight"));
}

TEST(FieldReports, N3AShippedTiedFamilyGivesTheAliasToo) {
  ToyModel m = kToys[2];
  m.tied = true;
  const auto reference = Reference(m, {{"lm_head.weight", DType::kF32, {m.vocab, m.hidden}}});
  for (const int32_t pp : {1, 2}) {
    const Topology t = World(m.layers, 2, pp);
    const auto compiled = Compile(m, t, {.reference = reference});
    ASSERT_TRUE(compiled.ok()) << Message(compiled);
    const auto canonical = Gather(*compiled->plan, AllShards(m, t));
    EXPECT_EQ(canonical.at("lm_head.weight"), canonical.at("model.embed_tokens.weight"));
  }
}

// D1: fp32 stays fp32 beside bf16; a bf16 shard of it is refused.
TEST(FieldReports, D1AnFp32BufferKeepsItsDtypeBesideBf16Weights) {
  const ToyModel m = NestedModel();
  MegatronConfig trainer = TrainerOf(m, World(1, 1));
  trainer.params_dtype = DType::kBf16;
  const auto compiled = CompilePlanFor(kNested, ModelOf(m), trainer, {});
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  const auto dtype_of = [&](const char* name) {
    return (*compiled->plan->inventory)[static_cast<size_t>(compiled->plan->inventory->Find(name))]
        .dtype;
  };
  EXPECT_EQ(dtype_of("model.layers.0.gate.bias"), DType::kF32);
  EXPECT_EQ(dtype_of("model.layers.0.norm.weight"), DType::kBf16);
  EXPECT_EQ(dtype_of("model.layers.0.wide.weight"), DType::kF32);

  std::vector<tensor::TensorSpec> shard;
  for (const layout::Param& p : compiled->plan->ranks[0].params)
    shard.push_back({p.key, p.dtype, p.shape});
  EXPECT_TRUE(CheckShardKeys(compiled->plan->ranks[0], shard, RankId{0}).ok());
  const auto bias = std::ranges::find(shard, "vp0/decoder.layers.0.router.expert_bias",
                                      &tensor::TensorSpec::name);
  ASSERT_NE(bias, shard.end());
  // Steps of 2^-12 near 7 need more than bf16's eight bits.
  std::vector<float> values(6);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 7.0F + static_cast<float>(i) / 4096.0F;
  Bytes bytes(24), out(24);
  std::memcpy(bytes.data(), values.data(), 24);
  const int64_t tensor = compiled->plan->inventory->Find("model.layers.0.gate.bias");
  const auto slice = std::ranges::find(compiled->plan->ranks[0].slices,
                                       static_cast<int32_t>(tensor), &layout::Slice::tensor);
  layout::ScatterSlice((*compiled->plan->inventory)[static_cast<size_t>(tensor)].matrix(), *slice,
                       bytes, out);
  EXPECT_EQ(out, bytes);
  bias->dtype = DType::kBf16;
  EXPECT_THAT(CheckShardKeys(compiled->plan->ranks[0], shard, RankId{0}).error().message,
              HasSubstr("expert_bias is BF16 [6], expected F32 [6]"));
}

// P1: stage-local layer numbers published as global ones: double cover and gaps, never a plan.
TEST(FieldReports, P1StageLocalLayerNumbersAreDoubleAndMissingCoverage) {
  ToyModel m = kToys[0];
  m.layers = 4;
  const auto compiled = Compile(m, World(4, 1, 2));
  layout::Plan wrong = *compiled->plan;
  for (layout::Slice& s : wrong.ranks[1].slices) {
    std::string name = (*wrong.inventory)[static_cast<size_t>(s.tensor)].name;
    for (const auto& [global, local] :
         {std::pair("layers.2.", "layers.0."), {"layers.3.", "layers.1."}}) {
      if (const size_t at = name.find(global); at != std::string::npos) name.replace(at, 9, local);
    }
    s.tensor = static_cast<int32_t>(wrong.inventory->Find(name));
  }
  const Status status = layout::ProveCoverage(wrong);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, AllOf(HasSubstr("doubly covered"), HasSubstr("no owner"),
                                            HasSubstr("rank 0"), HasSubstr("rank 1")));
}

// P2: the tied copy on the last stage is a replica with one declared owner.
TEST(FieldReports, P2TheEmbeddingsCopyOnTheLastStageIsNeverASecondOwner) {
  ToyModel m = kToys[0];
  m.tied = true;
  const auto compiled = Compile(m, World(m.layers, 2, 2));
  const int64_t embed = compiled->plan->inventory->Find("model.embed_tokens.weight");
  for (size_t r = 2; r < 4; ++r) {
    const layout::RankPlan& rank = compiled->plan->ranks[r];
    EXPECT_TRUE(std::ranges::any_of(rank.params, [](const layout::Param& p) {
      return p.key == "vp0/output_layer.weight" && p.shape == tensor::Shape{6, 6};
    }));
    for (const layout::Slice& s : rank.slices) EXPECT_NE(s.tensor, embed);
  }
  // Replica sets: first and last stage, tensor rank by tensor rank, real rows only (6 and 4 of 6).
  std::vector<int64_t> bytes;
  for (const ReplicaSet& set : compiled->replicas) {
    if (set.places.size() == 2 && set.places[1].rank == set.places[0].rank + 2)
      bytes.push_back(set.bytes);
  }
  EXPECT_THAT(bytes, ElementsAre(6 * 6 * 4, 4 * 6 * 4));
}

TEST(Carried, ReferenceTensorsThatTheTrainerLacksAreDeclared) {
  const ToyModel m = kToys[0];
  const Topology t = World(m.layers, 1);
  const auto reference = Reference(m, {{"mtp.a", DType::kBf16, {3}}, {"mtp.b", DType::kF32, {}}});
  const auto compiled = Compile(m, t, {.reference = reference, .carry = {"mtp.*"}});
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  EXPECT_THAT(compiled->carried, ElementsAre("mtp.a", "mtp.b"));
  EXPECT_EQ(compiled->plan->inventory->Find("mtp.a"), -1);

  EXPECT_THAT(Message(Compile(m, t, {.reference = reference, .carry = {"mtp.a"}})),
              HasSubstr("mtp.b"));
  const auto clash = Compile(m, t, {.reference = reference, .carry = {"mtp.*", "model.norm.*"}});
  EXPECT_EQ(clash.error().code, Code::kInvalidArgument);
  EXPECT_THAT(Message(clash), HasSubstr("model.norm.weight"));
  EXPECT_THAT(Message(Compile(m, t, {.reference = reference, .carry = {"mtp.*", "visual.*"}})),
              HasSubstr("visual.*"));
  EXPECT_THAT(Message(Compile(m, t, {.carry = {"mtp.*"}})), HasSubstr("need a seed"));
}

TEST(Refused, WhatHasNoRuleIsNamed) {
  const ToyModel m = kToys[0];
  const Topology t = World(m.layers, 2);
  MegatronConfig trainer = TrainerOf(m, t);
  trainer.settings = {{"num_moe_experts", "8"}, {"attention_output_gate", "true"}};
  EXPECT_THAT(Message(CompilePlan(ModelOf(m), trainer, {})),
              AllOf(HasSubstr("num_moe_experts = 8"), HasSubstr("attention_output_gate")));
  HfConfig model = ModelOf(m);
  model.flags["attention_bias"] = true;
  EXPECT_THAT(Message(CompilePlan(model, TrainerOf(m, t), {})),
              HasSubstr("config.json's attention_bias"));
  model = ModelOf(m);
  model.architectures = {"Grok1ForCausalLM"};
  EXPECT_THAT(Message(CompilePlan(model, TrainerOf(m, t), {})),
              AllOf(HasSubstr("no family for architecture Grok1ForCausalLM"),
                    HasSubstr("LlamaForCausalLM")));
  trainer = TrainerOf(m, t);
  trainer.topology.ep = 2;
  trainer.topology.etp = 1;
  EXPECT_THAT(Message(CompilePlan(ModelOf(m), trainer, {})),
              HasSubstr("expert_model_parallel_size = 2"));
}

TEST(Refused, TwoConfigsOfDifferentModels) {
  const ToyModel m = kToys[0];
  MegatronConfig trainer = TrainerOf(m, World(m.layers, 1));
  trainer.ints["hidden_size"] = 7;
  trainer.ints["num_query_groups"] = 4;
  trainer.tied = true;
  const auto result = CompilePlan(ModelOf(m), trainer, {});
  EXPECT_THAT(Message(result),
              AllOf(HasSubstr("hidden_size/hidden_size: model 6, trainer 7"),
                    HasSubstr("num_key_value_heads/num_query_groups: model 2, trainer 4"),
                    HasSubstr("tie_word_embeddings"), Not(HasSubstr("head_dim"))));
}

TEST(Refused, SizesThatCannotBeCut) {
  ToyModel m = kToys[0];
  m.ffn = 22;
  EXPECT_THAT(Message(Compile(m, World(m.layers, 4))),
              AllOf(HasSubstr("linear_fc1.weight: 22 rows"), HasSubstr("tensor parallel size 4")));
}

TEST(Refused, APlanThatWouldFillTheMemory) {
  ToyModel m = kToys[0];
  m.layers = 1 << 16;
  EXPECT_THAT(Message(Compile(m, World(m.layers, 1, 1, 1, 1 << 19))), HasSubstr("at most 4194304"));
}

// W1: 20,000 names. Measured, not asserted: this machine may be busy.
TEST(Speed, W1TwentyThousandNamesPlanInWellUnderASecond) {
  ToyModel m = kToys[0];
  m.layers = 2222;
  const Topology t = World(m.layers, 2, 2, 1, 2);
  const auto start = std::chrono::steady_clock::now();
  const auto compiled = Compile(m, t);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  EXPECT_GE(compiled->plan->inventory->size(), 20000U);
  RecordProperty("seconds", std::to_string(took.count()));
  std::printf("[ measured ] %zu names on %d ranks: %.3f s\n", compiled->plan->inventory->size(),
              t.world, took.count());
}

}  // namespace
}  // namespace weightcast::bridge
