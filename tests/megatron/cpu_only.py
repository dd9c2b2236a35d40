"""Import before Megatron: lets Megatron-Core, Megatron-Bridge and the Python half of Transformer
Engine build, load and export models on a machine without CUDA. Forward passes do not work.

Nothing that makes, cuts or maps a parameter is replaced. What is: compiled libraries become modules
whose names mean nothing; questions about the device get the answers of one; what is asked to be made
there is made in host memory.
"""

import enum
import functools
import importlib.abc
import importlib.machinery
import os
import sys
import types
import unittest.mock
import warnings

warnings.filterwarnings("ignore")
os.environ.update(
    NVTE_PROJECT_BUILDING="1",  # Transformer Engine then does not look for its library
    CUDA_DEVICE_MAX_CONNECTIONS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1",
    OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

# torch asks for triton itself, and takes no for an answer; Transformer Engine does not.
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401
import torch._inductor.config  # noqa: E402, F401


class _DType(enum.IntEnum):  # Transformer Engine looks some up, and expects numbers
    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10


class _Backend(enum.IntEnum):
    NVTE_No_Backend = -1
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2


class _AnyMember(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return unittest.mock.MagicMock(name=f"{cls.__name__}.{name}")


class _Absent(types.ModuleType):
    """A module in which every name exists: a class where it is spelled like one."""

    __path__ = []
    __version__ = "3.0.0"
    DType = _DType
    NVTE_Fused_Attn_Backend = _Backend

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper() and not name.isupper():
            value = _AnyMember(name, (), {"__init__": lambda self, *a, **k: None})
        else:
            value = unittest.mock.MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    ROOTS = {"triton", "transformer_engine_torch", "onnx", "onnxscript"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.ROOTS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Absent(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())


def _device():
    cuda = torch.cuda
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 1
    cuda.get_device_capability = lambda *a: (9, 0)
    cuda.get_device_properties = lambda *a: types.SimpleNamespace(
        major=9, minor=0, multi_processor_count=1, total_memory=1 << 34, name="none")
    cuda.get_rng_state = lambda *a: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *a: torch.set_rng_state(state)
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all",
                 "_lazy_init", "Stream", "Event", "current_stream", "default_stream", "stream"):
        setattr(cuda, name, unittest.mock.MagicMock(name=name))
    torch.nn.Module.cuda = lambda self, *a, **k: self
    torch.Tensor.cuda = lambda self, *a, **k: self


def _on_host(place):
    """Whether it means a CUDA device, which is the host here."""
    return type(place) is int or (isinstance(place, (str, torch.device)) and
                                  str(place).startswith("cuda"))


def _made_on_host(function, places=(str, torch.device)):
    """`places`: what names a device among the arguments without a name (an int may be a size)."""
    @functools.wraps(function)
    def made(*args, **kwargs):
        args = ["cpu" if isinstance(a, places) and _on_host(a) else a for a in args]
        if _on_host(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)

    return made


def _engine():
    import transformer_engine.common

    transformer_engine.common.load_framework_extension = lambda name: __import__(
        "transformer_engine_torch")
    from transformer_engine.pytorch.module.base import TransformerEngineBaseModule

    begin = TransformerEngineBaseModule.__init__

    def begin_without(self, *args, **kwargs):  # asks whether there is a device, for nothing else
        with unittest.mock.patch.object(torch.cuda, "is_available", lambda: True):
            begin(self, *args, **kwargs)

    TransformerEngineBaseModule.__init__ = begin_without


_device()
for _name in ("empty", "zeros", "ones", "full", "tensor", "arange", "empty_like", "zeros_like"):
    setattr(torch, _name, _made_on_host(getattr(torch, _name)))
torch.Tensor.to = _made_on_host(torch.Tensor.to, (str, torch.device, int))
_engine()

import megatron.core.tensor_parallel.random as _random  # noqa: E402

_random._get_cuda_rng_state = lambda *a, **k: torch.get_rng_state()
_random._set_cuda_rng_state = lambda state, *a, **k: torch.set_rng_state(state)

import megatron.core.ssm.gated_delta_net.common as _delta_net  # noqa: E402
import megatron.core.ssm.gated_delta_net.gdn as _delta_rule  # noqa: E402

_delta_net.HAVE_FLA = True  # kernels of forward passes, of which there are none
_delta_rule.chunk_gated_delta_rule = _delta_rule.torch_chunk_gated_delta_rule
