#!/usr/bin/env python3
"""Runs the tests of one build and closes with one line: N passed, N failed, N skipped.

  tools/test.py                                 ctest of build/, then pytest of tests/
  tools/test.py --no-ctest --venv build/vllm-venv --label vllm tests/vllm
  tools/test.py --build build/asan --only '^(delta|tensor)$' --no-pytest
googletest's cases are counted one by one; so are pytest's.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

import results

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_ctest(build, only, jobs, scratch):
    """Outcomes of the ctest tests; a googletest binary counts as its cases."""
    junit = scratch / "ctest.xml"
    gtest = scratch / "gtest"
    command = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error",
               "-j", str(jobs), "--output-junit", str(junit)]
    if only:
        command += ["-R", only]
    subprocess.run(command, check=False, env={**os.environ, "GTEST_OUTPUT": f"xml:{gtest}/"})
    if not junit.exists():
        return [results.Outcome("ctest", "failed", "did not run")]
    outcomes = []
    for test in results.from_junit(junit):
        name = test.name.split(".")[-1]
        report = gtest / f"{name}_test.xml"
        cases = results.from_junit(report) if report.exists() else []
        # A binary that died reports no failed case, or nothing at all.
        if not cases or (test.state == "failed" and all(c.state != "failed" for c in cases)):
            cases.append(results.Outcome(name, test.state, test.note))
        outcomes += cases
    return outcomes


# Folders whose tests need an environment of their own: given by name, with --venv.
APART = ["tests/vllm", "tests/vllm/deep", "tests/megatron", "tests/megatron/deep"]


def run_pytest(build, venv, paths, scratch):
    junit = scratch / "pytest.xml"
    command = [str(venv / "bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider",
               f"--junitxml={junit}", *paths]
    command += [f"--ignore={apart}" for apart in APART
                if not any(pathlib.Path(path).is_relative_to(apart) for path in paths)]
    env = {**os.environ, "WEIGHTCAST_BUILD": str(build),
           "WEIGHTCAST_BINARY": str(build / "weightcast"), "PYTHONPATH": str(build / "python")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # vLLM without .pyc files takes a minute to import
    code = subprocess.run(command, check=False, cwd=ROOT, env=env).returncode
    outcomes = results.from_junit(junit) if junit.exists() else []
    if code not in (0, 1) or not outcomes:
        outcomes.append(results.Outcome("pytest", "failed", f"ended with code {code}"))
    return outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--only", help="ctest tests whose name fits this regular expression")
    parser.add_argument("--no-ctest", action="store_true")
    parser.add_argument("--no-pytest", action="store_true")
    parser.add_argument("--venv", default="build/venv", help="whose Python runs pytest")
    parser.add_argument("--label", default="test", help="name of the results file")
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("paths", nargs="*", default=["tests"], help="for pytest")
    args = parser.parse_args()

    build = (ROOT / args.build).resolve()
    scratch = ROOT / "build" / "results" / args.label
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    outcomes = []
    if not args.no_ctest:
        outcomes += run_ctest(build, args.only, args.jobs, scratch)
    if not args.no_pytest:
        outcomes += run_pytest(build, ROOT / args.venv, args.paths, scratch)
    results.save(scratch.parent, args.label, outcomes)
    sys.exit(0 if results.close(outcomes) else 1)


if __name__ == "__main__":
    main()
