#include "bridge/compile_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/text.h"
#include "bridge/declared.h"
#include "bridge/dims.h"
#include "bridge/expand.h"
#include "bridge/families/families.h"
#include "bridge/layers.h"
#include "bridge/receiver.h"

namespace weightcast::bridge {
namespace {

using layout::Place;
using layout::RankPlan;
using layout::SharedShard;
using layout::Slice;
using layout::Topology;
using Chunk = layout::Topology::Chunk;
using tensor::DType;
using tensor::Inventory;
using tensor::TensorSpec;

// Parameters of all ranks together, of some 150 bytes each: 16 Ki ranks with a thousand each.
constexpr int64_t kParamsMax = int64_t{1} << 24;

// What the marks in a name stand for.
struct Numbers {
  int32_t module = 0;        // '*'
  int32_t after_layers = 0;  // '+'
  int32_t expert = 0;        // '#'
  std::string_view inner;    // '@'
  bool any = false;          // '*' and '+' are '*': a pattern
};

std::string Filled(std::string_view pattern, const Numbers& numbers) {
  std::string text;
  for (const char c : pattern) {
    switch (c) {
      case '*':
        text += numbers.any ? "*" : std::to_string(numbers.module);
        break;
      case '+':
        text += numbers.any ? "*" : std::to_string(numbers.after_layers);
        break;
      case '#':
        text += std::to_string(numbers.expert);
        break;
      case '@':
        text += numbers.inner;
        break;
      default:
        text += c;
    }
  }
  return text;
}

// A rule's name as the trainer spells it.
const char* SpelledName(const Rule& rule, const MegatronConfig& trainer) {
  if (trainer.sequential_experts && rule.sequential_name != nullptr) return rule.sequential_name;
  return trainer.local_spec && rule.local_name != nullptr ? rule.local_name : rule.name;
}

DType ParamDType(const Rule& rule, const MegatronConfig& trainer) {
  return rule.fp32 ? DType::kF32 : trainer.params_dtype;
}

// One module of a stack.
struct Module {
  const Stack* stack = nullptr;
  Chunk at;
  int32_t local = 0;   // number in Megatron's name
  int32_t global = 0;  // and in the checkpoint's
  LayerKind kind;
};

// One parameter of a module.
struct Instance {
  const Rule* rule = nullptr;
  const Module* module = nullptr;
  int32_t expert = -1;  // global; -1: not one expert's
};

// How many modules a count in config.json says.
Result<int64_t> CountIn(const HfConfig& model, const char* key) {
  const int64_t count = model.Int(key).value_or(-1);
  if (count >= 0 && count <= layout::kLayersMax) return count;
  return Error{Code::kInvalidData, "config.json: " + std::string(key) + ": expected 0.." +
                                       std::to_string(layout::kLayersMax)};
}

class Compiler {
 public:
  Compiler(const Family& family, const HfConfig& model, const MegatronConfig& trainer,
           const CompileOptions& options)
      : family_(family), model_(model), trainer_(trainer), options_(options) {}

  Result<CompiledPlan> Run();

 private:
  Status Check();
  Result<int64_t> CountOf(Holder holder) const;
  Chunk ChunkOf(Holder holder) const;
  void ListLayers(const Stack& stack, const std::vector<LayerKind>& kinds);
  Status ListModules();
  Status ListInstances();
  Status ReadSizes();
  Status MakeInventory();
  void AddTensors(const Instance& instance, std::vector<TensorSpec>* specs) const;
  Status PlaceShards();
  Status PlaceInstance(const Instance& instance);
  void SortParams();
  void CollectReplicas();

  bool Exists(const Rule& rule, const Stack& stack) const;
  bool Unused(const Rule& rule) const;
  Chunk ChunkOf(const Instance& instance) const;
  std::string Wrapped(std::string_view name) const;
  std::string KeyOf(const Instance& instance) const;
  std::string NameOf(const Instance& instance, const Output& output) const;
  TensorCut CutOf(const Rule& rule) const;
  Result<const std::vector<Shard>*> ShardsOfRule(const Rule& rule);
  std::vector<int32_t> RanksOf(const Instance& instance, int32_t shards, int32_t index) const;
  std::vector<Slice> SlicesOf(const Instance& instance, const Shard& shard) const;

