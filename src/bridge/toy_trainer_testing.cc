#include "bridge/toy_trainer_testing.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace weightcast::bridge {

using layout::Coordinates;
using layout::Topology;
using tensor::DType;
using tensor::Shape;

namespace {

int64_t Product(const Shape& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies());
}

// The upper half of the bits of a whole number of 128ths below 2, which is all there is of it.
uint16_t Bf16Of128ths(uint32_t n) {
  const float value = static_cast<float>(n) / 128.0F;
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);
}

uint16_t Bf16(uint32_t bits, ToyValues values, bool upper_half) {
  if (values == ToyValues::kBits) return static_cast<uint16_t>(upper_half ? bits >> 16 : bits);
  const uint32_t fraction = (upper_half ? bits >> 7 : bits) & 127;
  return Bf16Of128ths(values == ToyValues::kGain ? 128 + fraction : fraction);
}

}  // namespace

// ---- tensors ----

ToyTensor ToyTensor::Rows(int64_t from, int64_t count) const {
  const int64_t row = static_cast<int64_t>(bits.size()) / std::max<int64_t>(1, dims[0]);
  if (from + count > dims[0]) throw std::out_of_range("rows");
  ToyTensor part = *this;
  part.dims[0] = count;
  part.bits.assign(bits.begin() + from * row, bits.begin() + (from + count) * row);
  return part;
}

ToyTensor ToyTensor::Cols(int64_t from, int64_t count) const {
  if (dims.size() != 2 || from + count > dims[1]) throw std::out_of_range("columns");
  ToyTensor part = *this;
  part.dims[1] = count;
  part.bits.clear();
  for (int64_t r = 0; r < dims[0]; ++r) {
    const auto row = bits.begin() + r * dims[1] + from;
    part.bits.insert(part.bits.end(), row, row + count);
  }
  return part;
}

ToyTensor ToyTensor::EachSecond(int64_t from) const {
  ToyTensor part = Rows(0, 0);
  for (int64_t r = from; r < dims[0]; r += 2) part.Append(Rows(r, 1));
  return part;
}

ToyTensor ToyTensor::At(int64_t i) const {
  ToyTensor part = Rows(i, 1);
  part.dims.erase(part.dims.begin());
  return part;
}

ToyTensor ToyTensor::Transposed() const {
  if (dims.size() != 2) throw std::out_of_range("not a matrix");
  ToyTensor turned = *this;
  turned.dims = {dims[1], dims[0]};
  for (int64_t r = 0; r < dims[0]; ++r) {
    for (int64_t c = 0; c < dims[1]; ++c) {
      turned.bits[static_cast<size_t>(c * dims[0] + r)] =
          bits[static_cast<size_t>(r * dims[1] + c)];
    }
  }
  return turned;
}

void ToyTensor::Append(const ToyTensor& below) {
  dims[0] += below.dims[0];
  bits.insert(bits.end(), below.bits.begin(), below.bits.end());
}

Bytes BytesOf(const ToyTensor& t, bool upper_half) {
  const bool narrow = t.dtype == DType::kBf16;
  Bytes bytes(t.bits.size() * (narrow ? 2 : 4));
  for (size_t i = 0; i < t.bits.size(); ++i) {
    if (narrow) {
      const uint16_t half = Bf16(t.bits[i], t.values, upper_half);
      std::memcpy(&bytes[i * 2], &half, 2);
    } else {
      std::memcpy(&bytes[i * 4], &t.bits[i], 4);
    }
  }
  return bytes;
}

// ---- the checkpoint ----

namespace {

class Checkpoint {
 public:
  explicit Checkpoint(const ToyModel& model) : m_(model) {}
  ToyTensors Make();

 private:
  void Add(const std::string& name, Shape dims, DType dtype, ToyValues values);
  void Add(const std::string& name, Shape dims) {
    Add(name, std::move(dims), m_.bf16 ? DType::kBf16 : DType::kF32, ToyValues::kBits);
  }
  void AddWithBias(const std::string& name, Shape dims) {
    Add(name + ".bias", {dims[0]});
    Add(name + ".weight", std::move(dims));
  }
  void AddNorm(const std::string& name) { Add(name + ".weight", {m_.hidden}); }

  void Layer(const std::string& layer, bool linear, bool moe);
  void GroupedAttention(const std::string& attention);
  void LatentAttention(const std::string& attention);
  void DeltaNet(const std::string& attention);
  void Mlp(const std::string& mlp, int64_t ffn);
  void Moe(const std::string& layer);
  void PackedExperts(const std::string& experts);
  void Mtp(int32_t number);
  void Vision();
  void Merger(const std::string& merger, int64_t norm);

