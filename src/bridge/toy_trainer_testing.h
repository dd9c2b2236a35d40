// For tests: a tiny model of any family cut into Megatron shards by code of its own, written
// forward (canonical tensors -> interleave -> cut), so that it shares no arithmetic and no name
// with the rules it checks. Facts: Megatron-Core's modules and the Hugging Face modelling files.
//
// Every canonical element has a number of its own, which fp32 parameters hold as bits. A bf16
// parameter holds its lower half in one world and its upper half in another, so that both worlds
// together tell it apart. Padded rows hold kPadding.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "layout/topology.h"
#include "tensor/inventory.h"

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

inline constexpr uint32_t kPadding = 0x7fc0dead;  // a NaN; its upper half too

enum class ToyValues : uint8_t {
  kBits,
  kGain,         // of a norm: 1 + n / 128
  kGainLessOne,  // as Megatron holds it
};

// Row-major. What is cut is the first dimension, or the last one of a matrix.
struct ToyTensor {
  tensor::Shape dims;
  std::vector<uint32_t> bits = {};
  tensor::DType dtype = tensor::DType::kF32;
  ToyValues values = ToyValues::kBits;

  const tensor::Shape& shape() const { return dims; }
  ToyTensor Rows(int64_t from, int64_t count) const;
  ToyTensor Cols(int64_t from, int64_t count) const;
  ToyTensor EachSecond(int64_t from) const;  // rows
  ToyTensor At(int64_t i) const;             // without the first dimension
  ToyTensor Transposed() const;
  void Append(const ToyTensor& below);
};

// As a file holds it; of a bf16 one the lower or the upper half.
Bytes BytesOf(const ToyTensor& t, bool upper_half = false);

using ToyTensors = std::map<std::string, ToyTensor>;

// The model's Hugging Face tensors.
ToyTensors CanonicalTensors(const ToyModel& m);

// What one rank holds, by shard key; `hf` are the model's canonical tensors.
ToyTensors ShardTensors(const ToyModel& m, const layout::Topology& t, int32_t rank,
                        const ToyTensors& hf);
inline ToyTensors ShardTensors(const ToyModel& m, const layout::Topology& t, int32_t rank) {
  return ShardTensors(m, t, rank, CanonicalTensors(m));
}

std::string ConfigJson(const ToyModel& m);
std::string TopologyJson(const ToyModel& m, const layout::Topology& t);

}  // namespace weightcast::bridge
