#include "bridge/raw/blocks.h"

namespace weightcast::bridge::raw {
namespace {

int64_t VisionSize(Model& m, const char* key) {
  return m.Size({std::string("vision_config.") + key});
}

int64_t Merged(Model& m) {
  const int64_t side = VisionSize(m, "spatial_merge_size");
  return m.Checked("vision_config.hidden_size, merged", VisionSize(m, "hidden_size") * side * side);
}

// Megatron has each head's [q | k | v]; the checkpoint all q, then all k, then all v.
void VisionQkv(Rank& rank, const Layer& layer, const char* kind) {
  Model& m = rank.model;
  const int64_t hidden = VisionSize(m, "hidden_size");
  const int64_t heads = m.Even(VisionSize(m, "num_heads"), rank.tp().of, "vision heads");
  const int64_t dim = m.Even(hidden, VisionSize(m, "num_heads"), "vision units");
  const bool weight = kind == std::string_view("weight");
  const auto shape = [&](int64_t rows) {
    return weight ? tensor::Shape{rows, hidden} : tensor::Shape{rows};
  };
  const Tensor qkv{layer.hf + "attn.qkv." + kind, shape(3 * hidden)};
  Param& param =
      rank.Add(layer.megatron + "self_attention.linear_qkv." + kind, shape(3 * heads * dim));
  for (int64_t local = 0; local < heads; ++local) {
    const int64_t head = rank.at.tp * heads + local;
    for (int64_t c = 0; c < 3; ++c) {
      rank.Lay(param, qkv, c * hidden + head * dim, dim, (3 * local + c) * dim);
    }
  }
}

void WholePair(Rank& rank, const std::string& from, const std::string& to, int64_t size) {
  rank.Whole(from + "weight", {to + "weight", {size}});
  rank.Whole(from + "bias", {to + "bias", {size}});
}

// Two linear layers, the second of which sums over ranks: so its bias is on all.
void TwoLinears(Rank& rank, const std::string& from, const std::string& to, int64_t in,
                int64_t inner, int64_t out) {
  rank.RowPart(from + "linear_fc1.weight", {to + "linear_fc1.weight", {inner, in}}, rank.tp());
  rank.RowPart(from + "linear_fc1.bias", {to + "linear_fc1.bias", {inner}}, rank.tp());
  rank.ColPart(from + "linear_fc2.weight", {to + "linear_fc2.weight", {out, inner}}, rank.tp());
  rank.Whole(from + "linear_fc2.bias", {to + "linear_fc2.bias", {out}});
}

void VisionLayer(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  const int64_t hidden = VisionSize(m, "hidden_size");
  const bool local = m.trainer.local_spec;
  const std::string& from = layer.megatron;
  const std::string attention = from + "self_attention.";
  WholePair(rank, local ? from + "input_layernorm." : attention + "linear_qkv.layer_norm_",
            layer.hf + "norm1.", hidden);
  VisionQkv(rank, layer, "weight");
  VisionQkv(rank, layer, "bias");
  rank.ColPart(attention + "linear_proj.weight", {layer.hf + "attn.proj.weight", {hidden, hidden}},
               rank.tp());
  rank.Whole(attention + "linear_proj.bias", {layer.hf + "attn.proj.bias", {hidden}});
  WholePair(rank, from + (local ? "pre_mlp_layernorm." : "mlp.linear_fc1.layer_norm_"),
            layer.hf + "norm2.", hidden);
  TwoLinears(rank, from + "mlp.", layer.hf + "mlp.", hidden, VisionSize(m, "intermediate_size"),
             hidden);
}

void Merger(Rank& rank, const std::string& from, const std::string& to, int64_t norm) {
  Model& m = rank.model;
  WholePair(rank, from + "patch_norm.", to + "norm.", norm);
  TwoLinears(rank, from, to, Merged(m), Merged(m), VisionSize(m, "out_hidden_size"));
}

// A tower that the trainer keeps as the checkpoint has it: every tensor whole, on every rank.
void Keep(Rank& rank, const std::string& name, const tensor::Shape& shape) {
  rank.Whole(rank.model.trainer.spelling.tower + "." + name, {"model.visual." + name, shape});
}

void KeepPair(Rank& rank, const std::string& name, const tensor::Shape& shape) {
  Keep(rank, name + ".weight", shape);
  Keep(rank, name + ".bias", {shape[0]});
}

void KeepMerger(Rank& rank, const std::string& name, int64_t norm) {
  Model& m = rank.model;
  KeepPair(rank, name + ".norm", {norm});
  KeepPair(rank, name + ".linear_fc1", {Merged(m), Merged(m)});
  KeepPair(rank, name + ".linear_fc2", {VisionSize(m, "out_hidden_size"), Merged(m)});
}

void KeepTower(Rank& rank, int64_t depth) {
  Model& m = rank.model;
  const int64_t hidden = VisionSize(m, "hidden_size");
  const int64_t inner = VisionSize(m, "intermediate_size");
  const int64_t patch = VisionSize(m, "patch_size");
  KeepPair(
      rank, "patch_embed.proj",
      {hidden, VisionSize(m, "in_channels"), VisionSize(m, "temporal_patch_size"), patch, patch});
  Keep(rank, "pos_embed.weight", {VisionSize(m, "num_position_embeddings"), hidden});
  for (int64_t i = 0; i < depth && !m.gives_up(); ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    KeepPair(rank, block + "norm1", {hidden});
    KeepPair(rank, block + "attn.qkv", {3 * hidden, hidden});
    KeepPair(rank, block + "attn.proj", {hidden, hidden});
    KeepPair(rank, block + "norm2", {hidden});
    KeepPair(rank, block + "mlp.linear_fc1", {inner, hidden});
    KeepPair(rank, block + "mlp.linear_fc2", {hidden, inner});
  }
  KeepMerger(rank, "merger", hidden);
}

}  // namespace

void VisionTower(Rank& rank) {
  Model& m = rank.model;
  const int64_t depth = m.config.Int("vision_config.depth").value_or(-1);
  if (depth < 0 || depth > layout::kLayersMax) return m.Fault("config.json: vision_config.depth");
  if (m.trainer.spelling.keeps_tower()) return KeepTower(rank, depth);
  const int64_t hidden = VisionSize(m, "hidden_size");
  const int64_t patch = VisionSize(m, "patch_size");
  const std::string from = "vision_model.";
  const std::string to = "model.visual.";
  rank.Whole(
      from + "patch_embed.proj.weight",
      {to + "patch_embed.proj.weight",
       {hidden, VisionSize(m, "in_channels"), VisionSize(m, "temporal_patch_size"), patch, patch}});
  rank.Whole(from + "patch_embed.proj.bias", {to + "patch_embed.proj.bias", {hidden}});
  rank.Whole(from + "pos_embed.weight",
             {to + "pos_embed.weight", {VisionSize(m, "num_position_embeddings"), hidden}});
  for (int32_t i = 0; i < depth && !m.gives_up(); ++i) {
    const std::string number = std::to_string(i) + ".";
    VisionLayer(rank, {from + "decoder.layers." + number, to + "blocks." + number, i});
  }
  // The norm comes before patches are merged ...
  Merger(rank, from + "merger.", to + "merger.", hidden);
}

void DeepstackMergers(Rank& rank) {
  Model& m = rank.model;
  const std::string from = "vision_model.decoder.deepstack_merger_list.";
  const std::string to = "model.visual.deepstack_merger_list.";
  const auto list = m.config.int_lists.find("vision_config.deepstack_visual_indexes");
  if (list == m.config.int_lists.end()) return;
  if (std::ssize(list->second) > layout::kLayersMax) {
    return m.Fault("config.json: vision_config.deepstack_visual_indexes is too long");
  }
  for (size_t i = 0; i < list->second.size() && !m.gives_up(); ++i) {
    const std::string number = std::to_string(i);
    // ... and here after.
    if (m.trainer.spelling.keeps_tower()) {
      KeepMerger(rank, "deepstack_merger_list." + number, Merged(m));
    } else {
      Merger(rank, from + number + ".", to + number + ".", Merged(m));
    }
  }
}

}  // namespace weightcast::bridge::raw
