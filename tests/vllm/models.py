"""Tiny random models, as Hugging Face directories that vLLM loads, and copies with changed weights.

The tensors are written down by name, so that no modelling code stands between a test and the bytes.
"""

import dataclasses
import json
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file

# Smaller or odder dimensions find no kernel: vLLM's for CPUs wants multiples of 32.
HIDDEN, LAYERS, VOCAB, HEADS, KV_HEADS, HEAD_DIM, FFN = 64, 2, 256, 4, 2, 32, 128
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_FFN = 8, 2, 32
VISION_LAYERS, PATCH, FRAMES, MERGE, POSITIONS = 2, 16, 2, 2, 64  # of the vision tower; as wide as the text
MARKS = {"<|image_pad|>": 250, "<|video_pad|>": 251, "<|vision_start|>": 252, "<|vision_end|>": 253}

# Large enough that another version says other tokens: at the usual 0.02 all logits are near 0.
STD = 0.15


@dataclasses.dataclass(frozen=True)
class Kind:
    architecture: str
    model_type: str
    tied: bool = False
    experts: bool = False
    qk_norm: bool = True
    vision: bool = False


KINDS = {
    "qwen3": Kind("Qwen3ForCausalLM", "qwen3"),
    "qwen3_tied": Kind("Qwen3ForCausalLM", "qwen3", tied=True),
    "qwen3_moe": Kind("Qwen3MoeForCausalLM", "qwen3_moe", experts=True),
    "qwen3_vl": Kind("Qwen3VLForConditionalGeneration", "qwen3_vl", vision=True),
    "llama": Kind("LlamaForCausalLM", "llama", qk_norm=False),
}


def shapes(kind):
    """{name: shape} of a kind's checkpoint."""
    kind = KINDS[kind]
    text = "model.language_model." if kind.vision else "model."
    out = {text + "embed_tokens.weight": (VOCAB, HIDDEN), text + "norm.weight": (HIDDEN,)}
    if not kind.tied:
        out["lm_head.weight"] = (VOCAB, HIDDEN)
    for i in range(LAYERS):
        layer = f"{text}layers.{i}."
        out[layer + "input_layernorm.weight"] = (HIDDEN,)
        out[layer + "post_attention_layernorm.weight"] = (HIDDEN,)
        out[layer + "self_attn.q_proj.weight"] = (HEADS * HEAD_DIM, HIDDEN)
        out[layer + "self_attn.k_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
        out[layer + "self_attn.v_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
        out[layer + "self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        if kind.qk_norm:
            out[layer + "self_attn.q_norm.weight"] = (HEAD_DIM,)
            out[layer + "self_attn.k_norm.weight"] = (HEAD_DIM,)
        if kind.experts:
            out[layer + "mlp.gate.weight"] = (EXPERTS, HIDDEN)
            for e in range(EXPERTS):
                out |= mlp_shapes(f"{layer}mlp.experts.{e}.", EXPERT_FFN)
        else:
            out |= mlp_shapes(layer + "mlp.", FFN)
    return out | (vision_shapes("model.visual.") if kind.vision else {})


def vision_shapes(tower):
    """Each linear and norm has a bias there."""
    merged = HIDDEN * MERGE**2
    weights = {"patch_embed.proj": (HIDDEN, 3, FRAMES, PATCH, PATCH)}
    for i in range(VISION_LAYERS):
        block = f"blocks.{i}."
        weights |= {block + "norm1": (HIDDEN,), block + "norm2": (HIDDEN,),
                    block + "attn.qkv": (3 * HIDDEN, HIDDEN), block + "attn.proj": (HIDDEN, HIDDEN),
                    block + "mlp.linear_fc1": (FFN, HIDDEN), block + "mlp.linear_fc2": (HIDDEN, FFN)}
    mergers = {"merger.": HIDDEN} | {f"deepstack_merger_list.{i}.": merged for i in range(VISION_LAYERS)}
    for merger, norm in mergers.items():
        weights |= {merger + "norm": (norm,), merger + "linear_fc1": (merged, merged),
                    merger + "linear_fc2": (HIDDEN, merged)}
    out = {tower + "pos_embed.weight": (POSITIONS, HIDDEN)}
    for name, shape in weights.items():
        out |= {f"{tower}{name}.weight": shape, f"{tower}{name}.bias": shape[:1]}
    return out


def mlp_shapes(prefix, width):
    return {prefix + "gate_proj.weight": (width, HIDDEN), prefix + "up_proj.weight": (width, HIDDEN),
            prefix + "down_proj.weight": (HIDDEN, width)}


def config(kind, dtype):
    kind = KINDS[kind]
    out = {
        "architectures": [kind.architecture], "model_type": kind.model_type, "dtype": dtype,
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "intermediate_size": FFN, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 512, "attention_bias": False, "tie_word_embeddings": kind.tied,
        "bos_token_id": None, "eos_token_id": 1, "pad_token_id": None,
    }
    if kind.experts:
        out |= {"num_experts": EXPERTS, "num_experts_per_tok": EXPERTS_PER_TOKEN,
                "moe_intermediate_size": EXPERT_FFN, "decoder_sparse_step": 1,
                "norm_topk_prob": True, "mlp_only_layers": []}
    return vision_config(kind, out) if kind.vision else out


def vision_config(kind, text):
    text |= {"model_type": kind.model_type + "_text", "rope_parameters": {
        **text["rope_parameters"], "mrope_section": [6, 5, 5], "mrope_interleaved": True}}
    tower = {
        "model_type": kind.model_type + "_vision", "depth": VISION_LAYERS, "hidden_size": HIDDEN,
        "intermediate_size": FFN, "num_heads": HEADS, "in_channels": 3, "patch_size": PATCH,
        "spatial_merge_size": MERGE, "temporal_patch_size": FRAMES, "out_hidden_size": HIDDEN,
        "num_position_embeddings": POSITIONS, "deepstack_visual_indexes": list(range(VISION_LAYERS)),
        "hidden_act": "gelu_pytorch_tanh",
    }
    ids = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
           "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    return {"architectures": text.pop("architectures"), "model_type": kind.model_type,
            "dtype": text["dtype"], "tie_word_embeddings": text["tie_word_embeddings"],
            "text_config": text, "vision_config": tower} | {key: MARKS[mark] for key, mark in ids.items()}


def write_tokenizer(out, marks=()):
    """Words w2, w3, ... are tokens 2, 3, ...; 0 is <unk> and 1 is <eos>. marks: of MARKS, tokens that
    stand for themselves in any text."""
    vocab = {"<unk>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, VOCAB)}
    added = [{"id": MARKS[mark], "content": mark, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": True} for mark in marks]
    vocab = {word: i for word, i in vocab.items() if i not in {m["id"] for m in added}} | {
        mark["content"]: mark["id"] for mark in added}
    (out / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}}))
    (out / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "<eos>"}))


