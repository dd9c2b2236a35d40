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
constexpr std::span<const Rule> kFirst[] = {kEmbeddingRules};
constexpr std::span<const Rule> kLast[] = {kOutputRules};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules, kQkvBiasRules,
                                             kMlpNormRules, kGatedMlpRules};
constexpr std::span<const Rule> kMtpFirst[] = {kMtpEmbeddingRules};
constexpr std::span<const Rule> kMtp[] = {kMiMoMtpRules};
constexpr Stack kMiMoStacks[] = {
    {Holder::kFirstStage, "", "model.", kFirst},
    {Holder::kLastStage, "", "model.", kLast},
    {Holder::kLayers, "decoder.layers.*.", "model.layers.*.", kLayers},
    {Holder::kMtpStage, "", "model.", kMtpFirst},
    {Holder::kMtpLayers, "mtp.layers.*.", "model.mtp_layers.*.", kMtp},
    {Holder::kMtpLayers, "mtp.layers.*.@.", "model.mtp_layers.*.", kLayers},
};

}  // namespace

constexpr Family kMiMo = {
    .name = "mimo",
    .architectures = kMiMoArchitectures,
    .stacks = kMiMoStacks,
    .settings = kSettings,
};

}  // namespace weightcast::bridge
