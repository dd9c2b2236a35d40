#!/usr/bin/env python3
"""REINFORCE on a tiny Qwen3: one process a Megatron rank, rollouts from wherever they come.

  train.py --out DIR [--steps 10] [--frozen] [--seed 0]

prints the mean reward of every step and leaves each step's shards below DIR. A driver of its own
makes a Trainer with a publish hook, and hands a Rollout to `learn`.
"""

import argparse
import contextlib
import dataclasses
import datetime
import multiprocessing
import os
import pathlib
import random
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

import model
import rollout
import shards


@dataclasses.dataclass(frozen=True)
class Options:
    config: model.Config = model.Config()
    layout: model.Layout = model.Layout(tp=2, pp=2)
    seed: int = 0
    learning_rate: float = 0.02  # 0: frozen weights
    # The share of each weight's elements that the bf16 copy takes from the masters in a step. A large
    # model at its small learning rate moves a few percent, since most steps are too small for bf16;
    # a tiny one that is to learn within ten steps would move nearly all.
    moved_share: float = 0.03
    temperature: float = 1.0
    # A rank that answers nothing for so long has failed, and with it the run.
    answer_timeout_s: float = 120.0


class Adam:
    """torch.optim's own would import a compiler in every rank, for seconds."""

    def __init__(self, masters, learning_rate, betas=(0.9, 0.95), eps=1e-8):
        self.masters, self.learning_rate, self.betas, self.eps = masters, learning_rate, betas, eps
        self.means = {name: torch.zeros_like(m) for name, m in masters.items()}
        self.squares = {name: torch.zeros_like(m) for name, m in masters.items()}
        self.steps = 0

    def step(self, grads):
        self.steps += 1
        first, second = self.betas
        for name, grad in grads.items():
            mean = self.means[name].lerp_(grad, 1 - first) / (1 - first ** self.steps)
            square = self.squares[name].lerp_(grad.square(), 1 - second) / (1 - second ** self.steps)
            self.masters[name] -= self.learning_rate * mean / (square.sqrt() + self.eps)


class Rank:
    """What one process does: float32 masters, and the bf16 copy that computes and is published."""

    def __init__(self, options, rank, tp_group, publish):
        self.options, self.rank, self.publish = options, rank, publish
        config, layout = options.config, options.layout
        self.masters = model.cut(model.whole_weights(config, options.seed), config, layout, rank)
        self.stage = model.Stage(config, layout, rank, self.masters, tp_group)
        self.adam = Adam(self.masters, options.learning_rate)
        self.copy_masters(share=1.0)

    @torch.no_grad()
    def copy_masters(self, share):
        """Brings the copy to the masters, in those elements only that are furthest behind."""
        for name, master in self.masters.items():
            copy = self.stage.weights[name].view(-1)
            behind = (master.view(-1) - copy).abs()
            chosen = behind.topk(max(1, round(share * len(behind)))).indices
            copy[chosen] = master.view(-1)[chosen].bfloat16().float()

    def train(self, step, tokens, prompt_length, advantages):
        """One step of policy gradient, then publishes as `step`. Gives the last stage's loss."""
        tokens = torch.tensor(tokens)
        logits = self.stage.forward(tokens)
        loss = None
        if logits is not None:
            chosen = model.token_logprobs(logits, tokens, prompt_length, self.options.temperature)
            loss = -(torch.tensor(advantages).unsqueeze(1) * chosen).mean()
        self.stage.backward(loss)
        self.adam.step({name: w.grad for name, w in self.stage.weights.items()})
        for weight in self.stage.weights.values():
            weight.grad = None
        self.copy_masters(self.options.moved_share)
        self.publish_as(step)
        return None if loss is None else loss.item()

    def publish_as(self, step):
        published = {f"vp0/{name}": w.detach().bfloat16() for name, w in self.stage.weights.items()}
        self.publish(step, published, topology(self.options, self.rank))

    @torch.no_grad()
    def logits(self, tokens):
        logits = self.stage.forward(torch.tensor(tokens))
        return None if logits is None else logits.numpy()


def topology(options, rank):
    """Where a rank stands, for the publish hook: what docs/formats/shards.md asks for."""
    config, layout = options.config, options.layout
    coords = dict.fromkeys(("dp", "cp", "ep", "etp", "edp"), 0)
    coords |= {"rank": rank, "tp": layout.tp_rank(rank), "pp": layout.stage(rank)}
    # Without experts, the ranks of a stage are numbered once more as expert ranks: by tensor rank.
    coords["etp"] = coords["tp"]
    return {"world": layout.world, "coords": coords, "config": config.megatron(layout),
            "hf_config": config.hugging_face(),
            "layers": {f"vp0/decoder.layers.{local}": layer + 1
                       for local, layer in enumerate(layout.layers(config, rank))}}


def rank_main(options, rank, rendezvous, pipe, publish):
    """A rank's process: does what the pipe asks for, until it closes."""
    torch.set_num_threads(1)  # the ranks share the cores
    try:
        worker = Rank(options, rank, meet_ranks(options, rank, rendezvous), publish)
        while True:
            command, *arguments = pipe.recv()
            pipe.send(("done", getattr(worker, command)(*arguments)))
    except (EOFError, ConnectionError):
        pass  # the trainer has closed its end
    except Exception:
        with contextlib.suppress(ConnectionError):
            pipe.send(("failed", traceback.format_exc()))
    finally:
        getattr(publish, "close", lambda: None)()


