#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr std::string_view kArchitectures[] = {"MiniMaxM2ForCausalLM"};

// Norms of all heads' queries and keys together: a rank has those of its heads. Of more ranks than
// KV heads, neighbours have the same one.
void AllHeadNorms(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  const std::string from = layer.megatron + "self_attention.";
  const std::string to = layer.hf + "self_attn.";
  const int64_t dim = m.HeadDim();
  const int64_t kv_heads = m.KvHeads();
  rank.RowPart(from + "q_layernorm.weight", {to + "q_norm.weight", {m.Heads() * dim}}, rank.tp());
  Part part = rank.tp();
  if (part.of > kv_heads) {
    part.index /= m.Even(part.of, kv_heads, "tensor ranks");
    part.of = kv_heads;
  }
  rank.RowPart(from + "k_layernorm.weight", {to + "k_norm.weight", {kv_heads * dim}}, part);
}

void ConvertLayer(Rank& rank, const Layer& layer) {
  InputNorm(rank, layer);
  Attention(rank, layer);
  AllHeadNorms(rank, layer);
  MoeNorm(rank, layer);
  Router(rank, layer, "block_sparse_moe.gate.weight");
  RouterBias(rank, layer, "block_sparse_moe.e_score_correction_bias");
  SparseMoeExperts(rank, layer);
}

}  // namespace

constexpr Family kMiniMaxM2 = {
    .name = "minimax_m2",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .experts = true,
    .settings = kMoeSettings,
};

}  // namespace weightcast::bridge::raw
