#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

// Norms before and after both halves of a layer. Megatron fuses the latter into the projections;
// all are zero-centred on both sides.
constexpr Rule kGemma3NormRules[] = {
    {.name = "self_attention.linear_proj.post_layernorm.weight",
     .outputs = {{"post_attention_layernorm.weight", {Dim::kHidden}}}},
    {.name = "mlp.linear_fc1.layer_norm_weight",
     .local_name = "pre_mlp_layernorm.weight",
     .outputs = {{"pre_feedforward_layernorm.weight", {Dim::kHidden}}}},
    {.name = "mlp.linear_fc2.post_layernorm.weight",
     .outputs = {{"post_feedforward_layernorm.weight", {Dim::kHidden}}}},
};
constexpr Setting kSettings[] = {{"layernorm_zero_centered_gamma", "true"}};
constexpr std::string_view kRefused[] = {"attention_bias"};
constexpr std::string_view kGemma3Architectures[] = {"Gemma3ForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules, kQkNormRules,
                                             kGemma3NormRules, kGatedMlpRules};
constexpr Stack kGemma3Stacks[] = {kFirstStack, kLastStack, LayersStack(kLayers)};

}  // namespace

constexpr Family kGemma3 = {
    .name = "gemma3",
    .architectures = kGemma3Architectures,
    .stacks = kGemma3Stacks,
    .refused = kRefused,
    .settings = kSettings,
    .tied_by_default = true,
};

}  // namespace weightcast::bridge
