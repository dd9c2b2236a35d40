"""Versions published from live Megatron-Core modules have the root of Megatron-Bridge's own export.

The modules need a Python 3.12 with Megatron, which tools/megatron/setup makes; live.py runs there and
this file looks at what it found.
"""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build/megatron-venv/bin/python"
BUILD = ROOT / "build-megatron"

CASES = [f"{model}/{topology}" for model in ("llama", "qwen3")
         for topology in ("tp1", "tp2", "pp2", "tp2pp2", "vpp2", "tp2dp2")]
CASES += ["qwen2/tp2pp2", "qwen2-tied/tp2", "qwen2-tied/vpp2", "llama-tied/pp2", "qwen3-tied/tp2pp2"]


def need_megatron():
    if not PYTHON.exists():
        pytest.skip("no build/megatron-venv: tools/megatron/setup makes it where a python3.12 is")
    if not list(BUILD.glob("python/weightcast/_core.*so")):
        pytest.skip("build-megatron holds no weightcast for Python 3.12: run tools/megatron/setup")


def environment():
    return {**os.environ, "PYTHONPATH": str(BUILD / "python"), "WEIGHTCAST_BUILD": str(BUILD)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{case: what live.py found}; all run in one process, since importing takes longest."""
    need_megatron()
    folder = tmp_path_factory.mktemp("live")
    done = subprocess.run([PYTHON, ROOT / "tests/megatron/live.py", folder, *CASES], check=False,
                          capture_output=True, text=True, env=environment(), timeout=1500)
    assert done.returncode == 0, done.stderr[-5000:]
    return {case: json.loads((folder / case / "result.json").read_text()) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_roots_are_those_of_megatron_bridges_own_export(results, case):
    result = results[case]
    assert "error" not in result, result["error"]
    ranks = result["ranks"]
    first, second = ranks[0]["exports"]
    assert first != second
    assert [rank["roots"] for rank in ranks] == [[first, second]] * len(ranks)
    assert ranks[0]["image"] == second  # and an image pulled from the store holds it


@pytest.mark.parametrize("case", CASES)
def test_no_torch_collective_is_called(results, case):
    ranks = results[case].get("ranks", [])
    assert ranks and [rank["ours"] for rank in ranks] == [{}] * len(ranks)
    if len(ranks) > 1:  # the count counts: Megatron-Bridge cannot do without
        assert all(sum(rank["theirs"].values()) > 0 for rank in ranks)


@pytest.mark.parametrize("case", CASES)
def test_lazily_gathered_parameters_are_refused_until_they_are_there(results, case):
    waits = [rank["waits"] for rank in results[case].get("ranks", [])]
    assert waits  # over replicas, modules are in Megatron's own DistributedDataParallel
    for said in waits:
        assert said.startswith("overlap_param_gather: ") if "dp2" in case else said == ""


def test_a_change_of_a_fifth_goes_out_as_a_delta(results):
    metrics = results["qwen3/tp2pp2"]["ranks"][3]["metrics"]
    assert metrics["weightcast/version"] == 2
    assert 0.1 < metrics["weightcast/density"] < 0.3


def test_what_needs_torch_tensors_passes_there():
    """The tests of tests/python that take torch."""
    need_megatron()
    done = subprocess.run([PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                           ROOT / "tests/python/test_megatron.py"], check=False, capture_output=True,
                          text=True, env=environment(), timeout=300)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-5000:]
