"""The closing line counts what happened, and nothing passes unseen."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import results  # noqa: E402

GTEST = """<testsuites><testsuite name="A">
  <testcase name="Good" status="run" result="completed" classname="A" />
  <testcase name="Bad" status="run" result="completed" classname="A"><failure message="a.cc:3&#x0A;more"/></testcase>
  <testcase name="Later" status="run" result="skipped" classname="A"><skipped message="no AVX-512"/></testcase>
  <testcase name="DISABLED_Old" status="notrun" result="suppressed" classname="A" />
</testsuite></testsuites>"""
CTEST = """<testsuite><testcase name="base" classname="base" status="run"/>
  <testcase name="tidy" classname="tidy" status="fail"><failure message="Failed"/></testcase></testsuite>"""
PYTEST = """<testsuites><testsuite><testcase classname="t" name="a"/>
  <testcase classname="t" name="b"><error message="boom"/></testcase></testsuite></testsuites>"""


@pytest.mark.parametrize("text,states", [
    (GTEST, ["passed", "failed", "skipped", "skipped"]),
    (CTEST, ["passed", "failed"]),
    (PYTEST, ["passed", "failed"]),
])
def test_reads_every_runner(tmp_path, text, states):
    (tmp_path / "r.xml").write_text(text)
    assert [o.state for o in results.from_junit(tmp_path / "r.xml")] == states


def test_closes_with_one_line_after_the_lists(tmp_path, capsys):
    (tmp_path / "r.xml").write_text(GTEST)
    results.save(tmp_path / "out", "unit", results.from_junit(tmp_path / "r.xml"))
    results.save(tmp_path / "out", "fuzz", [results.Outcome("part", "passed")])
    assert not results.close(results.load(tmp_path / "out"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 passed, 1 failed, 2 skipped"
    assert "failed: unit: A.Bad (a.cc:3)" in lines
    assert "skipped: unit: A.Later (no AVX-512)" in lines


@pytest.mark.parametrize("states,good", [
    ([], False), (["skipped"], False), (["passed"], True), (["passed", "skipped"], True),
    (["passed", "failed"], False),
])
def test_is_good_only_if_something_passed_and_nothing_failed(states, good):
    assert results.close([results.Outcome("x", state) for state in states]) == good
