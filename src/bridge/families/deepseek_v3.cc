#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr Setting kSettings[] = {
    {"multi_latent_attention", "true"}, {"num_moe_experts", "*"}, {"mtp_num_layers", "*"}};
constexpr std::string_view kDeepseekV3Architectures[] = {"DeepseekV3ForCausalLM",
                                                         "KimiK2ForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kLatentAttentionRules, kMlpNormRules, kGatedMlpRules,
                                             kMoeNormRules,         kExpertsRules, kRouterBiasRules,
                                             kSharedExpertsRules};
constexpr Stack kDeepseekV3Stacks[] = {
    kFirstStack,
    kLastStack,
    LayersStack(kLayers),
    kMtpFirstStack,
    MtpStack("model.layers.+.", kMtpAfterLayersGroups),
    MtpLayersStack("model.layers.+.", kLayers),
};

// Routes without a correction, and predicts no further tokens.
constexpr std::string_view kDeepseekV2Architectures[] = {"DeepseekV2ForCausalLM"};
constexpr std::span<const Rule> kV2Layers[] = {kLatentAttentionRules, kMlpNormRules,
                                               kGatedMlpRules,        kMoeNormRules,
                                               kExpertsRules,         kSharedExpertsRules};
constexpr Setting kV2Settings[] = {{"multi_latent_attention", "true"}, {"num_moe_experts", "*"}};
constexpr Stack kDeepseekV2Stacks[] = {kFirstStack, kLastStack, LayersStack(kV2Layers)};

}  // namespace

constexpr Family kDeepseekV2 = {
    .name = "deepseek_v2",
    .architectures = kDeepseekV2Architectures,
    .stacks = kDeepseekV2Stacks,
    .settings = kV2Settings,
    .dense_first = true,
};

constexpr Family kDeepseekV3 = {
    .name = "deepseek_v3",
    .architectures = kDeepseekV3Architectures,
    .stacks = kDeepseekV3Stacks,
    .settings = kSettings,
    .dense_first = true,
};

}  // namespace weightcast::bridge
