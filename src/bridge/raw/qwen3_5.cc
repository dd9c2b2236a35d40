#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr Setting kSettings[] = {{"layernorm_zero_centered_gamma", "true"},
                                 {"attention_output_gate", "true"},
                                 {"mtp_num_layers", "*"}};
constexpr std::string_view kArchitectures[] = {"Qwen3_5ForCausalLM"};
constexpr std::string_view kMoeArchitectures[] = {"Qwen3_5MoeForCausalLM"};
constexpr std::string_view kVlArchitectures[] = {"Qwen3_5ForConditionalGeneration"};
constexpr std::string_view kVlMoeArchitectures[] = {"Qwen3_5MoeForConditionalGeneration"};

// A rank has its part of q, of k, of v, of z, of b and of a, which the checkpoint has in four
// tensors.
void InProj(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  const LinearSizes n = LinearSizesOf(m);
  const int64_t hidden = m.Hidden();
  const int64_t t = rank.at.tp;
  const int64_t keys = m.Even(n.keys(), rank.tp().of, "linear keys");
  const int64_t values = m.Even(n.values(), rank.tp().of, "linear values");
  const int64_t heads = m.Even(n.value_heads, rank.tp().of, "linear value heads");
  const std::string to = layer.hf + "linear_attn.in_proj_";
  const Tensor qkv{to + "qkv.weight", {2 * n.keys() + n.values(), hidden}};
  Param& param = rank.Add(layer.megatron + "self_attention.in_proj.weight",
                          {2 * keys + 2 * values + 2 * heads, hidden});
  rank.Lay(param, qkv, t * keys, keys, 0);
  rank.Lay(param, qkv, n.keys() + t * keys, keys, keys);
  rank.Lay(param, qkv, 2 * n.keys() + t * values, values, 2 * keys);
  const int64_t z = 2 * keys + values;
  rank.Lay(param, {to + "z.weight", {n.values(), hidden}}, t * values, values, z);
  const int64_t b = z + values;
  rank.Lay(param, {to + "b.weight", {n.value_heads, hidden}}, t * heads, heads, b);
  rank.Lay(param, {to + "a.weight", {n.value_heads, hidden}}, t * heads, heads, b + heads);
}

void ConvertAttention(Rank& rank, const Layer& layer) {
  if (IsLinear(rank, layer)) {
    DeltaNet(rank, layer);
    InProj(rank, layer);
  } else {
    InputNorm(rank, layer);
    GatedAttention(rank, layer);
    HeadNorms(rank, layer);
  }
}

void ConvertLayer(Rank& rank, const Layer& layer) {
  ConvertAttention(rank, layer);
  DenseMlp(rank, layer);
}

void ConvertMoeLayer(Rank& rank, const Layer& layer) {
  ConvertAttention(rank, layer);
  Moe(rank, layer);
  SharedExperts(rank, layer, "mlp.shared_expert.");
  SharedExpertGate(rank, layer);
}

void ConvertMtp(Rank& rank, const std::string& megatron, int32_t j) {
  MtpModule(rank, megatron);
  ConvertLayer(rank, InsideOf(rank, megatron, "mtp.layers." + std::to_string(j) + "."));
}

void ConvertMoeMtp(Rank& rank, const std::string& megatron, int32_t j) {
  MtpModule(rank, megatron);
  ConvertMoeLayer(rank, InsideOf(rank, megatron, "mtp.layers." + std::to_string(j) + "."));
}

}  // namespace

constexpr Family kQwen35 = {
    .name = "qwen3_5",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .mtp = ConvertMtp,
    .settings = kSettings,
};

constexpr Family kQwen35Moe = {
    .name = "qwen3_5_moe",
    .architectures = kMoeArchitectures,
    .layer = ConvertMoeLayer,
    .mtp = ConvertMoeMtp,
    .experts = true,
    .settings = kHybridMoeSettings,
    .layouts = true,
    .packed = true,
};

constexpr Family kQwen35Vl = {
    .name = "qwen3_5_vl",
    .architectures = kVlArchitectures,
    .layer = ConvertLayer,
    .mtp = ConvertMtp,
    .tower = VisionTower,
    .settings = kSettings,
    .vision = true,
};

constexpr Family kQwen35VlMoe = {
    .name = "qwen3_5_vl_moe",
    .architectures = kVlMoeArchitectures,
    .layer = ConvertMoeLayer,
    .mtp = ConvertMoeMtp,
    .tower = VisionTower,
    .experts = true,
    .settings = kHybridMoeSettings,
    .vision = true,
    .layouts = true,
    .packed = true,
};

}  // namespace weightcast::bridge::raw
