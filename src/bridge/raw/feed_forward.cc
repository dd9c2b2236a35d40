#include <algorithm>

#include "bridge/raw/blocks.h"

namespace weightcast::bridge::raw {
namespace {

// A packed tensor has all experts one below the other. Where it is [expert, in, out], the
// parameter's rows are the tensor's columns.
class Packed {
 public:
  Packed(Rank& rank, const Layer& layer, int64_t expert)
      : rank_(rank),
        hf_(layer.hf + "mlp.experts."),
        expert_(expert),
        experts_(rank.model.Experts()),
        hidden_(rank.model.Hidden()),
        ffn_(rank.model.ExpertFfn()),
        mine_(rank.model.Even(ffn_, rank.etp().of, "rows of an expert")),
        first_(rank.at.etp * mine_) {}

  void OutIn(const std::string& fc1, const std::string& fc2) {
    const Tensor gate_up{hf_ + "gate_up_proj", {experts_, 2 * ffn_, hidden_}};
    Param& rows = rank_.Add(fc1, {2 * mine_, hidden_});
    rank_.Lay(rows, gate_up, expert_ * 2 * ffn_ + first_, mine_, 0);
    rank_.Lay(rows, gate_up, expert_ * 2 * ffn_ + ffn_ + first_, mine_, mine_);
    layout::Slice down;
    down.box = {expert_ * hidden_, hidden_, 1, first_, mine_, 1};
    down.row_stride = mine_;
    rank_.Put(rank_.Add(fc2, {hidden_, mine_}), {hf_ + "down_proj", {experts_, hidden_, ffn_}},
              down);
  }

  void InOut(const std::string& fc1, const std::string& fc2) {
    const Tensor gate_up{hf_ + "gate_up_proj", {experts_, hidden_, 2 * ffn_}};
    Param& rows = rank_.Add(fc1, {2 * mine_, hidden_});
    for (const int64_t up : {0, 1}) {
      layout::Slice half;
      half.box = {expert_ * hidden_, hidden_, 1, up * ffn_ + first_, mine_, 1};
      half.source = up * mine_ * hidden_;
      half.row_stride = 1;
      half.col_stride = hidden_;
      rank_.Put(rows, gate_up, half);
    }
    layout::Slice down;
    down.box = {expert_ * ffn_ + first_, mine_, 1, 0, hidden_, 1};
    down.row_stride = 1;
    down.col_stride = mine_;
    rank_.Put(rank_.Add(fc2, {hidden_, mine_}), {hf_ + "down_proj", {experts_, ffn_, hidden_}},
              down);
  }

 private:
  Rank& rank_;
  const std::string hf_;
  const int64_t expert_, experts_, hidden_, ffn_, mine_, first_;
};

// A layer that predicts further tokens is made as the model's last.
int64_t NumberOf(const Model& m, const Layer& layer) {
  return layer.number < 0 ? m.topology.num_layers - 1 : layer.number;
}

bool HasExperts(const Model& m) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (const auto count = m.config.Int(key)) return *count > 0;
  }
  return false;
}

}  // namespace

// ---- dense ----

void DenseMlpNorm(Rank& rank, const Layer& layer, const char* hf) {
  const char* name = rank.model.trainer.local_spec ? "pre_mlp_layernorm.weight"
                                                   : "mlp.linear_fc1.layer_norm_weight";
  rank.Whole(layer.megatron + name, {layer.hf + hf, {rank.model.Hidden()}});
}

void GatedMlp(Rank& rank, const Layer& layer) {
  const int64_t hidden = rank.model.Hidden();
  const int64_t ffn = rank.model.Ffn();
  rank.GateUp(layer.megatron + "mlp.linear_fc1.weight",
              {layer.hf + "mlp.gate_proj.weight", {ffn, hidden}},
              {layer.hf + "mlp.up_proj.weight", {ffn, hidden}}, rank.tp());
  rank.ColPart(layer.megatron + "mlp.linear_fc2.weight",
               {layer.hf + "mlp.down_proj.weight", {hidden, ffn}}, rank.tp());
}

void DenseMlp(Rank& rank, const Layer& layer) {
  DenseMlpNorm(rank, layer);
  GatedMlp(rank, layer);
}

// ---- mixtures of experts ----

void MoeNorm(Rank& rank, const Layer& layer) {
  rank.model.Agree("moe_layer_freq", layer.number, true);
  rank.Whole(layer.megatron + "pre_mlp_layernorm.weight",
             {layer.hf + "post_attention_layernorm.weight", {rank.model.Hidden()}});
}

void Router(Rank& rank, const Layer& layer, const char* hf) {
  rank.Whole(layer.megatron + "mlp.router.weight",
             {layer.hf + hf, {rank.model.Experts(), rank.model.Hidden()}});
}

