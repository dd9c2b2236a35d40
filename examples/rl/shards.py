"""Shards as files (docs/formats/shards.md): written by every rank, read back for a sampler in torch."""

import json
import pathlib

from safetensors.torch import load_file, save_file


class WriteShards:
    """The default publish hook: a directory OUT/stepNNNN a step, for `weightcast publish --shards`,
    with the model's config in OUT/hf_source. Every rank calls it with its own shards."""

    def __init__(self, out):
        self.out = pathlib.Path(out)

    def __call__(self, step, shards, topology):
        rank = topology["coords"]["rank"]
        directory = step_directory(self.out, step)
        directory.mkdir(parents=True, exist_ok=True)
        save_file(shards, directory / f"rank{rank}.safetensors")
        write_json(directory / f"rank{rank}.json",
                   {"coords": topology["coords"], "params": {"_layers": topology["layers"]}})
        if rank == 0:
            write_json(directory / "topology.json",
                       {"world": topology["world"], "config": topology["config"]})
            write_source(self.out / "hf_source", topology["hf_config"])


def step_directory(out, step):
    return pathlib.Path(out) / f"step{step:04d}"


def read_shards(directory, layout):
    """Every rank's shards as float32, by their names without the VPP chunk."""
    return [{name.removeprefix("vp0/"): shard.float()
             for name, shard in load_file(directory / f"rank{rank}.safetensors").items()}
            for rank in range(layout.world)]


def write_source(directory, hf_config):
    """What an engine needs beside weights: config.json, and a tokenizer whose word "wN" is token N."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", hf_config)
    vocab = {f"w{i}": i for i in range(hf_config["vocab_size"])}
    write_json(directory / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}})
    write_json(directory / "tokenizer_config.json",
               {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"})


def write_json(path, document):
    path.write_text(json.dumps(document, indent=1) + "\n")
