"""A worker that takes deltas in place keeps no second copy of anything."""

import contextlib
import pathlib
import threading

import pytest

pytest.importorskip("vllm")

from engines import Run, following  # noqa: E402

import models  # noqa: E402

MIB = 1 << 20


def anonymous_bytes():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024


@contextlib.contextmanager
def peak():
    """[the most that was seen]"""
    done, seen = threading.Event(), [anonymous_bytes()]

    def watch():
        while not done.wait(0.002):
            seen[0] = max(seen[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def test_anonymous_memory_over_deltas(tmp_path, monkeypatch):
    for name, value in {"HIDDEN": 768, "LAYERS": 6, "VOCAB": 32000, "HEADS": 12, "HEAD_DIM": 64,
                        "KV_HEADS": 4, "FFN": 2560}.items():
        monkeypatch.setattr(models, name, value)
    run = Run(tmp_path / "run", "qwen3", steps=4, full=(), density=0.01)
    assert (run.checkpoint(0) / "model.safetensors").stat().st_size > 150 * MIB
    with following(run, tmp_path / "image", keep_canonical=True) as engine:
        engine.update(run.uids[1])
        engine.tokens()
        before = anonymous_bytes()
        with peak() as most:
            for number in (2, 3, 4):
                engine.update(run.uids[number])
                engine.prove("touched")
        after = anonymous_bytes()
        print(f"anonymous MiB: {before / MIB:.0f}, at most {most[0] / MIB:.0f}, after {after / MIB:.0f}")
        assert after - before < 64 * MIB
        assert most[0] - before < 64 * MIB
