#!/usr/bin/env python3
"""House rules that must never break, as a test (ctest `tidy`). A rule is a row of RULES.

A line may carry `tidy: allow(RULE)` with its reason beside it. tests/tools/test_tidy.py plants an
offence against every rule.
"""

import dataclasses
import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Lowest first: a floor may include itself and what stands before it.
FLOORS = ["base", "os", "tensor", "layout", "bridge", "delta", "store", "catalog", "transfer",
          "trainer", "agent", "engine", "fleet", "apps"]

TESTS = ["src/*_test.cc", "src/*test*.h", "src/*test*.cc", "src/*conformance*"]
LEAVES = ["src/store/s3/*", "src/catalog/http/*", "src/transfer/http/*", "src/engine/http*"]  # the network
KERNEL = ["src/os/*", "src/apps/*", "src/base/task_pool.*", *LEAVES, *TESTS]  # may call the kernel
CODE = ["src/*.cc", "src/*.h"]
TEXT = ["*.cc", "*.h", "*.py", "*.md", "*.txt", "*.cmake", "*.json", "*.sql", "*.toml", "*.yaml",
        "Makefile", ".ci/run", "tools/*"]
RULE_BOOK = ["tools/tidy.py", "tests/tools/test_tidy.py"]  # name what they forbid


@dataclasses.dataclass
class Rule:
    name: str
    pattern: str  # a regular expression, looked for line by line
    why: str
    files: list
    exempt: list = dataclasses.field(default_factory=list)
    flags: int = 0
    comments: bool = False  # looks at comments too


