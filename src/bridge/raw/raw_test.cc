// Two ways to a plan that share no rule: where both are right they agree to the bit.
#include "bridge/raw/raw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <set>

#include "base/json.h"
#include "bridge/compile_plan.h"
#include "bridge/families/families.h"
#include "bridge/families/vision.h"
#include "bridge/shard_dir.h"
#include "os/temp_dir.h"

namespace weightcast::bridge {
namespace {

namespace stdfs = std::filesystem;
using layout::Topology;
using tensor::DType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Message(const Result<CompiledPlan>& result) {
  return result.ok() ? "" : result.error().message;
}

std::string Text(const layout::Plan& plan, const layout::RankPlan& rank, const layout::Slice& s) {
  return (*plan.inventory)[static_cast<size_t>(s.tensor)].name + " " + tensor::BoxText(s.box) +
         " of " + rank.params[static_cast<size_t>(s.param)].key + " at " +
         std::to_string(s.source) + " by " + std::to_string(s.row_stride) + ", " +
         std::to_string(s.col_stride);
}

// Where two plans of one model part; empty if nowhere.
std::string Difference(const layout::Plan& a, const layout::Plan& b) {
  const std::string tensors = tensor::DifferenceText(*a.inventory, *b.inventory);
  if (!tensors.empty()) return tensors;
  for (size_t r = 0; r < std::min(a.ranks.size(), b.ranks.size()); ++r) {
    const std::string rank = "rank " + std::to_string(r) + ": ";
    const auto [mine, theirs] = std::ranges::mismatch(a.ranks[r].params, b.ranks[r].params);
    if (mine != a.ranks[r].params.end() || theirs != b.ranks[r].params.end()) {
      return rank + "parameter " + (mine == a.ranks[r].params.end() ? "none" : mine->key) + " or " +
             (theirs == b.ranks[r].params.end() ? "none" : theirs->key);
    }
    const auto [x, y] = std::ranges::mismatch(a.ranks[r].slices, b.ranks[r].slices);
    if (x != a.ranks[r].slices.end() || y != b.ranks[r].slices.end()) {
      return rank + (x == a.ranks[r].slices.end() ? "none" : Text(a, a.ranks[r], *x)) + "\nor " +
             (y == b.ranks[r].slices.end() ? "none" : Text(b, b.ranks[r], *y));
    }
  }
  return "";
}

// Sets of replicas and their places, in an order of their own.
std::set<std::vector<int64_t>> SetsOf(const CompiledPlan& compiled) {
  std::set<std::vector<int64_t>> sets;
  for (const ReplicaSet& set : compiled.replicas) {
    std::vector<std::pair<int32_t, int32_t>> places;
    for (const layout::Place& p : set.places) places.emplace_back(p.rank, p.param);
    std::ranges::sort(places);
    std::vector<int64_t> flat = {set.bytes};
    for (const auto& [rank, param] : places) flat.insert(flat.end(), {rank, param});
    sets.insert(flat);
  }
  return sets;
}

void ExpectSame(const CompiledPlan& bridge, const CompiledPlan& raw) {
  ASSERT_EQ(bridge.hash.hex(), raw.hash.hex()) << Difference(*bridge.plan, *raw.plan);
  EXPECT_EQ(bridge.carried, raw.carried);
  EXPECT_EQ(bridge.aliases.size(), raw.aliases.size());
  EXPECT_EQ(SetsOf(bridge), SetsOf(raw));
}

// ---- recorded shards ----

os::Fs& fs() { return os::RealWorld().fs; }

// Every <root>/<model>/<set> that has shards; nothing where there is no such directory.
std::vector<std::string> SetsUnder(const stdfs::path& root) {
  std::vector<std::string> sets;
  if (!stdfs::exists(root)) return sets;
  for (const auto& entry : stdfs::recursive_directory_iterator(root)) {
    if (entry.path().filename() == "topology.json") {
      sets.push_back(entry.path().parent_path().string());
    }
  }
  std::ranges::sort(sets);
  return sets;
}

std::vector<std::string> RecordedSets() {
  const char* env = std::getenv("WEIGHTCAST_FIXTURES");
  std::vector<std::string> sets = SetsUnder("testdata/megatron");
  for (const std::string& set :
       SetsUnder(stdfs::path(env != nullptr ? env : "../shared/fixtures") / "megatron")) {
    sets.push_back(set);
  }
  return sets;
}

TEST(Recorded, EverySetHasOnePlanByBothWays) {
  const std::vector<std::string> sets = RecordedSets();
  ASSERT_GE(sets.size(), 2U);
  for (const std::string& set : sets) {
    SCOPED_TRACE(set);
    const ShardDir dir = OpenShardDir(fs(), set, "").value();
    const ShardFile file = ShardFile::Open(fs(), dir.weight_path(RankId{0})).value();
    const Family& family = *FindFamily(dir.model).value();
    CompileOptions options;
    options.vocab_rows = RawVocabRowsOf(dir.trainer, file.specs());
    EXPECT_EQ(options.vocab_rows, VocabRowsOf(family, dir.trainer, file.specs()));
    const auto bridge = CompilePlan(dir.model, dir.trainer, options);
    const auto raw = CompileRaw(dir.model, dir.trainer, options);
    ASSERT_TRUE(bridge.ok()) << Message(bridge);
    ASSERT_TRUE(raw.ok()) << Message(raw);
    ExpectSame(*bridge, *raw);
    // The shards are what raw says they are, by itself.
    for (int32_t r = 0; r < dir.trainer.topology.world; ++r) {
      const ShardFile shard = ShardFile::Open(fs(), dir.weight_path(RankId{r})).value();
      const auto params =
          shard.Params(raw->plan->ranks[static_cast<size_t>(r)], RankId{r}, nullptr);
      EXPECT_TRUE(params.ok()) << params.error().message;
    }
  }
}

// ---- small worlds ----

// Sizes that differ from each other, with fewer KV heads than tensor ranks, and heads that ranks
// cut.
Json Sizes() {
  return {{"dtype", "bfloat16"},      {"hidden_size", 24},
          {"intermediate_size", 36},  {"num_attention_heads", 12},
          {"num_key_value_heads", 2}, {"head_dim", 6},
          {"vocab_size", 50},         {"tie_word_embeddings", false},
          {"attention_bias", false}};
}

Json MoeSizes() {
  Json sizes = Sizes();
  sizes.update({{"num_experts", 4}, {"moe_intermediate_size", 12}});
  return sizes;
}

Json LinearSizes() {
  Json sizes = MoeSizes();
  sizes.update({{"full_attention_interval", 2},
                {"linear_num_key_heads", 12},
                {"linear_num_value_heads", 24},
                {"linear_key_head_dim", 2},
                {"linear_value_head_dim", 3},
                {"linear_conv_kernel_dim", 4},
                {"shared_expert_intermediate_size", 60}});
  return sizes;
}

Json VisionSizes() {
  return {{"depth", 2},
          {"deepstack_visual_indexes", {0, 1, 2}},
          {"hidden_size", 48},
          {"intermediate_size", 72},
          {"num_heads", 12},
          {"in_channels", 3},
          {"temporal_patch_size", 2},
          {"patch_size", 4},
          {"num_position_embeddings", 16},
          {"spatial_merge_size", 2},
          {"out_hidden_size", 24}};
}

Json With(Json sizes, const Json& more) {
  sizes.update(more);
  return sizes;
}

Json WithVision(const Json& text) {
  return {{"tie_word_embeddings", false},
          {"text_config", text},
          {"vision_config", VisionSizes()},
          {"transformers_version", "4.57.1"}};
}

struct Case {
  const char* name;
  const char* architecture;
  Json sizes;
  bool moe = false;
  int32_t mtp = 0;  // at most
};

std::vector<Case> Cases() {
  const Json sparse = With(MoeSizes(), {{"mlp_only_layers", {0}}, {"decoder_sparse_step", 1}});
  const Json glm = With(MoeSizes(), {{"n_shared_experts", 2},
                                     {"first_k_dense_replace", 1},
                                     {"use_qk_norm", true},
                                     {"attention_bias", true}});
  const Json latent = With(MoeSizes(), {{"n_shared_experts", 1},
                                        {"first_k_dense_replace", 1},
                                        {"q_lora_rank", 14},
                                        {"kv_lora_rank", 8},
                                        {"qk_nope_head_dim", 5},
                                        {"qk_rope_head_dim", 2},
                                        {"v_head_dim", 4}});
  Json no_rank = latent;
  no_rank["q_lora_rank"] = nullptr;
  const Json own_experts = With(Sizes(), {{"num_local_experts", 4}});
  return {
      {"Llama", "LlamaForCausalLM", Sizes()},
      {"Mistral", "MistralForCausalLM", Sizes()},
      {"Qwen2", "Qwen2ForCausalLM", Sizes()},
      {"Qwen3", "Qwen3ForCausalLM", Sizes()},
      {"Qwen3WithBias", "Qwen3ForCausalLM", With(Sizes(), {{"attention_bias", true}})},
      {"Qwen3Moe", "Qwen3MoeForCausalLM", MoeSizes(), true},
      {"Qwen3MoeWithDense", "Qwen3MoeForCausalLM", sparse, true},
      {"Qwen3MoeEverySecond", "Qwen3MoeForCausalLM", With(MoeSizes(), {{"decoder_sparse_step", 2}}),
       true},
      {"Qwen3Vl", "Qwen3VLForConditionalGeneration", WithVision(Sizes())},
      {"Qwen3VlMoe", "Qwen3VLMoeForConditionalGeneration", WithVision(MoeSizes()), true},
      {"Qwen3Next", "Qwen3NextForCausalLM", With(LinearSizes(), {{"mlp_only_layers", {1}}}), true,
       1},
      {"Qwen35", "Qwen3_5ForCausalLM", LinearSizes(), false, 1},
      {"Qwen35Moe", "Qwen3_5MoeForCausalLM", LinearSizes(), true, 1},
      {"Qwen35Vl", "Qwen3_5ForConditionalGeneration", WithVision(LinearSizes()), false, 1},
      {"Qwen35VlMoe", "Qwen3_5MoeForConditionalGeneration", WithVision(LinearSizes()), true, 1},
      {"Mixtral", "MixtralForCausalLM", own_experts, true},
      {"Glm4", "Glm4ForCausalLM", With(Sizes(), {{"attention_bias", true}})},
      {"Gemma3", "Gemma3ForCausalLM", Sizes()},
      {"Glm4Moe", "Glm4MoeForCausalLM", glm, true, 2},
      {"DeepseekV3", "DeepseekV3ForCausalLM", latent, true, 2},
      {"DeepseekWithoutQueryRank", "DeepseekV2ForCausalLM", no_rank, true},
      {"MiniMaxM2", "MiniMaxM2ForCausalLM", own_experts, true},
      {"GptOss", "GptOssForCausalLM", own_experts, true},
      {"MiMo", "MiMoForCausalLM", Sizes(), false, 2},
  };
}

const Case& CaseOf(const std::string& name) {
  static const std::vector<Case> kCases = Cases();
  return *std::ranges::find(kCases, name, &Case::name);
}

HfConfig ModelOf(const Case& c, int32_t layers, bool tied = false) {
  Json config = c.sizes;
  config["architectures"] = {c.architecture};
  config["tie_word_embeddings"] = tied;
  (config.contains("text_config") ? config["text_config"] : config)["num_hidden_layers"] = layers;
  return HfConfig::Parse(config.dump()).value();
}

MegatronConfig TrainerOf(const Topology& t) {
  MegatronConfig trainer;
  trainer.topology = t;
  trainer.padded_vocab = 60;  // for up to 4 tensor ranks, of which the last may have padding only
  return trainer;
}

// Sanitizers look for faults that any world shows, at ten times the cost: they get every eighth.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kThinned = 8;
#elif defined(__has_feature)
constexpr int kThinned = __has_feature(thread_sanitizer) ? 8 : 1;
#else
constexpr int kThinned = 1;
#endif

// Topologies up to 4 of each kind, of at most 32 ranks, that fit.
std::vector<Topology> Worlds(bool moe) {
  std::vector<Topology> worlds;
  Topology t;
  for (t.tp = 1; t.tp <= 4; ++t.tp) {
    for (t.pp = 1; t.pp <= 4; ++t.pp) {
      for (t.vpp = 1; t.vpp <= (t.pp == 1 ? 1 : 4); ++t.vpp) {
        for (int32_t dp = 1; dp <= 4; ++dp) {
          for (t.ep = 1; t.ep <= (moe ? 4 : 1); ++t.ep) {
            for (t.etp = 1; t.etp <= (moe ? 4 : 1); ++t.etp) {
              t.world = t.tp * t.pp * dp;
              t.num_layers = t.pp * t.vpp * (t.pp * t.vpp == 1 ? 2 : 1);
              if (t.world <= 32 && t.Check().ok()) worlds.push_back(t);
            }
          }
        }
      }
    }
  }
  return worlds;
}

std::string WorldText(const Topology& t) {
  std::string text;
  const std::pair<const char*, int32_t> numbers[] = {
      {"world", t.world}, {"tp", t.tp},   {"pp", t.pp}, {"vpp", t.vpp},
      {"ep", t.ep},       {"etp", t.etp}, {"cp", t.cp}};
  for (const auto& [name, n] : numbers) text += std::string(name) + " " + std::to_string(n) + " ";
  for (const layout::PipelineChunk& chunk : t.layout) {
    text += std::string(static_cast<size_t>(chunk.layers), 't') +
            std::string(static_cast<size_t>(chunk.mtp_layers), 'm') + "|";
  }
  return text;
}

// Whether a checkpoint's experts may be by name or packed: else both refuse to be told.
bool HasLayouts(const HfConfig& model) {
  const Topology alone{.num_layers = 1};
  const CompileOptions told{.expert_layout = ExpertLayout::kPerName};
  return Message(CompilePlan(model, TrainerOf(alone), told)).find("one layout") ==
         std::string::npos;
}

bool HasTower(const HfConfig& model) { return model.Int("vision_config.depth").has_value(); }

// What a world may have besides its parallel sizes. Drawn, since what follows from a world's number
// goes hand in hand with its sizes and with each other.
enum Choice : uint8_t {
  kTied,
  kSpec,
  kModules,
  kOlderInner,
  kAtRoot,
  kNormWithLayer,
  kLayout,
  kTower
};
using Choices = std::array<int, 8>;
constexpr const char* kChoices[] = {"tied",    "spec",       "modules", "older inner",
                                    "at root", "norm there", "layout",  "tower"};

// How many there are of each.
Choices SizesOf(const Case& c) {
  return {
      2, 3, c.mtp + 1, 2, 2, 2, HasLayouts(ModelOf(c, 1)) ? 4 : 1, HasTower(ModelOf(c, 1)) ? 3 : 1};
}

Choices Drawn(const Choices& sizes, std::mt19937& random) {
  Choices chosen{};
  for (size_t i = 0; i < sizes.size(); ++i) {
    chosen[i] = static_cast<int>(random() % static_cast<uint32_t>(sizes[i]));
  }
  return chosen;
}

std::string ChoicesText(const Choices& chosen) {
  std::string text;
  for (size_t i = 0; i < chosen.size(); ++i) {
    text += std::string(kChoices[i]) + " " + std::to_string(chosen[i]) + ", ";
  }
  return text;
}

// Every two things that were chosen together.
class Pairs {
 public:
  void Add(const Choices& chosen) {
    for (size_t i = 0; i < chosen.size(); ++i) {
      for (size_t j = 0; j < i; ++j) met_.insert(TextOf(i, chosen[i], j, chosen[j]));
    }
  }

