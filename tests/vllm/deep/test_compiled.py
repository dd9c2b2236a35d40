"""Engines as vLLM starts them unless told otherwise: compiled, after the plugin was made."""

import pytest

pytest.importorskip("vllm")

from engines import Engine, run_of  # noqa: E402

from weightcast.vllm import kernels  # noqa: E402


def test_compiled_layers_follow_updates(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    run = run_of("qwen3")
    expected = {}
    for number in (2, 3):  # in bfloat16 not those of an engine that is not compiled
        with Engine(run.checkpoint(number), follows=False, eager=False) as engine:
            expected[number] = engine.tokens()

    with Engine(run.checkpoint(0), eager=False) as engine:
        if kernels.computes_with_copy(engine.model.lm_head):
            with pytest.raises(Exception, match="invalid-argument: keep_canonical: .* --enforce-eager"):
                engine.init(**run.settings(tmp_path / "image", keep_canonical=True))
        engine.init(**run.settings(tmp_path / "image"))
        for number in (2, 3):
            engine.update(run.uids[number])
            assert engine.tokens() == expected[number]

    # Plain linears are compiled as such, though the cache has the same model with packed ones.
    settings = {**run.settings(tmp_path / "cold"), "keep_canonical": True, "version": "2"}
    with Engine(run.checkpoint(0), eager=False, load_format="weightcast",
                model_loader_extra_config=settings) as engine:
        assert engine.tokens() == expected[2]
        monkeypatch.setattr(engine.plugin, "_reload", lambda *_: pytest.fail("a reload"))
        engine.update(run.uids[3])
        assert engine.tokens() == expected[3]
        assert {how for how, *_ in engine.prove("all").values()} == {"live"}
