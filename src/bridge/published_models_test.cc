// Published models: what the bridge makes of their configs is tensor by tensor what a generator of
// names and shapes says that knows no rules, and its totals are the published ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "base/text.h"
#include "bridge/compile_plan.h"

namespace weightcast::bridge {
namespace {

using layout::Topology;
using tensor::DType;
using tensor::Shape;
using tensor::TensorSpec;
using ::testing::HasSubstr;

// ---- the generator ----

struct Heads {
  int64_t q, kv, dim;
};

// Lists a checkpoint's tensors.
struct Lister {
  std::vector<TensorSpec> all = {};

  void Add(const std::string& name, Shape shape, DType dtype = DType::kBf16) {
    all.push_back({name, dtype, std::move(shape)});
  }
  void AddWithBias(const std::string& name, Shape shape) {
    Add(name + ".bias", {shape[0]});
    Add(name + ".weight", std::move(shape));
  }
  void Frame(const std::string& hf, int64_t vocab, int64_t h, bool tied) {
    Add(hf + "embed_tokens.weight", {vocab, h});
    Add(hf + "norm.weight", {h});
    if (!tied) Add("lm_head.weight", {vocab, h});
  }
  void Norms(const std::string& b, int64_t h) {
    Add(b + "input_layernorm.weight", {h});
    Add(b + "post_attention_layernorm.weight", {h});
  }
  void Attention(const std::string& b, int64_t h, Heads n, bool bias = false, bool gate = false) {
    const std::pair<const char*, int64_t> rows[] = {
        {"q", n.q * n.dim * (gate ? 2 : 1)}, {"k", n.kv * n.dim}, {"v", n.kv * n.dim}};
    for (const auto& [letter, count] : rows) {
      Add(b + "self_attn." + letter + "_proj.weight", {count, h});
      if (bias) Add(b + "self_attn." + letter + "_proj.bias", {count});
    }
    Add(b + "self_attn.o_proj.weight", {h, n.q * n.dim});
  }
  void QkNorms(const std::string& b, int64_t q, int64_t k) {
    Add(b + "self_attn.q_norm.weight", {q});
    Add(b + "self_attn.k_norm.weight", {k});
  }
  void Mlp(const std::string& p, int64_t h, int64_t i) {
    Add(p + "gate_proj.weight", {i, h});
    Add(p + "up_proj.weight", {i, h});
    Add(p + "down_proj.weight", {h, i});
  }
  void Experts(const std::string& p, int64_t h, int64_t i, int64_t experts) {
    for (int64_t e = 0; e < experts; ++e) Mlp(p + std::to_string(e) + ".", h, i);
  }
  void Mixtral(const std::string& b, int64_t h, int64_t i, int64_t experts) {
    Add(b + "block_sparse_moe.gate.weight", {experts, h});
    for (int64_t e = 0; e < experts; ++e) {
      const std::string p = b + "block_sparse_moe.experts." + std::to_string(e) + ".";
      Add(p + "w1.weight", {i, h});
      Add(p + "w2.weight", {h, i});
      Add(p + "w3.weight", {i, h});
    }
  }
  void PackedInOut(const std::string& p, int64_t h, int64_t i, int64_t experts) {
    Add(p + "gate_up_proj", {experts, h, 2 * i});
    Add(p + "down_proj", {experts, i, h});
  }
  void PackedOutIn(const std::string& p, int64_t h, int64_t i, int64_t experts) {
    Add(p + "gate_up_proj", {experts, 2 * i, h});
    Add(p + "down_proj", {experts, h, i});
  }
  // DeepSeek's and GLM's.
  void Routed(const std::string& b, int64_t h, int64_t experts, int64_t i) {
    Add(b + "mlp.gate.weight", {experts, h});
    Add(b + "mlp.gate.e_score_correction_bias", {experts}, DType::kF32);
    Experts(b + "mlp.experts.", h, i, experts);
    Mlp(b + "mlp.shared_experts.", h, i);
  }
  void MtpAfterLayers(const std::string& b, int64_t h) {
    for (const char* norm : {"enorm", "hnorm", "shared_head.norm"}) Add(b + norm + ".weight", {h});
    Add(b + "eh_proj.weight", {h, 2 * h});
  }
  void Mtp(int64_t h) {
    for (const char* norm : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"}) {
      Add("mtp." + std::string(norm) + ".weight", {h});
    }
    Add("mtp.fc.weight", {h, 2 * h});
  }
  void QwenShared(const std::string& b, int64_t h, int64_t i) {
    Add(b + "mlp.shared_expert_gate.weight", {1, h});
    Mlp(b + "mlp.shared_expert.", h, i);
  }
  // 16 key heads, 32 value heads, of 128 each; kernels of 4.
  void DeltaNet(const std::string& b, int64_t h, bool by_key_head) {
    const int64_t q = int64_t{16} * 128;
    const int64_t v = int64_t{32} * 128;
    const std::string p = b + "linear_attn.";
    Add(p + "A_log", {32});
    Add(p + "dt_bias", {32});
    Add(p + "conv1d.weight", {2 * q + v, 1, 4});
    Add(p + "norm.weight", {128});
    Add(p + "out_proj.weight", {h, v});
    if (by_key_head) {
      Add(p + "in_proj_qkvz.weight", {2 * q + 2 * v, h});
      Add(p + "in_proj_ba.weight", {64, h});
    } else {
      Add(p + "in_proj_qkv.weight", {2 * q + v, h});
      Add(p + "in_proj_z.weight", {v, h});
      Add(p + "in_proj_b.weight", {32, h});
      Add(p + "in_proj_a.weight", {32, h});
    }
  }
  void Merger(const std::string& p, int64_t norm, int64_t merged, int64_t out) {
    AddWithBias(p + "norm", {norm});
    AddWithBias(p + "linear_fc1", {merged, merged});
    AddWithBias(p + "linear_fc2", {out, merged});
  }
  void Vision(int64_t depth, int64_t h, int64_t i, int64_t out) {
    const std::string p = "model.visual.";
    AddWithBias(p + "patch_embed.proj", {h, 3, 2, 16, 16});
    Add(p + "pos_embed.weight", {2304, h});
    for (int64_t n = 0; n < depth; ++n) {
      const std::string b = p + "blocks." + std::to_string(n) + ".";
      AddWithBias(b + "norm1", {h});
      AddWithBias(b + "norm2", {h});
      AddWithBias(b + "attn.qkv", {3 * h, h});
      AddWithBias(b + "attn.proj", {h, h});
      AddWithBias(b + "mlp.linear_fc1", {i, h});
      AddWithBias(b + "mlp.linear_fc2", {h, i});
    }
    Merger(p + "merger.", h, 4 * h, out);
    for (int n = 0; n < 3; ++n) {
      Merger(p + "deepstack_merger_list." + std::to_string(n) + ".", 4 * h, 4 * h, out);
    }
  }
};

std::string Layer(const std::string& hf, int64_t i) {
  return hf + "layers." + std::to_string(i) + ".";
}

struct Dense {
  std::string hf = "model.";
  int64_t layers = 0, hidden = 0;
  Heads heads = {};
  int64_t ffn = 0, vocab = 0;
  bool tied = false, bias = false, qk_norm = true;
};

Lister DenseModel(const Dense& d) {
  Lister list;
  list.Frame(d.hf, d.vocab, d.hidden, d.tied);
  for (int64_t i = 0; i < d.layers; ++i) {
    const std::string b = Layer(d.hf, i);
    list.Norms(b, d.hidden);
    list.Attention(b, d.hidden, d.heads, d.bias);
    if (d.qk_norm) list.QkNorms(b, d.heads.dim, d.heads.dim);
    list.Mlp(b + "mlp.", d.hidden, d.ffn);
  }
  return list;
}

Lister Qwen30B(const std::string& hf, bool packed) {
  Lister list;
  list.Frame(hf, 151936, 2048, false);
  for (int64_t i = 0; i < 48; ++i) {
    const std::string b = Layer(hf, i);
    list.Norms(b, 2048);
    list.Attention(b, 2048, {32, 4, 128});
    list.QkNorms(b, 128, 128);
    list.Add(b + "mlp.gate.weight", {128, 2048});
    if (packed) {
      list.PackedInOut(b + "mlp.experts.", 2048, 768, 128);
    } else {
      list.Experts(b + "mlp.experts.", 2048, 768, 128);
    }
  }
  return list;
}

Lister WithVision(Lister list, int64_t depth, int64_t h, int64_t i, int64_t out) {
  list.Vision(depth, h, i, out);
  return list;
}

constexpr const char* kVl = "model.language_model.";
Lister QwenVl2B() {
  return WithVision(DenseModel({kVl, 28, 2048, {16, 8, 128}, 6144, 151936, true}), 24, 1024, 4096,
                    2048);
}
Lister QwenVl4B() {
  return WithVision(DenseModel({kVl, 36, 2560, {32, 8, 128}, 9728, 151936, true}), 24, 1024, 4096,
                    2560);
}
Lister QwenVl8B() {
  return WithVision(DenseModel({kVl, 36, 4096, {32, 8, 128}, 12288, 151936}), 27, 1152, 4304, 4096);
}

Lister Mixtral8x7B() {
  Lister list;
  list.Frame("model.", 32000, 4096, false);
  for (int64_t i = 0; i < 32; ++i) {
    const std::string b = Layer("model.", i);
    list.Norms(b, 4096);
    list.Attention(b, 4096, {32, 8, 128});
    list.Mixtral(b, 4096, 14336, 8);
  }
  return list;
}

Lister GptOss(int64_t layers, int64_t experts) {
  Lister list;
  list.Frame("model.", 201088, 2880, false);
  for (int64_t i = 0; i < layers; ++i) {
    const std::string b = Layer("model.", i);
    list.Norms(b, 2880);
    list.Attention(b, 2880, {64, 8, 64}, true);
    list.Add(b + "self_attn.o_proj.bias", {2880});
    list.Add(b + "self_attn.sinks", {64});
    list.AddWithBias(b + "mlp.router", {experts, 2880});
    list.PackedInOut(b + "mlp.experts.", 2880, 2880, experts);
    list.Add(b + "mlp.experts.gate_up_proj_bias", {experts, 5760});
    list.Add(b + "mlp.experts.down_proj_bias", {experts, 2880});
  }
  return list;
}

Lister DeepseekV3(bool mtp) {
  Lister list;
  list.Frame("model.", 129280, 7168, false);
  for (int64_t i = 0; i < (mtp ? 62 : 61); ++i) {
    const std::string b = Layer("model.", i);
    const std::string a = b + "self_attn.";
    list.Norms(b, 7168);
    list.Add(a + "q_a_proj.weight", {1536, 7168});
    list.Add(a + "q_a_layernorm.weight", {1536});
    list.Add(a + "q_b_proj.weight", {128 * (128 + 64), 1536});
    list.Add(a + "kv_a_proj_with_mqa.weight", {512 + 64, 7168});
    list.Add(a + "kv_a_layernorm.weight", {512});
    list.Add(a + "kv_b_proj.weight", {128 * (128 + 128), 512});
    list.Add(a + "o_proj.weight", {7168, 128 * 128});
    if (i < 3) {
      list.Mlp(b + "mlp.", 7168, 18432);
    } else {
      list.Routed(b, 7168, 256, 2048);
    }
  }
  if (mtp) list.MtpAfterLayers("model.layers.61.", 7168);
  return list;
}

Lister Glm45Air(bool mtp) {
  Lister list;
  list.Frame("model.", 151552, 4096, false);
  for (int64_t i = 0; i < (mtp ? 47 : 46); ++i) {
    const std::string b = Layer("model.", i);
    list.Norms(b, 4096);
    list.Attention(b, 4096, {96, 8, 128}, true);
    if (i < 1) {
      list.Mlp(b + "mlp.", 4096, 10944);
    } else {
      list.Routed(b, 4096, 128, 1408);
    }
  }
  if (mtp) list.MtpAfterLayers("model.layers.46.", 4096);
  return list;
}

// What the checkpoint of GLM-4.5 has besides, copies of embedding and output layer.
Lister Glm45AirWithCopies() {
  Lister list = Glm45Air(true);
  list.Add("model.layers.46.embed_tokens.weight", {151552, 4096});
  list.Add("model.layers.46.shared_head.head.weight", {151552, 4096});
  return list;
}

Lister Glm4() {
  Lister list;
  list.Frame("model.", 151552, 4096, false);
  for (int64_t i = 0; i < 40; ++i) {
    const std::string b = Layer("model.", i);
    list.Norms(b, 4096);
    list.Add(b + "post_self_attn_layernorm.weight", {4096});
    list.Add(b + "post_mlp_layernorm.weight", {4096});
    list.Attention(b, 4096, {32, 2, 128}, true);
    list.Add(b + "mlp.gate_up_proj.weight", {2 * 13696, 4096});
    list.Add(b + "mlp.down_proj.weight", {4096, 13696});
  }
  return list;
}

Lister MiMo7B() {
  Lister list = DenseModel({"model.", 36, 4096, {32, 8, 128}, 11008, 151680, false, true, false});
  const std::string b = "model.mtp_layers.0.";
  list.Norms(b, 4096);
  list.Attention(b, 4096, {32, 8, 128}, true);
  list.Mlp(b + "mlp.", 4096, 11008);
  for (const char* norm : {"token_layernorm", "hidden_layernorm", "final_layernorm"}) {
    list.Add(b + norm + ".weight", {4096});
  }
  list.Add(b + "input_proj.weight", {4096, 8192});
  return list;
}

Lister MiniMaxM2() {
  Lister list;
  list.Frame("model.", 200064, 3072, false);
  for (int64_t i = 0; i < 62; ++i) {
    const std::string b = Layer("model.", i);
    list.Norms(b, 3072);
    list.Attention(b, 3072, {48, 8, 128});
    list.QkNorms(b, int64_t{48} * 128, int64_t{8} * 128);
    list.Mixtral(b, 3072, 1536, 256);
    list.Add(b + "block_sparse_moe.e_score_correction_bias", {256}, DType::kF32);
  }
  return list;
}

struct Hybrid {
  int64_t layers = 0, vocab = 0, experts = 0;
  bool by_key_head = false, packed = false, mtp = false;
};

Lister HybridModel(const Hybrid& d) {
  Lister list;
  list.Frame("model.", d.vocab, 2048, false);
  for (int64_t i = 0; i < d.layers + (d.mtp ? 1 : 0); ++i) {
    const std::string b = i < d.layers ? Layer("model.", i) : "mtp.layers.0.";
    list.Norms(b, 2048);
    if ((i + 1) % 4 == 0 || i == d.layers) {
      list.Attention(b, 2048, {16, 2, 256}, false, true);
      list.QkNorms(b, 256, 256);
    } else {
      list.DeltaNet(b, 2048, d.by_key_head);
    }
    list.Add(b + "mlp.gate.weight", {d.experts, 2048});
    if (d.packed) {
      list.PackedOutIn(b + "mlp.experts.", 2048, 512, d.experts);
    } else {
      list.Experts(b + "mlp.experts.", 2048, 512, d.experts);
    }
    list.QwenShared(b, 2048, 512);
  }
  if (d.mtp) list.Mtp(2048);
  return list;
}

// ---- the models ----

struct Model {
  const char* name;
  std::string config;  // fields of config.json
  std::function<Lister()> list;
  size_t tensors;
  int64_t parameters;
  Topology world;      // besides one rank
  int64_t params = 0;  // of one rank that holds all; 0: not published
  int32_t mtp_layers = 0;
  int64_t vocab_divisor = 128;
};

struct Ranks {
  int32_t tp = 1, pp = 1, dp = 1, ep = 1, vpp = 1, first = -1;
};
Topology On(const Ranks& ranks) {
  Topology t;
  t.tp = ranks.tp;
  t.pp = ranks.pp;
  t.vpp = ranks.vpp;
  t.ep = ranks.ep;
  t.layers_in_first_stage = ranks.first;
  t.world = ranks.tp * ranks.pp * ranks.dp;
  return t;
}

std::string Sizes(int64_t layers, int64_t hidden, const Heads& heads, int64_t ffn, int64_t vocab) {
  const auto field = [](const char* name, int64_t n) {
    return ", \"" + std::string(name) + "\": " + std::to_string(n);
  };
  return field("num_hidden_layers", layers).substr(2) + field("hidden_size", hidden) +
         field("num_attention_heads", heads.q) + field("num_key_value_heads", heads.kv) +
         field("head_dim", heads.dim) + field("intermediate_size", ffn) +
         field("vocab_size", vocab);
}
std::string Text(const char* architecture, bool tied, const std::string& fields) {
  return "{\"architectures\": [\"" + std::string(architecture) +
         "\"], \"dtype\": \"bfloat16\", \"tie_word_embeddings\": " + (tied ? "true" : "false") +
         ", " + fields + "}";
}
std::string WithTower(const char* architecture, bool tied, const std::string& fields, bool large,
                      int64_t out) {
  // The text's own tie flag is a default that means nothing.
  return Text(architecture, tied,
              "\"text_config\": {\"tie_word_embeddings\": true, " + fields +
                  R"(}, "vision_config": {"in_channels": 3, "patch_size": 16, "num_heads": 16,
                  "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304, )" +
                  (large ? R"("depth": 27, "hidden_size": 1152, "intermediate_size": 4304,
                              "deepstack_visual_indexes": [8, 16, 24])"
                         : R"("depth": 24, "hidden_size": 1024, "intermediate_size": 4096,
                              "deepstack_visual_indexes": [5, 11, 17])") +
                  ", \"out_hidden_size\": " + std::to_string(out) + "}");
}

constexpr const char* kQwenMoeFields = R"(, "num_experts": 128, "moe_intermediate_size": 768)";
constexpr const char* kHybridFields =
    R"(, "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512)";
