"""Shards of real Megatron models convert to Megatron-Bridge's own export of them, bit for bit.

The sets are made anew by ../sets.py, in the Python 3.12 that tools/megatron/setup makes; they stay in
build/megatron-sets. WEIGHTCAST_MEGATRON_SETS names a folder of sets made before instead.
"""

import contextlib
import fnmatch
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))
sys.path.insert(0, str(ROOT / "tests/megatron"))

import cli  # noqa: E402
import models  # noqa: E402
import sets_list  # noqa: E402

PYTHON = ROOT / "build/megatron-venv/bin/python"


@pytest.fixture(scope="module")
def root():
    if made_before := os.environ.get("WEIGHTCAST_MEGATRON_SETS"):
        return pathlib.Path(made_before)
    if not PYTHON.exists():
        pytest.skip("no build/megatron-venv: tools/megatron/setup makes it where a python3.12 is")
    folder = ROOT / "build/megatron-sets"
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run([PYTHON, ROOT / "tests/megatron/sets.py", folder], check=False,
                          stdout=sys.stderr, stderr=subprocess.PIPE, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


def first_difference(mine, theirs):
    """Index of the first element in which two tensors' bytes differ."""
    dtype, shape, data = mine
    at = next(i for i, (a, b) in enumerate(zip(data, theirs[2])) if a != b)
    flat = at // (len(data) // math.prod(shape))
    index = []
    for size in reversed(shape):
        flat, i = divmod(flat, size)
        index.insert(0, i)
    return index


def differences(shards, ours, oracle, reference):
    """Texts that name tensor, rank and parameter."""
    texts = [f"{name}: not in the export" for name in sorted(ours.keys() - oracle.keys())]
    texts += [f"{name}: only in the export" for name in sorted(oracle.keys() - ours.keys())]
    for name in sorted(ours.keys() & oracle.keys()):
        mine, theirs = ours[name], oracle[name]
        if mine == theirs:
            continue
        if mine[:2] != theirs[:2]:
            texts.append(f"{name}: {mine[:2]}, in the export {theirs[:2]}")
            continue
        element = f"{name}{first_difference(mine, theirs)}".replace(" ", "")
        place = cli.run("trace", element, "--shards", shards, *reference)
        texts.append(f"{element}: other bits than the export; rank {place['rank']} {place['param']}")
    return texts


def right_export(shards, name):
    """What Megatron-Bridge exported, without what it is known to do wrong: it leaves padded rows of the
    vocabulary in, and sets_list.py names tensors that are as they were imported instead."""
    tensors = models.bits(shards / "hf_export.safetensors")
    source = shards.parent / "hf_source"
    if wrong := sets_list.EXPORT_WRONG.get(name):
        tensors |= {tensor: bits for tensor, bits in models.bits(source).items()
                    if fnmatch.fnmatchcase(tensor, wrong)}
    config = json.loads((source / "config.json").read_text())
    rows = config.get("text_config", config)["vocab_size"]
    for tensor, (dtype, shape, data) in tensors.items():
        if tensor.endswith(("embed_tokens.weight", "lm_head.weight")) and shape[0] > rows:
            tensors[tensor] = (dtype, (rows, *shape[1:]), data[:len(data) // shape[0] * rows])
    return tensors


@pytest.mark.parametrize("name", sets_list.SETS)
def test_shards_convert_to_megatron_bridges_own_export(root, name, tmp_path):
    shards = root / name
    error = shards / "error.txt"
    assert not error.exists(), error.read_text()
    by_reference = name.startswith(sets_list.BY_REFERENCE)
    reference = ["--reference", shards.parent / "hf_source"] if by_reference else []
    plans = {mode: cli.run("convert", "--shards", shards, "--out", tmp_path / mode, "--mode", mode,
                           *reference)["plan_hash"] for mode in ("bridge", "raw")}
    assert plans["bridge"] == plans["raw"]
    different = differences(shards, models.bits(tmp_path / "bridge"), right_export(shards, name), reference)
    assert not different, "\n".join(different[:20])


@pytest.mark.parametrize("name", sets_list.REFUSED)
def test_what_megatron_cannot_do_it_still_cannot(root, name):
    error = root / name / "error.txt"
    assert error.exists(), "it can now: move it to the sets"
    assert sets_list.REFUSED[name] in error.read_text()


@contextlib.contextmanager
def one_bit_flipped(path, name):
    with open(path, "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        at = 8 + size + json.loads(file.read(size))[name]["data_offsets"][0]

        def flip():
            file.seek(at)
            bit = bytes([file.read(1)[0] ^ 1])
            file.seek(at)
            file.write(bit)
            file.flush()

        flip()
        try:
            yield
        finally:
            flip()


EMBEDDING = "embedding.word_embeddings.weight"
EXPERT = "decoder.layers.1.mlp.experts.linear_fc1.weight2"
NORM = "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"
PLANTED = {  # a set: rank and parameter with another bit, and what it should be like
    "of data ranks": ("llama/tp2cp2dp2", 5, "vp0/decoder.layers.3.mlp.linear_fc2.weight", 1, ""),
    "of context ranks": ("llama/tp2cp2dp2", 2, "vp0/output_layer.weight", 0, ""),
    "of tensor ranks": ("llama/tp4pp2", 7, f"vp0/{NORM}", 4, ""),
    "of expert data ranks": ("qwen3_moe/tp2pp2ep2dp2", 3, f"vp0/{EXPERT}", 1, ""),
    "of a tied weight": ("qwen3_tied/tp2pp4", 7, "vp0/output_layer.weight", 1, f"vp0/{EMBEDDING}"),
    "of what predicts further": ("deepseek_v3_mtp/pp2vpp2ep2dp2", 2, f"vp1/{EMBEDDING}", 0,
                                 f"vp0/{EMBEDDING}"),
}


@pytest.mark.parametrize("copy", PLANTED)
def test_a_different_replica_is_named(root, copy, tmp_path):
    name, rank, key, like_rank, like = PLANTED[copy]
    with one_bit_flipped(root / name / f"rank{rank}.safetensors", key), \
            pytest.raises(cli.Failed) as failed:
        cli.run("convert", "--shards", root / name, "--out", tmp_path / "hf")
    assert failed.value.code == cli.DATA
    assert (f"rank {rank} {key} differs from its replica rank {like_rank} {like or key}"
            in failed.value.message)
    assert not (tmp_path / "hf").exists()
