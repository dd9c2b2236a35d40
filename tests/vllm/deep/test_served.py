"""Servers that CI has no minutes for: experts, and a start straight from a version."""

import json
import shutil

import pytest

pytest.importorskip("vllm")

from engines import run_of  # noqa: E402
from servers import BACKEND, Server, tokens, verified, weightcast, words  # noqa: E402

import models  # noqa: E402


def test_experts(tmp_path):
    run, image = run_of("qwen3_moe"), tmp_path / "image"
    expected = {number: run.tokens(number) for number in (1, 2, 3)}
    with Server(run.checkpoint(0), tmp_path / "log", *BACKEND) as server:
        for number in (1, 2, 3, 2, 1):
            if number == 3:
                shutil.rmtree(image)  # no journal leads there: everything anew
            weightcast(*words([server.url], run, number, image))
            assert tokens(server) == expected[number]
            counts = verified(server, run)
            assert sum(counts[how] for how in ("live", "repacked", "probed")) == len(models.shapes(run.kind))
            assert counts["repacked"] >= 3 * models.EXPERTS * models.LAYERS
        assert tokens(server) == expected[1]


def test_a_start_from_a_version(tmp_path):
    run, image = run_of("qwen3"), tmp_path / "image"
    expected = {number: run.tokens(number) for number in (2, 3)}
    extra = json.dumps(run.settings(image, version=run.uids[3]))
    with Server(run.checkpoint(0), tmp_path / "log", *BACKEND, "--load-format", "weightcast",
                "--model-loader-extra-config", extra) as server:
        assert tokens(server) == expected[3]
        verified(server, run)
        told = weightcast("round", "--engines", server.url, "--catalog", run.catalog, "--run", "policy",
                          "--version", 2, "--no-init")
        assert told["engines"][0]["state"] == "serving"
        assert tokens(server) == expected[2]
