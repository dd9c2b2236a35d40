"""What the command line refuses, and where its flags come from: one row a fault that a user met."""

import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest

from cli import BINARY, CONFLICT, DATA, MEGATRON, UNAVAILABLE, USAGE, Bench, Failed, run
from models import write

SHARDS = MEGATRON / "qwen3" / "tp2pp2"
PUBLISH = ["publish", "--catalog", "sqlite:{t}/c.db", "--store", "file:{t}/store", "--run", "r"]
LOG = ["log", "--catalog", "sqlite:{t}/c.db"]


@pytest.fixture
def t(tmp_path):
    """Scratch with a seed, a run of one version, a model without elements, and a full directory."""
    write(tmp_path / "seed", {"w": np.arange(8, dtype=np.float32)})
    write(tmp_path / "empty", {"w": np.zeros((0, 3), np.float32)})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    run(*[w.format(t=tmp_path) for w in PUBLISH], "--seed", tmp_path / "seed")
    return tmp_path


def call(t, words, **options):
    return run(*[str(w).format(t=t) for w in words], **options)


REFUSED = [
    (USAGE, ["frob"], ['no command "frob"', "publish", "bench codec"]),
    (USAGE, ["bench", "frob"], ['no command "bench frob"', "bench generate"]),
    (USAGE, [*LOG, "--run", ""], ["--run", "empty"]),
    (USAGE, ["pull", "--catalog", "", "--run", "r", "{t}/i"], ["--catalog", "empty"]),
    (USAGE, ["pull", "--catalog", "sqlite:{t}/c.db", "--run", "r", ""], ["IMAGE_DIR", "empty"]),
    *[(USAGE, [*PUBLISH, "{t}/seed", flag, value], [flag, value])
      for flag, value in [("--number", "-1"), ("--number", str(2**53)), ("--epoch", str(2**53)),
                          ("--number", "99999999999999999999"), ("--wait", "-1"),
                          ("--full-every", "-2"), ("--full-every", "1.5"), ("--threads", "4097"),
                          ("--staging-timeout", "10000000000")]],
    *[(USAGE, ["bench", "generate", "{t}/o", "--learning-rate", value], ["--learning-rate"])
      for value in ("-1", "nan", "inf", "1e999", "x")],
    *[(USAGE, [*PUBLISH, "--shards", SHARDS, "--number", "1", "--epoch", "1", "--rank", rank],
       [f"--rank {rank}: the layout has 4 ranks"]) for rank in ("4", "4294967296")],
    (USAGE, [*PUBLISH, "{t}/seed", "--label", "novalue"], ["--label", "novalue", "k=v"]),
    (USAGE, [*PUBLISH, "--seed", "{t}/seed", "--number", "1", "--label", "a=b", "--full"],
     ["--number", "--label", "--full"]),
    (DATA, [*PUBLISH[:-1], "new", "{t}/empty"], ["{t}/empty"]),
    (DATA, [*PUBLISH[:-1], "new", "--seed", "{t}/empty"], ["{t}/empty"]),
    (CONFLICT, ["bench", "generate", "{t}/full"], ["{t}/full", "precious"]),
    (CONFLICT, ["demo", "--dir", "{t}/full"], ["{t}/full", "precious"]),
    (USAGE, [*PUBLISH, "{t}/no"], ["MODEL_DIR", "{t}/no"]),
    (USAGE, [*PUBLISH, "{t}/seed", "--seed", "{t}/no"], ["--seed", "{t}/no"]),
    (USAGE, [*PUBLISH, "--shards", "{t}/no", "--config", "{t}/c"], ["--shards", "--config"]),
    (USAGE, ["plan", "--config", "{t}/no"], ["--config", "{t}/no"]),
    (USAGE, ["convert", "--shards", "{t}/no", "--out", "{t}/o"], ["--shards", "{t}/no"]),
    (USAGE, ["diff", "{t}/no", "{t}/nor"], ["DIR_A", "DIR_B", "{t}/nor"]),
    (USAGE, ["inspect", "{t}/no"], ["PART_FILE", "{t}/no"]),
    (DATA, ["inspect", "{t}/seed/model.safetensors"], ["{t}/seed/model.safetensors"]),
    (UNAVAILABLE, ["bench", "codec", "--units", str(10**15)], ["bench codec", "memory"]),
    (UNAVAILABLE, ["log", "--catalog", "sqlite:{t}/no.db"], ["not reachable", "{t}/no.db"]),
]


