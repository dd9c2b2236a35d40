// For tests: tiny models of any family, and what their configs say.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "layout/topology.h"

namespace weightcast::bridge {

enum class ToyAttention : uint8_t { kGrouped, kGated, kLatent };
enum class ToyExperts : uint8_t {
  kByName,
  kSparseMoe,    // by name: w1, w3, w2 of block_sparse_moe
  kOutIn,        // packed: [expert, out, in]
  kInOut,        // packed: [expert, in, out]
  kAlternating,  // packed as kInOut, gate and up alternate; everything has a bias
};
enum class ToyMtp : uint8_t {
  kTop,          // mtp.*
  kAfterLayers,  // model.layers.N.*
  kMtpLayers,    // model.mtp_layers.*; the projection's halves change places
};

struct ToyModel {
  std::string architecture;
  bool tied = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  bool local_spec = false;
  int32_t layers = 2;
  int64_t hidden = 6, ffn = 24, heads = 4, kv_heads = 2, head_dim = 3, vocab = 10,
          padded_vocab = 12;

  bool bf16 = false;
  ToyAttention attention = ToyAttention::kGrouped;
  bool wide_qk_norm = false;  // one norm for all heads together, cut like them
  bool sinks = false;         // and a bias on the projection
  bool sandwich = false;      // norms after attention and MLP too; gate and up are one tensor
  bool inner_norms = false;   // norms after attention and MLP, as parts of the projections
  // Multi-head latent attention; without a query rank the query has one projection.
  int64_t query_rank = 0, kv_rank = 5, nope_dim = 3, rope_dim = 2, value_dim = 4;
  // Gated delta net in all layers but each so-manieth; 0: in none.
  int32_t full_attention_interval = 0;
  bool linear_by_key_head = false;  // the checkpoint's input projections: qkvz and ba
  int64_t key_heads = 2, value_heads = 4, key_dim = 2, linear_value_dim = 3, conv_width = 4;

  int64_t experts = 0, expert_ffn = 12, shared_ffn = 0;
  const char* experts_key = "num_experts";  // in config.json
  ToyExperts layout = ToyExperts::kByName;
  bool shared_gate = false;  // one shared expert, with a gate
  bool router_bias = false;
  bool sequential = false;   // each expert a module
  int32_t dense_layers = 0;  // the first ones

  bool vision = false;
  int64_t vision_hidden = 12, vision_ffn = 24, vision_heads = 4;
  int32_t vision_depth = 2, deepstack = 0;
  std::string tower = "megatron";  // else the checkpoint's, below that name

  int32_t mtp_layers = 0;
  ToyMtp mtp = ToyMtp::kTop;
  std::string mtp_inner = "mtp_model_layer";

  std::string hf_prefix() const { return vision ? "model.language_model." : "model."; }
  std::string megatron_prefix() const { return vision ? "language_model." : ""; }
  bool linear(int32_t layer) const {
    return full_attention_interval > 0 && (layer + 1) % full_attention_interval != 0;
  }
  bool moe(int32_t layer) const { return experts > 0 && layer >= dense_layers; }
};

void PrintTo(const ToyModel& m, std::ostream* out);  // for gtest

// One small model of each family, with everything that the family may have.
std::vector<ToyModel> ToyFamilies();
// The one of an architecture.
ToyModel ToyOf(const std::string& architecture);
// The model with sizes that the topology can cut.
ToyModel Fitted(ToyModel m, const layout::Topology& t);

std::string ConfigJson(const ToyModel& m);
std::string TopologyJson(const ToyModel& m, const layout::Topology& t);

}  // namespace weightcast::bridge
