"""Drives the real `weightcast` binary, one process a call, as users do."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("WEIGHTCAST_BINARY", ROOT / "build" / "weightcast"))
FIXTURES = pathlib.Path(os.environ.get("WEIGHTCAST_FIXTURES", ROOT / ".." / "shared" / "fixtures"))
MEGATRON = FIXTURES / "megatron"

# Exit codes of docs/cli.md.
FAULT, USAGE, DATA, CONFLICT, UNAVAILABLE = 1, 2, 3, 4, 5

# Every family of the collection; a folder is a layout.
FAMILIES = sorted(path.parent.parent.name for path in MEGATRON.glob("*/tp1/topology.json"))


def topologies(family):
    return sorted(p.parent.name for p in (MEGATRON / family).glob("*/topology.json"))


def export_of(family, topology="tp1"):
    """The exporter's own file for a set: hf_export.safetensors beside it, or the set's own."""
    own = MEGATRON / family / topology / "hf_export.safetensors"
    return own if own.exists() else MEGATRON / family / "hf_export.safetensors"


class Failed(Exception):
    def __init__(self, code, document, words):
        message = document["error"]["message"]
        super().__init__(f"{' '.join(map(str, words))}: exit {code}: {message}")
        self.code, self.document, self.message = code, document, message


def run(*words, env=None, timeout=120, prefix=()):
    """Runs a command with --json and gives the document; raises Failed on any other exit code."""
    argv = [*map(str, prefix), str(BINARY), *map(str, words), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise Failed(done.returncode, json.loads(done.stdout), words)
    return json.loads(done.stdout)


class Bench:
    """A catalog, a store, baselines and images in one scratch directory."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.catalog = f"sqlite:{self.path}/catalog.db"
        self.store = f"file:{self.path}/store"

    def publish(self, *words, run_name="policy", **options):
        return run("publish", "--catalog", self.catalog, "--store", self.store, "--run", run_name,
                   "--baseline", self.path / "baseline", *words, **options)

    def pull(self, image, *words, run_name="policy", **options):
        return run("pull", "--catalog", self.catalog, "--run", run_name, *words, self.path / image,
                   **options)

    def verify(self, image, **options):
        return run("verify", self.path / image, "--catalog", self.catalog, **options)
