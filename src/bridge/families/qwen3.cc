#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3ForCausalLM"};
constexpr std::span<const Rule> kRules[] = {kEmbeddingRules, kAttentionRules, kQkNormRules,
                                            kGatedMlpRules};
constexpr std::string_view kRefused[] = {"attention_bias"};

}  // namespace

constexpr Family kQwen3 = {
    .name = "qwen3",
    .architectures = kArchitectures,
    .rules = kRules,
    .refused = kRefused,
};

}  // namespace weightcast::bridge