constexpr const char* kDeepseekFields =
    R"(, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 256, "moe_intermediate_size": 2048, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "num_nextn_predict_layers": 1)";
constexpr const char* kGlmAirFields =
    R"(, "attention_bias": true, "use_qk_norm": false, "n_routed_experts": 128,
    "moe_intermediate_size": 1408, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1)";

std::vector<Model> DenseModels() {
  const Heads h8{32, 8, 128};
  return {
      {"Qwen3_0_6B", Text("Qwen3ForCausalLM", true, Sizes(28, 1024, {16, 8, 128}, 3072, 151936)),
       [] { return DenseModel({"model.", 28, 1024, {16, 8, 128}, 3072, 151936, true}); }, 310,
       596049920, On({.tp = 2, .pp = 2, .dp = 2}), 226},
      {"Qwen3_4B", Text("Qwen3ForCausalLM", true, Sizes(36, 2560, h8, 9728, 151936)),
       [] { return DenseModel({"model.", 36, 2560, {32, 8, 128}, 9728, 151936, true}); }, 398,
       4022468096, On({.tp = 4, .pp = 4, .vpp = 3}), 290},
      {"Qwen3_8B", Text("Qwen3ForCausalLM", false, Sizes(36, 4096, h8, 12288, 151936)),
       [] { return DenseModel({"model.", 36, 4096, {32, 8, 128}, 12288, 151936}); }, 399,
       8190735360, On({.tp = 8, .pp = 2}), 291},
      {"Qwen2_5_0_5B", Text("Qwen2ForCausalLM", true, Sizes(24, 896, {14, 2, 64}, 4864, 151936)),
       [] { return DenseModel({"model.", 24, 896, {14, 2, 64}, 4864, 151936, true, true, false}); },
       290, 494032768, On({.tp = 2, .dp = 2})},
      {"Qwen2_5_7B", Text("Qwen2ForCausalLM", false, Sizes(28, 3584, {28, 4, 128}, 18944, 152064)),
       [] {
         return DenseModel({"model.", 28, 3584, {28, 4, 128}, 18944, 152064, false, true, false});
       },
       339, 7615616512, On({.tp = 4, .pp = 2})},
      {"Llama_3_1_8B", Text("LlamaForCausalLM", false, Sizes(32, 4096, h8, 14336, 128256)),
       [] {
         return DenseModel({"model.", 32, 4096, {32, 8, 128}, 14336, 128256, false, false, false});
       },
       291, 8030261248, On({.tp = 8, .pp = 4})},
      {"Glm_4_9B",
       Text("Glm4ForCausalLM", false,
            Sizes(40, 4096, {32, 2, 128}, 13696, 151552) + ", \"attention_bias\": true"),
       Glm4, 523, 9400279040, On({.tp = 4, .pp = 4})},
      {"MiMo_7B", Text("MiMoForCausalLM", false, Sizes(36, 4096, h8, 11008, 151680)), MiMo7B, 451,
       7833409536, On({.tp = 4, .pp = 2}), 0, 1},
      {"Qwen3_VL_2B",
       WithTower("Qwen3VLForConditionalGeneration", true,
                 Sizes(28, 2048, {16, 8, 128}, 6144, 151936), false, 2048),
       QwenVl2B, 625, 2127532032, On({.tp = 4, .pp = 2}), 541},
      {"Qwen3_VL_4B",
       WithTower("Qwen3VLForConditionalGeneration", true, Sizes(36, 2560, h8, 9728, 151936), false,
                 2560),
       QwenVl4B, 713, 4437815808, On({.tp = 8, .pp = 2, .dp = 2}), 605},
      {"Qwen3_VL_8B",
       WithTower("Qwen3VLForConditionalGeneration", false, Sizes(36, 4096, h8, 12288, 151936), true,
                 4096),
       QwenVl8B, 750, 8767123696, On({.tp = 2, .pp = 4, .dp = 2})},
  };
}

