#!/usr/bin/env python3
"""Measures the commands on a model of 1.2 GB: speeds as ratios to memcpy and to cp of the same run
(median of five), anonymous memory, bytes written. Prints each target as met or missed and records
all of it in bench/results.md. Targets and their reasons: bench/README.md.

  tools/bench.py                    on tmpfs, and the writes of an update on the disk below build/
  tools/bench.py --size demo        a quick look with a model of 190 MB
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEIGHTCAST = pathlib.Path(os.environ.get("WEIGHTCAST_BINARY", ROOT / "build/weightcast"))
MIB = 1 << 20


# ---- running a command and watching it ----

@dataclasses.dataclass
class Run:
    seconds: float
    document: dict
    anon_peak: int = 0  # largest RssAnon seen of the process
    written: int = 0  # bytes passed to write(2) and friends
    to_disk: int = 0  # bytes that the kernel took for a disk


def status_field(pid, field):
    try:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def io_fields(pid):
    text = pathlib.Path(f"/proc/{pid}/io").read_text()
    return {name: int(value) for name, value in (line.split(": ") for line in text.splitlines())}


def weightcast(*args):
    command = [str(WEIGHTCAST), *map(str, args), "--json"]
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = 0
    output = {}
    readers = [threading.Thread(target=lambda n=n, s=s: output.update({n: s.read()}))
               for n, s in (("out", process.stdout), ("err", process.stderr))]
    for reader in readers:
        reader.start()
    # WNOWAIT: its counters stay readable until it is reaped below.
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        peak = max(peak, status_field(process.pid, "RssAnon"))
        time.sleep(0.002)
    seconds = time.monotonic() - begin
    io = io_fields(process.pid)
    process.wait()
    for reader in readers:
        reader.join()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {process.returncode}\n{output['err']}")
    return Run(seconds, json.loads(output["out"]), peak, io["wchar"], io["write_bytes"])


def timed(action):
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def clear(*paths):
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


# ---- the run ----

class Bench:
    def __init__(self, directory, size):
        self.dir = directory
        self.catalog = f"sqlite:{directory}/catalog.db"
        self.store = directory / "store"
        self.speeds = {}  # name -> bytes/s, one a round
        self.facts = {}  # name -> value
        self.ratios = {}  # name -> of memcpy beside it, one a round
        say(f"making models in {directory}")
        for name, args in (("a", ["--size", size]), ("b", ["--from", directory / "a", "--learning-rate", "2e-7"]),
                           ("shards", ["--size", size, "--from", directory / "a", "--shards", "2,2"])):
            weightcast("bench", "generate", directory / name, *args)
        self.weights = next((directory / "a").glob("*.safetensors"))
        self.model_bytes = self.weights.stat().st_size

    def add(self, name, seconds):
        self.speeds.setdefault(name, []).append(self.model_bytes / seconds)

    def fact(self, name, value):
        self.facts[name] = max(value, self.facts.get(name, 0))

    def baselines(self):
        source = numpy.full(self.model_bytes // 8, 1, dtype=numpy.uint64)
        target = numpy.zeros_like(source)
        self.add("memcpy", timed(lambda: numpy.copyto(target, source)))
        del source, target
        copy = self.dir / "copy"
        self.add("cp", timed(lambda: subprocess.run(["cp", self.weights, copy], check=True)))
        copy.unlink()

    def publish(self, model, *args):
        return weightcast("publish", "--catalog", self.catalog, "--store", f"file:{self.store}", "--run",
                          "bench", "--baseline", self.dir / "baseline", *args, model)

    def pull(self, image, *args):
        return weightcast("pull", "--catalog", self.catalog, "--run", "bench", *args, image)

    def convert(self):
        out = self.dir / "converted"
        clear(out)
        self.add("convert", weightcast("convert", "--shards", self.dir / "shards", "--config",
                                       self.dir / "a/config.json", "--out", out).seconds)
        clear(out)

    def versions(self):
        """One round: publish full, pull it into an empty directory, then 1 % and its pull, verify."""
        image = self.dir / "image"
        full = self.publish(self.dir / "a", "--full")
        self.add("publish full", full.seconds)
        self.add("publish full, stall", full.document["seconds"]["stall"])
        self.fact("publish full, RssAnon", full.anon_peak)

        clear(image)
        cold = self.pull(image)
        self.add("pull full", cold.seconds)
        self.fact("pull full, RssAnon", cold.anon_peak)

        delta = self.publish(self.dir / "b")
        self.add("publish 1 %", delta.seconds)
        self.add("publish 1 %, stall", delta.document["seconds"]["stall"])
        self.fact("publish 1 %, RssAnon", delta.anon_peak)
        self.facts["density"] = delta.document["density"]
        self.facts["bytes a changed element"] = (delta.document["wire_bytes"] /
                                                 max(1, delta.document["changed_elements"]))

        warm = self.pull(image)
        self.add("pull 1 %", warm.seconds)
        self.fact("pull 1 %, RssAnon", warm.anon_peak)
        # What goes through write(2): journal, state, parts. The image itself is a mapping.
        self.fact("1 % update, journal and parts", warm.written)

        self.add("verify", weightcast("verify", "--catalog", self.catalog, image).seconds)
        # Only the newest version is needed by the next round: the store would fill the memory.
        for part in self.store.rglob("*"):
            if part.is_file() and part.stat().st_size > MIB:
                part.unlink()

    def codec(self):
        """Digest, diff, encode and decode alone, on one thread and without files."""
        run = weightcast("bench", "codec", "--no-baselines", self.dir / "a", self.dir / "b")
        for name, rate in run.document["gb_per_s"].items():
            if name != "memcpy":
                self.speeds.setdefault(f"codec {name}", []).append(rate * 1e9)

    def plans(self):
        """Plans of large models: compiled, and applied in memory by one thread."""
        for model in ("dense", "moe"):
            rates = weightcast("bench", "plan", model, "--apply").document["gb_per_s"]
            self.speeds.setdefault(f"plan applied, {model}", []).append(rates["apply"] * 1e9)
            self.ratios.setdefault(f"plan applied, {model}", []).append(rates["apply"] / rates["memcpy"])
        run = weightcast("bench", "plan", "deepseek-v3")
        seconds = run.document["compile_seconds"]
        self.facts.setdefault("plan of DeepSeek-V3 on 1024 ranks", []).append(seconds)
        self.fact("plan of DeepSeek-V3, RssAnon", run.anon_peak)
        raw = weightcast("bench", "plan", "deepseek-v3", "--mode", "raw").document
        if raw["plan_hash"] != run.document["plan_hash"]:
            raise SystemExit("bridge and raw give other plans of DeepSeek-V3")
        self.ratios.setdefault("plan by rules, against raw", []).append(raw["compile_seconds"] / seconds)

    def on_disk(self, disk):
        """The same update with image and store on a disk: how much is written, how long it takes."""
        shutil.copytree(self.dir / "a", disk / "a")
        shutil.copytree(self.dir / "b", disk / "b")
        on_disk = Bench.__new__(Bench)
        on_disk.__dict__.update(dir=disk, catalog=f"sqlite:{disk}/catalog.db", store=disk / "store",
                                speeds={}, facts={}, model_bytes=self.model_bytes)
        on_disk.publish(disk / "a", "--full")
        on_disk.pull(disk / "image")
        on_disk.publish(disk / "b")
        os.sync()
        warm = on_disk.pull(disk / "image")
        self.facts["1 % update on disk, seconds"] = warm.seconds
        self.facts["1 % update on disk, bytes written"] = warm.to_disk


# ---- targets ----

@dataclasses.dataclass
class Target:
    name: str
    # memcpy, cp: a ratio of speeds, at least; own: the same, of memcpy beside it; raw: of a raw plan's
    # beside it; model: a ratio of sizes; bytes, seconds: at most.
    base: str
    limit: float


TARGETS = [
    Target("convert", "cp", 0.30),
    Target("verify", "memcpy", 0.35),
    Target("publish full", "cp", 0.15),
    Target("publish full, stall", "cp", 0.15),
    Target("publish 1 %", "memcpy", 0.15),
    Target("publish 1 %, stall", "memcpy", 0.20),
    Target("pull full", "cp", 0.25),
    Target("pull 1 %", "memcpy", 0.15),
    Target("codec digest_full", "memcpy", 0.60),
    Target("publish full, RssAnon", "bytes", 256 * MIB),
    Target("publish 1 %, RssAnon", "bytes", 256 * MIB),
    Target("pull full, RssAnon", "bytes", 256 * MIB),
    Target("pull 1 %, RssAnon", "bytes", 256 * MIB),
    Target("1 % update, journal and parts", "model", 0.05),
    Target("plan applied, dense", "own", 0.50),
    Target("plan applied, moe", "own", 0.33),
    Target("plan of DeepSeek-V3 on 1024 ranks", "seconds", 2.0),
    Target("plan by rules, against raw", "raw", 1.0),
    Target("plan of DeepSeek-V3, RssAnon", "bytes", 200 * MIB),
]


def say(text):
    print(text, flush=True)


def judge(bench):
    """Rows (what, value, target, verdict)."""
    speed = {name: statistics.median(values) for name, values in bench.speeds.items()}

    def rates(name):
        return (f"{speed[name] / 1e9:.2f} GB/s, {speed[name] / speed['memcpy']:.2f} × memcpy, "
                f"{speed[name] / speed['cp']:.2f} × cp")

    rows = []
    for target in TARGETS:
        if target.base in speed:
            ratio = speed[target.name] / speed[target.base]
            value = rates(target.name)
            wanted, met = f"≥ {target.limit:.2f} × {target.base}", ratio >= target.limit
        elif target.base == "own":
            ratio = statistics.median(bench.ratios[target.name])
            value = f"{speed[target.name] / 1e9:.2f} GB/s, {ratio:.2f} × memcpy beside it"
            wanted, met = f"≥ {target.limit:.2f} × memcpy", ratio >= target.limit
        elif target.base == "raw":
            ratio = statistics.median(bench.ratios[target.name])
            value, wanted, met = f"{ratio:.2f} × its speed", f"≥ {target.limit:.2f}", ratio >= target.limit
        elif target.base == "seconds":
            seconds = statistics.median(bench.facts[target.name])
            value, wanted, met = f"{seconds:.2f} s", f"≤ {target.limit:.0f} s", seconds <= target.limit
        elif target.base == "bytes":
            value = f"{bench.facts[target.name] / MIB:.0f} MiB"
            wanted, met = f"≤ {target.limit / MIB:.0f} MiB", bench.facts[target.name] <= target.limit
        else:
            share = bench.facts[target.name] / bench.model_bytes
            value, wanted, met = f"{share:.2%} of the model", f"≤ {target.limit:.0%}", share <= target.limit
        rows.append((target.name, value, wanted, "met" if met else "MISSED"))
    named = {target.name for target in TARGETS}
    for name in speed:
        if name not in named:
            rows.append((name, rates(name), "", ""))
    for name, value in bench.facts.items():
        if name not in named:
            text = f"{value / 1e6:.0f} MB" if name.endswith("written") else f"{value:.4g}"
            rows.append((name, text, "", ""))
    return rows


def record(rows, bench, rounds, path):
    commit = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, check=False,
                            capture_output=True, text=True).stdout.strip()
    cpu = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               platform.machine())
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    lines = [
        "# Measured", "",
        f"`make bench` at {commit}, {date}, {cpu}, {len(os.sched_getaffinity(0))} CPUs; a model of "
        f"{bench.model_bytes / 1e9:.2f} GB on tmpfs; median of {rounds}. What the targets stand on: "
        "[README](README.md).", "",
        "| what | measured | target | |", "|---|---|---|---|",
    ]
    path.write_text("\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="large", choices=["large", "demo", "small"])
    parser.add_argument("--rounds", type=int, default=5, help="the median of these counts")
    parser.add_argument("--dir", type=pathlib.Path, help="where to work; default tmpfs")
    args = parser.parse_args()
    place = args.dir or pathlib.Path("/dev/shm")
    needed = 10 * (1_500_000_000 if args.size == "large" else 250_000_000)
    if shutil.disk_usage(place).free < needed:
        sys.exit(f"{place}: {needed / 1e9:.1f} GB are needed, {shutil.disk_usage(place).free / 1e9:.1f} are free")
    directory = place / f"weightcast-bench-{os.getpid()}"
    disk = ROOT / "build/bench"
    clear(disk)
    directory.mkdir()
    disk.mkdir(parents=True)
    try:
        bench = Bench(directory, args.size)
        for number in range(args.rounds):
            say(f"round {number + 1} of {args.rounds}")
            bench.baselines()
            bench.convert()
            bench.versions()
            bench.plans()
        bench.codec()
        bench.on_disk(disk)
    finally:
        clear(directory, disk)
    rows = judge(bench)
    width = max(len(row[0]) for row in rows)
    for name, value, wanted, verdict in rows:
        say(f"{name:{width}}  {value:45}  {wanted:16}  {verdict}")
    missed = sum(row[3] == "MISSED" for row in rows)
    say(f"{sum(row[3] == 'met' for row in rows)} targets met, {missed} missed")
    if args.size == "large":
        record(rows, bench, args.rounds, ROOT / "bench/results.md")


if __name__ == "__main__":
    main()
