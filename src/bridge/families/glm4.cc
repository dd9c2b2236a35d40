#include "bridge/families/families.h"
#include "bridge/families/fragments.h"

namespace weightcast::bridge {
namespace {

// Norms after attention and MLP besides those before them; gate and up are one tensor.
constexpr Rows kGateUpRows = {
    {{.parts = {{.rows = Dim::kFfn}}}, {.parts = {{.rows = Dim::kFfn, .base = Dim::kFfn}}}}};
constexpr Rule kGlm4Rules[] = {
    {.name = "mlp.linear_fc1.weight",
     .cut = Cut::kRows,
     .rows = &kGateUpRows,
     .outputs = {{"mlp.gate_up_proj.weight", {{2, Dim::kFfn}, Dim::kHidden}}}},
    {.name = "mlp.linear_fc2.weight",
     .cut = Cut::kCols,
     .outputs = {{"mlp.down_proj.weight", {Dim::kHidden, Dim::kFfn}}}},
    {.name = "post_self_attn_layernorm.weight",
     .outputs = {{"post_self_attn_layernorm.weight", {Dim::kHidden}}}},
    {.name = "post_mlp_layernorm.weight",
     .outputs = {{"post_mlp_layernorm.weight", {Dim::kHidden}}}},
};

constexpr std::string_view kGlm4Architectures[] = {"Glm4ForCausalLM"};
constexpr std::span<const Rule> kLayers[] = {kAttentionNormRules, kAttentionRules,
                                             kQkvBiasIfSetRules, kMlpNormRules, kGlm4Rules};
constexpr Stack kGlm4Stacks[] = {kFirstStack, kLastStack, LayersStack(kLayers)};

}  // namespace

constexpr Family kGlm4 = {
    .name = "glm4",
    .architectures = kGlm4Architectures,
    .stacks = kGlm4Stacks,
};

}  // namespace weightcast::bridge
