// What all converters read: the two configs as plain numbers. What does not fit is collected, so
// that a converter is written as if everything did: a size that is missing counts as 1 until the
// end.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/compiled_plan.h"
#include "bridge/hf_config.h"
#include "bridge/megatron_config.h"

namespace weightcast::bridge::raw {

// A canonical tensor; in the trainer's dtype, where none is given.
struct Tensor {
  std::string name;
  tensor::Shape shape;
  std::optional<tensor::DType> dtype = {};
};

// No model has such a size. Products of two stay far below 2^63; those of more are bounded where
// they become parameters (Rank::Add).
inline constexpr int64_t kSizeMax = int64_t{1} << 24;
inline constexpr int64_t kFaultsMax = 20;

class Model {
 public:
  Model(const HfConfig& its_config, const MegatronConfig& its_trainer,
        const CompileOptions& options, bool tied_by_default);

  const HfConfig& config;
  const MegatronConfig& trainer;
  const layout::Topology& topology;
  const bool tied;
  const std::set<int64_t> dense_layers;  // mlp_only_layers
  std::string text = "model.";  // what names of the text model begin with in the checkpoint
  ExpertLayout experts = ExpertLayout::kPerName;
  ExpertLayout mtp_experts = ExpertLayout::kPerName;  // where further tokens are predicted

  void Fault(std::string what);
  // The same; and nothing more is to be looked at.
  void Stop(std::string what);
  const std::vector<std::string>& faults() const { return faults_; }
  // Whether there are so many that more would say the same of more layers.
  bool gives_up() const { return stopped_ || std::ssize(faults_) >= kFaultsMax; }
  bool stopped() const { return stopped_; }

  // The first of `keys` that config.json has; topology.json's `theirs`, if there, must be equal.
  int64_t Size(std::initializer_list<std::string_view> keys, std::string_view theirs = "");
  // A size that was made of others.
  int64_t Checked(std::string_view what, int64_t value, std::string_view theirs = "");
  // n / parts, which must be whole.
  int64_t Even(int64_t n, int64_t parts, std::string_view what);
  // topology.json's list of zeros and ones, if there, must say the same of the layer.
  void Agree(std::string_view list, int32_t layer, bool is);
  void RefuseFlag(std::string_view flag);

  int64_t Hidden() { return Size({"hidden_size"}, "hidden_size"); }
  int64_t Ffn() { return Size({"intermediate_size"}, "ffn_hidden_size"); }
  int64_t Heads() { return Size({"num_attention_heads"}, "num_attention_heads"); }
  int64_t KvHeads();
  int64_t HeadDim();
  int64_t Experts();
  int64_t ExpertFfn();
  int64_t SharedFfn();
  int64_t VocabRows();  // with padding, over all tensor ranks

  // A number for the tensor, which has one shape and one dtype.
  int32_t NumberOf(const Tensor& tensor);
  const std::vector<tensor::TensorSpec>& tensors() const { return tensors_; }

 private:
  int64_t told_vocab_rows_;
  std::vector<std::string> faults_;
  bool stopped_ = false;
  std::vector<tensor::TensorSpec> tensors_;
  std::map<std::string, int32_t, std::less<>> numbers_;
};

// As told, else as the declared names are, else as the family's checkpoints are: packed ones
// before transformers 5 may be [in, out].
// `below`: what those names begin with.
ExpertLayout ExpertLayoutOf(Model& model, const CompileOptions& options, bool packed,
                            bool in_out_before_5, std::string_view below);

}  // namespace weightcast::bridge::raw
