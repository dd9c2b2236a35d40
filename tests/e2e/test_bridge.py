"""Megatron shards through the real binary: spellings, expert layouts, plan and trace."""

import json
import math
import shutil
import struct
import subprocess

import pytest
from safetensors import safe_open

from cli import BINARY, DATA, MEGATRON, USAGE, Bench, Failed, export_of, run
from models import bits


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def failing(code, *words):
    with pytest.raises(Failed) as failed:
        run(*words)
    assert failed.value.code == code, failed.value
    return failed.value.message


def respelled(source, target, old, new):
    """A copy of a set of shards in which `old` in parameters' names is `new`."""
    target.mkdir()
    (target / "topology.json").write_bytes((source / "topology.json").read_bytes())
    for file in source.glob("rank*.safetensors"):
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = {name.replace(old, new): place for name, place in json.loads(data[8:8 + size]).items()}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (target / file.name).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    return target


# ---- prediction modules as older Megatron spells them ----

OLDER = ("mtp_model_layer", "transformer_layer")


@pytest.mark.parametrize("topology", ["tp2", "pp2"])
def test_a_shard_tells_how_prediction_modules_are_spelled(bench, topology):
    family = MEGATRON / "deepseek_v3_mtp"
    shards = respelled(family / topology, bench.path / "older", *OLDER)
    config = family / "hf_source" / "config.json"
    run("convert", "--shards", shards, "--config", config, "--out", bench.path / "out")
    assert bits(bench.path / "out") == bits(export_of("deepseek_v3_mtp"))
    # The process for all ranks finds the rank that holds one, and tells the others.
    assert bench.publish("--shards", shards, "--config", config)["state"] == "READY"


def test_topology_json_says_the_spelling_and_counts(bench):
    family = MEGATRON / "deepseek_v3_mtp"
    shards = respelled(family / "pp2", bench.path / "older", *OLDER)
    topology = json.loads((shards / "topology.json").read_text())
    words = ["convert", "--shards", shards, "--config", family / "hf_source" / "config.json", "--out"]
    (shards / "topology.json").write_text(json.dumps({**topology, "mtp_inner": "transformer_layer"}))
    run(*words, bench.path / "out")
    assert bits(bench.path / "out") == bits(export_of("deepseek_v3_mtp"))
    (shards / "topology.json").write_text(json.dumps({**topology, "mtp_inner": "mtp_model_layer"}))
    message = failing(DATA, *words, bench.path / "other")
    assert "transformer_layer" in message and "mtp_model_layer" in message


# ---- vision towers that are the checkpoint's own modules ----


def keeping_tower(source, target, tower, export):
    """A copy of a set of shards whose ranks with a tower have that of the export, whole, below `tower`."""
    target.mkdir()
    (target / "topology.json").write_bytes((source / "topology.json").read_bytes())
    kept = {f"vp0/{tower}.{name.removeprefix('model.visual.')}": tensor
            for name, tensor in bits(export).items() if name.startswith("model.visual.")}
    for file in source.glob("rank*.safetensors"):
        held = bits(file)
        rest = {name: tensor for name, tensor in held.items() if "/vision_model." not in name}
        header, data = {}, b""
        for name, (dtype, shape, part) in (rest | kept if len(rest) < len(held) else held).items():
            header[name] = {"dtype": dtype, "shape": shape,
                            "data_offsets": [len(data), len(data) + len(part)]}
            data += part
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (target / file.name).write_bytes(struct.pack("<Q", len(text)) + text + data)
    return target


@pytest.mark.parametrize("tower", ["vision_model", "model.visual"])
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe"])
def test_a_shard_tells_whose_modules_a_tower_is_made_of(bench, family, tower):
    source, export = MEGATRON / family, export_of(family)
    config = source / "hf_source" / "config.json"
    for topology in ("tp2", "pp2"):
        shards = keeping_tower(source / topology, bench.path / topology, tower, export)
        for mode in ("bridge", "raw"):
            out = bench.path / f"{topology}-{mode}"
            run("convert", "--shards", shards, "--config", config, "--mode", mode, "--out", out)
            assert bits(out) == bits(export)
    # The process for all ranks sees it on the first stage, and tells the second.
    assert bench.publish("--shards", bench.path / "pp2", "--config", config)["state"] == "READY"
    words = ["plan", "--shards", bench.path / "pp2", "--config", config]
    assert run(*words)["plan_hash"] != run(*words, "--tower", tower)["plan_hash"]
    assert "--tower" in failing(USAGE, *words, "--tower", "visual")
    topology = json.loads((bench.path / "pp2" / "topology.json").read_text())
    (bench.path / "pp2" / "topology.json").write_text(json.dumps({**topology, "tower": "megatron"}))
    message = failing(DATA, "convert", *words[1:], "--out", bench.path / "other")
    assert f"unknown: vp0/{tower}.blocks.0" in message


