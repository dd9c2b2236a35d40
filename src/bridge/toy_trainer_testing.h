// For tests: a tiny decoder-only model cut into Megatron shards by code of its own, written forward
// (canonical tensors -> interleave -> cut), so that it shares no arithmetic with the rules it
// checks. Every canonical element has a value of its own (fp32 bits); padded rows hold kPadding.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layout/topology.h"
#include "tensor/inventory.h"

namespace weightcast::bridge {

struct ToyModel {
  std::string architecture;
  bool tied = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  bool local_spec = false;
  int32_t layers = 2;
  int64_t hidden = 6, ffn = 24, heads = 4, kv_heads = 2, head_dim = 3, vocab = 10,
          padded_vocab = 12;
};

inline constexpr uint32_t kPadding = 0x7fc0dead;  // a NaN

// A row-major matrix of fp32 bits; a vector has one column.
struct ToyTensor {
  int64_t rows = 0;
  int64_t cols = 1;
  bool vector = false;
  std::vector<uint32_t> bits;

  tensor::Shape shape() const { return vector ? tensor::Shape{rows} : tensor::Shape{rows, cols}; }
  ToyTensor Rows(int64_t from, int64_t count) const {
    ToyTensor part{count, cols, vector, {}};
    part.bits.assign(bits.begin() + from * cols, bits.begin() + (from + count) * cols);
    return part;
  }
  ToyTensor Cols(int64_t from, int64_t count) const {
    ToyTensor part{rows, count, vector, {}};
    for (int64_t r = 0; r < rows; ++r) {
      part.bits.insert(part.bits.end(), bits.begin() + r * cols + from,
                       bits.begin() + r * cols + from + count);
    }
    return part;
  }
  void Append(const ToyTensor& below) {
    rows += below.rows;
    bits.insert(bits.end(), below.bits.begin(), below.bits.end());
  }
};

using ToyTensors = std::map<std::string, ToyTensor>;

// The model's Hugging Face tensors.
inline ToyTensors CanonicalTensors(const ToyModel& m) {
  ToyTensors all;
  uint32_t next = 1;
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
    ToyTensor t{rows, cols == 0 ? 1 : cols, cols == 0, {}};
    for (int64_t i = 0; i < t.rows * t.cols; ++i) t.bits.push_back(next++);
    all[name] = t;
  };
  add("model.embed_tokens.weight", m.vocab, m.hidden);
  if (!m.tied) add("lm_head.weight", m.vocab, m.hidden);
  add("model.norm.weight", m.hidden, 0);
  for (int32_t i = 0; i < m.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", m.hidden, 0);
    add(layer + "post_attention_layernorm.weight", m.hidden, 0);
    add(layer + "self_attn.o_proj.weight", m.hidden, m.heads * m.head_dim);
    add(layer + "mlp.gate_proj.weight", m.ffn, m.hidden);
    add(layer + "mlp.up_proj.weight", m.ffn, m.hidden);
    add(layer + "mlp.down_proj.weight", m.hidden, m.ffn);
    for (const char* c : {"q", "k", "v"}) {
      const int64_t rows = (*c == 'q' ? m.heads : m.kv_heads) * m.head_dim;
      const std::string projection = layer + "self_attn." + c + "_proj.";
      add(projection + "weight", rows, m.hidden);
      if (m.qkv_bias) add(projection + "bias", rows, 0);
      if (m.qk_norm && *c != 'v') add(layer + "self_attn." + c + "_norm.weight", m.head_dim, 0);
    }
  }
  return all;
}

