"""Two workers, each with its part: their digests sum to the version's."""

import os

import pytest

pytest.importorskip("vllm")

from engines import Engine, run_of  # noqa: E402

import weightcast  # noqa: E402


def summed(digests):
    return f"{sum(int(digest, 16) for digest in digests) % (2**127 - 1):032x}"


@pytest.mark.skipif(os.cpu_count() < 2, reason="a CPU for each worker")
def test_two_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    path = os.path.dirname(os.path.dirname(weightcast.__file__))  # workers are processes of their own
    monkeypatch.setenv("PYTHONPATH", path)
    run = run_of("qwen3")
    two = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    with Engine(run.checkpoint(2), follows=False, **two) as engine:
        expected = engine.tokens()
    with Engine(run.checkpoint(0), **two) as engine:
        engine.init(**run.settings(tmp_path / "image", keep_canonical=True))
        for number in (1, 2):
            engine.update(run.uids[number])
            proofs = engine.rpc_all("prove", scope="all")
            assert [proof["version"] for proof in proofs] == [run.uids[number]] * 2
            with weightcast.Image(tmp_path / "image") as image:
                for name, digest in zip(image.names(), image.digests):
                    parts = {row[4]: row for proof in proofs for row in proof["tensors"] if row[0] == name}
                    assert {row[1] for row in parts.values()} == {"live"}
                    assert sum(row[3] for row in parts.values()) == image.units(name)
                    assert summed(row[2] for row in parts.values()) == digest, name
        assert engine.tokens() == expected
