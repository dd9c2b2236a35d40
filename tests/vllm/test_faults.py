"""Faults, planted: each is caught and named, and no live weight has changed, or the engine is fenced
and says so; a full update then heals it.

Every test begins and ends with an engine that serves version 1, as a fresh engine does."""

import contextlib
import dataclasses
import threading
import types

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from engines import Engine, Run, weights  # noqa: E402

import models  # noqa: E402
import weightcast  # noqa: E402
from weightcast.vllm import engine as plugin_module  # noqa: E402
from weightcast.vllm import kernels, placement, settings  # noqa: E402


class Subject:
    """An engine that follows a run of its own; versions 1 and 2 are at hand."""

    def __init__(self, engine, run, image):
        self.engine, self.run, self.image = engine, run, image
        self.plugin = engine.plugin

    def heal(self):
        fenced = self.engine.status()["state"] == "fenced"
        self.engine.update(self.run.uids[1], full=fenced)

    def refuses(self, what, version=2, **more):
        """An update that must fail with the text; gives the error."""
        self.engine.prepare(self.run.uids[version])
        with pytest.raises(Exception, match=what) as caught:
            self.engine.write(self.run.uids[version], **more)
        return caught.value

    def assert_fenced(self, what=""):
        status = self.engine.status()
        assert (status["state"], status["version"], status["number"]) == ("fenced", "", -1)
        assert what in status["reason"]
        with pytest.raises(Exception, match="conflict: fenced"):
            self.engine.prove("all")
        assert not any(p.is_meta for p in self.engine.model.parameters())
        self.assert_no_hold()

    def assert_no_hold(self):
        """The image can move: nobody kept it."""
        self.run.pull(self.image, 2, hold_seconds=0.5)
        self.run.pull(self.image, 1, hold_seconds=0.5)

    @contextlib.contextmanager
    def nothing_changes(self):
        before = live_bytes(self.engine.model)
        status = self.engine.status()
        yield
        after = live_bytes(self.engine.model)
        assert before.keys() == after.keys()
        assert [n for n in before if not torch.equal(before[n], after[n])] == []
        now = self.engine.status()
        assert [now[k] for k in ("version", "number")] == [status[k] for k in ("version", "number")]
        assert now["state"] in ("serving", "prepared")
        self.assert_no_hold()


def live_bytes(model):
    return {name: p.detach().contiguous().view(torch.uint8).flatten().clone()
            for name, p in model.named_parameters() if p.numel()}


@contextlib.contextmanager
def subject(directory, kind, **more):
    run = Run(directory / "run", kind, steps=4, full=())
    expected = run.tokens(1)
    with Engine(run.checkpoint(0), run.dtype) as engine:
        engine.init(**run.settings(directory / "image", **more))
        one = Subject(engine, run, directory / "image")
        one.expected = expected
        yield one


class Stage:
    """Room for one engine, which stays while it is what is asked for."""

    def __init__(self, tmp_path_factory):
        self.new_directory = tmp_path_factory.mktemp
        self.open, self.wanted, self.one = contextlib.ExitStack(), None, None

    def __call__(self, *wanted, **settings):
        wanted += tuple(settings.items())
        if wanted != self.wanted:
            self.clear()
            self.one = self.open.enter_context(subject(self.new_directory("run"), wanted[0], **settings))
            self.wanted = wanted
        return self.one

    def clear(self):
        self.one = self.wanted = None
        self.open.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    stage = Stage(tmp_path_factory)
    yield stage
    stage.clear()


@pytest.fixture(scope="module", params=[True, False], ids=["canonical", "packed"])
def canonical(request):
    return request.param


@pytest.fixture
def dense(stage, canonical):
    yield from healthy(stage("qwen3", keep_canonical=canonical))


def healthy(one):
    one.heal()
    yield one
    one.heal()
    assert one.engine.tokens() == one.expected
    assert set(how for how, *_ in one.engine.prove("all").values()) <= {"live", "repacked", "probed"}


# ---- wrong maps ----