// What one rank holds, by shard key.
inline ToyTensors ShardTensors(const ToyModel& m, const layout::Topology& t, int32_t rank) {
  const ToyTensors hf = CanonicalTensors(m);
  const layout::Coordinates at = t.At(rank);
  ToyTensors shard;
  const auto rows = [&](const ToyTensor& full) {
    return full.Rows(at.tp * (full.rows / t.tp), full.rows / t.tp);
  };
  const auto cols = [&](const ToyTensor& full) {
    return full.Cols(at.tp * (full.cols / t.tp), full.cols / t.tp);
  };
  const auto padded = [&](ToyTensor full) {
    full.bits.resize(static_cast<size_t>(m.padded_vocab * full.cols), kPadding);
    full.rows = m.padded_vocab;
    return rows(full);
  };
  // [q heads of the group | k | v] for each KV head.
  const auto interleaved = [&](const std::string& attention, const std::string& kind) {
    ToyTensor all = hf.at(attention + "q_proj." + kind).Rows(0, 0);
    const int64_t group = m.heads / m.kv_heads * m.head_dim;
    for (int64_t g = 0; g < m.kv_heads; ++g) {
      all.Append(hf.at(attention + "q_proj." + kind).Rows(g * group, group));
      all.Append(hf.at(attention + "k_proj." + kind).Rows(g * m.head_dim, m.head_dim));
      all.Append(hf.at(attention + "v_proj." + kind).Rows(g * m.head_dim, m.head_dim));
    }
    return rows(all);
  };
  for (int32_t v = 0; v < t.vpp; ++v) {
    const std::string chunk = "vp" + std::to_string(v) + "/";
    const layout::Topology::LayerRange range = t.LayersOf(at.pp, v);
    for (int32_t i = 0; i < range.count; ++i) {
      const std::string to = chunk + "decoder.layers." + std::to_string(i) + ".";
      const std::string from = "model.layers." + std::to_string(range.first + i) + ".";
      const std::string attention = from + "self_attn.";
      shard[to + (m.local_spec ? "input_layernorm.weight"
                               : "self_attention.linear_qkv.layer_norm_weight")] =
          hf.at(from + "input_layernorm.weight");
      shard[to + (m.local_spec ? "pre_mlp_layernorm.weight" : "mlp.linear_fc1.layer_norm_weight")] =
          hf.at(from + "post_attention_layernorm.weight");
      shard[to + "self_attention.linear_qkv.weight"] = interleaved(attention, "weight");
      if (m.qkv_bias) shard[to + "self_attention.linear_qkv.bias"] = interleaved(attention, "bias");
      if (m.qk_norm) {
        shard[to + "self_attention.q_layernorm.weight"] = hf.at(attention + "q_norm.weight");
        shard[to + "self_attention.k_layernorm.weight"] = hf.at(attention + "k_norm.weight");
      }
      shard[to + "self_attention.linear_proj.weight"] = cols(hf.at(attention + "o_proj.weight"));
      ToyTensor fc1 = rows(hf.at(from + "mlp.gate_proj.weight"));
      fc1.Append(rows(hf.at(from + "mlp.up_proj.weight")));
      shard[to + "mlp.linear_fc1.weight"] = fc1;
      shard[to + "mlp.linear_fc2.weight"] = cols(hf.at(from + "mlp.down_proj.weight"));
    }
    if (at.pp == 0 && v == 0) {
      shard[chunk + "embedding.word_embeddings.weight"] =
          padded(hf.at("model.embed_tokens.weight"));
    }
    if (at.pp == t.pp - 1 && v == t.vpp - 1) {
      shard[chunk + "decoder.final_layernorm.weight"] = hf.at("model.norm.weight");
      if (!m.tied) shard[chunk + "output_layer.weight"] = padded(hf.at("lm_head.weight"));
      if (m.tied && t.pp > 1) {
        shard[chunk + "output_layer.weight"] = padded(hf.at("model.embed_tokens.weight"));
      }
    }
  }
  return shard;
}

inline std::string ConfigJson(const ToyModel& m) {
  const auto field = [](const char* name, int64_t v) {
    return ", \"" + std::string(name) + "\": " + std::to_string(v);
  };
  return "{\"architectures\": [\"" + m.architecture + "\"], \"dtype\": \"float32\"" +
         field("num_hidden_layers", m.layers) + field("hidden_size", m.hidden) +
         field("intermediate_size", m.ffn) + field("num_attention_heads", m.heads) +
         field("num_key_value_heads", m.kv_heads) + field("head_dim", m.head_dim) +
         field("vocab_size", m.vocab) +
         ", \"tie_word_embeddings\": " + (m.tied ? "true" : "false") + "}";
}

inline std::string TopologyJson(const ToyModel& m, const layout::Topology& t) {
  const auto field = [](const char* name, int64_t v) {
    return "\"" + std::string(name) + "\": " + std::to_string(v) + ", ";
  };
  return "{\"world\": " + std::to_string(t.world) + ", \"config\": {" +
         field("tensor_model_parallel_size", t.tp) + field("pipeline_model_parallel_size", t.pp) +
         field("virtual_pipeline_model_parallel_size", t.vpp) +
         field("context_parallel_size", t.cp) + field("num_layers", m.layers) +
         field("padded_vocab_size", m.padded_vocab) + "\"transformer_impl\": \"" +
         (m.local_spec ? "local" : "transformer_engine") +
         "\", \"params_dtype\": \"torch.float32\"}}";
}

}  // namespace weightcast::bridge
