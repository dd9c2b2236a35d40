#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kMixtralArchitectures[] = {"MixtralForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules, kMoeNormRules,
                                             kSparseMoeRules};
constexpr Stack kMixtralStacks[] = {kFirstStack, kLastStack, LayersStack(kLayers)};

}  // namespace

constexpr Family kMixtral = {
    .name = "mixtral",
    .architectures = kMixtralArchitectures,
    .stacks = kMixtralStacks,
    .settings = kMoeSettings,
};

}  // namespace weightcast::bridge
