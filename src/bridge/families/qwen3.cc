#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kQwen3Architectures[] = {"Qwen3ForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules,
                                             kQkvBiasIfSetRules,  kQkNormRules,
                                             kMlpNormRules,       kGatedMlpRules};
constexpr Stack kQwen3Stacks[] = {kFirstStack, kLastStack, LayersStack(kLayers)};

}  // namespace

constexpr Family kQwen3 = {
    .name = "qwen3",
    .architectures = kQwen3Architectures,
    .stacks = kQwen3Stacks,
    .wrapped = "model.language_model.",
};

}  // namespace weightcast::bridge