RULES = [
    Rule("getenv", r"\b(secure_)?getenv\b|\benviron\b", "only apps/ reads the environment",
         CODE, KERNEL),
    Rule("clock", r"_clock::now\b|\b(clock_gettime|gettimeofday|localtime|gmtime)\b"
         r"|\btime\((nullptr|NULL|0)\)|this_thread::sleep|\b(usleep|nanosleep)\(",
         "time comes through os::Clock", CODE, [*KERNEL, "src/*_bench.cc"]),
    Rule("random", r"\brandom_device\b|\bs?rand\(|\bgetrandom\(|\barc4random",
         "randomness comes through os::Random", CODE, KERNEL),
    Rule("files", r"::(open|openat|creat|read|pread|write|pwrite|mmap|munmap|msync|fsync|fdatasync|"
         r"ftruncate|fallocate|posix_fallocate|rename|renameat2?|unlink|link|mkdir|rmdir|flock|stat|"
         r"fstat|statfs)\(|\bf(d?open)\(|\bstd::[io]?fstream\b|\bstd::filesystem\b",
         "files go through os::Fs", CODE, [*KERNEL, "src/*_fuzz.cc"]),
    Rule("socket", r"::(socket|connect|bind|listen|accept4?)\(|#include <(sys/socket|netinet/|curl/|boost/)",
         "the network belongs to the leaves", CODE, KERNEL),
    Rule("thread", r"\bstd::(jthread|thread|async)\b|\bpthread_create\b",
         "threads come from base/task_pool", CODE, KERNEL),
    Rule("process", r"\b(fork|vfork|execv[pe]*|execl[pe]?|posix_spawnp?|popen|system)\(",
         "only apps/ starts processes", CODE, KERNEL),
    Rule("family", r"(?<![a-z])(qwen|llama|mi[sx]tral|deepseek|glm|gpt_?oss|minimax|mimo|kimi|gemma)",
         "a model family is data in bridge/families/", CODE,
         ["src/bridge/families/*", "src/bridge/raw/*", *TESTS],
         re.IGNORECASE, comments=True),
    Rule("unfinished", r"\b(TODO|FIXME|XXX|HACK)\b", "finish it, or file it", TEXT, RULE_BOOK,
         comments=True),
    Rule("place", r"/[w]ork/|/root/|/home/[a-z]|\.\./shared(?!/fixtures\b)",
         "a path of one machine", TEXT, RULE_BOOK, comments=True),
    Rule("host", r"pypi\.org|pythonhosted\.org|(deb|security)\.debian\.org|ghcr\.io",
         "package tools know their registries", TEXT, RULE_BOOK, comments=True),
    # The glossary of docs/index.md: one word for one thing.
    Rule("words", r"\b(whitelist|blacklist|tombstone|(weight|safetensors) shards?|delta files?|"
         r"snapshot id|version hash|metadata server)\b",
         "the glossary has another word (docs/index.md)", ["src/*", "docs/*", "README.md"], [],
         re.IGNORECASE, comments=True),
    Rule("leak", r"[{,(]\s*\.\w+ = WC_TRY\(|^\s*\.\w+ = WC_TRY\(|\{[^;]*, WC_TRY\(",
         "bind it first: g++ leaks what the braces hold already", ["src/*"], []),
    Rule("seed", r"\bmt19937(_64)?\s+\w+;", "a generator without a seed hides which case failed",
         ["src/*.cc"]),
]

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PAGE = re.compile(r"\bdocs/[\w/]+\.md\b")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def fits(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def check_lines(name, text):
    rules = [r for r in RULES if fits(name, r.files) and not fits(name, r.exempt)]
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split("//")[0]
        for rule in rules:
            found = re.search(rule.pattern, line if rule.comments else code, rule.flags)
            if found and f"tidy: allow({rule.name})" not in line:
                yield f"{name}:{number}: {rule.name}: \"{found.group(0)}\": {rule.why}"


def check_includes(name, text):
    """Quoted includes name a file from a floor's root, and never one of a higher floor."""
    if not fits(name, CODE):
        return
    floor = name.split("/")[1]
    for number, line in enumerate(text.splitlines(), 1):
        include = INCLUDE.match(line)
        if not include:
            continue
        target = include.group(1).split("/")[0]
        if target == "fuzz" and name.endswith("_fuzz.cc"):
            continue
        if target not in FLOORS:
            yield f"{name}:{number}: include: \"{include.group(1)}\" does not start with a floor"
        elif floor in FLOORS and FLOORS.index(target) > FLOORS.index(floor):
            yield f"{name}:{number}: include: {floor} may not look up to {target}"


def check_links(name, text, root):
    """Relative links of pages, and pages that code refers to, exist."""
    if name.endswith(".md"):
        for target in LINK.findall(FENCE.sub("", text)):
            path = target.split("#")[0]
            if re.match(r"[a-z]+:", target) or not path:
                continue
            if not (root / name).parent.joinpath(path).exists():
                yield f"{name}: link: {target} leads nowhere"
    elif fits(name, CODE):
        for page in sorted(set(PAGE.findall(text))):
            if not (root / page).exists():
                yield f"{name}: link: {page} does not exist"


def check_index(names, root):
    """Every page is listed where a reader begins."""
    index = root / "docs/index.md"
    listed = set(LINK.findall(index.read_text())) if index.exists() else set()
    for name in names:
        if name.startswith("docs/") and name.endswith(".md") and name != "docs/index.md":
            if name.removeprefix("docs/") not in listed:
                yield f"{name}: index: docs/index.md does not list it"


def check_readmes(names, root):
    for floor in sorted({n.split("/")[1] for n in names if n.startswith("src/") and n.count("/") > 1}):
        page = root / "src" / floor / "README.md"
        text = page.read_text().lower() if page.exists() else ""
        missing = [w for w in ("owns", "knows nothing of", "`") if w not in text]  # `header.h`: enter here
        if missing:
            yield f"src/{floor}/README.md: readme: says nothing of: {', '.join(missing)}"


def check(root, names):
    offences = []
    for name in names:
        path = root / name
        if not path.is_file() or not fits(name, TEXT):
            continue
        text = path.read_text(errors="replace")
        offences += check_lines(name, text)
        offences += check_includes(name, text)
        offences += check_links(name, text, root)
    return offences + [*check_index(names, root), *check_readmes(names, root)]


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True)
    names = sorted(set(listed.stdout.splitlines()))
    offences = check(ROOT, names)
    print("\n".join(offences), end="\n" if offences else "")
    print(f"tidy: {len(names)} files, {len(offences)} offences")
    sys.exit(1 if offences else 0)


if __name__ == "__main__":
    main()
