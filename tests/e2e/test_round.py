"""round and verify --engine through the real binary, against engines that misbehave."""

import contextlib
import json
import signal
import socket
import sqlite3
import subprocess
import time

import numpy as np
import pytest

from cli import BINARY, CONFLICT, DATA, UNAVAILABLE, USAGE, Bench, Failed, run
from fake_engine import FakeEngine
from models import write

DEADLINES = ("ask", "prepare", "pause", "update", "prove")


class Fleet:
    """A run with v0 to v2 and engines that serve one of them."""

    def __init__(self, path):
        self.bench = Bench(path)
        self.uids, self.versions, self.engines, self.journal = [], {}, [], []
        random = np.random.default_rng(3)
        model = {name: random.random((5, 7), np.float32) for name in "abcd"}
        for number in range(3):
            if number > 0:  # "a" to "c" change, "d" never does
                model = {name: array + np.float32(number * (name != "d")) for name, array in model.items()}
            write(path / f"v{number}", model)
            if number > 0:
                self.bench.publish("--seed", path / "v0", path / f"v{number}")
            self.versions[f"v{number}"] = (number, {name: array.tobytes() for name, array in model.items()})
        for version in run("log", "--catalog", self.bench.catalog)["versions"]:
            self.uids.append(version["uid"])
            self.versions[version["uid"]] = self.versions.pop(f"v{version['number']}")

    def engine(self, number=1, **plants):
        engine = FakeEngine(self.versions, self.uids[number] if number >= 0 else "", plants, self.journal)
        engine.row_at_resume = None

        def on_resume(body, query):
            engine.row_at_resume = self.row()["state"]
            engine.paused = False
            return {"status": "resumed"}

        engine.on_resume = on_resume
        self.engines.append(engine)
        return engine

    def words(self, *more, haste=None):
        """Deadlines are short only where one is to pass: elsewhere a busy machine must not reach them."""
        if haste is None:
            waits = any(plant in ("hang", "pretend") for e in self.engines for plant in e.plants.values())
            haste = [word for name in DEADLINES for word in (f"--{name}-seconds", "2" if waits else "20")]
        return ["round", "--catalog", self.bench.catalog, "--run", "policy", "--image", "/images/policy",
                "--engines", *[e.url for e in self.engines], *haste, *more]

    def round(self, *more):
        return run(*self.words(*more))

    def failing(self, *more):
        with pytest.raises(Failed) as failed:
            self.round(*more)
        return failed.value

    def row(self):
        """The last round's row, as it lies in the catalog."""
        database = sqlite3.connect(self.bench.path / "catalog.db")
        rows = database.execute("SELECT value FROM rows WHERE key LIKE 'round/%'").fetchall()
        database.close()
        return max((json.loads(value) for (value,) in rows), key=lambda row: row["position"])

    def close(self):
        for engine in self.engines:
            engine.close()


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


def places(document):
    return [e["state"] for e in document["engines"]]


def test_a_round_brings_all_engines_to_the_version(fleet):
    a, b = fleet.engine(1), fleet.engine(0)
    document = fleet.round()
    assert document["state"] == "committed" and places(document) == ["serving", "serving"]
    assert document["number"] == 2 and document["version"] == fleet.uids[2]
    assert {"round", "root", "run", "seconds"} <= set(document)
    for engine, said in zip((a, b), document["engines"]):
        assert said["url"] == engine.url and said["version"] == fleet.uids[2] and said["reason"] == ""
        seconds = said["seconds"]
        assert set(seconds) == {"prepare", "pause", "update", "prove"}
        assert seconds["prepare"] > 0 and seconds["pause"] >= seconds["update"] + seconds["prove"] > 0
        assert engine.serves == fleet.uids[2] and engine.label == "2" and not engine.paused
        assert engine.row_at_resume == "committed", "nobody resumes before the commit"
        assert engine.pause_mode == "keep"
        steps = [step for e, step in fleet.journal if e is engine and step not in ("status", "is_paused")]
        assert steps == ["init_weight_transfer_engine", "prepare", "pause", "reset_prefix_cache",
                         "start_weight_update", "update_weights", "finish_weight_update", "prove", "resume"]
        assert engine.init == {"catalog": fleet.bench.catalog, "run": "policy", "image": "/images/policy",
                               "seed": "", "store": "", "threads": 0,
                               "keep_canonical": False}
    steps = [step for _, step in fleet.journal]
    prepared = len(steps) - steps[::-1].index("prepare")
    assert steps.index("pause") > prepared, "nobody is paused before all are prepared"
    assert steps.index("resume") > len(steps) - 1 - steps[::-1].index("prove")
    row = fleet.row()
    assert row["uid"] == document["round"] and row["state"] == "committed"
    assert [(e["state"], e["proven"]) for e in row["engines"]] == [("serving", True)] * 2
    # And back.
    assert fleet.round("--version", "1", "--pause-mode", "wait")["number"] == 1
    assert a.serves == b.serves == fleet.uids[1] and a.pause_mode == "wait"


