#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr Setting kSettings[] = {{"layernorm_zero_centered_gamma", "true"}};
constexpr std::string_view kArchitectures[] = {"Gemma3ForCausalLM"};

void ConvertLayer(Rank& rank, const Layer& layer) {
  const int64_t hidden = rank.model.Hidden();
  rank.model.RefuseFlag("attention_bias");
  InputNorm(rank, layer);
  Attention(rank, layer);
  HeadNorms(rank, layer);
  rank.Whole(layer.megatron + "self_attention.linear_proj.post_layernorm.weight",
             {layer.hf + "post_attention_layernorm.weight", {hidden}});
  DenseMlpNorm(rank, layer, "pre_feedforward_layernorm.weight");
  GatedMlp(rank, layer);
  rank.Whole(layer.megatron + "mlp.linear_fc2.post_layernorm.weight",
             {layer.hf + "post_feedforward_layernorm.weight", {hidden}});
}

}  // namespace

constexpr Family kGemma3 = {
    .name = "gemma3",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .settings = kSettings,
    .tied = true,
};

}  // namespace weightcast::bridge::raw
