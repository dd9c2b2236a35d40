#include "bridge/raw/raw.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/text.h"
#include "bridge/raw/families.h"
#include "bridge/receiver.h"
#include "layout/owners.h"

namespace weightcast::bridge {
namespace {

using raw::Family;
using raw::Model;
using raw::Param;
using raw::Rank;
using raw::Tensor;

constexpr const char* kOutputLayer = "output_layer.weight";
constexpr const char* kEmbedding = "embedding.word_embeddings.weight";
constexpr const char* kTiedAlias = "lm_head.weight";

std::string TooManyParams() {
  return "a plan of more than " + std::to_string(kRawParamsMax) + " parameters";
}

Result<const Family*> FindRawFamily(const HfConfig& config) {
  std::vector<std::string> known;
  for (const Family* family : raw::kFamilies) {
    for (const std::string_view architecture : family->architectures) {
      if (std::ranges::count(config.architectures, architecture) > 0) return family;
      known.emplace_back(architecture);
    }
  }
  return Error{Code::kInvalidData, "no converter for architecture " +
                                       JoinNames(config.architectures) +
                                       "; known: " + JoinNames(known, known.size())};
}

Error Misfit(const Family& family, const std::vector<std::string>& faults) {
  return {Code::kInvalidData,
          "converter " + std::string(family.name) + ": " + JoinNames(faults, faults.size())};
}

// What can be seen before any parameter is looked at.
void CheckConfigs(const Family& family, const CompileOptions& options, Model& model) {
  for (const std::string& setting : Unsupported(model.trainer, family.settings)) {
    model.Fault("not made for " + setting);
  }
  const layout::Topology& t = model.topology;
  if (int64_t{t.num_layers} * (t.world / t.pp) > kRawParamsMax) {
    model.Fault(TooManyParams());  // one a layer at least
  }
  if (model.topology.ep > 1 && !family.experts) {
    model.Fault("not made for expert_model_parallel_size = " + std::to_string(model.topology.ep));
  }
  if (options.vocab_rows < 0 || options.vocab_rows > kVocabRowsMax) {
    model.Fault("an embedding of " + std::to_string(options.vocab_rows) + " rows");
  }
  if (model.config.Int("num_hidden_layers") != model.topology.num_layers) {
    model.Fault("num_hidden_layers/num_layers: the trainer has " +
                std::to_string(model.topology.num_layers));
  }
  const auto vocab = model.trainer.ints.find("vocab_size");
  if (vocab != model.trainer.ints.end() && vocab->second > model.Size({"vocab_size"})) {
    model.Fault("the trainer's vocab_size " + std::to_string(vocab->second) +
                " is above config.json's");
  }
  for (const char* key : kMtpCounts) {
    if (const auto count = model.config.Int(key); count && *count < model.trainer.mtp_layers) {
      model.Fault(std::string(key) + " is below the trainer's mtp_num_layers " +
                  std::to_string(model.trainer.mtp_layers));
    }
  }
  if (model.trainer.tied && *model.trainer.tied != model.tied) {
    model.Fault("tie_word_embeddings/share_embeddings_and_output_weights differ");
  }
}

// Goes through the chunks and layers of one rank.
class Walk {
 public:
  Walk(const Family& family, Rank& rank, int64_t params_max)
      : family_(family),
        rank_(rank),
        model_(rank.model),
        params_max_(params_max),
        from_(family.vision ? "language_model." : ""),
        to_(model_.text),
        embedding_{to_ + "embed_tokens.weight", {model_.Size({"vocab_size"}), model_.Hidden()}} {}

  void All() {
    const layout::Topology& t = model_.topology;
    const layout::Topology::Chunk norm =
        model_.trainer.norm_with_last_layer ? t.LastLayerAt() : t.OutputAt();
    for (int32_t c = 0; c < t.vpp; ++c) {
      const layout::Topology::Chunk here{rank_.at.pp, c};
      rank_.chunk = c;
      if (here == t.EmbeddingAt()) First();
      const layout::Topology::LayerRange range = t.LayersOf(rank_.at.pp, c);
      for (int32_t i = 0; i < range.count && Goes(); ++i) {
        const int32_t number = range.first + i;
        family_.layer(rank_, {from_ + "decoder.layers." + std::to_string(i) + ".",
                              to_ + "layers." + std::to_string(number) + ".", number});
      }
      if (here == norm) {
        rank_.Whole(from_ + "decoder.final_layernorm.weight",
                    {to_ + "norm.weight", {model_.Hidden()}});
      }
      if (here == t.OutputAt()) Last();
      if (here == t.MtpAt()) Predict();
    }
    std::ranges::sort(rank_.params, {}, &Param::key);
    const auto twice = std::ranges::adjacent_find(rank_.params, {}, &Param::key);
    if (twice != rank_.params.end()) model_.Fault(twice->key + " is there twice");
  }

