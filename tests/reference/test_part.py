"""The reference decoder, written from the page, reads what the C++ wrote and refuses what it must."""

import contextlib
import hashlib
import io
import json
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import part  # noqa: E402

GOLDEN = json.loads((ROOT / "testdata/golden/part_v1.json").read_text())
TENSORS = [tuple(t) for t in GOLDEN["tensors"]]
BASE = part.pattern_base(TENSORS)
ERRORS = sorted((ROOT / "testdata/golden_errors").glob("part_*.bin"))


@pytest.mark.parametrize("name", sorted(GOLDEN["next_sha256"]))
def test_golden(name):
    state = part.apply((ROOT / "testdata/golden" / name).read_bytes(), TENSORS, BASE)
    assert [hashlib.sha256(s).hexdigest() for s in state] == GOLDEN["next_sha256"][name]


def test_goldens_have_every_method():
    records = [r for name in GOLDEN["next_sha256"]
               for r in part.parse((ROOT / "testdata/golden" / name).read_bytes(), TENSORS)[1]]
    assert {r["method"] for r in records} == {1, 2, 3, 4}
    assert {r["base_digest"] is None for r in records} == {True, False}


@pytest.mark.parametrize("path", ERRORS, ids=lambda p: p.name.removesuffix(".bin"))
def test_golden_error(path):
    with pytest.raises(part.Malformed):
        part.apply(path.read_bytes(), TENSORS, BASE)


def test_example_of_the_page():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        part.print_example()
    assert out.getvalue() in (ROOT / "docs/formats/part.md").read_text()
