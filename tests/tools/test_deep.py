"""What a deep job's exit code is recorded as, and what the closing line counts."""

import importlib.machinery
import importlib.util
import pathlib

import pytest

PATH = pathlib.Path(__file__).resolve().parents[2] / "tools/deep"


@pytest.fixture
def deep(tmp_path, monkeypatch):
    loader = importlib.machinery.SourceFileLoader("deep", str(PATH))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("deep", loader))
    loader.exec_module(module)
    monkeypatch.setattr(module, "RECORD", tmp_path / "deep.md")
    monkeypatch.setattr(module, "JOBS", {"deep-good": "true", "deep-bad": "exit 3", "deep-none": "exit 77"})
    monkeypatch.setattr(module, "commit", lambda: "0123456789")
    return module


@pytest.mark.parametrize("job,result,code,line", [
    ("deep-good", "passed", 0, "1 passed, 0 failed, 0 skipped"),
    ("deep-bad", "failed (3)", 1, "0 passed, 1 failed, 0 skipped"),
    ("deep-none", "not run", 0, "0 passed, 0 failed, 1 skipped"),
])
def test_a_job_is_recorded_as_its_exit_code_says(deep, monkeypatch, capsys, job, result, code, line):
    monkeypatch.setattr("sys.argv", ["deep", job])
    with pytest.raises(SystemExit) as ended:
        deep.main()
    assert ended.value.code == code
    assert deep.RECORD.read_text().splitlines()[-1].endswith(f"| `make {job}` | 0 | {result} |")
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_what_was_not_run_is_run_by_the_next_all(deep, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["deep", "all"])
    for line in ("1 passed, 1 failed, 1 skipped", "0 passed, 1 failed, 2 skipped"):
        with pytest.raises(SystemExit):
            deep.main()
        assert capsys.readouterr().out.splitlines()[-1] == line
