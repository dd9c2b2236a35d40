"""kill -9 at random moments: publishers and pulls die, and whatever they leave is old or new.

WEIGHTCAST_KILLS (default 30; deep-kills: 300) and WEIGHTCAST_DICE rerun a session.
"""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from cli import BINARY, Bench, run  # noqa: E402

KILLS = int(os.environ.get("WEIGHTCAST_KILLS", "30"))
SEED = int(os.environ.get("WEIGHTCAST_DICE", str(int(time.time()))))
MODELS = 4


@pytest.fixture
def scratch(tmp_path):
    """In memory where there is room: the kills are about processes, not about the disk."""
    shm = pathlib.Path("/dev/shm")
    if not shm.is_dir() or shutil.disk_usage(shm).free < 2 << 30:
        yield tmp_path
        return
    path = shm / f"weightcast-kills-{os.getpid()}"
    path.mkdir()
    yield path
    shutil.rmtree(path)


def start(*words):
    return subprocess.Popen([str(BINARY), *map(str, words), "--json"], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def kill_in(process, seconds):
    """True if the process was still at work when the signal came."""
    try:
        process.wait(timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        return True


def test_whatever_is_killed_is_old_or_new_afterwards(scratch):
    print(f"WEIGHTCAST_KILLS={KILLS} WEIGHTCAST_DICE={SEED}")
    dice = random.Random(SEED)
    bench = Bench(scratch)
    models = [scratch / f"model{k}" for k in range(MODELS)]
    run("bench", "generate", models[0], "--size", "small")
    for before, after in zip(models, models[1:]):
        run("bench", "generate", after, "--from", before)
    # The truth about each model, by a run of its own that nobody disturbs.
    oracle = [bench.publish(model, "--number", k + 1, run_name="oracle")["root"]
              for k, model in enumerate(models)]
    bench.publish("--seed", models[0])
    bench.pull("image", "--seed", models[0])
    roots = {0: oracle[0]}
    publish = ["publish", "--catalog", bench.catalog, "--store", bench.store, "--run", "policy",
               "--baseline", scratch / "baseline", "--seed", models[0]]
    pull = ["pull", "--catalog", bench.catalog, "--run", "policy", "--seed", models[0], scratch / "image"]
    took = {"publish": 0.3, "pull": 0.3}
    killed = {"publish": 0, "pull": 0}
    number = 0

    rounds = 0
    while sum(killed.values()) < KILLS:
        rounds += 1
        assert rounds <= 4 * KILLS, f"too few processes could be caught: {killed}"
        number += 1
        model = dice.randrange(MODELS)
        words = [*publish, "--number", number, models[model], *(["--full"] if number % 7 == 0 else [])]
        roots[number] = oracle[model]
        for _ in range(dice.randrange(3)):
            killed["publish"] += kill_in(start(*words), dice.uniform(0, took["publish"]))
        begin = time.monotonic()
        published = run(*words)
        took["publish"] = time.monotonic() - begin
        assert published["state"] == "READY"
        assert published["root"] == roots[number], f"version {number}, seed {SEED}"

        for _ in range(dice.randrange(3)):
            killed["pull"] += kill_in(start(*pull), dice.uniform(0, took["pull"]))
            # Without any help: a reader finds a version, whole.
            state = run("verify", scratch / "image", "--catalog", bench.catalog)
            assert state["verified"] and state["root"] in roots.values(), f"seed {SEED}"
        begin = time.monotonic()
        pulled = run(*pull)
        took["pull"] = time.monotonic() - begin
        assert (pulled["number"], pulled["root"]) == (number, roots[number])
        if dice.random() < 0.1:  # and back
            back = dice.randrange(number + 1)
            assert run(*pull, "--version", back)["root"] == roots[back]
    # Nothing that a dead publisher left is a version, and every version can still be had.
    assert bench.verify("image")["verified"]
    for version in sorted(dice.sample(sorted(roots), min(5, len(roots)))):
        pulled = bench.pull(f"again{version}", "--seed", models[0], "--version", version)
        assert pulled["root"] == roots[version]