@pytest.mark.parametrize("code, words, said", REFUSED, ids=lambda v: None)
def test_a_wrong_call_is_refused_by_name(t, code, words, said):
    with pytest.raises(Failed) as failed:
        call(t, words)
    assert failed.value.code == code, failed.value
    for word in said:
        assert str(word).format(t=t) in failed.value.message
    assert [v["number"] for v in call(t, LOG)["versions"]] == [0], "nothing was registered"


@pytest.mark.parametrize("name", ["SEED", "STEPS", "SIZE", "MODE", "RANK", "FROM"])
def test_the_environment_of_other_commands_is_not_read(t, name):
    assert call(t, LOG, env={f"WEIGHTCAST_{name}": "/no/such thing"})["versions"]


def test_an_empty_variable_is_not_set_and_a_wrong_one_is_named(t):
    assert call(t, LOG, env={"WEIGHTCAST_RUN": ""})["versions"]
    with pytest.raises(Failed, match="--threads"):
        call(t, [*PUBLISH, "{t}/seed"], env={"WEIGHTCAST_THREADS": "x"})


CONFIGS = [  # text, environment, words, the run that is asked for
    ('run = "file"', {}, [], "file"),
    ('[log]\nrun = "file"  # why', {}, [], "file"),
    ('run = "top"\n[log]\nrun = \'file # not a comment, all of it\'', {}, [],
     "file # not a comment, all of it"),
    ('[show]\nrun = "other"', {"WEIGHTCAST_RUN": "env"}, [], "env"),
    ('run = "file"', {"WEIGHTCAST_RUN": "env"}, [], "env"),
    ('run = "file"', {"WEIGHTCAST_RUN": "env"}, ["--run", "flag"], "flag"),
    ('run = "file"', {}, ["--run=flag"], "flag"),
]


@pytest.mark.parametrize("text, env, words, asked", CONFIGS)
def test_flags_win_over_environment_over_file(t, text, env, words, asked):
    file = t / "w.toml"
    file.write_text(text)
    log = [w.format(t=t) for w in LOG]
    for given, more in [(["--config-file", file, *log, *words], {}),
                        ([*log, *words, f"--config-file={file}"], {}),
                        ([*log, *words], {"WEIGHTCAST_CONFIG_FILE": str(file)})]:
        with pytest.raises(Failed) as failed:  # no such run, by name
            run(*given, env={**env, **more})
        assert asked in failed.value.message


def test_a_config_file_holds_lists_switches_and_nested_sections(t):
    (t / "w.toml").write_text(
        'catalog = "sqlite:{t}/c.db"\nstore = "file:{t}/store"\n[bench.generate]\nsize = "small"\n'
        '[publish]\nfull = true\nlabel = ["a=b", "c=d,e"]\n'.replace("{t}", str(t)))
    published = run("publish", "--run", "r", t / "seed", "--config-file", t / "w.toml")
    assert published["kind"] == "full"
    version = run("log", "--config-file", t / "w.toml")["versions"][-1]
    assert version["labels"] == {"a": "b", "c": "d,e"}


