// Groups of rules that decoder-only families share. Facts: Megatron-Core's GPT layer specs and the
// Hugging Face modelling files.
#pragma once

#include "bridge/rule.h"

namespace weightcast::bridge {

inline constexpr Extent kHiddenSize{Dim::kHidden};
inline constexpr Extent kQueryRows{Dim::kHeads, Dim::kHeadDim};
inline constexpr Extent kKeyRows{Dim::kKvHeads, Dim::kHeadDim};

inline constexpr Rule kEmbeddingRules[] = {
    {.name = "embedding.word_embeddings.weight",
     .holder = Holder::kFirstStage,
     .cut = Cut::kVocabRows,
     .outputs = {{"model.embed_tokens.weight", {Dim::kVocab}, kHiddenSize}}},
    {.name = "output_layer.weight",
     .holder = Holder::kLastStage,
     .cut = Cut::kVocabRows,
     .when = When::kUntied,
     .outputs = {{"lm_head.weight", {Dim::kVocab}, kHiddenSize}}},
    {.name = "output_layer.weight",
     .holder = Holder::kLastStage,
     .cut = Cut::kVocabRows,
     .when = When::kTiedOverStages,
     .copy = true,
     .outputs = {{"model.embed_tokens.weight", {Dim::kVocab}, kHiddenSize}}},
    {.name = "decoder.final_layernorm.weight",
     .holder = Holder::kLastStage,
     .outputs = {{"model.norm.weight", kHiddenSize}}},
};

inline constexpr Rule kAttentionRules[] = {
    {.name = "decoder.layers.*.self_attention.linear_qkv.layer_norm_weight",
     .local_name = "decoder.layers.*.input_layernorm.weight",
     .outputs = {{"model.layers.*.input_layernorm.weight", kHiddenSize}}},
    {.name = "decoder.layers.*.self_attention.linear_qkv.weight",
     .cut = Cut::kRows,
     .fusion = Fusion::kPerKvHead,
     .outputs = {{"model.layers.*.self_attn.q_proj.weight", kQueryRows, kHiddenSize},
                 {"model.layers.*.self_attn.k_proj.weight", kKeyRows, kHiddenSize},
                 {"model.layers.*.self_attn.v_proj.weight", kKeyRows, kHiddenSize}}},
    {.name = "decoder.layers.*.self_attention.linear_proj.weight",
     .cut = Cut::kCols,
     .outputs = {{"model.layers.*.self_attn.o_proj.weight", kHiddenSize, kQueryRows}}},
};

inline constexpr Rule kQkvBiasRules[] = {
    {.name = "decoder.layers.*.self_attention.linear_qkv.bias",
     .cut = Cut::kRows,
     .fusion = Fusion::kPerKvHead,
     .outputs = {{"model.layers.*.self_attn.q_proj.bias", kQueryRows},
                 {"model.layers.*.self_attn.k_proj.bias", kKeyRows},
                 {"model.layers.*.self_attn.v_proj.bias", kKeyRows}}},
};

inline constexpr Rule kQkNormRules[] = {
    {.name = "decoder.layers.*.self_attention.q_layernorm.weight",
     .outputs = {{"model.layers.*.self_attn.q_norm.weight", {Dim::kHeadDim}}}},
    {.name = "decoder.layers.*.self_attention.k_layernorm.weight",
     .outputs = {{"model.layers.*.self_attn.k_norm.weight", {Dim::kHeadDim}}}},
};

inline constexpr Rule kGatedMlpRules[] = {
    {.name = "decoder.layers.*.mlp.linear_fc1.layer_norm_weight",
     .local_name = "decoder.layers.*.pre_mlp_layernorm.weight",
     .outputs = {{"model.layers.*.post_attention_layernorm.weight", kHiddenSize}}},
    {.name = "decoder.layers.*.mlp.linear_fc1.weight",
     .cut = Cut::kRows,
     .fusion = Fusion::kPerRank,
     .outputs = {{"model.layers.*.mlp.gate_proj.weight", {Dim::kFfn}, kHiddenSize},
                 {"model.layers.*.mlp.up_proj.weight", {Dim::kFfn}, kHiddenSize}}},
    {.name = "decoder.layers.*.mlp.linear_fc2.weight",
     .cut = Cut::kCols,
     .outputs = {{"model.layers.*.mlp.down_proj.weight", kHiddenSize, Extent{Dim::kFfn}}}},
};

}  // namespace weightcast::bridge
