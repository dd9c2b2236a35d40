#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr Setting kSettings[] = {{"num_moe_experts", "*"}};
constexpr std::string_view kQwen3MoeArchitectures[] = {"Qwen3MoeForCausalLM"};
constexpr std::span<const Rule> kFirst[] = {kEmbeddingRules};
constexpr std::span<const Rule> kLast[] = {kOutputRules};
constexpr std::span<const Rule> kLayers[] = {
    kAttentionNormRules, kAttentionRules, kQkvBiasIfSetRules, kQkNormRules,
    kMlpNormRules,       kGatedMlpRules,  kMoeNormRules,      kExpertsRules};
constexpr Stack kQwen3MoeStacks[] = {
    {Holder::kFirstStage, "", "model.", kFirst},
    {Holder::kLastStage, "", "model.", kLast},
    {Holder::kLayers, "decoder.layers.*.", "model.layers.*.", kLayers},
};

}  // namespace

constexpr Family kQwen3Moe = {
    .name = "qwen3_moe",
    .architectures = kQwen3MoeArchitectures,
    .stacks = kQwen3MoeStacks,
    .settings = kSettings,
    .wrapped = "model.language_model.",
};

}  // namespace weightcast::bridge
