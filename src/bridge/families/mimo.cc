#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr Rule kMiMoMtpRules[] = {
    MtpNorm("enorm.weight", "token_layernorm.weight"),
    MtpNorm("hnorm.weight", "hidden_layernorm.weight"),
    MtpNorm("final_layernorm.weight", "final_layernorm.weight"),
    MtpProjection("input_proj.weight", /*halves_swapped=*/true),
};
constexpr Setting kSettings[] = {{"mtp_num_layers", "*"}};
constexpr std::string_view kMiMoArchitectures[] = {"MiMoForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules, kQkvBiasRules,
                                             kMlpNormRules, kGatedMlpRules};
constexpr std::span<const Rule> kMtp[] = {kMiMoMtpRules};
constexpr Stack kMiMoStacks[] = {
    kFirstStack,
    kLastStack,
    LayersStack(kLayers),
    kMtpFirstStack,
    MtpStack("model.mtp_layers.*.", kMtp),
    MtpLayersStack("model.mtp_layers.*.", kLayers),
};

}  // namespace

constexpr Family kMiMo = {
    .name = "mimo",
    .architectures = kMiMoArchitectures,
    .stacks = kMiMoStacks,
    .settings = kSettings,
};

}  // namespace weightcast::bridge
