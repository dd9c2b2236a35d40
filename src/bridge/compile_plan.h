// Config and topology in, plan out. Pure: every rank compiles the same plan from the same inputs
// and the catalog compares the hashes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/hf_config.h"
#include "bridge/megatron_config.h"
#include "bridge/owners.h"
#include "bridge/rule.h"
#include "layout/plan.h"

namespace weightcast::bridge {

// How a checkpoint has the weights of its experts.
enum class ExpertLayout : uint8_t {
  kAuto,  // as the reference has them, else as the family's checkpoints do
  kPerName,
  kPackedOutIn,  // [expert, out, in]
  kPackedInOut,  // [expert, in, out]
};

inline constexpr const char* kExpertLayouts[] = {"auto", "per-name", "packed-out-in",
                                                 "packed-in-out"};  // by ExpertLayout
// Requires: one of kExpertLayouts.
ExpertLayout ExpertLayoutOf(std::string_view name);

struct CompileOptions {
  // Tensors of the seed or of another checkpoint of the model. If given, what the trainer produces
  // and what is carried must together be exactly these.
  std::shared_ptr<const tensor::Inventory> reference;
  std::vector<std::string> carry;   // patterns of reference tensors that the trainer does not hold
  std::vector<std::string> ignore;  // patterns of shard keys that are not sent, besides kIgnored
  // Rows of the embedding over all tensor ranks, as a shard shows them (VocabRowsOf); 0: what the
  // trainer's config says.
  int64_t vocab_rows = 0;
  ExpertLayout expert_layout = ExpertLayout::kAuto;
};

// Shard keys that are never weights: Transformer Engine's state and rotary caches.
inline constexpr const char* kIgnored[] = {"*._extra_state*", "*rotary_pos_emb.*"};

struct Alias {
  std::string
      name;  // a tensor that a tied model's reference lists although it has no weight of its own
  std::string of;  // the tensor whose values it gets
};

// Places that must hold the same bytes: the first `bytes` of each parameter (padding may differ).
struct ReplicaSet {
  int64_t bytes = 0;
  std::vector<Place> places;  // two or more
};

struct CompiledPlan {
  std::shared_ptr<const layout::Plan> plan;  // its coverage is proven
  PlanHash hash;
  std::vector<std::string> carried;  // names of reference tensors, sorted
  std::vector<Alias> aliases;
  std::vector<ReplicaSet> replicas;
};

// Errors: kInvalidData: no family for the architecture; a size that is missing or does not fit;
// configs that describe different models; a setting or flag for which there is no rule; experts that
// the reference has otherwise than they are asked for; a
// difference to the reference, with all missing, unknown and different tensors. kInvalidArgument: a
// carry pattern without reference, or one that matches nothing or what the trainer produces; an
// expert layout asked of a family that has none to choose.
Result<CompiledPlan> CompilePlan(const HfConfig& model, const MegatronConfig& trainer,
                                 const CompileOptions& options);

// The same for a family that is not in the list (tests).
Result<CompiledPlan> CompilePlanFor(const Family& family, const HfConfig& model,
                                    const MegatronConfig& trainer, const CompileOptions& options);

// Whether embedding and output layer share one weight.
bool IsTied(const Family& family, const HfConfig& model);

// Rows of the embedding over all tensor ranks, told by the embedding or output layer that one
// rank's shard holds; 0 if it holds neither. make_vocab_size_divisible_by is not to be trusted, a
// shard is.
int64_t VocabRowsOf(const Family& family, const MegatronConfig& trainer,
                    const std::vector<tensor::TensorSpec>& shard);

}  // namespace weightcast::bridge
