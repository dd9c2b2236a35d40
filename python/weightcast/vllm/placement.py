"""Where a loaded model holds each canonical unit, found by watching its own loaders.

``record`` runs the model's ``load_weights`` once over the image's tensors while vLLM's layerwise
reload has every parameter on the meta device, in the shape that loaders expect, and writes each copy
down instead of making it. No table of architectures: fused, sliced and tensor-parallel parameters say
by themselves what they take. ``Placement.bind`` then finds the live memory of each parameter, and
tells modules whose memory is laid as their loaders lay it from those that a kernel repacked.

docs/design/placement.md has the reasons.
"""

import bisect
import contextlib
import dataclasses
import logging
import math

import torch
from torch.overrides import TorchFunctionMode

from weightcast import _core
from weightcast.errors import InvalidData

# Among these dtypes a loader may cast: a module so filled is reloaded, and proven by casting again.
CAST = {torch.bfloat16, torch.float16, torch.float32, torch.float64}

# A tensor that would fall into more blocks than this is loaded as a whole instead.
BLOCKS_MAX = 100_000


@dataclasses.dataclass(frozen=True)
class Copy:
    """One copy that a loader made: a strided part of a tensor into a strided part of a parameter.

    Sizes, strides and offsets are in elements.
    """

    tensor: int
    source_offset: int
    source_strides: tuple
    module: str  # dotted name; "" is the model
    param: str
    offset: int
    strides: tuple
    sizes: tuple


@dataclasses.dataclass
class Param:
    """A parameter as its loader knows it, on the meta device."""

    meta: torch.Tensor
    loaded: int = 0  # elements that recorded copies fill
    why: str = ""  # not empty: its values are not copies of the image's, and why
    loads: bool = True  # buffers may have loaders or not; parameters must be filled


class Recorder(TorchFunctionMode):
    """Writes down what is copied into the given storages; copies nothing."""

    def __init__(self, sources, params):
        super().__init__()
        self._sources = sources  # [(address, bytes, tensor index)], by address
        self._starts = [row[0] for row in sources]
        self._params = params  # {storage: (module, name, Param)}
        self.copies = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.copy_:
            self._note(args[0], args[1])
            return args[0]
        place = self._param_of(args[0]) if args and isinstance(args[0], torch.Tensor) else None
        if place is not None and func is torch.Tensor.__setitem__:
            self._assign(place[2], *args)
            return None
        if place is not None and func is torch.Tensor.fill_:
            if args[0].numel() == place[2].meta.numel():  # less than all of it is padding
                place[2].why = "is filled from a scalar"
            return args[0]
        if place is not None and _writes(func):
            place[2].why = f"its loader computes what it stores ({func.__name__})"
        return func(*args, **(kwargs or {}))

    def _assign(self, param, into, index, value):
        """param[index] = value, as a copy into that part."""
        part = into[index]
        if isinstance(value, torch.Tensor) and self._param_of(part) is not None:
            self._note(part, value)
        else:
            param.why = "its loader assigns what is no strided part of it, or no tensor"

    def _param_of(self, tensor):
        return self._params.get(tensor.untyped_storage()._cdata)

    def _note(self, into, source):
        place = self._param_of(into)
        if place is None:
            return  # scratch of a loader
        module, name, param = place
        found = self._source_of(source)
        if found is None:
            param.why = "its loader computes what it stores"
            return
        if source.dtype != into.dtype:
            if not {source.dtype, into.dtype} <= CAST:
                raise InvalidData(f"it would be stored as {into.dtype} in {module}.{name}")
            param.why = f"is {into.dtype}, the version has {source.dtype}"
        tensor, address = found
        sizes, strides, source_strides = _same_shape(into, source)
        if sizes is None:
            param.why = f"shape {tuple(source.shape)} is stored as {tuple(into.shape)}"
            return
        self.copies.append(Copy(tensor, (source.data_ptr() - address) // source.element_size(),
                                source_strides, module, name, into.storage_offset(), strides, sizes))
        param.loaded += into.numel()

    def _source_of(self, tensor):
        if tensor.device.type != "cpu" or tensor.numel() == 0:
            return None
        at = bisect.bisect_right(self._starts, tensor.data_ptr()) - 1
        if at < 0:
            return None
        address, size, index = self._sources[at]
        return (index, address) if tensor.data_ptr() < address + size else None


def _writes(func):
    """Whether a function of tensors changes its first argument; by torch's naming."""
    name = getattr(func, "__name__", "")
    return name.endswith("_") and not name.endswith("__") and name != "requires_grad_"


