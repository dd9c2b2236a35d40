#include "bridge/dims.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/text.h"

namespace weightcast::bridge {
namespace {

// No model has such a size. Products of two stay far below 2^63; those of more are bounded where
// they become tensors (Inventory::Make), before anything else is made of them.
constexpr int64_t kDimMax = int64_t{1} << 24;

struct Key {
  Dim dim;
  const char* hf[3];     // in config.json: the first that is there
  const char* megatron;  // in topology.json; vocab_size may be the tokenizer's there: not compared
};
constexpr Key kKeys[] = {
    {Dim::kVocab, {"vocab_size"}, nullptr},
    {Dim::kHidden, {"hidden_size"}, "hidden_size"},
    {Dim::kFfn, {"intermediate_size"}, "ffn_hidden_size"},
    {Dim::kHeads, {"num_attention_heads"}, "num_attention_heads"},
    {Dim::kKvHeads, {"num_key_value_heads"}, "num_query_groups"},
    {Dim::kHeadDim, {"head_dim"}, "kv_channels"},
    {Dim::kExperts, {"num_experts", "num_local_experts", "n_routed_experts"}, "num_moe_experts"},
    {Dim::kExpertFfn, {"moe_intermediate_size", "intermediate_size"}, "moe_ffn_hidden_size"},
    {Dim::kSharedFfn, {"shared_expert_intermediate_size"}, "moe_shared_expert_intermediate_size"},
    {Dim::kQueryRank, {"q_lora_rank"}, "q_lora_rank"},
    {Dim::kKvRank, {"kv_lora_rank"}, "kv_lora_rank"},
    {Dim::kNopeDim, {"qk_nope_head_dim"}, "qk_head_dim"},
    {Dim::kRopeDim, {"qk_rope_head_dim"}, "qk_pos_emb_head_dim"},
    {Dim::kValueDim, {"v_head_dim"}, "v_head_dim"},
    {Dim::kLinearKeyHeads, {"linear_num_key_heads"}, "linear_num_key_heads"},
    {Dim::kLinearValueHeads, {"linear_num_value_heads"}, "linear_num_value_heads"},
    {Dim::kLinearKeyDim, {"linear_key_head_dim"}, "linear_key_head_dim"},
    {Dim::kLinearValueDim, {"linear_value_head_dim"}, "linear_value_head_dim"},
    {Dim::kConvWidth, {"linear_conv_kernel_dim"}, "linear_conv_kernel_dim"},
    {Dim::kVisionHidden, {"vision_config.hidden_size"}, nullptr},
    {Dim::kVisionFfn, {"vision_config.intermediate_size"}, nullptr},
    {Dim::kVisionHeads, {"vision_config.num_heads"}, nullptr},
    {Dim::kVisionChannels, {"vision_config.in_channels"}, nullptr},
    {Dim::kVisionFrames, {"vision_config.temporal_patch_size"}, nullptr},
    {Dim::kVisionPatch, {"vision_config.patch_size"}, nullptr},
    {Dim::kVisionPositions, {"vision_config.num_position_embeddings"}, nullptr},
    {Dim::kVisionOut, {"vision_config.out_hidden_size"}, nullptr},
};

// a / b, where b heads share the a.
struct Quotient {
  Dim dim;
  Dim a;
  Dim b;
};
constexpr Quotient kQuotients[] = {
    {Dim::kHeadsPerKvHead, Dim::kHeads, Dim::kKvHeads},
    {Dim::kLinearValueHeadsPerKeyHead, Dim::kLinearValueHeads, Dim::kLinearKeyHeads},
    {Dim::kVisionHeadDim, Dim::kVisionHidden, Dim::kVisionHeads},
};

// The key that is there, or the first of those that could be.
std::string NameIn(const HfConfig& config, const Key& key) {
  for (const char* name : key.hf) {
    if (name != nullptr && config.Int(name)) return name;
  }
  return key.hf[0];
}

std::string NameIn(const HfConfig& config, Dim dim) {
  const auto* key = std::ranges::find(kKeys, dim, &Key::dim);
  return key != std::end(kKeys) ? NameIn(config, *key) : "";
}

// What a missing or null key means, where it means something.
std::optional<int64_t> Default(Dim dim, const Dims& dims, const HfConfig& config) {
  if (dim == Dim::kKvHeads) return dims[Dim::kHeads];
  const int64_t heads = dims[Dim::kHeads];
  if (dim == Dim::kHeadDim && heads > 0 && dims[Dim::kHidden] % heads == 0) {
    return dims[Dim::kHidden] / heads;
  }
  const auto shared = config.Int("n_shared_experts");
  if (dim == Dim::kSharedFfn && shared && *shared > 0 && *shared <= kDimMax) {
    return *shared * dims[Dim::kExpertFfn];
  }
  return std::nullopt;
}

// Sizes made of others. What is not wanted may be nonsense.
void Derive(const HfConfig& config, const DimSet& wanted, Dims* dims,
            std::vector<std::string>* faults) {
  const auto set = [&](Dim d, int64_t v) { dims->values[static_cast<size_t>(d)] = v; };
  for (const Quotient& q : kQuotients) {
    if (!wanted[static_cast<size_t>(q.dim)]) continue;
    const int64_t a = (*dims)[q.a];
    const int64_t b = (*dims)[q.b];
    if (a < 1 || b < 1) continue;  // reported
    if (a % b != 0) {
      faults->push_back(NameIn(config, q.a) + " " + std::to_string(a) + " is not divisible by " +
                        NameIn(config, q.b) + " " + std::to_string(b));
    }
    set(q.dim, a / b);
  }
  if (!wanted[static_cast<size_t>(Dim::kVisionMerged)]) return;
  const int64_t merge = config.Int("vision_config.spatial_merge_size").value_or(0);
  if (merge >= 1 && merge <= 1024) {
    set(Dim::kVisionMerged, (*dims)[Dim::kVisionHidden] * merge * merge);
  } else {
    faults->push_back("vision_config.spatial_merge_size is missing or not in 1..1024");
  }
}

}  // namespace

DimSet DimsOf(const Rule& rule) {
  DimSet set;
  const auto add = [&](Dim d) { set.set(static_cast<size_t>(d)); };
  const auto add_all = [&](const Extent& e) {
    for (const Extent::Term& t : e.terms) {
      if (t.n == 0) break;
      add(t.a);
      add(t.b);
    }
  };
  for (const Output& output : rule.used_outputs()) {
    for (const Extent& extent : output.shape) add_all(extent);
  }
  if (rule.rows != nullptr) {
    for (const Section& section : rule.rows->sections) {
      add(section.groups);
      for (const Part& part : section.parts) {
        add(part.blocks);
        for (const Extent& e : {part.rows, part.base, part.stride}) add_all(e);
      }
    }
  }
  if (rule.per_expert()) add(Dim::kExperts);
  if (rule.cut == Cut::kKvRows) add(Dim::kKvHeads);
  for (const Quotient& q : kQuotients) {
    if (set[static_cast<size_t>(q.dim)]) add(q.a), add(q.b);
  }
  if (set[static_cast<size_t>(Dim::kVisionMerged)]) add(Dim::kVisionHidden);
  return set;
}

int64_t Dims::operator()(const Extent& e) const {
  int64_t sum = 0;
  for (const Extent::Term& t : e.terms) {
    if (t.n != 0) sum += t.n * (*this)[t.a] * (*this)[t.b];
  }
  return sum;
}

Result<Dims> ReadDims(const HfConfig& config, const DimSet& wanted) {
  Dims dims;
  std::vector<std::string> faults;
  dims.values[static_cast<size_t>(Dim::kOne)] = 1;
  for (const Key& key : kKeys) {
    std::optional<int64_t> value = config.Int(NameIn(config, key));
    if (!value) value = Default(key.dim, dims, config);
    if (value && *value >= 1 && *value <= kDimMax) {
      dims.values[static_cast<size_t>(key.dim)] = *value;
    } else if (wanted[static_cast<size_t>(key.dim)]) {
      faults.push_back(NameIn(config, key) + (value ? " is " + std::to_string(*value) +
                                                          ", not in 1.." + std::to_string(kDimMax)
                                                    : std::string(" is missing")));
    }
  }
  Derive(config, wanted, &dims, &faults);
  if (faults.empty()) return dims;
  return Error{Code::kInvalidData, "config.json: " + JoinNames(faults)};
}

Status CheckSameModel(const HfConfig& config, const Dims& dims, const DimSet& wanted, bool tied,
                      const MegatronConfig& trainer) {
  std::vector<std::string> faults;
  const auto compare = [&](const std::string& names, int64_t model, const std::string& theirs) {
    if (std::to_string(model) == theirs) return;
    faults.push_back(names + ": model " + std::to_string(model) + ", trainer " + theirs);
  };
  for (const Key& key : kKeys) {
    if (key.megatron == nullptr || !wanted[static_cast<size_t>(key.dim)]) continue;
    const std::string theirs = trainer.Said(key.megatron);
    if (theirs.empty()) continue;
    compare(NameIn(config, key) + "/" + key.megatron, dims[key.dim], theirs);
  }
  const auto layers = config.Int("num_hidden_layers");
  compare("num_hidden_layers/num_layers", layers.value_or(0),
          std::to_string(trainer.topology.num_layers));
  // The trainer's vocabulary may be the tokenizer's, which is smaller than the embedding; a larger
  // one would lose rows.
  const auto theirs = trainer.ints.find("vocab_size");
  if (theirs != trainer.ints.end() && theirs->second > dims[Dim::kVocab]) {
    compare("vocab_size", dims[Dim::kVocab], std::to_string(theirs->second));
  }
  for (const char* key : kMtpCounts) {
    const auto count = config.Int(key);
    if (count && *count < trainer.mtp_layers) {
      compare(std::string(key) + "/mtp_num_layers", *count, std::to_string(trainer.mtp_layers));
    }
  }
  if (trainer.tied) {
    compare("tie_word_embeddings/share_embeddings_and_output_weights", tied ? 1 : 0,
            *trainer.tied ? "1" : "0");
  }
  if (faults.empty()) return Ok();
  return Error{Code::kInvalidData,
               "config.json and topology.json describe different models: " + JoinNames(faults)};
}

}  // namespace weightcast::bridge
