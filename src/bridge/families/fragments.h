// Groups of rules that families share. Facts: Megatron-Core's layer specs and the Hugging Face
// modelling files. Names are below a stack's.
#pragma once

#include "bridge/rule.h"

namespace weightcast::bridge {

inline constexpr Extent kQueryRows = Dim::kHeads * Dim::kHeadDim;
inline constexpr Extent kKeyRows = Dim::kKvHeads * Dim::kHeadDim;

// ---- embedding, output layer ----

inline constexpr Rule kEmbeddingRules[] = {
    {.name = "embedding.word_embeddings.weight",
     .cut = Cut::kVocabRows,
     .outputs = {{"embed_tokens.weight", {Dim::kVocab, Dim::kHidden}}}},
};

inline constexpr Rule kOutputRules[] = {
    {.name = "output_layer.weight",
     .cut = Cut::kVocabRows,
     .when = When::kUntied,
     .outputs = {{"/lm_head.weight", {Dim::kVocab, Dim::kHidden}}}},
    {.name = "output_layer.weight",
     .cut = Cut::kVocabRows,
     .when = When::kTiedOverStages,
     .copy = true,
     .outputs = {{"embed_tokens.weight", {Dim::kVocab, Dim::kHidden}}}},
    {.name = "decoder.final_layernorm.weight",
     .after_layers = true,
     .outputs = {{"norm.weight", {Dim::kHidden}}}},
};

// A stage that predicts further tokens embeds them itself.
inline constexpr Rule kMtpEmbeddingRules[] = {
    {.name = "embedding.word_embeddings.weight",
     .cut = Cut::kVocabRows,
     .when = When::kMtpElsewhere,
     .copy = true,
     .outputs = {{"embed_tokens.weight", {Dim::kVocab, Dim::kHidden}}}},
};

// ---- attention ----

// [q heads of the KV head | k | v] for each KV head.
inline constexpr Rows kQkvRows = {
    {{.groups = Dim::kKvHeads,
      .parts = {{.output = 0, .rows = Dim::kHeadsPerKvHead * Dim::kHeadDim},
                {.output = 1, .rows = Dim::kHeadDim},
                {.output = 2, .rows = Dim::kHeadDim}}}}};

// [q heads | their gates | k | v]; the checkpoint has each head's gate behind its query.
inline constexpr Rows kGatedQkvRows = {{{.groups = Dim::kKvHeads,
                                         .parts = {{.output = 0,
                                                    .rows = Dim::kHeadDim,
                                                    .blocks = Dim::kHeadsPerKvHead,
                                                    .stride = {2, Dim::kHeadDim}},
                                                   {.output = 0,
                                                    .rows = Dim::kHeadDim,
                                                    .blocks = Dim::kHeadsPerKvHead,
                                                    .base = Dim::kHeadDim,
                                                    .stride = {2, Dim::kHeadDim}},
                                                   {.output = 1, .rows = Dim::kHeadDim},
                                                   {.output = 2, .rows = Dim::kHeadDim}}}}};

inline constexpr Rule kAttentionNormRules[] = {
    {.name = "self_attention.linear_qkv.layer_norm_weight",
     .local_name = "input_layernorm.weight",
     .only = Only::kFullAttention,
     .outputs = {{"input_layernorm.weight", {Dim::kHidden}}}},
};

constexpr Rule LinearQkv(const Rows* rows, Extent query_rows) {
  return {.name = "self_attention.linear_qkv.weight",
          .cut = Cut::kRows,
          .rows = rows,
          .only = Only::kFullAttention,
          .outputs = {{"self_attn.q_proj.weight", {query_rows, Dim::kHidden}},
                      {"self_attn.k_proj.weight", {kKeyRows, Dim::kHidden}},
                      {"self_attn.v_proj.weight", {kKeyRows, Dim::kHidden}}}};
}
inline constexpr Rule kLinearProj = {
    .name = "self_attention.linear_proj.weight",
    .cut = Cut::kCols,
    .only = Only::kFullAttention,
    .outputs = {{"self_attn.o_proj.weight", {Dim::kHidden, kQueryRows}}}};
inline constexpr Rule kAttentionRules[] = {LinearQkv(&kQkvRows, kQueryRows), kLinearProj};
inline constexpr Rule kGatedAttentionRules[] = {LinearQkv(&kGatedQkvRows, 2 * kQueryRows),
                                                kLinearProj};

constexpr Rule QkvBias(When when) {
  return {.name = "self_attention.linear_qkv.bias",
          .cut = Cut::kRows,
          .rows = &kQkvRows,
          .only = Only::kFullAttention,
          .when = when,
          .outputs = {{"self_attn.q_proj.bias", {kQueryRows}},
                      {"self_attn.k_proj.bias", {kKeyRows}},
                      {"self_attn.v_proj.bias", {kKeyRows}}}};
}
inline constexpr Rule kQkvBiasRules[] = {QkvBias(When::kAlways)};
inline constexpr Rule kQkvBiasIfSetRules[] = {QkvBias(When::kQkvBias)};

// Norms of a head's queries and keys.
constexpr Rule HeadNorm(const char* megatron, const char* hf, When when) {
  return {.name = megatron,
          .only = Only::kFullAttention,
          .when = when,
          .outputs = {{hf, {Dim::kHeadDim}}}};
}
inline constexpr Rule kQkNormRules[] = {
    HeadNorm("self_attention.q_layernorm.weight", "self_attn.q_norm.weight", When::kAlways),
    HeadNorm("self_attention.k_layernorm.weight", "self_attn.k_norm.weight", When::kAlways),
};
inline constexpr Rule kQkNormIfSetRules[] = {
    HeadNorm("self_attention.q_layernorm.weight", "self_attn.q_norm.weight", When::kQkNorm),
    HeadNorm("self_attention.k_layernorm.weight", "self_attn.k_norm.weight", When::kQkNorm),
};

// ---- multi-head latent attention ----

inline constexpr Extent kLatentQueryRows =
    Dim::kHeads * Dim::kNopeDim + Dim::kHeads * Dim::kRopeDim;

inline constexpr Rule kLatentAttentionRules[] = {
    {.name = "input_layernorm.weight", .outputs = {{"input_layernorm.weight", {Dim::kHidden}}}},
    {.name = "self_attention.linear_q_proj.weight",
     .cut = Cut::kRows,
     .when = When::kNoQueryRank,
     .outputs = {{"self_attn.q_proj.weight", {kLatentQueryRows, Dim::kHidden}}}},
    {.name = "self_attention.linear_q_down_proj.weight",
     .when = When::kQueryRank,
     .outputs = {{"self_attn.q_a_proj.weight", {Dim::kQueryRank, Dim::kHidden}}}},
    {.name = "self_attention.linear_q_up_proj.layer_norm_weight",
     .local_name = "self_attention.q_layernorm.weight",
     .when = When::kQueryRank,
     .outputs = {{"self_attn.q_a_layernorm.weight", {Dim::kQueryRank}}}},
    {.name = "self_attention.linear_q_up_proj.weight",
     .cut = Cut::kRows,
     .when = When::kQueryRank,
     .outputs = {{"self_attn.q_b_proj.weight", {kLatentQueryRows, Dim::kQueryRank}}}},
    {.name = "self_attention.linear_kv_down_proj.weight",
     .outputs = {{"self_attn.kv_a_proj_with_mqa.weight",
                  {Extent(Dim::kKvRank) + Extent(Dim::kRopeDim), Dim::kHidden}}}},
    {.name = "self_attention.linear_kv_up_proj.layer_norm_weight",
     .local_name = "self_attention.kv_layernorm.weight",
     .outputs = {{"self_attn.kv_a_layernorm.weight", {Dim::kKvRank}}}},
    {.name = "self_attention.linear_kv_up_proj.weight",
     .cut = Cut::kRows,
     .outputs = {{"self_attn.kv_b_proj.weight",
                  {Dim::kHeads * Dim::kNopeDim + Dim::kHeads * Dim::kValueDim, Dim::kKvRank}}}},
    {.name = "self_attention.linear_proj.weight",
     .cut = Cut::kCols,
     .outputs = {{"self_attn.o_proj.weight", {Dim::kHidden, Dim::kHeads* Dim::kValueDim}}}},
};

// ---- gated delta net ----

inline constexpr Extent kLinearKeyRows = Dim::kLinearKeyHeads * Dim::kLinearKeyDim;
inline constexpr Extent kLinearValueRows = Dim::kLinearValueHeads * Dim::kLinearValueDim;
inline constexpr Extent kLinearMixedRows = 2 * kLinearKeyRows + kLinearValueRows;  // q, k, v

inline constexpr Rows kConvRows = {
    {{.parts = {{.rows = kLinearKeyRows}}},
     {.parts = {{.rows = kLinearKeyRows, .base = kLinearKeyRows}}},
     {.parts = {{.rows = kLinearValueRows, .base = 2 * kLinearKeyRows}}}}};

inline constexpr Rule kDeltaNetRules[] = {
    {.name = "self_attention.in_proj.layer_norm_weight",
     .local_name = "input_layernorm.weight",
     .only = Only::kLinearAttention,
     .outputs = {{"input_layernorm.weight", {Dim::kHidden}}}},
    {.name = "self_attention.conv1d.weight",
     .cut = Cut::kRows,
     .rows = &kConvRows,
     .only = Only::kLinearAttention,
     .outputs = {{"linear_attn.conv1d.weight", {kLinearMixedRows, Dim::kOne, Dim::kConvWidth}}}},
    {.name = "self_attention.A_log",
     .cut = Cut::kRows,
     .only = Only::kLinearAttention,
     .outputs = {{"linear_attn.A_log", {Dim::kLinearValueHeads}}}},
    {.name = "self_attention.dt_bias",
     .cut = Cut::kRows,
     .only = Only::kLinearAttention,
     .outputs = {{"linear_attn.dt_bias", {Dim::kLinearValueHeads}}}},
    // Zero-centred in Megatron, and in the checkpoint not.
    {.name = "self_attention.out_norm.weight",
     .only = Only::kLinearAttention,
     .map = layout::ValueMap::kAddOneBf16,
     .outputs = {{"linear_attn.norm.weight", {Dim::kLinearValueDim}}}},
    {.name = "self_attention.out_proj.weight",
     .cut = Cut::kCols,
     .only = Only::kLinearAttention,
     .outputs = {{"linear_attn.out_proj.weight", {Dim::kHidden, kLinearValueRows}}}},
};

// A rank has [q | k | v | z | b | a]; the checkpoint groups them by key head, in two tensors ...
inline constexpr Extent kQkvzValueRows =
    Dim::kLinearValueHeadsPerKeyHead * Dim::kLinearValueDim;  // of a key head
inline constexpr Extent kQkvzStride = Extent(2, Dim::kLinearKeyDim) + 2 * kQkvzValueRows;
inline constexpr Extent kBaStride = {2, Dim::kLinearValueHeadsPerKeyHead};
constexpr Section OfKeyHeads(int output, Extent rows, Extent base, Extent stride) {
  return {.groups = Dim::kLinearKeyHeads,
          .parts = {{.output = output, .rows = rows, .base = base, .stride = stride}}};
}
inline constexpr Rows kQkvzBaRows = {
    {OfKeyHeads(0, Dim::kLinearKeyDim, {}, kQkvzStride),
     OfKeyHeads(0, Dim::kLinearKeyDim, Dim::kLinearKeyDim, kQkvzStride),
     OfKeyHeads(0, kQkvzValueRows, {2, Dim::kLinearKeyDim}, kQkvzStride),
     OfKeyHeads(0, kQkvzValueRows, Extent(2, Dim::kLinearKeyDim) + kQkvzValueRows, kQkvzStride),
     OfKeyHeads(1, Dim::kLinearValueHeadsPerKeyHead, {}, kBaStride),
     OfKeyHeads(1, Dim::kLinearValueHeadsPerKeyHead, Dim::kLinearValueHeadsPerKeyHead, kBaStride)}};
inline constexpr Rule kDeltaNetGroupedInputRules[] = {
    {.name = "self_attention.in_proj.weight",
     .cut = Cut::kRows,
     .rows = &kQkvzBaRows,
     .only = Only::kLinearAttention,
     .outputs = {{"linear_attn.in_proj_qkvz.weight",
                  {2 * kLinearKeyRows + 2 * kLinearValueRows, Dim::kHidden}},
                 {"linear_attn.in_proj_ba.weight",
                  {Extent(2, Dim::kLinearValueHeads), Dim::kHidden}}}},
};

// ... or has them in four.
inline constexpr Rows kQkvThenZThenBThenARows = {
    {{.parts = {{.output = 0, .rows = kLinearKeyRows}}},
     {.parts = {{.output = 0, .rows = kLinearKeyRows, .base = kLinearKeyRows}}},
     {.parts = {{.output = 0, .rows = kLinearValueRows, .base = 2 * kLinearKeyRows}}},
     {.parts = {{.output = 1, .rows = kLinearValueRows}}},
     {.parts = {{.output = 2, .rows = Dim::kLinearValueHeads}}},
     {.parts = {{.output = 3, .rows = Dim::kLinearValueHeads}}}}};
inline constexpr Rule kDeltaNetInputRules[] = {
    {.name = "self_attention.in_proj.weight",
     .cut = Cut::kRows,
     .rows = &kQkvThenZThenBThenARows,
     .only = Only::kLinearAttention,
     .outputs = {{"linear_attn.in_proj_qkv.weight", {kLinearMixedRows, Dim::kHidden}},
                 {"linear_attn.in_proj_z.weight", {kLinearValueRows, Dim::kHidden}},
                 {"linear_attn.in_proj_b.weight", {Dim::kLinearValueHeads, Dim::kHidden}},
                 {"linear_attn.in_proj_a.weight", {Dim::kLinearValueHeads, Dim::kHidden}}}},
};

// ---- feed forward ----

// Every rank has [gate | up] of its own.
constexpr Rows GateThenUp(Dim ffn) {
  return {{{.parts = {{.output = 0, .rows = ffn}}}, {.parts = {{.output = 1, .rows = ffn}}}}};
}
inline constexpr Rows kFfnRows = GateThenUp(Dim::kFfn);
inline constexpr Rows kExpertRows = GateThenUp(Dim::kExpertFfn);
inline constexpr Rows kSharedRows = GateThenUp(Dim::kSharedFfn);

inline constexpr Rule kMlpNormRules[] = {
    {.name = "mlp.linear_fc1.layer_norm_weight",
     .local_name = "pre_mlp_layernorm.weight",
     .only = Only::kDense,
     .outputs = {{"post_attention_layernorm.weight", {Dim::kHidden}}}},
};
inline constexpr Rule kMoeNormRules[] = {
    {.name = "pre_mlp_layernorm.weight",
     .only = Only::kMoe,
     .outputs = {{"post_attention_layernorm.weight", {Dim::kHidden}}}},
};

inline constexpr Rule kGatedMlpRules[] = {
    {.name = "mlp.linear_fc1.weight",
     .cut = Cut::kRows,
     .rows = &kFfnRows,
     .only = Only::kDense,
     .outputs = {{"mlp.gate_proj.weight", {Dim::kFfn, Dim::kHidden}},
                 {"mlp.up_proj.weight", {Dim::kFfn, Dim::kHidden}}}},
    {.name = "mlp.linear_fc2.weight",
     .cut = Cut::kCols,
     .only = Only::kDense,
     .outputs = {{"mlp.down_proj.weight", {Dim::kHidden, Dim::kFfn}}}},
};

// ---- experts ----

inline constexpr const char* kExpertFc1 = "mlp.experts.linear_fc1.weight#";
inline constexpr const char* kExpertFc2 = "mlp.experts.linear_fc2.weight#";
inline constexpr const char* kSequentialFc1 = "mlp.experts.local_experts.#.linear_fc1.weight";
inline constexpr const char* kSequentialFc2 = "mlp.experts.local_experts.#.linear_fc2.weight";

constexpr Rule Router(const char* hf) {
  return {.name = "mlp.router.weight",
          .only = Only::kMoe,
          .outputs = {{hf, {Dim::kExperts, Dim::kHidden}}}};
}
constexpr Rule RouterBias(const char* hf) {
  return {.name = "mlp.router.expert_bias",
          .only = Only::kMoe,
          .when = When::kRouterBias,
          .fp32 = true,
          .outputs = {{hf, {Dim::kExperts}}}};
}
constexpr Rule ExpertGateUp(const char* gate, const char* up, When when) {
  return {
      .name = kExpertFc1,
      .sequential_name = kSequentialFc1,
      .cut = Cut::kRows,
      .rows = &kExpertRows,
      .only = Only::kMoe,
      .when = when,
      .outputs = {{gate, {Dim::kExpertFfn, Dim::kHidden}}, {up, {Dim::kExpertFfn, Dim::kHidden}}}};
}
constexpr Rule ExpertDown(const char* hf, When when) {
  return {.name = kExpertFc2,
          .sequential_name = kSequentialFc2,
          .cut = Cut::kCols,
          .only = Only::kMoe,
          .when = when,
          .outputs = {{hf, {Dim::kHidden, Dim::kExpertFfn}}}};
}

inline constexpr Rows kPackedExpertRows = {
    {{.parts = {{.rows = Dim::kExpertFfn}}},
     {.parts = {{.rows = Dim::kExpertFfn, .base = Dim::kExpertFfn}}}}};
constexpr Rule PackedGateUp(When when, bool transposed, const Rows* rows = &kPackedExpertRows) {
  return {.name = kExpertFc1,
          .sequential_name = kSequentialFc1,
          .cut = Cut::kRows,
          .rows = rows,
          .only = Only::kMoe,
          .when = when,
          .transposed = transposed,
          .outputs = {{.name = "mlp.experts.gate_up_proj",
                       .shape = {{2, Dim::kExpertFfn}, Dim::kHidden},
                       .packed = true}}};
}
constexpr Rule PackedDown(When when, bool transposed) {
  return {.name = kExpertFc2,
          .sequential_name = kSequentialFc2,
          .cut = Cut::kCols,
          .only = Only::kMoe,
          .when = when,
          .transposed = transposed,
          .outputs = {{.name = "mlp.experts.down_proj",
                       .shape = {Dim::kHidden, Dim::kExpertFfn},
                       .packed = true}}};
}

inline constexpr Rule kExpertsRules[] = {
    Router("mlp.gate.weight"),
    ExpertGateUp("mlp.experts.#.gate_proj.weight", "mlp.experts.#.up_proj.weight", When::kPerName),
    ExpertDown("mlp.experts.#.down_proj.weight", When::kPerName),
    PackedGateUp(When::kPackedOutIn, false),
    PackedDown(When::kPackedOutIn, false),
    PackedGateUp(When::kPackedInOut, true),
    PackedDown(When::kPackedInOut, true),
};
inline constexpr Rule kRouterBiasRules[] = {RouterBias("mlp.gate.e_score_correction_bias")};

// Mixtral's names.
inline constexpr Rule kSparseMoeRules[] = {
    Router("block_sparse_moe.gate.weight"),
    ExpertGateUp("block_sparse_moe.experts.#.w1.weight", "block_sparse_moe.experts.#.w3.weight",
                 When::kAlways),
    ExpertDown("block_sparse_moe.experts.#.w2.weight", When::kAlways),
};

inline constexpr Rule kSharedExpertsRules[] = {
    {.name = "mlp.shared_experts.linear_fc1.weight",
     .cut = Cut::kRows,
     .rows = &kSharedRows,
     .only = Only::kMoe,
     .when = When::kSharedExperts,
     .outputs = {{"mlp.shared_experts.gate_proj.weight", {Dim::kSharedFfn, Dim::kHidden}},
                 {"mlp.shared_experts.up_proj.weight", {Dim::kSharedFfn, Dim::kHidden}}}},
    {.name = "mlp.shared_experts.linear_fc2.weight",
     .cut = Cut::kCols,
     .only = Only::kMoe,
     .when = When::kSharedExperts,
     .outputs = {{"mlp.shared_experts.down_proj.weight", {Dim::kHidden, Dim::kSharedFfn}}}},
};
inline constexpr Rule kGatedSharedExpertRules[] = {
    {.name = "mlp.shared_experts.linear_fc1.weight",
     .cut = Cut::kRows,
     .rows = &kSharedRows,
     .only = Only::kMoe,
     .outputs = {{"mlp.shared_expert.gate_proj.weight", {Dim::kSharedFfn, Dim::kHidden}},
                 {"mlp.shared_expert.up_proj.weight", {Dim::kSharedFfn, Dim::kHidden}}}},
    {.name = "mlp.shared_experts.linear_fc2.weight",
     .cut = Cut::kCols,
     .only = Only::kMoe,
     .outputs = {{"mlp.shared_expert.down_proj.weight", {Dim::kHidden, Dim::kSharedFfn}}}},
    {.name = "mlp.shared_experts.gate_weight",
     .only = Only::kMoe,
     .outputs = {{"mlp.shared_expert_gate.weight", {Dim::kOne, Dim::kHidden}}}},
};

// ---- prediction of further tokens ----

constexpr Rule MtpProjection(const char* hf, bool halves_swapped = false) {
  return {.name = "eh_proj.weight",
          .cut = Cut::kRows,
          .halves_swapped = halves_swapped,
          .outputs = {{hf, {Dim::kHidden, {2, Dim::kHidden}}}}};
}
constexpr Rule MtpNorm(const char* megatron, const char* hf) {
  return {.name = megatron, .outputs = {{hf, {Dim::kHidden}}}};
}

inline constexpr Rule kMtpAfterLayersRules[] = {
    MtpNorm("enorm.weight", "enorm.weight"),
    MtpNorm("hnorm.weight", "hnorm.weight"),
    MtpNorm("final_layernorm.weight", "shared_head.norm.weight"),
    MtpProjection("eh_proj.weight"),
};

inline constexpr Rule kMtpRules[] = {
    MtpNorm("enorm.weight", "/mtp.pre_fc_norm_embedding.weight"),
    MtpNorm("hnorm.weight", "/mtp.pre_fc_norm_hidden.weight"),
    MtpNorm("final_layernorm.weight", "/mtp.norm.weight"),
    MtpProjection("/mtp.fc.weight"),
};

// ---- stacks ----

using RuleGroups = std::span<const std::span<const Rule>>;

inline constexpr std::span<const Rule> kFirstGroups[] = {kEmbeddingRules};
inline constexpr std::span<const Rule> kLastGroups[] = {kOutputRules};
inline constexpr std::span<const Rule> kMtpFirstGroups[] = {kMtpEmbeddingRules};
inline constexpr std::span<const Rule> kMtpGroups[] = {kMtpRules};
inline constexpr std::span<const Rule> kMtpAfterLayersGroups[] = {kMtpAfterLayersRules};

inline constexpr Stack kFirstStack = {Holder::kFirstStage, "", "model.", kFirstGroups};
inline constexpr Stack kLastStack = {Holder::kLastStage, "", "model.", kLastGroups};
constexpr Stack LayersStack(RuleGroups rules) {
  return {Holder::kLayers, "decoder.layers.*.", "model.layers.*.", rules};
}

// What predicts further tokens: its embedding, its modules, and the layer in each.
inline constexpr Stack kMtpFirstStack = {Holder::kMtpStage, "", "model.", kMtpFirstGroups};
constexpr Stack MtpStack(const char* hf, RuleGroups rules) {
  return {Holder::kMtpLayers, "mtp.layers.*.", hf, rules};
}
constexpr Stack MtpLayersStack(const char* hf, RuleGroups rules) {
  return {Holder::kMtpLayers, "mtp.layers.*.@.", hf, rules};
}

// The same, where the decoder is the text part of a larger model.
inline constexpr Stack kTextFirstStack = {Holder::kFirstStage, "language_model.",
                                          "model.language_model.", kFirstGroups};
inline constexpr Stack kTextLastStack = {Holder::kLastStage, "language_model.",
                                         "model.language_model.", kLastGroups};
inline constexpr Stack kTextMtpFirstStack = {Holder::kMtpStage, "language_model.",
                                             "model.language_model.", kMtpFirstGroups};
constexpr Stack TextLayersStack(RuleGroups rules) {
  return {Holder::kLayers, "language_model.decoder.layers.*.", "model.language_model.layers.*.",
          rules};
}
inline constexpr Stack kTextMtpStack = {Holder::kMtpLayers, "language_model.mtp.layers.*.",
                                        "mtp.layers.*.", kMtpGroups};
constexpr Stack TextMtpLayersStack(RuleGroups rules) {
  return {Holder::kMtpLayers, "language_model.mtp.layers.*.@.", "mtp.layers.*.", rules};
}

// ---- settings ----

// Of a family that has experts, and nothing else that is not usual.
inline constexpr Setting kMoeSettings[] = {{"num_moe_experts", "*"}};
// Of one that has, beside them, gated delta nets.
inline constexpr Setting kHybridMoeSettings[] = {{"layernorm_zero_centered_gamma", "true"},
                                                 {"attention_output_gate", "true"},
                                                 {"num_moe_experts", "*"},
                                                 {"mtp_num_layers", "*"}};

}  // namespace weightcast::bridge
