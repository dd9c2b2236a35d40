"""Publishing from Megatron: the live modules of one rank become its part of the next version.

    publisher = weightcast.megatron.Publisher(
        model, "checkpoint/config.json",
        catalog="sqlite:/shared/c.db", store="file:/shared/bytes", run="policy")
    for step in range(1, steps + 1):
        train(model)
        publisher.publish(step)  # on every rank, whenever it gets there

Ranks work alone: nothing here calls a torch collective. Importing this module imports neither torch
nor Megatron. docs/design/megatron_publisher.md says what is read and what is refused.
"""

import json
import math
import os
import sys
import threading

from weightcast import _core, tensors
from weightcast.errors import Conflict, InvalidArgument, InvalidData, Unavailable
from weightcast.publisher import BasePublisher, Publication, job_token

__all__ = ["Publisher"]

# Persistent buffers that are not weights: made anew from the config by whoever loads a checkpoint.
_CACHES = ("inv_freq", "cos_cached", "sin_cached")


class Publisher(BasePublisher):
    """Publishes what one Megatron rank holds. Every rank makes one; each finds its own share.

    model_chunks: the rank's modules, one for each virtual pipeline chunk, in order (a module alone
        is one chunk); wrappers (DistributedDataParallel, Float16Module) are looked through. Their
        parameters, and persistent buffers such as a router's expert_bias, are looked up again at
        each publish: they may be given new memory between two, or be changed in place.
    hf_config: of the model: a dict, the path of a config.json or of its directory, or an object with
        ``to_dict``.
    catalog, store, run, seed, carry, baseline, side_files, threads: as weightcast.Publisher; equal
        on all ranks but for baseline and threads.
    token: names this life of the job, equal on all ranks; default one that the ranks agree upon in
        the store of torch's default process group, else SLURM's job with its restart count.
    vocab_rows: rows of the embedding over all tensor ranks, padding included; default what the
        modules say.
    expert_layout: of the checkpoint: "auto" (as the seed or the run has them, else as the family's
        checkpoints do), "per-name", "packed-out-in" or "packed-in-out"; equal on all ranks.
    mode: how the checkpoint's tensors are found in the modules: "bridge" (the family's rules) or "raw"
        (a converter written by hand); both give the same plan.
    topology: what is said here counts instead of what Megatron says: {"world": ranks, "rank": this
        one, "coords": {"tp": 0, ...} or None, "config": {name: value}, "mtp_inner", "mtp_at_root",
        "tower"}, as docs/formats/shards.md has it. With world and rank, parallel_state is not asked, and need not
        be there. A vision tower that is the checkpoint's own modules is seen on the first pipeline stage only:
        where there are others, say "tower" on all.

    The plan is compiled here, compared with what the rank holds and with where Megatron put it, and
    only then the run is opened. Raises InvalidData naming what does not fit: unknown, missing or
    different parameters, settings without a rule, coordinates and layers that differ; and
    InvalidArgument, Conflict (another plan under the same token, another inventory), Unavailable.

    One call at a time. Use it as a context manager, or call ``close``.
    """

    def __init__(self, model_chunks, hf_config, *, catalog, store, run, seed="", carry=(),
                 baseline="", side_files="", token="", threads=0, vocab_rows=0,
                 expert_layout="auto", mode="bridge", topology=None):
        if hasattr(model_chunks, "named_modules"):
            model_chunks = [model_chunks]
        self._chunks = list(model_chunks)
        if not self._chunks:
            raise InvalidArgument("model_chunks: no module")
        job = _job(self._chunks, topology or {})
        self._world = job["world"]
        self._replicas = _replicas(job)
        arguments = self._arguments(catalog, store, run, seed, carry, baseline,
                                    job_token(token, self._world), threads, job["rank"])
        held, same = self._held()
        model = _core.RankModel()
        model.topology, model.record = json.dumps(job["topology"]), job["record"]
        model.config = _config_json(hf_config)
        model.expert_layout, model.mode, model.vocab_rows = expert_layout, mode, vocab_rows
        core = _core.Publisher.for_rank(arguments, model, tensors.for_all(held, tensors.spec), same)
        self._begin(core, side_files)
        self._owned = set(core.owned)

    def publish(self, number=None, *, step="", full=False, labels=None, wait=600.0,
                staging_timeout=3600.0):
        """Publishes the modules' weights as they are now; returns a Publication.

        Returns when nothing reads the weights any more: device memory is copied to the host, host
        memory read in place; parts go out while training goes on. Only what this rank owns is
        copied: of replicas, one rank has it.

        number: of the version, equal on all ranks; may be left out (the latest + 1) only where there
        is one rank. step, full, labels, wait, staging_timeout: as weightcast.Publisher.publish; a
        rank that waits for READY waits for the others. A rank that owns nothing returns at once; its
        report says so.
        Raises what is known by then: InvalidData (parameters that are offloaded, of another dtype or
        shape than planned, new or gone, by name), Conflict (parameters that wait for a gather;
        fenced; the number is taken), Unavailable (store or catalog), ...
        """
        if number is None and self._world > 1:
            raise InvalidArgument(f"number: a job of {self._world} ranks needs one, equal on all: each "
                                  "rank alone would take the latest it sees")
        if self._open().owns_nothing:
            return Publication(lambda: {"number": number, "owns_nothing": True}, threading.Event())
        return self._publish(self._choose, number, step, full, labels, wait, staging_timeout)

    def _choose(self):
        _check_gathered(self._chunks, self._replicas)
        held, same = self._held()
        rows = dict(zip(held, tensors.for_all(held, tensors.spec)))
        keys = self._core.choose(list(rows.values()), same)
        return ({key: held[key] for key in keys if key in self._owned}, [rows[key] for key in keys])

    def _held(self):
        """({key: tensor} of all chunks, {key: the first key of the same tensor})"""
        held, same, first = {}, {}, {}
        for number, chunk in enumerate(self._chunks):
            for name, tensor in _weights(_unwrapped(chunk)):
                key = f"vp{number}/{name}"
                held[key] = tensor
                standing = first.setdefault(_identity(tensor), key)
                if standing != key:
                    same[key] = standing
        return held, same