def swapped(names):
    def change(place):
        index = [[spec[0] for spec in place.specs].index(name) for name in names]
        other = dict(zip(index, reversed(index)))
        return [dataclasses.replace(c, tensor=other.get(c.tensor, c.tensor)) for c in place.copies]
    return change


def shifted(name, by):
    def change(place):
        index = [spec[0] for spec in place.specs].index(name)
        return [dataclasses.replace(c, offset=c.offset + by) if c.tensor == index else c
                for c in place.copies]
    return change


LAYER = "model.layers.1."
WRONG_MAPS = {
    "two norms swapped": swapped([f"model.layers.{i}.input_layernorm.weight" for i in (0, 1)]),
    "k and v swapped": swapped([f"{LAYER}self_attn.{p}_proj.weight" for p in "kv"]),
    "gate and up swapped": swapped([f"{LAYER}mlp.{p}_proj.weight" for p in ("gate", "up")]),
    "k a unit too early": shifted(f"{LAYER}self_attn.k_proj.weight", -1),
    "k a row too early": shifted(f"{LAYER}self_attn.k_proj.weight", -models.HIDDEN),
}


def plant(place, change):
    place.copies = change(place)
    place.copies_of = {}
    for copy in place.copies:
        place.copies_of.setdefault(copy.module, []).append(copy)
    return place


@pytest.mark.parametrize("change", WRONG_MAPS.values(), ids=WRONG_MAPS)
def test_a_wrong_map_is_caught_by_a_full_update(change, dense, monkeypatch):
    record = placement.record
    monkeypatch.setattr(placement, "record", lambda *a: plant(record(*a), change))
    dense.plugin._placement = None
    try:
        dense.refuses("data-loss: live weights are not version", full=True)
    except BaseException:
        # Where the module's weights are packed, no one map of them is used: but a proof sees it.
        with pytest.raises(Exception, match="data-loss: live weights are not version"):
            dense.engine.prove("all")
    dense.assert_fenced("live weights are not version")


@pytest.mark.parametrize("change", WRONG_MAPS.values(), ids=WRONG_MAPS)
def test_a_wrong_map_is_caught_by_a_delta(change, dense):
    plant(dense.plugin._placement, change)
    with weightcast.Image(dense.image) as image:
        dense.plugin._bind(image, keep=True)
    try:
        dense.refuses("data-loss: live weights are not version")
    except BaseException:
        with pytest.raises(Exception, match="data-loss: live weights are not version"):
            dense.engine.prove("all")
    dense.assert_fenced("live weights are not version")


# ---- loaders ----

def losing(load_weights, lost):
    return lambda given: load_weights((n, t) for n, t in given if not lost(n))


@pytest.mark.parametrize("lost", ["model.layers.1.", f"{LAYER}self_attn.q_proj.", f"{LAYER}mlp.up_proj.",
                                  f"{LAYER}input_layernorm.", "lm_head.", "model.embed_tokens."])
def test_a_skipped_layer(lost, dense, monkeypatch):
    monkeypatch.setattr(dense.engine.model, "load_weights",
                        losing(dense.engine.model.load_weights, lambda name: name.startswith(lost)))
    dense.refuses("data-loss: the model's loaders left out", full=True)
    monkeypatch.undo()
    dense.assert_fenced("left out")


@pytest.mark.parametrize("at", ["model.embed_tokens.weight", f"{LAYER}self_attn.k_proj.weight",
                                f"{LAYER}post_attention_layernorm.weight"])
def test_an_exception_while_loading(at, dense, monkeypatch):
    load_weights = dense.engine.model.load_weights

    def failing(given):
        def until():
            for name, tensor in given:
                if name == at:
                    raise RuntimeError(f"planted at {name} {tuple(tensor.shape)}")
                yield name, tensor
        return load_weights(until())

    monkeypatch.setattr(dense.engine.model, "load_weights", failing)
    error = dense.refuses("weightcast internal: RuntimeError: planted at", full=True)
    monkeypatch.undo()
    dense.assert_fenced("planted at")
    assert error.__traceback__ is not None  # that keeps frames, and must not keep the image
    assert dense.engine.tokens(), "the engine lives"