def _same_shape(into, source):
    """Sizes and both tensors' strides, dimensions of 1 left out; None if the sizes differ."""
    a = [(n, s) for n, s in zip(into.shape, into.stride()) if n != 1]
    b = [(n, s) for n, s in zip(source.shape, source.stride()) if n != 1]
    if [n for n, _ in a] != [n for n, _ in b]:
        return None, None, None
    return tuple(n for n, _ in a), tuple(s for _, s in a), tuple(s for _, s in b)


@dataclasses.dataclass
class Quiet:
    """vLLM warns about every layer that a reload leaves alone; here that is the point."""

    logger: str = "vllm.model_executor.model_loader.reload.layerwise"

    def __enter__(self):
        self._level = logging.getLogger(self.logger).level
        logging.getLogger(self.logger).setLevel(logging.ERROR)

    def __exit__(self, *exc_info):
        logging.getLogger(self.logger).setLevel(self._level)


@contextlib.contextmanager
def layerwise_reload(model, model_config, keep=True):
    """vLLM's layerwise reload, out of which a model always comes whole: on an error, and without
    ``keep``, layers that are not loaded to the end get their old tensors back. vLLM alone would finish
    them with memory that nobody filled, or leave them on the meta device, where the next request ends
    the engine. Gives the function that finds vLLM's notes about a layer."""
    from vllm.model_executor.model_loader.reload import layerwise

    def finish(keep):
        for module in () if keep else model.modules():
            notes = layerwise.get_layerwise_info(module)
            notes.load_numel = 0
            notes.loaded_weights.clear()
        layerwise.finalize_layerwise_reload(model, model_config)

    with Quiet():
        try:
            layerwise.initialize_layerwise_reload(model)
            yield layerwise.get_layerwise_info
            finish(keep)
        except BaseException:
            finish(keep=False)
            raise


def uncounted():
    """Names of parameters that vLLM's counts leave out."""
    from vllm.model_executor.model_loader.reload import meta

    return getattr(meta, "SKIP_LOAD_TENSORS", set())


def tensors_of(module):
    """A module's own parameters and buffers, by name."""
    return {name: tensor
            for name, tensor in (*module._parameters.items(), *module._buffers.items())
            if tensor is not None}


def record(model, model_config, image):
    """A Placement of the image's tensors in ``model``. Live weights stay as they are.

    The model must be idle. Raises InvalidData naming tensors of the image that the model takes
    nowhere and parameters that no tensor fills.
    """
    sources, views = [], []
    for index, (name, _, _) in enumerate(image.specs):
        view = image.torch(name)
        sources.append((view.data_ptr(), view.numel() * view.element_size(), index))
        views.append((name, view))
    sources = sorted(row for row in sources if row[1] > 0)
    given = [""]  # the name that the loaders were given last

    def named_views():
        for given[0], view in views:
            yield given[0], view

    with layerwise_reload(model, model_config, keep=False):
        params, storages = {}, {}
        for module_name, module in model.named_modules():
            for name, tensor in tensors_of(module).items():
                param = Param(tensor, loads=name in module._parameters)
                params[module_name, name] = param
                storages.setdefault(tensor.untyped_storage()._cdata, (module_name, name, param))
        try:
            with Recorder(sources, storages) as recorder:
                model.load_weights(named_views())
        except Exception as error:  # of any kind: loaders assert, look up and raise as they like
            spec = image.specs[image.index(given[0])] if given[0] else ("the version", "", ())
            raise InvalidData(f"the model does not take {spec[0]} ({spec[1]} {list(spec[2])}): "
                              f"{type(error).__name__}: {error}") from error
    return Placement(model, image.specs, params, recorder.copies)


