"""--load-format weightcast: an engine starts at a version, and is proven before it serves."""

import pytest

pytest.importorskip("vllm")

from engines import Engine, run_of  # noqa: E402
from test_updates import proven_at  # noqa: E402

import weightcast  # noqa: E402


def cold(published, at, /, follows=True, **extra):
    """The seed's directory gives config and tokenizer; its weights are not read."""
    return Engine(published.checkpoint(0), published.dtype, follows, load_format="weightcast",
                  model_loader_extra_config={**published.settings(at), **extra})


@pytest.mark.parametrize("kind, canonical, start", [
    ("qwen3", False, {}), ("qwen3", True, {"version": "2"}), ("qwen3_tied", True, {"version": 2}),
    ("qwen3_moe", False, {"version": "2"}),
])
def test_an_engine_starts_at_a_version_and_goes_on_by_deltas(kind, canonical, start, tmp_path, monkeypatch):
    run = run_of(kind)
    at, then = (2, 3) if start else (3, 2)
    expected = {n: run.tokens(n) for n in (2, 3)}
    with cold(run, tmp_path / "image", keep_canonical=canonical, **start) as engine:
        status = engine.status()
        assert (status["state"], status["version"], status["number"]) == ("serving", run.uids[at], at)
        assert engine.tokens() == expected[at]
        proven_at(engine, tmp_path / "image")
        engine.init()  # nothing to say: it follows the run already
        if at < then:  # an image laid at a version keeps no way back
            monkeypatch.setattr(engine.plugin, "_full", lambda _: pytest.fail("not a delta"))
        if canonical and kind != "qwen3_moe":
            monkeypatch.setattr(engine.plugin, "_reload", lambda *_: pytest.fail("a reload"))
        engine.update(run.uids[then])
        assert engine.tokens() == expected[then]
        proven_at(engine, tmp_path / "image")


def test_without_the_plugin_as_a_backend_it_starts_and_stays(tmp_path):
    run = run_of("qwen3")
    expected = run.tokens(2)
    with cold(run, tmp_path / "image", version="2", follows=False) as engine:
        assert engine.tokens() == expected
    run.pull(tmp_path / "image", 3, hold_seconds=0.5)  # nobody holds it


def test_a_start_that_loads_other_weights_fails(tmp_path, monkeypatch):
    """The image moves between loading and the proof; or a layer is not what was read."""
    from weightcast.vllm import loader

    run = run_of("qwen3")
    read = loader.weightcast.Image.torch

    def other(image, name):
        tensor = read(image, name)
        return tensor + 1 if name == "model.layers.1.self_attn.k_proj.weight" else tensor

    monkeypatch.setattr(loader.weightcast.Image, "torch", other)
    load = loader.Loader.load_weights

    def load_then_read_right(self, *args):
        load(self, *args)
        monkeypatch.setattr(loader.weightcast.Image, "torch", read)

    monkeypatch.setattr(loader.Loader, "load_weights", load_then_read_right)
    with pytest.raises(Exception, match="k_proj"):
        cold(run, tmp_path / "image")
    monkeypatch.undo()

    monkeypatch.setattr(loader.Loader, "load_weights", lambda self, *args: (
        load(self, *args), run.pull(tmp_path / "image", 2)))
    with pytest.raises(Exception, match="conflict: the image moved"):
        cold(run, tmp_path / "image")


@pytest.mark.parametrize("wrong, named", [
    ({"catalog": "sqlite:/nowhere/c.db"}, "/nowhere/c.db"), ({"run": "another"}, "another"),
    ({"version": "77"}, "77"), ({"image": "here"}, "model-loader-extra-config: image 'here'"),
    ({"catalogue": "x"}, "model-loader-extra-config: unknown: catalogue"),
    ({"store": "file:/nowhere/bytes", "version": "3"}, "/nowhere"),
])
def test_a_start_that_cannot_be(wrong, named, tmp_path):
    with pytest.raises(weightcast.errors.Error, match=named):
        cold(run_of("qwen3"), tmp_path / "image", **wrong)
    assert not Engine.alive


def test_another_models_version_does_not_start(tmp_path):
    run = run_of("qwen3")
    tied = run_of("qwen3_moe")
    with pytest.raises(Exception, match="mlp"):
        Engine(run.checkpoint(0), load_format="weightcast",
               model_loader_extra_config=tied.settings(tmp_path / "image"))
