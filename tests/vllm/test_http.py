"""An unmodified vLLM server in processes of its own, moved from version to version by `weightcast round`."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

pytest.importorskip("vllm")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "rl"))

import engine  # noqa: E402
from engines import run_of  # noqa: E402

BINARY = os.environ.get("WEIGHTCAST_BINARY", str(ROOT / "build" / "weightcast"))
PROMPTS = [[5, 9, 33, 7], [100, 3]]
BACKEND = ("--weight-transfer-config", '{"backend": "weightcast"}')


def weightcast(*args, fails=False):
    done = subprocess.run([BINARY, *map(str, args), "--json"], capture_output=True, text=True, timeout=300,
                          check=False)
    assert (done.returncode != 0) == fails, (args, done.returncode, done.stderr)
    return json.loads(done.stdout)


def post(server, route, body=None, timeout=60):
    request = urllib.request.Request(server.url + route, json.dumps(body or {}).encode(),
                                     {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def round_to(server, run, version, *more, fails=False):
    document = weightcast("round", "--engines", server.url, "--catalog", run.catalog, "--run", "policy",
                          "--version", version, *more, fails=fails)
    return document["engines"][0]


def tokens(server):
    return server.generate(PROMPTS, 16, 0)


@pytest.fixture(scope="module")
def run():
    return run_of("qwen3", "bfloat16")


def worker_of(server):
    """The process that holds the weights: the last child in the server's session."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--sid", str(server.process.pid)],
                            capture_output=True, text=True, check=True).stdout
    workers = [int(line.split()[0]) for line in listed.splitlines() if "Worker" in line or "EngineCore" in line]
    assert workers, listed
    return workers[-1]


def test_rounds_move_a_server_and_a_worker_killed_in_one_starts_cold(run, tmp_path):
    image = tmp_path / "image"
    follow = ("--image", image, "--seed", run.checkpoint(0))
    with engine.Server(run.checkpoint(0), tmp_path / "log", *BACKEND) as server:
        assert tokens(server) == run.tokens(0)
        for version, mode in ((1, "keep"), (2, "wait"), (3, "abort"), (2, "keep"), (3, "keep")):
            told = round_to(server, run, version, *follow, "--pause-mode", mode)
            assert (told["state"], told["version"]) == ("serving", run.uids[version])
            assert told["seconds"]["pause"] > 0
            assert tokens(server) == run.tokens(version)
            with urllib.request.urlopen(server.url + "/weight_info", timeout=10) as answer:
                assert json.load(answer)["weight_version"] == str(version)
        verified = weightcast("verify", "--engine", server.url, "--catalog", run.catalog)
        assert verified["verified"] and not verified["tensors"]["unproven"] and not verified["tensors_bad"]

        # An update that fails before its first byte: the engine serves on, and says so.
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(server, "/start_weight_update")
            post(server, "/update_weights", {"update_info": {"version": "00" * 16}})
        assert "weightcast conflict: " in refused.value.read().decode()
        assert tokens(server) == run.tokens(3)
        round_to(server, run, 2, *follow)

        # The worker dies between start and finish: nothing answers any more, and nothing is half new.
        post(server, "/pause?mode=abort")
        post(server, "/start_weight_update")
        os.kill(worker_of(server), signal.SIGKILL)
        told = round_to(server, run, 3, *follow, "--ask-seconds", 10, fails=True)
        assert told["state"] == "fenced" and told["reason"]
    extra = json.dumps(run.settings(image, version=run.uids[3]))
    with engine.Server(run.checkpoint(0), tmp_path / "cold.log", *BACKEND, "--load-format", "weightcast",
                       "--model-loader-extra-config", extra) as server:
        assert tokens(server) == run.tokens(3)
        verified = weightcast("verify", "--engine", server.url, "--catalog", run.catalog)
        assert verified["verified"] and not verified["tensors"]["unproven"]
        assert round_to(server, run, 2, "--no-init")["state"] == "serving"
        assert tokens(server) == run.tokens(2)