  const Family& family_;
  const HfConfig& model_;
  const MegatronConfig& trainer_;
  const CompileOptions& options_;
  const Topology& topology_ = trainer_.topology;
  DimSet wanted_;
  Dims dims_;
  bool tied_ = false;
  bool alias_ = false;    // the receiver lists the tied output layer
  bool wrapped_ = false;  // and this model as a part of its own
  std::string tied_to_;
  std::map<const Stack*, ExpertLayout> experts_;
  std::vector<Module> modules_;
  std::vector<Instance> instances_;
  std::map<const Rule*, std::vector<Shard>> shards_of_;
  std::vector<layout::Coordinates> in_stage_;  // of the ranks of a stage
  std::shared_ptr<const Inventory> inventory_;
  std::vector<RankPlan> ranks_;
  std::vector<SharedShard> shards_;
  // By (first tensor, expert, shard): a tied copy joins the embedding that it repeats.
  std::map<std::tuple<int64_t, int32_t, int32_t>, ReplicaSet> replicas_;
  CompiledPlan out_;
};

bool Compiler::Exists(const Rule& rule, const Stack& stack) const {
  const ExpertLayout experts = experts_.at(&stack);
  const bool query_rank = model_.Int("q_lora_rank").has_value();
  switch (rule.when) {
    case When::kAlways:
      return true;
    case When::kUntied:
      return !tied_;
    case When::kTiedOverStages:
      return tied_ && topology_.pp > 1;
    case When::kMtpElsewhere:
      return trainer_.mtp_layers > 0 && topology_.MtpAt() != topology_.EmbeddingAt();
    case When::kQkvBias:
      return model_.Flag("attention_bias");
    case When::kQkNorm:
      return model_.Flag("use_qk_norm");
    case When::kQueryRank:
      return query_rank;
    case When::kNoQueryRank:
      return !query_rank;
    case When::kRouterBias:
      return trainer_.router_bias;
    case When::kSharedExperts:
      return model_.Int("n_shared_experts").value_or(0) > 0;
    case When::kPerName:
      return experts == ExpertLayout::kPerName;
    case When::kPackedOutIn:
      return experts == ExpertLayout::kPackedOutIn;
    case When::kPackedInOut:
      return experts == ExpertLayout::kPackedInOut;
  }
  return false;
}

// A chunk that predicts further tokens has a tied output layer beside a copy of the embedding, and
// uses the copy: whatever the layer's own weight holds, it says nothing.
bool Compiler::Unused(const Rule& rule) const {
  return rule.when == When::kTiedOverStages && trainer_.mtp_layers > 0 &&
         topology_.MtpAt() == topology_.OutputAt();
}

Status Compiler::Check() {
  WC_TRY(topology_.Check());
  tied_ = IsTied(family_, model_);
  const std::vector<std::string> declared = DeclaredNames(options_);
  wrapped_ = IsWrapped(family_, declared);
  tied_to_ = Wrapped(family_.tied_to);
  alias_ = tied_ && std::ranges::binary_search(declared, family_.tied_alias);
  for (const Stack& stack : family_.stacks) {
    const std::string prefix = Filled(Wrapped(stack.hf), {.any = true});
    experts_[&stack] =
        WC_TRY(ChooseExpertLayout(family_, model_, prefix, options_.expert_layout, declared));
  }
  std::vector<std::string> refused = Unsupported(trainer_, family_.settings);
  for (const std::string_view flag : family_.refused) {
    if (model_.Flag(flag)) refused.push_back("config.json's " + std::string(flag));
  }
  const bool layouts = AnyRule(family_, [](const Rule& r) { return r.when == When::kPerName; });
  if (options_.expert_layout != ExpertLayout::kAuto && !layouts) {
    return Error{Code::kInvalidArgument,
                 std::string("expert layout ") +
                     kExpertLayouts[static_cast<size_t>(options_.expert_layout)] + ": family " +
                     family_.name + " has no experts, or one layout of them"};
  }
  const bool has_experts = AnyRule(family_, [](const Rule& r) { return r.per_expert(); });
  if (topology_.ep > 1 && !has_experts) {
    refused.push_back("expert_model_parallel_size = " + std::to_string(topology_.ep));
  }
  if (refused.empty()) return Ok();
  return Error{Code::kInvalidData,
               std::string("family ") + family_.name + " has no rules for " + JoinNames(refused)};
}

// How many modules a stack that is not the decoder's layers has.
Result<int64_t> Compiler::CountOf(Holder holder) const {
  const auto deepstack = model_.int_lists.find("vision_config.deepstack_visual_indexes");
  switch (holder) {
    case Holder::kMtpStage:
      return trainer_.mtp_layers > 0 ? 1 : 0;
    case Holder::kMtpLayers:
      return trainer_.mtp_layers;
    case Holder::kVisionLayers:
      return CountIn(model_, "vision_config.depth");
    case Holder::kDeepstack:
      return deepstack == model_.int_lists.end() ? 0 : std::ssize(deepstack->second);
    default:
      return 1;
  }
}

Chunk Compiler::ChunkOf(Holder holder) const {
  switch (holder) {
    case Holder::kLastStage:
      return topology_.OutputAt();
    case Holder::kMtpStage:
    case Holder::kMtpLayers:
      return topology_.MtpAt();
    default:
      return topology_.EmbeddingAt();
  }
}

void Compiler::ListLayers(const Stack& stack, const std::vector<LayerKind>& kinds) {
  for (int32_t s = 0; s < topology_.pp; ++s) {
    for (int32_t c = 0; c < topology_.vpp; ++c) {
      const Topology::LayerRange range = topology_.LayersOf(s, c);
      for (int32_t i = 0; i < range.count; ++i) {
        const int32_t layer = range.first + i;
        modules_.push_back({&stack, {s, c}, i, layer, kinds[static_cast<size_t>(layer)]});
      }
    }
  }
}

Status Compiler::ListModules() {
  const std::vector<LayerKind> kinds = WC_TRY(LayerKinds(family_, model_, trainer_));
  for (const Stack& stack : family_.stacks) {
    if (stack.holder == Holder::kLayers) {
      ListLayers(stack, kinds);
      continue;
    }
    const LayerKind kind = stack.holder == Holder::kMtpLayers ? kinds.back() : LayerKind{};
    const int64_t count = WC_TRY(CountOf(stack.holder));
    for (int32_t i = 0; i < count; ++i) {
      modules_.push_back({&stack, ChunkOf(stack.holder), i, i, kind});
    }
  }
  return Ok();
}

Status Compiler::ListInstances() {
  WC_TRY(ListModules());
  int64_t params = 0;
  for (const Module& module : modules_) {
    for (const std::span<const Rule> group : module.stack->rules) {
      for (const Rule& rule : group) {
        if (!Has(module.kind, rule.only) || !Exists(rule, *module.stack)) continue;
        wanted_ |= DimsOf(rule);
        instances_.push_back({&rule, &module, rule.per_expert() ? 0 : -1});
        params += topology_.world / topology_.pp;
      }
    }
    if (params > kParamsMax) break;
  }
  WC_TRY(ReadSizes());
  // One instance for all experts becomes one for each.
  std::vector<Instance> each;
  for (const Instance& instance : instances_) {
    const int64_t experts = instance.expert < 0 ? 1 : dims_[Dim::kExperts];
    params += (experts - 1) * (topology_.world / topology_.pp) / topology_.ep;
    if (params > kParamsMax) break;
    for (int32_t e = 0; e < experts; ++e) {
      each.push_back({instance.rule, instance.module, instance.expert < 0 ? -1 : e});
    }
  }
  instances_ = std::move(each);
  if (params <= kParamsMax) return Ok();
  return Error{Code::kInvalidData, "a plan of about " + std::to_string(params) + " parameters on " +
                                       std::to_string(topology_.world) + " ranks; at most " +
                                       std::to_string(kParamsMax)};
}

Status Compiler::ReadSizes() {
  dims_ = WC_TRY(ReadDims(model_, wanted_));
  WC_TRY(CheckSameModel(model_, dims_, wanted_, tied_, trainer_));
  const int64_t experts = dims_[Dim::kExperts];
  if (!wanted_[static_cast<size_t>(Dim::kExperts)] || experts % topology_.ep == 0) return Ok();
  return Error{Code::kInvalidData, std::to_string(experts) +
                                       " experts are not divisible by expert parallel size " +
                                       std::to_string(topology_.ep)};
}

Chunk Compiler::ChunkOf(const Instance& instance) const {
  const bool moved = instance.rule->after_layers && trainer_.norm_with_last_layer;
  return moved ? topology_.LastLayerAt() : instance.module->at;
}

// Of the expert's number in Megatron's name, which counts on its own rank.
std::string Compiler::KeyOf(const Instance& instance) const {
  const Module& module = *instance.module;
  const MtpSpelling& mtp = trainer_.mtp;
  Numbers numbers{.module = module.local,
                  .inner = mtp.inner.empty() ? std::string_view(kMtpInners[0]) : mtp.inner};
  if (instance.expert >= 0) {
    const auto a_rank = static_cast<int32_t>(dims_[Dim::kExperts] / topology_.ep);
    numbers.expert = instance.expert % a_rank;
  }
  std::string_view stack = module.stack->megatron;
  if (module.stack->holder == Holder::kMtpLayers && mtp.at_root.value_or(false)) {
    stack.remove_prefix(stack.find("mtp."));
  }
  return "vp" + std::to_string(ChunkOf(instance).chunk) + "/" + Filled(stack, numbers) +
         Filled(SpelledName(*instance.rule, trainer_), numbers);
}

// The name that a checkpoint of the larger model has, if that is what receives it.
std::string Compiler::Wrapped(std::string_view name) const {
  constexpr std::string_view kText = "model.";
  if (!wrapped_ || !name.starts_with(kText)) return std::string(name);
  return family_.wrapped + std::string(name.substr(kText.size()));
}

std::string Compiler::NameOf(const Instance& instance, const Output& output) const {
  const Module& module = *instance.module;
  const Numbers numbers{.module = module.global,
                        .after_layers = topology_.num_layers + module.global,
                        .expert = std::max(0, instance.expert)};
  const std::string_view name = output.name;
  if (name.starts_with('/')) return Filled(name.substr(1), numbers);
  return Filled(Wrapped(module.stack->hf), numbers) + Filled(name, numbers);
}

void Compiler::AddTensors(const Instance& instance, std::vector<TensorSpec>* specs) const {
  const Rule& rule = *instance.rule;
  for (const Output& output : rule.used_outputs()) {
    if (output.packed && instance.expert > 0) continue;
    TensorSpec spec;
    spec.name = NameOf(instance, output);
    const bool widened = rule.map == layout::ValueMap::kWidenToF32;
    spec.dtype = widened ? DType::kF32 : ParamDType(rule, trainer_);
    spec.shape = ShapeOf(rule, output, dims_);
    specs->push_back(spec);
    if (alias_ && spec.name == tied_to_) {
      spec.name = family_.tied_alias;
      specs->push_back(std::move(spec));
    }
  }
}

Status Compiler::MakeInventory() {
  std::vector<TensorSpec> specs;
  for (const Instance& instance : instances_) {
    if (!instance.rule->copy) AddTensors(instance, &specs);
  }
  inventory_ = std::make_shared<const Inventory>(WC_TRY(Inventory::Make(std::move(specs))));
  if (alias_) out_.aliases.push_back({family_.tied_alias, tied_to_});
  return Ok();
}

TensorCut Compiler::CutOf(const Rule& rule) const {
  TensorCut cut;
  cut.ranks = rule.per_expert() ? topology_.etp : topology_.tp;
  cut.vocab_rows = options_.vocab_rows > 0     ? options_.vocab_rows
                   : trainer_.padded_vocab > 0 ? trainer_.padded_vocab
                                               : dims_[Dim::kVocab];
  return cut;
}

// The same for every layer and expert.
Result<const std::vector<Shard>*> Compiler::ShardsOfRule(const Rule& rule) {
  const auto [it, made] = shards_of_.try_emplace(&rule);
  if (!made) return &it->second;
  const TensorCut cut = CutOf(rule);
  for (int32_t index = 0; index < ShardsOf(rule, dims_, cut); ++index) {
    it->second.push_back(WC_TRY(ExpandRule(rule, dims_, cut, index)));
  }
  return &it->second;
}

// Ranks that hold the index-th of the instance's `shards` shards, in order.
std::vector<int32_t> Compiler::RanksOf(const Instance& instance, int32_t shards,
                                       int32_t index) const {
  const bool per_expert = instance.expert >= 0;
  const int32_t ranks = per_expert ? topology_.etp : topology_.tp;
  const auto a_rank = static_cast<int32_t>(dims_[Dim::kExperts] / topology_.ep);
  const int32_t begin = ChunkOf(instance).stage * static_cast<int32_t>(in_stage_.size());
  std::vector<int32_t> found;
  for (size_t i = 0; i < in_stage_.size(); ++i) {
    const layout::Coordinates& at = in_stage_[i];
    const int32_t t = per_expert ? at.etp : at.tp;
    if (t * shards / ranks != index) continue;
    if (per_expert && at.ep != instance.expert / a_rank) continue;
    found.push_back(begin + static_cast<int32_t>(i));
  }
  return found;
}

std::vector<Slice> Compiler::SlicesOf(const Instance& instance, const Shard& shard) const {
  std::vector<Slice> slices;
  int64_t tensors[kOutputsMax] = {};
  int64_t first_row[kOutputsMax] = {};
  const auto outputs = instance.rule->used_outputs();
  for (size_t o = 0; o < outputs.size(); ++o) {
    tensors[o] = inventory_->Find(NameOf(instance, outputs[o]));
    if (!outputs[o].packed) continue;
    const TensorSpec& spec = (*inventory_)[static_cast<size_t>(tensors[o])];
    first_row[o] = spec.matrix().rows / spec.shape[0] * instance.expert;
  }
  for (const Piece& piece : shard.pieces) {
    Slice slice;
    slice.tensor = static_cast<int32_t>(tensors[piece.output]);
    slice.box = piece.box;
    slice.box.row += first_row[piece.output];
    slice.source = piece.source;
    slice.row_stride = piece.row_stride;
    slice.col_stride = piece.col_stride;
    slice.map = instance.rule->map;
    slices.push_back(slice);
    if (alias_ && (*inventory_)[static_cast<size_t>(slice.tensor)].name == tied_to_) {
      slice.tensor = static_cast<int32_t>(inventory_->Find(family_.tied_alias));
      slices.push_back(slice);
    }
  }
  return slices;
}

// Adds the instance's parameter to every rank that holds a shard of it.
Status Compiler::PlaceInstance(const Instance& instance) {
  const Rule& rule = *instance.rule;
  const std::string key = KeyOf(instance);
  const int64_t first_tensor = inventory_->Find(NameOf(instance, rule.outputs[0]));
  const std::vector<Shard>& shards = *WC_TRY(ShardsOfRule(rule));
  for (size_t index = 0; index < shards.size(); ++index) {
    const Shard& shard = shards[index];
    const auto i = static_cast<int32_t>(index);
    const DType dtype = ParamDType(rule, trainer_);
    SharedShard shared;
    for (const int32_t r : RanksOf(instance, static_cast<int32_t>(shards.size()), i)) {
      RankPlan& rank = ranks_[static_cast<size_t>(r)];
      shared.places.push_back({r, static_cast<int32_t>(rank.params.size())});
      rank.params.push_back({key, dtype, shard.shape});
    }
    if (!Unused(rule)) {
      ReplicaSet& replicas = replicas_[{first_tensor, instance.expert, i}];
      replicas.bytes = shard.real_units * tensor::UnitBytes(dtype);
      replicas.places.insert(replicas.places.end(), shared.places.begin(), shared.places.end());
    }
    if (rule.copy) continue;
    shared.slices = SlicesOf(instance, shard);
    shards_.push_back(std::move(shared));
  }
  return Ok();
}

// Params were listed rule by rule; a plan has them sorted by key.
void Compiler::SortParams() {
  std::vector<std::vector<int32_t>> sorted_at(ranks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    std::vector<layout::Param>& params = ranks_[r].params;
    std::vector<int32_t> order(params.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::ranges::sort(order, {}, [&](int32_t i) -> const std::string& {
      return params[static_cast<size_t>(i)].key;
    });
    sorted_at[r].resize(order.size());
    std::vector<layout::Param> sorted(params.size());
    for (size_t i = 0; i < order.size(); ++i) {
      sorted_at[r][static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
      sorted[i] = std::move(params[static_cast<size_t>(order[i])]);
    }
    params = std::move(sorted);
  }
  const auto move = [&](std::vector<Place>& places) {
    for (Place& p : places) {
      p.param = sorted_at[static_cast<size_t>(p.rank)][static_cast<size_t>(p.param)];
    }
  };
  for (SharedShard& shard : shards_) move(shard.places);
  for (auto& [key, set] : replicas_) move(set.places);
}

void Compiler::CollectReplicas() {
  for (auto& [key, set] : replicas_) {
    if (set.places.size() > 1 && set.bytes > 0) out_.replicas.push_back(std::move(set));
  }
}

Status Compiler::PlaceShards() {
  ranks_.resize(static_cast<size_t>(topology_.world));
  for (int32_t r = 0; r < topology_.world / topology_.pp; ++r) in_stage_.push_back(topology_.At(r));
  for (const Instance& instance : instances_) WC_TRY(PlaceInstance(instance));
  SortParams();
  layout::AssignOwners(*inventory_, shards_, &ranks_);
  CollectReplicas();
  for (RankPlan& rank : ranks_) {
    rank.ignored.assign(std::begin(kIgnored), std::end(kIgnored));
    rank.ignored.insert(rank.ignored.end(), options_.ignore.begin(), options_.ignore.end());
  }
  return Ok();
}

Result<CompiledPlan> Compiler::Run() {
  WC_TRY(Check());
  WC_TRY(ListInstances());
  WC_TRY(MakeInventory());
  out_.carried = WC_TRY(CompareWithReceiver(*inventory_, options_));
  WC_TRY(PlaceShards());
  auto plan = std::make_shared<layout::Plan>();
  plan->inventory = inventory_;
  plan->family = family_.name;
  plan->ranks = std::move(ranks_);
  WC_TRY(layout::ProveCoverage(*plan));
  out_.hash = plan->Hash();
  out_.plan = std::move(plan);
  return std::move(out_);
}

}  // namespace

ExpertLayout ExpertLayoutOf(std::string_view name) {
  const auto* const found = std::ranges::find(kExpertLayouts, name);
  WC_CHECK(found != std::end(kExpertLayouts));
  return static_cast<ExpertLayout>(found - std::begin(kExpertLayouts));
}

bool IsTied(const Family& family, const HfConfig& model) {
  return model.tie_word_embeddings.value_or(family.tied_by_default);
}

int64_t VocabRowsOf(const Family& family, const MegatronConfig& trainer,
                    const std::vector<TensorSpec>& shard) {
  for (const Stack& stack : family.stacks) {
    for (const std::span<const Rule> group : stack.rules) {
      for (const Rule& rule : group) {
        if (rule.cut != Cut::kVocabRows) continue;
        const Chunk at = stack.holder == Holder::kFirstStage ? trainer.topology.EmbeddingAt()
                         : stack.holder == Holder::kMtpStage ? trainer.topology.MtpAt()
                                                             : trainer.topology.OutputAt();
        const std::string key = "vp" + std::to_string(at.chunk) + "/" + stack.megatron + rule.name;
        const auto it = std::ranges::find(shard, key, &TensorSpec::name);
        if (it != shard.end() && !it->shape.empty()) return it->shape[0] * trainer.topology.tp;
      }
    }
  }
  return 0;
}

Result<CompiledPlan> CompilePlanFor(const Family& family, const HfConfig& model,
                                    const MegatronConfig& trainer, const CompileOptions& options) {
  return Compiler(family, model, trainer, options).Run();
}

Result<CompiledPlan> CompilePlan(const HfConfig& model, const MegatronConfig& trainer,
                                 const CompileOptions& options) {
  const Family* family = WC_TRY(FindFamily(model));
  return CompilePlanFor(*family, model, trainer, options);
}

}  // namespace weightcast::bridge
