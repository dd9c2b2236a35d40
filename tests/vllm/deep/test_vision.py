"""Qwen3-VL: text model and vision tower follow updates, together and alone."""

import pytest

pytest.importorskip("vllm")

import PIL.Image  # noqa: E402
from engines import PROMPTS, Engine, Run  # noqa: E402
from test_updates import proven_at  # noqa: E402

import models  # noqa: E402

TOWER = "model.visual."
ALL = sorted(models.shapes("qwen3_vl"))
VISION = [name for name in ALL if name.startswith(TOWER)]
TEXT = [name for name in ALL if not name.startswith(TOWER)]

IMAGE = PIL.Image.frombytes("RGB", (64, 64), bytes((7 * i + i // 50) % 256 for i in range(64 * 64 * 3)))
MARKED = [models.MARKS[mark] for mark in ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")]
SEEN = {"prompt_token_ids": [5, *MARKED, 33, 7], "multi_modal_data": {"image": IMAGE}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("run"), "qwen3_vl", steps=5, full=(5,), density=0.3,
               names={2: TEXT, 3: VISION})


def opened(run, number, **more):
    # Images are prompts of text first, which takes a tokenizer.
    return Engine(run.checkpoint(number), run.dtype, skip_tokenizer_init=False,
                  limit_mm_per_prompt={"video": 0}, **more)


def told(engine):
    """(tokens after texts, tokens after an image)"""
    return engine.tokens(PROMPTS), engine.tokens([SEEN])


@pytest.fixture(scope="module")
def expected(run):
    out = {}
    for number in range(1, 6):
        with opened(run, number, follows=False) as engine:
            out[number] = told(engine)
    assert out[2][0] == out[3][0], "texts do not see the tower"
    assert out[2][1] != out[3][1], "an image does"
    assert len({str(texts) for texts, _ in out.values()}) == 4, "versions that say something"
    return out


@pytest.mark.parametrize("canonical", [False, True])
def test_text_and_vision_together_and_alone(canonical, run, expected, tmp_path):
    image = tmp_path / "image"
    changed = {2: TEXT, 3: VISION, 4: ALL}
    with opened(run, 0) as engine:
        engine.init(**run.settings(image, keep_canonical=canonical))
        for number, full in ((1, False), (2, False), (3, False), (4, False), (5, True), (4, False)):
            engine.update(run.uids[number], full=full)
            touched = engine.prove("touched")
            if number in changed and len(touched) < len(ALL):  # a way back may be a full one
                assert set(touched) == set(changed[number])
            hows = proven_at(engine, image)
            if canonical:
                assert set(hows) == {"live"}, hows
            engine.llm.reset_prefix_cache()
            engine.llm.llm_engine.reset_encoder_cache()  # of an image that was seen before
            assert told(engine) == expected[number], (number, full)
