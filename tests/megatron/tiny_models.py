"""Tiny checkpoints of each family that Megatron-Bridge exports: their weights are normal values of their
own seeds, so that no two tensors, experts or halves are alike.
"""

import json
import re
import zlib

import torch
import transformers
from safetensors.torch import load_file, save_file

# Sizes that eight ranks can cut in any way, except KV heads: fewer than ranks, as in real models.
BASE = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "dtype": "bfloat16"}
DENSE = BASE | {"head_dim": 16}  # not hidden / heads
EXPERTS = DENSE | {"moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 2}
ROUTED = DENSE | {"moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 2,
                  "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
LATENT = {"num_key_value_heads": 8, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8,
          "qk_rope_head_dim": 4, "v_head_dim": 8}
LINEAR = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 8,
          "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
          "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2}
TIED = {"tie_word_embeddings": True}
FURTHER = {"mtp_num_hidden_layers": 1}
SHARED = {"shared_expert_intermediate_size": 24}
VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "in_channels": 3,
          "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64,
          "num_position_embeddings": 16}
TOKENS = {"image_token_id": 190, "video_token_id": 191, "vision_start_token_id": 188,
          "vision_end_token_id": 189}
MULTI_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True,
                                  "mrope_section": [4, 2, 2]}}
PARTIAL_ROPE = {"rope_parameters": MULTI_ROPE["rope_parameters"] | {"partial_rotary_factor": 0.25,
                                                                    "mrope_section": [1, 1, 0]}}
YARN = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 32,
                            "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
                            "original_max_position_embeddings": 4096}}


def _vision(text, **vision):
    return {"text_config": text, "vision_config": VISION | vision, **TOKENS,
            "tie_word_embeddings": text["tie_word_embeddings"]}


MODELS = {  # Hugging Face's config class, and what it is made of
    "llama": ("LlamaConfig", BASE | {"head_dim": 8}),
    "qwen2": ("Qwen2Config", BASE),
    "qwen3": ("Qwen3Config", DENSE),
    "qwen3_tied": ("Qwen3Config", DENSE | TIED),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS),
    "qwen3_vl": ("Qwen3VLConfig", _vision(DENSE | MULTI_ROPE, deepstack_visual_indexes=[0, 1])),
    "qwen3_vl_tied": ("Qwen3VLConfig", _vision(DENSE | MULTI_ROPE | TIED, deepstack_visual_indexes=[1])),
    "qwen3_vl_moe": ("Qwen3VLMoeConfig", _vision(EXPERTS | MULTI_ROPE, deepstack_visual_indexes=[0, 1])),
    "qwen3_next": ("Qwen3NextConfig", EXPERTS | LINEAR | SHARED),
    "qwen3_5": ("Qwen3_5TextConfig", DENSE | LINEAR | FURTHER),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", EXPERTS | LINEAR | SHARED | FURTHER),
    "qwen3_5_vl": ("Qwen3_5Config", _vision(DENSE | LINEAR | FURTHER | PARTIAL_ROPE)),
    "qwen3_5_vl_tied": ("Qwen3_5Config", _vision(DENSE | LINEAR | FURTHER | PARTIAL_ROPE | TIED)),
    "qwen3_5_vl_moe": ("Qwen3_5MoeConfig", _vision(EXPERTS | LINEAR | SHARED | FURTHER | PARTIAL_ROPE)),
    "deepseek_v2": ("DeepseekV2Config", ROUTED | LATENT | YARN),
    "deepseek_v2_lite": ("DeepseekV2Config", ROUTED | LATENT | YARN | {"q_lora_rank": None}),
    "kimi_k2": ("DeepseekV3Config", ROUTED | LATENT | YARN),
    "deepseek_v3_mtp": ("DeepseekV3Config", ROUTED | LATENT | YARN),
    "glm4_moe": ("Glm4MoeConfig", ROUTED | {"use_qk_norm": True, "attention_bias": True}),
    "gpt_oss": ("GptOssConfig", DENSE | {"num_local_experts": 8, "num_experts_per_tok": 2,
                                         "sliding_window": 16}),
    "minimax_m2": ("MiniMaxM2Config", DENSE | {"intermediate_size": 24, "num_local_experts": 8,
                                               "num_experts_per_tok": 2, "rotary_dim": 8}),
    "gemma3": ("Gemma3TextConfig", DENSE | TIED),
    # Transformers has no class of its own for it: its layers are Qwen2's.
    "mimo": ("Qwen2Config", BASE),
}
# Written into config.json, since the classes do not know it.
CONFIG = {
    "deepseek_v3_mtp": {"num_nextn_predict_layers": 1},
    "glm4_moe": {"num_nextn_predict_layers": 1},
    "qwen3_next": {"num_nextn_predict_layers": 1},
    "minimax_m2": {"use_qk_norm": True, "use_routing_bias": True},
    "kimi_k2": {"architectures": ["KimiK2ForCausalLM"], "scoring_func": "sigmoid"},
    "mimo": {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1},
}