  const ToyModel& m_;
  ToyTensors all_;
  uint32_t next_ = 1;
  uint32_t next_gain_ = 0;
};

void Checkpoint::Add(const std::string& name, Shape dims, DType dtype, ToyValues values) {
  ToyTensor t{std::move(dims), {}, dtype, values};
  uint32_t& next = values == ToyValues::kBits ? next_ : next_gain_;
  t.bits.resize(static_cast<size_t>(Product(t.dims)));
  for (uint32_t& bits : t.bits) bits = next++;
  if (next_gain_ > 128 * 128) throw std::out_of_range("too many gains to tell apart");
  if (!all_.emplace(name, std::move(t)).second) throw std::out_of_range("twice: " + name);
}

void Checkpoint::GroupedAttention(const std::string& attention) {
  const int64_t q = m_.heads * m_.head_dim;
  const int64_t kv = m_.kv_heads * m_.head_dim;
  const int64_t q_rows = m_.attention == ToyAttention::kGated ? 2 * q : q;
  Add(attention + "q_proj.weight", {q_rows, m_.hidden});
  Add(attention + "k_proj.weight", {kv, m_.hidden});
  Add(attention + "v_proj.weight", {kv, m_.hidden});
  Add(attention + "o_proj.weight", {m_.hidden, q});
  if (m_.qkv_bias) {
    Add(attention + "q_proj.bias", {q_rows});
    Add(attention + "k_proj.bias", {kv});
    Add(attention + "v_proj.bias", {kv});
  }
  if (m_.qk_norm || m_.wide_qk_norm) {
    Add(attention + "q_norm.weight", {m_.wide_qk_norm ? q : m_.head_dim});
    Add(attention + "k_norm.weight", {m_.wide_qk_norm ? kv : m_.head_dim});
  }
  if (m_.sinks) {
    Add(attention + "o_proj.bias", {m_.hidden});
    Add(attention + "sinks", {m_.heads});
  }
}

void Checkpoint::LatentAttention(const std::string& attention) {
  const int64_t query = m_.heads * (m_.nope_dim + m_.rope_dim);
  if (m_.query_rank == 0) {
    Add(attention + "q_proj.weight", {query, m_.hidden});
  } else {
    Add(attention + "q_a_proj.weight", {m_.query_rank, m_.hidden});
    Add(attention + "q_a_layernorm.weight", {m_.query_rank});
    Add(attention + "q_b_proj.weight", {query, m_.query_rank});
  }
  Add(attention + "kv_a_proj_with_mqa.weight", {m_.kv_rank + m_.rope_dim, m_.hidden});
  Add(attention + "kv_a_layernorm.weight", {m_.kv_rank});
  Add(attention + "kv_b_proj.weight", {m_.heads * (m_.nope_dim + m_.value_dim), m_.kv_rank});
  Add(attention + "o_proj.weight", {m_.hidden, m_.heads * m_.value_dim});
}

void Checkpoint::DeltaNet(const std::string& attention) {
  const int64_t key = m_.key_heads * m_.key_dim;
  const int64_t value = m_.value_heads * m_.linear_value_dim;
  if (m_.linear_by_key_head) {
    Add(attention + "in_proj_qkvz.weight", {2 * key + 2 * value, m_.hidden});
    Add(attention + "in_proj_ba.weight", {2 * m_.value_heads, m_.hidden});
  } else {
    Add(attention + "in_proj_qkv.weight", {2 * key + value, m_.hidden});
    Add(attention + "in_proj_z.weight", {value, m_.hidden});
    Add(attention + "in_proj_b.weight", {m_.value_heads, m_.hidden});
    Add(attention + "in_proj_a.weight", {m_.value_heads, m_.hidden});
  }
  Add(attention + "conv1d.weight", {2 * key + value, 1, m_.conv_width});
  Add(attention + "A_log", {m_.value_heads});
  Add(attention + "dt_bias", {m_.value_heads});
  Add(attention + "norm.weight", {m_.linear_value_dim}, DType::kBf16, ToyValues::kGain);
  Add(attention + "out_proj.weight", {m_.hidden, value});
}

void Checkpoint::Mlp(const std::string& mlp, int64_t ffn) {
  if (m_.sandwich) {
    Add(mlp + "gate_up_proj.weight", {2 * ffn, m_.hidden});
  } else {
    Add(mlp + "gate_proj.weight", {ffn, m_.hidden});
    Add(mlp + "up_proj.weight", {ffn, m_.hidden});
  }
  Add(mlp + "down_proj.weight", {m_.hidden, ffn});
}

void Checkpoint::PackedExperts(const std::string& experts) {
  const int64_t two = 2 * m_.expert_ffn;
  if (m_.layout == ToyExperts::kOutIn) {
    Add(experts + "gate_up_proj", {m_.experts, two, m_.hidden});
    Add(experts + "down_proj", {m_.experts, m_.hidden, m_.expert_ffn});
    return;
  }
  Add(experts + "gate_up_proj", {m_.experts, m_.hidden, two});
  Add(experts + "down_proj", {m_.experts, m_.expert_ffn, m_.hidden});
  if (m_.layout != ToyExperts::kAlternating) return;
  Add(experts + "gate_up_proj_bias", {m_.experts, two});
  Add(experts + "down_proj_bias", {m_.experts, m_.hidden});
}

void Checkpoint::Moe(const std::string& layer) {
  const bool mixtral = m_.layout == ToyExperts::kSparseMoe;
  const std::string moe = layer + (mixtral ? "block_sparse_moe." : "mlp.");
  if (m_.layout == ToyExperts::kAlternating) {
    AddWithBias(moe + "router", {m_.experts, m_.hidden});
  } else {
    Add(moe + "gate.weight", {m_.experts, m_.hidden});
  }
  if (m_.router_bias) {
    Add(moe + (mixtral ? "" : "gate.") + "e_score_correction_bias", {m_.experts}, DType::kF32,
        ToyValues::kBits);
  }
  const bool by_name = mixtral || m_.layout == ToyExperts::kByName;
  for (int64_t e = 0; by_name && e < m_.experts; ++e) {
    const std::string expert = moe + "experts." + std::to_string(e) + ".";
    Add(expert + (mixtral ? "w1" : "gate_proj") + ".weight", {m_.expert_ffn, m_.hidden});
    Add(expert + (mixtral ? "w3" : "up_proj") + ".weight", {m_.expert_ffn, m_.hidden});
    Add(expert + (mixtral ? "w2" : "down_proj") + ".weight", {m_.hidden, m_.expert_ffn});
  }
  if (!by_name) PackedExperts(moe + "experts.");
  if (m_.shared_ffn == 0) return;
  Mlp(moe + (m_.shared_gate ? "shared_expert." : "shared_experts."), m_.shared_ffn);
  if (m_.shared_gate) Add(moe + "shared_expert_gate.weight", {1, m_.hidden});
}

void Checkpoint::Layer(const std::string& layer, bool linear, bool moe) {
  AddNorm(layer + "input_layernorm");
  AddNorm(layer + "post_attention_layernorm");
  if (m_.sandwich) {
    AddNorm(layer + "post_self_attn_layernorm");
    AddNorm(layer + "post_mlp_layernorm");
  }
  if (m_.inner_norms) {
    AddNorm(layer + "pre_feedforward_layernorm");
    AddNorm(layer + "post_feedforward_layernorm");
  }
  if (linear) {
    DeltaNet(layer + "linear_attn.");
  } else if (m_.attention == ToyAttention::kLatent) {
    LatentAttention(layer + "self_attn.");
  } else {
    GroupedAttention(layer + "self_attn.");
  }
  if (moe) {
    Moe(layer);
  } else {
    Mlp(layer + "mlp.", m_.ffn);
  }
}

// Where the checkpoint has a module that predicts further tokens.
std::string MtpLayer(const ToyModel& m, int32_t number) {
  switch (m.mtp) {
    case ToyMtp::kTop:
      return "mtp.layers." + std::to_string(number) + ".";
    case ToyMtp::kAfterLayers:
      return "model.layers." + std::to_string(m.layers + number) + ".";
    case ToyMtp::kMtpLayers:
      return "model.mtp_layers." + std::to_string(number) + ".";
  }
  return "";
}

// The names of its own tensors: of the norms of embedding, hidden state and output, and the
// projection.
struct MtpNames {
  std::string embedding, hidden, output, projection;
};
MtpNames MtpNamesOf(const ToyModel& m, int32_t number) {
  const std::string layer = MtpLayer(m, number);
  switch (m.mtp) {
    case ToyMtp::kTop:
      return {"mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm", "mtp.fc"};
    case ToyMtp::kAfterLayers:
      return {layer + "enorm", layer + "hnorm", layer + "shared_head.norm", layer + "eh_proj"};
    case ToyMtp::kMtpLayers:
      return {layer + "token_layernorm", layer + "hidden_layernorm", layer + "final_layernorm",
              layer + "input_proj"};
  }
  return {};
}

void Checkpoint::Mtp(int32_t number) {
  const MtpNames names = MtpNamesOf(m_, number);
  AddNorm(names.embedding);
  AddNorm(names.hidden);
  AddNorm(names.output);
  Add(names.projection + ".weight", {m_.hidden, 2 * m_.hidden});
  Layer(MtpLayer(m_, number), false, m_.experts > 0);
}

constexpr int64_t kMergedPatches = 4;
constexpr int64_t kVisionPositions = 5;

void Checkpoint::Merger(const std::string& merger, int64_t norm) {
  const int64_t merged = m_.vision_hidden * kMergedPatches;
  AddWithBias(merger + "norm", {norm});
  AddWithBias(merger + "linear_fc1", {merged, merged});
  AddWithBias(merger + "linear_fc2", {m_.hidden, merged});
}

void Checkpoint::Vision() {
  const int64_t h = m_.vision_hidden;
  AddWithBias("model.visual.patch_embed.proj", {h, 3, 2, 2, 2});
  Add("model.visual.pos_embed.weight", {kVisionPositions, h});
  for (int32_t i = 0; i < m_.vision_depth; ++i) {
    const std::string block = "model.visual.blocks." + std::to_string(i) + ".";
    AddWithBias(block + "norm1", {h});
    AddWithBias(block + "norm2", {h});
    AddWithBias(block + "attn.qkv", {3 * h, h});
    AddWithBias(block + "attn.proj", {h, h});
    AddWithBias(block + "mlp.linear_fc1", {m_.vision_ffn, h});
    AddWithBias(block + "mlp.linear_fc2", {h, m_.vision_ffn});
  }
  Merger("model.visual.merger.", h);
  for (int32_t i = 0; i < m_.deepstack; ++i) {
    Merger("model.visual.deepstack_merger_list." + std::to_string(i) + ".", h * kMergedPatches);
  }
}

ToyTensors Checkpoint::Make() {
  Add(m_.hf_prefix() + "embed_tokens.weight", {m_.vocab, m_.hidden});
  if (!m_.tied) Add("lm_head.weight", {m_.vocab, m_.hidden});
  AddNorm(m_.hf_prefix() + "norm");
  for (int32_t i = 0; i < m_.layers; ++i) {
    Layer(m_.hf_prefix() + "layers." + std::to_string(i) + ".", m_.linear(i), m_.moe(i));
  }
  for (int32_t i = 0; i < m_.mtp_layers; ++i) Mtp(i);
  if (m_.vision) Vision();
  return std::move(all_);
}

// ---- the shard of one rank ----

// The index-th of `of` equal parts.
struct Share {
  int32_t index = 0;
  int32_t of = 1;
};

ToyTensor RowsOf(const ToyTensor& full, Share share) {
  const int64_t rows = full.dims[0] / share.of;
  if (rows * share.of != full.dims[0]) throw std::out_of_range("rows are not cut evenly");
  return full.Rows(share.index * rows, rows);
}
ToyTensor ColsOf(const ToyTensor& full, Share share) {
  const int64_t cols = full.dims[1] / share.of;
  if (cols * share.of != full.dims[1]) throw std::out_of_range("columns are not cut evenly");
  return full.Cols(share.index * cols, cols);
}
// Every rank has [a | b] of its own.
ToyTensor RowsOfBoth(const ToyTensor& a, const ToyTensor& b, Share share) {
  ToyTensor both = RowsOf(a, share);
  both.Append(RowsOf(b, share));
  return both;
}

class RankShard {
 public:
  RankShard(const ToyModel& model, const Topology& topology, int32_t rank, const ToyTensors& hf)
      : m_(model), t_(topology), at_(topology.At(rank)), hf_(hf) {}
  ToyTensors Make();

