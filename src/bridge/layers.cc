#include "bridge/layers.h"

#include <algorithm>
#include <set>

#include "base/text.h"

namespace weightcast::bridge {
namespace {

bool HasRules(const Family& family, Only only) {
  return AnyRule(family, [&](const Rule& rule) { return rule.only == only; });
}

constexpr const char* kLinear = "linear_attention";

Status MarkLinear(const HfConfig& model, std::vector<LayerKind>* kinds) {
  const size_t layers = kinds->size() - 1;
  if (const auto types = model.name_lists.find("layer_types"); types != model.name_lists.end()) {
    if (types->second.size() != layers) {
      return Error{Code::kInvalidData, "config.json: layer_types has " +
                                           std::to_string(types->second.size()) +
                                           " entries, expected " + std::to_string(layers)};
    }
    for (size_t i = 0; i < layers; ++i) {
      const std::string& type = types->second[i];
      (*kinds)[i].linear = type == kLinear;
      if (type == kLinear || type == "full_attention") continue;
      return Error{Code::kInvalidData, "config.json: layer_types: expected full_attention or " +
                                           std::string(kLinear) + ", found " + Quoted(type)};
    }
    return Ok();
  }
  const int64_t interval = model.Int("full_attention_interval").value_or(0);
  for (size_t i = 0; i < layers && interval > 0; ++i) {
    (*kinds)[i].linear = (static_cast<int64_t>(i) + 1) % interval != 0;
  }
  if (interval > 0) return Ok();
  return Error{Code::kInvalidData,
               "config.json: neither layer_types nor full_attention_interval is given"};
}

// Layers that are dense by their number.
std::set<int64_t> DenseLayers(const HfConfig& model) {
  const auto list = model.int_lists.find("mlp_only_layers");
  if (list == model.int_lists.end()) return {};
  return {list->second.begin(), list->second.end()};
}

bool HasExperts(const HfConfig& model) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (const auto n = model.Int(key)) return *n > 0;
  }
  return false;
}

bool IsMoe(const Family& family, const HfConfig& model, const std::set<int64_t>& dense,
           int64_t layer) {
  const auto every = [&](const char* key) {
    return std::max<int64_t>(1, model.Int(key).value_or(1));
  };
  if (family.dense_first) {
    return layer >= model.Int("first_k_dense_replace").value_or(0) &&
           layer % every("moe_layer_freq") == 0;
  }
  return !dense.contains(layer) && (layer + 1) % every("decoder_sparse_step") == 0;
}

// Against the trainer's list of zeros and ones, where it gives one.
Status Compare(const MegatronConfig& trainer, const char* key, const std::vector<LayerKind>& kinds,
               bool LayerKind::* is) {
  const auto list = trainer.int_lists.find(key);
  if (list == trainer.int_lists.end()) return Ok();
  if (list->second.size() + 1 != kinds.size()) {
    return Error{Code::kInvalidData, "topology.json's " + std::string(key) + " has " +
                                         std::to_string(list->second.size()) +
                                         " entries, expected " + std::to_string(kinds.size() - 1)};
  }
  std::vector<std::string> differ;
  for (size_t i = 0; i + 1 < kinds.size(); ++i) {
    if ((list->second[i] != 0) != kinds[i].*is) differ.push_back(std::to_string(i));
  }
  if (differ.empty()) return Ok();
  return Error{Code::kInvalidData, "config.json and topology.json's " + std::string(key) +
                                       " differ in layers " + JoinNames(differ)};
}

}  // namespace

bool Has(const LayerKind& kind, Only only) {
  switch (only) {
    case Only::kAny:
      return true;
    case Only::kFullAttention:
      return !kind.linear;
    case Only::kLinearAttention:
      return kind.linear;
    case Only::kDense:
      return !kind.moe;
    case Only::kMoe:
      return kind.moe;
  }
  return false;
}

Result<std::vector<LayerKind>> LayerKinds(const Family& family, const HfConfig& model,
                                          const MegatronConfig& trainer) {
  const bool linear = HasRules(family, Only::kLinearAttention);
  const bool moe = HasRules(family, Only::kMoe);
  const bool dense = HasRules(family, Only::kDense);
  std::vector<LayerKind> kinds(static_cast<size_t>(trainer.topology.num_layers) + 1);
  if (linear) WC_TRY(MarkLinear(model, &kinds));
  const std::set<int64_t> dense_layers = DenseLayers(model);
  for (size_t i = 0; i + 1 < kinds.size(); ++i) {
    const bool sparse =
        HasExperts(model) && IsMoe(family, model, dense_layers, static_cast<int64_t>(i));
    kinds[i].moe = moe && (!dense || sparse);
  }
  // Megatron makes the layer in a prediction module as it makes the model's last.
  kinds.back().moe = kinds[kinds.size() - 2].moe;
  if (linear) WC_TRY(Compare(trainer, "linear_attention_freq", kinds, &LayerKind::linear));
  if (moe) WC_TRY(Compare(trainer, "moe_layer_freq", kinds, &LayerKind::moe));
  return kinds;
}

}  // namespace weightcast::bridge