def test_an_exception_while_packing(dense, monkeypatch):
    module = dense.engine.model.model.layers[1].mlp.down_proj

    def fail(_):
        raise ValueError("planted")

    monkeypatch.setattr(module.quant_method, "process_weights_after_loading", fail)
    monkeypatch.setattr(kernels, "_use_plain_linear", fail)
    dense.refuses("weightcast internal: ValueError: planted", full=True)
    monkeypatch.undo()
    dense.assert_fenced("planted")
    assert dense.engine.tokens(), "the engine lives"


# ---- live weights ----

def flip(tensor, at):
    tensor.data.view(torch.int16).view(-1)[at] ^= 1


def test_a_flipped_bit_is_named_by_a_proof(dense):
    flip(dense.engine.model.model.norm.weight, 7)
    with pytest.raises(Exception, match=r"data-loss: .*: model\.norm\.weight"):
        dense.engine.prove("all")
    dense.assert_fenced("model.norm.weight")


def changed_units(run, name):
    one, two = (weights(run.checkpoint(n))[name].view(torch.int16).flatten() for n in (1, 2))
    return (one != two).nonzero().flatten().tolist()


def test_a_flipped_bit_beside_a_delta_is_named_by_it(dense):
    where = changed_units(dense.run, "model.norm.weight")
    flip(dense.engine.model.model.norm.weight, next(i for i in range(64) if i not in where))
    dense.refuses(r"data-loss: .*: model\.norm\.weight")
    dense.assert_fenced("model.norm.weight")


def test_a_flipped_bit_under_a_delta_has_the_module_reloaded(dense):
    flip(dense.engine.model.model.norm.weight, changed_units(dense.run, "model.norm.weight")[0])
    dense.engine.update(dense.run.uids[2])
    assert dense.engine.prove("all")["model.norm.weight"][0] == "live"


def test_a_weight_that_was_moved_is_found_again(dense):
    """Whoever reloads, sleeps or offloads may give a parameter other memory."""
    norm = dense.engine.model.model.norm.weight
    for prove_first in (True, False):
        old = norm.data
        norm.data = old.clone()
        old.fill_(0)  # what was there is somebody else's now
        if prove_first:
            assert dense.engine.prove("all")["model.norm.weight"][0] == "live"
        number = 2 if prove_first else 1
        dense.engine.update(dense.run.uids[number])
        assert dense.engine.prove("all")["model.norm.weight"][0] == "live"
        assert not old.any(), "nothing was written there"


def test_a_private_copy_that_is_not_the_weight(dense):
    """The head of a CPU computes with a packed copy: alone, it is seen by probing only."""
    head = dense.engine.model.lm_head
    if not kernels.computes_with_copy(head):  # then there is no copy, and it is as good as its digest
        assert dense.engine.prove("all")["lm_head.weight"][0] == "live"
        return
    weight = head.weight.data
    head.weight.data = weight.roll(1, 0)
    head.quant_method.process_weights_after_loading(head)
    head.weight.data = weight
    with pytest.raises(Exception, match=r"lm_head\.weight \(in a kernel's layout\)"):
        dense.engine.prove("all")
    dense.assert_fenced("lm_head.weight")


# ---- versions ----

def test_a_version_that_the_image_is_not_at(dense):
    with dense.nothing_changes():
        for version in (dense.run.uids[2], "0" * 32, "2"):
            with pytest.raises(Exception, match="conflict: the image .* is at version"):
                dense.engine.write(version)
        with pytest.raises(Exception, match="invalid-argument: update_info: version"):
            dense.engine.write("")


def test_a_base_that_no_journal_begins_at_is_a_full_update(dense):
    dense.plugin._version = "ab" * 16
    dense.engine.update(dense.run.uids[2])
    assert len(dense.engine.prove("touched")) == len(dense.engine.prove("all"))


