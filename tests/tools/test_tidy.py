"""Every house rule fires on a planted offence, and stays silent where it does not apply."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import tidy  # noqa: E402

README = "Owns: a. Knows nothing of: b. Enter at `c.h`.\n"

# rule, file, line that offends, a file in which the same line is fine (or None)
PLANTED = [
    ("getenv", "src/delta/a.cc", 'auto v = std::getenv("HOME");', "src/apps/a.cc"),
    ("getenv", "src/delta/a.cc", 'auto v = secure_getenv("HOME");', "src/delta/a_test.cc"),
    ("clock", "src/store/a.cc", "auto t = std::chrono::steady_clock::now();", "src/os/a.cc"),
    ("clock", "src/store/a.cc", "const auto t = time(nullptr);", "src/store/a_bench.cc"),
    ("clock", "src/store/a.cc", "std::this_thread::sleep_for(d);", "src/os/a.cc"),
    ("random", "src/agent/a.cc", "std::random_device seed;", "src/os/a.cc"),
    ("files", "src/agent/a.cc", "const int fd = ::open(path, flags);", "src/os/a.cc"),
    ("files", "src/agent/a.h", "std::ifstream in(path);", "src/agent/a_test.cc"),
    ("files", "src/tensor/a.cc", "for (auto& e : std::filesystem::directory_iterator(p)) {", None),
    ("socket", "src/transfer/a.cc", "const int s = ::socket(AF_INET, SOCK_STREAM, 0);",
     "src/transfer/http/a.cc"),
    ("socket", "src/store/a.cc", "#include <curl/curl.h>", "src/store/s3/a.cc"),
    ("thread", "src/trainer/a.cc", "std::thread t(run);", "src/base/task_pool.cc"),
    ("thread", "src/trainer/a.cc", "auto f = std::async(run);", "src/trainer/a_test.cc"),
    ("process", "src/agent/a.cc", "if (fork() == 0) {", "src/apps/a.cc"),
    ("family", "src/layout/a.cc", '// as Qwen3 does', "src/bridge/families/a.cc"),
    ("family", "src/bridge/a.cc", 'if (type == "GptOssForCausalLM") {', "src/bridge/a_test.cc"),
    ("unfinished", "src/base/a.cc", "// TODO: the rest", None),
    ("unfinished", "docs/a.md", "FIXME later", None),
    ("place", "tools/a.py", 'DIR = "/' + 'work/main"', None),
    ("place", "src/base/a_test.cc", 'path = "../shared/research"', None),
    ("host", "tools/setup", "pip install --index-url https://pypi.org/simple x", None),
    ("words", "docs/a.md", "the whitelist of names", None),
    ("words", "src/delta/a.cc", "// writes the delta file", "tools/a.py"),
    ("leak", "src/store/a.cc", "Row row{.name = WC_TRY(Name())};", None),
    ("leak", "src/store/a.cc", "rows.push_back({name, WC_TRY(Size())});", None),
    ("seed", "src/layout/a_test.cc", "std::mt19937 rng;", None),
    ("include", "src/tensor/a.cc", '#include "delta/part.h"', "src/agent/a.cc"),
    ("include", "src/tensor/a.cc", '#include "a.h"', None),
    ("include", "src/tensor/a.cc", '#include "fuzz/accepted.h"', "src/tensor/a_fuzz.cc"),
    ("link", "docs/a.md", "see [the map](missing.md#part)", None),
    ("link", "src/base/a.h", "// docs/formats/missing.md", None),
    ("index", "docs/formats/b.md", "a page that nobody finds", "docs/a.md"),
]


def offences(root, name, line, readme=README):
    (root / "docs").mkdir(exist_ok=True)
    (root / "docs/index.md").write_text("[a](a.md)\n")
    for floor in {p.split("/")[1] for p in [name] if p.startswith("src/")}:
        page = root / "src" / floor / "README.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(readme)
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"first line\n{line}\n")
    return tidy.check(root, [name])


@pytest.mark.parametrize("rule,name,line,fine", PLANTED, ids=lambda v: str(v)[:30])
def test_fires_on_a_planted_offence(tmp_path, rule, name, line, fine):
    found = offences(tmp_path, name, line)
    assert len(found) == 1, found
    assert f": {rule}: " in found[0] and found[0].startswith(name)
    if fine:
        assert offences(tmp_path, fine, line) == []


def test_every_rule_has_a_planted_offence():
    assert {r.name for r in tidy.RULES} <= {row[0] for row in PLANTED}


def test_a_comment_may_speak_of_the_kernel_but_not_of_a_family(tmp_path):
    assert offences(tmp_path, "src/store/a.cc", "// safe across fork(), ::open() and std::thread") == []
    assert len(offences(tmp_path, "src/store/a.cc", "// as in Llama")) == 1


def test_an_allowance_covers_its_own_rule_only(tmp_path):
    line = "std::thread t(run);  // tidy: allow(thread) joined below"
    assert offences(tmp_path, "src/trainer/a.cc", line) == []
    line = "std::thread t(run);  // tidy: allow(clock)"
    assert len(offences(tmp_path, "src/trainer/a.cc", line)) == 1


@pytest.mark.parametrize("text", ["", "Owns: a. Knows nothing of: b.", "Owns: a. `c.h`"])
def test_a_floor_needs_a_readme_that_says_all_three(tmp_path, text):
    (found,) = offences(tmp_path, "src/delta/a.cc", "int a;", readme=text)
    assert found.startswith("src/delta/README.md: readme: ")


def test_links_that_lead_somewhere_are_fine(tmp_path):
    (tmp_path / "docs/formats").mkdir(parents=True)
    (tmp_path / "docs/formats/part.md").write_text("part\n")
    line = "[a](formats/part.md#index) [b](https://example.org/x) [c](#here)"
    assert offences(tmp_path, "docs/a.md", line) == []
    assert offences(tmp_path, "src/delta/a.h", "// docs/formats/part.md") == []


def test_the_fixtures_are_the_one_path_outside_that_may_be_named(tmp_path):
    assert offences(tmp_path, "tests/a.py", 'DEFAULT = "../shared/fixtures"') == []
