"""Our safetensors reader and writer against PyPI's `safetensors`, both ways.

The C++ half is SafetensorsInteropTest of tensor_test; WEIGHTCAST_BUILD names the build folder.
"""

import ctypes
import json
import os
import pathlib
import random
import struct
import subprocess

import safetensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
DTYPES = {  # safetensors' name: bits
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}

WRITABLE = {  # what the package also writes: its name for it
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
    "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64",
    "F4": "float4_e2m1fn_x2",
}


def ours(case, directory):
    """Runs one case of SafetensorsInteropTest over a directory."""
    binary = pathlib.Path(os.environ.get("WEIGHTCAST_BUILD", ROOT / "build")) / "src/tensor/tensor_test"
    subprocess.run([binary, f"--gtest_filter=SafetensorsInteropTest.{case}", "--gtest_brief=1"],
                   check=True, cwd=ROOT, env={**os.environ, "WC_INTEROP_DIR": str(directory)})
    return {path.stem: json.loads(path.read_text()) for path in directory.glob("*.json")}


def theirs(raw):
    """The tensors of a file as PyPI's package reads them: {name: (dtype, shape, hex)}."""
    return {name: (t["dtype"], list(t["shape"]), bytes(t["data"]).hex())
            for name, t in safetensors.deserialize(raw)}


def described(description):
    return {name: (dtype, shape, data) for name, dtype, shape, data in description["tensors"]}


def serialize(tensors, metadata=None):
    """A file as the package writes it, from {name: (dtype, shape, bytes)}."""
    buffers = {name: ctypes.create_string_buffer(data, len(data)) for name, (_, _, data) in tensors.items()}
    specs = {}
    for name, (dtype, shape, data) in tensors.items():
        if dtype == "F4":  # given as bytes of two
            shape = [*shape[:-1], shape[-1] // 2]
        specs[name] = safetensors.TensorSpec(dtype=WRITABLE[dtype], shape=shape, data_len=len(data),
                                             data_ptr=ctypes.addressof(buffers[name]))
    return bytes(safetensors.serialize(specs, metadata))


def file_of(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_they_read_what_we_write(tmp_path):
    descriptions = ours("WritesFilesForOthers", tmp_path)
    assert len(descriptions) == 6
    for name, description in descriptions.items():
        path = tmp_path / f"{name}.safetensors"
        assert theirs(path.read_bytes()) == described(description), name
        with safetensors.safe_open(path, framework="numpy") as opened:
            assert (opened.metadata() or {}) == description["metadata"], name
            assert set(opened.keys()) == set(described(description)), name
    assert set(DTYPES) == set(described(descriptions["every_dtype"]))


def test_we_read_what_they_write(tmp_path):
    rnd = random.Random(1)
    files = {}
    for seed in range(40):
        tensors = {}
        for i in range(rnd.randrange(6)):
            dtype = rnd.choice(list(WRITABLE))
            shape = [rnd.choice([0, 1, 2, 3, 8]) for _ in range(rnd.randrange(4))]
            if DTYPES[dtype] < 8:
                shape.append(4)
            bits = DTYPES[dtype]
            for dim in shape:
                bits *= dim
            name = rnd.choice(["a", "é", "x\n", "😀"]) + str(i)
            tensors[name] = (dtype, shape, rnd.randbytes(bits // 8))
        metadata = rnd.choice([None, {}, {"format": "pt", "ü\"": "\\\n"}])
        files[f"f{seed}"] = (tensors, metadata)
        (tmp_path / f"f{seed}.safetensors").write_bytes(serialize(tensors, metadata))
    seen = ours("DescribesFilesOfOthers", tmp_path)
    for name, (tensors, metadata) in files.items():
        assert "error" not in seen[name], (name, seen[name])
        expected = {n: (dtype, shape, data.hex()) for n, (dtype, shape, data) in tensors.items()}
        assert described(seen[name]) == expected, name
        assert seen[name]["metadata"] == (metadata or {}), name


# Where we are stricter than the package, and why: docs/design/safetensors_strict.md.
STRICTER = {
    "leading_space": file_of(b"  {}"),
    "duplicate": file_of(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                         b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "unknown_field": file_of({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], "x": 1}}, b"x"),
    "empty_name": file_of({"": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x"),
    "null_metadata": file_of({"__metadata__": None}),
    "many_dims": file_of({"a": {"dtype": "U8", "shape": [1] * 17, "data_offsets": [0, 1]}}, b"x"),
}


def test_what_we_accept_they_accept_and_see_alike(tmp_path):
    """Every cut and thousands of mutations of a good file."""
    good = serialize({"w": ("BF16", [2, 3], bytes(range(12))), "s": ("F32", [], b"abcd"),
                      "e": ("I8", [0, 3], b"")}, {"format": "pt"})
    rnd = random.Random(2)
    files = dict(STRICTER)
    for size in range(len(good)):
        files[f"cut{size}"] = good[:size]
    for i in range(2000):
        raw = bytearray(good)
        at = rnd.randrange(len(good) - 16)
        raw[at] = rnd.choice(b'0123456789[]{}",: ' + bytes([rnd.randrange(256)]))
        if rnd.random() < 0.3:
            raw[at:at] = rnd.choice([b"0", b" ", b"-", b'"', b"\\u0041"])
            raw[:8] = struct.pack("<Q", int.from_bytes(raw[:8], "little") + len(raw) - len(good))
        files[f"mutated{i}"] = bytes(raw)
    for name, raw in files.items():
        (tmp_path / f"{name}.safetensors").write_bytes(raw)
    seen = ours("DescribesFilesOfOthers", tmp_path)
    accepted = refused_by_us_alone = 0
    for name, raw in files.items():
        try:
            expected = theirs(raw)
        except safetensors.SafetensorError:
            expected = None
        if "error" not in seen[name]:
            assert expected is not None, (name, seen[name])
            assert described(seen[name]) == expected, name
            accepted += 1
        elif expected is not None:
            refused_by_us_alone += 1
            if not name.startswith("mutated"):
                assert name in STRICTER, (name, seen[name])
    assert accepted > 50
    assert refused_by_us_alone >= len(STRICTER)


def test_they_accept_what_only_we_refuse(tmp_path):
    """The list above stays true: a package that grew stricter is noticed."""
    for name, raw in STRICTER.items():
        theirs(raw)
        (tmp_path / f"{name}.safetensors").write_bytes(raw)
    for name, description in ours("DescribesFilesOfOthers", tmp_path).items():
        assert "error" in description, name
