// Models to measure on, in sizes that were published or close to them.
#pragma once

namespace weightcast::bridge {

struct LargeModel {
  const char* name;
  const char* config;    // config.json
  const char* topology;  // topology.json
};

inline constexpr LargeModel kLargeModels[] = {
    // The sizes of Qwen3-0.6B: 1.19 GB.
    {"dense",
     R"({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 1024,
         "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
         "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": true})",
     R"({"world": 8, "config": {"tensor_model_parallel_size": 4, "num_layers": 28,
         "pipeline_model_parallel_size": 2, "padded_vocab_size": 152064}})"},
    // 128 experts, 1.34 GB.
    {"moe",
     R"({"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4, "hidden_size": 1024,
         "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 4,
         "head_dim": 128, "vocab_size": 32000, "num_experts": 128, "moe_intermediate_size": 384,
         "tie_word_embeddings": false})",
     R"({"world": 8, "config": {"tensor_model_parallel_size": 2, "num_layers": 4,
         "pipeline_model_parallel_size": 2, "expert_model_parallel_size": 2,
         "expert_tensor_parallel_size": 2, "moe_grouped_gemm": true}})"},
    // DeepSeek-V3 without its prediction module, on 1024 ranks.
    {"deepseek-v3",
     R"({"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 7168,
         "intermediate_size": 18432, "num_attention_heads": 128, "num_key_value_heads": 128,
         "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
         "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
         "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "vocab_size": 129280,
         "tie_word_embeddings": false})",
     R"({"world": 1024, "config": {"tensor_model_parallel_size": 8, "num_layers": 61,
         "pipeline_model_parallel_size": 16, "num_layers_in_first_pipeline_stage": 4,
         "num_layers_in_last_pipeline_stage": 1, "expert_model_parallel_size": 64,
         "expert_tensor_parallel_size": 1, "moe_grouped_gemm": true}})"},
};
}  // namespace weightcast::bridge