 private:
  bool Goes() {
    if (static_cast<int64_t>(rank_.params.size()) > params_max_) {
      model_.Stop(TooManyParams());
    }
    return !model_.gives_up();
  }

  void First() {
    rank_.VocabPart(from_ + kEmbedding, embedding_, Rank::Use::kOwn);
    if (family_.tower != nullptr) family_.tower(rank_);
  }

  void Last() {
    if (!model_.tied) {
      rank_.VocabPart(from_ + kOutputLayer, {"lm_head.weight", embedding_.shape}, Rank::Use::kOwn);
    } else if (model_.topology.pp > 1) {
      // Megatron allocates it beside a prediction module, and uses that one's embedding.
      const bool unused = Predicts() && model_.topology.MtpAt() == model_.topology.OutputAt();
      rank_.VocabPart(from_ + kOutputLayer, embedding_,
                      unused ? Rank::Use::kUnused : Rank::Use::kCopy);
    }
  }

  bool Predicts() const { return family_.mtp != nullptr && model_.trainer.mtp_layers > 0; }

  // What predicts further tokens embeds them itself.
  void Predict() {
    if (!Predicts()) return;
    const layout::Topology& t = model_.topology;
    if (t.MtpAt() != t.EmbeddingAt()) {
      rank_.VocabPart(from_ + kEmbedding, embedding_, Rank::Use::kCopy);
    }
    const std::string from = model_.trainer.spelling.mtp_at_root.value_or(false) ? "" : from_;
    for (int32_t j = 0; j < model_.trainer.mtp_layers && Goes(); ++j) {
      family_.mtp(rank_, from + "mtp.layers." + std::to_string(j) + ".", j);
    }
  }

