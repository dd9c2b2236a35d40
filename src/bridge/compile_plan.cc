#include "bridge/compile_plan.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "bridge/dims.h"
#include "bridge/expand.h"
#include "bridge/families/families.h"

namespace weightcast::bridge {
namespace {

using layout::RankPlan;
using layout::Slice;
using layout::Topology;
using tensor::DType;
using tensor::Inventory;
using tensor::TensorSpec;

// Parameters of all ranks together, of some 150 bytes each: 16 Ki ranks with a thousand each.
constexpr int64_t kParamsMax = int64_t{1} << 24;

// "decoder.layers.*.x" with 3 -> "decoder.layers.3.x".
std::string Numbered(std::string_view pattern, int32_t number) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return std::string(pattern);
  return std::string(pattern.substr(0, star)) + std::to_string(number) +
         std::string(pattern.substr(star + 1));
}

std::string KeyOf(const Rule& rule, bool local_spec, int32_t chunk, int32_t local_layer) {
  const char* name = local_spec && rule.local_name != nullptr ? rule.local_name : rule.name;
  return "vp" + std::to_string(chunk) + "/" + Numbered(name, local_layer);
}

DType ParamDType(const Rule& rule, const MegatronConfig& trainer) {
  return rule.fp32 ? DType::kF32 : trainer.params_dtype;
}

// One parameter of one stage: a rule in a chunk, for layer rules with a layer.
struct Instance {
  const Rule* rule = nullptr;
  int32_t stage = 0;
  int32_t chunk = 0;
  int32_t local_layer = 0;
  int32_t layer = 0;  // global
};

class Compiler {
 public:
  Compiler(const Family& family, const HfConfig& model, const MegatronConfig& trainer,
           const CompileOptions& options)
      : family_(family), model_(model), trainer_(trainer), options_(options) {}

  Result<CompiledPlan> Run();

 private:
  Status Check();
  void ListLayers(const Rule& rule);
  Status ListInstances();
  Status MakeInventory();
  void AddTensors(const Instance& instance, std::vector<TensorSpec>* specs) const;
  Status PlaceShards();
  Status PlaceInstance(const Instance& instance);
  void SortParams();
  void CollectReplicas();
  Status CompareReference();
  Status Carry(std::vector<TensorSpec>* all);

  bool Exists(const Rule& rule) const;
  std::vector<Slice> SlicesOf(const Instance& instance, const Shard& shard) const;

