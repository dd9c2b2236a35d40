#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kQwen2Architectures[] = {"Qwen2ForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules, kQkvBiasRules,
                                             kMlpNormRules, kGatedMlpRules};
constexpr Stack kQwen2Stacks[] = {kFirstStack, kLastStack, LayersStack(kLayers)};

}  // namespace

constexpr Family kQwen2 = {
    .name = "qwen2",
    .architectures = kQwen2Architectures,
    .stacks = kQwen2Stacks,
};

}  // namespace weightcast::bridge