  const Family& family_;
  Rank& rank_;
  Model& model_;
  const int64_t params_max_;
  const std::string from_, to_;
  const Tensor embedding_;
};

// Parameters that hold the same: found by what they hold, not by who should.
struct Same {
  layout::SharedShard shard;  // those that may send it
  ReplicaSet all;
};
using SameByContent = std::map<std::vector<int64_t>, Same>;

std::vector<int64_t> ContentOf(const Param& param) {
  std::vector<int64_t> content;
  for (const layout::Slice& s : param.slices) {
    content.insert(content.end(),
                   {s.tensor, s.box.row, s.box.rows, s.box.row_step, s.box.col, s.box.cols,
                    s.box.col_step, s.source, s.row_stride, s.col_stride});
  }
  return content;
}

void Group(Rank& rank, SameByContent* found) {
  for (size_t i = 0; i < rank.params.size(); ++i) {
    const Param& param = rank.params[i];
    if (param.slices.empty()) continue;  // nothing but padding
    Same& same = (*found)[ContentOf(param)];
    const layout::Place place{rank.at.rank, static_cast<int32_t>(i)};
    same.all.places.push_back(place);
    if (param.copy) continue;
    same.shard.slices = param.slices;
    if (!same.shard.places.empty() && same.shard.places.back().rank == rank.at.rank) {
      rank.model.Fault("rank " + std::to_string(rank.at.rank) + " has " + param.key +
                       " under another name too");
    }
    same.shard.places.push_back(place);
  }
}

layout::RankPlan PlanOf(Rank& rank) {
  layout::RankPlan plan;
  for (Param& param : rank.params) {
    plan.params.push_back({std::move(param.key), param.dtype, std::move(param.shape)});
  }
  return plan;
}

// Below which names the receiver has the text model.
std::string TextOf(const Family& family, const CompileOptions& options) {
  const std::string plain = "model.";
  const std::string part = "model.language_model.";
  if (family.vision) return part;
  const std::vector<std::string> names = DeclaredNames(options);
  const auto any = [&](const std::string& prefix) {
    return std::ranges::any_of(names, [&](const auto& name) { return name.starts_with(prefix); });
  };
  return family.part && any(part + "layers.") && !any(plain + "layers.") ? part : plain;
}

// All ranks' parameters, and which of them are the same.
Result<std::vector<layout::RankPlan>> ConvertRanks(const Family& family, Model& model,
                                                   SameByContent* same) {
  std::vector<layout::RankPlan> ranks;
  int64_t params_left = kRawParamsMax;
  for (int32_t r = 0; r < model.topology.world; ++r) {
    Rank rank(model, model.topology.At(r));
    Walk(family, rank, params_left).All();
    Group(rank, same);
    if (!model.faults().empty()) return Misfit(family, model.faults());
    params_left -= static_cast<int64_t>(rank.params.size());
    ranks.push_back(PlanOf(rank));
  }
  return ranks;
}

// From the converters' numbers of tensors to the inventory's. `aliased` (if not empty) is sent
// twice.
std::vector<layout::SharedShard> Renumbered(const Model& model, const tensor::Inventory& inventory,
                                            const std::string& aliased, const SameByContent& same) {
  std::vector<layout::SharedShard> shards;
  for (const auto& [content, one] : same) {
    std::vector<layout::Slice> slices;
    for (layout::Slice s : one.shard.slices) {
      const std::string& name = model.tensors()[static_cast<size_t>(s.tensor)].name;
      s.tensor = static_cast<int32_t>(inventory.Find(name));
      slices.push_back(s);
      if (name != aliased) continue;
      s.tensor = static_cast<int32_t>(inventory.Find(kTiedAlias));
      slices.push_back(s);
    }
    shards.push_back({one.shard.places, std::move(slices)});
  }
  return shards;
}

std::vector<ReplicaSet> ReplicasOf(const SameByContent& same,
                                   const std::vector<layout::RankPlan>& ranks) {
  std::vector<ReplicaSet> sets;
  for (const auto& [content, one] : same) {
    if (one.all.places.size() < 2) continue;
    ReplicaSet& set = sets.emplace_back(one.all);
    const layout::Place& first = set.places.front();
    const tensor::DType dtype =
        ranks[static_cast<size_t>(first.rank)].params[static_cast<size_t>(first.param)].dtype;
    for (const layout::Slice& s : one.shard.slices) {
      set.bytes += s.box.units() * tensor::UnitBytes(dtype);
    }
  }
  return sets;
}

Result<CompiledPlan> Compile(const Family& family, Model& model, const CompileOptions& options) {
  model.experts =
      raw::ExpertLayoutOf(model, options, family.packed, family.in_out_before_5, "model.");
  model.mtp_experts =
      raw::ExpertLayoutOf(model, options, family.packed, family.in_out_before_5, "mtp.");
  if (options.expert_layout != ExpertLayout::kAuto && !family.layouts) {
    return Error{Code::kInvalidArgument, "converter " + std::string(family.name) +
                                             " has no experts, or one layout of them"};
  }
  model.text = TextOf(family, options);
  CheckConfigs(family, options, model);
  if (!model.faults().empty()) return Misfit(family, model.faults());
  SameByContent same;
  auto plan = std::make_shared<layout::Plan>();
  plan->family = family.name;
  plan->ranks = WC_TRY(ConvertRanks(family, model, &same));

  CompiledPlan out;
  std::string aliased;
  std::vector<tensor::TensorSpec> specs = model.tensors();
  if (model.tied && std::ranges::binary_search(DeclaredNames(options), kTiedAlias)) {
    // The output layer of a tied model, listed all the same: the embedding's values again.
    aliased = model.text + "embed_tokens.weight";
    tensor::TensorSpec again = *std::ranges::find(specs, aliased, &tensor::TensorSpec::name);
    again.name = kTiedAlias;
    specs.push_back(std::move(again));
    out.aliases.push_back({kTiedAlias, aliased});
  }
  plan->inventory =
      std::make_shared<const tensor::Inventory>(WC_TRY(tensor::Inventory::Make(std::move(specs))));
  out.carried = WC_TRY(CompareWithReceiver(*plan->inventory, options));
  layout::AssignOwners(*plan->inventory, Renumbered(model, *plan->inventory, aliased, same),
                       &plan->ranks);
  WC_TRY(SetIgnored(options.ignore, &plan->ranks));
  out.replicas = ReplicasOf(same, plan->ranks);
  WC_TRY(layout::ProveCoverage(*plan));
  out.hash = plan->Hash();
  out.plan = std::move(plan);
  return out;
}

}  // namespace

Result<CompiledPlan> CompileRaw(const HfConfig& model, const MegatronConfig& trainer,
                                const CompileOptions& options) {
  WC_TRY(trainer.topology.Check());
  const Family* family = WC_TRY(FindRawFamily(model));
  Model numbers(model, trainer, options, family->tied);
  return Compile(*family, numbers, options);
}

int64_t RawVocabRowsOf(const MegatronConfig& trainer,
                       const std::vector<tensor::TensorSpec>& shard) {
  for (const tensor::TensorSpec& spec : shard) {
    const bool vocab = spec.name.ends_with(kEmbedding) || spec.name.ends_with(kOutputLayer);
    if (vocab && !spec.shape.empty() && spec.shape[0] <= kVocabRowsMax / trainer.topology.tp) {
      return spec.shape[0] * trainer.topology.tp;
    }
  }
  return 0;
}

}  // namespace weightcast::bridge
