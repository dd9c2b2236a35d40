#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr std::string_view kArchitectures[] = {"Glm4ForCausalLM"};

// Gate and up are one tensor, of all gates and then all ups.
void Mlp(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  const int64_t hidden = m.Hidden();
  const int64_t ffn = m.Ffn();
  const int64_t mine = m.Even(ffn, rank.tp().of, "rows of linear_fc1");
  const Tensor gate_up{layer.hf + "mlp.gate_up_proj.weight", {2 * ffn, hidden}};
  Param& param = rank.Add(layer.megatron + "mlp.linear_fc1.weight", {2 * mine, hidden});
  rank.Lay(param, gate_up, rank.at.tp * mine, mine, 0);
  rank.Lay(param, gate_up, ffn + rank.at.tp * mine, mine, mine);
  rank.ColPart(layer.megatron + "mlp.linear_fc2.weight",
               {layer.hf + "mlp.down_proj.weight", {hidden, ffn}}, rank.tp());
}

void ConvertLayer(Rank& rank, const Layer& layer) {
  InputNorm(rank, layer);
  Attention(rank, layer);
  QkvBiasIfSet(rank, layer);
  DenseMlpNorm(rank, layer);
  Mlp(rank, layer);
  // Norms also after attention and MLP, under the same names.
  for (const char* norm : {"post_self_attn_layernorm.weight", "post_mlp_layernorm.weight"}) {
    rank.Whole(layer.megatron + norm, {layer.hf + norm, {rank.model.Hidden()}});
  }
}

}  // namespace

constexpr Family kGlm4 = {
    .name = "glm4",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
};

}  // namespace weightcast::bridge::raw