std::vector<Model> ExpertModels() {
  const Heads h4{32, 4, 128};
  const std::string gpt_oss = R"(, "attention_bias": true, "num_local_experts": )";
  const Heads h64{64, 8, 64};
  return {
      {"Qwen3_30B_A3B",
       Text("Qwen3MoeForCausalLM", false, Sizes(48, 2048, h4, 6144, 151936) + kQwenMoeFields),
       [] { return Qwen30B("model.", false); }, 18867, 30532122624,
       On({.tp = 4, .pp = 2, .dp = 2, .ep = 8}), 12627},
      {"Qwen3_VL_30B_A3B",
       WithTower("Qwen3VLMoeForConditionalGeneration", false,
                 Sizes(48, 2048, h4, 6144, 151936) + kQwenMoeFields, true, 2048),
       [] { return WithVision(Qwen30B(kVl, true), 27, 1152, 4304, 2048); }, 882, 31070754032,
       On({.tp = 2, .pp = 2, .dp = 2, .ep = 4}), 12978},
      {"Mixtral_8x7B",
       Text("MixtralForCausalLM", false,
            Sizes(32, 4096, {32, 8, 128}, 14336, 32000) + ", \"num_local_experts\": 8"),
       Mixtral8x7B, 995, 46702792704, On({.tp = 4, .dp = 2, .ep = 8})},
      {"Gpt_oss_20b",
       Text("GptOssForCausalLM", false, Sizes(24, 2880, h64, 2880, 201088) + gpt_oss + "32"),
       [] { return GptOss(24, 32); }, 411, 20914757184, On({.tp = 2, .pp = 2, .dp = 2, .ep = 4})},
      {"Gpt_oss_120b",
       Text("GptOssForCausalLM", false, Sizes(36, 2880, h64, 2880, 201088) + gpt_oss + "128"),
       [] { return GptOss(36, 128); }, 615, 116829156672, On({.tp = 8, .pp = 4, .ep = 8})},
      {"DeepSeek_V3",
       Text("DeepseekV3ForCausalLM", false,
            Sizes(61, 7168, {128, 128, 56}, 18432, 129280) + kDeepseekFields),
       [] { return DeepseekV3(false); }, 45395, 671026419200,
       On({.tp = 8, .pp = 4, .dp = 2, .ep = 16, .first = 13}), 0, 0, 1280},
      {"DeepSeek_V3_MTP",
       Text("DeepseekV3ForCausalLM", false,
            Sizes(61, 7168, {128, 128, 56}, 18432, 129280) + kDeepseekFields),
       // 46,183 with the copies of embedding and output layer, which are no weights of their own
       [] { return DeepseekV3(true); }, 46181, 684489845504 - 2 * int64_t{129280} * 7168,
       On({.tp = 8, .pp = 4, .dp = 2, .ep = 16, .first = 13}), 0, 1, 1280},
      {"GLM_4_5_Air",
       Text("Glm4MoeForCausalLM", false,
            Sizes(46, 4096, {96, 8, 128}, 10944, 151552) + kGlmAirFields),
       [] { return Glm45Air(false); }, 17925, 106852251264,
       On({.tp = 4, .pp = 2, .dp = 2, .ep = 8})},
      {"GLM_4_5_Air_MTP",
       Text("Glm4MoeForCausalLM", false,
            Sizes(46, 4096, {96, 8, 128}, 10944, 151552) + kGlmAirFields),
       [] { return Glm45Air(true); }, 18327, 109227310848, On({.tp = 4, .pp = 2, .dp = 2, .ep = 8}),
       0, 1},
      {"MiniMax_M2",
       Text("MiniMaxM2ForCausalLM", false,
            Sizes(62, 3072, {48, 8, 128}, 1536, 200064) +
                R"(, "num_local_experts": 256, "use_qk_norm": true)"),
       MiniMaxM2, 48239, 228689764864, On({.tp = 16, .pp = 2, .ep = 16})},
      {"Qwen3_Next_80B",
       Text("Qwen3NextForCausalLM", false,
            Sizes(48, 2048, {16, 2, 256}, 5120, 151936) + kHybridFields + ", \"num_experts\": 512"),
       [] { return HybridModel({48, 151936, 512, true}); }, 74391, 79674391296,
       On({.tp = 2, .pp = 4, .dp = 4, .ep = 8})},
      {"Qwen3_Next_80B_MTP",
       Text("Qwen3NextForCausalLM", false,
            Sizes(48, 2048, {16, 2, 256}, 5120, 151936) + kHybridFields + ", \"num_experts\": 512"),
       [] { return HybridModel({48, 151936, 512, true, false, true}); }, 75944, 81324862720,
       On({.tp = 2, .pp = 4, .dp = 4, .ep = 8}), 0, 1},
      {"Qwen3_5_35B_A3B",
       Text("Qwen3_5MoeForCausalLM", false,
            Sizes(40, 2048, {16, 2, 256}, 512, 248320) + kHybridFields + ", \"num_experts\": 256"),
       [] { return HybridModel({40, 248320, 256, false, true}); }, 693, 34660610688,
       On({.tp = 2, .pp = 2, .dp = 2, .ep = 4})},
  };
}