def _copy_of_layer(weights, layer, prefix):
    """Shapes of a layer's tensors under another prefix; values are filled in later."""
    start = re.compile(rf"model\.(language_model\.)?layers\.{layer}\.")
    return {start.sub(prefix, name): torch.empty_like(tensor)
            for name, tensor in weights.items() if start.match(name)}


def _prediction_module(weights, prefix, names):
    """A last layer's copy below `prefix`, and what joins it with the embedding: three norms and a
    projection, spelled as in `names`."""
    hidden = BASE["hidden_size"]
    made = _copy_of_layer(weights, BASE["num_hidden_layers"] - 1, prefix)
    *norms, projection = names
    made |= {name: torch.empty(hidden, dtype=torch.bfloat16) for name in norms}
    return made | {projection: torch.empty(hidden, 2 * hidden, dtype=torch.bfloat16)}


def _after_layers(weights):
    prefix = f"model.layers.{BASE['num_hidden_layers']}."
    return _prediction_module(weights, prefix, [prefix + name for name in (
        "enorm.weight", "hnorm.weight", "shared_head.norm.weight", "eh_proj.weight")])


def _mimo(weights):
    prefix = "model.mtp_layers.0."
    return _prediction_module(weights, prefix, [prefix + name for name in (
        "token_layernorm.weight", "hidden_layernorm.weight", "final_layernorm.weight",
        "input_proj.weight")])


def _qwen(weights):
    return _prediction_module(weights, "mtp.layers.0.", [
        "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.norm.weight",
        "mtp.fc.weight"])


# Hugging Face's classes have no modules that predict further tokens, but checkpoints have.
FURTHER_TOKENS = {"deepseek_v3_mtp": _after_layers, "glm4_moe": _after_layers, "mimo": _mimo,
                  "qwen3_next": _qwen, "qwen3_5": _qwen, "qwen3_5_moe": _qwen, "qwen3_5_vl": _qwen,
                  "qwen3_5_vl_tied": _qwen, "qwen3_5_vl_moe": _qwen}
# Layers whose experts are one tensor, as in checkpoints of Qwen3.5 and of Qwen3.6.
PACKED = {"qwen3_5_moe": "model.", "qwen3_5_vl_moe": ""}


def _pack_experts(weights, prefix):
    """[gate; up] of all experts of a layer in one tensor, and down in one."""
    firsts = [name for name in weights
              if name.startswith(prefix) and name.endswith("mlp.experts.0.gate_proj.weight")]
    for first in firsts:
        layer = first.removesuffix("0.gate_proj.weight")
        gates, ups, downs = ([weights.pop(f"{layer}{expert}.{part}_proj.weight")
                              for expert in range(EXPERTS["num_experts"])]
                             for part in ("gate", "up", "down"))
        weights[layer + "gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(gates, ups)])
        weights[layer + "down_proj"] = torch.stack(downs)


def _fill(weights):
    for name, tensor in weights.items():
        values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(
            zlib.crc32(name.encode())))
        # As in the real checkpoints: the router's correction is not rounded.
        dtype = torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16
        weights[name] = values.to(dtype)


def make_checkpoint(family, folder):
    config_class, sizes = MODELS[family]
    config = getattr(transformers, config_class)(**sizes)
    auto = transformers.AutoModelForImageTextToText if "vision_config" in sizes else (
        transformers.AutoModelForCausalLM)
    auto.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    if family in FURTHER_TOKENS:
        weights |= FURTHER_TOKENS[family](weights)
    if family in PACKED:
        _pack_experts(weights, PACKED[family])
    _fill(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | CONFIG.get(family, {}), indent=2))