  const Family& family_;
  const HfConfig& model_;
  const MegatronConfig& trainer_;
  const CompileOptions& options_;
  const Topology& topology_ = trainer_.topology;
  Dims dims_;
  TensorCut cut_;
  bool tied_ = false;
  bool alias_ = false;  // the reference lists the tied output layer
  std::vector<Instance> instances_;
  std::shared_ptr<const Inventory> inventory_;
  std::vector<RankPlan> ranks_;
  std::vector<SharedShard> shards_;
  // By (first tensor, shard of it): a tied copy joins the embedding that it repeats.
  std::map<std::pair<int64_t, int32_t>, ReplicaSet> replicas_;
  CompiledPlan out_;
};

bool Compiler::Exists(const Rule& rule) const {
  switch (rule.when) {
    case When::kAlways:
      return true;
    case When::kUntied:
      return !tied_;
    case When::kTiedOverStages:
      return tied_ && topology_.pp > 1;
  }
  return false;
}

Status Compiler::Check() {
  WC_TRY(topology_.Check());
  dims_ = WC_TRY(ReadDims(model_));
  tied_ = IsTied(family_, model_);
  alias_ = tied_ && options_.reference && options_.reference->Find(family_.tied_alias) >= 0;
  WC_TRY(CheckSameModel(model_, dims_, tied_, trainer_));
  std::vector<std::string> refused = trainer_.unsupported;
  for (const std::string_view flag : family_.refused) {
    if (model_.Flag(flag)) refused.push_back("config.json's " + std::string(flag));
  }
  if (topology_.ep > 1) {
    refused.push_back("expert_model_parallel_size = " + std::to_string(topology_.ep));
  }
  if (!refused.empty()) {
    return Error{Code::kInvalidData,
                 std::string("family ") + family_.name + " has no rules for " + JoinNames(refused)};
  }
  cut_.ranks = topology_.tp;
  cut_.vocab_rows = options_.vocab_rows > 0     ? options_.vocab_rows
                    : trainer_.padded_vocab > 0 ? trainer_.padded_vocab
                                                : dims_[Dim::kVocab];
  return Ok();
}

void Compiler::ListLayers(const Rule& rule) {
  for (int32_t stage = 0; stage < topology_.pp; ++stage) {
    for (int32_t chunk = 0; chunk < topology_.vpp; ++chunk) {
      const Topology::LayerRange range = topology_.LayersOf(stage, chunk);
      for (int32_t i = 0; i < range.count; ++i) {
        instances_.push_back({&rule, stage, chunk, i, range.first + i});
      }
    }
  }
}

Status Compiler::ListInstances() {
  for (const std::span<const Rule> group : family_.rules) {
    for (const Rule& rule : group) {
      if (!Exists(rule)) continue;
      if (rule.holder == Holder::kFirstStage) instances_.push_back({&rule, 0, 0, 0, 0});
      if (rule.holder == Holder::kLastStage) {
        instances_.push_back({&rule, topology_.pp - 1, topology_.vpp - 1, 0, 0});
      }
      if (rule.holder == Holder::kLayer) ListLayers(rule);
    }
  }
  const int64_t params = static_cast<int64_t>(instances_.size()) * (topology_.world / topology_.pp);
  if (params <= kParamsMax) return Ok();
  return Error{Code::kInvalidData, "a plan of about " + std::to_string(params) + " parameters on " +
                                       std::to_string(topology_.world) + " ranks; at most " +
                                       std::to_string(kParamsMax)};
}

void Compiler::AddTensors(const Instance& instance, std::vector<TensorSpec>* specs) const {
  const Rule& rule = *instance.rule;
  for (const Output& output : rule.used_outputs()) {
    TensorSpec spec;
    spec.name = Numbered(output.name, instance.layer);
    const bool widened = rule.map == layout::ValueMap::kWidenToF32;
    spec.dtype = widened ? DType::kF32 : ParamDType(rule, trainer_);
    spec.shape = {dims_(output.rows)};
    if (output.cols) spec.shape.push_back(dims_(*output.cols));
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

std::vector<Slice> Compiler::SlicesOf(const Instance& instance, const Shard& shard) const {
  std::vector<Slice> slices;
  int64_t tensors[kOutputsMax] = {};
  const auto outputs = instance.rule->used_outputs();
  for (size_t o = 0; o < outputs.size(); ++o) {
    tensors[o] = inventory_->Find(Numbered(outputs[o].name, instance.layer));
  }
  for (const Piece& piece : shard.pieces) {
    Slice slice;
    slice.tensor = static_cast<int32_t>(tensors[piece.output]);
    slice.box = piece.box;
    slice.source = piece.source;
    slice.row_stride = piece.row_stride;
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
  const std::string key = KeyOf(rule, trainer_.local_spec, instance.chunk, instance.local_layer);
  const int64_t first_tensor = inventory_->Find(Numbered(rule.outputs[0].name, instance.layer));
  const int32_t a_stage = topology_.world / topology_.pp;
  const int32_t shards = ShardsOf(rule, cut_);
  for (int32_t index = 0; index < shards; ++index) {
    const Shard shard = WC_TRY(ExpandRule(rule, dims_, cut_, index));
    const DType dtype = ParamDType(rule, trainer_);
    SharedShard shared;
    for (int32_t r = instance.stage * a_stage; r < (instance.stage + 1) * a_stage; ++r) {
      if (shards > 1 && topology_.At(r).tp != index) continue;
      RankPlan& rank = ranks_[static_cast<size_t>(r)];
      shared.places.push_back({r, static_cast<int32_t>(rank.params.size())});
      rank.params.push_back({key, dtype, shard.shape});
    }
    ReplicaSet& replicas = replicas_[{first_tensor, index}];
    replicas.bytes = shard.real_units * tensor::UnitBytes(dtype);
    replicas.places.insert(replicas.places.end(), shared.places.begin(), shared.places.end());
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
  return Error{
      Code::kInvalidData,
      "what the trainer produces, with what is carried, is not what the reference holds: " +
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

bool IsTied(const Family& family, const HfConfig& model) {
  return model.tie_word_embeddings.value_or(family.tied_by_default);
}

int64_t VocabRowsOf(const Family& family, const MegatronConfig& trainer,
                    const std::vector<TensorSpec>& shard) {
  for (const std::span<const Rule> group : family.rules) {
    for (const Rule& rule : group) {
      if (rule.cut != Cut::kVocabRows) continue;
      const int32_t chunk = rule.holder == Holder::kLastStage ? trainer.topology.vpp - 1 : 0;
      const std::string key = KeyOf(rule, trainer.local_spec, chunk, 0);
      const auto it = std::ranges::find(shard, key, &TensorSpec::name);
      if (it != shard.end() && !it->shape.empty()) return it->shape[0] * trainer.topology.tp;
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