std::vector<Model> AllModels() {
  std::vector<Model> all = DenseModels();
  for (Model& m : ExpertModels()) all.push_back(std::move(m));
  return all;
}
void PrintTo(const Model& m, std::ostream* out) { *out << m.name; }

Model Named(const std::string& name) {
  std::vector<Model> all = AllModels();
  return *std::ranges::find(all, name, &Model::name);
}

tensor::Inventory Made(const Lister& list) { return tensor::Inventory::Make(list.all).value(); }

Result<CompiledPlan> CompileOn(const Model& m, Topology t, const CompileOptions& options = {}) {
  const HfConfig config = HfConfig::Parse(m.config).value();
  MegatronConfig trainer;
  t.num_layers = static_cast<int32_t>(config.Int("num_hidden_layers").value());
  trainer.topology = t;
  trainer.mtp_layers = m.mtp_layers;
  const int64_t multiple = m.vocab_divisor * t.tp;
  trainer.padded_vocab = (config.Int("vocab_size").value() + multiple - 1) / multiple * multiple;
  return CompilePlan(config, trainer, options);
}

class Published : public ::testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Models, Published, ::testing::ValuesIn(AllModels()),
                         [](const auto& m) { return std::string(m.param.name); });

TEST_P(Published, NamesShapesAndTotalsAreThePublishedOnes) {
  const Model& m = GetParam();
  const tensor::Inventory expected = Made(m.list());
  EXPECT_EQ(expected.size(), m.tensors);
  EXPECT_EQ(expected.units(), m.parameters);
  const auto one = CompileOn(m, On({}));
  ASSERT_TRUE(one.ok()) << one.error().message;
  EXPECT_EQ(tensor::DifferenceText(expected, *one->plan->inventory), "");
  if (m.params > 0) {
    EXPECT_EQ(one->plan->ranks[0].params.size(), static_cast<size_t>(m.params));
  }
  const auto many = CompileOn(m, m.world);
  ASSERT_TRUE(many.ok()) << many.error().message;
  EXPECT_EQ(one->plan->inventory->signature(), many->plan->inventory->signature());
}