def write_processors(out):
    """Images of 64 x 64 pixels stay as they are: 4 x 4 patches, 2 x 2 tokens."""
    common = {"processor_class": "Qwen3VLProcessor", "patch_size": PATCH, "merge_size": MERGE,
              "temporal_patch_size": FRAMES, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
              "size": {"shortest_edge": 1024, "longest_edge": 4096}}
    for name, kind in (("preprocessor", {"image_processor_type": "Qwen2VLImageProcessor"}),
                       ("video_preprocessor", {"video_processor_type": "Qwen3VLVideoProcessor"})):
        (out / f"{name}_config.json").write_text(json.dumps(common | kind))


def make(kind, out, seed=0, dtype="bfloat16"):
    """Writes a model of one of KINDS, decided by `seed`; dtype "bfloat16" or "float32"."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes(kind).items():
        noise = torch.randn(shape, generator=random)
        value = 1 + 0.1 * noise if "norm" in name and name.endswith("weight") else STD * noise
        tensors[name] = value.to(getattr(torch, dtype))
    save(tensors, out)
    (out / "config.json").write_text(json.dumps(config(kind, dtype), indent=1))
    write_tokenizer(out, MARKS if KINDS[kind].vision else ())
    if KINDS[kind].vision:
        write_processors(out)
    return out


def save(tensors, out):
    # transformers refuses a file that does not say which framework's it is.
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def changed(directory, out, seed, density=0.01, names=None, size=0.05):
    """Writes a copy of a model in which a share `density` of each tensor's elements has moved by
    about `size`, and every one of those to other bits; with `names`, in those tensors only."""
    directory, out = pathlib.Path(directory), pathlib.Path(out)
    shutil.copytree(directory, out, ignore=shutil.ignore_patterns("*.safetensors"),
                    dirs_exist_ok=True)
    tensors = load_file(directory / "model.safetensors")
    random = torch.Generator().manual_seed(seed)
    for name in sorted(tensors) if names is None else names:
        tensors[name] = moved(tensors[name], random, density, size)
    save(tensors, out)
    return out


def moved(tensor, random, density, size):
    old = tensor.flatten()
    count = min(max(round(old.numel() * density), 1 if density else 0), old.numel())
    chosen = torch.randperm(old.numel(), generator=random)[:count]
    steps = size * torch.randn(count, generator=random)
    before = old[chosen]
    after = (before.float() + steps).to(old.dtype)
    bits = torch.int32 if old.dtype == torch.float32 else torch.int16
    neighbour = (before.view(bits) ^ 1).view(old.dtype)
    after = torch.where(after == before, neighbour, after)  # a step that rounding took back
    return old.index_copy(0, chosen, after).reshape(tensor.shape)