def test_what_a_proof_is_compared_with_is_read_before_the_pause(fleet):
    engine = fleet.engine(1)

    def forget():
        with contextlib.closing(sqlite3.connect(fleet.bench.path / "catalog.db")) as database, database:
            assert database.execute("DELETE FROM rows WHERE key LIKE 'digests/%'").rowcount == 3

    engine.on_paused = forget
    assert places(fleet.round()) == ["serving"] and engine.scope == "touched"


def test_an_engine_without_a_version_gets_its_first_one(fleet):
    engine = fleet.engine(-1)
    assert places(fleet.round()) == ["serving"]
    assert engine.serves == fleet.uids[2]


def test_what_a_dead_coordinator_left_behind_is_proven_and_resumed(fleet):
    moved, left = fleet.engine(2), fleet.engine(1, prepare="later")
    moved.paused = left.paused = True
    failed = fleet.failing()
    assert places(failed.document) == ["serving", "kept"]
    assert not moved.paused and not left.paused
    steps = [step for e, step in fleet.journal if e is moved]
    assert "prove" in steps and "update_weights" not in steps


def test_what_a_dead_coordinator_has_written_is_not_resumed_unproven(fleet):
    mixed = fleet.engine(1, prepare="later", prove="wrong")
    none, good = fleet.engine(-1, prepare="later"), fleet.engine(1)
    mixed.paused = none.paused = True
    failed = fleet.failing()
    assert places(failed.document) == ["fenced", "fenced", "serving"]
    assert mixed.paused and none.paused and not good.paused
    reasons = [engine["reason"] for engine in failed.document["engines"]]
    assert "part 3" in reasons[0] and "b: digest" in reasons[0] and "no version to prove" in reasons[1]


def test_what_was_found_paused_and_proven_is_kept_when_its_update_fails(fleet):
    kept, ahead = fleet.engine(1, update_weights="fail"), fleet.engine(1, update_weights="fail")
    kept.paused = ahead.paused = True
    ahead.image = fleet.uids[2]  # by the coordinator that is no more: it cannot prove what it held
    failed = fleet.failing()
    assert places(failed.document) == ["kept", "fenced"] and not kept.paused and ahead.paused
    steps = [step for e, step in fleet.journal if e is kept]
    assert steps.index("prove") < steps.index("prepare") and steps.count("prove") == 1


def test_what_was_found_paused_and_not_proven_proves_all(fleet):
    good, ahead, mixed = fleet.engine(1), fleet.engine(1), fleet.engine(1)
    good.paused = ahead.paused = mixed.paused = True
    ahead.image = fleet.uids[2]
    mixed.weights["d"] = bytes(len(mixed.weights["d"]))  # which no version changes
    failed = fleet.failing()
    assert places(failed.document) == ["serving", "serving", "fenced"]
    assert "d: digest" in failed.document["engines"][2]["reason"] and mixed.paused
    assert (good.scope, ahead.scope, mixed.scope) == ("touched", "all", "all")


def test_an_engine_that_serves_it_while_its_image_was_moved(fleet):
    engine = fleet.engine(2)
    engine.image = fleet.uids[1]
    assert places(fleet.round()) == ["serving"]
    steps = [step for _, step in fleet.journal]
    assert "prepare" in steps and "prove" in steps and "update_weights" not in steps
    assert (engine.state, engine.prepared) == ("serving", fleet.uids[2]), "as the plugin says it"


