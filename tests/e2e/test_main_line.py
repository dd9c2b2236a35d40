"""The main job through the real binary: publish, pull, verify, convert."""

import json
import re
import shutil
import subprocess

import pytest

from cli import BINARY, CONFLICT, DATA, FAMILIES, MEGATRON, UNAVAILABLE, USAGE, Bench, Failed, export_of, run, topologies
from models import bits, copy_file_as_model, moved, odd_tensors, write_raw


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def failing(code, call):
    with pytest.raises(Failed) as failed:
        call()
    assert failed.value.code == code, failed.value
    return failed.value.message


# ---- acceptance 5: what is pulled is what was published, by another implementation's reading ----


@pytest.mark.parametrize("shards", [1, 3])
def test_an_image_equals_its_source_tensor_by_tensor(bench, shards):
    seed = odd_tensors()
    steps = [seed]
    write_raw(bench.path / "seed", seed, shards)
    for n in range(1, 4):
        steps.append(moved(steps[-1], seed=n))
        write_raw(bench.path / f"step{n}", steps[n], shards)
        published = bench.publish("--seed", bench.path / "seed", bench.path / f"step{n}",
                                  *(["--full"] if n == 2 else []))
        assert published["state"] == "READY" and published["number"] == n
        bench.pull("warm", "--seed", bench.path / "seed")
        assert bits(bench.path / "warm") == steps[n]
    for n in (3, 1, 0, 2):  # cold starts and going back
        bench.pull(f"cold{n}", "--seed", bench.path / "seed", "--version", n)
        assert bits(bench.path / f"cold{n}") == steps[n]
        bench.pull("warm", "--seed", bench.path / "seed", "--version", n)
        assert bits(bench.path / "warm") == steps[n]
        assert bench.verify("warm")["verified"] is True
    assert (bench.path / "warm" / "tokenizer.json").read_text() == '{"version": "1.0"}'
    # The full version needs no seed.
    bench.pull("no seed", "--version", 3)
    assert bits(bench.path / "no seed") == steps[3]


def test_a_version_without_any_change_publishes_and_installs(bench):
    write_raw(bench.path / "seed", odd_tensors())
    published = bench.publish("--seed", bench.path / "seed", bench.path / "seed")
    assert published["changed_elements"] == 0 and published["number"] == 1
    pulled = bench.pull("image", "--seed", bench.path / "seed")
    assert pulled["root"] == published["root"]
    assert bits(bench.path / "image") == odd_tensors()


def test_version_0_pulls_with_the_seed_and_says_what_is_missing_without(bench):
    write_raw(bench.path / "seed", odd_tensors())
    registered = bench.publish("--seed", bench.path / "seed")
    assert (registered["number"], registered["kind"]) == (0, "seed")
    assert "seed" in failing(UNAVAILABLE, lambda: bench.pull("image"))
    pulled = bench.pull("image", "--seed", bench.path / "seed")
    assert pulled["root"] == registered["root"]


def test_side_files_are_verified_too(bench):
    write_raw(bench.path / "seed", odd_tensors())
    bench.publish("--seed", bench.path / "seed")
    bench.pull("image", "--seed", bench.path / "seed")
    (bench.path / "image" / "tokenizer.json").write_text('{"version": "1.1"}')
    assert "tokenizer.json" in failing(DATA, lambda: bench.verify("image"))


def test_verify_names_the_tensor_with_a_flipped_byte(bench):
    write_raw(bench.path / "seed", odd_tensors())
    bench.publish("--seed", bench.path / "seed")
    bench.pull("image", "--seed", bench.path / "seed")
    file = bench.path / "image" / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1  # the last byte of the last tensor by name
    file.write_bytes(raw)
    last = sorted(odd_tensors(), key=str.encode)[-1]
    assert last in failing(DATA, lambda: bench.verify("image"))


def test_a_version_is_pulled_without_a_catalog(bench):
    seed = odd_tensors()
    write_raw(bench.path / "seed", seed)
    write_raw(bench.path / "step", moved(seed, 1))
    published = bench.publish("--seed", bench.path / "seed", bench.path / "step")
    version_json = next((bench.path / "store").glob(f"runs/*/{published['uid']}/version.json"))
    run("pull", "--from", f"file:{version_json}", "--seed", bench.path / "seed", bench.path / "image")
    assert bits(bench.path / "image") == moved(seed, 1)


