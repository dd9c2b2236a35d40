"""weightcast.megatron without Megatron: stand-ins for modules, with numpy arrays for weights.

tests/megatron publishes from real modules. What needs torch's tensors is skipped where there is none
(tests/megatron runs it where there is).
"""

import json
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(pathlib.Path(os.environ.get("WEIGHTCAST_BUILD", ROOT / "build")) / "python"))
weightcast = pytest.importorskip("weightcast", reason="the Python package is not built (WC_PYTHON)")
from weightcast import errors, megatron  # noqa: E402

HIDDEN, HEADS, GROUPS, HEAD, FFN, LAYERS, VOCAB = 8, 4, 2, 4, 12, 4, 16
HF_CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": FFN,
             "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
             "head_dim": HEAD, "vocab_size": VOCAB, "tie_word_embeddings": False, "dtype": "float32",
             "rope_theta": float("inf")}
SETTINGS = {"num_layers": LAYERS, "hidden_size": HIDDEN, "ffn_hidden_size": FFN,
            "num_attention_heads": HEADS, "num_query_groups": GROUPS, "kv_channels": HEAD,
            "params_dtype": "torch.float32", "transformer_impl": "transformer_engine",
            "init_method": print, "layernorm_epsilon": 1e-5, "_private": 1}


class Module:
    """As much of torch.nn.Module as the publisher looks at."""

    def __init__(self, **attributes):
        self._parameters, self._buffers, self._modules = {}, {}, {}
        self._non_persistent_buffers_set = set()
        vars(self).update(attributes)

    def named_modules(self, prefix="", remove_duplicate=True):
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def at(self, path):
        module = self
        for name in path.split("."):
            module = module._modules.setdefault(name, Module())
        return module

    def put(self, name, tensor):
        path, _, leaf = name.rpartition(".")
        self.at(path)._parameters[leaf] = tensor

    def find(self, name):
        path, _, leaf = name.rpartition(".")
        return self.at(path)._parameters[leaf]


