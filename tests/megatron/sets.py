"""Sets of real shards, written as docs/formats/shards.md says, with Megatron-Bridge's export of the same
modules as the oracle.

  VENV/bin/python tests/megatron/sets.py FOLDER [FAMILY/LAYOUT...]   by default all that sets_list.py has

Writes FOLDER/FAMILY/LAYOUT/ and the checkpoint FOLDER/FAMILY/hf_source/. A set that Megatron could not
make holds error.txt instead. Imports once, then forks the ranks of each set (gloo).
"""

import json
import logging
import os
import pathlib
import shutil
import sys
import time

import cpu_only  # noqa: F401  before all of Megatron
import megatron.bridge
import megatron.core
import torch
import torch.distributed as dist
from megatron.bridge import AutoBridge
from megatron.core import parallel_state
from megatron.core.utils import unwrap_model
from safetensors.torch import load_file, save_file

import ranks
import sets_list
import tiny_models

torch.set_num_threads(1)
logging.disable(logging.INFO)

# Of Megatron's provider, by the short names of sets_list.py.
SETTINGS = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size", "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size",
    "first": "num_layers_in_first_pipeline_stage", "last": "num_layers_in_last_pipeline_stage",
    "embedding": "account_for_embedding_in_pipeline_split",
    "loss": "account_for_loss_in_pipeline_split", "pipeline": "pipeline_model_parallel_layout",
    "pad": "make_vocab_size_divisible_by", "grouped": "moe_grouped_gemm",
}
FUSIONS = ("gradient_accumulation_fusion", "masked_softmax_fusion", "bias_activation_fusion",
           "bias_dropout_fusion", "apply_rope_fusion", "persist_layer_norm", "moe_permute_fusion",
           "moe_router_fusion", "cross_entropy_loss_fusion")
COORDINATES = {
    "tp": parallel_state.get_tensor_model_parallel_rank,
    "pp": parallel_state.get_pipeline_model_parallel_rank,
    "dp": parallel_state.get_data_parallel_rank,
    "cp": parallel_state.get_context_parallel_rank,
    "ep": parallel_state.get_expert_model_parallel_rank,
    "etp": parallel_state.get_expert_tensor_parallel_rank,
    "edp": parallel_state.get_expert_data_parallel_rank,
}
UNTOUCHED = -7.0  # no weight is: what the import leaves alone is seen


def make_provider(bridge, layout):
    provider = bridge.to_megatron_provider(load_weights=False)
    for short, value in layout.items():
        if short in SETTINGS:
            setattr(provider, SETTINGS[short], value)
    provider.should_pad_vocab = "pad" in layout
    # Experts and tensor parallelism go together only with it; local to activations.
    provider.sequence_parallel = bool(provider.num_moe_experts) and layout.get("tp", 1) > 1
    provider.pipeline_dtype = provider.params_dtype = torch.bfloat16
    provider.bf16, provider.fp16 = True, False
    provider.use_cpu_initialization, provider.perform_initialization = True, False
    for fusion in FUSIONS:
        if hasattr(provider, fusion):
            setattr(provider, fusion, False)
    provider.finalize()
    return provider


def named_weights(module):
    """Parameters and what else the module's state dict keeps of floating point."""
    kept = set(module.state_dict().keys())
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if name in kept and tensor.is_floating_point():
                yield name, tensor.detach()


def make_modules(bridge, provider):
    chunks = provider.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True, bf16=True)
    modules = [unwrap_model(chunk) for chunk in chunks]
    for module in modules:
        for _, tensor in named_weights(module):
            tensor.fill_(UNTOUCHED)
    bridge.load_hf_weights(chunks)
    return chunks, modules


def layer_numbers(modules):
    return {f"vp{chunk}/{name}": part.layer_number
            for chunk, module in enumerate(modules) for name, part in module.named_modules()
            if hasattr(part, "layer_number") and type(part).__name__.endswith("TransformerLayer")}


def write_shard(modules, rank, folder):
    weights = {f"vp{chunk}/{name}": tensor.clone().contiguous()
               for chunk, module in enumerate(modules) for name, tensor in named_weights(module)}
    untouched = [name for name, tensor in weights.items() if bool((tensor == UNTOUCHED).all())]
    if untouched:
        raise RuntimeError(f"the import left {', '.join(untouched)} alone")
    save_file(weights, folder / f"rank{rank}.safetensors")
    coordinates = {"rank": rank} | {name: get() for name, get in COORDINATES.items()}
    (folder / f"rank{rank}.json").write_text(json.dumps(
        {"coords": coordinates, "params": {"_layers": layer_numbers(modules)}}))


def plain(value):
    """Whether JSON has it as it is."""
    if isinstance(value, list | tuple):
        return all(plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def settings_of(provider):
    """What the trainer's config holds, as far as JSON has words for it."""
    found = {}
    for name, value in vars(provider).items():
        if name.startswith("_") or name == "hf_model_id":  # a path
            continue
        if name == SETTINGS["pipeline"] and value is not None:
            value = value.input_data  # as it was given
        if isinstance(value, torch.dtype):
            value = str(value)
        if plain(value):
            found[name] = value
    return found


def not_alike(exported, source):
    """Tensors in which the export is not the checkpoint that was imported; should a set differ, this tells
    whether the import or the export is to blame."""
    def same(name):
        a, b = exported.get(name), source.get(name)
        return a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b)

    return sorted(name for name in exported.keys() | source.keys() if not same(name))


def write_set(rank, world, layout, checkpoint, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=world)
    bridge = AutoBridge.from_hf_pretrained(str(checkpoint))
    provider = make_provider(bridge, layout)
    provider.initialize_model_parallel(seed=0)
    chunks, modules = make_modules(bridge, provider)
    write_shard(modules, rank, folder)
    exported = {name: tensor.detach().clone().contiguous() for name, tensor in
                bridge.export_hf_weights(chunks, cpu=True, show_progress=False)}
    if rank == 0:
        save_file(exported, folder / "hf_export.safetensors")
        (folder / "topology.json").write_text(json.dumps({
            "world": world, "topology": layout, "config": settings_of(provider),
            "versions": {"megatron_core": megatron.core.__version__,
                         "megatron_bridge": megatron.bridge.__version__},
            "bridge": type(bridge._model_bridge).__name__,
            "not_as_imported": not_alike(exported, load_file(checkpoint / "model.safetensors")),
        }, indent=1))
    dist.barrier()


def make_set(name, root):
    begin = time.monotonic()
    family, layout_name = name.split("/")
    checkpoint, folder = root / family / "hf_source", root / family / layout_name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if not checkpoint.exists():
        tiny_models.make_checkpoint(family, checkpoint)
    layout = sets_list.layout_of(layout_name)
    world = sets_list.world_of(layout)
    said = ranks.run(world, folder, lambda rank: write_set(rank, world, layout, checkpoint, folder))
    for left in [folder / "gloo", *folder.glob("rank*.log")]:
        left.unlink(missing_ok=True)
    if said:
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "error.txt").write_text(said)
    print(f"{name}: {'failed' if said else 'made'} in {time.monotonic() - begin:.1f} s", flush=True)


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    for name in sys.argv[2:] or [*sets_list.SETS, *sets_list.REFUSED]:
        make_set(name, root)


if __name__ == "__main__":
    main()