def meet_ranks(options, rank, rendezvous):
    """Joins the other ranks; gives the group of this rank's stage."""
    if options.layout.world == 1:
        return None
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host name need not resolve
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank,
                            world_size=options.layout.world,
                            timeout=datetime.timedelta(seconds=options.answer_timeout_s))
    tp = options.layout.tp
    groups = [dist.new_group(range(first, first + tp)) for first in range(0, options.layout.world, tp)]
    return groups[options.layout.stage(rank)]


class Trainer:
    """Starts the ranks and has them publish step 0; ends them when closed.

    `publish(step, shards, topology)` is called in each rank's process with its shards, bf16 tensors
    by `vp0/NAME`; it must be picklable, and may have `close()`. It may keep the tensors."""

    def __init__(self, options, publish):
        self.options, self.step = options, 0
        self.scratch = tempfile.TemporaryDirectory()
        # One process imports torch, the ranks are forked from it.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed"])
        self.pipes, self.processes = [], []
        for rank in range(options.layout.world):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=rank_main, name=f"rank{rank}", daemon=True,
                args=(options, rank, f"{self.scratch.name}/rendezvous", theirs, publish))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.ask("publish_as", 0)

    def train(self, prompts, responses, advantages):
        """A step of policy gradient on one advantage a response; gives the loss. All prompts are of
        one length, and so are all responses."""
        self.step += 1
        tokens = [p + r for p, r in zip(prompts, responses, strict=True)]
        return self.ask("train", self.step, tokens, len(prompts[0]), advantages)

    def logits(self, tokens):
        """float32 [batch, length, vocab] of the current weights."""
        return torch.from_numpy(self.ask("logits", tokens))

    def ask(self, *command):
        """Has every rank do it; gives the last one's answer, which is of the last stage."""
        deadline = time.monotonic() + self.options.answer_timeout_s
        try:
            for pipe in self.pipes:
                pipe.send(command)
            return [self.answer(rank, deadline) for rank in range(len(self.pipes))][-1]
        except Exception as error:
            # A rank that waits for a dead one fails too, and may be heard first.
            dead = [process.name for process in self.processes if process.exitcode]
            self.close()
            if dead:
                raise RuntimeError(f"died: {', '.join(dead)}") from error
            raise

    def answer(self, rank, deadline):
        if not self.pipes[rank].poll(max(0, deadline - time.monotonic())):
            raise TimeoutError(f"rank {rank}: no answer in {self.options.answer_timeout_s} s")
        state, value = self.pipes[rank].recv()
        if state == "failed":
            raise RuntimeError(f"rank {rank}: {value}")
        return value

    def close(self):
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)
            if process.is_alive():  # it waits for a rank that is no more
                process.kill()
                process.join()
        self.scratch.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@dataclasses.dataclass(frozen=True)
class Task:
    """Random prompts; a response's reward is the share of its tokens that are in the target set."""
    vocab: int
    seed: int = 0
    prompts_per_step: int = 64
    prompt_tokens: int = 4
    response_tokens: int = 12

    def prompts(self, step):
        draw = random.Random(self.seed * 1_000_003 + step)
        return [[draw.randrange(self.vocab) for _ in range(self.prompt_tokens)]
                for _ in range(self.prompts_per_step)]

    def reward(self, prompt, response):
        return sum(token < self.vocab // 4 for token in response) / len(response)


@dataclasses.dataclass(frozen=True)
class Row:
    step: int
    reward: float  # mean, of responses from the weights before this step
    loss: float
    seconds: dict


def learn(trainer, rollout, task, steps):
    """Yields a Row for every step, after its weights were published and the rollout has them. The
    last row has no step behind it: it shows the reward that was reached."""
    temperature = trainer.options.temperature
    rollout.update(trainer.step)
    for last in range(steps + 1):
        begin = time.monotonic()
        prompts = task.prompts(last)
        responses = rollout.generate(prompts, task.response_tokens, temperature)
        rewards = torch.tensor([task.reward(*pair) for pair in zip(prompts, responses, strict=True)])
        generated = time.monotonic()
        loss = None
        if last < steps:
            # The batch's mean is the baseline; in units of the spread, the step size does not
            # depend on how far along the training is.
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            loss = trainer.train(prompts, responses, advantages.tolist())
        trained = time.monotonic()
        if last < steps:
            rollout.update(trainer.step)
        yield Row(trainer.step, rewards.mean().item(), loss,
                  {"rollout": generated - begin, "train": trained - generated,
                   "update": time.monotonic() - trained})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frozen", action="store_true", help="the control: nothing is learned")
    args = parser.parse_args()

    torch.set_num_threads(1)  # the tensors are tiny, and the ranks want the cores
    options = Options(seed=args.seed)
    if args.frozen:
        options = dataclasses.replace(options, learning_rate=0.0)
    task = Task(options.config.vocab, args.seed)
    sampler = rollout.TorchRollout(options.config, options.layout, args.out, args.seed)
    with Trainer(options, shards.WriteShards(args.out)) as trainer:
        for row in learn(trainer, sampler, task, args.steps):
            print(f"step {row.step:3}  reward {row.reward:.3f}  "
                  + "  ".join(f"{name} {s:.2f} s" for name, s in row.seconds.items()), flush=True)


if __name__ == "__main__":
    main()
