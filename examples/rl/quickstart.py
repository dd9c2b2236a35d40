#!/usr/bin/env python3
"""A short RL run from end to end: four trainer processes, a vLLM server, a version and a round a step.

  quickstart.py [--steps 10] [--full-every 5] [--keep DIR]

prints the reward of every step beside what its version cost, then the proof: greedy tokens of the
server equal those of a fresh one on the exported checkpoint, and its live weights are the version's.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import engine
import model
import shards
import train
import versions

RUN = "policy"
PROOF_TOKENS = 16


def weightcast(*args):
    command = [os.environ.get("WEIGHTCAST_BINARY", "weightcast"), *map(str, args), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def write_seed(options, out):
    """The checkpoint that the run begins from, as a Hugging Face directory."""
    whole = model.whole_weights(options.config, options.seed)
    write = shards.WriteShards(out)
    for rank in range(options.layout.world):
        held = model.cut(whole, options.config, options.layout, rank)
        write(0, {f"vp0/{name}": value.bfloat16() for name, value in held.items()},
              train.topology(options, rank))
    weightcast("convert", "--shards", shards.step_directory(out, 0), "--out", out / "seed")
    return out / "seed"


class Table:
    COLUMNS = ("step", "reward", "kind", "density", "wire", "stage", "publish", "prepare", "pause")

    def __init__(self):
        print("  ".join(f"{name:>9}" for name in self.COLUMNS))

    def row(self, values):
        print("  ".join(f"{value:>9}" for value in values), flush=True)


def ranks_of(metrics, step):
    """What each rank measured of a step."""
    rows = []
    for path in metrics.glob("rank*.jsonl"):
        rows += [row for row in map(json.loads, path.read_text().splitlines()) if row["step"] == step]
    return rows


def cells(row, published, ranks, rounds):
    step = row.step
    version, round_ = published[step], rounds[step]["engines"][0]["seconds"]
    seconds = {name: max(rank[f"weightcast/{name}_seconds"] for rank in ranks) for name in ("stage", "publish")}
    return (step, f"{row.reward:.3f}", version["kind"], f"{100 * version['density']:.2f} %",
            f"{version['wire_bytes'] / 1000:.1f} kB", f"{1000 * seconds['stage']:.1f} ms",
            f"{1000 * seconds['publish']:.0f} ms", f"{1000 * round_['prepare']:.0f} ms",
            f"{1000 * round_['pause']:.0f} ms")


def run(out, steps, full_every):
    """Gives (rewards, rewards of the control)."""
    torch.set_num_threads(1)  # the tensors are tiny, and ranks and engine want the cores
    options = train.Options()
    catalog, store = f"sqlite:{out}/catalog.db", f"file:{out}/bytes"
    where = ("--catalog", catalog, "--run", RUN)
    seed = write_seed(options, out)
    weightcast("publish", *where, "--store", store, "--seed", seed)
    task = train.Task(options.config.vocab, options.seed)
    metrics = out / "metrics"
    metrics.mkdir()
    publish = versions.PublishVersions(catalog, store, RUN, seed, out / "baseline", f"job-{time.time_ns()}",
                                       full_every, str(metrics))
    binary = os.environ.get("WEIGHTCAST_BINARY", "weightcast")

    print("starting vLLM ...", flush=True)
    begin = time.monotonic()
    with engine.Server(seed, out / "server.log", "--weight-transfer-config",
                       '{"backend": "weightcast"}') as server:
        print(f"serving after {time.monotonic() - begin:.0f} s\n")
        rollout = engine.ServedRollout(server, binary, catalog, RUN, out / "image", seed)
        control = []
        for step in range(steps + 1):
            prompts = task.prompts(step)
            answers = rollout.generate(prompts, task.response_tokens, options.temperature)
            control.append(statistics.mean(map(task.reward, prompts, answers)))
        rewards, table = [], Table()
        with train.Trainer(options, publish) as trainer:
            for row in train.learn(trainer, rollout, task, steps):
                rewards.append(row.reward)
                if row.loss is None:
                    table.row(("end", f"{row.reward:.3f}", *[""] * 7))
                    continue
                published = {v["number"]: v for v in weightcast("log", *where)["versions"]}
                table.row(cells(row, published, ranks_of(metrics, row.step), rollout.rounds))
        prove(out, server, task, where, seed)
    return rewards, control


def prove(out, server, task, where, seed):
    """The server computes with the last version: by its tokens and by its weights."""
    proof = weightcast("verify", "--engine", server.url, *where[:2])
    prompts = task.prompts(10_000)[:8]
    served = server.generate(prompts, PROOF_TOKENS, 0)
    server.close()  # the fresh one wants its memory
    exported = out / "exported"
    weightcast("pull", *where, "--seed", seed, exported)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(out / "hf_source" / name, exported)
    with engine.Server(exported, out / "fresh.log") as fresh:
        expected = fresh.generate(prompts, PROOF_TOKENS, 0)
    if served != expected:
        sys.exit(f"the updated engine says {served}, a fresh one on the exported checkpoint {expected}")
    counts = {how: proof["tensors"][how] for how in ("live", "repacked", "probed")}
    print(f"\nproof: greedy tokens equal a fresh engine's on the exported checkpoint "
          f"({len(prompts)} prompts, {PROOF_TOKENS} tokens each);\n"
          f"       the engine's weights are root {proof['root'][:16]}: "
          + ", ".join(f"{count} {how}" for how, count in counts.items()) + ", 0 unproven")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--full-every", type=int, default=5)
    parser.add_argument("--keep", type=pathlib.Path, help="where everything is left; default nowhere")
    args = parser.parse_args()
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        out = args.keep or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out.mkdir(parents=True, exist_ok=True)
        rewards, control = run(out.resolve(), args.steps, args.full_every)
    print(f"reward: {rewards[0]:.3f} -> {rewards[-1]:.3f}; control with frozen weights: "
          f"{control[0]:.3f} -> {control[-1]:.3f} (at most {max(control):.3f})")
    print(f"{args.steps} steps in {time.monotonic() - begin:.0f} s")
    if rewards[-1] < rewards[0] + 0.2 or max(control) > rewards[0] + 0.1:
        sys.exit("the reward did not rise as it must, or the control's did")


if __name__ == "__main__":
    main()
