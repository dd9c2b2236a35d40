"""What a state dict holds, as the core wants it: (name, dtype, shape) and the bytes, not copied.

Tensors of torch, numpy and whatever speaks DLPack or the buffer protocol are taken as they are, if
they lie contiguously in host memory. Nothing here imports torch.
"""

from weightcast.errors import InvalidArgument, InvalidData

# Names of element types in a safetensors header, by what frameworks call them.
DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32",
    "uint32": "U32", "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
_NAMED_AT_MOST = 20  # offenders in one message


def for_all(weights, work):
    """[work(name, tensor)] over {name: tensor}; raises one InvalidData that names all offenders."""
    if not hasattr(weights, "items"):
        raise InvalidArgument(f"weights: expected {{name: tensor}}, found {type(weights).__name__}")
    results, faults = [], []
    for name, tensor in weights.items():
        try:
            results.append(work(name, tensor))
        except InvalidData as fault:
            faults.append(str(fault))
    if not faults:
        return results
    more = len(faults) - _NAMED_AT_MOST
    raise InvalidData("; ".join(faults[:_NAMED_AT_MOST]) + (f"; and {more} more" if more > 0 else ""))


def dtype_name(name, tensor):
    """The safetensors name of a tensor's dtype. Raises InvalidData if there is none."""
    text = str(tensor.dtype).rpartition(".")[2]
    try:
        return DTYPES[text]
    except KeyError:
        raise InvalidData(f"{name}: dtype {tensor.dtype} is none that a checkpoint holds") from None


def spec(name, tensor):
    """(name, dtype, shape) of a tensor."""
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidData(f"{name!r}: is no name of a tensor: expected a str of UTF-8") from None
    if not is_torch(tensor):
        tensor = _array(name, tensor)
    return name, dtype_name(name, tensor), tuple(int(n) for n in tensor.shape)


def is_torch(tensor):
    """Whether a tensor is torch's, without importing torch."""
    return type(tensor).__module__.partition(".")[0] == "torch" or hasattr(tensor, "untyped_storage")


def _array(name, tensor):
    """A numpy array over the memory of anything that is not torch's. Raises InvalidData for what has
    no memory of its own (lists, numbers)."""
    import numpy

    if isinstance(tensor, (numpy.ndarray, numpy.generic)):
        return numpy.asarray(tensor)
    try:
        if hasattr(tensor, "__array__") or hasattr(tensor, "__array_interface__"):
            return numpy.asarray(tensor)
        if hasattr(tensor, "__dlpack__"):
            return numpy.from_dlpack(tensor)
        return numpy.asarray(memoryview(tensor))
    except Exception as error:  # whatever another framework raises
        raise InvalidData(f"{name}: expected a tensor in host memory, found "
                          f"{type(tensor).__name__}: {error}") from error


def host_bytes(name, tensor):
    """A tensor's bytes as a flat array of bytes in host memory; a view, never a copy.

    Raises InvalidData naming the tensor if it lies elsewhere, or not contiguously.
    """
    if is_torch(tensor):
        if tensor.device.type != "cpu":
            raise InvalidData(f"{name}: lies on {tensor.device}, expected host memory")
        if not tensor.is_contiguous():
            raise InvalidData(f"{name}: strides {tuple(tensor.stride())} of shape "
                              f"{tuple(tensor.shape)} are not contiguous")
        import torch

        return tensor.detach().reshape(-1).view(torch.uint8)
    import numpy

    array = _array(name, tensor)
    if not array.flags.c_contiguous:
        raise InvalidData(f"{name}: strides {array.strides} (bytes) of shape {array.shape} are not "
                          "contiguous: numpy.ascontiguousarray copies")
    return array.reshape(-1).view(numpy.uint8)


def refusal(tensor):
    """Why the values of a torch tensor cannot be read, or "": they are elsewhere, or never were."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):  # its bytes would not be its values
        return f"is a {type(tensor).__name__}, no plain tensor"
    if tensor.layout != torch.strided:
        return f"has layout {tensor.layout}"
    if tensor.device.type == "meta":
        return "is on the meta device: its values were offloaded or never made"
    if tensor.numel() == 0:
        return ""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    if (held := tensor.untyped_storage().nbytes()) < needed:
        return f"has a storage of {held} bytes, expected at least {needed}: its values were offloaded"
    return ""


def check_values(name, tensor):
    """Raises InvalidData naming the tensor if ``Staging`` and ``host_bytes`` cannot take it."""
    if not is_torch(tensor):
        host_bytes(name, tensor)
    elif why := refusal(tensor):
        raise InvalidData(f"{name} {why}")


class Staging:
    """Takes tensors to where the core can read them: contiguous host memory.

    What lies there already is taken as it is. The rest is copied, from a CUDA device to pinned
    memory; the copies are kept, and overwritten by the next ``take``.
    """

    def __init__(self):
        self._copies = {}

    def take(self, weights):
        """{name: tensor} that ``host_bytes`` takes. Raises InvalidData naming all that have no values,
        and arrays that are not contiguous."""
        for_all(weights, check_values)
        streams = set()
        staged = {name: self._stage(name, tensor, streams) for name, tensor in weights.items()}
        for stream in streams:
            stream.synchronize()
        return staged

    def _stage(self, name, tensor, streams):
        if not is_torch(tensor):
            return tensor
        tensor = tensor.detach().resolve_conj().resolve_neg()
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            return tensor
        import torch

        pinned = tensor.device.type == "cuda"
        copy = self._copies.get(name)
        if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
            self._copies[name] = copy
        copy.copy_(tensor, non_blocking=pinned)
        if pinned:  # behind what the trainer has in flight on this stream
            streams.add(torch.cuda.current_stream(tensor.device))
        return copy
