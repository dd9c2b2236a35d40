#include "bridge/compile_plan.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "base/text.h"
#include "bridge/dims.h"
#include "bridge/expand.h"
#include "bridge/families/families.h"
#include "bridge/layers.h"

namespace weightcast::bridge {
namespace {

using layout::RankPlan;
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
};

std::string Filled(std::string_view pattern, const Numbers& numbers) {
  std::string text;
  for (const char c : pattern) {
    switch (c) {
      case '*':
        text += std::to_string(numbers.module);
        break;
      case '+':
        text += std::to_string(numbers.after_layers);
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
Result<int64_t> CountOf(const HfConfig& model, const char* key) {
  const int64_t count = model.Int(key).value_or(-1);
  if (count >= 0 && count <= layout::kLayersMax) return count;
  return Error{Code::kInvalidData, "config.json: " + std::string(key) + ": expected 0.." +
                                       std::to_string(layout::kLayersMax)};
}

// The major number of "4.57.1"; 0 if it says none.
int MajorOf(std::string_view version) {
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  return major;
}

bool HasRule(const Family& family, When when) {
  for (const Stack& stack : family.stacks) {
    for (const std::span<const Rule> group : stack.rules) {
      if (std::ranges::count(group, when, &Rule::when) > 0) return true;
    }
  }
  return false;
}

// Whether the reference's names fit what is asked for. Which way packed ones lie is for the shapes
// to say (CompareReference).
Status CheckAsked(const Family& family, ExpertLayout asked, const std::string& one_name,
                  const std::string& packed_name) {
  const std::string name = kExpertLayouts[static_cast<size_t>(asked)];
  if (!HasRule(family, When::kPerName)) {
    return Error{Code::kInvalidArgument, "expert layout " + name + ": family " + family.name +
                                             " has no experts, or one layout of them"};
  }
  const bool packed = asked != ExpertLayout::kPerName;
  const std::string& other = packed ? one_name : packed_name;
  if (other.empty()) return Ok();
  return Error{Code::kInvalidData, "expert layout " + name + " is asked for, the reference has " +
                                       (packed ? "per-name" : "packed") + " ones (" + other + ")"};
}

// Told, else as the reference's names are, else as the family's checkpoints are. Shapes decide
// nothing: an expert may be square.
Result<ExpertLayout> ChooseExpertLayout(const Family& family, const HfConfig& model,
                                        const CompileOptions& options) {
  bool packed = family.packed_by_default;
  std::string one_name, packed_name;
  if (options.reference) {
    for (const TensorSpec& spec : options.reference->tensors()) {
      if (MatchesGlob("*.mlp.experts.0.*", spec.name)) one_name = spec.name;
      if (MatchesGlob("*.mlp.experts.gate_up_proj*", spec.name)) packed_name = spec.name;
    }
    if (!one_name.empty() && !packed_name.empty()) {
      return Error{Code::kInvalidData, "the reference has experts by name (" + one_name +
                                           ") and packed ones (" + packed_name + ")"};
    }
    if (!one_name.empty() || !packed_name.empty()) packed = !packed_name.empty();
  }
  if (options.expert_layout != ExpertLayout::kAuto) {
    WC_TRY(CheckAsked(family, options.expert_layout, one_name, packed_name));
    return options.expert_layout;
  }
  if (!packed) return ExpertLayout::kPerName;
  return family.in_out_before_5 && MajorOf(model.transformers_version) < 5
             ? ExpertLayout::kPackedInOut
             : ExpertLayout::kPackedOutIn;
}

class Compiler {
 public:
  Compiler(const Family& family, const HfConfig& model, const MegatronConfig& trainer,
           const CompileOptions& options)
      : family_(family), model_(model), trainer_(trainer), options_(options) {}

  Result<CompiledPlan> Run();

 private:
  Status Check();
  Status ListModules();
  Status ListInstances();
  Status ReadSizes();
  Status MakeInventory();
  void AddTensors(const Instance& instance, std::vector<TensorSpec>* specs) const;
  Status PlaceShards();
  Status PlaceInstance(const Instance& instance);
  void SortParams();
  void CollectReplicas();
  Status CompareReference();
  Status Carry(std::vector<TensorSpec>* all);

  bool Exists(const Rule& rule) const;
  bool Unused(const Rule& rule) const;
  Chunk ChunkOf(const Instance& instance) const;
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
  bool alias_ = false;  // the reference lists the tied output layer
  ExpertLayout experts_ = ExpertLayout::kPerName;
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

bool Compiler::Exists(const Rule& rule) const {
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
    case When::kPerName:
      return experts_ == ExpertLayout::kPerName;
    case When::kPackedOutIn:
      return experts_ == ExpertLayout::kPackedOutIn;
    case When::kPackedInOut:
      return experts_ == ExpertLayout::kPackedInOut;
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
  alias_ = tied_ && options_.reference && options_.reference->Find(family_.tied_alias) >= 0;
  experts_ = WC_TRY(ChooseExpertLayout(family_, model_, options_));
  std::vector<std::string> refused = Unsupported(trainer_, family_.settings);
  for (const std::string_view flag : family_.refused) {
    if (model_.Flag(flag)) refused.push_back("config.json's " + std::string(flag));
  }
  const bool has_experts = std::ranges::any_of(
      family_.settings, [](const Setting& s) { return s.key == "num_moe_experts"; });
  if (topology_.ep > 1 && !has_experts) {
    refused.push_back("expert_model_parallel_size = " + std::to_string(topology_.ep));
  }
  if (refused.empty()) return Ok();
  return Error{Code::kInvalidData,
               std::string("family ") + family_.name + " has no rules for " + JoinNames(refused)};
}

Status Compiler::ListModules() {
  const std::vector<LayerKind> kinds = WC_TRY(LayerKinds(family_, model_, trainer_));
  const Chunk first = topology_.EmbeddingAt();
  const Chunk last = topology_.OutputAt();
  const Chunk mtp = topology_.MtpAt();
  for (const Stack& stack : family_.stacks) {
    const auto add = [&](Chunk at, int32_t number, int32_t global, LayerKind kind) {
      modules_.push_back({&stack, at, number, global, kind});
    };
    const auto add_numbered = [&](Chunk at, int64_t count, LayerKind kind) {
      for (int32_t i = 0; i < count; ++i) add(at, i, i, kind);
    };
    switch (stack.holder) {
      case Holder::kFirstStage:
        add(first, 0, 0, {});
        break;
      case Holder::kLastStage:
        add(last, 0, 0, {});
        break;
      case Holder::kMtpStage:
        if (trainer_.mtp_layers > 0) add(mtp, 0, 0, {});
        break;
      case Holder::kLayers:
        for (int32_t s = 0; s < topology_.pp; ++s) {
          for (int32_t c = 0; c < topology_.vpp; ++c) {
            const Topology::LayerRange range = topology_.LayersOf(s, c);
            for (int32_t i = 0; i < range.count; ++i) {
              add({s, c}, i, range.first + i, kinds[static_cast<size_t>(range.first + i)]);
            }
          }
        }
        break;
      case Holder::kVisionLayers:
        add_numbered(first, WC_TRY(CountOf(model_, "vision_config.depth")), {});
        break;
      case Holder::kDeepstack: {
        const auto list = model_.int_lists.find("vision_config.deepstack_visual_indexes");
        const size_t count = list == model_.int_lists.end() ? 0 : list->second.size();
        add_numbered(first, static_cast<int64_t>(count), {});
        break;
      }
      case Holder::kMtpLayers:
        add_numbered(mtp, trainer_.mtp_layers, kinds.back());
        break;
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
        if (!Has(module.kind, rule.only) || !Exists(rule)) continue;
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

std::string Compiler::NameOf(const Instance& instance, const Output& output) const {
  const Module& module = *instance.module;
  const Numbers numbers{.module = module.global,
                        .after_layers = topology_.num_layers + module.global,
                        .expert = std::max(0, instance.expert)};
  const std::string_view name = output.name;
  if (name.starts_with('/')) return Filled(name.substr(1), numbers);
  return Filled(module.stack->hf, numbers) + Filled(name, numbers);
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
    if (alias_ && spec.name == family_.tied_to) {
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
  if (alias_) out_.aliases.push_back({family_.tied_alias, family_.tied_to});
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
    if (alias_ && (*inventory_)[static_cast<size_t>(slice.tensor)].name == family_.tied_to) {
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
  AssignOwners(*inventory_, shards_, &ranks_);
  CollectReplicas();
  for (RankPlan& rank : ranks_) {
    rank.ignored.assign(std::begin(kIgnored), std::end(kIgnored));
    rank.ignored.insert(rank.ignored.end(), options_.ignore.begin(), options_.ignore.end());
  }
  return Ok();
}

// Names the reference tensors that the carry patterns declare, and appends them to `all`.
Status Compiler::Carry(std::vector<TensorSpec>* all) {
  std::vector<std::string> clashes;
  std::vector<bool> used(options_.carry.size());
  for (const TensorSpec& spec : options_.reference->tensors()) {
    bool carried = false;
    for (size_t i = 0; i < options_.carry.size(); ++i) {
      if (!MatchesGlob(options_.carry[i], spec.name)) continue;
      used[i] = carried = true;
    }
    if (!carried) continue;
    if (inventory_->Find(spec.name) >= 0) clashes.push_back(spec.name);
    out_.carried.push_back(spec.name);
    all->push_back(spec);
  }
  if (!clashes.empty()) {
    return Error{Code::kInvalidArgument,
                 "the trainer produces what is to be carried: " + JoinNames(clashes)};
  }
  std::vector<std::string> idle;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) idle.push_back(Quoted(options_.carry[i]));
  }
  if (idle.empty()) return Ok();
  return Error{Code::kInvalidArgument, "no reference tensor matches --carry " + JoinNames(idle)};
}

// Reference = produced + carried, exactly.
Status Compiler::CompareReference() {
  if (!options_.reference) {
    if (options_.carry.empty()) return Ok();
    return Error{Code::kInvalidArgument,
                 "tensors to carry (" + JoinNames(options_.carry) +
                     ") need a seed or reference checkpoint that holds them"};
  }
  std::vector<TensorSpec> all = inventory_->tensors();
  WC_TRY(Carry(&all));
  const Inventory made = WC_TRY(Inventory::Make(std::move(all)));
  if (made == *options_.reference) return Ok();
  const bool asked = options_.expert_layout != ExpertLayout::kAuto;
  const std::string experts = kExpertLayouts[static_cast<size_t>(options_.expert_layout)];
  return Error{Code::kInvalidData,
               "what the trainer produces, with what is carried" +
                   (asked ? " and experts " + experts + " as asked for" : std::string()) +
                   ", is not what the reference holds: " +
                   tensor::DifferenceText(*options_.reference, made)};
}

Result<CompiledPlan> Compiler::Run() {
  WC_TRY(Check());
  WC_TRY(ListInstances());
  WC_TRY(MakeInventory());
  WC_TRY(CompareReference());
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
