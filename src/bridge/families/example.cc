#include "bridge/families/example.h"

#include <utility>

#include "base/json.h"

namespace weightcast::bridge {

using tensor::DType;
using tensor::TensorSpec;

std::vector<TensorSpec> ExampleTensors(const ExampleDims& d) {
  std::vector<TensorSpec> specs = {
      {"model.embed_tokens.weight", DType::kBf16, {d.vocabulary, d.hidden}},
      {"lm_head.weight", DType::kBf16, {d.vocabulary, d.hidden}},
      {"model.norm.weight", DType::kBf16, {d.hidden}},
  };
  const int64_t q = d.heads * d.head_dim;
  const int64_t kv = d.kv_heads * d.head_dim;
  const std::pair<const char*, tensor::Shape> rows[] = {
      {"self_attn.q_proj.weight", {q, d.hidden}},
      {"self_attn.k_proj.weight", {kv, d.hidden}},
      {"self_attn.v_proj.weight", {kv, d.hidden}},
      {"self_attn.o_proj.weight", {d.hidden, q}},
      {"self_attn.q_norm.weight", {d.head_dim}},
      {"self_attn.k_norm.weight", {d.head_dim}},
      {"mlp.gate_proj.weight", {d.intermediate, d.hidden}},
      {"mlp.up_proj.weight", {d.intermediate, d.hidden}},
      {"mlp.down_proj.weight", {d.hidden, d.intermediate}},
      {"input_layernorm.weight", {d.hidden}},
      {"post_attention_layernorm.weight", {d.hidden}},
  };
  for (int64_t layer = 0; layer < d.layers; ++layer) {
    for (const auto& [name, shape] : rows) {
      specs.push_back({"model.layers." + std::to_string(layer) + "." + name, DType::kBf16, shape});
    }
  }
  return specs;
}

std::string ExampleConfig(const ExampleDims& d) {
  const Json config = {{"architectures", {"Qwen3ForCausalLM"}},
                       {"model_type", "qwen3"},
                       {"hidden_size", d.hidden},
                       {"intermediate_size", d.intermediate},
                       {"num_hidden_layers", d.layers},
                       {"num_attention_heads", d.heads},
                       {"num_key_value_heads", d.kv_heads},
                       {"head_dim", d.head_dim},
                       {"vocab_size", d.vocabulary},
                       {"tie_word_embeddings", false},
                       {"attention_bias", false},
                       {"hidden_act", "silu"},
                       {"rms_norm_eps", 1e-06},
                       {"max_position_embeddings", 32768},
                       {"dtype", "bfloat16"},
                       {"transformers_version", "4.57.0"}};
  return config.dump(2);
}

}  // namespace weightcast::bridge