def hf_tensors(seed, tied=False):
    rng = np.random.default_rng(seed)

    def make(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    out = {"model.embed_tokens.weight": make(VOCAB, HIDDEN), "model.norm.weight": make(HIDDEN)}
    if not tied:
        out["lm_head.weight"] = make(VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        out |= {at + "input_layernorm.weight": make(HIDDEN),
                at + "post_attention_layernorm.weight": make(HIDDEN),
                at + "self_attn.q_proj.weight": make(HEADS * HEAD, HIDDEN),
                at + "self_attn.k_proj.weight": make(GROUPS * HEAD, HIDDEN),
                at + "self_attn.v_proj.weight": make(GROUPS * HEAD, HIDDEN),
                at + "self_attn.o_proj.weight": make(HIDDEN, HEADS * HEAD),
                at + "mlp.gate_proj.weight": make(FFN, HIDDEN),
                at + "mlp.up_proj.weight": make(FFN, HIDDEN),
                at + "mlp.down_proj.weight": make(HIDDEN, FFN)}
    return out


def cut(tensor, rank, ranks, axis=0):
    return np.ascontiguousarray(np.array_split(tensor, ranks, axis)[rank])


def put_layer(module, local, hf, layer, tp, ranks):
    at, to = f"model.layers.{layer}.", f"decoder.layers.{local}."
    q, k, v = (hf[at + f"self_attn.{name}_proj.weight"].reshape(GROUPS, -1, HIDDEN) for name in "qkv")
    qkv = np.concatenate([q, k, v], axis=1).reshape(-1, HIDDEN)
    gate, up = (cut(hf[at + f"mlp.{name}_proj.weight"], tp, ranks) for name in ("gate", "up"))
    module.put(to + "self_attention.linear_qkv.layer_norm_weight",
               hf[at + "input_layernorm.weight"].copy())
    module.put(to + "self_attention.linear_qkv.weight", cut(qkv, tp, ranks))
    module.put(to + "self_attention.linear_proj.weight",
               cut(hf[at + "self_attn.o_proj.weight"], tp, ranks, 1))
    module.put(to + "mlp.linear_fc1.layer_norm_weight",
               hf[at + "post_attention_layernorm.weight"].copy())
    module.put(to + "mlp.linear_fc1.weight", np.concatenate([gate, up]))
    module.put(to + "mlp.linear_fc2.weight", cut(hf[at + "mlp.down_proj.weight"], tp, ranks, 1))
    module.at(f"decoder.layers.{local}").layer_number = layer + 1


def chunk(hf, layers, tp=0, ranks=1, first=True, last=True, **settings):
    """One chunk of a model, as Megatron names and cuts it."""
    module = Module(config=types.SimpleNamespace(**{**SETTINGS, **settings}), vocab_size=VOCAB)
    if first:
        module.put("embedding.word_embeddings.weight", cut(hf["model.embed_tokens.weight"], tp, ranks))
    for local, layer in enumerate(layers):
        put_layer(module, local, hf, layer, tp, ranks)
    if last:
        module.put("decoder.final_layernorm.weight", hf["model.norm.weight"].copy())
        if "lm_head.weight" in hf:
            module.put("output_layer.weight", cut(hf["lm_head.weight"], tp, ranks))
    return module


def whole(hf, **settings):
    return chunk(hf, range(LAYERS), **settings)


ALONE = {"world": 1, "rank": 0}


class Place:
    def __init__(self, path):
        self.path = path
        self.where = {"catalog": f"sqlite:{path}/c.db", "store": f"file:{path}/bytes"}

    def publisher(self, chunks, config=None, run="policy", **more):
        more.setdefault("topology", ALONE)
        rank = more["topology"].get("rank", 0)
        return megatron.Publisher(chunks, config or HF_CONFIG, run=run, token="job", **self.where,
                                  baseline=self.path / f"{run}-base-{rank}", threads=1, **more)

    def root(self, hf):
        """What the same model has as a plain state dict."""
        run = f"plain-{len(list(self.path.iterdir()))}"
        with weightcast.Publisher(**self.where, run=run, weights=hf,
                                  baseline=self.path / run) as plain:
            return plain.publish(hf).wait()["root"]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


# ---- the main road ----

def test_one_rank_publishes_and_publishes_again_after_changes(place):
    hf, after = hf_tensors(1), hf_tensors(2)
    module = whole(hf)
    with place.publisher(module) as publisher:
        assert publisher.publish().wait()["root"] == place.root(hf)
        metrics = publisher.pop_metrics()
        assert metrics["weightcast/version"] == 1 and publisher.pop_metrics() == {}
        source = whole(after)
        for name, part in module.named_modules():
            for leaf, tensor in part._parameters.items():
                new = source.find(f"{name}.{leaf}")
                if leaf == "layer_norm_weight":
                    part._parameters[leaf] = new  # given new memory
                else:
                    tensor[...] = new  # changed in place
        publisher.prepare_base()
        assert publisher.publish().wait()["root"] == place.root(after)


@pytest.mark.parametrize("wrapped", [False, True])
def test_ranks_work_alone_over_tensor_pipeline_and_virtual_chunks(place, wrapped):
    hf = hf_tensors(3)
    publishers = []
    for rank in range(4):
        tp, stage = rank % 2, rank // 2
        chunks = [chunk(hf, [virtual * 2 + stage], tp, 2, first=stage == virtual == 0,
                        last=stage == virtual == 1) for virtual in range(2)]
        if wrapped:
            for c in chunks:
                c.config.virtual_pipeline_model_parallel_size = 2
            chunks = [Module(module=Module(module=c)) for c in chunks]
        topology = {"world": 4, "rank": rank, "coords": {"tp": tp, "pp": stage, "rank": rank},
                    "config": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}}
        publishers.append(place.publisher(chunks, topology=topology))
    publications = [p.publish(7) for p in reversed(publishers)]
    assert {p.wait()["root"] for p in publications} == {place.root(hf)}
    with pytest.raises(errors.InvalidArgument, match="number: a job of 4 ranks"):
        publishers[0].publish()
    for publisher in publishers:
        publisher.close()


def test_a_padded_vocabulary_is_known_to_stages_that_hold_none_of_it(place):
    hf = hf_tensors(4)
    topology = {"world": 3, "config": {"pipeline_model_parallel_size": 3, "num_layers": 6}}
    config = {**HF_CONFIG, "num_hidden_layers": 6}
    hashes = set()
    for rank in range(3):
        module = chunk(hf, range(2), first=rank == 0, last=rank == 2)
        module.vocab_size = VOCAB + 4
        padding = ((0, 4), (0, 0))
        for name in ["embedding.word_embeddings.weight"] * (rank == 0) + ["output_layer.weight"] * (
                rank == 2):
            module.put(name, np.pad(module.find(name), padding))
        publisher = place.publisher(module, config, topology={**topology, "rank": rank})
        hashes.add(publisher._core.plan_hash)
        publisher.close()
    assert len(hashes) == 1


def test_of_replicas_only_what_the_rank_owns_is_staged(place):
    hf = hf_tensors(5)
    publishers = [place.publisher(whole(hf), topology={"world": 2, "rank": rank}) for rank in (0, 1)]
    owned = [set(p._core.owned) for p in publishers]
    norm = "vp0/decoder.final_layernorm.weight"  # too small to be shared
    assert sum(norm in keys for keys in owned) == 1
    for publisher, keys in zip(publishers, owned):
        weights, rows = publisher._choose()
        assert set(weights) == keys and len(rows) == len(owned[0] | owned[1])
    publications = [p.publish(1) for p in publishers]
    assert {p.wait()["root"] for p in publications} == {place.root(hf)}


def test_a_rank_that_owns_nothing_returns(place):
    hf = hf_tensors(6)
    publishers = (place.publisher(whole(hf), run="wide", topology={"world": 64, "rank": rank})
                  for rank in reversed(range(64)))
    idle = next(p for p in publishers if p._core.owns_nothing)
    assert idle.publish(1).wait(10) == {"number": 1, "owns_nothing": True}


@pytest.mark.parametrize("tied", [True, False])
def test_names_of_one_tensor_are_taken_as_the_plan_wants_them(place, tied):
    hf = hf_tensors(7, tied=tied)
    if not tied:
        hf["lm_head.weight"] = hf["model.embed_tokens.weight"]
    module = whole(hf)
    module.put("output_layer.weight", module.find("embedding.word_embeddings.weight"))
    with place.publisher(module, {**HF_CONFIG, "tie_word_embeddings": tied}) as publisher:
        assert publisher.publish().wait()["root"] == place.root(hf)


def test_hf_config_is_a_dict_a_file_its_directory_or_an_object(place, tmp_path):
    finite = {k: v for k, v in HF_CONFIG.items() if k != "rope_theta"}
    (tmp_path / "config.json").write_text(json.dumps(finite))
    module = whole(hf_tensors(8))
    hashes = set()
    for config in (HF_CONFIG, tmp_path / "config.json", str(tmp_path),
                   types.SimpleNamespace(to_dict=lambda: HF_CONFIG)):
        with place.publisher(module, config) as publisher:
            hashes.add(publisher._core.plan_hash)
    assert len(hashes) == 1
    with pytest.raises(errors.InvalidArgument, match="hf_config: .*missing.json: No such file"):
        place.publisher(module, tmp_path / "missing.json")
    with pytest.raises(errors.InvalidArgument, match="hf_config: expected a dict"):
        place.publisher(module, 3)


# ---- experts, and the two ways to a plan ----

EXPERTS = 2
MOE_CONFIG = {**HF_CONFIG, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": EXPERTS,
              "moe_intermediate_size": FFN, "num_experts_per_tok": 1, "decoder_sparse_step": 1,
              "mlp_only_layers": []}


def mixture(seed):
    """A model whose layers are mixtures of experts, and its checkpoint with a tensor for each."""
    rng = np.random.default_rng(seed)
    hf = hf_tensors(seed)
    module = whole(hf, num_moe_experts=EXPERTS, moe_ffn_hidden_size=FFN, moe_grouped_gemm=True)
    for layer in range(LAYERS):
        at, to = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        fc1, fc2 = (module.at(to + f"mlp.linear_fc{i}")._parameters for i in (1, 2))
        module.put(to + "pre_mlp_layernorm.weight", fc1.pop("layer_norm_weight"))
        for name in ("q", "k"):
            hf[at + f"self_attn.{name}_norm.weight"] = rng.standard_normal(HEAD, dtype=np.float32)
            module.put(to + f"self_attention.{name}_layernorm.weight", hf[at + f"self_attn.{name}_norm.weight"])
        hf[at + "mlp.gate.weight"] = rng.standard_normal((EXPERTS, HIDDEN), dtype=np.float32)
        module.put(to + "mlp.router.weight", hf[at + "mlp.gate.weight"])
        parts = [hf.pop(at + f"mlp.{name}_proj.weight") for name in ("gate", "up", "down")]
        for expert in range(EXPERTS):
            gate, up, down = (part + np.float32(expert) for part in parts)
            for name, part in (("gate", gate), ("up", up), ("down", down)):
                hf[at + f"mlp.experts.{expert}.{name}_proj.weight"] = part
            module.put(to + f"mlp.experts.linear_fc1.weight{expert}", np.concatenate([gate, up]))
            module.put(to + f"mlp.experts.linear_fc2.weight{expert}", down)
        del fc1["weight"], fc2["weight"]
    return module, hf


def packed(hf, turned):
    """The same checkpoint with one tensor for all experts of a layer, each turned if so asked."""
    out = {name: tensor for name, tensor in hf.items() if ".experts." not in name}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (np.stack([hf[f"{at}{e}.{name}_proj.weight"] for e in range(EXPERTS)])
                          for name in ("gate", "up", "down"))
        for name, tensor in (("gate_up_proj", np.concatenate([gate, up], axis=1)), ("down_proj", down)):
            out[at + name] = np.ascontiguousarray(tensor.swapaxes(1, 2)) if turned else tensor
    return out


@pytest.mark.parametrize("mode", ["bridge", "raw"])
@pytest.mark.parametrize("layout", ["auto", "per-name", "packed-out-in", "packed-in-out"])
def test_experts_come_as_the_checkpoint_has_them(place, layout, mode):
    module, hf = mixture(11)
    if layout.startswith("packed"):
        hf = packed(hf, turned=layout == "packed-in-out")
    with place.publisher(module, MOE_CONFIG, expert_layout=layout, mode=mode) as publisher:
        assert publisher.publish().wait()["root"] == place.root(hf)


def test_an_unknown_expert_layout_and_mode_are_refused(place):
    module, _ = mixture(12)
    refused(place, module, errors.InvalidArgument, "expert_layout.*packed.*: expected one of auto, per-name",
            MOE_CONFIG, expert_layout="packed")
    refused(place, module, errors.InvalidArgument, "mode.*rules.*: expected one of bridge, raw", MOE_CONFIG,
            mode="rules")


def test_a_run_whose_experts_are_packed_refuses_another_layout(place):
    module, hf = mixture(13)
    with weightcast.Publisher(**place.where, run="policy", weights=packed(hf, turned=False),
                              baseline=place.path / "first") as first:
        first.publish(packed(hf, turned=False)).wait()
    with place.publisher(module, MOE_CONFIG) as publisher:  # told by the run
        assert publisher.publish().wait()["root"] == place.root(packed(hf, turned=False))
    with pytest.raises(errors.InvalidData, match="experts"):
        place.publisher(module, MOE_CONFIG, expert_layout="per-name")


# ---- what is taken, and under which name ----

def test_keys_are_chunk_and_local_name_and_buffers_that_are_weights_are_taken():
    module = Module()
    module.put("decoder.final_layernorm.weight", np.ones(2, np.float32))
    module.put("decoder.final_layernorm.bias", None)
    router = module.at("decoder.layers.0.mlp.router")
    router._buffers = {"expert_bias": np.ones(3, np.float32), "tokens": np.ones(3, np.float32),
                       "inv_freq": np.ones(3, np.float32), "none": None}
    router._non_persistent_buffers_set = {"tokens"}
    router._buffers["expert_bias"] = np.ones(3, np.float16)
    wide = np.ones(3, np.float32)
    router._maintain_float32_expert_bias = lambda: router._buffers.update(expert_bias=wide)
    publisher = megatron.Publisher.__new__(megatron.Publisher)
    publisher._chunks = [Module(module=module), module]
    held, same = publisher._held()
    names = ["decoder.final_layernorm.weight", "decoder.layers.0.mlp.router.expert_bias"]
    assert list(held) == [f"vp{chunk}/{name}" for chunk in (0, 1) for name in names]
    assert held["vp0/" + names[1]].dtype == np.float32
    assert same == {f"vp1/{name}": f"vp0/{name}" for name in names}


# ---- what is refused, by name ----

def refused(place, module, kind, match, config=None, **more):
    with pytest.raises(kind, match=match):
        place.publisher(module, config, **more)
    with pytest.raises((errors.NotFound, errors.Unavailable)):  # before run or catalog were made
        weightcast.versions(place.where["catalog"], "policy")


def test_an_unknown_a_missing_and_a_different_parameter_are_refused_before_the_run_is_made(place):
    module = whole(hf_tensors(9))
    module.put("decoder.layers.1.adapter.weight", np.ones(2, np.float32))
    del module.at("decoder.layers.2.mlp.linear_fc2")._parameters["weight"]
    module.put("decoder.final_layernorm.weight", np.ones(HIDDEN, np.float64))
    refused(place, module, errors.InvalidData,
            "rank 0 .*unknown: vp0/decoder.layers.1.adapter.weight; "
            "missing: vp0/decoder.layers.2.mlp.linear_fc2.weight; "
            r"different: vp0/decoder.final_layernorm.weight is F64 \[8\], expected F32 \[8\]")


def test_a_buffer_without_a_rule_is_refused(place):
    module = whole(hf_tensors(9))
    module.at("decoder.layers.0.mlp.router")._buffers["expert_bias"] = np.ones(3, np.float32)
    refused(place, module, errors.InvalidData, "unknown: vp0/.*router.expert_bias")


def test_a_parameter_that_changes_between_publishes_is_refused(place):
    module = whole(hf_tensors(9))
    with place.publisher(module) as publisher:
        publisher.publish(1).wait()
        module.put("decoder.final_layernorm.weight", np.ones(HIDDEN + 1, np.float32))
        with pytest.raises(errors.InvalidData, match=r"final_layernorm.weight is F32 \[9\]"):
            publisher.publish(2)
        module.put("decoder.final_layernorm.weight", np.ones(HIDDEN, np.float32))
        assert publisher.publish(2).wait()["state"] == "READY"


def test_settings_without_a_rule_are_refused(place):
    refused(place, whole(hf_tensors(9), num_moe_experts=8), errors.InvalidData, "num_moe_experts = 8")
    refused(place, whole(hf_tensors(9), pipeline_model_parallel_layout=object()), errors.InvalidData,
            'pipeline_model_parallel_layout: at 0: expected one of E t m L .*, found "object"')


def test_layers_and_coordinates_that_differ_are_refused(place):
    module = whole(hf_tensors(9))
    module.at("decoder.layers.1").layer_number = 3
    topology = {"world": 2, "rank": 1, "coords": {"tp": 1, "dp": 0}}
    refused(place, module, errors.InvalidData,
            "tp: recorded 1, computed 0.*dp: recorded 0, computed 1"
            ".*vp0/decoder.layers.1: recorded as layer 3, computed 2", topology=topology)


def test_a_config_of_another_layout_is_refused(place):
    module = whole(hf_tensors(9), virtual_pipeline_model_parallel_size=2)
    refused(place, module, errors.InvalidData,
            "virtual_pipeline_model_parallel_size: 2 in the model's config, 1 in fact")


def test_ranks_need_a_token(place, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(errors.InvalidArgument, match="token: a job of several ranks"):
        megatron.Publisher(whole(hf_tensors(9)), HF_CONFIG, run="policy", **place.where,
                           topology={"world": 2, "rank": 0})
    with pytest.raises(errors.InvalidArgument, match="rank 2 of a world of 2"):
        place.publisher(whole(hf_tensors(9)), topology={"world": 2, "rank": 2})
    with pytest.raises(errors.InvalidArgument, match="topology: unknown: ranks"):
        place.publisher(whole(hf_tensors(9)), topology={"world": 2, "rank": 0, "ranks": 2})
    with pytest.raises(errors.InvalidArgument, match="no module"):
        place.publisher([])


def test_parameters_that_wait_for_a_gather_are_refused(place):
    module = whole(hf_tensors(9))
    wrapped = Module(module=module, remove_forward_pre_hook_handles={module: 1})
    with place.publisher(wrapped, topology={"world": 2, "rank": 0}) as publisher:
        with pytest.raises(errors.Conflict, match="overlap_param_gather.*disable_forward_pre_hook"):
            publisher.publish(1)
        wrapped.remove_forward_pre_hook_handles = {}
        publisher.publish(1, wait=None).wait()
    with place.publisher(Module(module=module, remove_forward_pre_hook_handles={module: 1}),
                         run="alone") as publisher:  # nobody to gather from
        publisher.publish(1).wait()


def test_a_closed_publisher_says_so(place):
    publisher = place.publisher(whole(hf_tensors(9)))
    publisher.close()
    publisher.close()
    with pytest.raises(errors.Conflict, match="closed"):
        publisher.publish(1)


# ---- what Megatron says ----

SIZES = {"tensor_model_parallel": 2, "pipeline_model_parallel": 2, "context_parallel": 1,
         "expert_model_parallel": 1, "expert_tensor_parallel": 2, "data_parallel": 3}
RANKS = {"tensor_model_parallel": 1, "pipeline_model_parallel": 1, "context_parallel": 0,
         "expert_model_parallel": 0, "expert_tensor_parallel": 1, "data_parallel": 2,
         "expert_data_parallel": 2}


@pytest.fixture
def parallel_state(monkeypatch):
    """A rank of TP2 x PP2 x DP3, as megatron.core.parallel_state tells it."""
    state = types.ModuleType("megatron.core.parallel_state")
    state.model_parallel_is_initialized = lambda: True
    for name, size in SIZES.items():
        setattr(state, f"get_{name}_world_size", lambda size=size: size)
    for name, rank in RANKS.items():
        setattr(state, f"get_{name}_rank", lambda rank=rank: rank)
    distributed = types.ModuleType("torch.distributed")
    distributed.is_initialized = lambda: True
    distributed.get_world_size = lambda: 12
    distributed.get_rank = lambda: 11
    torch, top, core = (types.ModuleType(n) for n in ("torch", "megatron", "megatron.core"))
    torch.distributed, top.core, core.parallel_state = distributed, core, state
    for module in (torch, distributed, top, core, state):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return state


def test_the_topology_is_parallel_states(parallel_state):
    module = chunk(hf_tensors(1), [0, 1], tensor_model_parallel_size=2)
    module.share_embeddings_and_output_weights = False
    job = megatron._job([module, chunk(hf_tensors(1), [2])], {})
    assert (job["world"], job["rank"]) == (12, 11)
    expected = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2,
                "virtual_pipeline_model_parallel_size": 2, "context_parallel_size": 1,
                "expert_model_parallel_size": 1, "expert_tensor_parallel_size": 2,
                "num_layers": LAYERS, "padded_vocab_size": VOCAB, "init_method":
                "builtin_function_or_method", "params_dtype": "torch.float32",
                "share_embeddings_and_output_weights": False}
    assert expected.items() <= job["config"].items() and "_private" not in job["config"]
    assert json.loads(job["record"]) == {
        "coords": {"rank": 11, "tp": 1, "pp": 1, "dp": 2, "cp": 0, "ep": 0, "etp": 1, "edp": 2},
        "params": {"_layers": {"vp0/decoder.layers.0": 1, "vp0/decoder.layers.1": 2,
                               "vp1/decoder.layers.0": 3}}}
    job = megatron._job([module], {"config": {"padded_vocab_size": 99}, "coords": None, "rank": 3})
    assert (job["rank"], job["config"]["padded_vocab_size"], job["record"]) == (3, 99, "")


def test_a_state_that_does_not_fit_is_refused(parallel_state):
    module = whole(hf_tensors(1), tensor_model_parallel_size=4)
    with pytest.raises(errors.InvalidData, match="tensor_model_parallel_size: 4 in the model's config"):
        megatron._job([module], {})
    parallel_state.get_data_parallel_world_size = lambda: 2
    with pytest.raises(errors.InvalidData, match="parallel_state has 8 ranks of a world of 12"):
        megatron._job([module], {})
    parallel_state.model_parallel_is_initialized = lambda: False
    with pytest.raises(errors.Conflict, match="parallel_state is not initialized"):
        megatron._job([module], {})


def test_importing_pulls_in_neither_torch_nor_megatron():
    code = ("import sys, weightcast.megatron; "
            "print(sorted({'torch', 'megatron', 'megatron.core'} & set(sys.modules)))")
    path = os.pathsep.join(p for p in sys.path if p)
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": path})
    assert out.stdout.strip() == "[]"


# ---- torch's tensors ----

def to_torch(torch, module):
    for _, part in module.named_modules():
        for leaf, tensor in part._parameters.items():
            part._parameters[leaf] = torch.nn.Parameter(torch.tensor(tensor))
    return module


def test_torch_strided_tied_and_moved_parameters_are_published_as_they_are(place, torch):
    hf = hf_tensors(11, tied=True)
    module = to_torch(torch, whole(hf))
    embedding = module.find("embedding.word_embeddings.weight")
    module.put("output_layer.weight", torch.nn.Parameter(embedding.data.view(VOCAB, HIDDEN)))
    strided = module.find("decoder.layers.0.mlp.linear_fc2.weight")
    strided.data = strided.data.t().contiguous().t()
    assert not strided.is_contiguous()
    with place.publisher(module, {**HF_CONFIG, "tie_word_embeddings": True}) as publisher:
        assert publisher.publish().wait()["root"] == place.root(hf)
        copy = publisher._staging._copies["vp0/decoder.layers.0.mlp.linear_fc2.weight"]
        for name in ("decoder.layers.0.mlp.linear_fc2.weight", "decoder.final_layernorm.weight"):
            moved = module.find(name)
            moved.data = (moved.data * 2).as_strided(moved.shape, moved.stride())
        hf["model.layers.0.mlp.down_proj.weight"] *= 2
        hf["model.norm.weight"] = hf["model.norm.weight"] * 2
        assert publisher.publish().wait()["root"] == place.root(hf)
        assert publisher._staging._copies["vp0/decoder.layers.0.mlp.linear_fc2.weight"] is copy


def test_torch_modules_are_walked_as_state_dict_walks_them(torch):
    class Router(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, 3))
            self.register_parameter("bias", None)
            self.register_buffer("expert_bias", torch.ones(2))
            self.register_buffer("tokens", torch.ones(2), persistent=False)

        def get_extra_state(self):
            raise AssertionError("never asked for")

    model = torch.nn.Sequential(Router(), torch.nn.Linear(2, 2))
    model.add_module("again", model[1])
    wrapped = torch.nn.Module()
    wrapped.module = model
    publisher = megatron.Publisher.__new__(megatron.Publisher)
    publisher._chunks = [wrapped]
    held, same = publisher._held()
    assert list(held) == [f"vp0/{name}" for name in (
        "0.weight", "0.expert_bias", "1.weight", "1.bias", "again.weight", "again.bias")]
    assert same == {"vp0/again.weight": "vp0/1.weight", "vp0/again.bias": "vp0/1.bias"}


