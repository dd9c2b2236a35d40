#include <algorithm>

#include "base/text.h"
#include "bridge/raw/blocks.h"

namespace weightcast::bridge::raw {
namespace {

// Rows of all ranks together are, for each KV head, its query heads, (their gates,) its key, its
// value; a rank holds an equal part of them, wherever that begins. Head by head: what of it is this
// rank's?
class Interleaved {
 public:
  Interleaved(Rank& rank, const Layer& layer, const char* kind, bool gated)
      : rank_(rank),
        hf_(layer.hf + "self_attn."),
        weight_(kind == std::string_view("weight")),
        kind_(std::string("_proj.") + kind),
        gated_(gated),
        heads_(rank.model.Heads()),
        kv_heads_(rank.model.KvHeads()),
        head_dim_(rank.model.HeadDim()),
        a_kv_head_(rank.model.Even(heads_, kv_heads_, "heads")),
        group_((a_kv_head_ * (gated ? 2 : 1) + 2) * head_dim_),
        mine_(rank.model.Even(kv_heads_ * group_, rank.tp().of, "rows of linear_qkv")),
        first_(rank.at.tp * mine_),
        param_(rank.Add(layer.megatron + "self_attention.linear_qkv." + kind, Shape(mine_))) {}

  void LayAll() {
    const Tensor q{hf_ + "q" + kind_, Shape(heads_ * head_dim_ * (gated_ ? 2 : 1))};
    const Tensor k{hf_ + "k" + kind_, Shape(kv_heads_ * head_dim_)};
    const Tensor v{hf_ + "v" + kind_, Shape(kv_heads_ * head_dim_)};
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t query = h / a_kv_head_ * group_ + h % a_kv_head_ * head_dim_;
      // In the checkpoint each head's gate comes right after its query.
      LayHead(q, gated_ ? 2 * h : h, query);
      if (gated_) LayHead(q, 2 * h + 1, query + a_kv_head_ * head_dim_);
    }
    for (int64_t g = 0; g < kv_heads_; ++g) {
      LayHead(k, g, (g + 1) * group_ - 2 * head_dim_);
      LayHead(v, g, (g + 1) * group_ - head_dim_);
    }
  }

 private:
  tensor::Shape Shape(int64_t rows) const {
    return weight_ ? tensor::Shape{rows, rank_.model.Hidden()} : tensor::Shape{rows};
  }

  // Head `head` of the tensor, which begins at row `where` of all ranks' rows.
  void LayHead(const Tensor& tensor, int64_t head, int64_t where) {
    const int64_t from = std::max(where, first_);
    const int64_t to = std::min(where + head_dim_, first_ + mine_);
    if (from >= to) return;
    rank_.Lay(param_, tensor, head * head_dim_ + from - where, to - from, from - first_);
  }

  Rank& rank_;
  const std::string hf_;
  const bool weight_;
  const std::string kind_;
  const bool gated_;
  const int64_t heads_, kv_heads_, head_dim_;
  const int64_t a_kv_head_;  // query heads of one KV head
  const int64_t group_;      // rows of one KV head
  const int64_t mine_, first_;
  Param& param_;
};

void OutputProjection(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  rank.ColPart(layer.megatron + "self_attention.linear_proj.weight",
               {layer.hf + "self_attn.o_proj.weight", {m.Hidden(), m.Heads() * m.HeadDim()}},
               rank.tp());
}

}  // namespace

void InputNorm(Rank& rank, const Layer& layer, const char* fused) {
  const std::string inside = std::string("self_attention.") + fused + ".layer_norm_weight";
  const std::string name = rank.model.trainer.local_spec ? "input_layernorm.weight" : inside;
  rank.Whole(layer.megatron + name, {layer.hf + "input_layernorm.weight", {rank.model.Hidden()}});
}

void Attention(Rank& rank, const Layer& layer) {
  Interleaved(rank, layer, "weight", false).LayAll();
  OutputProjection(rank, layer);
}

void GatedAttention(Rank& rank, const Layer& layer) {
  Interleaved(rank, layer, "weight", true).LayAll();
  OutputProjection(rank, layer);
}

void QkvBias(Rank& rank, const Layer& layer) { Interleaved(rank, layer, "bias", false).LayAll(); }

void QkvBiasIfSet(Rank& rank, const Layer& layer) {
  if (rank.model.config.Flag("attention_bias")) QkvBias(rank, layer);
}

