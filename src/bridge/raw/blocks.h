// What layers of several families have in common, under Megatron's and the checkpoints' names.
#pragma once

#include "bridge/raw/raw_rank.h"

namespace weightcast::bridge::raw {

// ---- attention ----

// The norm before attention: its own module in the local spec, else inside `fused`.
void InputNorm(Rank& rank, const Layer& layer, const char* fused = "linear_qkv");
void Attention(Rank& rank, const Layer& layer);
// With a gate for every query head.
void GatedAttention(Rank& rank, const Layer& layer);
void QkvBias(Rank& rank, const Layer& layer);
void HeadNorms(Rank& rank, const Layer& layer);
void QkvBiasIfSet(Rank& rank, const Layer& layer);

// ---- linear attention ----

// Of the model's layers; never of one that predicts further tokens.
bool IsLinear(Rank& rank, const Layer& layer);

struct LinearSizes {
  int64_t key_heads, value_heads, key_dim, value_dim, width;
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
};
LinearSizes LinearSizesOf(Model& model);
// A gated delta net but for its in_proj, in which checkpoints differ.
void DeltaNet(Rank& rank, const Layer& layer);

// ---- feed forward ----

void DenseMlpNorm(Rank& rank, const Layer& layer,
                  const char* hf = "post_attention_layernorm.weight");
void GatedMlp(Rank& rank, const Layer& layer);
void DenseMlp(Rank& rank, const Layer& layer);  // both
void MoeNorm(Rank& rank, const Layer& layer);
void Router(Rank& rank, const Layer& layer, const char* hf);
void RouterBias(Rank& rank, const Layer& layer, const char* hf);

// Numbers of the experts on a rank.
struct ExpertRange {
  int64_t first = 0;
  int64_t count = 0;
};
ExpertRange ExpertsOf(Rank& rank);
// Of the expert that is number `local` on its rank: "...experts.linear_fc1.weight3" for `fc`
// "linear_fc1" and `kind` "weight", or the name in a module of its own.
std::string ExpertName(const Rank& rank, const Layer& layer, const char* fc, const char* kind,
                       int64_t local);
// As the checkpoint has them: by name or packed.
void Experts(Rank& rank, const Layer& layer);
// w1, w3 and w2 below "block_sparse_moe".
void SparseMoeExperts(Rank& rank, const Layer& layer);
// Gate, up and down below `hf`.
void SharedExperts(Rank& rank, const Layer& layer, const char* hf);
void SharedExpertGate(Rank& rank, const Layer& layer);
// A mixture of experts with its norm and router, below "mlp".
void Moe(Rank& rank, const Layer& layer);

// Whether a layer is one, where the checkpoint says it by mlp_only_layers and decoder_sparse_step.
bool IsSparse(Rank& rank, const Layer& layer);
// ... by first_k_dense_replace (and moe_layer_freq).
bool IsAfterDense(Rank& rank, const Layer& layer);

// ---- vision ----

void VisionTower(Rank& rank);
void DeepstackMergers(Rank& rank);

// ---- further tokens ----

// Norms and projection of a module of which `layer` is the inside; names below "mtp." at the root.
void MtpModule(Rank& rank, const std::string& megatron);
// ... names below the layer's own.
void MtpModuleAfterLayers(Rank& rank, const std::string& megatron, const std::string& hf);

}  // namespace weightcast::bridge::raw
