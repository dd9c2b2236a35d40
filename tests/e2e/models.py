"""Checkpoint directories made with PyPI's safetensors, an implementation that is not ours."""

import json
import pathlib
import shutil

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def bits(path):
    """{name: (dtype, shape, bytes)} of every tensor of a checkpoint directory or file, read by
    PyPI's safetensors where numpy knows the dtype, and by offsets where it does not (bf16, fp8)."""
    path = pathlib.Path(path)
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    out = {}
    for file in files:
        raw = file.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        with safe_open(file, framework="numpy") as opened:  # parses and checks the file as PyPI does
            names = set(opened.keys())
        header.pop("__metadata__", None)
        assert names == set(header), "our header and PyPI's list of names"
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            out[name] = (entry["dtype"], tuple(entry["shape"]), raw[8 + size + begin : 8 + size + end])
    return out


def write(directory, tensors, config=None):
    """A directory with one weight file; `tensors` are numpy arrays."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config or {"architectures": ["Odd"]}))
    return directory


def write_raw(directory, tensors, shards=1):
    """Like write, from {name: (dtype, shape, bytes)}: any dtype, in `shards` files with an index."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text('{"architectures": ["Odd"]}')
    (directory / "tokenizer.json").write_text('{"version": "1.0"}')
    names = sorted(tensors)
    weight_map = {}
    for k in range(shards):
        mine = names[k::shards]
        file = "model.safetensors" if shards == 1 else f"model-{k + 1:05d}-of-{shards:05d}.safetensors"
        header, at = {}, 0
        for name in mine:
            dtype, shape, data = tensors[name]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
            at += len(data)
            weight_map[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(directory / file, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in mine:
                out.write(tensors[name][2])
    if shards > 1:
        total = sum(len(t[2]) for t in tensors.values())
        (directory / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return directory


def copy_file_as_model(file, directory):
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    return directory


def moved(tensors, seed, share=0.05):
    """The same tensors with a share of their bytes changed (any bits: NaN payloads, -0.0)."""
    random = np.random.default_rng(seed)
    out = {}
    for name, (dtype, shape, data) in tensors.items():
        array = np.frombuffer(data, np.uint8).copy()
        hit = random.random(array.shape) < share
        array[hit] ^= random.integers(1, 256, array.shape, dtype=np.uint8)[hit]
        if dtype == "BOOL":
            array &= 1
        out[name] = (dtype, shape, array.tobytes())
    return out


def odd_tensors():
    """Mixed dtypes, 0-d and empty tensors, NaN payloads, -0.0, odd names."""
    random = np.random.default_rng(5)

    def some(count):
        return random.integers(0, 256, count, dtype=np.uint8).tobytes()

    return {
        "plain.weight": ("BF16", (64, 48), some(64 * 48 * 2)),
        "half": ("F16", (33,), some(66)),
        "nan payloads": ("F32", (4,), np.array([0x7FC00001, 0xFFC0DEAD, 0x7F800001, 0x80000000],
                                               np.uint32).tobytes()),
        "scalar": ("F32", (), some(4)),
        "empty": ("BF16", (0, 7), b""),
        "empty.too": ("I64", (3, 0), b""),
        "f64": ("F64", (5, 3), some(120)),
        "ints.u8": ("U8", (17,), some(17)),
        "ints.i8": ("I8", (3, 5), some(15)),
        "ints.i16": ("I16", (9,), some(18)),
        "ints.u16": ("U16", (9,), some(18)),
        "ints.i32": ("I32", (9,), some(36)),
        "ints.u32": ("U32", (9,), some(36)),
        "ints.i64": ("I64", (9,), some(72)),
        "ints.u64": ("U64", (9,), some(72)),
        "flags": ("BOOL", (5,), bytes([0, 1, 1, 0, 1])),
        "fp8.e4m3": ("F8_E4M3", (31, 2), some(62)),
        "fp8.e5m2": ("F8_E5M2", (31, 2), some(62)),
        "name with spaces, \"quotes\" and ünïcode / 権重": ("BF16", (3, 3), some(18)),
        "a" * 300: ("BF16", (1, 2), some(4)),
        "one.element": ("BF16", (1,), b"\x00\x80"),
    }
