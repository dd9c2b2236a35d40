#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr Setting kSettings[] = {{"num_moe_experts", "*"}, {"mtp_num_layers", "*"}};
constexpr std::string_view kGlm4MoeArchitectures[] = {"Glm4MoeForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {
    kAttentionNormRules, kAttentionRules,    kQkvBiasIfSetRules, kQkNormIfSetRules,
    kMlpNormRules,       kGatedMlpRules,     kMoeNormRules,      kExpertsRules,
    kRouterBiasRules,    kSharedExpertsRules};
constexpr Stack kGlm4MoeStacks[] = {
    kFirstStack,
    kLastStack,
    LayersStack(kLayers),
    kMtpFirstStack,
    MtpStack("model.layers.+.", kMtpAfterLayersGroups),
    MtpLayersStack("model.layers.+.", kLayers),
};

}  // namespace

constexpr Family kGlm4Moe = {
    .name = "glm4_moe",
    .architectures = kGlm4MoeArchitectures,
    .stacks = kGlm4MoeStacks,
    .settings = kSettings,
    .dense_first = true,
};

}  // namespace weightcast::bridge
