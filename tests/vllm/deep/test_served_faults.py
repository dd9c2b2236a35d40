"""Faults around servers that rounds move: whoever lives serves one version whole, and says which;
whoever does not is reported fenced; the next round heals what can be healed."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

pytest.importorskip("vllm")

from engines import Run  # noqa: E402
from servers import (  # noqa: E402
    BACKEND, BINARY, CONFLICT, DATA, Gate, Server, ask, get, post, tokens, verified, weightcast, words)

LEASE_SECONDS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("run"), steps=5, full=(5,))


@pytest.fixture(scope="module")
def expected(run):
    return {number: run.tokens(number) for number in range(6)}


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return tmp_path_factory.mktemp("host") / "image"


@pytest.fixture(scope="module")
def server(run, expected, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    here = pathlib.Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{here}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        server = Server(run.checkpoint(0), log, *BACKEND, "--worker-extension-cls", "planted.Extension")
    with server:
        yield server


@pytest.fixture
def gate(server, run, expected, image):
    """The way to the server, which serves version 1 before and after."""
    with Gate(server) as gate:
        weightcast(*words([server.url], run, 1, image))
        yield gate
        gate.route = None
        weightcast(*words([server.url], run, 1, image))
        serves(server, run, expected, 1)


class Killed:
    """A round to version 2 whose process was killed before a call of the route got through."""

    def __init__(self, gate, route, run, image):
        command = [BINARY, *map(str, words([gate.url], run, 2, image, "--lease-seconds", LEASE_SECONDS))]
        self.begin = time.monotonic()
        process = subprocess.Popen(command)
        gate.at(route, process.kill)
        assert process.wait(60) == -signal.SIGKILL

    def until_lease_is_over(self):
        time.sleep(max(0, self.begin + LEASE_SECONDS + 2 - time.monotonic()))


def serves(server, run, expected, number):
    assert not get(f"{server.url}/is_paused")["is_paused"]
    assert [(s["state"], s["number"]) for s in ask(server, "status")] == [("serving", number)]
    assert get(f"{server.url}/weight_info") == {"weight_version": str(number)}
    assert tokens(server) == expected[number]
    verified(server, run)


@contextlib.contextmanager
def corrupt(run, number):
    parts = [p for p in (run.directory / "bytes").rglob("*")
             if p.is_file() and run.uids[number] in str(p) and p.suffix != ".json"]
    assert parts
    before = {part: part.read_bytes() for part in parts}
    try:
        for part, data in before.items():
            part.chmod(0o644)
            part.write_bytes(data[:len(data) // 3] + bytes(64) + data[len(data) // 3 + 64:])
        yield
    finally:
        for part, data in before.items():
            part.write_bytes(data)


def test_a_corrupt_part(gate, server, run, expected, image):
    with corrupt(run, 4):
        told = weightcast(*words([server.url], run, 4, image), code=DATA)
        [engine] = told["engines"]
        assert (told["state"], engine["state"], engine["version"]) == ("failed", "kept", run.uids[1])
        assert run.uids[4] in engine["reason"] and "(data-loss)" in engine["reason"]
        serves(server, run, expected, 1)
        weightcast(*words([server.url], run, 3, image))
        serves(server, run, expected, 3)
    weightcast(*words([server.url], run, 4, image))
    serves(server, run, expected, 4)


def test_an_engine_that_was_told_to_sleep(gate, server, run, expected, image):
    """vLLM on a CPU stops serving, and keeps its weights where they are: a round wakes it."""
    post(f"{server.url}/sleep?level=1")
    weightcast(*words([server.url], run, 2, image))
    serves(server, run, expected, 2)


@pytest.mark.parametrize("route", ["/pause", "/reset_prefix_cache", "/start_weight_update", "/update_weights",
                                   "/finish_weight_update", "prove"])
@pytest.mark.parametrize("number", [2, 3])
def test_a_coordinator_killed(route, number, gate, server, run, expected, image):
    """The next round goes where that one was going, or elsewhere."""
    killed = Killed(gate, route, run, image)
    assert get(f"{server.url}/is_paused")["is_paused"] == (route != "/pause")
    refused = weightcast(*words([server.url], run, number, image), code=CONFLICT)
    assert "of this run is applying for" in refused["error"]["message"]
    killed.until_lease_is_over()
    weightcast(*words([server.url], run, number, image))
    serves(server, run, expected, number)


def test_a_coordinator_killed_after_it_has_committed(gate, server, run, expected, image):
    Killed(gate, "/resume", run, image)
    assert get(f"{server.url}/is_paused")["is_paused"]
    weightcast(*words([server.url], run, 2, image))  # no lease is in the way
    serves(server, run, expected, 2)


def test_a_fenced_engine(gate, server, run, expected, image):
    plant = {"method": "flip", "args": ["model.norm.weight", 7]}
    post(f"{server.url}/collective_rpc", plant)
    told = weightcast("verify", "--engine", server.url, "--catalog", run.catalog, code=DATA)
    assert "model.norm.weight" in told["error"]["message"]
    assert [s["state"] for s in ask(server, "status")] == ["fenced"]
    with corrupt(run, 2):
        told = weightcast(*words([server.url], run, 2, image), code=DATA)
        assert told["engines"][0]["state"] == "fenced" and run.uids[2] in told["engines"][0]["reason"]
    weightcast(*words([server.url], run, 2, image))
    serves(server, run, expected, 2)


def test_one_of_two_engines_killed_in_a_round(gate, server, run, expected, image, tmp_path):
    with Server(run.checkpoint(0), tmp_path / "log", *BACKEND) as other, Gate(other) as way:
        both = [server.url, way.url]
        weightcast(*words(both, run, 2, image))  # one image serves both
        assert tokens(other) == tokens(server) == expected[2]
        way.at("/finish_weight_update", lambda: os.killpg(other.process.pid, signal.SIGKILL))
        command = [BINARY, *map(str, words(both, run, 3, image, "--ask-seconds", 5, "--json"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode != 0
        told = json.loads(done.stdout)
        assert told["state"] == "committed"
        one, dead = told["engines"]
        assert (one["state"], one["version"], one["reason"]) == ("serving", run.uids[3], "")
        assert dead["state"] == "fenced" and dead["reason"], dead
        serves(server, run, expected, 3)
