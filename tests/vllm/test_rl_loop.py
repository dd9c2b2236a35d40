"""The RL loop of examples/rl, shorter and with its engine in this process: trainer ranks publish, a live vLLM follows,
the reward rises."""

import importlib
import pathlib
import sys
import time

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from engines import Engine  # noqa: E402

import weightcast  # noqa: E402

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "rl"
STEPS, FULL_AT = 6, 3


@pytest.fixture
def rl(monkeypatch):
    """The example's modules; ranks are forked from a server that finds them by PYTHONPATH."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny, and the ranks want the cores
    yield {name: importlib.import_module(name) for name in ("quickstart", "train", "versions")}
    torch.set_num_threads(threads)


class LiveRollout:
    """An engine in this process as the rollout."""

    def __init__(self, engine, catalog):
        self.engine, self.catalog = engine, catalog

    def update(self, step):
        uids = {v["number"]: v["uid"] for v in weightcast.versions(self.catalog, "policy")}
        self.engine.update(uids[step])
        assert self.engine.prove("touched") or step == 0

    def generate(self, prompts, max_tokens, temperature):
        from vllm import SamplingParams

        how = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(o.outputs[0].token_ids) for o in self.engine.llm.generate(asked, how, use_tqdm=False)]


def test_the_reward_rises_with_every_version_in_a_live_engine(rl, tmp_path):
    options = rl["train"].Options()
    catalog, store = f"sqlite:{tmp_path}/c.db", f"file:{tmp_path}/bytes"
    seed = rl["quickstart"].write_seed(options, tmp_path)
    rl["quickstart"].weightcast("publish", "--catalog", catalog, "--store", store, "--run", "policy", "--seed", seed)
    (tmp_path / "metrics").mkdir()
    publish = rl["versions"].PublishVersions(catalog, store, "policy", seed, tmp_path / "base", f"job-{time.time_ns()}",
                                             FULL_AT, str(tmp_path / "metrics"))
    task = rl["train"].Task(options.config.vocab, options.seed)
    with Engine(seed) as engine:
        engine.init(catalog=catalog, run="policy", image=str(tmp_path / "image"), seed=str(seed), durability="process")
        with rl["train"].Trainer(options, publish) as trainer:
            rewards = [row.reward for row in
                       rl["train"].learn(trainer, LiveRollout(engine, catalog), task, STEPS)]
        assert rewards[-1] > rewards[0] + 0.2, rewards
        kinds = [v["kind"] for v in weightcast.versions(catalog, "policy")]
        assert kinds == ["seed", "delta", "delta", "full", "delta", "delta", "full"]
        said = LiveRollout(engine, catalog).generate(task.prompts(999), 16, 0)
        assert not any(how == "unproven" for how, *_ in engine.prove("all").values())
    weightcast.pull(catalog, "policy", tmp_path / "exported", seed=seed)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "exported" / name).write_bytes((tmp_path / "hf_source" / name).read_bytes())
    with Engine(tmp_path / "exported", follows=False) as fresh:
        assert LiveRollout(fresh, catalog).generate(task.prompts(999), 16, 0) == said
