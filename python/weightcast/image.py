"""Images: verified checkpoints on an inference host, and moving them from version to version."""

import os
import threading

from weightcast import _core
from weightcast.errors import InvalidData, NotFound

__all__ = ["Image", "pull", "verify", "versions"]

_NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "uint16",
    "F32": "float32", "F64": "float64", "C64": "complex64",
}
_TORCH = {
    **_NUMPY, "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_PACKED = ("F4", "F6_E2M3", "F6_E3M2")  # elements smaller than a byte


def path_text(path):
    """A path as the core takes it; None is no path."""
    return "" if path is None else os.fsdecode(path)


def pull(catalog, run, image, *, version="latest", seed="", store="", durability="host", threads=0,
         hold_seconds=60.0, turn_seconds=60.0, progress=None):
    """Brings the image directory to a version, crash-safely, and proves it.

    catalog: ``sqlite:PATH``. run: its name. image: a directory, made if it is missing.
    version: number, uid, alias or ``latest``; may be an older one. seed: a checkpoint directory,
    where the chain begins at version 0. store: where bytes lie now, instead of what versions
    remember. durability: ``host`` (survives a power loss) or ``process``. threads: 0: all CPUs.
    hold_seconds: how long to wait for readers. turn_seconds: for another pull of the same image.
    progress: called with (bytes done, bytes in all), from any thread, one call at a time. What it
    raises stops the pull and is raised from here; so does Ctrl-C. The image is then what it was.
    Returns the report of ``weightcast pull --json`` as a dict.
    Raises Unavailable (nothing to start from, catalog or store not reachable), NotFound (run,
    version), ResourceExhausted (disk, journal budget), Conflict (not an image), DataLoss (does not
    verify), DeadlineExceeded (readers, another pull), InvalidArgument.
    """
    main = threading.current_thread() is threading.main_thread()
    return _core.pull(catalog, run, path_text(image), str(version), path_text(seed), store or "",
                      durability, threads, hold_seconds, turn_seconds, progress, main)


def verify(image, *, catalog="", threads=0):
    """Digests every byte of an image again; with a catalog, against the version that it claims.

    Returns the report of ``weightcast verify --json``: its ``verified`` says whether all fits,
    ``tensors_bad`` and ``side_files_bad`` name what does not.
    Raises NotFound (no image; the catalog does not know its version), DataLoss (files that are not
    weight files any more), Unavailable (catalog), DeadlineExceeded (an update takes its time).
    """
    return _core.verify(path_text(image), catalog or "", threads)


def versions(catalog, run):
    """All versions of a run, oldest first, as ``weightcast log --json`` lists them (dicts).

    Raises Unavailable (no catalog), NotFound (no such run).
    """
    return _core.versions(catalog, run)


class Image:
    """An image, opened for reading: verified, and held at one version while it is open.

    path: the image directory. timeout: seconds to wait for an update that is being applied.
    specs: [(name, dtype, shape)], sorted by name; dtypes as in a safetensors header (``BF16``).
    Views of tensors are read-only, not copies, and keep the hold while they live, also after
    ``close``: an update waits for them. A forked child shares the hold until it ends.
    Raises NotFound (no image), Conflict (another directory), DeadlineExceeded (an update takes its
    time), DataLoss (cannot be recovered).
    """

    def __init__(self, path, timeout=60.0):
        self._path = path_text(path)
        self._hold = _core.ImageHold(self._path, timeout)
        self._digests = None
        self.specs = [(name, dtype, tuple(shape)) for name, dtype, shape in self._hold.specs]
        self._index = {name: index for index, (name, _, _) in enumerate(self.specs)}

    version = property(lambda self: self._hold.version, doc="Uid of the version, 32 hex digits.")
    number = property(lambda self: self._hold.number, doc="Number of the version in its run.")
    root = property(lambda self: self._hold.root, doc="Root of the version, 64 hex digits.")
    run = property(lambda self: self._hold.run, doc="Uid of the run, 32 hex digits.")

    @property
    def digests(self):
        """Tensor digests of the version, 32 hex digits each, in the order of ``specs``."""
        if self._digests is None:
            self._digests = self._hold.digests
        return self._digests

    def units(self, name):
        """How many units a tensor has: its elements, or its bytes where elements are smaller."""
        return self._hold.units(self.index(name))

    @property
    def hold(self):
        """The core's own object, for the plugin."""
        return self._hold

    def names(self):
        """Names of all tensors, sorted."""
        return [name for name, _, _ in self.specs]

    def index(self, name):
        """A tensor's place in ``specs``. Raises NotFound."""
        try:
            return self._index[name]
        except (KeyError, TypeError):
            raise NotFound(f"{self._path}: has no tensor {name!r}") from None

    def buffer(self, name):
        """A tensor's canonical bytes: a flat read-only memoryview of bytes, row-major.

        Raises NotFound; Conflict once the image is closed.
        """
        return self._hold.tensor(self.index(name))

    def numpy(self, name):
        """A tensor as a read-only numpy array of its shape; no copy.

        BF16 and the 8-bit floats, which numpy lacks, are their bits (uint16, uint8); elements
        smaller than a byte (F4, F6) are a flat array of the bytes that pack them.
        Raises as ``buffer``.
        """
        import numpy

        _, dtype, shape = self.specs[self.index(name)]
        flat = numpy.asarray(self.buffer(name))
        if dtype in _PACKED:
            return flat
        return flat.view(_NUMPY.get(dtype, "uint8")).reshape(shape)

    def torch(self, name):
        """A tensor as a torch tensor of its shape and dtype; no copy.

        It must not be written to: the memory is mapped read-only, and writing ends the process.
        Raises as ``buffer``; InvalidData for a dtype that torch lacks (F4, F6).
        """
        import warnings

        import numpy
        import torch

        _, dtype, shape = self.specs[self.index(name)]
        kind = getattr(torch, _TORCH.get(dtype, "-"), None)
        if kind is None:
            raise InvalidData(f"{name}: torch {torch.__version__} has no dtype for {dtype}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors
            flat = torch.from_numpy(numpy.asarray(self.buffer(name)))
        return flat.view(kind).reshape(shape)

    def close(self):
        """Gives the hold back, once the last view is gone. Fine if closed already."""
        self._hold.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()
