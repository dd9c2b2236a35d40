"""Workers of a host share an image; the first pull of a large model takes longer than a minute."""

import threading
import time

import pytest

pytest.importorskip("vllm")

from engines import run_of  # noqa: E402

import weightcast  # noqa: E402
from weightcast.vllm.settings import Settings  # noqa: E402


def test_a_worker_waits_for_the_others_first_pull(tmp_path):
    run = run_of("qwen3")
    settings = Settings(**run.settings(tmp_path / "image"))
    began = threading.Event()

    def take_long(done, total):
        if not began.is_set():
            began.set()
            time.sleep(65)  # a pull's own patience is 60 s

    first = threading.Thread(target=settings.pull, args=("3", take_long))
    first.start()
    try:
        assert began.wait(60)
        begin = time.monotonic()
        assert settings.pull("3")["uid"] == run.uids[3]
        assert time.monotonic() - begin > 60
    finally:
        first.join()
    assert weightcast.verify(tmp_path / "image", catalog=run.catalog)["verified"]
