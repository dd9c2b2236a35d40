"""Two workers, each with its part: their digests sum to the version's."""

import os

import pytest

pytest.importorskip("vllm")

from engines import Engine, run_of  # noqa: E402
from servers import BACKEND, Server, ask, post, tokens, verified, weightcast as command, words  # noqa: E402

import weightcast  # noqa: E402


def summed(digests):
    return f"{sum(int(digest, 16) for digest in digests) % (2**127 - 1):032x}"


pytestmark = pytest.mark.skipif(os.cpu_count() < 2, reason="a CPU for each worker")
TWO = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


@pytest.fixture(scope="module", autouse=True)
def places():
    package = os.path.dirname(os.path.dirname(weightcast.__file__))
    here = os.path.dirname(__file__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
        patch.setenv("PYTHONPATH", f"{package}{os.pathsep}{here}")  # workers are processes of their own
        yield


@pytest.fixture(scope="module")
def expected(places):
    """Of a fresh engine with two workers at version 2."""
    with Engine(run_of("qwen3").checkpoint(2), follows=False, **TWO) as engine:
        return engine.tokens()


def check_sums(proofs, run, number, image):
    """Digests of both workers' units sum to the version's; what both hold whole counts once."""
    assert [proof["version"] for proof in proofs] == [run.uids[number]] * 2
    with weightcast.Image(image) as held:
        for name, digest in zip(held.names(), held.digests):
            rows = [row for proof in proofs for row in proof["tensors"] if row[0] == name]
            assert len(rows) == 2 and {row[1] for row in rows} == {"live"}
            parts = {row[4]: row for row in rows}
            assert len(parts) == (1 if "norm" in name else 2), name
            assert sum(row[3] for row in parts.values()) == held.units(name)
            assert summed(row[2] for row in parts.values()) == digest, name


def test_two_workers(expected, tmp_path):
    run = run_of("qwen3")
    with Engine(run.checkpoint(0), **TWO) as engine:
        engine.init(**run.settings(tmp_path / "image", keep_canonical=True))
        for number in (1, 2):
            engine.update(run.uids[number])
            check_sums(engine.rpc_all("prove", scope="all"), run, number, tmp_path / "image")
        assert engine.tokens() == expected


def test_two_workers_start_at_one_version(expected, tmp_path):
    """Though "latest" is another one when the second looks; then a delta."""
    run, image = run_of("qwen3"), tmp_path / "image"
    settings = run.settings(image, keep_canonical=True, version="latest")
    with Engine(run.checkpoint(0), load_format="weightcast", model_loader_extra_config=settings,
                worker_extension_cls="planted_latest.Extension", **TWO) as engine:
        check_sums(engine.rpc_all("prove", scope="all"), run, 1, image)
        assert [s["state"] for s in engine.rpc_all("status")] == ["serving"] * 2
        engine.update(run.uids[2])
        check_sums(engine.rpc_all("prove", scope="all"), run, 2, image)
        assert engine.tokens() == expected


def test_two_workers_of_a_server(expected, tmp_path):
    run, image = run_of("qwen3"), tmp_path / "image"
    with Server(run.checkpoint(0), tmp_path / "log", *BACKEND, "--tensor-parallel-size", "2") as server:
        for number in (1, 2, 3, 2):  # a full one, deltas, and back
            command(*words([server.url], run, number, image, "--keep-canonical"))
            with weightcast.Image(image) as held:
                assert verified(server, run)["live"] == len(held.names())
            check_sums(ask(server, "prove", scope="all"), run, number, image)
            if number == 2:
                assert tokens(server) == expected


def test_a_call_that_two_workers_refuse_shifts_no_answer(expected, tmp_path):
    """vLLM would take the second worker's refusal for its answer to the next call."""
    run, image = run_of("qwen3"), tmp_path / "image"
    with Server(run.checkpoint(0), tmp_path / "log", *BACKEND, "--tensor-parallel-size", "2") as server:
        command(*words([server.url], run, 1, image, "--keep-canonical"))
        for op, more in (("prepare", {"version": ""}), ("nonsense", {})):
            answers = ask(server, op, **more)
            assert [a["worker"] for a in answers] == [0, 1] and all("error" in a for a in answers)
        command(*words([server.url], run, 1, "/somewhere/else"), code=4)  # both refuse the init
        post(server.url + "/pause?mode=abort")
        post(server.url + "/start_weight_update")
        post(server.url + "/update_weights", {"update_info": {"version": "00" * 16}})
        assert all("conflict" in a["error"] for a in ask(server, "outcome"))
        command(*words([server.url], run, 2, image, "--keep-canonical"))  # ends the open update
        check_sums(ask(server, "prove", scope="all"), run, 2, image)
        assert tokens(server) == expected
