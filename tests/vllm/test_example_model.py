"""examples/rl: the sharded model is the real one, its gradients too, and it learns.

Runs in build/vllm-venv (`tools/setup vllm`), with the binary of `make build`."""

import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("WEIGHTCAST_BINARY", ROOT / "build" / "weightcast"))
sys.path.insert(0, str(ROOT / "examples" / "rl"))

import model  # noqa: E402
import rollout  # noqa: E402
import shards  # noqa: E402
import train  # noqa: E402

torch.set_num_threads(1)  # the ranks want the cores

TOKENS = [[(7 * i + 5 * j * j) % 64 for j in range(20)] for i in range(6)]
START = 4  # of the responses in TOKENS
ADVANTAGES = [1.0, -0.5, 0.25, -1.0, 0.75, -0.5]


def started(out, **changes):
    return train.Trainer(train.Options(**changes), shards.WriteShards(out))


def train_once(trainer):
    trainer.train([t[:START] for t in TOKENS], [t[START:] for t in TOKENS], ADVANTAGES)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four ranks after one step, that moved every weight: (directory, logits after it)"""
    out = tmp_path_factory.mktemp("tp2pp2")
    with started(out, moved_share=1.0) as trainer:
        train_once(trainer)
        yield out, trainer.logits(TOKENS)


def test_logits_are_those_of_transformers_on_the_converted_checkpoint(trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    out, logits = trained
    subprocess.run([BINARY, "convert", "--shards", shards.step_directory(out, 1), "--out",
                    tmp_path / "hf"], check=True)
    # The ranks compute in float32 with weights that are bf16 values.
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS)).logits
    assert type(theirs).__name__ == "Qwen3ForCausalLM"
    assert logits.std() > 0.5, "logits that say something"
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_gradients_are_those_of_the_whole_model(trained, tmp_path):
    """Adam's first step moves each weight by its gradient's sign: a wrong gradient moves half of
    them the other way."""
    options = train.Options(layout=model.Layout(), moved_share=1.0)
    with started(tmp_path, layout=options.layout, moved_share=1.0) as trainer:
        train_once(trainer)
    alone = shards.read_shards(shards.step_directory(tmp_path, 1), options.layout)[0]
    split = shards.read_shards(shards.step_directory(trained[0], 1), train.Options().layout)
    joined = model.join(split, options.config, train.Options().layout)
    before = model.whole_weights(options.config, options.seed)
    assert joined.keys() == alone.keys() == before.keys()
    for name, weight in alone.items():
        moved = weight != before[name].bfloat16().float()
        # Rows of tokens that do not occur have no gradient.
        assert moved.float().mean() > (0.5 if name == model.EMBEDDING else 0.95), name
        assert (weight != joined[name]).float().mean() < 0.01, name


def test_tensor_ranks_hold_the_same_bits_of_what_both_have_whole(trained):
    layout = train.Options().layout
    ranks = shards.read_shards(shards.step_directory(trained[0], 1), layout)
    for stage in range(layout.pp):
        first, second = ranks[2 * stage], ranks[2 * stage + 1]
        for name in first:
            assert torch.equal(first[name], second[name]) == (model.cut_axis(name) is None), name


@pytest.mark.parametrize("learning_rate", [train.Options().learning_rate, 0.0])
def test_reward_rises_and_that_of_the_frozen_control_does_not(learning_rate, tmp_path):
    options = train.Options(learning_rate=learning_rate)
    sampler = rollout.TorchRollout(options.config, options.layout, tmp_path, options.seed)
    with train.Trainer(options, shards.WriteShards(tmp_path)) as trainer:
        rows = list(train.learn(trainer, sampler, train.Task(options.config.vocab), steps=10))
    rewards = [row.reward for row in rows]
    assert len(rewards) == 11 and rewards[0] < 0.35  # a quarter by chance
    if learning_rate:
        assert rewards[-1] > 0.9, rewards
    else:
        assert max(rewards) < 0.35, rewards


def test_a_step_moves_the_share_of_weights_that_was_asked_for(tmp_path):
    options = train.Options(layout=model.Layout())
    with started(tmp_path, layout=options.layout) as trainer:
        train_once(trainer)
    before, after = (shards.read_shards(shards.step_directory(tmp_path, step), options.layout)[0]
                     for step in (0, 1))
    moved = sum((before[name] != after[name]).sum().item() for name in before)
    elements = sum(w.numel() for w in before.values())
    assert 0.8 * options.moved_share < moved / elements < 1.1 * options.moved_share


def test_the_same_seed_gives_the_same_weights(tmp_path):
    ends = []
    for k in range(2):
        options = dataclasses.replace(train.Options(), layout=model.Layout(tp=2))
        sampler = rollout.TorchRollout(options.config, options.layout, tmp_path / str(k), 3)
        with train.Trainer(options, shards.WriteShards(tmp_path / str(k))) as trainer:
            rows = list(train.learn(trainer, sampler, train.Task(options.config.vocab), steps=2))
        files = sorted((tmp_path / str(k) / "step0002").glob("*.safetensors"))
        ends.append(([row.reward for row in rows], [f.read_bytes() for f in files]))
    assert ends[0] == ends[1]


class FailsAtStep1:
    def __call__(self, step, shards, topology):
        if step == 1 and topology["coords"]["rank"] == 1:
            raise OSError("no place left")


def test_a_rank_that_fails_fails_the_step_and_ends_all(tmp_path):
    trainer = train.Trainer(train.Options(), FailsAtStep1())
    with pytest.raises(RuntimeError, match="(?s)rank 1: .*no place left"):
        train_once(trainer)
    assert not any(process.is_alive() for process in trainer.processes)


def test_a_rank_that_dies_is_named(tmp_path):
    trainer = started(tmp_path)
    trainer.processes[2].kill()
    with pytest.raises(RuntimeError, match="died: rank2"):
        train_once(trainer)
    assert not any(process.is_alive() for process in trainer.processes)
