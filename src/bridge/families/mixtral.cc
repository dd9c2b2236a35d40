#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr Setting kSettings[] = {{"num_moe_experts", "*"}};
constexpr std::string_view kMixtralArchitectures[] = {"MixtralForCausalLM"};
constexpr std::span<const Rule> kFirst[] = {kEmbeddingRules};
constexpr std::span<const Rule> kLast[] = {kOutputRules};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules, kMoeNormRules,
                                             kSparseMoeRules};
constexpr Stack kMixtralStacks[] = {
    {Holder::kFirstStage, "", "model.", kFirst},
    {Holder::kLastStage, "", "model.", kLast},
    {Holder::kLayers, "decoder.layers.*.", "model.layers.*.", kLayers},
};

}  // namespace

constexpr Family kMixtral = {
    .name = "mixtral",
    .architectures = kMixtralArchitectures,
    .stacks = kMixtralStacks,
    .settings = kSettings,
};

}  // namespace weightcast::bridge
