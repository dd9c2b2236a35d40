"""Publishes from live Megatron-Core modules and has Megatron-Bridge export the same modules.

  VENV/bin/python tests/megatron/live.py FOLDER CASE...   CASE: MODEL/TOPOLOGY

Writes FOLDER/CASE/result.json: the roots of two published versions and of the two exports, and how many
torch collectives each side called. Imports once, then forks the ranks of each case (gloo).
"""

import collections
import contextlib
import functools
import json
import logging
import os
import pathlib
import random
import re
import sys
import time

import cpu_only  # noqa: F401  before all of Megatron
import torch
import torch.distributed as dist
import transformers
from megatron.bridge import AutoBridge
from megatron.core.distributed import DistributedDataParallelConfig
from safetensors.torch import save_file

import ranks
import weightcast
import weightcast.megatron

torch.set_num_threads(1)
logging.disable(logging.INFO)

SIZES = {"vocab_size": 200, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
         "dtype": "bfloat16"}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, head_dim=8, tie_word_embeddings=False),
    "llama-tied": lambda: transformers.LlamaConfig(**SIZES, head_dim=8, tie_word_embeddings=True),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=False),
    "qwen2-tied": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=False),
    "qwen3-tied": lambda: transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
}
TOPOLOGIES = {  # tensor, pipeline, virtual, data
    "tp1": (1, 1, 1, 1), "tp2": (2, 1, 1, 1), "pp2": (1, 2, 1, 1), "tp2pp2": (2, 2, 1, 1),
    "vpp2": (1, 2, 2, 1), "dp2": (1, 1, 1, 2), "tp2dp2": (2, 1, 1, 2),
}

COLLECTIVE = re.compile(r"(all_?reduce|all_?gather|all_?to_?all|_?all_?gather_?base|_?reduce_?scatter|"
                        r"reduce|broadcast|gather|scatter|barrier|monitored_?barrier|i?send|i?recv|"
                        r"recv_?any_?source|batch_isend_irecv)\w*")


class Collectives:
    """Counts calls of torch's collectives, by functions and by the groups' own methods."""

    def __init__(self):
        self.calls = collections.Counter()
        for owner in (dist, dist.distributed_c10d, dist.ProcessGroup):
            for name in dir(owner):
                call = getattr(owner, name)
                if COLLECTIVE.fullmatch(name) and callable(call) and not isinstance(call, type):
                    setattr(owner, name, self._counted(name, call))

    def _counted(self, name, call):
        @functools.wraps(call)
        def counted(*args, **kwargs):
            self.calls[name] += 1
            return call(*args, **kwargs)

        return counted

    def taken(self):
        calls, self.calls = dict(self.calls), collections.Counter()
        return calls


def make_checkpoint(model, folder):
    torch.manual_seed(1)
    made = transformers.AutoModelForCausalLM.from_config(MODELS[model](), dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in made.parameters():  # norms too: ones would hide a mix-up
            parameter.normal_()
    made.save_pretrained(folder)


def make_model(checkpoint, topology):
    tensor, pipeline, virtual, data = TOPOLOGIES[topology]
    bridge = AutoBridge.from_hf_pretrained(str(checkpoint))
    provider = bridge.to_megatron_provider(load_weights=False)
    provider.tensor_model_parallel_size = tensor
    provider.pipeline_model_parallel_size = pipeline
    provider.virtual_pipeline_model_parallel_size = virtual if virtual > 1 else None
    provider.use_cpu_initialization = True
    for fusion in ("gradient_accumulation_fusion", "masked_softmax_fusion", "bias_activation_fusion",
                   "bias_dropout_fusion", "apply_rope_fusion", "persist_layer_norm",
                   "cross_entropy_loss_fusion"):
        setattr(provider, fusion, False)
    provider.finalize()
    provider.initialize_model_parallel(seed=0)
    # Over replicas as they train: wrapped, parameters as views of one buffer, gathered lazily.
    wrap = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True,
                                         overlap_param_gather=True)
    chunks = provider.provide_distributed_model(
        ddp_config=wrap, wrap_with_ddp=data > 1, use_cpu_initialization=True, bf16=True)
    bridge.load_hf_weights(chunks)
    return bridge, chunks


@torch.no_grad()
def train(chunks, seed):
    """Changes about a fifth of all elements, in place, as a function of the element and the seed alone:
    copies of a weight on several ranks stay copies."""
    chance = random.Random(seed)
    factor, phase = chance.choice((0.5, 1.5, -1.25)), chance.randrange(5)
    for chunk in chunks:
        for parameter in chunk.parameters():
            bits = parameter.view({2: torch.int16, 4: torch.int32}[parameter.element_size()]).long()
            parameter.copy_(torch.where((bits + phase) % 5 == 0, parameter * factor, parameter))


