"""The publish hook that makes versions: each rank's shards go out as its part, by weightcast."""

import json
import time

import torch

import weightcast.megatron


class PublishVersions:
    """A rank's half of a run. Picklable; the publisher is made at the first call, in the rank's own
    process. Step 0 is the seed and is registered by the driver: there is nothing to publish then."""

    def __init__(self, catalog, store, run, seed, baseline, token, full_every, metrics):
        self.where = {"catalog": catalog, "store": store, "run": run, "seed": str(seed),
                      "baseline": str(baseline), "token": token}
        self.full_every, self.metrics = full_every, metrics
        self.publisher, self.module = None, None

    def __call__(self, step, shards, topology):
        if step == 0:
            return
        if self.publisher is None:
            self.module = module_of(shards)
            coords = topology["coords"]
            self.publisher = weightcast.megatron.Publisher(
                self.module, topology["hf_config"], **self.where,
                topology={"world": topology["world"], "rank": coords["rank"], "coords": coords,
                          "config": topology["config"]})
        for name, value in self.module.named_parameters():
            value.data = shards[f"vp0/{name}"]
        self.publisher.publish(step, full=step % self.full_every == 0).wait()
        rank = topology["coords"]["rank"]
        with open(f"{self.metrics}/rank{rank}.jsonl", "a") as log:
            log.write(json.dumps({"step": step, "at": time.time(), **self.publisher.pop_metrics()}) + "\n")

    def close(self):
        if self.publisher is not None:
            self.publisher.close()


def module_of(shards):
    """A module tree that holds the shards by their Megatron names, as a live model would."""
    root = torch.nn.Module()
    for key, value in shards.items():
        *path, leaf = key.removeprefix("vp0/").split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]
        module.register_parameter(leaf, torch.nn.Parameter(value, requires_grad=False))
    return root
