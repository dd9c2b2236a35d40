#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr Setting kSettings[] = {{"mtp_num_layers", "*"}};
constexpr std::string_view kArchitectures[] = {"MiMoForCausalLM"};

void ConvertLayer(Rank& rank, const Layer& layer) {
  InputNorm(rank, layer);
  Attention(rank, layer);
  QkvBias(rank, layer);
  DenseMlp(rank, layer);
}

void ConvertMtp(Rank& rank, const std::string& megatron, int32_t j) {
  const std::string hf = "model.mtp_layers." + std::to_string(j) + ".";
  const int64_t hidden = rank.model.Hidden();
  rank.Whole(megatron + "enorm.weight", {hf + "token_layernorm.weight", {hidden}});
  rank.Whole(megatron + "hnorm.weight", {hf + "hidden_layernorm.weight", {hidden}});
  rank.Whole(megatron + "final_layernorm.weight", {hf + "final_layernorm.weight", {hidden}});
  // Megatron has [embedding | hidden state], the checkpoint [hidden state | embedding].
  const Tensor projection{hf + "input_proj.weight", {hidden, 2 * hidden}};
  const int64_t rows = rank.model.Even(hidden, rank.tp().of, "rows of eh_proj");
  Param& param = rank.Add(megatron + "eh_proj.weight", {rows, 2 * hidden});
  for (const int64_t half : {0, 1}) {
    layout::Slice slice;
    slice.box = {rank.at.tp * rows, rows, 1, half * hidden, hidden, 1};
    slice.source = (1 - half) * hidden;
    slice.row_stride = 2 * hidden;
    rank.Put(param, projection, slice);
  }
  ConvertLayer(rank, InsideOf(rank, megatron, hf));
}

}  // namespace

constexpr Family kMiMo = {
    .name = "mimo",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .mtp = ConvertMtp,
    .settings = kSettings,
};

}  // namespace weightcast::bridge::raw