# What is planted where; how the engine ends; the exit code; what its reason says; is it still paused?
MISBEHAVIOURS = {
    "hangs when it is told": ({"init_weight_transfer_engine": "hang"}, "kept", UNAVAILABLE, "init", False),
    "gives no status": ({"status": "hang"}, "fenced", UNAVAILABLE, "status", False),
    "refuses to prepare": ({"prepare": "fail"}, "kept", UNAVAILABLE, "planted in prepare", False),
    "fails while it prepares": ({"prepare": "later"}, "kept", DATA, "part 3 does not verify", False),
    "never gets ready": ({"prepare": "never"}, "kept", UNAVAILABLE, "2 of 4 bytes", False),
    "restarts while it prepares": ({"prepare": "restart"}, "fenced", UNAVAILABLE, "prepare", False),
    "refuses to pause": ({"pause": "fail"}, "kept", UNAVAILABLE, "planted in pause", False),
    "only pretends to pause": ({"pause": "pretend"}, "kept", CONFLICT, "is not paused", False),
    "hangs when it is paused": ({"pause": "hang"}, "kept", UNAVAILABLE, "pause", False),
    "does not flush": ({"reset_prefix_cache": "fail"}, "kept", UNAVAILABLE, "flush", False),
    "does not start": ({"start_weight_update": "fail"}, "kept", UNAVAILABLE, "start", False),
    "fails and keeps its weights": ({"update_weights": "fail"}, "kept", UNAVAILABLE, "update", False),
    "fails and holds a mix": ({"update_weights": "fence"}, "fenced", UNAVAILABLE, "layer 3", True),
    "dies in the update": ({"update_weights": "die"}, "fenced", UNAVAILABLE, "update", True),
    "hangs in the update": ({"update_weights": "hang"}, "fenced", UNAVAILABLE, "update", True),
    "restarts in the update": ({"update_weights": "restart"}, "fenced", UNAVAILABLE, "update", False),
    "fails to finish": ({"finish_weight_update": "fence"}, "fenced", UNAVAILABLE, "finish", True),
    "holds another tensor": ({"prove": "wrong"}, "fenced", DATA, "b: digest", True),
    "cannot prove a tensor": ({"prove": "unproven"}, "fenced", DATA, "unproven: b", True),
    "forgets a touched tensor": ({"prove": "forgets"}, "fenced", DATA, "unproven: a", True),
    "hangs in the proof": ({"prove": "hang"}, "fenced", UNAVAILABLE, "prove", True),
    "does not resume": ({"resume": "fail"}, "fenced", UNAVAILABLE, "resume", True),
}


@pytest.mark.parametrize("plants, place, code, reason, paused", MISBEHAVIOURS.values(), ids=MISBEHAVIOURS)
def test_one_bad_engine_is_reported_and_the_other_serves(fleet, plants, place, code, reason, paused):
    bad, good = fleet.engine(1, **plants), fleet.engine(1)
    failed = fleet.failing()
    said = failed.document["engines"][0]
    assert places(failed.document) == [place, "serving"]
    assert failed.document["state"] == "committed" and not good.paused and good.serves == fleet.uids[2]
    assert failed.code == code, failed.message
    assert reason in said["reason"] and bad.url in failed.message and reason in failed.message
    assert said["version"] == (fleet.uids[1] if place == "kept" else "")
    assert bad.paused == paused, "left paused only if it is fenced"
    assert bad.row_at_resume in (None, "committed")
    row = fleet.row()["engines"][0]
    assert (row["state"], row["proven"]) == (place, False) and row["reason"] == said["reason"]


def test_a_round_of_which_nothing_comes_has_failed(fleet):
    kept, fenced = fleet.engine(1, update_weights="fail"), fleet.engine(1, prove="wrong")
    failed = fleet.failing()
    assert failed.document["state"] == fleet.row()["state"] == "failed"
    assert places(failed.document) == ["kept", "fenced"]
    assert not kept.paused and fenced.paused
    assert failed.code == DATA, "the fenced one's error comes first"
    assert kept.url in failed.message and fenced.url in failed.message


