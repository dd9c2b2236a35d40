// The vision tower of Qwen3-VL and Qwen3.5, all of it on the first stage: Megatron's own, or the
// checkpoint's modules, which every tensor rank keeps whole. Facts: the Hugging Face modelling
// files and Megatron-Bridge's tables; slime's trainers keep the checkpoint's.
#pragma once

#include <array>

#include "bridge/rule.h"

namespace weightcast::bridge {

// Each head's [q | k | v]; the checkpoint has all q, then all k, then all v.
inline constexpr Rows kVisionQkvRows = {
    {{.groups = Dim::kVisionHeads,
      .parts = {{.rows = Dim::kVisionHeadDim},
                {.rows = Dim::kVisionHeadDim, .base = Dim::kVisionHidden},
                {.rows = Dim::kVisionHeadDim, .base = {2, Dim::kVisionHidden}}}}}};

inline constexpr Rule kPatchRules[] = {
    {.name = "patch_embed.proj.weight",
     .outputs = {{"patch_embed.proj.weight",
                  {Dim::kVisionHidden, Dim::kVisionChannels, Dim::kVisionFrames, Dim::kVisionPatch,
                   Dim::kVisionPatch}}}},
    {.name = "patch_embed.proj.bias", .outputs = {{"patch_embed.proj.bias", {Dim::kVisionHidden}}}},
    {.name = "pos_embed.weight",
     .outputs = {{"pos_embed.weight", {Dim::kVisionPositions, Dim::kVisionHidden}}}},
};

inline constexpr Rule kVisionLayerRules[] = {
    {.name = "self_attention.linear_qkv.layer_norm_weight",
     .local_name = "input_layernorm.weight",
     .outputs = {{"norm1.weight", {Dim::kVisionHidden}}}},
    {.name = "self_attention.linear_qkv.layer_norm_bias",
     .local_name = "input_layernorm.bias",
     .outputs = {{"norm1.bias", {Dim::kVisionHidden}}}},
    {.name = "self_attention.linear_qkv.weight",
     .cut = Cut::kRows,
     .rows = &kVisionQkvRows,
     .outputs = {{"attn.qkv.weight", {{3, Dim::kVisionHidden}, Dim::kVisionHidden}}}},
    {.name = "self_attention.linear_qkv.bias",
     .cut = Cut::kRows,
     .rows = &kVisionQkvRows,
     .outputs = {{"attn.qkv.bias", {{3, Dim::kVisionHidden}}}}},
    {.name = "self_attention.linear_proj.weight",
     .cut = Cut::kCols,
     .outputs = {{"attn.proj.weight", {Dim::kVisionHidden, Dim::kVisionHidden}}}},
    {.name = "self_attention.linear_proj.bias",
     .outputs = {{"attn.proj.bias", {Dim::kVisionHidden}}}},
    {.name = "mlp.linear_fc1.layer_norm_weight",
     .local_name = "pre_mlp_layernorm.weight",
     .outputs = {{"norm2.weight", {Dim::kVisionHidden}}}},
    {.name = "mlp.linear_fc1.layer_norm_bias",
     .local_name = "pre_mlp_layernorm.bias",
     .outputs = {{"norm2.bias", {Dim::kVisionHidden}}}},
    {.name = "mlp.linear_fc1.weight",
     .cut = Cut::kRows,
     .outputs = {{"mlp.linear_fc1.weight", {Dim::kVisionFfn, Dim::kVisionHidden}}}},
    {.name = "mlp.linear_fc1.bias",
     .cut = Cut::kRows,
     .outputs = {{"mlp.linear_fc1.bias", {Dim::kVisionFfn}}}},
    {.name = "mlp.linear_fc2.weight",
     .cut = Cut::kCols,
     .outputs = {{"mlp.linear_fc2.weight", {Dim::kVisionHidden, Dim::kVisionFfn}}}},
    {.name = "mlp.linear_fc2.bias", .outputs = {{"mlp.linear_fc2.bias", {Dim::kVisionHidden}}}},
};

inline constexpr Rule kMergerRules[] = {
    {.name = "linear_fc1.weight",
     .cut = Cut::kRows,
     .outputs = {{"linear_fc1.weight", {Dim::kVisionMerged, Dim::kVisionMerged}}}},
    {.name = "linear_fc1.bias",
     .cut = Cut::kRows,
     .outputs = {{"linear_fc1.bias", {Dim::kVisionMerged}}}},
    {.name = "linear_fc2.weight",
     .cut = Cut::kCols,
     .outputs = {{"linear_fc2.weight", {Dim::kVisionOut, Dim::kVisionMerged}}}},
    {.name = "linear_fc2.bias", .outputs = {{"linear_fc2.bias", {Dim::kVisionOut}}}},
};

// Before merging in the last one, after it in those between the layers.
inline constexpr Rule kNormBeforeMergingRules[] = {
    {.name = "patch_norm.weight", .outputs = {{"norm.weight", {Dim::kVisionHidden}}}},
    {.name = "patch_norm.bias", .outputs = {{"norm.bias", {Dim::kVisionHidden}}}},
};
inline constexpr Rule kNormAfterMergingRules[] = {
    {.name = "patch_norm.weight", .outputs = {{"norm.weight", {Dim::kVisionMerged}}}},
    {.name = "patch_norm.bias", .outputs = {{"norm.bias", {Dim::kVisionMerged}}}},
};

// The same tensors in a tower that is kept: each whole, under the checkpoint's name.
template <size_t N>
consteval std::array<Rule, N> Kept(const Rule (&rules)[N]) {
  std::array<Rule, N> kept;
  for (size_t i = 0; i < N; ++i) {
    kept[i] = {.name = rules[i].outputs[0].name, .outputs = {rules[i].outputs[0]}};
  }
  return kept;
}
inline constexpr auto kKeptPatchRules = Kept(kPatchRules);
inline constexpr auto kKeptLayerRules = Kept(kVisionLayerRules);
inline constexpr auto kKeptMergerRules = Kept(kMergerRules);
inline constexpr auto kKeptNormBeforeMergingRules = Kept(kNormBeforeMergingRules);
inline constexpr auto kKeptNormAfterMergingRules = Kept(kNormAfterMergingRules);

inline constexpr std::span<const Rule> kPatchGroups[] = {kPatchRules};
inline constexpr std::span<const Rule> kVisionLayerGroups[] = {kVisionLayerRules};
inline constexpr std::span<const Rule> kMergerGroups[] = {kNormBeforeMergingRules, kMergerRules};
inline constexpr std::span<const Rule> kDeepstackGroups[] = {kNormAfterMergingRules, kMergerRules};

inline constexpr std::span<const Rule> kKeptPatchGroups[] = {kKeptPatchRules};
inline constexpr std::span<const Rule> kKeptLayerGroups[] = {kKeptLayerRules};
inline constexpr std::span<const Rule> kKeptMergerGroups[] = {kKeptNormBeforeMergingRules,
                                                              kKeptMergerRules};
inline constexpr std::span<const Rule> kKeptDeepstackGroups[] = {kKeptNormAfterMergingRules,
                                                                 kKeptMergerRules};

inline constexpr Stack kPatchStack = {Holder::kFirstStage, "vision_model.", "model.visual.",
                                      kPatchGroups, When::kMegatronTower};
inline constexpr Stack kVisionLayersStack = {
    Holder::kVisionLayers, "vision_model.decoder.layers.*.", "model.visual.blocks.*.",
    kVisionLayerGroups, When::kMegatronTower};
inline constexpr Stack kMergerStack = {Holder::kFirstStage, "vision_model.merger.",
                                       "model.visual.merger.", kMergerGroups, When::kMegatronTower};
inline constexpr Stack kDeepstackStack = {
    Holder::kDeepstack, "vision_model.decoder.deepstack_merger_list.*.",
    "model.visual.deepstack_merger_list.*.", kDeepstackGroups, When::kMegatronTower};

inline constexpr Stack kKeptPatchStack = {Holder::kFirstStage, "^.", "model.visual.",
                                          kKeptPatchGroups, When::kKeptTower};
inline constexpr Stack kKeptLayersStack = {Holder::kVisionLayers, "^.blocks.*.",
                                           "model.visual.blocks.*.", kKeptLayerGroups,
                                           When::kKeptTower};
inline constexpr Stack kKeptMergerStack = {Holder::kFirstStage, "^.merger.", "model.visual.merger.",
                                           kKeptMergerGroups, When::kKeptTower};
inline constexpr Stack kKeptDeepstackStack = {Holder::kDeepstack, "^.deepstack_merger_list.*.",
                                              "model.visual.deepstack_merger_list.*.",
                                              kKeptDeepstackGroups, When::kKeptTower};

}  // namespace weightcast::bridge
