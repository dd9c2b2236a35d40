#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kArchitectures[] = {"LlamaForCausalLM"};
constexpr std::span<const Rule> kRules[] = {kEmbeddingRules, kAttentionRules, kGatedMlpRules};
constexpr std::string_view kRefused[] = {"attention_bias", "mlp_bias"};

}  // namespace

constexpr Family kLlama = {
    .name = "llama",
    .architectures = kArchitectures,
    .rules = kRules,
    .refused = kRefused,
};

}  // namespace weightcast::bridge
