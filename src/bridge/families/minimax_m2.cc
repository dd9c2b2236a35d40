#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

// Norms of all heads' queries and keys together, cut like them.
constexpr Rule kMiniMaxRules[] = {
    {.name = "self_attention.q_layernorm.weight",
     .cut = Cut::kRows,
     .outputs = {{"self_attn.q_norm.weight", {kQueryRows}}}},
    {.name = "self_attention.k_layernorm.weight",
     .cut = Cut::kKvRows,
     .outputs = {{"self_attn.k_norm.weight", {kKeyRows}}}},
    RouterBias("block_sparse_moe.e_score_correction_bias"),
};
constexpr std::string_view kMiniMaxM2Architectures[] = {"MiniMaxM2ForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules, kMoeNormRules,
                                             kSparseMoeRules, kMiniMaxRules};
constexpr Stack kMiniMaxM2Stacks[] = {kFirstStack, kLastStack, LayersStack(kLayers)};

}  // namespace

constexpr Family kMiniMaxM2 = {
    .name = "minimax_m2",
    .architectures = kMiniMaxM2Architectures,
    .stacks = kMiniMaxM2Stacks,
    .settings = kMoeSettings,
};

}  // namespace weightcast::bridge