def test_a_committed_round_stays_so_when_nobody_resumes(fleet):
    fleet.engine(1, resume="fail")
    failed = fleet.failing()
    assert failed.document["state"] == fleet.row()["state"] == "committed"
    assert places(failed.document) == [fleet.row()["engines"][0]["state"]] == ["fenced"]


def test_an_engine_that_nobody_reaches_is_fenced(fleet):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        good = fleet.engine(1)
        failed = fleet.failing("--engines", url)
    assert places(failed.document) == ["serving", "fenced"] and failed.code == UNAVAILABLE
    assert url in failed.document["engines"][1]["reason"] and good.serves == fleet.uids[2]


def test_a_fenced_engine_is_healed_by_the_next_round(fleet):
    engine = fleet.engine(1, update_weights="fence")
    assert places(fleet.failing().document) == ["fenced"]
    engine.plants.clear()
    engine.updating = False  # vLLM ends the session with the error
    assert places(fleet.round()) == ["serving"]
    assert engine.serves == fleet.uids[2] and not engine.paused


def test_one_round_of_a_run_at_a_time(fleet):
    engine = fleet.engine(1, prepare="never")
    first = subprocess.Popen([str(BINARY), *map(str, fleet.words(haste=()))])
    try:
        while ("prepare" not in [step for _, step in fleet.journal]) and first.poll() is None:
            time.sleep(0.02)
        failed = fleet.failing()
        assert failed.code == CONFLICT and fleet.row()["uid"] in failed.message
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    # A coordinator that was killed holds the run until its lease is over.
    assert fleet.failing().code == CONFLICT
    assert not engine.paused


def test_a_killed_coordinator_is_followed_when_its_lease_is_over(fleet):
    engine = fleet.engine(1, pause="slow")
    words = fleet.words("--lease-seconds", "2")
    first = subprocess.Popen([str(BINARY), *map(str, words)])
    while "pause" not in [step for _, step in fleet.journal] and first.poll() is None:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    lost = fleet.row()
    assert lost["state"] == "applying"
    while not engine.paused:
        time.sleep(0.01)
    engine.plants.clear()
    while True:
        try:
            assert places(run(*words)) == ["serving"]
            break
        except Failed as failed:
            assert failed.code == CONFLICT and lost["uid"] in failed.message
            time.sleep(0.2)
    assert engine.serves == fleet.uids[2] and not engine.paused
    assert fleet.row()["uid"] != lost["uid"]


@pytest.mark.parametrize("step", ["update_weights", "finish_weight_update", "prove"])
def test_an_update_that_a_killed_coordinator_left_open(fleet, step):
    engine = fleet.engine(1)
    engine.plants[step] = "slow"
    words = fleet.words("--lease-seconds", "1")
    first = subprocess.Popen([str(BINARY), *map(str, words)])
    while step not in [s for _, s in fleet.journal] and first.poll() is None:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    time.sleep(2)
    engine.plants.clear()
    for number in (2, 1):  # where it was going, and then elsewhere
        assert places(run(*words, "--version", number)) == ["serving"]
        assert engine.serves == fleet.uids[number] and not engine.paused
        assert engine.label == str(number)


def test_a_fenced_engine_is_healed(fleet):
    engine = fleet.engine(1)
    engine.state, engine.reason, engine.serves = "fenced", "layer 3 is half written", ""
    assert places(fleet.round()) == ["serving"]
    assert engine.serves == fleet.uids[2] and engine.state == "serving"


def test_a_long_round_keeps_its_lease(fleet):
    fleet.engine(1, update_weights="slow", finish_weight_update="slow", prove="slow")  # 2.1 s without a mark
    first = subprocess.Popen([str(BINARY), *map(str, fleet.words(haste=("--lease-seconds", "1")))])
    while "prove" not in [step for _, step in fleet.journal] and first.poll() is None:
        time.sleep(0.01)
    assert fleet.failing().code == CONFLICT
    assert first.wait(timeout=30) == 0 and fleet.row()["state"] == "committed"


