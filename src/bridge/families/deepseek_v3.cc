#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr Setting kSettings[] = {
    {"multi_latent_attention", "true"}, {"num_moe_experts", "*"}, {"mtp_num_layers", "*"}};
constexpr std::string_view kDeepseekV3Architectures[] = {"DeepseekV3ForCausalLM",
                                                         "DeepseekV2ForCausalLM"};
constexpr std::span<const Rule> kFirst[] = {kEmbeddingRules};
constexpr std::span<const Rule> kLast[] = {kOutputRules};
constexpr std::span<const Rule> kLayers[] = {kLatentAttentionRules, kMlpNormRules, kGatedMlpRules,
                                             kMoeNormRules,         kExpertsRules, kRouterBiasRules,
                                             kSharedExpertsRules};
constexpr std::span<const Rule> kMtpFirst[] = {kMtpEmbeddingRules};
constexpr std::span<const Rule> kMtp[] = {kMtpAfterLayersRules};
constexpr Stack kDeepseekV3Stacks[] = {
    {Holder::kFirstStage, "", "model.", kFirst},
    {Holder::kLastStage, "", "model.", kLast},
    {Holder::kLayers, "decoder.layers.*.", "model.layers.*.", kLayers},
    {Holder::kMtpStage, "", "model.", kMtpFirst},
    {Holder::kMtpLayers, "mtp.layers.*.", "model.layers.+.", kMtp},
    {Holder::kMtpLayers, "mtp.layers.*.@.", "model.layers.+.", kLayers},
};

}  // namespace

constexpr Family kDeepseekV3 = {
    .name = "deepseek_v3",
    .architectures = kDeepseekV3Architectures,
    .stacks = kDeepseekV3Stacks,
    .settings = kSettings,
};

}  // namespace weightcast::bridge