# ---- modules ----

def _unwrapped(module):
    """The model inside what wraps it for training."""
    while hasattr(getattr(module, "module", None), "named_modules"):
        module = module.module
    return module


def _weights(model):
    """(name, tensor) of parameters and persistent buffers, under each name that they have.

    As state_dict would list them, without Transformer Engine's ``_extra_state`` (making it would
    copy from the device).
    """
    for prefix, module in model.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for name, tensor in module._parameters.items():
            if tensor is not None:
                yield dot + name, tensor
        if hasattr(module, "_maintain_float32_expert_bias"):
            # Float16Module narrows a router's buffers; the router widens them before its first forward
            # and before it is saved, and so they are published.
            module._maintain_float32_expert_bias()
        for name, tensor in module._buffers.items():
            passing = name in module._non_persistent_buffers_set
            if tensor is not None and not passing and name not in _CACHES:
                yield dot + name, tensor


def _identity(tensor):
    """Equal for names of one tensor: one object, or views of the same values in the same shape."""
    if not tensors.is_torch(tensor) or tensor.device.type == "meta" or tensor.numel() == 0:
        return id(tensor)
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a subclass without memory of its own; refused when it is staged
        address = 0
    if address == 0:
        return id(tensor)
    return (address, str(tensor.device), str(tensor.dtype), tuple(tensor.shape),
            tuple(tensor.stride()))


def _check_gathered(chunks, replicas):
    """Megatron's overlapped gather fills parameters only as the next forward reaches them."""
    if replicas == 1:
        return
    for chunk in chunks:
        while hasattr(getattr(chunk, "module", None), "named_modules"):
            if getattr(chunk, "remove_forward_pre_hook_handles", None):
                raise Conflict("overlap_param_gather: parameters may still be as before the last step; "
                               "call disable_forward_pre_hook() on the model chunks before publishing "
                               "(it gathers them), enable_forward_pre_hook() after")
            chunk = chunk.module


# ---- what Megatron says of the job ----

_SIZES = (  # as a config names them; in parallel_state get_NAME_world_size
    ("tensor_model_parallel_size", "tensor_model_parallel"),
    ("pipeline_model_parallel_size", "pipeline_model_parallel"),
    ("context_parallel_size", "context_parallel"),
    ("expert_model_parallel_size", "expert_model_parallel"),
    ("expert_tensor_parallel_size", "expert_tensor_parallel"),
)
_SPELLINGS = ("mtp_inner", "mtp_at_root", "tower")  # of topology.json, beside its config
_COORDS = {  # in parallel_state get_NAME_rank
    "tp": "tensor_model_parallel", "pp": "pipeline_model_parallel", "dp": "data_parallel",
    "cp": "context_parallel", "ep": "expert_model_parallel", "etp": "expert_tensor_parallel",
    "edp": "expert_data_parallel",
}


def _job(chunks, given):
    """{"world", "rank", "config", "record", "topology"}: Megatron's, but for what is given."""
    if unknown := sorted(set(given) - {"world", "rank", "coords", "config", *_SPELLINGS}):
        raise InvalidArgument(f"topology: unknown: {', '.join(unknown)}")
    said = {} if {"world", "rank"} <= set(given) else _from_parallel_state()
    world, rank = given.get("world", said.get("world")), given.get("rank", said.get("rank"))
    coords = given.get("coords", said.get("coords"))
    models = [_unwrapped(chunk) for chunk in chunks]
    config = _settings(models)
    given_config = {name: _plain(value) for name, value in given.get("config", {}).items()}
    sizes = {**said.get("sizes", {}), "virtual_pipeline_model_parallel_size": len(chunks)}
    # Layers cut by one size under a config of another: which of them is right cannot be told.
    differ = [f"{name}: {config[name]} in the model's config, {size} in fact"
              for name, size in sizes.items() if name not in given_config
              and config.get(name) is not None and config[name] != size]
    if differ:
        raise InvalidData("the model's config is not that of the job: " + "; ".join(differ))
    config.update(sizes)
    config.update(given_config)
    record = ""
    if coords:
        record = json.dumps({"coords": coords, "params": {"_layers": _layers(models)}})
    topology = {"world": world, "config": config, "mtp_inner": _mtp_inner()}
    topology.update({name: given[name] for name in _SPELLINGS if name in given})
    return {"world": world, "rank": rank, "config": config, "record": record, "topology": topology}


