"""Megatron shards through the real binary: spellings, expert layouts, plan and trace."""

import json
import struct

import pytest

from cli import DATA, MEGATRON, USAGE, Bench, Failed, export_of, run
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
