#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3NextForCausalLM"};

// A rank has q, k, v, z, b and a of its key heads, each of all of them; the checkpoint has for each
// key head [q | k | v | z] in one tensor and [b | a] in another.
void InProj(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  const LinearSizes n = LinearSizesOf(m);
  const int64_t hidden = m.Hidden();
  const int64_t mine = m.Even(n.key_heads, rank.tp().of, "linear key heads");
  const int64_t a_key = m.Even(n.value_heads, n.key_heads, "linear value heads");
  const int64_t values = a_key * n.value_dim;  // of one key head
  const int64_t stride = 2 * n.key_dim + 2 * values;
  const Tensor qkvz{layer.hf + "linear_attn.in_proj_qkvz.weight", {n.key_heads * stride, hidden}};
  const Tensor ba{layer.hf + "linear_attn.in_proj_ba.weight", {2 * n.value_heads, hidden}};
  Param& param = rank.Add(layer.megatron + "self_attention.in_proj.weight",
                          {mine * (stride + 2 * a_key), hidden});
  for (int64_t i = 0; i < mine; ++i) {
    const int64_t head = rank.at.tp * mine + i;
    int64_t row = head * stride;  // in the checkpoint
    int64_t section = 0;          // in the parameter
    for (const int64_t rows : {n.key_dim, n.key_dim, values, values}) {
      rank.Lay(param, qkvz, row, rows, section + i * rows);
      row += rows;
      section += mine * rows;
    }
    rank.Lay(param, ba, head * 2 * a_key, a_key, section + i * a_key);
    rank.Lay(param, ba, head * 2 * a_key + a_key, a_key, section + (mine + i) * a_key);
  }
}

void ConvertLayer(Rank& rank, const Layer& layer) {
  if (IsLinear(rank, layer)) {
    DeltaNet(rank, layer);
    InProj(rank, layer);
  } else {
    InputNorm(rank, layer);
    GatedAttention(rank, layer);
    HeadNorms(rank, layer);
  }
  if (!IsSparse(rank, layer)) return DenseMlp(rank, layer);
  Moe(rank, layer);
  SharedExperts(rank, layer, "mlp.shared_expert.");
  SharedExpertGate(rank, layer);
}

void ConvertMtp(Rank& rank, const std::string& megatron, int32_t j) {
  MtpModule(rank, megatron);
  ConvertLayer(rank, InsideOf(rank, megatron, "mtp.layers." + std::to_string(j) + "."));
}

}  // namespace

constexpr Family kQwen3Next = {
    .name = "qwen3_next",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .mtp = ConvertMtp,
    .experts = true,
    .settings = kHybridMoeSettings,
    .layouts = true,
};

}  // namespace weightcast::bridge::raw
