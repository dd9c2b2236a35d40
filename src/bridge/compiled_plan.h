// What a compiler of plans is told besides the two configs, and what it gives.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "layout/owners.h"
#include "layout/plan.h"

namespace weightcast::bridge {

// How a checkpoint has the weights of its experts.
enum class ExpertLayout : uint8_t {
  kAuto,  // as the reference has them, else as the family's checkpoints do
  kPerName,
  kPackedOutIn,  // [expert, out, in]
  kPackedInOut,  // [expert, in, out]
};

// Rows of an embedding with its padding, over all tensor ranks.
inline constexpr int64_t kVocabRowsMax = int64_t{1} << 31;

inline constexpr const char* kExpertLayouts[] = {"auto", "per-name", "packed-out-in",
                                                 "packed-in-out"};  // by ExpertLayout
// Requires: one of kExpertLayouts.
ExpertLayout ExpertLayoutOf(std::string_view name);

struct CompileOptions {
  // Tensors of the seed or of another checkpoint of the model. If given, what the trainer produces
  // and what is carried must together be exactly these.
  std::shared_ptr<const tensor::Inventory> reference;
  // Names that an engine or another receiver lists (ParseNames): the same, by name; or a reference,
  // not both.
  std::vector<std::string> names;
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
  // A tensor that a tied model's reference lists although it has no weight of its own.
  std::string name;
  std::string of;  // the tensor whose values it gets
};

// Places that must hold the same bytes: the first `bytes` of each parameter (padding may differ).
struct ReplicaSet {
  int64_t bytes = 0;
  std::vector<layout::Place> places;  // two or more
};

// The plan's lists of keys that are not sent: the usual ones and those of `ignore`.
// Errors: kInvalidArgument naming a key that the plan sends and `ignore` covers.
Status SetIgnored(const std::vector<std::string>& ignore, std::vector<layout::RankPlan>* ranks);

struct CompiledPlan {
  std::shared_ptr<const layout::Plan> plan;  // its coverage is proven
  PlanHash hash;
  std::vector<std::string> carried;  // names of reference tensors, sorted
  std::vector<Alias> aliases;
  std::vector<ReplicaSet> replicas;
};

}  // namespace weightcast::bridge