void HeadNorms(Rank& rank, const Layer& layer) {
  for (const std::string c : {"q", "k"}) {
    rank.Whole(layer.megatron + "self_attention." + c + "_layernorm.weight",
               {layer.hf + "self_attn." + c + "_norm.weight", {rank.model.HeadDim()}});
  }
}

// ---- linear attention ----

bool IsLinear(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  if (layer.number < 0) return false;
  bool linear = false;
  const auto types = m.config.name_lists.find("layer_types");
  if (types != m.config.name_lists.end()) {
    const auto at = static_cast<size_t>(layer.number);
    if (std::ssize(types->second) != m.topology.num_layers) {
      m.Fault("config.json: layer_types has not one entry a layer");
      return false;
    }
    linear = types->second[at] == "linear_attention";
    if (!linear && types->second[at] != "full_attention") {
      m.Fault("config.json: layer_types has an unknown kind " + Quoted(types->second[at]));
    }
  } else {
    // Every n-th layer has full attention, the n-th first.
    linear = layer.number % m.Size({"full_attention_interval"}) !=
             m.Size({"full_attention_interval"}) - 1;
  }
  m.Agree("linear_attention_freq", layer.number, linear);
  return linear;
}

LinearSizes LinearSizesOf(Model& m) {
  const auto size = [&](const char* key) { return m.Size({key}, key); };
  return {size("linear_num_key_heads"), size("linear_num_value_heads"), size("linear_key_head_dim"),
          size("linear_value_head_dim"), size("linear_conv_kernel_dim")};
}

void DeltaNet(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  const LinearSizes n = LinearSizesOf(m);
  const std::string to = layer.hf + "linear_attn.";
  const std::string from = layer.megatron + "self_attention.";
  InputNorm(rank, layer, "in_proj");
  m.Even(n.key_heads, rank.tp().of, "linear key heads");  // a rank has whole ones

  // Channels of [q | k | v]: a rank has its part of each.
  const int64_t keys = m.Even(n.keys(), rank.tp().of, "linear keys");
  const int64_t values = m.Even(n.values(), rank.tp().of, "linear values");
  const Tensor conv{to + "conv1d.weight", {2 * n.keys() + n.values(), 1, n.width}};
  Param& param = rank.Add(from + "conv1d.weight", {2 * keys + values, 1, n.width});
  rank.Lay(param, conv, rank.at.tp * keys, keys, 0);
  rank.Lay(param, conv, n.keys() + rank.at.tp * keys, keys, keys);
  rank.Lay(param, conv, 2 * n.keys() + rank.at.tp * values, values, 2 * keys);

  rank.RowPart(from + "A_log", {to + "A_log", {n.value_heads}}, rank.tp());
  rank.RowPart(from + "dt_bias", {to + "dt_bias", {n.value_heads}}, rank.tp());
  rank.Whole(from + "out_norm.weight", {to + "norm.weight", {n.value_dim}});
  for (layout::Slice& s : rank.params.back().slices) s.map = layout::ValueMap::kAddOneBf16;
  rank.ColPart(from + "out_proj.weight", {to + "out_proj.weight", {m.Hidden(), n.values()}},
               rank.tp());
}

// ---- further tokens ----

void MtpModule(Rank& rank, const std::string& megatron) {
  const int64_t hidden = rank.model.Hidden();
  rank.Whole(megatron + "enorm.weight", {"mtp.pre_fc_norm_embedding.weight", {hidden}});
  rank.Whole(megatron + "hnorm.weight", {"mtp.pre_fc_norm_hidden.weight", {hidden}});
  rank.Whole(megatron + "final_layernorm.weight", {"mtp.norm.weight", {hidden}});
  rank.RowPart(megatron + "eh_proj.weight", {"mtp.fc.weight", {hidden, 2 * hidden}}, rank.tp());
}

void MtpModuleAfterLayers(Rank& rank, const std::string& megatron, const std::string& hf) {
  const int64_t hidden = rank.model.Hidden();
  rank.Whole(megatron + "enorm.weight", {hf + "enorm.weight", {hidden}});
  rank.Whole(megatron + "hnorm.weight", {hf + "hnorm.weight", {hidden}});
  rank.Whole(megatron + "final_layernorm.weight", {hf + "shared_head.norm.weight", {hidden}});
  rank.RowPart(megatron + "eh_proj.weight", {hf + "eh_proj.weight", {hidden, 2 * hidden}},
               rank.tp());
}

}  // namespace weightcast::bridge::raw
