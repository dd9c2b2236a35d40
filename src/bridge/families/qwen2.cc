#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen2ForCausalLM"};
constexpr std::span<const Rule> kRules[] = {kEmbeddingRules, kAttentionRules, kQkvBiasRules,
                                            kGatedMlpRules};

}  // namespace

constexpr Family kQwen2 = {
    .name = "qwen2",
    .architectures = kArchitectures,
    .rules = kRules,
    .refused = {},
};

}  // namespace weightcast::bridge