TEST(PublishedReferences, Qwen06BsFileListsItsTiedOutputLayerToo) {
  const Model m = Named("Qwen3_0_6B");
  Lister hub = m.list();
  hub.Add("lm_head.weight", {151936, 1024});
  const auto reference = std::make_shared<const tensor::Inventory>(Made(hub));
  const auto compiled = CompileOn(m, m.world, {.reference = reference});
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  EXPECT_EQ(compiled->plan->inventory->size(), 311U);
  EXPECT_EQ(compiled->plan->inventory->units(), 751632384);
}

TEST(PublishedReferences, QwenVl30BHasItsExpertsByNameIfTheReferenceHas) {
  const Model m = Named("Qwen3_VL_30B_A3B");
  const auto reference = std::make_shared<const tensor::Inventory>(
      Made(WithVision(Qwen30B(kVl, false), 27, 1152, 4304, 2048)));
  EXPECT_EQ(reference->size(), 19218U);
  const auto compiled = CompileOn(m, m.world, {.reference = reference});
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  EXPECT_EQ(*compiled->plan->inventory, *reference);
}

// GLM-4.5's files have two tensors more than an export gives, 4.6's have not: who wants them says
// so.
TEST(PublishedReferences, TheCopiesInGlm45sMtpModuleAreNamedUnlessCarried) {
  const Model m = Named("GLM_4_5_Air_MTP");
  const auto reference = std::make_shared<const tensor::Inventory>(Made(Glm45AirWithCopies()));
  EXPECT_EQ(reference->size(), 18329U);
  EXPECT_EQ(reference->units(), 110468824832);
  const auto refused = CompileOn(m, m.world, {.reference = reference});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("model.layers.46.embed_tokens.weight"));
  EXPECT_THAT(refused.error().message, HasSubstr("model.layers.46.shared_head.head.weight"));
  const auto carried = CompileOn(m, m.world,
                                 {.reference = reference,
                                  .carry = {"model.layers.46.embed_tokens.weight",
                                            "model.layers.46.shared_head.head.weight"}});
  ASSERT_TRUE(carried.ok()) << carried.error().message;
  EXPECT_EQ(carried->carried.size(), 2U);
}

