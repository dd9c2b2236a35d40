#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kQwen3NextArchitectures[] = {"Qwen3NextForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules,
                                             kGatedAttentionRules,
                                             kQkNormRules,
                                             kDeltaNetRules,
                                             kDeltaNetGroupedInputRules,
                                             kMlpNormRules,
                                             kGatedMlpRules,
                                             kMoeNormRules,
                                             kExpertsRules,
                                             kGatedSharedExpertRules};
constexpr Stack kQwen3NextStacks[] = {
    kFirstStack,
    kLastStack,
    LayersStack(kLayers),
    kMtpFirstStack,
    MtpStack("mtp.layers.*.", kMtpGroups),
    MtpLayersStack("mtp.layers.*.", kLayers),
};

}  // namespace

constexpr Family kQwen3Next = {
    .name = "qwen3_next",
    .architectures = kQwen3NextArchitectures,
    .stacks = kQwen3NextStacks,
    .settings = kHybridMoeSettings,
};

}  // namespace weightcast::bridge