def other_model(directory, tensors, monkeypatch):
    """Settings of a run whose version 0 has these tensors, and an image at it."""
    directory.mkdir()
    models.save(tensors, directory)
    (directory / "config.json").write_text("{}")
    run = {"catalog": f"sqlite:{directory}/c.db", "run": "other", "image": str(directory / "image"),
           "seed": str(directory), "durability": "process"}
    with weightcast.Publisher(run["catalog"], f"file:{directory}/bytes", "other", tensors,
                              seed=directory, baseline=directory / "base"):
        pass
    weightcast.pull(run["catalog"], "other", run["image"], seed=directory, durability="process")
    return settings.Settings(**run)


NORM = f"{LAYER}input_layernorm.weight"
OTHER_MODELS = {
    "renamed": (lambda t: t | {NORM.replace("input", "output"): t.pop(NORM)}, "output_layernorm"),
    "left out": (lambda t: t.pop(NORM) is None or t, "input_layernorm"),
    "a part left out": (lambda t: t.pop(f"{LAYER}self_attn.v_proj.weight") is None or t, "qkv_proj"),
    "added": (lambda t: t | {f"{LAYER}extra.weight": torch.zeros(4)}, "extra.weight"),
    "another shape": (lambda t: t | {NORM: torch.ones(32, dtype=torch.bfloat16)}, NORM),
    "another rank": (lambda t: t | {NORM: torch.ones(8, 8, dtype=torch.bfloat16)}, NORM),
    "one element": (lambda t: t | {NORM: torch.ones(1, dtype=torch.bfloat16)}, NORM),
    "more rows": (lambda t: t | {"lm_head.weight": torch.zeros(260, 64, dtype=torch.bfloat16)},
                  "lm_head.weight"),
    "integers": (lambda t: t | {NORM: torch.ones(64, dtype=torch.int32)}, NORM),
    "bytes": (lambda t: t | {NORM: torch.ones(64).to(torch.float8_e4m3fn)}, NORM),
}


@pytest.mark.parametrize("change, named", OTHER_MODELS.values(), ids=OTHER_MODELS)
def test_tensors_that_are_not_the_models(change, named, dense, tmp_path, monkeypatch):
    other = other_model(tmp_path / "other", change(weights(dense.run.checkpoint(1))), monkeypatch)
    with dense.nothing_changes():
        with monkeypatch.context() as patch:
            patch.setattr(dense.plugin, "_settings", other)
            with weightcast.Image(other.image) as image:
                version = image.version
            with pytest.raises(Exception, match=f"weightcast invalid-data: .*{named}"):
                dense.engine.write(version)
            with pytest.raises(Exception, match="conflict"):
                dense.engine.prove("all")
    weightcast.pull(other.catalog, "other", other.image, hold_seconds=0.5)


# ---- prepare ----

@contextlib.contextmanager
def moved_away(path):
    aside = path.with_name(path.name + ".aside")
    path.rename(aside)
    try:
        yield
    finally:
        aside.rename(path)


def test_a_corrupt_part(dense):
    store = dense.run.directory / "bytes"
    version = dense.run.uids[4]
    parts = [p for p in store.rglob("*") if p.is_file() and version in str(p) and p.suffix != ".json"]
    assert parts
    before = {part: part.read_bytes() for part in parts}
    try:
        for part, data in before.items():
            middle = len(data) // 3
            part.chmod(0o644)
            part.write_bytes(data[:middle] + bytes(64) + data[middle + 64:])
        with dense.nothing_changes():
            status = dense.engine.prepare(version)
            assert (status["state"], status["prepared"]) == ("serving", ""), status
            assert "data-loss" in status["reason"] and version in status["reason"]
            assert dense.engine.tokens() == dense.expected
        dense.engine.update(dense.run.uids[2])  # the next thing that is asked for works
    finally:
        for part, data in before.items():
            part.write_bytes(data)
    dense.engine.update(version)
    assert dense.engine.prove("all")


