"""log, show, alias and catalog rebuild through the real binary."""

import json
import pathlib
import re
import shutil

import pytest

from cli import CONFLICT, DATA, USAGE, Bench, Failed, run
from models import bits, moved, odd_tensors, write_raw


@pytest.fixture
def line(tmp_path):
    """A run with v0 and two versions (the second full), and a fork of version 1 with one of its own."""
    bench = Bench(tmp_path)
    steps = [odd_tensors()]
    write_raw(bench.path / "seed", steps[0])
    for n in (1, 2, 3):
        steps.append(moved(steps[-1], seed=n))
        write_raw(bench.path / f"step{n}", steps[n])
    seed = ("--seed", bench.path / "seed")
    bench.publish(*seed, bench.path / "step1", "--label", "reward=0.5")
    bench.publish(*seed, bench.path / "step2", "--full")
    bench.publish("--fork", "policy@1", bench.path / "step3", run_name="fork")
    bench.steps = steps
    return bench


def failing(code, call):
    with pytest.raises(Failed) as failed:
        call()
    assert failed.value.code == code, failed.value
    return failed.value.message


def log(bench, *words):
    return run("log", "--catalog", bench.catalog, *words)["versions"]


def rebuild(bench, catalog="new.db"):
    return run("catalog", "rebuild", "--store", bench.store, "--catalog", f"sqlite:{bench.path}/{catalog}")


def test_log_has_the_promised_fields(line):
    versions = log(line, "--run", "policy")
    assert [(v["number"], v["kind"], v["state"]) for v in versions] == [
        (0, "seed", "READY"), (1, "delta", "READY"), (2, "full", "READY")]
    promised = {"number", "uid", "epoch", "kind", "state", "base", "root", "created", "wire_bytes",
                "density", "labels", "aliases"}
    for version, base in zip(versions, [""] + [v["uid"] for v in versions]):
        assert promised <= set(version)
        assert re.fullmatch("[0-9a-f]{32}", version["uid"])
        assert re.fullmatch("[0-9a-f]{64}", version["root"])
        assert version["base"] == base
        assert version["created"] > 1.7e9
    assert versions[1]["labels"] == {"reward": "0.5"}
    assert 0 < versions[1]["density"] <= 1 and versions[1]["wire_bytes"] > 0
    assert {v["run"] for v in log(line)} == {"policy", "fork"}


def test_show_tells_all_of_one_version(line):
    show = lambda *words: run("show", "--catalog", line.catalog, *words)["versions"][0]
    latest = show("--run", "policy", "latest")
    assert latest["number"] == 2
    assert {o["role"] for o in latest["objects"]} == {"delta", "full"}
    assert {f["name"] for f in latest["side_files"]} >= {"config.json"}
    assert show("--run", "policy", latest["uid"])["uid"] == latest["uid"]
    document = pathlib.Path(latest["version_json"].removeprefix("file:"))
    assert json.loads(document.read_text())["version"]["root"] == latest["root"]
    assert "--run" in failing(USAGE, lambda: show("latest"))  # two runs: which one?
    failing(CONFLICT, lambda: show("--run", "policy", "9"))


def test_aliases_are_set_followed_listed_and_removed(line):
    alias = lambda *words: run("alias", "--catalog", line.catalog, "--run", "policy", *words)["aliases"]
    assert alias() == {}
    assert alias("best", "1")["best"]["number"] == 1
    assert log(line, "--run", "policy")[1]["aliases"] == ["best"]
    line.pull("image", "--version", "best", "--seed", line.path / "seed")
    assert bits(line.path / "image") == line.steps[1]
    alias("best", "latest")
    assert alias()["best"]["number"] == 2
    failing(USAGE, lambda: alias("latest", "1"))
    failing(USAGE, lambda: alias("best"))
    assert alias("--remove", "best") == {}
    failing(CONFLICT, lambda: alias("--remove", "best"))


def test_a_lost_catalog_is_rebuilt_from_the_store(line):
    run("alias", "--catalog", line.catalog, "--run", "policy", "best", "1")
    before = log(line)
    old = rebuild(line)
    assert old["restored"] == 5 and old["skipped"] == 0 and old["bad"] == []
    assert any("aliases" in lost for lost in old["lost"])
    again = rebuild(line)
    assert again["restored"] == 0 and again["skipped"] == 5
    assert again["incarnation"] == old["incarnation"]

    line.catalog = f"sqlite:{line.path}/new.db"
    for version in before:
        version["aliases"] = []
    assert log(line) == before
    line.pull("image", "--seed", line.path / "seed", run_name="fork")
    assert bits(line.path / "image") == line.steps[3]
    # The trainer goes on, under a new epoch.
    published = line.publish("--seed", line.path / "seed", line.path / "step3")
    assert published["number"] == 3 and published["epoch"] > before[-1]["epoch"]
    line.pull("image", "--seed", line.path / "seed")
    assert bits(line.path / "image") == line.steps[3]


def test_a_rebuild_refuses_a_catalog_with_a_history_of_its_own(line):
    other = Bench(line.path / "other")
    (line.path / "other").mkdir()
    other.publish("--seed", line.path / "seed", line.path / "step1")
    other.store = line.store
    message = failing(CONFLICT, lambda: rebuild(other, "catalog.db"))
    assert "not empty" in message and "version 1 of run policy" in message


def test_a_rebuild_names_what_is_bad_and_restores_the_rest(line):
    documents = sorted((line.path / "store" / "runs").glob("*/*/version.json"))
    bad = next(d for d in documents if json.loads(d.read_text())["version"]["number"] == 2)
    document = json.loads(bad.read_text())
    digest = document["tensors"][0]["digest"]
    document["tensors"][0]["digest"] = digest[:-1] + ("1" if digest[-1] == "0" else "0")
    bad.chmod(0o644)
    bad.write_text(json.dumps(document))
    with pytest.raises(Failed) as failed:
        rebuild(line)
    assert failed.value.code == DATA
    assert failed.value.document["restored"] == 4
    key = str(bad.relative_to(line.path / "store"))
    assert [b["key"] for b in failed.value.document["bad"]] == [key]
    assert key in failed.value.message
    versions = run("log", "--catalog", f"sqlite:{line.path}/new.db")["versions"]
    assert len(versions) == 4 and all(not (v["run"] == "policy" and v["number"] == 2) for v in versions)


def test_a_fork_whose_baseline_is_lost_goes_on_from_the_seed(line):
    """Its version 0 is a version of another run: the chain begins at that run's seed."""
    seed = ("--seed", line.path / "seed")
    shutil.rmtree(line.path / "baseline")
    published = line.publish(*seed, line.path / "step2", run_name="fork")
    assert published["number"] == 2 and published["baseline_rebuilt"]
    line.pull("image", *seed, run_name="fork")
    assert bits(line.path / "image") == line.steps[2]