# ---- acceptance 3: every topology has the root of the exported directory ----


@pytest.mark.parametrize("family", FAMILIES)
def test_every_topology_published_by_rank_processes_has_the_exports_root(bench, family):
    copy_file_as_model(export_of(family), bench.path / "export")
    expected = bench.publish(bench.path / "export", run_name="export")["root"]
    for topology in topologies(family):
        for mode in ("raw", "bridge"):  # the second goes on from the first: they have one plan
            published = bench.publish("--shards", MEGATRON / family / topology, "--mode", mode,
                                      run_name=topology)
            assert published["state"] == "READY"
            assert published["root"] == expected, (topology, mode)
        bench.pull(f"image-{topology}", run_name=topology)
        assert bits(bench.path / f"image-{topology}") == bits(bench.path / "export")


def test_a_run_whose_layout_changes_goes_on_exactly(bench):
    export = copy_file_as_model(export_of("qwen3"), bench.path / "export")
    moved_export = write_raw(bench.path / "moved", moved(bits(export), 3))
    roots = {}
    for n, source in enumerate([["--shards", MEGATRON / "qwen3" / "tp2pp2"], [moved_export],
                                ["--shards", MEGATRON / "qwen3" / "pp2"], [moved_export],
                                ["--shards", MEGATRON / "qwen3" / "tp2"]], start=1):
        roots[n] = bench.publish("--seed", export, *source)["root"]
    assert roots[1] == roots[3] == roots[5] != roots[2] == roots[4]
    bench.pull("image", "--seed", export)
    assert bits(bench.path / "image") == bits(export)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_each_rank_process_opens_only_its_own_rank_file(bench):
    shards = MEGATRON / "qwen3" / "tp2pp2"
    copy_file_as_model(export_of("qwen3"), bench.path / "export")
    bench.publish("--seed", bench.path / "export")
    for rank in range(4):
        log = bench.path / f"strace{rank}"
        bench.publish("--shards", shards, "--rank", rank, "--number", 1, "--epoch", 1,
                      prefix=["strace", "-f", "-o", log, "-e", "trace=open,openat,openat2,stat"])
        opened = set(re.findall(r"rank(\d+)\.", log.read_text()))
        assert opened == {str(rank)}
    assert bench.pull("image", "--seed", bench.path / "export")["number"] == 1


# ---- acceptance 2: convert ----