@pytest.mark.parametrize("missing", ["catalog.db", "bytes"])
def test_catalog_or_store_missing(missing, dense):
    with moved_away(dense.run.directory / missing):
        status = dense.engine.prepare(dense.run.uids[3])
        assert (status["state"], status["prepared"]) == ("serving", ""), status
        assert status["reason"].startswith("weightcast ")
        assert f": prepare {dense.run.uids[3]}: " in status["reason"]
    with dense.nothing_changes():
        pass


def test_a_version_that_no_catalog_knows(dense):
    with dense.nothing_changes():
        assert "not-found" in dense.engine.prepare("77")["reason"]
        with pytest.raises(Exception, match="invalid-argument: prepare: version"):
            dense.engine.rpc("prepare")


def test_a_version_by_its_number_is_prepared_as_its_uid(dense):
    assert dense.engine.prepare("2")["prepared"] == dense.run.uids[2]


def test_the_image_held_by_someone_else(dense, monkeypatch):
    monkeypatch.setitem(weightcast.image.pull.__kwdefaults__, "hold_seconds", 0.2)
    with weightcast.Image(dense.image):
        status = dense.engine.prepare(dense.run.uids[2])
    assert (status["state"], status["prepared"]) == ("serving", "")
    assert "deadline-exceeded" in status["reason"]
    with dense.nothing_changes():
        pass
    dense.engine.update(dense.run.uids[2])
    assert dense.engine.status()["reason"] == ""


@contextlib.contextmanager
def slow_pull(monkeypatch):
    go, pull = threading.Event(), weightcast.pull
    monkeypatch.setattr(weightcast, "pull", lambda *a, **k: go.wait(30) and pull(*a, **k))
    try:
        yield go
    finally:
        go.set()


def test_two_prepares_at_once_and_an_update_meanwhile(dense, monkeypatch):
    with slow_pull(monkeypatch) as go:
        status = dense.engine.rpc("prepare", version=dense.run.uids[2])
        assert (status["state"], status["preparing"]) == ("preparing", True)
        with pytest.raises(Exception, match=f"conflict: a prepare for {dense.run.uids[2]} is under way"):
            dense.engine.rpc("prepare", version=dense.run.uids[1])
        again = dense.engine.rpc("prepare", version=dense.run.uids[2])  # as a new coordinator would
        assert again["preparing"]
        with pytest.raises(Exception, match="conflict: a prepare is under way: wait"):
            dense.engine.write(dense.run.uids[1])
        assert dense.engine.prove("all"), "what it serves is proven meanwhile"
        go.set()
    dense.plugin._thread.join()
    assert dense.engine.status()["state"] == "prepared"
    dense.engine.write(dense.run.uids[2])


def test_a_fenced_engine_says_how_its_prepare_went(dense, monkeypatch):
    dense.plugin._fence("planted")
    status = dense.engine.prepare("77")
    assert status["state"] == "fenced"
    assert status["reason"].startswith("planted; weightcast not-found: prepare 77: ")
    with slow_pull(monkeypatch):
        status = dense.engine.rpc("prepare", version=dense.run.uids[1])
        assert (status["state"], status["preparing"]) == ("fenced", True)
    dense.plugin._thread.join()
    assert dense.engine.status()["prepared"] == dense.run.uids[1]


# ---- calls out of order, wrong calls ----

def test_finish_without_an_update_and_how_to_go_on(dense):
    llm = dense.engine.llm
    with pytest.raises(Exception, match="without a matching start"):
        llm.finish_weight_update("7")
    llm.start_weight_update()
    with pytest.raises(Exception, match="conflict: finish_weight_update: this session"):
        llm.finish_weight_update("7")
    with pytest.raises(Exception, match="already"):  # the session is open still, in vLLM
        llm.start_weight_update()
    llm.update_weights({"update_info": {"version": dense.run.uids[1]}})
    llm.finish_weight_update("1")


def test_a_failed_update_ends_the_session(dense):
    dense.engine.llm.start_weight_update()
    with pytest.raises(Exception, match="conflict"):
        dense.engine.llm.update_weights({"update_info": {"version": "00"}})
    with pytest.raises(Exception, match="without a matching start"):
        dense.engine.llm.finish_weight_update("2")
    dense.engine.update(dense.run.uids[2])


