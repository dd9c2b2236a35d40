"""One process holds torch, vLLM, protobuf and weightcast: whoever comes first, all work.

Runs in build/vllm-venv (`make test-vllm`)."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
pytest.importorskip("google.protobuf")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(os.environ.get("WEIGHTCAST_BUILD", ROOT / "build")) / "python"

USE = {
    "torch": "assert float((torch.ones(64, 64) @ torch.ones(64, 64)).sum()) == 64.0 ** 3",
    # Its own libraries are loaded by this.
    "vllm": "import vllm._custom_ops; from vllm.config import ModelConfig",
    "google.protobuf": """
from google.protobuf import descriptor_pb2, struct_pb2
s = struct_pb2.Struct(); s.update({"a": [1, 2.5, "x"]})
assert struct_pb2.Struct.FromString(s.SerializeToString()) == s""",
    "weightcast": """
weights = {"w": torch.arange(4096, dtype=torch.bfloat16).reshape(64, 64), "s": torch.tensor(-0.0),
           "strided": torch.arange(6.).reshape(2, 3).T}
with weightcast.Publisher("sqlite:c.db", "file:s", "p", weights, baseline="b") as publisher:
    for number in (1, 2):
        publisher.publish(weights).wait()
        weightcast.pull("sqlite:c.db", "p", "image")
        with weightcast.Image("image") as image:
            assert image.number == number
            for name, tensor in weights.items():
                assert torch.equal(image.torch(name), tensor), name
        weights["w"][3, 5] = number + 0.5
try:
    weightcast.pull("sqlite:c.db", "nobody", "image")
except weightcast.errors.NotFound:
    pass""",
}


ORDERS = [
    ("weightcast", "torch", "vllm", "google.protobuf"),
    ("torch", "weightcast", "google.protobuf", "vllm"),
    ("google.protobuf", "weightcast", "vllm", "torch"),
    ("vllm", "google.protobuf", "torch", "weightcast"),
]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """{order: process}, all started at once."""
    started = {}
    for order in ORDERS:
        lines = [f"import {module}" for module in order]
        lines += ["import torch", *(USE[module] for module in order), "print('all of it')"]
        started[order] = subprocess.Popen(
            [sys.executable, "-c", "\n".join(lines)], cwd=tmp_path_factory.mktemp("process"), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(PACKAGE)})
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_all_work_in_one_process(order, processes):
    out, errors = processes[order].communicate(timeout=300)
    assert processes[order].returncode == 0 and "all of it" in out, errors[-3000:]


def test_what_a_state_dict_of_torch_may_hold(tmp_path):
    sys.path.insert(0, str(PACKAGE))
    import weightcast
    from weightcast.errors import InvalidData

    base = torch.arange(24.0).reshape(4, 6)
    freed = torch.ones(100)
    freed.untyped_storage().resize_(0)
    good = {
        "parameter": torch.nn.Parameter(base.clone()), "transposed": base.T, "sliced": base[1:3, ::2],
        "expanded": torch.tensor([1.5]).expand(5), "tied": base, "tied_too": base,
        "conjugate": torch.tensor([1 + 2j, 3 - 0j], dtype=torch.complex64).conj(),
        "fp8": torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn), "bool": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3, dtype=torch.bfloat16), "scalar": torch.tensor(7),
        "nan": torch.tensor([0x7FC1, -1, -32768], dtype=torch.int16).view(torch.bfloat16),
    }
    where = dict(catalog=f"sqlite:{tmp_path}/c.db", store=f"file:{tmp_path}/s", run="p")
    with weightcast.Publisher(**where, weights=good, baseline=tmp_path / "b") as publisher:
        bad = {"meta": torch.zeros(3, device="meta"), "sparse": torch.eye(3).to_sparse(), "freed": freed,
               "quantized": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)}
        with pytest.raises(InvalidData) as raised:
            publisher.publish({**good, **bad})
        for name in bad:
            assert name in str(raised.value)
        publisher.publish(good).wait()
    weightcast.pull(where["catalog"], "p", tmp_path / "image")
    with weightcast.Image(tmp_path / "image") as image:
        for name, tensor in good.items():
            found = image.torch(name)
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
            wanted = tensor.detach().resolve_conj().contiguous()
            assert torch.equal(found.reshape(-1).view(torch.uint8),
                               wanted.reshape(-1).view(torch.uint8)), name
