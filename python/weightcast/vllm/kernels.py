"""What kernels make of weights after they are loaded, and how to see through it.

On a CPU vLLM packs: a linear layer's weight may become empty (its kernel has a packed copy), the
head keeps its weight and computes with a packed copy, experts are permuted in place. On a GPU some
kernels shuffle. None of it may be written in place, and none of it is digested: it is proven by
making it again from the image's bytes, or by asking the layer what it computes.
"""

import copy

import torch

from weightcast.errors import Conflict, InvalidArgument, InvalidData
from weightcast.vllm import placement

# Rows of the identity that a layer is asked about at a time.
PROBE_ROWS = 256
# So many inside a pause: each shows one weight of every output, of a layer just loaded as a whole.
SAMPLE_ROWS = 8


def refuse_unsupported(model_config, parallel_config):
    """Raises InvalidData naming all that cannot be updated, before anything is: quantised weights, and
    layouts in which a worker has other layers or experts than its neighbours, or of whose workers vLLM
    lets only some answer: of those nothing is proven yet."""
    found = {"quantization": getattr(model_config, "quantization", None)}
    for name in ("pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel_config, name, 1)
        found[name] = size if size > 1 else None
    for name in ("enable_expert_parallel", "enable_eplb"):
        found[name] = getattr(parallel_config, name, False) or None
    unfit = [f"{name} {value!r}" for name, value in found.items() if value is not None]
    if unfit:
        raise InvalidData(f"weightcast: {', '.join(unfit)}: only unquantised engines, alone or in "
                          "tensor-parallel workers, are updated")


def refuse_asleep(model):
    """Raises Conflict if the engine sleeps: its weights have no memory to be written to."""
    for name, param in model.named_parameters():
        storage = param.untyped_storage()
        if param.numel() > 0 and not param.is_meta and storage.size() == 0:
            raise Conflict(f"the engine is asleep ({name} has no memory): wake it first")
    try:
        from vllm.device_allocator.cumem import CuMemAllocator
    except Exception:
        return
    allocator = getattr(CuMemAllocator, "instance", None)
    if allocator is not None and getattr(allocator, "is_asleep", False):
        raise Conflict("the engine is asleep: wake it first")


def compiles(vllm_config):
    """Whether vLLM compiles the model, after it has made its weight-transfer engine."""
    mode = getattr(getattr(vllm_config, "compilation_config", None), "mode", None)
    return mode is not None and int(mode) != 0


def refuse_compiled(model, compiled):
    """Raises InvalidArgument if layers cannot be given another kernel any more: compiled code takes
    the packed weight out of the old one's closure, and would end the engine at the next request."""
    packed = next((name for name, m in model.named_modules() if computes_with_copy(m)), None)
    if compiled and packed is not None:
        raise InvalidArgument(f"keep_canonical: {packed} was compiled with a packed weight: start with "
                              "--enforce-eager, or by --load-format weightcast")


def name_compiled(vllm_config):
    """vLLM keeps compiled code by its configuration: what is compiled with plain linears must not be
    taken for what was compiled with packed ones."""
    more = dict(getattr(vllm_config, "additional_config", None) or {})
    vllm_config.additional_config = {**more, "weightcast_keep_canonical": True}


def plain_linear(x, weight, bias):
    """cpu_linear that computes with the live weight. (An AMX kernel that was there before has left the
    bias in float32.)"""
    return torch.nn.functional.linear(x, weight, None if bias is None else bias.to(weight.dtype))


def computes_with_copy(module):
    """Whether the module multiplies with a private copy of its weight."""
    linear = getattr(module, "cpu_linear", None)
    code = getattr(linear, "__code__", None)
    return code is not None and bool(code.co_freevars)


def refresh_copies(modules):
    """Makes the private copies of weights that stay beside them anew (a CPU's head)."""
    for module in modules:
        weight = getattr(module, "weight", None)
        if computes_with_copy(module) and weight is not None and weight.numel() > 0:
            module.quant_method.process_weights_after_loading(module)


def keep_canonical(place):
    """Linear layers of a CPU keep weights as the checkpoint lays them, from the next reload on.

    The kernel is then vLLM's own fallback, torch's linear on the live weight."""
    for name in place.tensors_of:
        module = place.modules[name]
        if not hasattr(module, "cpu_linear"):
            continue
        weight = module.weight
        meta = place.params[name, "weight"].meta
        if weight.numel() == 0:
            weight.data = torch.empty(meta.shape, dtype=meta.dtype)
        module.cpu_linear = plain_linear
        module.quant_method.process_weights_after_loading = _use_plain_linear
    for module in place.modules.values():  # a tied head has no weight of its own
        if hasattr(module, "cpu_linear") and module.cpu_linear is not plain_linear:
            module.cpu_linear = plain_linear
            module.quant_method.process_weights_after_loading = _use_plain_linear


def _use_plain_linear(layer):
    layer.cpu_linear = plain_linear


def expert_packing(module):
    """What packs a module's experts; None if it has none."""
    kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    pack = getattr(experts, "process_weights_after_loading", None)
    return None if pack is None else lambda: pack(module)


def prove_memory(place, name, image):
    """How a module's live memory, not laid as its loader lays it, holds the image's weights: "repacked"
    (packing them again gives the same bytes), "unproven", "wrong", or "" if it holds none."""
    module = place.modules[name]
    params = [param for param in place.params_of(name)
              if getattr(module, param).numel() > 0 or not computes_with_copy(module)]
    if any(place.params[name, param].why.startswith("its loader") for param in params):
        return "unproven"
    pack = expert_packing(module)
    if pack is None:
        made = ((getattr(module, param), place.fill(name, param, image)) for param in params)
    else:
        twin = _packed_twin(place, name, module, image)
        made = [(getattr(module, param), getattr(twin, param)) for param in params]
    for live, ours in made:
        if live.shape != ours.shape or live.dtype != ours.dtype:
            return "unproven"  # some layout that we do not know
        if not placement.same_bits(live, ours):
            return "wrong"
    return "repacked" if params else ""


def are_plain(place, tensors):
    """Whether the modules that hold the tensors compute with live memory, as their loaders lay it."""
    modules = set().union(*(place.modules_of[place.same_as.get(t, t)] for t in tensors))
    return not any(name in place.repacked or expert_packing(place.modules[name])
                   or computes_with_copy(place.modules[name]) for name in place.tied_to(modules) | modules)


def prove_copies(place, name, image, rows=None):
    """How private copies of a module's weight, its own and a tied head's, hold the image's: a set of
    "probed" (they compute with it), "unproven" and "wrong"; empty if there are none. rows: how many
    rows of the identity they are probed with; None: all."""
    sharers = place.tied_to({name}) | {name}
    copies = [place.modules[sharer] for sharer in sorted(sharers)
              if computes_with_copy(place.modules[sharer])]
    if not copies or "weight" not in place.params_of(name):
        return set()
    weight = place.fill(name, "weight", image)
    return {_probe(module, weight, rows) for module in copies}


def _probe(module, weight, rows):
    """Rows of the identity give the weight back, exactly: one times it, and zeros. But for numbers so
    small that vector units take them for 0, and not where 0 times a weight is not 0."""
    if not torch.isfinite(weight).all():
        return "unproven"
    smallest = torch.finfo(weight.dtype).tiny
    columns = torch.arange(weight.shape[1])
    if rows is not None:
        columns = columns[torch.randperm(len(columns))[:rows]]
    for some in columns.split(PROBE_ROWS):
        x = torch.zeros(len(some), weight.shape[1], dtype=weight.dtype)
        x[torch.arange(len(some)), some] = 1
        found = module.cpu_linear(x, module.weight, None)
        expected = weight[:, some].t()
        exact = (found == expected) | ((found == 0) & (expected.abs() < smallest))
        if not exact.all():
            return "wrong"
    return "probed"


def _packed_twin(place, name, module, image):
    """Experts again, loaded from the image and packed, beside the live ones."""
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    for param in place.params_of(name):
        tensor = place.fill(name, param, image)
        tensor.__class__ = place.params[name, param].meta.__class__
        tensor.__dict__ = place.params[name, param].meta.__dict__.copy()
        twin._parameters[param] = tensor
    experts = module.quant_method.moe_kernel.fused_experts
    kept = dict(vars(experts))  # packing notes what it packed
    try:
        module.quant_method.process_weights_after_loading(twin)
        if place.is_canonical(name, image, twin):  # vLLM 0.32 packs at the first load only
            expert_packing(twin)()
    finally:
        vars(experts).clear()
        vars(experts).update(kept)
    return twin
