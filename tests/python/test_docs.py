"""The examples of the pages run, in order, each page in a directory and a namespace of its own."""

import re

import numpy
import pytest
import weightcast
from places import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    text = (ROOT / page).read_text()
    for found in BLOCK.finditer(text):
        line = text[:found.start(1)].count("\n")
        yield "\n" * line + found.group(1), line + 1  # a traceback then names the page's line


@pytest.mark.parametrize("page, fewest", [("README.md", 1), ("docs/python.md", 8)])
def test_the_examples_of_a_page_run(page, fewest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    names = {"weights": {"w": numpy.arange(12, dtype=numpy.float32).reshape(3, 4)}}  # README's
    found = list(blocks(page))
    assert len(found) >= fewest
    for text, _ in found:
        exec(compile(text, ROOT / page, "exec"), names)
    assert weightcast.verify("images/policy", catalog="sqlite:catalog.db")["verified"]


def test_the_docstring_of_the_package_shows_the_same_calls():
    for word in ("weightcast.Publisher(", ".publish(", ".wait()", "weightcast.pull(", "weightcast.Image("):
        assert word in weightcast.__doc__


def test_everything_public_has_a_docstring():
    import inspect

    assert weightcast.__all__ == sorted(weightcast.__all__)
    for name in weightcast.__all__:
        thing = getattr(weightcast, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_"):
                    assert inspect.getdoc(value), f"{name}.{member}"