@pytest.mark.parametrize("text, said", [
    ("frob = 1", "w.toml:1: frob"), ("[frob]", "w.toml:1: [frob]"),
    ("[log]\nseed = 1", "w.toml:2: [log] seed"), ("\nwords", 'w.toml:2: "words"'),
    ("run = ", "w.toml:1"), ('run = "open', "w.toml:1"), ("[log", "w.toml:1"), ("[]", "w.toml:1"),
    ("help = true", "help"), ("run = 1 2", "w.toml:1"), (r'run = "a\n"', "w.toml:1"),
])
def test_a_config_file_that_is_wrong_is_refused_with_its_line(t, text, said):
    (t / "w.toml").write_text(text)
    with pytest.raises(Failed) as failed:
        call(t, [*LOG, "--config-file", "{t}/w.toml"])
    assert failed.value.code == USAGE and said in failed.value.message


@pytest.mark.parametrize("words", [["--config-file", "{t}/no.toml"], ["--config-file={t}"]])
def test_a_config_file_that_cannot_be_read_is_a_usage_error(t, words):
    with pytest.raises(Failed, match="--config-file") as failed:
        call(t, [*LOG, *words])
    assert failed.value.code == USAGE


@pytest.mark.parametrize("words", [["log", "--catalog", b"sqlite:/no/\xff"], [b"fr\xffob"],
                                   ["diff", b"\xff", b"\xfe"], ["log", b"--\xff"]])
def test_bytes_that_are_no_utf8_are_answered_in_json(words):
    done = subprocess.run([BINARY, *words, "--json"], capture_output=True)
    assert done.returncode in (USAGE, UNAVAILABLE) and json.loads(done.stdout)["error"]


@pytest.mark.parametrize("words", [["log", "--json"], ["log"], ["--help"], ["completion"]])
def test_a_result_that_cannot_be_written_is_an_error(t, words):
    catalog = ["--catalog", f"sqlite:{t}/c.db"] if words[0] == "log" else []
    with open("/dev/full", "w") as full:
        done = subprocess.run([BINARY, *words, *catalog], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == UNAVAILABLE and b"stdout" in done.stderr


def test_from_wins_over_a_catalog_in_the_environment(t):
    version_json = next((t / "store").glob("runs/*/*/version.json"))
    pulled = call(t, ["pull", "--from", f"file:{version_json}", "--seed", "{t}/seed", "{t}/i"],
                  env={"WEIGHTCAST_CATALOG": "sqlite:/no/such.db"})
    assert pulled["number"] == 0


def test_shards_are_cut_by_the_layers_of_the_checkpoint(tmp_path):
    run("bench", "generate", tmp_path / "base", "--size", "small", "--random-seed", 3)
    run("bench", "generate", tmp_path / "s", "--from", tmp_path / "base", "--shards", "1,2")
    layers = json.loads((tmp_path / "base" / "config.json").read_text())["num_hidden_layers"]
    config = json.loads((tmp_path / "s" / "topology.json").read_text())["config"]
    assert config["num_layers"] == layers != 8


def children(pid):
    try:
        text = open(f"/proc/{pid}/task/{pid}/children").read()
    except FileNotFoundError:
        return []
    return [int(child) for child in text.split()]


def running(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_rank_processes_end_with_their_parent(tmp_path):
    """A trainer process of the demo waits on stdin: it would stay for as long as it may."""
    demo = subprocess.Popen([BINARY, "demo", "--dir", tmp_path / "d"], stderr=subprocess.PIPE, text=True)
    try:
        # By then every trainer process is through its start: one that is stopped before it has asked
        # for its parent's signal would not get it.
        for line in demo.stderr:
            if "version 1:" in line:
                break
        ranks = children(demo.pid)
        os.kill(ranks[0], signal.SIGSTOP)  # so that no pipe of the dead parent wakes it
    finally:
        demo.kill()
        demo.wait()
        demo.stderr.close()
    deadline = time.monotonic() + 10
    while any(running(rank) for rank in ranks):
        assert time.monotonic() < deadline, "a rank process outlives its parent"
        time.sleep(0.01)
