"""Part format, written from docs/formats/part.md alone (digests: digest.py, signature: root.py).

part.py FILE TENSORS.json       decodes a part against the base state of the goldens and prints the
                                SHA-256 of each tensor's next state
part.py show FILE TENSORS.json  prints what the index lists
part.py example                 prints the worked example of the page
"""

import hashlib
import json
import struct
import sys

import digest
import root
import zstandard

KINDS = {1: "delta", 2: "full"}
METHODS = {1: "class gaps", 2: "bitmap", 3: "XOR planes", 4: "raw"}
UNIT_BYTES = {**{name: 2 for name in ("I16", "U16", "F16", "BF16")},
              **{name: 4 for name in ("I32", "U32", "F32")},
              **{name: 8 for name in ("I64", "U64", "F64", "C64")}}  # all others: 1
MANTISSA_BITS = {"BF16": 7, "F16": 10, "F32": 23, "F64": 52, "F8_E4M3": 3, "F8_E4M3FNUZ": 3, "F8_E5M2": 2,
                 "F8_E5M2FNUZ": 2}
CELL_UNITS = 1 << 20


class Malformed(Exception):
    pass


def check(condition, what):
    if not condition:
        raise Malformed(what)


class Reader:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, n):
        check(n <= len(self.data) - self.at, "ends early")
        self.at += n
        return self.data[self.at - n : self.at]

    def byte(self):
        return self.take(1)[0]

    def varint(self, end=1 << 63):
        value = shift = 0
        while True:
            b = self.byte()
            value |= (b & 127) << shift
            shift += 7
            if b < 128:
                break
        check(b > 0 or shift == 7, "a varint is not in its shortest form")
        check(value < end, "a number is out of range")
        return value

    def done(self):
        check(self.at == len(self.data), "bytes behind the end")


# ---- The part ----

