"""version.json as the page says it: the golden, and every flipped byte of it."""

import pathlib

import pytest
import version_json

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "testdata/golden/version_json_v1.json"


def test_the_golden_reads_as_the_page_says():
    version = version_json.read(GOLDEN.read_bytes())["version"]
    assert version["number"] == 7 and version["labels"] == {"reward": "0.5", "über": "✓"}


def test_every_flipped_byte_is_found():
    whole = GOLDEN.read_bytes()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        with pytest.raises((AssertionError, ValueError)):
            version_json.read(bytes(flipped))
