"""Which sets sets.py makes. A layout's name says what it is: tp2ep4dp2first3 has tensor parallel size 2, 4
expert ranks, 2 data parallel ones and 3 layers in the first stage; after '-' comes a custom pipeline.
"""

import re

PIPELINES = {  # E embedding, t layer, m further tokens, L loss
    "edges": "E|t*4|t*4|L",  # embedding and loss on stages of their own
    "uneven": "Etttt|t|tt|tL",
    "chunks": [["embedding", "decoder"], ["decoder"] * 3, ["decoder"] * 4, ["loss"]],
    "further": "Et|(tt|)*3tm|L",  # what predicts further tokens is not where the loss is
    "together": "Et|ttt|ttt|tmL",
}
FLAGS = ("embedding", "loss")

SETS = [f"{family}/{layout}" for family, layouts in {
    "llama": "tp4pp2 tp8 tp2cp2dp2 pp4first1last1 pp5embedding1loss1 pp3vpp3embedding1 pp4-edges",
    "qwen2": "tp4pp2first3 pp2vpp4 pp2vpp2first2",
    "qwen3": "tp4pad16 pp4-uneven pp2vpp2-chunks",
    "qwen3_tied": "tp2pp4 pp2vpp2dp2 pp4-edges",
    "qwen3_moe": "tp2pp2ep2dp2 tp2pp2ep2etp2dp2 ep8dp8 etp2dp2 tp4ep4etp2dp2 tp2ep4dp2seq1 cp2ep2",
    "qwen3_vl": "tp4",
    "qwen3_vl_tied": "tp2pp2",
    "qwen3_vl_moe": "tp2pp2ep2dp2",
    "qwen3_next": "tp2pp2ep2dp2 pp2vpp2ep2dp2",
    "qwen3_5": "tp4pp2",
    "qwen3_5_moe": "tp2ep2etp2dp2",
    "qwen3_5_vl": "pp2vpp2 pp4-together",
    "qwen3_5_vl_tied": "tp2pp2",
    "qwen3_5_vl_moe": "ep4dp4",
    "deepseek_v2": "pp2ep2dp2",
    "kimi_k2": "tp2ep2",
    "deepseek_v3_mtp": "tp2pp2ep2dp2 pp2vpp2ep2dp2 pp3vpp2-further "
                       "pp4ep2dp2-together",
    "glm4_moe": "tp2pp2ep2dp2 pp2vpp2",
    "gpt_oss": "tp2pp2ep2dp2 tp4ep2",
    "minimax_m2": "tp4ep2dp2 tp2pp2ep2 tp4pp2",
    "gemma3": "tp2pp2",
    "mimo": "tp2pp2vpp2",
}.items() for layout in layouts.split()]

# Only a reference checkpoint tells that the prediction module's experts lie otherwise than the others'.
BY_REFERENCE = ("qwen3_5_moe/",)

# What Megatron-Core 0.19.2 and Megatron-Bridge 0.6.2 cannot do, and what they say.
REFUSED = {
    "qwen3_vl/pp2vpp2": "vp_stage must be provided",  # its model asks without saying which chunk
    "qwen3_vl/tp2pad16": "hf_weights.shape=torch.Size([200, 64]) target_param.shape=torch.Size([112, 64])",
    "gpt_oss/etp2dp2": "Bias in Moe is only supported when ETP==1",
    # A prediction module's layer is made like a decoder layer of its stage.
    "qwen3_5/pp3vpp2-further": "Experimental attention variant is not supported",
    # Without a query rank Megatron-Core gives the query a norm that no checkpoint has.
    "deepseek_v2_lite/tp2": "linear_q_proj.layer_norm_weight",
}
# Tensors that the export has wrong, which are as they were imported: a rank that exports what lies on
# another stage takes each of MiniMax-M2's tensor ranks to hold KV heads of its own, and repeats rows.
EXPORT_WRONG = {"minimax_m2/tp4pp2": "*.self_attn.k_norm.weight"}


def layout_of(name):
    name, _, pipeline = name.partition("-")
    layout = {key: int(size) for key, size in re.findall(r"([a-z]+)(\d+)", name)}
    for flag in FLAGS:
        if flag in layout:
            layout[flag] = True
    if layout.pop("seq", 0):
        layout["grouped"] = False
    return layout | ({"pipeline": PIPELINES[pipeline]} if pipeline else {})


def world_of(layout):
    world = 1
    for part in ("tp", "pp", "cp", "dp"):
        world *= layout.get(part, 1)
    return world
