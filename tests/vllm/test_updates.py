"""Live weights follow a run: tokens are a fresh engine's, and every tensor is proven.

Which modules a kernel repacks depends on the CPU: what is asserted holds with and without."""

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from engines import Engine, Run, following, fresh_tokens, run_of, weights  # noqa: E402

import models  # noqa: E402
import weightcast  # noqa: E402

PROVEN = {"live", "repacked", "probed"}


def proven_at(engine, image):
    """Checks a proof of everything against the image; gives {how: names}."""
    proof = engine.prove("all")
    hows = {}
    with weightcast.Image(image) as held:
        assert list(proof) == held.names()
        for name, digest in zip(held.names(), held.digests):
            how, found, units, _ = proof[name]
            hows.setdefault(how, []).append(name)
            assert (found, units) == (digest, held.units(name)), (name, how)
    assert set(hows) <= PROVEN, hows
    return hows


# float32 linears and experts of any dtype are packed on every CPU, the others on some.
@pytest.mark.parametrize("kind, dtype, canonical", [
    ("qwen3", "bfloat16", False), ("qwen3", "bfloat16", True), ("qwen3", "float32", False),
    ("qwen3_tied", "bfloat16", False), ("qwen3_tied", "bfloat16", True),
    ("qwen3_tied", "float32", True), ("qwen3_moe", "bfloat16", False),
    ("qwen3_moe", "bfloat16", True), ("qwen3_moe", "float32", False), ("llama", "bfloat16", True),
    ("llama", "float32", False),
])
def test_full_delta_delta_full_back_forward(kind, dtype, canonical, tmp_path):
    run = run_of(kind, dtype)
    image = tmp_path / "image"
    assert run.tokens(2) != run.tokens(3), "versions that say something"
    with following(run, image, keep_canonical=canonical) as engine:
        for number, full in ((1, False), (2, False), (3, False), (3, True), (2, False), (3, False)):
            engine.update(run.uids[number], full=full)
            status = engine.status()
            assert (status["state"], status["version"], status["number"]) == (
                "serving", run.uids[number], number)
            if number > 1:
                assert engine.tokens() == run.tokens(number), (number, full)
            assert engine.prove("touched"), "each version touches something"
            hows = proven_at(engine, image)
        if canonical:
            assert set(hows) == ({"live", "repacked"} if kind == "qwen3_moe" else {"live"}), hows


def test_a_delta_writes_what_changed_and_reloads_nothing_else(tmp_path, monkeypatch):
    run = run_of("qwen3", "bfloat16")
    expected = run.tokens(2)
    with following(run, tmp_path / "image", keep_canonical=True) as engine:
        engine.update(run.uids[1])
        monkeypatch.setattr(engine.plugin, "_reload", lambda *_: pytest.fail("a reload"))
        engine.update(run.uids[2])
        assert engine.tokens() == expected


def test_a_delta_of_two_steps_at_once(tmp_path):
    run = run_of("qwen3", "bfloat16")
    expected = run.tokens(2)
    for canonical in (True, False):
        image = tmp_path / f"image-{canonical}"
        with following(run, image, keep_canonical=canonical) as engine:
            engine.update(run.uids[0])
            engine.prepare(run.uids[1])
            engine.update(run.uids[2])
            assert engine.tokens() == expected
            proven_at(engine, image)


def test_asked_again_for_where_it_is_it_proves_again(tmp_path):
    run = run_of("qwen3", "bfloat16")
    with following(run, tmp_path / "image") as engine:
        engine.update(run.uids[1])
        touched = engine.prove("touched")
        engine.prove("all")  # does not change what was touched
        engine.write(run.uids[1])
        assert engine.prove("touched") == touched


def test_bfloat16_versions_in_a_float32_engine_are_cast_by_reloads(tmp_path):
    run = run_of("qwen3", "bfloat16")
    image = tmp_path / "image"
    expected = fresh_tokens(str(run.checkpoint(2)), "float32")
    for canonical in (False, True):
        with Engine(run.checkpoint(0), "float32") as engine:
            engine.init(**run.settings(image, keep_canonical=canonical))
            for number in (1, 2):
                engine.update(run.uids[number])
                hows = proven_at(engine, image)
            assert set(hows) <= {"repacked", "probed"}
            assert engine.tokens() == expected