 private:
  // A module's place: the prefix of its keys and of its names in the checkpoint.
  struct Place {
    std::string to;
    std::string from;
  };

  const ToyTensor& Hf(const std::string& name) const { return hf_.at(name); }
  void Put(const std::string& key, ToyTensor t) {
    if (!shard_.emplace(key, std::move(t)).second) throw std::out_of_range("twice: " + key);
  }
  ToyTensor Padded(const ToyTensor& full) const;
  ToyTensor Qkv(const std::string& attention, const std::string& kind) const;
  ToyTensor QueryRows(const ToyTensor& q, int64_t group) const;
  ToyTensor KvNorm(const ToyTensor& norm) const;
  ToyTensor DeltaNetInput(const std::string& attention) const;

  void Chunk(int32_t chunk);
  void Layer(const Place& at, bool linear, bool moe);
  void GroupedAttention(const Place& at);
  void LatentAttention(const Place& at);
  void DeltaNet(const Place& at);
  void Mlp(const Place& at);
  void Moe(const Place& at);
  void Experts(const Place& at);
  void Expert(const Place& at, int64_t local, int64_t global);
  void SharedExperts(const Place& at);
  void Mtp(const std::string& chunk, int32_t number);
  void Vision(const std::string& chunk);
  void VisionLayer(const Place& at);
  void Merger(const Place& at);