@pytest.mark.parametrize("family,topology", [(f, t) for f in FAMILIES for t in topologies(f)])
def test_convert_gives_exactly_the_exported_tensors(tmp_path, family, topology):
    run("convert", "--shards", MEGATRON / family / topology, "--out", tmp_path / "out")
    expected, found = bits(export_of(family, topology)), bits(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, (dtype, shape, data) in expected.items():
        # A padded vocabulary leaves with its true rows only (200 of 224 in tp2pad).
        rows = found[name][1][:1]
        if topology == "tp2pad" and rows != shape[:1]:
            assert rows == (200,) and shape[0] == 224
            shape, data = (200, *shape[1:]), data[: len(data) // 224 * 200]
        assert found[name] == (dtype, shape, data), name


@pytest.mark.parametrize("family,topology", [("qwen3", "tp2pp2"), ("qwen3_tied", "tp2pad"),
                                             ("qwen3_moe", "tp2ep2etp1"), ("gpt_oss", "tp2etp1"),
                                             ("qwen3_vl", "tp2pp2"), ("deepseek_v3_mtp", "tp2")])
def test_both_modes_convert_to_equal_files(tmp_path, family, topology):
    done = {mode: run("convert", "--shards", MEGATRON / family / topology, "--out", tmp_path / mode,
                      "--mode", mode) for mode in ("bridge", "raw")}
    assert [done[mode]["mode"] for mode in ("bridge", "raw")] == ["bridge", "raw"]
    assert done["bridge"]["plan_hash"] == done["raw"]["plan_hash"]
    files = {mode: {p.name: p.read_bytes() for p in (tmp_path / mode).iterdir()} for mode in done}
    assert files["bridge"] == files["raw"] and "model.safetensors" in files["raw"]


# ---- acceptance 4: attempts never mix ----


def test_after_a_partial_announce_the_new_epoch_wins_and_zombies_are_refused(bench):
    shards = bench.path / "shards"
    shutil.copytree(MEGATRON / "qwen3" / "tp2pp2", shards)
    config = MEGATRON / "qwen3" / "hf_source" / "config.json"
    export = copy_file_as_model(export_of("qwen3"), bench.path / "export")
    bench.publish("--seed", export)

    def rank(k, epoch):
        return bench.publish("--shards", shards, "--config", config, "--rank", k, "--number", 1,
                             "--epoch", epoch)

    old = [rank(0, 1), rank(2, 1)]
    assert [r["state"] for r in old] == ["STAGING"] * 2
    # The job comes back with other weights.
    for file in shards.glob("rank*.safetensors"):
        raw = bytearray(file.read_bytes())
        size = int.from_bytes(raw[:8], "little")
        for key, entry in json.loads(raw[8 : 8 + size]).items():
            if key.endswith("linear_fc1.weight"):  # sharded: no replica that must stay equal
                at = 8 + size + entry["data_offsets"][0]
                raw[at : at + 64] = bytes(byte ^ 0x11 for byte in raw[at : at + 64])
        file.write_bytes(raw)
    run("convert", "--shards", shards, "--config", config, "--out", bench.path / "truth")
    assert bits(bench.path / "truth") != bits(export)
    second = [rank(k, 2) for k in range(4)]
    assert second[-1]["state"] == "READY"
    assert second[-1]["uid"] != old[0]["uid"]
    assert "fence" in failing(CONFLICT, lambda: rank(1, 1))
    bench.pull("image", "--seed", export)
    assert bits(bench.path / "image") == bits(bench.path / "truth")


# ---- acceptance 7: each its own error ----


def test_usage_errors(bench):
    for words in (["--nonsense"], [], ["--rank", "1"], [bench.path, "--shards", bench.path]):
        failing(USAGE, lambda words=words: bench.publish(*words))
    failing(USAGE, lambda: run("pull", bench.path / "image"))
    failing(USAGE, lambda: run("publish", "--catalog", "mysql:x", "--store", bench.store, "--run", "r",
                               bench.path))


def test_a_changed_inventory_within_a_run_is_a_conflict_that_names_the_difference(bench):
    tensors = odd_tensors()
    write_raw(bench.path / "seed", tensors)
    bench.publish("--seed", bench.path / "seed")
    del tensors["half"]
    tensors["extra"] = ("BF16", (2,), b"1234")
    write_raw(bench.path / "other", tensors)
    message = failing(CONFLICT, lambda: bench.publish(bench.path / "other"))
    assert "half" in message and "extra" in message


def test_a_number_that_is_ready_answers_equal_requests_and_refuses_others(bench):
    seed = odd_tensors()
    write_raw(bench.path / "seed", seed)
    write_raw(bench.path / "a", moved(seed, 1))
    write_raw(bench.path / "b", moved(seed, 2))
    first = bench.publish("--seed", bench.path / "seed", bench.path / "a", "--number", 4)
    again = bench.publish(bench.path / "a", "--number", 4)
    assert again["uid"] == first["uid"] and again["already"]
    failing(CONFLICT, lambda: bench.publish(bench.path / "b", "--number", 4))
    failing(CONFLICT, lambda: bench.publish(bench.path / "b", "--number", 3))
    assert bench.publish(bench.path / "b")["number"] == 5


def test_an_unknown_megatron_name_and_a_missing_one_are_listed_with_the_rank(bench):
    shards = bench.path / "shards"
    shutil.copytree(MEGATRON / "qwen3" / "tp2", shards)
    file = shards / "rank1.safetensors"
    raw = file.read_bytes()
    changed = raw.replace(b"vp0/decoder.layers.1.mlp.linear_fc2.weight",
                          b"vp0/decoder.layers.1.mlp.linear_fcX.weight")
    assert changed != raw
    file.write_bytes(changed)
    config = MEGATRON / "qwen3" / "hf_source" / "config.json"
    for words in (["convert", "--out", bench.path / "out"],):
        message = failing(DATA, lambda words=words: run(*words, "--shards", shards, "--config", config))
        assert "linear_fcX" in message and "linear_fc2" in message and "rank 1" in message
    message = failing(DATA, lambda: bench.publish("--shards", shards, "--config", config))
    assert "linear_fcX" in message and "linear_fc2" in message and "rank 1" in message


def test_a_seed_tensor_without_an_owner_is_an_error_that_lists_it_and_carry_declares_it(bench):
    tensors = bits(export_of("qwen3"))
    tensors["visual.tower.weight"] = ("BF16", (4, 4), bytes(range(32)))
    seed = write_raw(bench.path / "seed", tensors)
    shards = MEGATRON / "qwen3" / "tp2pp2"
    message = failing(DATA, lambda: bench.publish("--seed", seed, "--shards", shards))
    assert "visual.tower.weight" in message
    published = bench.publish("--seed", seed, "--shards", shards, "--carry", "visual.*", "--full")
    bench.pull("image")  # the carried tensor's bytes went with the full version
    assert bits(bench.path / "image") == tensors
    assert bench.verify("image")["root"] == published["root"]


def test_a_lost_part_names_the_object_and_changes_nothing(bench):
    seed = odd_tensors()
    write_raw(bench.path / "seed", seed)
    write_raw(bench.path / "step", moved(seed, 1))
    bench.publish("--seed", bench.path / "seed")
    bench.pull("image", "--seed", bench.path / "seed")
    bench.publish(bench.path / "step")
    part = next((bench.path / "store").glob("runs/*/*/*-delta-*"))
    part.unlink()
    failing(UNAVAILABLE, lambda: bench.pull("image"))
    assert bits(bench.path / "image") == seed


def test_any_flipped_byte_of_a_part_is_found_before_anything_is_applied(bench):
    seed = odd_tensors()
    write_raw(bench.path / "seed", seed)
    write_raw(bench.path / "step", moved(seed, 1))
    bench.publish("--seed", bench.path / "seed")
    bench.pull("image", "--seed", bench.path / "seed")
    bench.publish(bench.path / "step")
    part = next((bench.path / "store").glob("runs/*/*/*-delta-*"))
    raw = part.read_bytes()
    part.chmod(0o644)
    for at in range(0, len(raw), max(1, len(raw) // 40)):
        part.write_bytes(raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :])
        if at < 16:
            continue  # the head is for people and `file`; readers start from the footer
        failing(DATA, lambda: bench.pull("image"))
        assert bits(bench.path / "image") == seed
    for cut in (1, 24, len(raw) // 2):
        part.write_bytes(raw[:-cut])
        failing(DATA, lambda: bench.pull("image"))
    part.write_bytes(raw)
    bench.pull("image")
    assert bits(bench.path / "image") == moved(seed, 1)


def test_a_rotten_image_cell_that_a_delta_reads_is_found_before_anything_is_applied(bench):
    seed = odd_tensors()
    write_raw(bench.path / "seed", seed)
    write_raw(bench.path / "step", moved(seed, 1))
    bench.publish("--seed", bench.path / "seed")
    bench.pull("image", "--seed", bench.path / "seed")
    bench.publish(bench.path / "step")
    file = bench.path / "image" / "model.safetensors"
    raw = file.read_bytes()
    at = raw.index(seed["plain.weight"][2])
    rotten = raw[: at + 7] + bytes([raw[at + 7] ^ 2]) + raw[at + 8 :]
    file.write_bytes(rotten)
    assert "plain.weight" in failing(DATA, lambda: bench.pull("image"))
    assert file.read_bytes() == rotten


def test_a_catalog_that_is_missing_or_not_ours(bench):
    failing(UNAVAILABLE, lambda: bench.pull("image"))  # nothing there: not reachable
    (bench.path / "catalog.db").write_text("not a database, but long enough to look at" * 100)
    failing(DATA, lambda: bench.pull("image"))


def test_help_teaches_by_example():
    text = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    for command in ("publish", "pull", "verify", "convert", "demo"):
        assert command in text
        page = subprocess.run([BINARY, command, "--help"], capture_output=True, text=True,
                              check=True).stdout
        assert "Examples:" in page and f"weightcast {command}" in page
