#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr Setting kSettings[] = {{"layernorm_zero_centered_gamma", "true"}};
constexpr std::string_view kArchitectures[] = {"Gemma3ForCausalLM"};

void ConvertLayer(Rank& rank, const Layer& layer) {
  const int64_t hidden = rank.model.Hidden();
  const bool local = rank.model.trainer.local_spec;
  rank.model.RefuseFlag("attention_bias");
  InputNorm(rank, layer);
  Attention(rank, layer);
  HeadNorms(rank, layer);
  rank.Whole(layer.megatron + "self_attention.linear_proj.post_layernorm.weight",
             {layer.hf + "post_attention_layernorm.weight", {hidden}});
  rank.Whole(
      layer.megatron + (local ? "pre_mlp_layernorm.weight" : "mlp.linear_fc1.layer_norm_weight"),
      {layer.hf + "pre_feedforward_layernorm.weight", {hidden}});
  const int64_t ffn = rank.model.Ffn();
  rank.GateUp(layer.megatron + "mlp.linear_fc1.weight",
              {layer.hf + "mlp.gate_proj.weight", {ffn, hidden}},
              {layer.hf + "mlp.up_proj.weight", {ffn, hidden}}, rank.tp());
  rank.ColPart(layer.megatron + "mlp.linear_fc2.weight",
               {layer.hf + "mlp.down_proj.weight", {hidden, ffn}}, rank.tp());
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
