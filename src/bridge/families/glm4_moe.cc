#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr Setting kSettings[] = {{"num_moe_experts", "*"}, {"mtp_num_layers", "*"}};
constexpr std::string_view kGlm4MoeArchitectures[] = {"Glm4MoeForCausalLM"};
constexpr std::span<const Rule> kFirst[] = {kEmbeddingRules};
constexpr std::span<const Rule> kLast[] = {kOutputRules};
constexpr std::span<const Rule> kLayers[] = {
    kAttentionNormRules, kAttentionRules,    kQkvBiasIfSetRules, kQkNormIfSetRules,
    kMlpNormRules,       kGatedMlpRules,     kMoeNormRules,      kExpertsRules,
    kRouterBiasRules,    kSharedExpertsRules};
constexpr std::span<const Rule> kMtpFirst[] = {kMtpEmbeddingRules};
constexpr std::span<const Rule> kMtp[] = {kMtpAfterLayersRules};
constexpr Stack kGlm4MoeStacks[] = {
    {Holder::kFirstStage, "", "model.", kFirst},
    {Holder::kLastStage, "", "model.", kLast},
    {Holder::kLayers, "decoder.layers.*.", "model.layers.*.", kLayers},
    {Holder::kMtpStage, "", "model.", kMtpFirst},
    {Holder::kMtpLayers, "mtp.layers.*.", "model.layers.+.", kMtp},
    {Holder::kMtpLayers, "mtp.layers.*.@.", "model.layers.+.", kLayers},
};

}  // namespace

constexpr Family kGlm4Moe = {
    .name = "glm4_moe",
    .architectures = kGlm4MoeArchitectures,
    .stacks = kGlm4MoeStacks,
    .settings = kSettings,
};

}  // namespace weightcast::bridge
