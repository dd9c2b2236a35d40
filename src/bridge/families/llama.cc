#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kRefused[] = {"attention_bias", "mlp_bias"};
constexpr std::string_view kLlamaArchitectures[] = {"LlamaForCausalLM", "MistralForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules, kMlpNormRules,
                                             kGatedMlpRules};
constexpr Stack kLlamaStacks[] = {kFirstStack, kLastStack, LayersStack(kLayers)};

}  // namespace

constexpr Family kLlama = {
    .name = "llama",
    .architectures = kLlamaArchitectures,
    .stacks = kLlamaStacks,
    .refused = kRefused,
};

}  // namespace weightcast::bridge
