#include "bridge/dims.h"

#include <vector>

#include "base/text.h"

namespace weightcast::bridge {
namespace {

// No model has such a size; products of two and byte sizes of what they make stay below 2^63.
constexpr int64_t kDimMax = int64_t{1} << 24;

struct Key {
  Dim dim;
  const char* hf;        // in config.json
  const char* megatron;  // in topology.json; vocab_size may be the tokenizer's there: not compared
};
constexpr Key kKeys[] = {
    {Dim::kVocab, "vocab_size", nullptr},
    {Dim::kHidden, "hidden_size", "hidden_size"},
    {Dim::kFfn, "intermediate_size", "ffn_hidden_size"},
    {Dim::kHeads, "num_attention_heads", "num_attention_heads"},
    {Dim::kKvHeads, "num_key_value_heads", "num_query_groups"},
    {Dim::kHeadDim, "head_dim", "kv_channels"},
};

// What a missing or null key means, where it means something.
std::optional<int64_t> Default(Dim dim, const Dims& dims) {
  if (dim == Dim::kKvHeads) return dims[Dim::kHeads];
  const int64_t heads = dims[Dim::kHeads];
  if (dim == Dim::kHeadDim && heads > 0 && dims[Dim::kHidden] % heads == 0) {
    return dims[Dim::kHidden] / heads;
  }
  return std::nullopt;
}

}  // namespace

Result<Dims> ReadDims(const HfConfig& config) {
  Dims dims;
  std::vector<std::string> faults;
  dims.values[static_cast<size_t>(Dim::kOne)] = 1;
  for (const Key& key : kKeys) {
    std::optional<int64_t> value = config.Int(key.hf);
    if (!value) value = Default(key.dim, dims);
    if (!value) {
      faults.push_back(std::string(key.hf) + " is missing");
    } else if (*value < 1 || *value > kDimMax) {
      faults.push_back(std::string(key.hf) + " is " + std::to_string(*value) + ", not in 1.." +
                       std::to_string(kDimMax));
    } else {
      dims.values[static_cast<size_t>(key.dim)] = *value;
    }
  }
  if (faults.empty() && dims[Dim::kHeads] % dims[Dim::kKvHeads] != 0) {
    faults.push_back("num_attention_heads " + std::to_string(dims[Dim::kHeads]) +
                     " is not divisible by num_key_value_heads " +
                     std::to_string(dims[Dim::kKvHeads]));
  }
  if (faults.empty()) return dims;
  return Error{Code::kInvalidData, "config.json: " + JoinNames(faults)};
}

Status CheckSameModel(const HfConfig& config, const Dims& dims, bool tied,
                      const MegatronConfig& trainer) {
  std::vector<std::string> faults;
  const auto compare = [&](const std::string& names, int64_t model, int64_t theirs) {
    if (model == theirs) return;
    faults.push_back(names + ": model " + std::to_string(model) + ", trainer " +
                     std::to_string(theirs));
  };
  for (const Key& key : kKeys) {
    if (key.megatron == nullptr) continue;
    const auto it = trainer.ints.find(key.megatron);
    if (it == trainer.ints.end()) continue;
    compare(std::string(key.hf) + "/" + key.megatron, dims[key.dim], it->second);
  }
  const auto layers = config.Int("num_hidden_layers");
  compare("num_hidden_layers/num_layers", layers.value_or(0), trainer.topology.num_layers);
  if (trainer.tied) {
    compare("tie_word_embeddings/share_embeddings_and_output_weights", tied ? 1 : 0,
            *trainer.tied ? 1 : 0);
  }
  if (faults.empty()) return Ok();
  return Error{Code::kInvalidData,
               "config.json and topology.json describe different models: " + JoinNames(faults)};
}

}  // namespace weightcast::bridge