def test_unknown_keys(dense):
    with dense.nothing_changes():
        with pytest.raises(Exception, match="invalid-argument: init_info: unknown: catalogue; known: "):
            dense.engine.init(catalogue="x")
        dense.engine.llm.start_weight_update()
        with pytest.raises(Exception, match="invalid-argument: update_info: unknown: versoin; known: "):
            dense.engine.llm.update_weights({"update_info": {"versoin": "x"}})
        with pytest.raises(Exception, match="invalid-argument: prove: unknown: scop"):
            dense.engine.rpc("prove", scop="all")
        with pytest.raises(Exception, match="invalid-argument: scope 'some'"):
            dense.engine.prove("some")
        with pytest.raises(Exception, match="invalid-argument: op 'destroy'"):
            dense.engine.rpc("destroy")


def test_init_again(dense):
    same = dataclasses.asdict(dense.plugin._settings)
    dense.engine.init(**same)
    dense.engine.init()
    for other in ({"image": "/elsewhere"}, {"keep_canonical": not same["keep_canonical"]}):
        with pytest.raises(Exception, match="conflict: this engine follows"):
            dense.engine.init(**(same | other))


def test_an_engine_asleep(dense, monkeypatch):
    param = dense.engine.model.model.norm.weight
    memory = param.data.clone()
    dense.engine.prepare(dense.run.uids[2])
    param.untyped_storage().resize_(0)
    with pytest.raises(Exception, match="conflict: the engine is asleep .model.norm.weight"):
        dense.engine.write(dense.run.uids[2])
    assert dense.engine.status()["version"] == dense.run.uids[1]
    param.data = memory
    dense.engine.write(dense.run.uids[2])
    assert dense.engine.prove("all")


# ---- experts ----

@pytest.fixture
def experts(stage):
    yield from healthy(stage("qwen3_moe", keep_canonical=True))


def expert_modules(one):
    return [name for name in one.plugin._placement.tensors_of
            if kernels.expert_packing(one.plugin._placement.modules[name])]


def test_packed_experts_taken_for_canonical(experts):
    modules = expert_modules(experts)
    place = experts.plugin._placement
    assert len(modules) == 2 and set(modules) <= set(place.repacked)
    with weightcast.Image(experts.image) as image:
        experts.plugin._target = place.bind(image.hold, repacked={})
    assert not set(modules) & set(place.repacked)
    experts.refuses("data-loss: live weights are not version 2")
    experts.assert_fenced("experts")


def test_packed_experts_written_in_place(experts):
    w13 = experts.plugin._placement.modules[expert_modules(experts)[1]].w13_weight
    flip(w13, 11)
    with pytest.raises(Exception, match=r"layers\.1\.mlp\.experts.*\(in a kernel's layout\)"):
        experts.engine.prove("all")
    experts.assert_fenced("experts")


def test_experts_left_unpacked_or_packed_twice(experts, monkeypatch):
    """vLLM's own fault, without what the plugin does about it, and done once too often."""
    for pack in (lambda *_: None, None):
        again = experts.plugin._repack_experts

        def twice(image, modules):
            again(image, modules)
            for name in modules:
                packing = kernels.expert_packing(experts.plugin._placement.modules[name])
                if packing:
                    packing()

        monkeypatch.setattr(experts.plugin, "_repack_experts", pack or twice)
        experts.engine.prepare(experts.run.uids[2])
        with pytest.raises(Exception, match="data-loss: live weights are not version 2"):
            experts.engine.write(experts.run.uids[2], full=True)
            experts.engine.prove("all")
        monkeypatch.undo()
        experts.assert_fenced("experts")
        experts.heal()


def test_an_expert_that_the_loaders_leave_out(experts, monkeypatch):
    model = experts.engine.model
    monkeypatch.setattr(model, "load_weights",
                        losing(model.load_weights, lambda name: ".0.mlp.experts.5.up_proj" in name))
    experts.refuses(r"data-loss: the model's loaders left out model\.layers\.0\.mlp\.experts", full=True)
    monkeypatch.undo()
    experts.assert_fenced("left out")