@pytest.mark.parametrize("how", ["meta", "emptied", "cut short", "sparse", "subclass"])
def test_torch_values_that_are_not_there_are_refused_by_name(place, torch, how):
    module = to_torch(torch, whole(hf_tensors(12)))
    name = "decoder.layers.3.mlp.linear_fc1.weight"
    with place.publisher(module) as publisher:
        publisher.publish(1).wait()
        tensor = module.find(name)
        kept = tensor.detach().clone()
        if how == "meta":
            module.put(name, torch.nn.Parameter(tensor.to("meta")))
        elif how == "emptied":
            tensor.untyped_storage().resize_(0)
        elif how == "cut short":
            tensor.untyped_storage().resize_(8)
        elif how == "sparse":
            module.put(name, tensor.detach().to_sparse())
        else:
            module.put(name, kept.as_subclass(type("Quantized", (torch.Tensor,), {})))
        expected = {"meta": "is on the meta device", "emptied": "has a storage of 0 bytes",
                    "cut short": "has a storage of 8 bytes", "sparse": "has layout torch.sparse",
                    "subclass": "is a Quantized, no plain tensor"}[how]
        with pytest.raises(errors.InvalidData, match=f"vp0/{name} {expected}"):
            publisher.publish(2)
        module.put(name, torch.nn.Parameter(kept))
        assert publisher.publish(2).wait()["changed_elements"] == 0
