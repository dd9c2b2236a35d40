"""Reads a version.json, written from docs/formats/version_json.md alone.

version_json.py FILE        checks seal, fields and root, and prints "NUMBER UID ROOT"
"""

import hashlib
import json
import pathlib
import sys

import root

FIELDS = ["format", "v", "run", "version", "tensors", "sha256"]


def read(raw):
    text = raw.decode()
    body, _, seal = text.rpartition(",\n")
    assert seal == f'"sha256": "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n', "seal"
    document = json.loads(text)
    assert list(document) == FIELDS, f"fields {list(document)}"
    assert (document["format"], document["v"]) == ("weightcast version", 1), "format"
    version, run = document["version"], document["run"]
    names = [tensor["name"].encode() for tensor in document["tensors"]]
    assert names == sorted(set(names)), "order of tensors"
    tensors = {t["name"]: (t["dtype"], t["shape"], int(t["digest"], 16)) for t in document["tensors"]}
    assert root.root(tensors) == version["root"], "root"
    assert version["run"] == run["uid"], "run"
    seed = version["kind"] == "seed"
    assert seed == (version["number"] == 0) == (version["epoch"] == 0), "kind"
    assert bool(version["base"]) == bool(version["base_run"]), "base"
    ranks = 0 if seed else len(version["participants"])
    full = version["kind"] == "full"
    assert roles(version) == {
        "delta": ranks if version["base"] else 0,
        "full": ranks if full else 0,
        "carried": 1 if full and run["carried"] else 0,
    }, "objects"
    return document


def roles(version):
    found = [item["role"] for item in version["objects"]]
    return {role: found.count(role) for role in ("delta", "full", "carried")}


if __name__ == "__main__":
    found = read(pathlib.Path(sys.argv[1]).read_bytes())["version"]
    print(found["number"], found["uid"], found["root"])