# ---- an engine that nobody has initialised ----

def test_a_first_update_that_fails_half_way_to_canonical_linears(stage, tmp_path, monkeypatch):
    stage.clear()
    with subject(tmp_path, "qwen3_tied", keep_canonical=True) as one:
        model, record = one.engine.model, placement.record

        def record_then_lose(*arguments):
            place = record(*arguments)
            monkeypatch.setattr(model, "load_weights",
                                losing(model.load_weights, lambda name: ".1.mlp.down" in name))
            return place

        monkeypatch.setattr(placement, "record", record_then_lose)
        one.refuses("data-loss: the model's loaders left out", version=1)
        monkeypatch.undo()
        one.assert_fenced("left out")
        assert one.engine.tokens(), "the engine lives"
        one.heal()
        assert one.engine.tokens() == one.expected
        assert {how for how, *_ in one.engine.prove("all").values()} == {"live"}


def test_before_init_and_wrong_settings(stage, tmp_path):
    stage.clear()
    run = Run(tmp_path / "run", steps=1)
    with Engine(run.checkpoint(0)) as engine:
        assert engine.status()["state"] == "new"
        for call in (engine.llm.start_weight_update, lambda: engine.rpc("prepare", version="1"),
                     lambda: engine.prove("all")):
            with pytest.raises(Exception, match="conflict: not initialised"):
                call()
        for wrong, named in (
                ({"image": "img"}, "image 'img': expected an absolute path"), ({"run": ""}, "missing: run"),
                ({"catalog": ""}, "missing: catalog"), ({"durability": "disk"}, "durability 'disk'"),
                ({"threads": "2"}, "threads '2': expected int"), ({"threads": -1}, "threads -1"),
                ({"keep_canonical": "no"}, "keep_canonical 'no': expected bool")):
            with pytest.raises(Exception, match=f"weightcast invalid-argument: .*{named}"):
                engine.init(**(run.settings(tmp_path / "image") | wrong))
        assert engine.status()["state"] == "new"
        engine.init(**run.settings("/proc/weightcast/image"))  # nothing can be written there
        status = engine.prepare(run.uids[1])
        assert (status["state"], status["prepared"]) == ("serving", "")
        assert "/proc/weightcast" in status["reason"]
        engine.llm.start_weight_update()
        with pytest.raises(Exception, match="not-found.*/proc/weightcast/image"):
            engine.llm.update_weights({"update_info": {"version": run.uids[1]}})


class FakeConfig:
    def __init__(self, quantization=None, **parallel):
        self.model_config = types.SimpleNamespace(quantization=quantization)
        self.parallel_config = types.SimpleNamespace(rank=0, world_size=1, **parallel)


@pytest.mark.parametrize("config, named", [
    ({"quantization": "fp8"}, "quantization 'fp8'"),
    ({"pipeline_parallel_size": 2}, "pipeline_parallel_size 2"),
    ({"enable_expert_parallel": True, "quantization": "awq"},
     "quantization 'awq', enable_expert_parallel True"),
])
def test_an_engine_that_is_not_updated_yet_is_refused_by_name(config, named):
    with pytest.raises(Exception, match=f"weightcast: {named}: only unquantised engines"):
        plugin_module.Engine(None, FakeConfig(**config), torch.device("cpu"), torch.nn.Linear(2, 2))


def test_a_vllm_that_gives_neither_model_nor_config():
    with pytest.raises(Exception, match="does not give its model and config"):
        plugin_module.Engine(None, torch.nn.Linear(2, 2))


def test_a_bias_that_another_kernel_left_in_float32():
    x, weight = torch.randn(3, 8).bfloat16(), torch.randn(4, 8).bfloat16()
    bias = torch.randn(4).bfloat16()
    expected = torch.nn.functional.linear(x, weight, bias)
    assert torch.equal(kernels.plain_linear(x, weight, bias.float()), expected)