  std::vector<std::string> Missing(const Choices& sizes) const {
    std::vector<std::string> missing;
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        for (int n = 0; n < sizes[i] * sizes[j]; ++n) {
          std::string pair = TextOf(i, n / sizes[j], j, n % sizes[j]);
          if (!met_.contains(pair)) missing.push_back(std::move(pair));
        }
      }
    }
    return missing;
  }

 private:
  static std::string TextOf(size_t i, int a, size_t j, int b) {
    return std::string(kChoices[i]) + " " + std::to_string(a) + " and " + kChoices[j] + " " +
           std::to_string(b);
  }

  std::set<std::string> met_;
};

// Compiles both ways: to the same plan, or both refuse. Whether there is a plan.
bool HasOnePlan(const Case& c, const Topology& t, const Choices& chosen) {
  SCOPED_TRACE(WorldText(t) + ChoicesText(chosen));
  const HfConfig model = ModelOf(c, t.num_layers, chosen[kTied] == 1);
  MegatronConfig trainer = TrainerOf(t);
  trainer.local_spec = chosen[kSpec] == 2;
  trainer.sequential_experts = chosen[kSpec] >= 1;
  trainer.mtp_layers = chosen[kModules];
  if (chosen[kOlderInner] == 1) trainer.spelling.mtp_inner = "transformer_layer";
  if (chosen[kAtRoot] == 1) trainer.spelling.mtp_at_root = true;
  trainer.spelling.tower = kTowers[chosen[kTower]];
  trainer.norm_with_last_layer = chosen[kNormWithLayer] == 1;
  const CompileOptions options{.expert_layout = static_cast<ExpertLayout>(chosen[kLayout])};
  const auto bridge = CompilePlan(model, trainer, options);
  const auto raw = CompileRaw(model, trainer, options);
  EXPECT_EQ(bridge.ok(), raw.ok()) << Message(bridge) << Message(raw);
  if (!bridge.ok() || !raw.ok()) return false;
  ExpectSame(*bridge, *raw);
  return true;
}