class Placement:
    """Where the model's loaders put each tensor; see ``record``."""

    def __init__(self, model, specs, params, copies):
        self.model = model
        self.specs = specs
        self.params = params
        self.modules = dict(model.named_modules())
        self.same_as = {}  # tensor stored twice: the one that the model takes
        self.copies = self._without_aliases(copies)
        self.modules_of = [set() for _ in specs]  # of each tensor, names of modules that hold some of it
        self.tensors_of = {}  # of each module, indices of the tensors it is loaded from
        self.copies_of = {}  # of each module
        for copy in self.copies:
            self.modules_of[copy.tensor].add(copy.module)
            self.tensors_of.setdefault(copy.module, set()).add(copy.tensor)
            self.copies_of.setdefault(copy.module, []).append(copy)
        self._check()
        self.repacked = {}  # module: why its live memory is not as its loader lays it

    def _without_aliases(self, copies):
        """The copies but for those into a parameter that is another module's too (a tied head): there
        the first module's tensor lies, and the other must be the same (``check_version``)."""
        order = {name: index for index, name in enumerate(self.modules)}
        owners, kept, places = {}, [], {}
        for copy in sorted(copies, key=lambda c: order[c.module]):
            live = getattr(self.modules[copy.module], copy.param)
            own = copy.module, copy.param
            owner = owners.setdefault(live.data_ptr() if live.numel() > 0 else own, own)
            place = owner, copy.offset, copy.strides, copy.sizes, copy.source_offset, copy.source_strides
            if owner == own:
                places[place] = copy.tensor
                kept.append(copy)
            elif place in places:
                self.same_as[copy.tensor] = places[place]
            else:
                raise InvalidData(f"{self.specs[copy.tensor][0]}: {copy.module}.{copy.param} is "
                                  f"{'.'.join(owner)} too, and is not filled as that is")
        return kept

    def _check(self):
        """Nothing of the image is left over, and nothing of the model is left out."""
        homeless = []
        for index, (name, _, shape) in enumerate(self.specs):
            if self.modules_of[index] or index in self.same_as or 0 in shape:
                continue
            module, _, param = name.rpartition(".")
            owner = self._owner(module, param) if (module, param) in self.params else None
            if owner is None:
                homeless.append(name)
            else:  # a head that is stored besides, but computes with the embedding
                self.same_as[index] = owner
        if homeless:
            raise InvalidData(f"the model takes these tensors of the version nowhere: {_some(homeless)}")
        missing = []
        for (module, name), param in self.params.items():
            wanted = getattr(param.meta, "weight_loader_numel", param.meta.numel())
            touched = param.loaded > 0 or param.why
            if module not in self.tensors_of and not param.loads:
                continue
            if param.loads and not touched and self._is_tied(module, name):
                continue
            if touched and (param.loaded == wanted - self._padding(module, name) or param.why):
                continue
            if param.loads or param.loaded > 0:
                missing.append(f"{module}.{name} ({param.loaded} of {wanted} elements)")
        if missing:
            raise InvalidData(f"no tensor of the version fills these parameters: {_some(missing)}")

    def _is_tied(self, module, name):
        """Whether the live parameter is another module's too, which is filled."""
        live = getattr(self.modules[module], name, None)
        if live is None or live.numel() == 0:
            return live is not None and self.params[module, name].meta.numel() == 0
        return self._filled_at(live) is not None

    def _owner(self, module, name):
        """The tensor that fills what the live parameter shares with another module; None if it shares
        nothing, or is filled from more than one."""
        live = getattr(self.modules[module], name)
        found = None if live.numel() == 0 else self._filled_at(live)
        tensors = {c.tensor for c in self.copies_of[found[0]] if c.param == found[1]} if found else set()
        return tensors.pop() if len(tensors) == 1 else None

    def _filled_at(self, live):
        """(module, parameter) that tensors fill and that lies where ``live`` does; None if there is none."""
        for other in self.tensors_of:
            for name, candidate in self.modules[other]._parameters.items():
                if candidate is not None and candidate.data_ptr() == live.data_ptr():
                    return other, name
        return None

    def _padding(self, module, name):
        """Elements of a vocabulary's parameter that no checkpoint fills."""
        shape = self.params[module, name].meta.shape
        module = self.modules[module]
        filled = getattr(getattr(module, "shard_indices", None), "num_org_elements", None)
        if not shape or filled is None or shape[0] != getattr(module, "num_embeddings_per_partition", None):
            return 0
        return (shape[0] - filled) * math.prod(shape[1:])

    def check_version(self, image):
        """Raises InvalidData if a tensor that the model does not take, since it shares another's
        memory, is not the same as that one."""
        for tensor, owner in self.same_as.items():
            if image.digests[tensor] != image.digests[owner]:
                raise InvalidData(f"{self.specs[tensor][0]} differs from {self.specs[owner][0]}, and the "
                                  f"model has one memory for both")

    def closure(self, modules):
        """Tensors that must be loaded together with those of the modules: a layer takes all of its
        parts in one session, or is left with garbage."""
        tensors, modules = set(), set(modules)
        while True:
            tensors = set().union(*(self.tensors_of[m] for m in modules if m in self.tensors_of))
            more = set().union(*(self.modules_of[t] for t in tensors)) if tensors else set()
            if more <= modules:
                return tensors
            modules |= more

    def in_layer_order(self, tensors):
        """By module, so that a reload holds one layer at a time."""
        order = {name: index for index, name in enumerate(self.modules)}
        return sorted(tensors, key=lambda t: (min(order[m] for m in self.modules_of[t]), t))

    def bind(self, hold, repacked=None):
        """Finds live memory; returns the core's Target. To be called again after each load, since
        packing may replace a parameter. repacked: {module: why} of those known to be."""
        self.repacked = dict(repacked or {})
        self.bound = self._addresses()
        for (module, name), param in self.params.items():
            if module not in self.tensors_of or not (param.loaded or param.why):
                continue
            live = getattr(self.modules[module], name)
            if param.why:
                self.repacked[module] = f"{name} {param.why}"
            elif live.device.type != "cpu":
                self.repacked[module] = f"{name} lies on {live.device}"
            elif live.dtype != param.meta.dtype or live.shape != param.meta.shape:
                self.repacked[module] = (f"{name} is {live.dtype} {tuple(live.shape)}, its loader makes "
                                         f"{param.meta.dtype} {tuple(param.meta.shape)}")
            elif live.stride() != param.meta.stride():
                self.repacked[module] = f"{name} has strides {live.stride()}"
        rows = []
        claimed = {}  # of tensors that several modules hold: [(module, block)]
        for copy in self.copies:
            if copy.module in self.repacked:
                continue
            blocks = self._blocks(copy)
            if blocks is None:
                self.repacked[copy.module] = f"{copy.param} is cut too fine"
                continue
            if len(self.modules_of[copy.tensor]) > 1:  # a target knows one place for each unit
                others = claimed.setdefault(copy.tensor, [])
                twice = [module for module, block in others if module != copy.module
                         and module not in self.repacked and any(_overlap(block, b) for b in blocks)]
                if twice:
                    self.repacked[copy.module] = f"{copy.param} holds what {twice[0]} holds too"
                    continue
                others += [(copy.module, block) for block in blocks]
            rows.append((copy.module, blocks))
        return _core.Target.make(hold, [block for module, blocks in rows
                                        if module not in self.repacked for block in blocks])

    def moved(self):
        """Whether a parameter lies elsewhere than when it was bound: then a target must not be used."""
        return self.bound != self._addresses()

    def _addresses(self):
        return {(module, param): getattr(self.modules[module], param).data_ptr()
                for module in self.tensors_of for param in self.params_of(module)}

    def fill(self, module, param, image):
        """A parameter as its loader makes it, from the image, in memory of its own."""
        meta = self.params[module, param].meta
        tensor = torch.zeros(meta.untyped_storage().nbytes() // meta.element_size(), dtype=meta.dtype)
        for copy in self.copies_of[module]:
            if copy.param == param:
                source = image.torch(self.specs[copy.tensor][0]).reshape(-1)
                tensor.as_strided(copy.sizes, copy.strides, copy.offset).copy_(
                    source.as_strided(copy.sizes, copy.source_strides,
                                      source.storage_offset() + copy.source_offset))
        return tensor.as_strided(meta.shape, meta.stride(), meta.storage_offset())

    def is_canonical(self, module, image, live=None):
        """Whether a module's live parameters are as its loader makes them, bit for bit. live: the
        module itself, or one beside it."""
        live = self.modules[module] if live is None else live
        return all(same_bits(getattr(live, param), self.fill(module, param, image))
                   for param in self.params_of(module))

    def params_of(self, module):
        """Names of a module's parameters that tensors fill, sorted."""
        return sorted({copy.param for copy in self.copies_of[module]})

    def unfilled(self, modules, notes_of):
        """Modules that a reload, not yet finished, gave less than their loaders took when recorded."""
        uncounted_names = uncounted()
        left = []
        for name in sorted(modules):
            notes = notes_of(self.modules[name])
            expected = sum(self.params[name, param].loaded for param in self.params_of(name)
                           if param not in uncounted_names)
            if notes.can_load() and notes.load_numel < expected:
                left.append(f"{name} ({notes.load_numel} of {expected} elements)")
        return left

    def canonical_share(self, tensor, image):
        """(digest, units, span) of what the model takes of a tensor, by the image's bytes."""
        name, _, shape = self.specs[tensor]
        cols = shape[-1] if len(shape) > 1 else 1
        blocks = []
        for copy in self.copies:
            if copy.tensor != tensor:
                continue
            dims = _merged(copy.sizes, copy.source_strides, copy.strides)
            blocks += [[tensor, row, rows, col, count, 1, 1, 1]  # of no memory: only digested from bytes
                       for row, rows, col, count, *_ in _boxes(dims, copy.source_offset, cols)]
        unique = sorted({tuple(block) for block in blocks})
        target = _core.Target.make(image.hold, [list(block) for block in unique])
        return (*target.digest_canonical(tensor, image.buffer(name)), target.span(tensor))

    def _blocks(self, copy):
        shape = self.specs[copy.tensor][2]
        cols = shape[-1] if len(shape) > 1 else 1
        live = getattr(self.modules[copy.module], copy.param)
        meta = self.params[copy.module, copy.param].meta
        base = live.data_ptr() + (copy.offset - meta.storage_offset()) * live.element_size()
        dims = _merged(copy.sizes, copy.source_strides, copy.strides)
        blocks = []
        for row, rows, col, count, at, row_stride, col_stride in _boxes(dims, copy.source_offset, cols):
            if len(blocks) >= BLOCKS_MAX:
                return None
            blocks.append([copy.tensor, row, rows, col, count, base + at * live.element_size(),
                           row_stride, col_stride])
        return blocks

    def tied_to(self, modules):
        """Modules that compute with the parameters of ``modules`` besides them (a tied head)."""
        owned = {tensor.data_ptr() for name in modules
                 for tensor in self.modules[name]._parameters.values()
                 if tensor is not None and tensor.numel() > 0}
        return {name for name, module in self.modules.items()
                for tensor in module._parameters.values()
                if tensor is not None and tensor.numel() > 0 and tensor.data_ptr() in owned}


def same_bits(one, other):
    """Whether two tensors are of one shape and dtype, and the same bytes, wherever they lie."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bytes_of = (tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(*bytes_of)


def _overlap(one, other):
    """Whether two rows of ``Placement._blocks`` share a unit of a tensor."""
    _, row, rows, col, cols = one[:5]
    _, other_row, other_rows, other_col, other_cols = other[:5]
    return (row < other_row + other_rows and other_row < row + rows
            and col < other_col + other_cols and other_col < col + cols)


def _merged(sizes, source, target):
    """Dimensions (size, source stride, target stride), those that run on in both joined."""
    dims = []
    for n, s, t in zip(sizes, source, target):
        if dims and dims[-1][1] == n * s and dims[-1][2] == n * t:
            dims[-1] = (dims[-1][0] * n, s, t)
        else:
            dims.append((n, s, t))
    return dims or [(1, 1, 1)]


def _boxes(dims, offset, cols, at=0):
    """Yields (row, rows, col, columns, target offset, row stride, column stride) of a strided part
    of a row-major matrix with ``cols`` columns; offsets and strides are in elements."""
    if len(dims) == 1:
        yield from _run_boxes(dims[0], offset, cols, at)
        return
    (rows, row_step, row_stride), (count, col_step, col_stride) = dims[-2:]
    col = offset % cols
    is_box = len(dims) == 2 and row_step == cols and col_step == 1 and col + count <= cols
    if is_box:
        yield offset // cols, rows, col, count, at, row_stride, col_stride
        return
    n, source, target = dims[0]
    for i in range(n):
        yield from _boxes(dims[1:], offset + i * source, cols, at + i * target)


def _run_boxes(dim, offset, cols, at):
    """The boxes of one dimension."""
    n, step, stride = dim
    if n == 1:
        yield offset // cols, 1, offset % cols, 1, at, 1, 1
    elif step % cols == 0 and step > 0:  # down a column
        if step == cols:
            yield offset // cols, n, offset % cols, 1, at, stride, 1
        else:
            for i in range(n):
                yield (offset + i * step) // cols, 1, offset % cols, 1, at + i * stride, 1, 1
    elif step == 1:  # along rows: the rest of the first, whole ones, the beginning of the last
        done = 0
        while done < n:
            row, col = divmod(offset + done, cols)
            whole = (n - done) // cols if col == 0 else 0
            if whole:
                yield row, whole, 0, cols, at + done * stride, cols * stride, stride
                done += whole * cols
            else:
                part = min(cols - col, n - done)
                yield row, 1, col, part, at + done * stride, 1, stride
                done += part
    else:
        for i in range(n):
            row, col = divmod(offset + i * step, cols)
            yield row, 1, col, 1, at + i * stride, 1, 1


def _some(names, most=8):
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
