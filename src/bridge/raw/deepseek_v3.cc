#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr Setting kSettings[] = {
    {"multi_latent_attention", "true"}, {"num_moe_experts", "*"}, {"mtp_num_layers", "*"}};
constexpr std::string_view kArchitectures[] = {"DeepseekV3ForCausalLM", "KimiK2ForCausalLM"};
constexpr Setting kV2Settings[] = {{"multi_latent_attention", "true"}, {"num_moe_experts", "*"}};
constexpr std::string_view kV2Architectures[] = {"DeepseekV2ForCausalLM"};

// Queries, through a low rank or not.
void Queries(Rank& rank, const Layer& layer, int64_t rows) {
  Model& m = rank.model;
  const std::string from = layer.megatron + "self_attention.";
  const std::string to = layer.hf + "self_attn.";
  if (!m.config.Int("q_lora_rank")) {
    return rank.RowPart(from + "linear_q_proj.weight", {to + "q_proj.weight", {rows, m.Hidden()}},
                        rank.tp());
  }
  const int64_t low = m.Size({"q_lora_rank"}, "q_lora_rank");
  const bool local = m.trainer.local_spec;
  rank.Whole(from + "linear_q_down_proj.weight", {to + "q_a_proj.weight", {low, m.Hidden()}});
  rank.Whole(from + (local ? "q_layernorm.weight" : "linear_q_up_proj.layer_norm_weight"),
             {to + "q_a_layernorm.weight", {low}});
  rank.RowPart(from + "linear_q_up_proj.weight", {to + "q_b_proj.weight", {rows, low}}, rank.tp());
}

void LatentAttention(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  const std::string from = layer.megatron + "self_attention.";
  const std::string to = layer.hf + "self_attn.";
  const bool local = m.trainer.local_spec;
  const int64_t hidden = m.Hidden();
  const int64_t heads = m.Heads();
  const int64_t plain = m.Size({"qk_nope_head_dim"}, "qk_head_dim");
  const int64_t rotary = m.Size({"qk_rope_head_dim"}, "qk_pos_emb_head_dim");
  const int64_t value = m.Size({"v_head_dim"}, "v_head_dim");
  const int64_t low = m.Size({"kv_lora_rank"}, "kv_lora_rank");
  rank.Whole(layer.megatron + "input_layernorm.weight",
             {layer.hf + "input_layernorm.weight", {hidden}});
  Queries(rank, layer, heads * (plain + rotary));
  rank.Whole(from + "linear_kv_down_proj.weight",
             {to + "kv_a_proj_with_mqa.weight", {low + rotary, hidden}});
  rank.Whole(from + (local ? "kv_layernorm.weight" : "linear_kv_up_proj.layer_norm_weight"),
             {to + "kv_a_layernorm.weight", {low}});
  rank.RowPart(from + "linear_kv_up_proj.weight",
               {to + "kv_b_proj.weight", {heads * (plain + value), low}}, rank.tp());
  rank.ColPart(from + "linear_proj.weight", {to + "o_proj.weight", {hidden, heads * value}},
               rank.tp());
}

void ConvertV2Layer(Rank& rank, const Layer& layer) {
  LatentAttention(rank, layer);
  if (!IsAfterDense(rank, layer)) return DenseMlp(rank, layer);
  Moe(rank, layer);
  if (rank.model.config.Int("n_shared_experts").value_or(0) > 0) {
    SharedExperts(rank, layer, "mlp.shared_experts.");
  }
}

void ConvertLayer(Rank& rank, const Layer& layer) {
  ConvertV2Layer(rank, layer);
  if (IsAfterDense(rank, layer)) RouterBias(rank, layer, "mlp.gate.e_score_correction_bias");
}

void ConvertMtp(Rank& rank, const std::string& megatron, int32_t j) {
  const std::string number = std::to_string(rank.model.topology.num_layers + j);
  const std::string hf = "model.layers." + number + ".";
  MtpModuleAfterLayers(rank, megatron, hf);
  ConvertLayer(rank, InsideOf(rank, megatron, hf));
}

}  // namespace

constexpr Family kDeepseekV2 = {
    .name = "deepseek_v2",
    .architectures = kV2Architectures,
    .layer = ConvertV2Layer,
    .experts = true,
    .settings = kV2Settings,
    .layouts = true,
};

constexpr Family kDeepseekV3 = {
    .name = "deepseek_v3",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .mtp = ConvertMtp,
    .experts = true,
    .settings = kSettings,
    .layouts = true,
};

}  // namespace weightcast::bridge::raw
