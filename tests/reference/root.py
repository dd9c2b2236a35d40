"""Layout signature and root, written from docs/formats/root.md alone.

root.py golden      prints testdata/golden/root_v1.json
root.py example     prints the worked example of the page
"""

import hashlib
import json
import struct
import sys

import digest

DTYPES = (
    "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 I16 U16 F16 BF16 I32 U32 F32 I64 U64 F64 C64 F4 F6_E2M3 "
    "F6_E3M2 F8_E4M3FNUZ F8_E5M2FNUZ"
).split()


def encode(magic, tensors):
    """tensors: {name: (dtype, shape)} or {name: (dtype, shape, digest)}; gives the fields in order."""
    fields = [magic, struct.pack("<Q", len(tensors))]
    for name, (dtype, shape, *content) in sorted(tensors.items(), key=lambda item: item[0].encode()):
        raw = name.encode()
        fields.append(struct.pack("<I", len(raw)) + raw)
        fields.append(struct.pack("<BB", DTYPES.index(dtype), len(shape)))
        fields.append(struct.pack(f"<{len(shape)}q", *shape))
        fields += [value.to_bytes(16, "little") for value in content]
    return fields


def signature(tensors):
    layout = {name: tensor[:2] for name, tensor in tensors.items()}
    return hashlib.sha256(b"".join(encode(b"WCINV\0\0\1", layout))).hexdigest()


def root(tensors):
    return hashlib.sha256(b"".join(encode(b"WCROOT\0\1", tensors))).hexdigest()


EXAMPLE = {
    "b": ("BF16", [2, 1], digest.digest(bytes.fromhex("803f0040"))),
    "a": ("F32", [], digest.digest(bytes.fromhex("0000803f"))),
}


def golden():
    cases = {
        "empty": {},
        "example": EXAMPLE,
        "every dtype": {f"t.{name}": (name, [3, 8], 1000 + i) for i, name in enumerate(DTYPES)},
        "names by bytes": {name: ("U8", [1], 7) for name in ["Z", "a", "é", "\U0001f600", "\uffff", "a.b", "a/b"]},
        "shapes": {f"s{i}": ("I32", shape, i) for i, shape in enumerate([[], [0], [2, 0], [1] * 16, [2**40, 3]])},
        "largest digest": {"x": ("F64", [5], digest.P - 1)},
    }
    lines = []
    for name, tensors in cases.items():
        rows = [[n, dtype, shape, f"{d:032x}"] for n, (dtype, shape, d) in tensors.items()]
        case = {"name": name, "tensors": rows, "signature": signature(tensors), "root": root(tensors)}
        lines.append(json.dumps(case))
    return '{"format": "weightcast root 1", "cases": [\n  ' + ",\n  ".join(lines) + "\n]}\n"


def example():
    lines = []
    for magic, tensors in (
        (b"WCINV\0\0\1", {name: tensor[:2] for name, tensor in EXAMPLE.items()}),
        (b"WCROOT\0\1", EXAMPLE),
    ):
        fields = encode(magic, tensors)
        lines += [field.hex(" ") for field in fields if field]
        lines += ["SHA-256 = " + hashlib.sha256(b"".join(fields)).hexdigest(), ""]
    return "\n".join("    " + line if line else "" for line in lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write({"golden": golden, "example": example}[sys.argv[1]]())
