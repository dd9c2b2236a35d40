"""Tensor digest, written from docs/formats/digest.md alone.

digest.py golden        prints testdata/golden/digest_v1.json
digest.py FILE          prints the digest of a file's bytes
"""

import json
import sys

MASK = (1 << 64) - 1
P = (1 << 127) - 1
BLOCK_WORDS = 2048
LANES = 5


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


K = [mix(1000 + i) >> 38 for i in range(BLOCK_WORDS + 8 * (LANES - 1))]
H = [(mix(7000 + 2 * l) << 64 | mix(7001 + 2 * l)) % 2**127 for l in range(LANES)]


def G(block):
    return (mix(0x1234567 + 2 * block) << 64 | mix(0x1234568 + 2 * block)) % 2**127


def digest(data, first_block=0):
    """Digest of bytes that start at a block boundary."""
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
    total = 0
    for at in range(0, len(words), BLOCK_WORDS):
        block = words[at : at + BLOCK_WORDS]
        lanes = [sum(w * K[j + 8 * l] for j, w in enumerate(block)) for l in range(LANES)]
        total += G(first_block + at // BLOCK_WORDS) * sum(h * d for h, d in zip(H, lanes))
    return total % P


def term(offset, value):
    """What the byte `value` at `offset` contributes; a change contributes term(offset, new - old)."""
    word, byte = divmod(offset, 4)
    block, j = divmod(word, BLOCK_WORDS)
    lanes = sum(H[l] * K[j + 8 * l] for l in range(LANES))
    return G(block) * lanes * (value << (8 * byte)) % P


def run(offset, data):
    """Digest of bytes that lie at any offset."""
    block_bytes = 4 * BLOCK_WORDS
    block, at = divmod(offset, block_bytes)
    return digest(bytes(at) + data, block)


def pattern(seed, size):
    """Bytes for tests: byte i is the low byte of mix(seed * 2^32 + i)."""
    return bytes(mix(seed * 2**32 + i) & 255 for i in range(size))


def golden():
    sizes = list(range(21)) + [63, 64, 65, 127, 128, 129, 1023, 1024, 1025]
    sizes += [8188, 8189, 8190, 8191, 8192, 8193, 8196, 16383, 16384, 16385, 3 * 8192, 25000]
    cases = [{"name": f"size {n}", "seed": n, "offset": 0, "size": n} for n in sizes]
    for offset in [1, 2, 3, 4, 5, 8000, 8191, 8192, 8193, 10**6 + 3, 2**33 + 5]:
        cases.append({"name": f"offset {offset}", "seed": offset % 997, "offset": offset, "size": 9001})
    for case in cases:
        data = pattern(case["seed"], case["size"])
        case["digest"] = f"{run(case['offset'], data):032x}"
        assert run(case["offset"], data) == sum(term(case["offset"] + i, v) for i, v in enumerate(data)) % P
    constant = [("zeros", 0x00), ("ones", 0xFF)]
    for name, byte in constant:
        data = bytes([byte]) * 20000
        cases.append({"name": name, "fill": byte, "offset": 0, "size": 20000, "digest": f"{digest(data):032x}"})
    lines = ",\n  ".join(json.dumps(case) for case in cases)
    return '{"format": "weightcast tensor digest 1", "cases": [\n  ' + lines + "\n]}\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["golden"]:
        sys.stdout.write(golden())
    else:
        with open(sys.argv[1], "rb") as file:
            print(f"{digest(file.read()):032x}")