  const ToyModel& m_;
  const Topology& t_;
  const Coordinates at_;
  const ToyTensors& hf_;
  const Share tensor_{at_.tp, t_.tp};
  const Share expert_{at_.etp, t_.etp};
  ToyTensors shard_;
};

ToyTensor RankShard::Padded(const ToyTensor& full) const {
  ToyTensor padded = full;
  padded.dims[0] = m_.padded_vocab;
  padded.bits.resize(static_cast<size_t>(m_.padded_vocab * full.dims[1]), kPadding);
  return RowsOf(padded, tensor_);
}

// The query heads of a group; with gates the checkpoint has each behind its head, the trainer all
// behind all heads.
ToyTensor RankShard::QueryRows(const ToyTensor& q, int64_t group) const {
  const int64_t heads = m_.heads / m_.kv_heads;
  const int64_t d = m_.head_dim;
  if (m_.attention != ToyAttention::kGated) return q.Rows(group * heads * d, heads * d);
  ToyTensor rows = q.Rows(0, 0);
  for (const int64_t gate : {0, 1}) {
    for (int64_t h = group * heads; h < (group + 1) * heads; ++h) {
      rows.Append(q.Rows((2 * h + gate) * d, d));
    }
  }
  return rows;
}

// [q heads of the group | k | v] for each KV head.
ToyTensor RankShard::Qkv(const std::string& attention, const std::string& kind) const {
  const ToyTensor& q = Hf(attention + "q_proj." + kind);
  ToyTensor all = q.Rows(0, 0);
  for (int64_t g = 0; g < m_.kv_heads; ++g) {
    all.Append(QueryRows(q, g));
    all.Append(Hf(attention + "k_proj." + kind).Rows(g * m_.head_dim, m_.head_dim));
    all.Append(Hf(attention + "v_proj." + kind).Rows(g * m_.head_dim, m_.head_dim));
  }
  return RowsOf(all, tensor_);
}

// Of more ranks than heads, neighbours hold the same head.
ToyTensor RankShard::KvNorm(const ToyTensor& norm) const {
  if (m_.kv_heads >= t_.tp) return RowsOf(norm, tensor_);
  const int64_t head = at_.tp / (t_.tp / m_.kv_heads);
  return norm.Rows(head * m_.head_dim, m_.head_dim);
}

void RankShard::GroupedAttention(const Place& at) {
  const std::string to = at.to + "self_attention.";
  const std::string from = at.from + "self_attn.";
  Put(m_.local_spec ? at.to + "input_layernorm.weight" : to + "linear_qkv.layer_norm_weight",
      Hf(at.from + "input_layernorm.weight"));
  Put(to + "linear_qkv.weight", Qkv(from, "weight"));
  if (m_.qkv_bias) Put(to + "linear_qkv.bias", Qkv(from, "bias"));
  Put(to + "linear_proj.weight", ColsOf(Hf(from + "o_proj.weight"), tensor_));
  if (m_.wide_qk_norm) {
    Put(to + "q_layernorm.weight", RowsOf(Hf(from + "q_norm.weight"), tensor_));
    Put(to + "k_layernorm.weight", KvNorm(Hf(from + "k_norm.weight")));
  } else if (m_.qk_norm) {
    Put(to + "q_layernorm.weight", Hf(from + "q_norm.weight"));
    Put(to + "k_layernorm.weight", Hf(from + "k_norm.weight"));
  }
  if (m_.sinks) {
    Put(to + "linear_proj.bias", Hf(from + "o_proj.bias"));
    Put(to + "core_attention.softmax_offset", RowsOf(Hf(from + "sinks"), tensor_));
  }
}

void RankShard::LatentAttention(const Place& at) {
  const std::string to = at.to + "self_attention.";
  const std::string from = at.from + "self_attn.";
  Put(at.to + "input_layernorm.weight", Hf(at.from + "input_layernorm.weight"));
  if (m_.query_rank == 0) {
    Put(to + "linear_q_proj.weight", RowsOf(Hf(from + "q_proj.weight"), tensor_));
  } else {
    Put(to + "linear_q_down_proj.weight", Hf(from + "q_a_proj.weight"));
    Put(to + "linear_q_up_proj.layer_norm_weight", Hf(from + "q_a_layernorm.weight"));
    Put(to + "linear_q_up_proj.weight", RowsOf(Hf(from + "q_b_proj.weight"), tensor_));
  }
  Put(to + "linear_kv_down_proj.weight", Hf(from + "kv_a_proj_with_mqa.weight"));
  Put(to + "linear_kv_up_proj.layer_norm_weight", Hf(from + "kv_a_layernorm.weight"));
  Put(to + "linear_kv_up_proj.weight", RowsOf(Hf(from + "kv_b_proj.weight"), tensor_));
  Put(to + "linear_proj.weight", ColsOf(Hf(from + "o_proj.weight"), tensor_));
}

// The rank's share of [q | k | v | z | b | a], each by itself.
ToyTensor RankShard::DeltaNetInput(const std::string& attention) const {
  const int64_t key = m_.key_heads * m_.key_dim;
  const int64_t value = m_.value_heads * m_.linear_value_dim;
  std::vector<ToyTensor> parts;
  if (!m_.linear_by_key_head) {
    const ToyTensor& qkv = Hf(attention + "in_proj_qkv.weight");
    parts = {qkv.Rows(0, key),
             qkv.Rows(key, key),
             qkv.Rows(2 * key, value),
             Hf(attention + "in_proj_z.weight"),
             Hf(attention + "in_proj_b.weight"),
             Hf(attention + "in_proj_a.weight")};
  } else {
    // The checkpoint has q, k, v and z of a key head together, and b and a.
    const ToyTensor& qkvz = Hf(attention + "in_proj_qkvz.weight");
    const ToyTensor& ba = Hf(attention + "in_proj_ba.weight");
    const int64_t heads = m_.value_heads / m_.key_heads;
    const int64_t sizes[] = {m_.key_dim, m_.key_dim, heads * m_.linear_value_dim,
                             heads * m_.linear_value_dim};
    parts.assign(6, qkvz.Rows(0, 0));
    for (int64_t g = 0, row = 0; g < m_.key_heads; ++g) {
      for (size_t p = 0; p < 4; row += sizes[p++]) parts[p].Append(qkvz.Rows(row, sizes[p]));
      parts[4].Append(ba.Rows(2 * g * heads, heads));
      parts[5].Append(ba.Rows((2 * g + 1) * heads, heads));
    }
  }
  ToyTensor mine = parts[0].Rows(0, 0);
  for (const ToyTensor& part : parts) mine.Append(RowsOf(part, tensor_));
  return mine;
}

void RankShard::DeltaNet(const Place& at) {
  const std::string to = at.to + "self_attention.";
  const std::string from = at.from + "linear_attn.";
  Put(m_.local_spec ? at.to + "input_layernorm.weight" : to + "in_proj.layer_norm_weight",
      Hf(at.from + "input_layernorm.weight"));
  Put(to + "in_proj.weight", DeltaNetInput(from));
  const int64_t key = m_.key_heads * m_.key_dim;
  const ToyTensor& conv = Hf(from + "conv1d.weight");
  ToyTensor mine = RowsOfBoth(conv.Rows(0, key), conv.Rows(key, key), tensor_);
  mine.Append(RowsOf(conv.Rows(2 * key, conv.dims[0] - 2 * key), tensor_));
  Put(to + "conv1d.weight", std::move(mine));
  Put(to + "A_log", RowsOf(Hf(from + "A_log"), tensor_));
  Put(to + "dt_bias", RowsOf(Hf(from + "dt_bias"), tensor_));
  ToyTensor norm = Hf(from + "norm.weight");
  norm.values = ToyValues::kGainLessOne;
  Put(to + "out_norm.weight", std::move(norm));
  Put(to + "out_proj.weight", ColsOf(Hf(from + "out_proj.weight"), tensor_));
}

void RankShard::Mlp(const Place& at) {
  const std::string from = at.from + "mlp.";
  Put(at.to + (m_.local_spec ? "pre_mlp_layernorm.weight" : "mlp.linear_fc1.layer_norm_weight"),
      Hf(at.from + (m_.inner_norms ? "pre_feedforward_layernorm.weight"
                                   : "post_attention_layernorm.weight")));
  if (m_.inner_norms) {
    Put(at.to + "self_attention.linear_proj.post_layernorm.weight",
        Hf(at.from + "post_attention_layernorm.weight"));
    Put(at.to + "mlp.linear_fc2.post_layernorm.weight",
        Hf(at.from + "post_feedforward_layernorm.weight"));
  }
  if (m_.sandwich) {
    const ToyTensor& both = Hf(from + "gate_up_proj.weight");
    Put(at.to + "mlp.linear_fc1.weight",
        RowsOfBoth(both.Rows(0, m_.ffn), both.Rows(m_.ffn, m_.ffn), tensor_));
  } else {
    Put(at.to + "mlp.linear_fc1.weight",
        RowsOfBoth(Hf(from + "gate_proj.weight"), Hf(from + "up_proj.weight"), tensor_));
  }
  Put(at.to + "mlp.linear_fc2.weight", ColsOf(Hf(from + "down_proj.weight"), tensor_));
}

void RankShard::Expert(const Place& at, int64_t local, int64_t global) {
  const auto key = [&](const char* layer, const char* kind) {
    const std::string number = std::to_string(local);
    return m_.sequential || m_.local_spec
               ? at.to + "local_experts." + number + "." + layer + "." + kind
               : at.to + layer + "." + kind + number;
  };
  ToyTensor gate, up, down;
  if (m_.layout == ToyExperts::kByName || m_.layout == ToyExperts::kSparseMoe) {
    const bool mixtral = m_.layout == ToyExperts::kSparseMoe;
    const std::string from = at.from + std::to_string(global) + ".";
    gate = Hf(from + (mixtral ? "w1.weight" : "gate_proj.weight"));
    up = Hf(from + (mixtral ? "w3.weight" : "up_proj.weight"));
    down = Hf(from + (mixtral ? "w2.weight" : "down_proj.weight"));
  } else {
    ToyTensor both = Hf(at.from + "gate_up_proj").At(global);
    down = Hf(at.from + "down_proj").At(global);
    if (m_.layout != ToyExperts::kOutIn) both = both.Transposed(), down = down.Transposed();
    const bool alternating = m_.layout == ToyExperts::kAlternating;
    gate = alternating ? both.EachSecond(0) : both.Rows(0, m_.expert_ffn);
    up = alternating ? both.EachSecond(1) : both.Rows(m_.expert_ffn, m_.expert_ffn);
  }
  Put(key("linear_fc1", "weight"), RowsOfBoth(gate, up, expert_));
  Put(key("linear_fc2", "weight"), ColsOf(down, expert_));
  if (m_.layout != ToyExperts::kAlternating) return;
  const ToyTensor bias = Hf(at.from + "gate_up_proj_bias").At(global);
  Put(key("linear_fc1", "bias"), RowsOfBoth(bias.EachSecond(0), bias.EachSecond(1), expert_));
  Put(key("linear_fc2", "bias"), Hf(at.from + "down_proj_bias").At(global));
}

void RankShard::SharedExperts(const Place& at) {
  const std::string to = at.to + "shared_experts.";
  const std::string from = at.from + (m_.shared_gate ? "shared_expert." : "shared_experts.");
  Put(to + "linear_fc1.weight",
      RowsOfBoth(Hf(from + "gate_proj.weight"), Hf(from + "up_proj.weight"), tensor_));
  Put(to + "linear_fc2.weight", ColsOf(Hf(from + "down_proj.weight"), tensor_));
  if (m_.shared_gate) Put(to + "gate_weight", Hf(at.from + "shared_expert_gate.weight"));
}

void RankShard::Moe(const Place& at) {
  const bool mixtral = m_.layout == ToyExperts::kSparseMoe;
  const bool alternating = m_.layout == ToyExperts::kAlternating;
  const Place moe{at.to + "mlp.", at.from + (mixtral ? "block_sparse_moe." : "mlp.")};
  Put(at.to + "pre_mlp_layernorm.weight", Hf(at.from + "post_attention_layernorm.weight"));
  Put(moe.to + "router.weight", Hf(moe.from + (alternating ? "router.weight" : "gate.weight")));
  if (alternating) Put(moe.to + "router.bias", Hf(moe.from + "router.bias"));
  if (m_.router_bias) {
    Put(moe.to + "router.expert_bias",
        Hf(moe.from + (mixtral ? "" : "gate.") + "e_score_correction_bias"));
  }
  const int64_t here = m_.experts / t_.ep;
  for (int64_t e = 0; e < here; ++e) {
    Expert({moe.to + "experts.", moe.from + "experts."}, e, at_.ep * here + e);
  }
  if (m_.shared_ffn > 0) SharedExperts(moe);
}

void RankShard::Layer(const Place& at, bool linear, bool moe) {
  if (linear) {
    DeltaNet(at);
  } else if (m_.attention == ToyAttention::kLatent) {
    LatentAttention(at);
  } else {
    GroupedAttention(at);
  }
  if (moe) {
    Moe(at);
  } else {
    Mlp(at);
  }
  if (!m_.sandwich) return;
  for (const char* norm : {"post_self_attn_layernorm.weight", "post_mlp_layernorm.weight"}) {
    Put(at.to + norm, Hf(at.from + norm));
  }
}

void RankShard::Mtp(const std::string& chunk, int32_t number) {
  const std::string to =
      chunk + m_.megatron_prefix() + "mtp.layers." + std::to_string(number) + ".";
  const MtpNames names = MtpNamesOf(m_, number);
  Put(to + "enorm.weight", Hf(names.embedding + ".weight"));
  Put(to + "hnorm.weight", Hf(names.hidden + ".weight"));
  Put(to + "final_layernorm.weight", Hf(names.output + ".weight"));
  ToyTensor projection = Hf(names.projection + ".weight");
  if (m_.mtp == ToyMtp::kMtpLayers) {  // the trainer has the embedding's half first
    const ToyTensor turned = projection.Transposed();
    ToyTensor swapped = turned.Rows(m_.hidden, m_.hidden);
    swapped.Append(turned.Rows(0, m_.hidden));
    projection = swapped.Transposed();
  }
  Put(to + "eh_proj.weight", RowsOf(projection, tensor_));
  Layer({to + m_.mtp_inner + ".", MtpLayer(m_, number)}, false, m_.experts > 0);
}

void RankShard::VisionLayer(const Place& at) {
  const std::string norm1 =
      m_.local_spec ? "input_layernorm." : "self_attention.linear_qkv.layer_norm_";
  const std::string norm2 = m_.local_spec ? "pre_mlp_layernorm." : "mlp.linear_fc1.layer_norm_";
  const int64_t d = m_.vision_hidden / m_.vision_heads;
  for (const std::string kind : {"weight", "bias"}) {
    Put(at.to + norm1 + kind, Hf(at.from + "norm1." + kind));
    Put(at.to + norm2 + kind, Hf(at.from + "norm2." + kind));
    const ToyTensor& qkv = Hf(at.from + "attn.qkv." + kind);
    ToyTensor by_head = qkv.Rows(0, 0);
    for (int64_t h = 0; h < m_.vision_heads; ++h) {
      for (int64_t part = 0; part < 3; ++part) {
        by_head.Append(qkv.Rows(part * m_.vision_hidden + h * d, d));
      }
    }
    Put(at.to + "self_attention.linear_qkv." + kind, RowsOf(by_head, tensor_));
    Put(at.to + "mlp.linear_fc1." + kind, RowsOf(Hf(at.from + "mlp.linear_fc1." + kind), tensor_));
  }
  Put(at.to + "self_attention.linear_proj.weight",
      ColsOf(Hf(at.from + "attn.proj.weight"), tensor_));
  Put(at.to + "self_attention.linear_proj.bias", Hf(at.from + "attn.proj.bias"));
  Put(at.to + "mlp.linear_fc2.weight", ColsOf(Hf(at.from + "mlp.linear_fc2.weight"), tensor_));
  Put(at.to + "mlp.linear_fc2.bias", Hf(at.from + "mlp.linear_fc2.bias"));
}

void RankShard::Merger(const Place& at) {
  for (const std::string kind : {"weight", "bias"}) {
    Put(at.to + "patch_norm." + kind, Hf(at.from + "norm." + kind));
    Put(at.to + "linear_fc1." + kind, RowsOf(Hf(at.from + "linear_fc1." + kind), tensor_));
  }
  Put(at.to + "linear_fc2.weight", ColsOf(Hf(at.from + "linear_fc2.weight"), tensor_));
  Put(at.to + "linear_fc2.bias", Hf(at.from + "linear_fc2.bias"));
}

void RankShard::Vision(const std::string& chunk) {
  const std::string to = chunk + "vision_model.";
  const std::string from = "model.visual.";
  if (m_.tower != "megatron") {
    for (const auto& [name, tensor] : hf_) {
      if (name.starts_with(from)) Put(chunk + m_.tower + "." + name.substr(from.size()), tensor);
    }
    return;
  }
  for (const char* name :
       {"patch_embed.proj.weight", "patch_embed.proj.bias", "pos_embed.weight"}) {
    Put(to + name, Hf(from + name));
  }
  for (int32_t i = 0; i < m_.vision_depth; ++i) {
    const std::string number = std::to_string(i) + ".";
    VisionLayer({to + "decoder.layers." + number, from + "blocks." + number});
  }
  Merger({to + "merger.", from + "merger."});
  for (int32_t i = 0; i < m_.deepstack; ++i) {
    const std::string merger = "deepstack_merger_list." + std::to_string(i) + ".";
    Merger({to + "decoder." + merger, from + merger});
  }
}

void RankShard::Chunk(int32_t number) {
  const std::string chunk = "vp" + std::to_string(number) + "/";
  const std::string to = chunk + m_.megatron_prefix();
  const Topology::LayerRange range = t_.LayersOf(at_.pp, number);
  for (int32_t i = 0; i < range.count; ++i) {
    const int32_t layer = range.first + i;
    Layer({to + "decoder.layers." + std::to_string(i) + ".",
           m_.hf_prefix() + "layers." + std::to_string(layer) + "."},
          m_.linear(layer), m_.moe(layer));
  }
  const bool first = at_.pp == 0 && number == 0;
  const bool last = at_.pp == t_.pp - 1 && number == t_.vpp - 1;
  const ToyTensor& embedding = Hf(m_.hf_prefix() + "embed_tokens.weight");
  if (first || (last && m_.mtp_layers > 0)) {
    Put(to + "embedding.word_embeddings.weight", Padded(embedding));
  }
  if (first && m_.vision) Vision(chunk);
  if (!last) return;
  Put(to + "decoder.final_layernorm.weight", Hf(m_.hf_prefix() + "norm.weight"));
  for (int32_t i = 0; i < m_.mtp_layers; ++i) Mtp(chunk, i);
  if (!m_.tied) {
    Put(to + "output_layer.weight", Padded(Hf("lm_head.weight")));
  } else if (t_.pp > 1) {
    Put(to + "output_layer.weight", Padded(embedding));
  }
}

ToyTensors RankShard::Make() {
  for (int32_t v = 0; v < t_.vpp; ++v) Chunk(v);
  return std::move(shard_);
}

}  // namespace

ToyTensors CanonicalTensors(const ToyModel& m) { return Checkpoint(m).Make(); }

ToyTensors ShardTensors(const ToyModel& m, const Topology& t, int32_t rank, const ToyTensors& hf) {
  return RankShard(m, t, rank, hf).Make();
}

}  // namespace weightcast::bridge