// ---- update buckets ----

// The number after `mark` in a name, or -1.
int64_t NumberAfter(const std::string& name, std::string_view mark) {
  for (size_t at = name.find(mark); at != std::string::npos; at = name.find(mark, at + 1)) {
    size_t digit = at + mark.size();
    if (digit < name.size() && name[digit] >= '0' && name[digit] <= '9') {
      return std::stoll(name.substr(digit));
    }
  }
  return -1;
}

// The order in which Megatron-Bridge exports: its parameters by layer number (of any stack; first
// those without one), expert number and name; of one parameter its tensors as they lie in it.
std::vector<int64_t> TensorBytesInExportOrder(const layout::Plan& plan) {
  const layout::RankPlan& rank = plan.ranks[0];
  std::map<int32_t, std::vector<layout::Slice>> slices;
  for (const layout::Slice& s : rank.slices) slices[s.param].push_back(s);
  std::map<std::tuple<int64_t, int64_t, std::string>, int32_t> order;
  for (size_t p = 0; p < rank.params.size(); ++p) {
    const std::string name = rank.params[p].key.substr(rank.params[p].key.find('/') + 1);
    const int64_t expert = std::max(NumberAfter(name, "weight"), NumberAfter(name, "bias"));
    order[{NumberAfter(name, "layers."), expert, name}] = static_cast<int32_t>(p);
  }
  std::vector<int64_t> bytes;
  std::vector<bool> done(plan.inventory->size());
  for (const auto& [key, param] : order) {
    std::ranges::sort(slices[param], {}, &layout::Slice::source);
    for (const layout::Slice& s : slices[param]) {
      const auto tensor = static_cast<size_t>(s.tensor);
      if (!done[tensor]) bytes.push_back((*plan.inventory)[tensor].bytes());
      done[tensor] = true;
    }
  }
  return bytes;
}

// A bucket that holds something is closed before the tensor that would fill it.
int64_t BucketsOf(const std::vector<int64_t>& tensors, int64_t bucket_bytes) {
  int64_t buckets = 0;
  int64_t size = 0;
  for (const int64_t bytes : tensors) {
    if (size > 0 && size + bytes >= bucket_bytes) ++buckets, size = 0;
    size += bytes;
  }
  return buckets + (size > 0 ? 1 : 0);
}

// What trainers send per update call is cut like this; a changed order or size would show in the
// counts, which are known from runs.
TEST(Buckets, AModelGivesTheKnownNumberOfUpdateBuckets) {
  const std::pair<const char*, int64_t> known[] = {{"Qwen3_0_6B", 3},  {"Qwen3_4B", 17},
                                                   {"Qwen3_8B", 32},   {"Qwen3_30B_A3B", 115},
                                                   {"Qwen3_VL_2B", 9}, {"Qwen3_VL_4B", 18}};
  for (const auto& [name, buckets] : known) {
    const auto compiled = CompileOn(Named(name), On({}));
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    EXPECT_EQ(BucketsOf(TensorBytesInExportOrder(*compiled->plan), 536870912), buckets) << name;
  }
}

}  // namespace
}  // namespace weightcast::bridge