@torch.no_grad()
def move(chunks, strided):
    """Gives parameters new memory; with `strided`, laid out another way round."""
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if name.endswith("linear_proj.weight"):
                parameter.data = parameter.data.t().clone(
                    memory_format=torch.contiguous_format).t() if strided else (
                        parameter.data.clone(memory_format=torch.contiguous_format))


def gather_is_waited_for(publisher, chunks):
    """What a publish says while parameters are gathered lazily, "" if they are not; then they are not."""
    try:
        if any(hasattr(chunk, "disable_forward_pre_hook") for chunk in chunks):
            publisher.publish(1)
    except weightcast.errors.Conflict as error:
        for chunk in chunks:
            chunk.disable_forward_pre_hook(param_sync=False)
        return str(error)
    return ""


@contextlib.contextmanager
def other_values(chunks):
    parameters = [parameter.data for chunk in chunks for parameter in chunk.parameters()]
    kept = [values.clone() for values in parameters]
    for values in parameters:
        values.fill_(7)
    yield
    for values, before in zip(parameters, kept):
        values.copy_(before)


def root_of_export(bridge, chunks, folder, config, where, run):
    """Every rank takes part; rank 0 has the root, that of a run which begins with the export."""
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in
               bridge.export_hf_weights(chunks, cpu=True, show_progress=False)}
    if dist.get_rank() != 0:
        return None
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(config)
    weightcast.Publisher(**where, run=run, weights=tensors, seed=folder,
                         baseline=folder.parent / f"baseline-{run}", threads=1).close()
    return weightcast.versions(where["catalog"], run)[0]["root"]


def run_rank(rank, world, folder, checkpoint, topology):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=world)
    bridge, chunks = make_model(checkpoint, topology)
    config = (checkpoint / "config.json").read_text()
    where = {"catalog": f"sqlite:{folder}/c.db", "store": f"file:{folder}/bytes"}
    seed = checkpoint if topology != "tp2" else ""  # a run may begin without one
    train(chunks, 1)
    dist.barrier()

    collectives = Collectives()
    ours, theirs = collections.Counter(), collections.Counter()
    result = {"roots": [], "exports": []}
    publisher = weightcast.megatron.Publisher(
        chunks, checkpoint if rank % 2 else bridge.hf_pretrained.config, **where, run="policy",
        seed=seed, baseline=folder / "baseline", threads=1)
    result["waits"] = gather_is_waited_for(publisher, chunks)
    for number in (1, 2):
        if number == 2:
            publisher.prepare_base()
            train(chunks, 2)
            move(chunks, strided=True)
        publication = publisher.publish(number)
        with other_values(chunks):  # training goes on
            result["roots"].append(publication.wait()["root"])
        ours.update(collectives.taken())
        move(chunks, strided=False)
        result["exports"].append(root_of_export(bridge, chunks, folder / f"export-{number}", config, where,
                                                f"export-{number}"))
        theirs.update(collectives.taken())
    publisher.close()
    ours.update(collectives.taken())
    result |= {"ours": dict(ours), "theirs": dict(theirs), "metrics": publisher.pop_metrics()}
    if rank == 0:
        weightcast.pull(where["catalog"], "policy", folder / "image", threads=1, seed=seed)
        with weightcast.Image(folder / "image") as image:
            result["image"] = image.root
    (folder / f"rank{rank}.json").write_text(json.dumps(result))
    dist.barrier()


def run_case(folder, checkpoint, topology):
    begin = time.monotonic()
    folder.mkdir(parents=True)
    tensor, pipeline, _, data = TOPOLOGIES[topology]
    world = tensor * pipeline * data
    said = ranks.run(world, folder, lambda rank: run_rank(rank, world, folder, checkpoint, topology))
    if said:
        result = {"error": said}
    else:
        result = {"ranks": [json.loads((folder / f"rank{rank}.json").read_text())
                            for rank in range(world)]}
    result["seconds"] = round(time.monotonic() - begin, 1)
    (folder / "result.json").write_text(json.dumps(result))


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    for case in sys.argv[2:]:
        model, topology = case.split("/")
        checkpoint = folder / f"{model}-checkpoint"
        if not checkpoint.exists():
            make_checkpoint(model, checkpoint)
        run_case(folder / case, checkpoint, topology)


if __name__ == "__main__":
    main()
