#include "bridge/raw/blocks.h"
#include "bridge/raw/families.h"

namespace weightcast::bridge::raw {
namespace {

constexpr std::string_view kArchitectures[] = {"GptOssForCausalLM"};

// All experts are in one tensor, [expert, in, out] and [expert, out] for biases, where gates are
// the even outputs and ups the odd ones.
void Expert(Rank& rank, const Layer& layer, int64_t expert, int64_t local) {
  Model& m = rank.model;
  const int64_t experts = m.Experts();
  const int64_t hidden = m.Hidden();
  const int64_t ffn = m.ExpertFfn();
  const int64_t mine = m.Even(ffn, rank.etp().of, "rows of an expert");
  const int64_t first = rank.at.etp * mine;
  const std::string to = layer.hf + "mlp.experts.";
  const auto name = [&](const char* fc, const char* kind) {
    return ExpertName(rank, layer, fc, kind, local);
  };
  Param& fc1 = rank.Add(name("linear_fc1", "weight"), {2 * mine, hidden});
  for (const int64_t up : {0, 1}) {
    layout::Slice slice;
    slice.box = {expert * hidden, hidden, 1, 2 * first + up, mine, 2};
    slice.source = up * mine * hidden;
    slice.row_stride = 1;
    slice.col_stride = hidden;
    rank.Put(fc1, {to + "gate_up_proj", {experts, hidden, 2 * ffn}}, slice);
  }
  Param& fc1_bias = rank.Add(name("linear_fc1", "bias"), {2 * mine});
  for (const int64_t up : {0, 1}) {
    layout::Slice slice;
    slice.box = {expert, 1, 1, 2 * first + up, mine, 2};
    slice.source = up * mine;
    rank.Put(fc1_bias, {to + "gate_up_proj_bias", {experts, 2 * ffn}}, slice);
  }
  layout::Slice down;
  down.box = {expert * ffn + first, mine, 1, 0, hidden, 1};
  down.row_stride = 1;
  down.col_stride = mine;
  rank.Put(rank.Add(name("linear_fc2", "weight"), {hidden, mine}),
           {to + "down_proj", {experts, ffn, hidden}}, down);
  layout::Slice down_bias;
  down_bias.box = {expert, 1, 1, 0, hidden, 1};
  rank.Put(rank.Add(name("linear_fc2", "bias"), {hidden}),
           {to + "down_proj_bias", {experts, hidden}}, down_bias);
}

void ConvertLayer(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  InputNorm(rank, layer);
  Attention(rank, layer);
  QkvBias(rank, layer);
  rank.Whole(layer.megatron + "self_attention.linear_proj.bias",
             {layer.hf + "self_attn.o_proj.bias", {m.Hidden()}});
  rank.RowPart(layer.megatron + "self_attention.core_attention.softmax_offset",
               {layer.hf + "self_attn.sinks", {m.Heads()}}, rank.tp());
  MoeNorm(rank, layer);
  Router(rank, layer, "mlp.router.weight");
  rank.Whole(layer.megatron + "mlp.router.bias", {layer.hf + "mlp.router.bias", {m.Experts()}});
  const ExpertRange mine = ExpertsOf(rank);
  for (int64_t i = 0; i < mine.count; ++i) Expert(rank, layer, mine.first + i, i);
}

}  // namespace

constexpr Family kGptOss = {
    .name = "gpt_oss",
    .architectures = kArchitectures,
    .layer = ConvertLayer,
    .experts = true,
    .settings = kMoeSettings,
};

}  // namespace weightcast::bridge::raw
