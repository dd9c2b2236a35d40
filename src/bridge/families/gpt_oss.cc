#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

// In the checkpoint gate and up alternate, and experts are [in, out].
constexpr Rows kAlternatingRows = {
    {{.parts = {{.rows = Dim::kExpertFfn, .step = 2}}},
     {.parts = {{.rows = Dim::kExpertFfn, .base = Dim::kOne, .step = 2}}}}};
constexpr Rule kGptOssRules[] = {
    {.name = "self_attention.linear_proj.bias",
     .outputs = {{"self_attn.o_proj.bias", {Dim::kHidden}}}},
    {.name = "self_attention.core_attention.softmax_offset",
     .cut = Cut::kRows,
     .outputs = {{"self_attn.sinks", {Dim::kHeads}}}},
    Router("mlp.router.weight"),
    {.name = "mlp.router.bias", .outputs = {{"mlp.router.bias", {Dim::kExperts}}}},
    PackedGateUp(When::kAlways, /*transposed=*/true, &kAlternatingRows),
    {.name = "mlp.experts.linear_fc1.bias#",
     .sequential_name = "mlp.experts.local_experts.#.linear_fc1.bias",
     .cut = Cut::kRows,
     .rows = &kAlternatingRows,
     .outputs = {{.name = "mlp.experts.gate_up_proj_bias",
                  .shape = {{2, Dim::kExpertFfn}},
                  .packed = true}}},
    PackedDown(When::kAlways, /*transposed=*/true),
    {.name = "mlp.experts.linear_fc2.bias#",
     .sequential_name = "mlp.experts.local_experts.#.linear_fc2.bias",
     .outputs = {{.name = "mlp.experts.down_proj_bias", .shape = {Dim::kHidden}, .packed = true}}},
};
constexpr std::string_view kGptOssArchitectures[] = {"GptOssForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules, kQkvBiasRules,
                                             kMoeNormRules, kGptOssRules};
constexpr Stack kGptOssStacks[] = {kFirstStack, kLastStack, LayersStack(kLayers)};

}  // namespace

constexpr Family kGptOss = {
    .name = "gpt_oss",
    .architectures = kGptOssArchitectures,
    .stacks = kGptOssStacks,
    .settings = kMoeSettings,
};

}  // namespace weightcast::bridge
