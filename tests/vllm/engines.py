"""What the plugin's tests share: published runs of tiny models, and vLLM engines in this process."""

import contextlib
import functools
import gc
import pathlib
import tempfile
import time

import models
from safetensors.torch import load_file

import weightcast

PROMPTS = [{"prompt_token_ids": [5, 9, 33, 7]}, {"prompt_token_ids": [100, 3]}]


def weights(checkpoint):
    return load_file(checkpoint / "model.safetensors")


class Run:
    """A run of a tiny model, seeded with version 0; versions above are deltas, those in `full` too.

    `names`: {number: tensors that it changes, instead of all}. Checkpoints that a fresh engine loads:
    `checkpoint(number)`."""

    def __init__(self, directory, kind="qwen3", dtype="bfloat16", steps=3, full=(3,), density=0.02,
                 names=None):
        self.directory, self.kind, self.dtype = pathlib.Path(directory), kind, dtype
        self.catalog = f"sqlite:{self.directory}/catalog.db"
        self.store = f"file:{self.directory}/bytes"
        models.make(kind, self.checkpoint(0), seed=0, dtype=dtype)
        for n in range(1, steps + 1):
            models.changed(self.checkpoint(n - 1), self.checkpoint(n), seed=n, density=density,
                           names=(names or {}).get(n))
        with weightcast.Publisher(self.catalog, self.store, "policy", weights(self.checkpoint(0)),
                                  seed=self.checkpoint(0), baseline=self.directory / "base") as p:
            for n in range(1, steps + 1):
                p.publish(weights(self.checkpoint(n)), full=n in full).wait()
        self.uids = {v["number"]: v["uid"] for v in weightcast.versions(self.catalog, "policy")}

    def checkpoint(self, number):
        return self.directory / f"v{number}"

    def settings(self, image, **more):
        return {"catalog": self.catalog, "run": "policy", "image": str(image),
                "seed": str(self.checkpoint(0)), "durability": "process", **more}

    def pull(self, image, number, **more):
        return weightcast.pull(self.catalog, "policy", image, version=self.uids[number],
                               seed=self.checkpoint(0), durability="process", **more)

    def tokens(self, number):
        """What a fresh engine on the version's checkpoint says."""
        return fresh_tokens(str(self.checkpoint(number)), self.dtype)


@functools.cache
def run_of(kind="qwen3", dtype="bfloat16"):
    """One run for all tests that only read it."""
    scratch = tempfile.TemporaryDirectory(prefix="weightcast-vllm-")
    run = Run(scratch.name, kind, dtype)
    run.scratch = scratch  # goes with the process
    return run


@functools.cache
def fresh_tokens(checkpoint, dtype):
    with Engine(checkpoint, dtype, follows=False) as engine:
        return engine.tokens()


class Engine:
    """An LLM of vLLM. `follows`: with the plugin as its weight-transfer backend.

    One at a time: vLLM's process groups go with whichever is closed first."""

    alive = 0

    def __init__(self, checkpoint, dtype="bfloat16", follows=True, eager=True, **more):
        from vllm import LLM

        assert not Engine.alive, "another engine is open"
        Engine.alive = 1
        gc.freeze()  # vLLM collects eight times while it starts and stops; imports are most of it
        if follows:
            more["weight_transfer_config"] = {"backend": "weightcast"}
        more = {"distributed_executor_backend": "uni", "skip_tokenizer_init": True} | more
        try:
            self.llm = LLM(str(checkpoint), dtype=dtype, max_model_len=128, max_num_seqs=4,
                           enforce_eager=eager, num_gpu_blocks_override=16, disable_log_stats=True,
                           **more)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.llm = None
        gc.collect()
        Engine.alive = 0

    @property
    def worker(self):
        return self.llm.llm_engine.model_executor.driver_worker.worker

    @property
    def plugin(self):
        return self.worker.weight_transfer_engine

    @property
    def model(self):
        return self.worker.model_runner.get_model()

    def init(self, **settings):
        self.llm.init_weight_transfer_engine({"init_info": settings})

    def rpc(self, op, **request):
        return self.rpc_all(op, **request)[0]

    def rpc_all(self, op, **request):
        """Of every worker."""
        return self.llm.collective_rpc("weightcast", args=({"op": op, **request},))

    def status(self):
        return self.rpc("status")

    def prepare(self, version):
        """The status after it, which says whether it went well."""
        self.rpc("prepare", version=version)
        end = time.monotonic() + 60
        while any(one["preparing"] for one in self.rpc_all("status")):
            assert time.monotonic() < end, self.status()
            time.sleep(0.005)
        return self.status()

    def write(self, version, **more):
        """One session: start, update, finish."""
        self.llm.start_weight_update()
        self.llm.update_weights({"update_info": {"version": version, **more}})
        self.llm.finish_weight_update(version)

    def update(self, version, **more):
        status = self.prepare(version)
        assert status["prepared"] == version, status
        self.write(version, **more)

    def prove(self, scope="all"):
        """{name: (how, digest, units, span)}"""
        return {name: tuple(rest) for name, *rest in self.rpc("prove", scope=scope)["tensors"]}

    def tokens(self, prompts=PROMPTS):
        from vllm import SamplingParams

        greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
        return [list(o.outputs[0].token_ids)
                for o in self.llm.generate(prompts, greedy, use_tqdm=False)]


@contextlib.contextmanager
def following(run, image, **settings):
    """An engine on the run's seed, that follows the run."""
    with Engine(run.checkpoint(0), run.dtype) as engine:
        engine.init(**run.settings(image, **settings))
        yield engine