void RouterBias(Rank& rank, const Layer& layer, const char* hf) {
  if (!rank.model.trainer.router_bias) return;
  // A buffer in fp32, whatever the parameters are.
  rank.Whole(layer.megatron + "mlp.router.expert_bias",
             {layer.hf + hf, {rank.model.Experts()}, tensor::DType::kF32});
}

ExpertRange ExpertsOf(Rank& rank) {
  const int64_t count = rank.model.Even(rank.model.Experts(), rank.model.topology.ep, "experts");
  return {rank.at.ep * count, count};
}

std::string ExpertName(const Rank& rank, const Layer& layer, const char* fc, const char* kind,
                       int64_t local) {
  const std::string experts = layer.megatron + "mlp.experts.";
  const std::string number = std::to_string(local);
  if (!rank.model.trainer.sequential_experts) return experts + fc + "." + kind + number;
  return experts + "local_experts." + number + "." + fc + "." + kind;
}

void Experts(Rank& rank, const Layer& layer) {
  const int64_t hidden = rank.model.Hidden();
  const int64_t ffn = rank.model.ExpertFfn();
  const ExpertRange mine = ExpertsOf(rank);
  const bool predicts = layer.hf.starts_with("mtp.");
  const ExpertLayout layout = predicts ? rank.model.mtp_experts : rank.model.experts;
  for (int64_t local = 0; local < mine.count; ++local) {
    const std::string fc1 = ExpertName(rank, layer, "linear_fc1", "weight", local);
    const std::string fc2 = ExpertName(rank, layer, "linear_fc2", "weight", local);
    const int64_t expert = mine.first + local;
    if (layout == ExpertLayout::kPackedOutIn) {
      Packed(rank, layer, expert).OutIn(fc1, fc2);
    } else if (layout == ExpertLayout::kPackedInOut) {
      Packed(rank, layer, expert).InOut(fc1, fc2);
    } else {
      const std::string hf = layer.hf + "mlp.experts." + std::to_string(expert) + ".";
      rank.GateUp(fc1, {hf + "gate_proj.weight", {ffn, hidden}},
                  {hf + "up_proj.weight", {ffn, hidden}}, rank.etp());
      rank.ColPart(fc2, {hf + "down_proj.weight", {hidden, ffn}}, rank.etp());
    }
  }
}

void SparseMoeExperts(Rank& rank, const Layer& layer) {
  const int64_t hidden = rank.model.Hidden();
  const int64_t ffn = rank.model.ExpertFfn();
  const ExpertRange mine = ExpertsOf(rank);
  for (int64_t local = 0; local < mine.count; ++local) {
    const std::string hf =
        layer.hf + "block_sparse_moe.experts." + std::to_string(mine.first + local) + ".";
    rank.GateUp(ExpertName(rank, layer, "linear_fc1", "weight", local),
                {hf + "w1.weight", {ffn, hidden}}, {hf + "w3.weight", {ffn, hidden}}, rank.etp());
    rank.ColPart(ExpertName(rank, layer, "linear_fc2", "weight", local),
                 {hf + "w2.weight", {hidden, ffn}}, rank.etp());
  }
}

void SharedExperts(Rank& rank, const Layer& layer, const char* hf) {
  const int64_t hidden = rank.model.Hidden();
  const int64_t ffn = rank.model.SharedFfn();
  const std::string from = layer.megatron + "mlp.shared_experts.";
  const std::string to = layer.hf + hf;
  rank.GateUp(from + "linear_fc1.weight", {to + "gate_proj.weight", {ffn, hidden}},
              {to + "up_proj.weight", {ffn, hidden}}, rank.tp());
  rank.ColPart(from + "linear_fc2.weight", {to + "down_proj.weight", {hidden, ffn}}, rank.tp());
}

void SharedExpertGate(Rank& rank, const Layer& layer) {
  rank.Whole(layer.megatron + "mlp.shared_experts.gate_weight",
             {layer.hf + "mlp.shared_expert_gate.weight", {1, rank.model.Hidden()}});
}

void Moe(Rank& rank, const Layer& layer) {
  MoeNorm(rank, layer);
  Router(rank, layer, "mlp.gate.weight");
  Experts(rank, layer);
}

bool IsSparse(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  const int64_t number = NumberOf(m, layer);
  const int64_t step = m.config.Int("decoder_sparse_step").value_or(1);
  const bool moe =
      HasExperts(m) && !m.dense_layers.contains(number) && (step < 2 || (number + 1) % step == 0);
  m.Agree("moe_layer_freq", layer.number, moe);
  return moe;
}

bool IsAfterDense(Rank& rank, const Layer& layer) {
  Model& m = rank.model;
  const int64_t first = m.config.Int("first_k_dense_replace").value_or(0);
  const int64_t every = std::max<int64_t>(1, m.config.Int("moe_layer_freq").value_or(1));
  const int64_t number = NumberOf(m, layer);
  const bool moe = HasExperts(m) && number >= first && number % every == 0;
  m.Agree("moe_layer_freq", layer.number, moe);
  return moe;
}

}  // namespace weightcast::bridge::raw
