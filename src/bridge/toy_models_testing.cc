#include "bridge/toy_models_testing.h"

#include <ostream>
#include <stdexcept>

#include "base/json.h"

namespace weightcast::bridge {

using layout::Topology;

namespace {

void AddExperts(const ToyModel& m, Json* text) {
  (*text)[m.experts_key] = m.experts;
  if (m.expert_ffn != m.ffn) (*text)["moe_intermediate_size"] = m.expert_ffn;
  if (m.shared_ffn > 0 && m.shared_gate) {
    (*text)["shared_expert_intermediate_size"] = m.shared_ffn;
  } else if (m.shared_ffn > 0) {
    (*text)["n_shared_experts"] = m.shared_ffn / m.expert_ffn;
  }
  if (m.dense_layers == 0) return;
  if (std::string_view(m.experts_key) == "n_routed_experts") {
    (*text)["first_k_dense_replace"] = m.dense_layers;
  } else {
    for (int32_t i = 0; i < m.dense_layers; ++i) (*text)["mlp_only_layers"].push_back(i);
  }
}

Json TextConfig(const ToyModel& m) {
  Json text = {{"num_hidden_layers", m.layers},
               {"hidden_size", m.hidden},
               {"intermediate_size", m.ffn},
               {"num_attention_heads", m.heads},
               {"num_key_value_heads", m.kv_heads},
               {"head_dim", m.head_dim},
               {"vocab_size", m.vocab},
               {"attention_bias", m.qkv_bias},
               {"use_qk_norm", m.qk_norm || m.wide_qk_norm}};
  if (m.attention == ToyAttention::kLatent) {
    if (m.query_rank > 0) text["q_lora_rank"] = m.query_rank;
    text["kv_lora_rank"] = m.kv_rank;
    text["qk_nope_head_dim"] = m.nope_dim;
    text["qk_rope_head_dim"] = m.rope_dim;
    text["v_head_dim"] = m.value_dim;
  }
  if (m.full_attention_interval > 0) {
    text["full_attention_interval"] = m.full_attention_interval;
    text["linear_num_key_heads"] = m.key_heads;
    text["linear_num_value_heads"] = m.value_heads;
    text["linear_key_head_dim"] = m.key_dim;
    text["linear_value_head_dim"] = m.linear_value_dim;
    text["linear_conv_kernel_dim"] = m.conv_width;
  }
  if (m.experts > 0) AddExperts(m, &text);
  return text;
}

Json VisionConfig(const ToyModel& m) {
  Json vision = {{"depth", m.vision_depth},
                 {"hidden_size", m.vision_hidden},
                 {"intermediate_size", m.vision_ffn},
                 {"num_heads", m.vision_heads},
                 {"in_channels", 3},
                 {"temporal_patch_size", 2},
                 {"patch_size", 2},
                 {"num_position_embeddings", 5},
                 {"spatial_merge_size", 2},
                 {"out_hidden_size", m.hidden}};
  for (int32_t i = 0; i < m.deepstack; ++i) vision["deepstack_visual_indexes"].push_back(i);
  return vision;
}

}  // namespace

std::string ConfigJson(const ToyModel& m) {
  Json config = m.vision ? Json{{"text_config", TextConfig(m)}, {"vision_config", VisionConfig(m)}}
                         : TextConfig(m);
  config["architectures"] = Json::array({m.architecture});
  config["dtype"] = m.bf16 ? "bfloat16" : "float32";
  config["tie_word_embeddings"] = m.tied;
  return config.dump();
}

std::string TopologyJson(const ToyModel& m, const Topology& t) {
  Json config = {{"tensor_model_parallel_size", t.tp},
                 {"pipeline_model_parallel_size", t.pp},
                 {"virtual_pipeline_model_parallel_size", t.vpp},
                 {"context_parallel_size", t.cp},
                 {"expert_model_parallel_size", t.ep},
                 {"expert_tensor_parallel_size", t.etp},
                 {"num_layers", m.layers},
                 {"padded_vocab_size", m.padded_vocab},
                 {"transformer_impl", m.local_spec ? "local" : "transformer_engine"},
                 {"params_dtype", m.bf16 ? "torch.bfloat16" : "torch.float32"}};
  if (t.layers_in_first_stage >= 0) {
    config["num_layers_in_first_pipeline_stage"] = t.layers_in_first_stage;
  }
  if (t.layers_in_last_stage >= 0) {
    config["num_layers_in_last_pipeline_stage"] = t.layers_in_last_stage;
  }
  if (m.experts > 0) {
    config["num_moe_experts"] = m.experts;
    config["moe_grouped_gemm"] = !m.sequential;
  }
  if (m.attention == ToyAttention::kLatent) config["multi_latent_attention"] = true;
  if (m.attention == ToyAttention::kGated) config["attention_output_gate"] = true;
  if (m.full_attention_interval > 0) config["layernorm_zero_centered_gamma"] = true;
  if (m.mtp_layers > 0) config["mtp_num_layers"] = m.mtp_layers;
  Json topology = {{"world", t.world}, {"config", config}};
  if (m.mtp_layers > 0) topology["mtp_inner"] = m.mtp_inner;
  if (m.vision) topology["tower"] = m.tower;
  return topology.dump();
}

void PrintTo(const ToyModel& m, std::ostream* out) { *out << m.architecture; }

namespace {

ToyModel Dense(const char* architecture) {
  ToyModel m{.architecture = architecture};
  m.hidden = 20;
  return m;
}

ToyModel WithExperts(ToyModel m, ToyExperts layout, const char* key) {
  m.experts = 4;
  m.layout = layout;
  m.experts_key = key;
  return m;
}

// Qwen's hybrid: every second layer has full attention, with a gate.
ToyModel Hybrid(const char* architecture) {
  ToyModel m = Dense(architecture);
  m.bf16 = m.qk_norm = true;
  m.attention = ToyAttention::kGated;
  m.full_attention_interval = 2;
  m.mtp_layers = 1;
  return m;
}

ToyModel HybridWithExperts(const char* architecture, ToyExperts layout) {
  ToyModel m = WithExperts(Hybrid(architecture), layout, "num_experts");
  m.shared_ffn = 36;
  m.shared_gate = true;
  return m;
}

ToyModel WithVision(ToyModel m, int32_t deepstack) {
  m.vision = true;
  m.deepstack = deepstack;
  return m;
}

// The first layer is dense, two experts are shared, the router has a bias.
ToyModel RoutedWithShared(const char* architecture) {
  ToyModel m = WithExperts(Dense(architecture), ToyExperts::kByName, "n_routed_experts");
  m.router_bias = true;
  m.shared_ffn = 2 * m.expert_ffn;
  m.dense_layers = 1;
  m.mtp_layers = 1;
  m.mtp = ToyMtp::kAfterLayers;
  return m;
}

// Experts as large as config.json's intermediate size, which dense layers do not use.
ToyModel OnlyExperts(const char* architecture, ToyExperts layout) {
  ToyModel m = WithExperts(Dense(architecture), layout, "num_local_experts");
  m.ffn = m.expert_ffn;
  return m;
}

}  // namespace

std::vector<ToyModel> ToyFamilies() {
  std::vector<ToyModel> all;
  const auto add = [&](ToyModel m) -> ToyModel& { return all.emplace_back(std::move(m)); };
  add(Dense("LlamaForCausalLM"));
  add(Dense("Qwen2ForCausalLM")).qkv_bias = true;
  add(Dense("Qwen3ForCausalLM")).qk_norm = true;
  ToyModel moe = WithExperts(Dense("Qwen3MoeForCausalLM"), ToyExperts::kByName, "num_experts");
  moe.qk_norm = true;
  add(moe).dense_layers = 1;
  ToyModel vl = Dense("Qwen3VLForConditionalGeneration");
  vl.qk_norm = true;
  add(WithVision(vl, 2));
  ToyModel vl_moe = WithExperts(Dense("Qwen3VLMoeForConditionalGeneration"), ToyExperts::kInOut,
                                "num_local_experts");
  vl_moe.qk_norm = true;
  add(WithVision(vl_moe, 2));
  ToyModel next = HybridWithExperts("Qwen3NextForCausalLM", ToyExperts::kByName);
  next.linear_by_key_head = true;
  add(next);
  add(Hybrid("Qwen3_5ForCausalLM"));
  add(HybridWithExperts("Qwen3_5MoeForCausalLM", ToyExperts::kOutIn));
  add(WithVision(Hybrid("Qwen3_5ForConditionalGeneration"), 0));
  add(WithVision(HybridWithExperts("Qwen3_5MoeForConditionalGeneration", ToyExperts::kOutIn), 0));
  add(OnlyExperts("MixtralForCausalLM", ToyExperts::kSparseMoe));
  ToyModel& glm4 = add(Dense("Glm4ForCausalLM"));
  glm4.qkv_bias = glm4.sandwich = true;
  ToyModel& gemma3 = add(Dense("Gemma3ForCausalLM"));
  gemma3.qk_norm = gemma3.inner_norms = true;
  ToyModel& glm4_moe = add(RoutedWithShared("Glm4MoeForCausalLM"));
  glm4_moe.qkv_bias = glm4_moe.qk_norm = true;
  ToyModel& deepseek_v2 = add(RoutedWithShared("DeepseekV2ForCausalLM"));
  deepseek_v2.attention = ToyAttention::kLatent;
  deepseek_v2.query_rank = 7;
  deepseek_v2.router_bias = false;
  deepseek_v2.mtp_layers = 0;
  ToyModel& deepseek = add(RoutedWithShared("DeepseekV3ForCausalLM"));
  deepseek.attention = ToyAttention::kLatent;
  deepseek.query_rank = 7;
  ToyModel& minimax = add(OnlyExperts("MiniMaxM2ForCausalLM", ToyExperts::kSparseMoe));
  minimax.wide_qk_norm = minimax.router_bias = true;
  ToyModel& gpt_oss = add(OnlyExperts("GptOssForCausalLM", ToyExperts::kAlternating));
  gpt_oss.qkv_bias = gpt_oss.sinks = true;
  ToyModel& mimo = add(Dense("MiMoForCausalLM"));
  mimo.qkv_bias = true;
  mimo.mtp_layers = 1;
  mimo.mtp = ToyMtp::kMtpLayers;
  return all;
}

ToyModel ToyOf(const std::string& architecture) {
  for (ToyModel& m : ToyFamilies()) {
    if (m.architecture == architecture) return std::move(m);
  }
  throw std::out_of_range("no toy of " + architecture);
}

// Sizes stay unlike each other: a hidden size that were twice the experts' would make a packed
// tensor square, and hide a wrong orientation. Two KV heads are fewer than four ranks.
ToyModel Fitted(ToyModel m, const Topology& t) {
  const bool three = t.tp == 3;
  m.layers = t.num_layers;
  m.hidden = three ? 15 : 20;
  m.heads = three ? 6 : 4;
  m.kv_heads = three ? 3 : 2;
  m.key_heads = three ? 3 : 4;
  m.value_heads = 2 * m.key_heads;
  m.vision_heads = three ? 3 : 4;
  m.vision_hidden = 3 * m.vision_heads;
  if (m.experts > 0) m.experts = t.ep == 3 ? 6 : t.ep == 4 ? 8 : 4;
  return m;
}

}  // namespace weightcast::bridge
