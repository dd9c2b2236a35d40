"""The goldens and the worked examples are what the references, written from the pages, give."""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def reference(script, *args):
    return subprocess.run([sys.executable, HERE / script, *args], check=True, capture_output=True,
                          text=True, encoding="utf-8").stdout


def test_digest_goldens():
    assert reference("digest.py", "golden") == (ROOT / "testdata/golden/digest_v1.json").read_text()


def test_digest_example(tmp_path):
    (tmp_path / "bytes").write_bytes(bytes([1, 2, 3]))
    digest = reference("digest.py", str(tmp_path / "bytes")).strip()
    page = (ROOT / "docs/formats/digest.md").read_text()
    assert f"`{digest}`" in page
    assert bytes.fromhex(digest)[::-1].hex(" ") in page


def test_root_goldens():
    assert reference("root.py", "golden") == (ROOT / "testdata/golden/root_v1.json").read_text()


def test_root_example():
    assert reference("root.py", "example") in (ROOT / "docs/formats/root.md").read_text()
