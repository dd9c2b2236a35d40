// What a trainer says of itself: topology.json and the coordinates in rankN.json beside the shards.
// Untrusted, bounded. Megatron's own names, inside "config"; recorded mapping classes and tensor
// attributes are not read, since attributes lie. docs/formats/shards.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "bridge/setting.h"
#include "layout/topology.h"
#include "tensor/dtype.h"
#include "tensor/inventory.h"

namespace weightcast::bridge {

inline constexpr int64_t kTopologyBytesMax = 64 * kMiB;  // recorded exports make it large

// What Megatron calls the layer inside of a prediction module: first what it does today.
inline constexpr const char* kMtpInners[] = {"mtp_model_layer", "transformer_layer"};

// Whose modules a vision tower is made of: Megatron's own, or those of the checkpoint, which every
// rank keeps whole below one of these names.
inline constexpr const char* kTowers[] = {"megatron", "vision_model", "model.visual"};

// How a trainer spells what no config tells for certain, where that is known: topology.json says
// it, or a shard that holds some of it shows it.
struct Spelling {
  std::string mtp_inner;            // one of kMtpInners; "": not known
  std::optional<bool> mtp_at_root;  // beside the language model of a larger one, not inside of it
  std::string tower;                // one of kTowers; "": not known

  // What `other` knows, where this knows nothing.
  Spelling Or(const Spelling& other) const {
    return {mtp_inner.empty() ? other.mtp_inner : mtp_inner,
            mtp_at_root ? mtp_at_root : other.mtp_at_root, tower.empty() ? other.tower : tower};
  }
  bool mtp_known() const { return !mtp_inner.empty() && mtp_at_root.has_value(); }
  bool keeps_tower() const { return !tower.empty() && tower != kTowers[0]; }
  // Adds what is not known yet and `shard` shows.
  void Learn(const std::vector<tensor::TensorSpec>& shard);
};

struct MegatronConfig {
  layout::Topology topology;
  bool local_spec = false;  // transformer_impl "local": norms have names of their own
  tensor::DType params_dtype = tensor::DType::kBf16;
  // Rows of the embedding over all tensor ranks, where the trainer says so; 0: config.json's
  // vocab_size.
  int64_t padded_vocab = 0;
  // What must agree with config.json, where given: hidden_size, num_attention_heads, ...
  std::map<std::string, int64_t, std::less<>> ints;
  std::optional<bool> tied;  // share_embeddings_and_output_weights
  std::map<std::string, std::vector<int64_t>, std::less<>> int_lists;
  std::map<std::string, std::string, std::less<>>
      others;                       // neither, as JSON; not those that are null
  bool router_bias = true;          // moe_router_enable_expert_bias, where the trainer says it
  bool sequential_experts = false;  // each a module, not one grouped matrix product
  int32_t mtp_layers = 0;           // modules that predict further tokens
  // Where the decoder's final norm is: with its last layer, as Megatron has it once mtp_num_layers
  // is said, else with the output layer. A custom layout may keep the two apart.
  bool norm_with_last_layer = false;
  Spelling spelling;
  // Settings that change what shards hold (SettingsThatMatter), as JSON. Not those that are null.
  std::map<std::string, std::string, std::less<>> settings;

  // What the trainer says of a size, as JSON; "" if nothing.
  std::string Said(std::string_view key) const;

  // Errors: kInvalidData: not JSON; a field of the wrong type; numbers that do not fit
  // (Topology::Check).
  static Result<MegatronConfig> Parse(std::string_view json);
};

// "key = value" of those settings for which `own` (a family's), else the usual rules, have no
// value.
std::vector<std::string> Unsupported(const MegatronConfig& trainer, std::span<const Setting> own);

// Compares the coordinates (and, where recorded, the global layer numbers) in rankN.json with the
// computed ones. Errors: kInvalidData naming each that differs, with the rank.
Status CheckRankRecord(const layout::Topology& topology, int32_t rank, std::string_view json);

}  // namespace weightcast::bridge