def odd_model(directory, monkeypatch, **config):
    """A model that the usual ones do not stand for."""
    monkeypatch.setattr(models, "VOCAB", 250)  # vLLM pads it
    made = models.config("llama", "bfloat16") | config
    monkeypatch.setattr(models, "config", lambda *_: made)
    shapes = models.shapes("llama")
    if config.get("attention_bias"):
        for layer in range(models.LAYERS):
            for part in "qkvo":
                weight = f"model.layers.{layer}.self_attn.{part}_proj.weight"
                shapes[weight.replace("weight", "bias")] = shapes[weight][:1]
    monkeypatch.setattr(models, "shapes", lambda _: shapes)
    return Run(directory, "llama", steps=3, full=())


@pytest.mark.parametrize("canonical", [False, True])
def test_biases_and_a_padded_vocabulary(canonical, tmp_path, monkeypatch):
    run = odd_model(tmp_path / "run", monkeypatch, attention_bias=True)
    expected = run.tokens(3)
    with following(run, tmp_path / "image", keep_canonical=canonical) as engine:
        assert engine.model.lm_head.weight.shape[0] > 250
        for number in (1, 2, 3):
            engine.update(run.uids[number])
            proven_at(engine, tmp_path / "image")
        assert engine.tokens() == expected


def test_a_tied_head_that_is_stored_all_the_same(tmp_path, monkeypatch):
    """Real checkpoints do (Qwen3-0.6B): vLLM skips it, and it must be the embedding."""
    shapes = models.shapes("qwen3_tied") | {"lm_head.weight": (models.VOCAB, models.HIDDEN)}
    save = models.save
    broken = []

    def tied(tensors, out):
        head = tensors["model.embed_tokens.weight"].clone()
        if out.name in broken:
            head[0, 0] += 1
        save(tensors | {"lm_head.weight": head}, out)

    monkeypatch.setattr(models, "shapes", lambda _: shapes)
    monkeypatch.setattr(models, "save", tied)
    broken.append("v2")
    run = Run(tmp_path / "run", "qwen3_tied", steps=3, full=())
    expected = {n: run.tokens(n) for n in (1, 2, 3)}
    with following(run, tmp_path / "image", keep_canonical=True) as engine:
        engine.update(run.uids[1])
        proven_at(engine, tmp_path / "image")
        assert engine.prepare(run.uids[2])["prepared"]
        with pytest.raises(Exception, match="lm_head.weight differs from model.embed_tokens.weight"):
            engine.write(run.uids[2])
        assert engine.status()["version"] == run.uids[1]
        assert engine.tokens() == expected[1]
        engine.update(run.uids[3])
        proven_at(engine, tmp_path / "image")
        assert engine.tokens() == expected[3]


def test_weights_that_no_probe_can_see_are_said_to_be_unproven(tmp_path, monkeypatch):
    """Infinities hide the others in a product; numbers next to nothing may count as nothing."""
    values = {"v1": 1e-40, "v2": float("inf")}
    save = models.save

    def planted(tensors, out):
        tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = values.get(out.name, 0.25)
        save(tensors, out)

    monkeypatch.setattr(models, "save", planted)
    run = Run(tmp_path / "run", "qwen3", "float32", steps=2, full=())
    with following(run, tmp_path / "image") as engine:
        engine.update(run.uids[1])
        assert proven_at(engine, tmp_path / "image")["probed"]
        engine.update(run.uids[2])
        how = engine.prove("all")["model.layers.0.mlp.down_proj.weight"][0]
        empty = engine.model.model.layers[0].mlp.down_proj.weight.numel() == 0
        assert how == ("unproven" if empty else "live")


def test_the_stored_run_is_what_a_fresh_engine_loads():
    """The tests' own premise."""
    run = run_of("qwen3", "bfloat16")
    assert not torch.equal(*(weights(run.checkpoint(n))["lm_head.weight"] for n in (2, 3)))