def _mtp_inner():
    """What this Megatron calls the layer inside of a prediction module, so that ranks without one know.

    None where it has none, or is not there; a rank that holds one then sees it.
    """
    module = sys.modules.get("megatron.core.transformer.multi_token_prediction")
    fields = getattr(getattr(module, "MultiTokenPredictionLayerSubmodules", None),
                     "__dataclass_fields__", {})
    return next((name for name in ("mtp_model_layer", "transformer_layer") if name in fields), None)


def _from_parallel_state():
    try:
        import torch.distributed
        from megatron.core import parallel_state
    except ImportError as error:
        raise Unavailable(f"megatron.core cannot be imported ({error}); without it, topology must give "
                          "world and rank") from error
    if not torch.distributed.is_initialized() or not parallel_state.model_parallel_is_initialized():
        raise Conflict("megatron.core.parallel_state is not initialized: call "
                       "initialize_model_parallel first, or give topology's world and rank")

    def ask(name, what):
        return int(getattr(parallel_state, f"get_{name}_{what}")())

    world = torch.distributed.get_world_size()
    sizes = {setting: ask(name, "world_size") for setting, name in _SIZES}
    used = (sizes["tensor_model_parallel_size"] * sizes["pipeline_model_parallel_size"] *
            sizes["context_parallel_size"] * ask("data_parallel", "world_size"))
    if used != world:
        raise InvalidData(f"parallel_state has {used} ranks of a world of {world}: a model on some of "
                          "the ranks has no rule")
    rank = torch.distributed.get_rank()
    coords = {"rank": rank, **{short: ask(name, "rank") for short, name in _COORDS.items()}}
    return {"world": world, "rank": rank, "sizes": sizes, "coords": coords}


def _replicas(job):
    """How many ranks hold the same dense parameters."""
    config = job["config"]
    return job["world"] // math.prod(config.get(name) or 1 for name in (
        "tensor_model_parallel_size", "pipeline_model_parallel_size"))


def _plain(value):
    """A setting as JSON can say it; of what it cannot, the name of its type."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if type(value).__name__ == "dtype":
        return str(value)  # torch.bfloat16
    if type(value).__name__ == "PipelineParallelLayerLayout":  # [stage][chunk][module]; as it is given:
        return [[module.name for module in stage[chunk]]
                for chunk in range(len(value.layout[0])) for stage in value.layout]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return type(value).__name__


def _settings(models):
    """The TransformerConfig of the model, and what its modules know better."""
    config = {}
    for model in models:
        settings = getattr(model, "config", None)
        if settings is not None:
            config = {name: _plain(value) for name, value in vars(settings).items()
                      if not name.startswith("_")}
            break
    for model in models:
        language = getattr(model, "language_model", model)  # of a model that also sees or hears
        rows = getattr(language, "vocab_size", None)  # every stage's module knows it, padding included
        if isinstance(rows, int):
            config["padded_vocab_size"] = rows
        tied = getattr(language, "share_embeddings_and_output_weights", None)
        if isinstance(tied, bool):
            config["share_embeddings_and_output_weights"] = tied
    return config


def _layers(models):
    """{"vpC/decoder.layers.I": number in the whole model, from 1} as the layers know it themselves."""
    layers = {}
    for chunk, model in enumerate(models):
        for name, module in model.named_modules():
            number = getattr(module, "layer_number", None)
            if isinstance(number, int) and name.rpartition(".")[0].endswith("decoder.layers"):
                layers[f"vp{chunk}/{name}"] = number
    return layers


# ---- the model's config ----

def _finite(value):
    """JSON has neither NaN nor infinity; no rule reads them."""
    if isinstance(value, dict):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _config_json(config):
    """config.json as text. Raises InvalidArgument for what is none."""
    if isinstance(config, (str, os.PathLike)):
        path = os.fspath(config)
        if os.path.isdir(path):
            path = os.path.join(path, "config.json")
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except OSError as error:
            raise InvalidArgument(f"hf_config: {path}: {error.strerror}") from error
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, dict):
        raise InvalidArgument(f"hf_config: expected a dict, a path or an object with to_dict, found a "
                              f"{type(config).__name__}")
    return json.dumps(_finite(config), default=str)
