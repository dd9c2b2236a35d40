#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kQwen3MoeArchitectures[] = {"Qwen3MoeForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {
    kAttentionNormRules, kAttentionRules, kQkvBiasIfSetRules, kQkNormRules,
    kMlpNormRules,       kGatedMlpRules,  kMoeNormRules,      kExpertsRules};
constexpr Stack kQwen3MoeStacks[] = {kFirstStack, kLastStack, LayersStack(kLayers)};

}  // namespace

constexpr Family kQwen3Moe = {
    .name = "qwen3_moe",
    .architectures = kQwen3MoeArchitectures,
    .stacks = kQwen3MoeStacks,
    .settings = kMoeSettings,
    .wrapped = "model.language_model.",
};

}  // namespace weightcast::bridge
