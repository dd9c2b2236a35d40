"""An unmodified vLLM server in processes of its own, moved from version to version by `weightcast round`."""

import os
import signal
import subprocess
import urllib.error

import pytest

pytest.importorskip("vllm")

from engines import run_of  # noqa: E402
from servers import BACKEND, Server, get, post, tokens, verified, weightcast, words  # noqa: E402


def worker_of(server):
    """The process that holds the weights: the last child in the server's session."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--sid", str(server.process.pid)],
                            capture_output=True, text=True, check=True).stdout
    workers = [int(line.split()[0]) for line in listed.splitlines() if "Worker" in line or "EngineCore" in line]
    assert workers, listed
    return workers[-1]


def test_rounds_move_a_server_whose_worker_is_killed_in_one(tmp_path):
    run, image = run_of("qwen3", "bfloat16"), tmp_path / "image"

    def round_to(number, *more, code=0):
        return weightcast(*words([server.url], run, number, image, *more), code=code)["engines"][0]

    with Server(run.checkpoint(0), tmp_path / "log", *BACKEND) as server:
        assert tokens(server) == run.tokens(0)
        for number, mode in ((1, "keep"), (2, "wait"), (3, "abort"), (2, "keep"), (3, "keep")):
            told = round_to(number, "--pause-mode", mode)
            assert (told["state"], told["version"]) == ("serving", run.uids[number])
            assert told["seconds"]["pause"] > 0
            assert tokens(server) == run.tokens(number)
            assert get(f"{server.url}/weight_info")["weight_version"] == str(number)
        verified(server, run)

        # An update that fails before its first byte: the engine serves on, and says so.
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(f"{server.url}/start_weight_update")
            post(f"{server.url}/update_weights", {"update_info": {"version": "00" * 16}})
        assert "weightcast conflict: " in refused.value.read().decode()
        assert tokens(server) == run.tokens(3)
        round_to(2)

        # One that nobody finished: the next one ends it.
        post(f"{server.url}/start_weight_update")
        assert round_to(3)["state"] == "serving"
        assert tokens(server) == run.tokens(3)

        # The worker dies between start and finish: nothing answers any more, and nothing is half new.
        post(f"{server.url}/pause?mode=abort")
        post(f"{server.url}/start_weight_update")
        os.kill(worker_of(server), signal.SIGKILL)
        told = round_to(2, "--ask-seconds", 10, code=None)
        assert told["state"] == "fenced" and told["reason"]