# ---- experts: a tensor for each, or one for all ----


def unpacked(tensors, transposed):
    """Per-name expert tensors of packed ones."""
    out = {}
    for name, (dtype, shape, data) in tensors.items():
        if ".mlp.experts." not in name:
            out[name] = (dtype, shape, data)
            continue
        experts, rows, cols = shape
        one = len(data) // experts
        unit = one // (rows * cols)
        for e in range(experts):
            part = data[e * one:(e + 1) * one]
            if transposed:
                part = b"".join(part[(i * cols + j) * unit:(i * cols + j + 1) * unit]
                                for j in range(cols) for i in range(rows))
            high, low = (cols, rows) if transposed else (rows, cols)
            base = name.replace("experts.", f"experts.{e}.")
            if name.endswith("gate_up_proj"):
                for k, half in enumerate(("gate_proj", "up_proj")):
                    out[base.replace("gate_up_proj", half + ".weight")] = (
                        dtype, (high // 2, low), part[k * one // 2:(k + 1) * one // 2])
            else:
                out[base + ".weight"] = (dtype, (high, low), part)
    return out


MOE = MEGATRON / "qwen3_moe" / "tp2"


def test_experts_leave_in_each_layout_that_is_asked_for(tmp_path):
    per_name = bits(export_of("qwen3_moe"))
    for layout, transposed in (("per-name", False), ("packed-out-in", False), ("packed-in-out", True)):
        run("convert", "--shards", MOE, "--expert-layout", layout, "--out", tmp_path / layout)
        found = bits(tmp_path / layout)
        assert any(name.endswith("gate_up_proj") for name in found) == (layout != "per-name")
        assert unpacked(found, transposed) == per_name if layout != "per-name" else found == per_name


def test_a_layout_that_the_reference_contradicts_names_both(tmp_path):
    for layout in ("per-name", "packed-out-in"):
        run("convert", "--shards", MOE, "--expert-layout", layout, "--out", tmp_path / layout)
    words = ["convert", "--shards", MOE, "--out", tmp_path / "out", "--reference"]
    message = failing(DATA, *words, tmp_path / "per-name", "--expert-layout", "packed-out-in")
    assert "packed-out-in is asked for, the receiver has per-name ones" in message
    message = failing(DATA, *words, tmp_path / "packed-out-in", "--expert-layout", "per-name")
    assert "per-name is asked for, the receiver has packed ones" in message
    message = failing(DATA, *words, tmp_path / "packed-out-in", "--expert-layout", "packed-in-out")
    assert "experts packed-in-out as asked for" in message and "gate_up_proj" in message
    run(*words, tmp_path / "packed-out-in")  # auto: as the reference
    assert bits(tmp_path / "out") == bits(tmp_path / "packed-out-in")


def test_a_family_without_a_choice_refuses_one(tmp_path):
    message = failing(USAGE, "plan", "--shards", MEGATRON / "qwen3" / "tp2", "--expert-layout", "per-name")
    assert "qwen3 has no experts" in message
    assert "--expert-layout" in failing(USAGE, "plan", "--shards", MOE, "--expert-layout", "packed")


def test_a_published_layout_reaches_every_rank(bench):
    published = bench.publish("--shards", MOE, "--expert-layout", "packed-in-out", "--full")
    assert published["state"] == "READY"
    bench.pull("image")
    run("convert", "--shards", MOE, "--expert-layout", "packed-in-out", "--out", bench.path / "out")
    assert bits(bench.path / "image") == bits(bench.path / "out")
    # The run has packed ones; which way they lie is told by the option or by config.json, never by shapes.
    with pytest.raises(Failed) as failed:
        bench.publish("--shards", MOE)
    assert failed.value.code == DATA and "different: " in failed.value.message
    bench.publish("--shards", MOE, "--expert-layout", "packed-in-out")


# ---- what a set lacks or contradicts ----


def copied(bench, family="qwen3", topology="tp2"):
    """Shards and their config in a place of the test's own."""
    shutil.copytree(MEGATRON / family / topology, bench.path / "shards")
    shutil.copytree(MEGATRON / family / "hf_source", bench.path / "hf_source")
    return bench.path / "shards"


def changed(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_every_rank_file_that_is_missing_is_named(bench):
    shards = copied(bench)
    for rank in range(2):
        (shards / f"rank{rank}.safetensors").unlink()
    message = failing(DATA, "convert", "--shards", shards, "--out", bench.path / "out")
    assert "rank0.safetensors: is missing" in message and "rank1.safetensors: is missing" in message
    (shards / "topology.json").unlink()
    assert "topology.json: is missing" in failing(DATA, "plan", "--shards", shards)
    assert not (bench.path / "out").exists()


def test_a_config_that_says_the_weights_are_quantized_does_not_go_with_plain_ones(bench):
    shards = copied(bench)
    changed(bench.path / "hf_source" / "config.json",
            lambda config: config.update(quantization_config={"quant_method": "fp8"}))
    message = failing(DATA, "convert", "--shards", shards, "--out", bench.path / "out")
    assert "quantization_config" in message and "BF16" in message
    with pytest.raises(Failed, match="quantization_config"):
        bench.publish("--shards", shards)
    run("plan", "--shards", shards)  # the plan is a good one


def test_a_pattern_to_ignore_covers_something_and_nothing_that_is_sent(bench):
    words = ["convert", "--shards", MEGATRON / "qwen3" / "tp2", "--out", bench.path / "out", "--ignore"]
    assert "is sent" in failing(USAGE, *words, "*linear_qkv.weight")
    assert "no shard has a key to --ignore" in failing(USAGE, *words, "*.adapter.*")


def test_a_layers_record_of_another_type_is_refused(bench):
    shards = copied(bench)
    changed(shards / "rank1.json", lambda record: record["params"].update(_layers=[1]))
    assert "_layers" in failing(DATA, "convert", "--shards", shards, "--out", bench.path / "out")


def test_shards_and_a_layout_in_numbers_contradict_each_other():
    shards = MEGATRON / "qwen3" / "tp2"
    message = failing(USAGE, "plan", "--shards", shards, "--tp", 4, "--spec", "local")
    assert "--tp" in message and "--spec" in message
    assert "stands alone" in failing(USAGE, "plan", "--families", "--shards", shards)
    assert run("plan", "--shards", shards, "--vocab-rows", 400)["plan_hash"]  # what neither says


@pytest.mark.parametrize("words", [["--ep", 0], ["--vpp", 0], ["--etp", 0], ["--pipeline-layout", "Ex|L"],
                                   ["--ep", 2147483648], ["--vocab-rows", 1 << 40]])
def test_a_layout_in_numbers_that_is_none_is_a_wrong_call(words):
    config = MEGATRON / "qwen3_moe" / "hf_source" / "config.json"
    assert str(words[1]) in failing(USAGE, "plan", "--config", config, *words) or "--pipeline" in words[0]


def test_control_characters_of_names_do_not_reach_the_terminal(bench):
    shards = respelled(MEGATRON / "qwen3" / "tp2", bench.path / "odd", "linear_qkv", "linear\0_\x1b[2Jqkv")
    done = subprocess.run([BINARY, "convert", "--shards", shards, "--config",
                           MEGATRON / "qwen3" / "hf_source" / "config.json", "--out", bench.path / "out"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == DATA and "\\x00_\\x1b[2Jqkv" in done.stderr
    assert "missing: vp0" in done.stderr and "\x1b" not in done.stderr


# ---- plan and trace ----


def test_plan_says_who_sends_what_and_that_all_is_covered():
    plan = run("plan", "--shards", MEGATRON / "deepseek_v3_mtp" / "pp2")
    assert plan["coverage"] == 1.0 and plan["world"] == 2 and len(plan["plan_hash"]) == 64
    assert sum(rank["bytes"] for rank in plan["ranks"]) == plan["bytes"]
    assert all(rank["slices"] > 0 and rank["params"] > 0 for rank in plan["ranks"])
    assert plan["replicas"] == 1  # the embedding, where further tokens are predicted
    assert "*._extra_state*" in plan["ignored"]


def test_plan_of_numbers_is_that_of_the_recorded_layout():
    for family, topology, words in (
            ("qwen3_moe", "tp2ep2etp1", ["--tp", 2, "--ep", 2, "--etp", 1]),
            ("deepseek_v3_mtp", "pp2", ["--pp", 2, "--mtp-layers", 1, "--pipeline-layout", "Ett|ttmL"])):
        config = MEGATRON / family / "hf_source" / "config.json"
        numbers = run("plan", "--config", config, *words)
        recorded = run("plan", "--shards", MEGATRON / family / topology)
        assert numbers["plan_hash"] == recorded["plan_hash"]


def test_the_families_are_listed():
    families = {row["family"]: row for row in run("plan", "--families")["families"]}
    assert families["qwen3_moe"]["architectures"] == ["Qwen3MoeForCausalLM"]
    assert families["qwen3_moe"]["experts"][0] == "per-name"
    assert "mtp_num_layers" in families["deepseek_v3"]["settings"]


@pytest.mark.parametrize("family,topology", [("qwen3", "tp2pp2"), ("qwen3_moe", "tp2ep2etp1"),
                                             ("gpt_oss", "tp2etp1"), ("qwen3_next", "tp2")])
def test_trace_leads_to_the_weight_and_back(family, topology):
    shards = MEGATRON / family / topology
    tensors = bits(export_of(family))
    chosen = sorted(tensors)[:: max(1, len(tensors) // 12)]
    for name in chosen:
        dtype, shape, data = tensors[name]
        index = [size * 2 // 3 for size in shape]
        flat = 0
        for i, size in zip(index, shape):
            flat = flat * size + i
        element = f"{name}[{','.join(map(str, index))}]"
        there = run("trace", element, "--shards", shards)
        unit = len(data) // max(1, math.prod(shape))
        if name.endswith("linear_attn.norm.weight"):
            assert there["computed"] == "one is added"
        else:
            assert there["bytes"] == data[flat * unit:(flat + 1) * unit].hex(), element
        place = [there["param_row"], there["param_col"]]
        spec = there["param_spec"]
        sizes = [int(n) for n in spec[spec.index("[") + 1:spec.index("]")].split(",")]
        at = place if len(sizes) == 2 else place[:1] if len(sizes) == 1 else None
        if at is None:  # a kernel's middle dimension is one
            at = [place[0], 0, place[1]]
        for held in there["replicas"] or [{"rank": there["rank"], "param": there["param"]}]:
            back = run("trace", f"{held['param']}[{','.join(map(str, at))}]", "--rank", held["rank"],
                       "--shards", shards)
            assert back["element"] == element and back["rank"] == there["rank"]


def test_trace_of_what_is_not_there():
    shards = MEGATRON / "qwen3" / "tp2pad"
    words = ["--shards", shards, "--rank", 1]
    last = run("trace", "model.embed_tokens.weight[199,0]", "--shards", shards)
    key = last["param"]
    assert "not sent" in failing(DATA, "trace", f"{key}[{last['param_row'] + 1},0]", *words)
    assert "no such element" in failing(USAGE, "trace", f"{key}[100000,0]", *words)
    assert "no parameter" in failing(DATA, "trace", "vp0/nothing[0]", *words)
    assert "4 ranks" in failing(USAGE, "trace", f"{key}[0,0]", "--shards", MEGATRON / "qwen3" / "tp2pp2",
                                "--rank", 4)


def test_the_names_that_a_receiver_lists_are_compared(tmp_path):
    words = ["plan", "--shards", MOE]
    names = tmp_path / "names"
    expected = sorted(safe_open(MOE.parent / "hf_export.safetensors", "numpy").keys())
    names.write_text("\n".join(expected))
    assert run(*words, "--names", names)["tensors"] == len(expected)
    names.write_text(json.dumps([*expected[1:], "model.visual.a"]))
    message = failing(DATA, *words, "--names", names)
    assert "missing: model.visual.a" in message and f"unexpected: {expected[0]}" in message
    names.write_text(json.dumps([*expected, "model.visual.a"]))
    assert run(*words, "--names", names, "--carry", "model.visual.*")["carried"] == ["model.visual.a"]
    names.write_text("[]")
    assert str(names) in failing(DATA, *words, "--names", names)