class SmallWorlds : public ::testing::TestWithParam<std::string> {};

TEST_P(SmallWorlds, HaveOnePlanByBothWays) {
  const Case& c = CaseOf(GetParam());
  const Choices sizes = SizesOf(c);
  std::mt19937 random(1);
  Pairs pairs;
  int agreed = 0;
  const std::vector<Topology> worlds = Worlds(c.moe);
  for (size_t i = 0; i < worlds.size(); i += kThinned) {
    const Topology& t = worlds[i];
    const Choices chosen = Drawn(sizes, random);
    if (HasOnePlan(c, t, chosen)) {
      ++agreed;
      pairs.Add(chosen);
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GE(agreed * 2, std::ssize(worlds) / kThinned) << "only " << agreed << " can be cut";
  if (kThinned == 1) {
    EXPECT_THAT(pairs.Missing(sizes), IsEmpty());
  }
}

// ---- custom pipeline layouts ----

// Of modules in a chunk of the last round no layer is behind.
std::string DrawnLayout(int32_t pp, int32_t vpp, int32_t modules, std::mt19937& random) {
  const int32_t chunks = pp * vpp;
  const int32_t modules_at =
      chunks - 1 - static_cast<int32_t>(random() % static_cast<uint32_t>(pp));
  const int32_t layers_end = modules > 0 ? modules_at + 1 : chunks;
  std::string layout = "E";
  for (int32_t i = 0; i < chunks; ++i) {
    if (i > 0) layout += "|";
    if (i < layers_end) layout += std::string(random() % 3, 't');
    if (i == modules_at) layout += std::string(static_cast<size_t>(modules), 'm');
  }
  return layout + "L";
}

// With that many modules; no layers (refused) if there happen to be none.
Topology DrawnWorld(bool moe, int32_t modules, std::mt19937& random) {
  const auto up_to = [&](uint32_t n) { return 1 + static_cast<int32_t>(random() % n); };
  Topology t;
  t.tp = up_to(4);
  t.pp = up_to(4);
  t.vpp = t.pp == 1 ? 1 : up_to(3);
  t.ep = moe ? up_to(2) : 1;
  t.etp = moe ? up_to(4) : 1;
  t.world = t.tp * t.pp * up_to(2);
  t.layout = layout::ParsePipelineLayout(DrawnLayout(t.pp, t.vpp, modules, random)).value();
  t.num_layers = t.layout.back().first_layer + t.layout.back().layers;
  return t;
}

class CustomLayouts : public ::testing::TestWithParam<std::string> {};

TEST_P(CustomLayouts, HaveOnePlanByBothWays) {
  const Case& c = CaseOf(GetParam());
  const Choices sizes = SizesOf(c);
  std::mt19937 random(2);
  // Those with modules (kept to families that have them), tied, of which the norm is with the last
  // layer, and the last layer not on the last stage, and the modules not there either.
  std::set<std::array<bool, 5>> met;
  // No modules: they are nowhere else. Modules elsewhere: no layer is on the last stage.
  const size_t all = kThinned > 1 ? 0U : c.mtp > 0 ? 8U + 12U : 8U;
  int tried = 0;
  for (int agreed = 0; agreed < 200 / kThinned || met.size() < all;) {
    ASSERT_LT(++tried, 20000) << "met only " << met.size() << " of " << all;
    const Choices chosen = Drawn(sizes, random);
    const Topology t = DrawnWorld(c.moe, chosen[kModules], random);
    if (!t.Check().ok()) continue;
    if (HasOnePlan(c, t, chosen)) {
      ++agreed;
      met.insert({chosen[kModules] > 0, chosen[kTied] == 1, chosen[kNormWithLayer] == 1,
                  t.LastLayerAt() != t.OutputAt(), t.MtpAt() != t.OutputAt()});
    }
    ASSERT_FALSE(HasFailure());
  }
}

std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  for (const Case& c : Cases()) names.emplace_back(c.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, SmallWorlds, ::testing::ValuesIn(CaseNames()),
                         [](const auto& one) { return one.param; });
INSTANTIATE_TEST_SUITE_P(Families, CustomLayouts, ::testing::ValuesIn(CaseNames()),
                         [](const auto& one) { return one.param; });

TEST(Worlds, EveryArchitectureOfEveryFamilyIsThere) {
  for (const Family* family : kFamilies) {
    for (const std::string_view architecture : family->architectures) {
      HfConfig model;
      model.architectures.emplace_back(architecture);
      EXPECT_THAT(Message(CompileRaw(model, TrainerOf({.num_layers = 1}), {})),
                  HasSubstr("converter " + std::string(family->name)));
    }
  }
}

TEST(Worlds, UnevenStagesContextRanksAndPaddingFromAShard) {
  Topology t{.world = 24, .tp = 2, .pp = 3, .cp = 2, .etp = 2, .num_layers = 7};
  t.layers_in_first_stage = 1;
  t.layers_in_last_stage = 2;
  Topology counted{.world = 8, .tp = 2, .pp = 4, .vpp = 2, .etp = 2, .num_layers = 14};
  counted.account_for_embedding = counted.account_for_loss = true;
  for (const Topology& world : {t, counted}) {
    for (const char* name : {"Qwen3", "Qwen3Moe", "Qwen3Next", "DeepseekV3"}) {
      const HfConfig model = ModelOf(CaseOf(name), world.num_layers, true);
      const CompileOptions options{.ignore = {"*.extra"}, .vocab_rows = 64};
      const auto bridge = CompilePlan(model, TrainerOf(world), options);
      const auto raw = CompileRaw(model, TrainerOf(world), options);
      ASSERT_TRUE(bridge.ok()) << Message(bridge);
      ASSERT_TRUE(raw.ok()) << Message(raw);
      ExpectSame(*bridge, *raw);
    }
  }
}

// ---- references ----

TEST(References, TellExpertsTiesAndWhatIsCarried) {
  const Topology t{.world = 4, .tp = 2, .pp = 2, .etp = 2, .num_layers = 2};
  const HfConfig model = ModelOf(CaseOf("Qwen3VlMoe"), 2, true);
  for (const ExpertLayout layout : {ExpertLayout::kPerName, ExpertLayout::kPackedInOut}) {
    const auto told = CompilePlan(model, TrainerOf(t), {.expert_layout = layout});
    ASSERT_TRUE(told.ok()) << Message(told);
    std::vector<tensor::TensorSpec> specs = told->plan->inventory->tensors();
    specs.push_back({"lm_head.weight", DType::kBf16, {50, 24}});
    specs.push_back({"mtp.norm.weight", DType::kBf16, {24}});
    CompileOptions options{.carry = {"mtp.*"}};
    options.reference = std::make_shared<const tensor::Inventory>(
        tensor::Inventory::Make(std::move(specs)).value());
    const auto bridge = CompilePlan(model, TrainerOf(t), options);
    const auto raw = CompileRaw(model, TrainerOf(t), options);
    ASSERT_TRUE(bridge.ok()) << Message(bridge);
    ASSERT_TRUE(raw.ok()) << Message(raw);
    ExpectSame(*bridge, *raw);
    EXPECT_THAT(raw->carried, ElementsAre("mtp.norm.weight"));
    ASSERT_EQ(raw->aliases.size(), 1U);
    EXPECT_EQ(raw->aliases[0].of, bridge->aliases[0].of);
    options.carry.clear();
    EXPECT_THAT(Message(CompileRaw(model, TrainerOf(t), options)), HasSubstr("mtp.norm.weight"));
  }
}

// ---- refusals ----

TEST(Refused, EverythingThatDoesNotFitIsNamedAtOnce) {
  const Topology t{.world = 5, .tp = 5, .etp = 5, .num_layers = 2};
  HfConfig model = ModelOf(CaseOf("Llama"), 3);
  MegatronConfig trainer = TrainerOf(t);
  trainer.settings = {{"num_moe_experts", "8"}};
  trainer.tied = true;
  EXPECT_THAT(Message(CompileRaw(model, trainer, {})),
              AllOf(HasSubstr("num_moe_experts = 8"), HasSubstr("num_hidden_layers"),
                    HasSubstr("tie_word_embeddings")));
  model = ModelOf(CaseOf("Llama"), 2);
  model.flags["attention_bias"] = true;
  trainer = TrainerOf(t);
  trainer.ints["hidden_size"] = 25;
  EXPECT_THAT(Message(CompileRaw(model, trainer, {})),
              AllOf(HasSubstr("attention_bias"), HasSubstr("hidden_size: model 24, trainer 25"),
                    HasSubstr("36 rows of")));
  model.ints.erase("intermediate_size");
  EXPECT_THAT(Message(CompileRaw(model, trainer, {})), HasSubstr("intermediate_size is missing"));
  model.architectures = {"Grok1ForCausalLM"};
  EXPECT_THAT(Message(CompileRaw(model, trainer, {})), HasSubstr("LlamaForCausalLM"));
}

TEST(Refused, APlanThatWouldFillTheMemory) {
  const Topology t{.world = 1 << 16, .num_layers = 1024};
  EXPECT_THAT(Message(CompileRaw(ModelOf(CaseOf("Llama"), 1024), TrainerOf(t), {})),
              HasSubstr("more than 2097152 parameters"));
}

// ---- planted faults ----

// A family whose rules can be changed.
class Altered {
 public:
  explicit Altered(const Family& family) : family_(family) {
    for (const Stack& stack : family.stacks) {
      std::vector<std::vector<Rule>>& groups = rules_.emplace_back();
      for (const std::span<const Rule> group : stack.rules) {
        groups.emplace_back(group.begin(), group.end());
      }
      stacks_.push_back(stack);
    }
  }

  // Changes every rule of that name. Gives how many there are.
  int Change(const std::string& name, const std::function<void(Rule&)>& change) {
    int changed = 0;
    for (auto& groups : rules_) {
      for (auto& group : groups) {
        for (Rule& rule : group) {
          if (name != rule.name) continue;
          change(rule);
          ++changed;
        }
      }
    }
    return changed;
  }

  std::vector<Stack>& stacks() { return stacks_; }

  Result<CompiledPlan> Compile(const HfConfig& model, const MegatronConfig& trainer) {
    std::vector<std::vector<std::span<const Rule>>> spans;
    for (size_t i = 0; i < rules_.size(); ++i) {
      spans.emplace_back(rules_[i].begin(), rules_[i].end());
      stacks_[i].rules = spans[i];
    }
    family_.stacks = stacks_;
    return CompilePlanFor(family_, model, trainer, {});
  }

 private:
  Family family_;
  std::vector<Stack> stacks_;
  std::vector<std::vector<std::vector<Rule>>> rules_;  // by stack and group
};

struct Planted {
  const char* name;
  const char* model;  // of Cases
  const char* rule;
  std::function<void(Rule&)> change;
  // What the bridge's own proof says of it. Of most nothing: a proven plan, that only the other way
  // disagrees with.
  const char* refused = nullptr;
  const char* tower = "";
};

// Of all ranks' gates and then all ups, as if cut only afterwards: right on one tensor rank only.
constexpr Rows kGateUpOverRanks = {
    {{.parts = {{.output = 0, .rows = Dim::kFfn}, {.output = 1, .rows = Dim::kFfn}}}}};
// All queries, then all keys, then all values.
constexpr Rows kQkvNotInterleaved = {
    {{.parts = {{.output = 0, .rows = Dim::kHeads * Dim::kHeadDim},
                {.output = 1, .rows = Dim::kKvHeads * Dim::kHeadDim},
                {.output = 2, .rows = Dim::kKvHeads * Dim::kHeadDim}}}}};
// Gates and ups in halves, where the checkpoint alternates them.
constexpr Rows kHalves = {{{.parts = {{.rows = Dim::kExpertFfn}}},
                           {.parts = {{.rows = Dim::kExpertFfn, .base = Dim::kExpertFfn}}}}};

constexpr const char* kFc1 = "mlp.linear_fc1.weight";
constexpr const char* kQkv = "self_attention.linear_qkv.weight";
constexpr const char* kExpert1 = "mlp.experts.linear_fc1.weight#";
constexpr const char* kExpert2 = "mlp.experts.linear_fc2.weight#";

const Planted kPlanted[] = {
    {"GateAndUpSwapped", "Qwen3", kFc1, [](Rule& r) { std::swap(r.outputs[0], r.outputs[1]); }},
    {"GateAndUpFusedOverRanks", "Qwen3", kFc1, [](Rule& r) { r.rows = &kGateUpOverRanks; }},
    {"KeysAndValuesSwapped", "Qwen3", kQkv, [](Rule& r) { std::swap(r.outputs[1], r.outputs[2]); }},
    {"QkvNotInterleaved", "Qwen3", kQkv, [](Rule& r) { r.rows = &kQkvNotInterleaved; }},
    {"HeadNormsSwapped", "Qwen3", "self_attention.q_layernorm.weight",
     [](Rule& r) { r.outputs[0].name = "self_attn.k_norm.weight"; },
     "model.layers.0.self_attn.k_norm.weight\": more than once"},
    {"TransposeMissingInASquare", "GptOss", kExpert2, [](Rule& r) { r.transposed = false; }},
    {"GateAndUpInHalves", "GptOss", kExpert1, [](Rule& r) { r.rows = &kHalves; }},
    {"OneNotAdded", "Qwen35", "self_attention.out_norm.weight",
     [](Rule& r) { r.map = layout::ValueMap::kCopy; }},
    {"OneAddedTooOften", "Qwen35", "decoder.final_layernorm.weight",
     [](Rule& r) { r.map = layout::ValueMap::kAddOneBf16; }},
    {"BAndASwapped", "Qwen35", "self_attention.in_proj.weight",
     [](Rule& r) { std::swap(r.outputs[2], r.outputs[3]); }},
    {"InProjNotGroupedByHeads", "Qwen3Next", "self_attention.in_proj.weight",
     [](Rule& r) {
       static Rows rows;
       rows = *r.rows;
       std::swap(rows.sections[0], rows.sections[1]);
       r.rows = &rows;
     }},
    {"VisionQkvNotDeinterleaved", "Qwen3Vl", kQkv,
     [](Rule& r) {
       if (r.outputs[1].name == nullptr) r.rows = nullptr;
     }},
    {"KeptQkvDeinterleaved", "Qwen3Vl", "attn.qkv.weight",
     [](Rule& r) { r.rows = &kVisionQkvRows; }, nullptr, "vision_model"},
    {"KeptTowerCut", "Qwen3VlMoe", "attn.proj.weight", [](Rule& r) { r.cut = Cut::kCols; }, nullptr,
     "model.visual"},
    {"KeptTowerUnderMegatronsName", "Qwen35Vl", "norm.weight",
     [](Rule& r) { r.name = "patch_norm.weight"; }, nullptr, "vision_model"},
    {"RouterBiasNarrowed", "MiniMaxM2", "mlp.router.expert_bias", [](Rule& r) { r.fp32 = false; }},
    {"KeyNormCutLikeQueries", "MiniMaxM2", "self_attention.k_layernorm.weight",
     [](Rule& r) { r.cut = Cut::kRows; }},
    {"HalvesNotSwapped", "MiMo", "eh_proj.weight", [](Rule& r) { r.halves_swapped = false; }},
    {"OneExpertProjectionForAnother", "Mixtral", kExpert1,
     [](Rule& r) { std::swap(r.outputs[0].name, r.outputs[1].name); }},
    {"ColumnsCutAsRows", "Llama", "self_attention.linear_proj.weight",
     [](Rule& r) { r.cut = Cut::kRows; }},
    {"ReplicatedWhatIsCut", "Llama", "self_attention.linear_proj.weight",
     [](Rule& r) { r.cut = Cut::kReplicated; }},
    {"AnotherName", "Llama", "decoder.final_layernorm.weight",
     [](Rule& r) { r.outputs[0].name = "final_norm.weight"; }},
    {"AnotherKey", "Llama", kFc1, [](Rule& r) { r.name = "mlp.fc1.weight"; }},
};

class PlantedFault : public ::testing::TestWithParam<Planted> {};

// More tensor ranks than KV heads, and experts that are square: shapes give nothing away.
HfConfig PlantedModel(const Planted& planted) {
  HfConfig model = ModelOf(CaseOf(planted.model), 4);
  if (std::string_view(planted.model) == "GptOss") model.ints["intermediate_size"] = 24;
  return model;
}

TEST_P(PlantedFault, IsSeen) {
  const Topology t{.world = 8, .tp = 4, .pp = 2, .etp = 2, .num_layers = 4};
  const HfConfig model = PlantedModel(GetParam());
  MegatronConfig trainer = TrainerOf(t);
  trainer.mtp_layers = CaseOf(GetParam().model).mtp;
  trainer.spelling.tower = GetParam().tower;
  Altered altered(*FindFamily(model).value());
  const auto raw = CompileRaw(model, trainer, {});
  ASSERT_TRUE(raw.ok()) << Message(raw);
  EXPECT_EQ(altered.Compile(model, trainer)->hash, raw->hash) << "not altered yet";
  ASSERT_GE(altered.Change(GetParam().rule, GetParam().change), 1);
  const auto wrong = altered.Compile(model, trainer);
  if (GetParam().refused != nullptr) {
    EXPECT_THAT(Message(wrong), HasSubstr(GetParam().refused));
    return;
  }
  ASSERT_TRUE(wrong.ok()) << Message(wrong);
  EXPECT_NE(wrong->hash, raw->hash);
}

INSTANTIATE_TEST_SUITE_P(Rules, PlantedFault, ::testing::ValuesIn(kPlanted),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(PlantedFaults, AModuleOnAnotherStageIsSeen) {
  const Topology t{.world = 4, .tp = 2, .pp = 2, .etp = 2, .num_layers = 4};
  const std::tuple<const char*, const char*, When> cases[] = {
      {"Llama", "", When::kKeptTower},
      {"Qwen3Vl", "megatron", When::kKeptTower},
      {"Qwen3Vl", "model.visual", When::kMegatronTower}};
  for (const auto& [name, tower, unused] : cases) {
    const HfConfig model = ModelOf(CaseOf(name), 4);
    MegatronConfig trainer = TrainerOf(t);
    trainer.spelling.tower = tower;
    const auto raw = CompileRaw(model, trainer, {});
    ASSERT_TRUE(raw.ok()) << Message(raw);
    const Family& family = *FindFamily(model).value();
    for (size_t i = 0; i < family.stacks.size(); ++i) {
      Altered altered(family);
      Holder& holder = altered.stacks()[i].holder;
      if (family.stacks[i].when == unused) continue;
      if (holder != Holder::kFirstStage && holder != Holder::kLastStage) continue;
      holder = holder == Holder::kFirstStage ? Holder::kLastStage : Holder::kFirstStage;
      const auto wrong = altered.Compile(model, trainer);
      ASSERT_TRUE(wrong.ok()) << Message(wrong);
      EXPECT_NE(wrong->hash, raw->hash) << name << " stack " << i;
    }
  }
}

}  // namespace
}  // namespace weightcast::bridge