def matrix(dtype, shape):
    """Rows, columns and bytes of a unit."""
    unit = UNIT_BYTES.get(dtype, 1)
    count = 1
    for n in shape:
        count *= n
    if dtype in ("F4", "F6_E2M3", "F6_E3M2"):
        return 1, count * int(dtype[1]) // 8, 1
    if not shape:
        return 1, 1, unit
    return (count // shape[-1] if shape[-1] else 0, shape[-1], unit) if len(shape) > 1 else (count, 1, unit)


def footer(data):
    """The index of a part that is a file of its own."""
    check(len(data) >= 40, "too short")
    check(data[:16] == b"\x89WCPART\n" + struct.pack("<II", 1, 0), "header")
    size, crc, version, magic = struct.unpack("<Q8sI4s", data[-24:])
    check(magic == b"WCPE" and version == 1, "trailer")
    check(24 <= size <= len(data) - 16, "footer size")
    index = data[len(data) - size : -24]
    check(hashlib.sha256(index).digest()[:8] == crc, "the trailer's check does not fit the index")
    return index


def parse(data, tensors):
    """Identity and records; tensors: [(name, dtype, shape)] sorted by name."""
    index = footer(data)
    r = Reader(index)
    kind = r.byte()
    check(kind in KINDS, "kind")
    identity = {"kind": KINDS[kind]}
    for name in ("run", "version", "base"):
        identity[name] = r.take(16).hex()
    check((kind == 2) == (identity["base"] == "00" * 16), "base of a full part, or none of a delta")
    identity["epoch"] = r.varint()
    identity["rank"] = r.varint(1 << 31)
    identity["plan"] = r.take(32).hex()
    identity["layout"] = r.take(32).hex()
    check(identity["layout"] == root.signature({n: (d, s) for n, d, s in tensors}), "layout")
    records = []
    place = (-1,)
    tensor, offset = 0, 16
    for _ in range(r.varint()):
        head = r.byte()
        method, without_base = head & 7, bool(head & 128)
        check(head & 0x38 == 0 and method in METHODS, "head")
        check(not without_base or method in (3, 4), "method without base")
        check(kind == 1 or without_base, "a base in a full part")
        tensor += r.varint()
        check(tensor < len(tensors), "tensor")
        rows_all, cols_all, unit = matrix(*tensors[tensor][1:])
        row, rows, col, cols = (r.varint() for _ in range(4))
        row_step = col_step = 1
        if head & 64:
            row_step, col_step = r.varint(), r.varint()
            check((row_step, col_step) != (1, 1) and min(row_step, col_step) > 0, "steps")
        check(rows > 0 and cols > 0, "empty box")
        last_row, last_col = row + (rows - 1) * row_step, col + (cols - 1) * col_step
        check(last_row < rows_all and last_col < cols_all, "box outside of the matrix")
        rows_a_cell = max(1, CELL_UNITS // cols_all)
        cols_a_cell = min(cols_all, CELL_UNITS)
        cell = (row // rows_a_cell, col // cols_a_cell)
        check(cell == (last_row // rows_a_cell, last_col // cols_a_cell), "more than one cell")
        check((tensor, cell, row, col) > place, "order")
        place = (tensor, cell, row, col)
        payload = r.varint()
        raw = rows * cols * unit
        check(1 <= payload <= raw and (method != 4 or payload == raw), "payload size")
        changed, base_digest = rows * cols, None
        if not without_base:
            changed = r.varint()
            check(1 <= changed <= rows * cols, "changed units")
            base_digest = int.from_bytes(r.take(16), "little")
        next_digest = int.from_bytes(r.take(16), "little")
        check(max(next_digest, base_digest or 0) < digest.P, "digest")
        records.append(dict(tensor=tensor, method=method, box=(row, rows, row_step, col, cols, col_step),
                            offset=offset, bytes=payload, changed=changed, base_digest=base_digest,
                            next_digest=next_digest, sha256=r.take(32)))
        offset += payload
    r.done()
    check(offset == len(data) - len(index) - 24, "payloads do not end where the index starts")
    return identity, records


def units_of(box, cols_all):
    """Index of each unit of a box in its matrix, in the order of packing."""
    row, rows, row_step, col, cols, col_step = box
    return [(row + i * row_step) * cols_all + col + j * col_step for i in range(rows) for j in range(cols)]


def partial(places, units, unit):
    """The digest of units at their places in the tensor."""
    total = 0
    for place, value in zip(places, units):
        for k in range(unit):
            total += digest.term(place * unit + k, value >> (8 * k) & 255)
    return total % digest.P


def apply(data, tensors, base):
    """The next state: base with every chunk of the part decoded and proven. Lists of bytes objects."""
    _, records = parse(data, tensors)
    result = [bytearray(b) for b in base]
    for record in records:
        _, dtype, shape = tensors[record["tensor"]]
        _, cols_all, unit = matrix(dtype, shape)
        payload = data[record["offset"] : record["offset"] + record["bytes"]]
        check(hashlib.sha256(payload).digest() == record["sha256"], "payload's SHA-256")
        places = units_of(record["box"], cols_all)
        source = base[record["tensor"]]
        old = [int.from_bytes(source[p * unit : (p + 1) * unit], "little") for p in places]
        if record["base_digest"] is not None:
            check(partial(places, old, unit) == record["base_digest"], "digest of the base")
        new = decode(record["method"], dtype, unit, record["changed"], payload,
                     None if record["base_digest"] is None else old, len(places))
        check(partial(places, new, unit) == record["next_digest"], "digest of the result")
        for place, value in zip(places, new):
            result[record["tensor"]][place * unit : (place + 1) * unit] = value.to_bytes(unit, "little")
    return [bytes(b) for b in result]


# ---- Chunk payload ----

def stream(r, size):
    n = r.varint()
    if n == 0:
        return r.take(size)
    check(n < size, "a frame that is not smaller")
    frame = r.take(n)
    try:
        check(zstandard.get_frame_parameters(frame).content_size == size, "content size of a frame")
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        content = decompressor.decompress(frame)
        check(decompressor.eof and not decompressor.unused_data, "not exactly one frame")
    except zstandard.ZstdError as error:
        raise Malformed(str(error)) from error
    check(len(content) == size, "size of a stream")
    return content


def planes(r, count, unit):
    columns = [stream(r, count) for _ in range(unit)]
    return [int.from_bytes(bytes(unit_bytes), "little") for unit_bytes in zip(*columns)]


def class_gaps(r, dtype, unit, changed, old):
    bits = 8 * unit
    top = 1 << (bits - 1)
    is_float = dtype in MANTISSA_BITS

    def flip(u):  # bits to ordered value and back, as unsigned numbers
        return u ^ (top - 1) if is_float and u & top else u

    def octave(u):
        return (u & (top - 1)) >> MANTISSA_BITS[dtype] if is_float else 0

    octaves = top >> MANTISSA_BITS[dtype] if is_float else 1
    classes = r.byte()
    check(1 <= classes <= 8, "classes")
    first = [0]
    for _ in range(classes - 1):
        step = r.varint()
        check(step > 0, "threshold")
        first.append(first[-1] + step)
    check(first[-1] < octaves, "threshold")
    parts = []
    for _ in range(classes):
        count = r.varint()
        parts.append((count, r.byte() if count else 0))
    check(sum(c for c, _ in parts) == changed and max(s for _, s in parts) <= 20, "classes")
    low_bytes = (sum(c * (s + 1) for c, s in parts) + 7) // 8
    low = int.from_bytes(r.take(low_bytes), "little")
    tail_bytes = r.varint()
    check(tail_bytes <= 20 * changed, "tail")
    symbols = stream(r, changed + tail_bytes)
    tail = Reader(symbols[changed:])
    class_of = [sum(octave(u) >= f for f in first) - 1 for u in old]
    new = list(old)
    at = 0
    for c, (count, shift) in enumerate(parts):
        members = [i for i, k in enumerate(class_of) if k == c]
        rank = -1
        for _ in range(count):
            symbol = symbols[at]
            at += 1
            gap, size = symbol & 15, symbol >> 4
            if gap == 15:
                gap += tail.varint(1 << 64)
            if size == 15:
                size += tail.varint(1 << 64)
            up = low & 1
            low >>= 1
            rank += (gap << shift | low & ((1 << shift) - 1)) + 1
            low >>= shift
            check(rank < len(members), "rank beyond its class")
            check(size <= top - 1 - up, "step")
            i = members[rank]
            new[i] = flip((flip(old[i]) + (size + 1 if up else -size - 1)) % (2 * top))
    tail.done()
    check(low == 0, "spare bits")
    return new


def decode(method, dtype, unit, changed, payload, old, count):
    r = Reader(payload)
    if method == 1:
        new = class_gaps(r, dtype, unit, changed, old)
    elif method == 2:
        marks = int.from_bytes(stream(r, (count + 7) // 8), "little")
        places = [i for i in range(count) if marks >> i & 1]
        check(marks >> count == 0 and len(places) == changed, "bitmap")
        new = list(old)
        for place, word in zip(places, planes(r, changed, unit)):
            new[place] ^= word
    elif method == 3:
        new = [a ^ b for a, b in zip(planes(r, count, unit), old or [0] * count)]
    else:
        new = [int.from_bytes(r.take(unit), "little") for _ in range(count)]
    r.done()
    check(old is None or sum(a != b for a, b in zip(old, new)) == changed, "changed units")
    return new


# ---- Command line ----

def tensors_of(path):
    with open(path, encoding="utf-8") as f:
        return [tuple(t) for t in json.load(f)["tensors"]]


def pattern_base(tensors):
    sizes = [m[0] * m[1] * m[2] for m in (matrix(d, s) for _, d, s in tensors)]
    return [digest.pattern(i + 1, size) for i, size in enumerate(sizes)]


def example():
    """(bytes, comment) of each line: [1.0, 2.0, -0.5, 0.0] becomes [1.0078125, 2.0, -0.5, -0.0]."""
    old, new = [0x3F80, 0x4000, 0xBF00, 0x0000], [0x3F81, 0x4000, 0xBF00, 0x8000]
    header = b"\x89WCPART\n" + struct.pack("<II", 1, 0)
    payload = bytes([1, 2, 0, 0b01, 0, 0, 0, 2])
    lines = [(header, "header"),
             (payload[:3], "one class with 2 changed units, shift 0"),
             (payload[3:4], "low bits: up, down"),
             (payload[4:5], "no tail"),
             (payload[5:], "stored symbols: gap 0, size 0; gap 2, size 0")]
    uids = [bytes([n]) * 16 for n in (0x11, 0x22, 0x33)]
    index = [(b"\1", "index: a delta"), *zip(uids, ("run", "version", "base")),
             (b"\2\5", "epoch 2, rank 5"), (b"\x44" * 32, "plan"),
             (bytes.fromhex(root.signature({"w": ("BF16", [2, 2])})), "layout: one tensor w, BF16 [2, 2]"),
             (b"\1", "one record"), (b"\1\0", "class gaps, tensor 0"),
             (b"\0\2\0\2", "box: rows 0 + 2, columns 0 + 2"), (b"\x08\2", "8 bytes, 2 changed units"),
             (partial(range(4), old, 2).to_bytes(16, "little"), "base digest"),
             (partial(range(4), new, 2).to_bytes(16, "little"), "next digest"),
             (hashlib.sha256(payload).digest(), "SHA-256 of the payload")]
    raw = b"".join(b for b, _ in index)
    trailer = [(struct.pack("<Q", len(raw) + 24), f"trailer: a footer of {len(raw) + 24} bytes"),
               (hashlib.sha256(raw).digest()[:8], "check of the index"),
               (struct.pack("<I", 1) + b"WCPE", "version, magic")]
    lines += index + trailer
    data = b"".join(b for b, _ in lines)
    state = apply(data, [("w", "BF16", [2, 2])], [struct.pack("<4H", *old)])
    assert state == [struct.pack("<4H", *new)]
    return lines


def print_example():
    for data, comment in example():
        rows = [data[i : i + 16].hex(" ") for i in range(0, len(data), 16)]
        for row in rows[:-1]:
            print(f"    {row}")
        print(f"    {rows[-1]:<49}# {comment}")


def main(command, *args):
    if command == "example":
        print_example()
        return
    file, tensors = (args[0], tensors_of(args[1])) if command == "show" else (command, tensors_of(args[0]))
    with open(file, "rb") as f:
        data = f.read()
    if command != "show":
        for state in apply(data, tensors, pattern_base(tensors)):
            print(hashlib.sha256(state).hexdigest())
        return
    identity, records = parse(data, tensors)
    print(identity)
    for record in records:
        print(tensors[record["tensor"]][0], record["box"], METHODS[record["method"]], record["bytes"], "bytes,",
              record["changed"], "changed")


if __name__ == "__main__":
    main(*sys.argv[1:])
