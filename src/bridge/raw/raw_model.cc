#include "bridge/raw/raw_model.h"

#include <algorithm>
#include <cstdlib>

#include "base/text.h"
#include "bridge/receiver.h"

namespace weightcast::bridge::raw {
namespace {

std::set<int64_t> DenseLayersOf(const HfConfig& config) {
  const auto list = config.int_lists.find("mlp_only_layers");
  if (list == config.int_lists.end()) return {};
  return {list->second.begin(), list->second.end()};
}

}  // namespace

Model::Model(const HfConfig& its_config, const MegatronConfig& its_trainer,
             const CompileOptions& options, bool tied_by_default)
    : config(its_config),
      trainer(its_trainer),
      topology(its_trainer.topology),
      tied(its_config.tie_word_embeddings.value_or(tied_by_default)),
      dense_layers(DenseLayersOf(its_config)),
      told_vocab_rows_(options.vocab_rows) {}

void Model::Fault(std::string what) {
  if (gives_up() || std::ranges::count(faults_, what) > 0) return;
  faults_.push_back(std::move(what));
}

void Model::Stop(std::string what) {
  Fault(std::move(what));
  stopped_ = true;
}

int64_t Model::Size(std::initializer_list<std::string_view> keys, std::string_view theirs) {
  for (const std::string_view key : keys) {
    if (const auto value = config.Int(key)) return Checked(key, *value, theirs);
  }
  Fault("config.json: " + std::string(*keys.begin()) + " is missing");
  return 1;
}

int64_t Model::Checked(std::string_view what, int64_t value, std::string_view theirs) {
  if (value < 1 || value > kSizeMax) {
    Fault("config.json: " + std::string(what) + " is " + std::to_string(value) + ", not in 1.." +
          std::to_string(kSizeMax));
    return 1;
  }
  const std::string said = trainer.Said(theirs);
  if (!said.empty() && said != std::to_string(value)) {
    Fault("config.json and topology.json describe different models: " + std::string(what) + "/" +
          std::string(theirs) + ": model " + std::to_string(value) + ", trainer " + said);
  }
  return value;
}

int64_t Model::Even(int64_t n, int64_t parts, std::string_view what) {
  if (n % parts == 0) return n / parts;
  Fault(std::to_string(n) + " " + std::string(what) + " cannot be shared by " +
        std::to_string(parts));
  return n / parts + 1;
}

void Model::Agree(std::string_view list, int32_t layer, bool is) {
  const auto it = trainer.int_lists.find(list);
  if (layer < 0 || it == trainer.int_lists.end()) return;
  if (std::ssize(it->second) != topology.num_layers) {
    return Fault("topology.json's " + std::string(list) + " has " +
                 std::to_string(it->second.size()) + " entries, expected " +
                 std::to_string(topology.num_layers));
  }
  if ((it->second[static_cast<size_t>(layer)] != 0) == is) return;
  Fault("config.json and topology.json's " + std::string(list) + " differ in layer " +
        std::to_string(layer));
}

void Model::RefuseFlag(std::string_view flag) {
  if (config.Flag(flag)) Fault("no converter for config.json's " + std::string(flag));
}

int64_t Model::KvHeads() {
  return Checked("num_key_value_heads", config.Int("num_key_value_heads").value_or(Heads()),
                 "num_query_groups");
}

int64_t Model::HeadDim() {
  const auto given = config.Int("head_dim");
  return Checked("head_dim", given ? *given : Even(Hidden(), Heads(), "hidden units"),
                 "kv_channels");
}

int64_t Model::Experts() {
  return Size({"num_experts", "num_local_experts", "n_routed_experts"}, "num_moe_experts");
}

int64_t Model::ExpertFfn() {
  return Size({"moe_intermediate_size", "intermediate_size"}, "moe_ffn_hidden_size");
}

int64_t Model::SharedFfn() {
  constexpr const char* kTheirs = "moe_shared_expert_intermediate_size";
  const auto count = config.Int("n_shared_experts");
  if (config.Int("shared_expert_intermediate_size") || !count) {
    return Size({"shared_expert_intermediate_size"}, kTheirs);
  }
  return Checked("n_shared_experts", Checked("n_shared_experts", *count) * ExpertFfn(), kTheirs);
}

int64_t Model::VocabRows() {
  if (told_vocab_rows_ > 0) return told_vocab_rows_;
  return trainer.padded_vocab > 0 ? trainer.padded_vocab : Size({"vocab_size"});
}

int32_t Model::NumberOf(const Tensor& tensor) {
  const auto [it, made] = numbers_.try_emplace(tensor.name, static_cast<int32_t>(tensors_.size()));
  tensor::TensorSpec spec{tensor.name, tensor.dtype.value_or(trainer.params_dtype), tensor.shape};
  if (made) {
    tensors_.push_back(std::move(spec));
  } else if (tensors_[static_cast<size_t>(it->second)] != spec) {
    Fault(tensor.name + " is " + tensor::SpecText(spec) + " and " +
          tensor::SpecText(tensors_[static_cast<size_t>(it->second)]));
  }
  return it->second;
}

ExpertLayout ExpertLayoutOf(Model& model, const CompileOptions& options, bool packed,
                            bool in_out_before_5, std::string_view below) {
  std::string single, all;  // a name of either kind
  for (const std::string& name : DeclaredNames(options)) {
    if (!name.starts_with(below)) continue;
    if (name.find(".mlp.experts.0.") != std::string::npos) single = name;
    if (name.find(".mlp.experts.gate_up_proj") != std::string::npos) all = name;
  }
  if (const ExpertLayout told = options.expert_layout; told != ExpertLayout::kAuto) {
    const std::string& other = told == ExpertLayout::kPerName ? all : single;
    if (!other.empty()) {
      model.Fault(std::string("experts are asked for ") +
                  kExpertLayouts[static_cast<size_t>(told)] + ", the receiver has " + other);
    }
    return told;
  }
  if (!single.empty() && !all.empty()) {
    model.Fault("the receiver has experts by name (" + single + ") and packed ones (" + all + ")");
  }
  if (!single.empty() || !all.empty()) packed = single.empty();
  if (!packed) return ExpertLayout::kPerName;
  const int major = std::atoi(model.config.transformers_version.c_str());
  return in_out_before_5 && major < 5 ? ExpertLayout::kPackedInOut : ExpertLayout::kPackedOutIn;
}

}  // namespace weightcast::bridge::raw
