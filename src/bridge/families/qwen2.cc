#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kQwen2Architectures[] = {"Qwen2ForCausalLM"};
constexpr std::span<const Rule> kFirst[] = {kEmbeddingRules};
constexpr std::span<const Rule> kLast[] = {kOutputRules};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules, kQkvBiasRules,
                                             kMlpNormRules, kGatedMlpRules};
constexpr Stack kQwen2Stacks[] = {
    {Holder::kFirstStage, "", "model.", kFirst},
    {Holder::kLastStage, "", "model.", kLast},
    {Holder::kLayers, "decoder.layers.*.", "model.layers.*.", kLayers},
};

}  // namespace

constexpr Family kQwen2 = {
    .name = "qwen2",
    .architectures = kQwen2Architectures,
    .stacks = kQwen2Stacks,
};

}  // namespace weightcast::bridge