def test_what_a_round_refuses(fleet):
    engine = fleet.engine(1)
    url = engine.url
    words = ["round", "--catalog", fleet.bench.catalog, "--run", "policy"]
    for code, more in [(USAGE, ["--engines", url]), (USAGE, ["--image", "/i"]),
                       (USAGE, ["--engines", url, url + "/", "--image", "/i"]),
                       (USAGE, ["--engines", url, "--image", "/i", "--no-init"]),
                       (USAGE, ["--engines", url, "--image", "/i", "--pause-mode", "hard"]),
                       (CONFLICT, ["--engines", url, "--image", "/i", "--version", "9"])]:
        with pytest.raises(Failed) as failed:
            run(*words, *more)
        assert failed.value.code == code, more
    assert fleet.journal == []


def test_engines_may_come_from_the_environment_and_be_told_before(fleet):
    a, b = fleet.engine(1), fleet.engine(1)
    document = run("round", "--catalog", fleet.bench.catalog, "--run", "policy", "--no-init",
                   env={"WEIGHTCAST_ENGINES": f"{a.url},{b.url}/"})
    assert places(document) == ["serving", "serving"] and a.init is None


def test_paths_are_made_absolute_for_the_engines(fleet, monkeypatch):
    monkeypatch.chdir(fleet.bench.path)
    engine = fleet.engine(1)
    run("round", "--catalog", "sqlite:catalog.db", "--run", "policy", "--image", "i/x", "--seed", "v0", "--store",
        "file:store", "--threads", "3", "--keep-canonical", "--engines", engine.url)
    here = fleet.bench.path
    assert engine.init == {"catalog": fleet.bench.catalog, "run": "policy", "image": f"{here}/i/x",
                           "seed": f"{here}/v0", "store": fleet.bench.store, "threads": 3,
                           "keep_canonical": True}


def test_the_text_names_every_engine(fleet):
    fleet.engine(1)
    done = subprocess.run([str(BINARY), *map(str, fleet.words())], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "committed: version 2 of run policy" in done.stdout
    assert f"{fleet.engines[0].url} serving: prepared in" in done.stdout


def verify(fleet, engine, *more):
    return run("verify", "--engine", engine.url, "--catalog", fleet.bench.catalog, *more)


def test_verify_proves_a_live_engine(fleet):
    engine = fleet.engine(1)
    document = verify(fleet, engine, "--run", "policy")
    assert document["verified"] and document["number"] == 1
    assert document["tensors"] == {"live": 2, "repacked": 1, "probed": 1, "unproven": []}
    assert document["tensors_bad"] == [] and {"root", "seconds"} <= set(document)
    engine.weights["a"] = engine.weights["a"][:-1] + b"\x01"
    with pytest.raises(Failed) as failed:
        verify(fleet, engine)
    assert failed.value.code == DATA and failed.value.document["tensors_bad"] == ["a"]
    assert not failed.value.document["verified"] and "a: digest" in failed.value.message


@pytest.mark.parametrize("number, plants, more, code, says", [
    (1, {"prove": "unproven"}, [], DATA, "unproven: b"),
    (1, {"prove": "forgets"}, [], DATA, "unproven: a"),
    (1, {"prove": "die"}, [], UNAVAILABLE, "http://"),
    (1, {"prove": "hang"}, ["--engine-seconds", "1"], UNAVAILABLE, "http://"),
    (1, {"prove": "fail"}, [], UNAVAILABLE, "planted in prove"),
    (-1, {}, [], CONFLICT, "serves no version"),
    (1, {}, ["--run", "other"], CONFLICT, "expected one of run other"),
])
def test_verify_says_what_is_not_proven(fleet, number, plants, more, code, says):
    write(fleet.bench.path / "other", {"x": np.ones(3, np.float32)})
    fleet.bench.publish("--seed", fleet.bench.path / "other", run_name="other")
    engine = fleet.engine(number, **plants)
    with pytest.raises(Failed) as failed:
        verify(fleet, engine, *more)
    assert failed.value.code == code and says in failed.value.message
    if "unproven" in says:
        assert failed.value.document["tensors"]["unproven"] == [says[-1]]


def test_verify_wants_an_image_or_an_engine(fleet):
    for words in (["verify"], ["verify", "i", "--engine", "http://x"], ["verify", "--engine", "http://x"]):
        with pytest.raises(Failed) as failed:
            run(*words)
        assert failed.value.code == USAGE
