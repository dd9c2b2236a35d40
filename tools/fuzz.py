#!/usr/bin/env python3
"""Fuzzes every target of the fuzz preset for a while, starting from its corpus.

  tools/fuzz.py --seconds 10
  tools/fuzz.py --seconds 60 --planted     runs the planted twins instead: each must overflow
What it finds lands in build/fuzz/found/; what it learns stays in build/fuzz/corpus/.
"""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

import results

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/fuzz"


def fuzz(target, seconds, planted):
    short = target.name.removesuffix("_fuzz")
    seeds = ROOT / "testdata/fuzz_corpus" / short
    count = sum(1 for _ in seeds.rglob("*"))
    if not count:
        return results.Outcome(target.name, "failed", f"no seeds in {seeds.relative_to(ROOT)}")
    found = BUILD / "found"
    corpus = BUILD / "corpus" / (short + ("_planted" if planted else ""))
    for directory in (found, corpus):
        directory.mkdir(parents=True, exist_ok=True)
    binary = target.with_name(target.name + ("_planted" if planted else ""))
    command = [str(binary), str(corpus), str(seeds), f"-max_total_time={seconds}", "-timeout=10",
               "-rss_limit_mb=2048", "-max_len=65536", "-print_final_stats=1",
               f"-artifact_prefix={found}/{short}-"]
    env = {**os.environ, "ASAN_SYMBOLIZER_PATH": "/usr/bin/llvm-symbolizer-19",
           "WEIGHTCAST_PLANT_AFTER": str(2 * count)}  # beyond the seeds: a mutation must get through
    run = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", env=env)
    if planted:
        good = run.returncode != 0 and "heap-buffer-overflow" in run.stderr
        note = "" if good else f"the planted overflow was not found in {seconds} s"
    else:
        good = run.returncode == 0
        note = "" if good else f"ended with code {run.returncode}, see {found.relative_to(ROOT)}"
        if not good:
            print(run.stderr[-6000:])
    runs = [line.split()[-1] for line in run.stderr.splitlines() if "number_of_executed_units" in line]
    print(f"{binary.name}: {'ok' if good else 'FAILED'} {' '.join(runs)}", flush=True)
    return results.Outcome(binary.name, "passed" if good else "failed", note)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--label", default="fuzz")
    parser.add_argument("only", nargs="*", help="names of targets; default all")
    args = parser.parse_args()
    targets = [pathlib.Path(line) for line in (BUILD / "fuzz_targets.txt").read_text().split()]
    if args.only:
        targets = [t for t in targets if t.name in args.only]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        outcomes = list(pool.map(lambda t: fuzz(t, args.seconds, args.planted), targets))
    results.save(ROOT / "build/results", args.label, outcomes)
    sys.exit(0 if results.close(outcomes) else 1)


if __name__ == "__main__":
    main()
