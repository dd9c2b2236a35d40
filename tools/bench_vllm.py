#!/usr/bin/env python3
"""The pause of a 1 % delta of a 0.6 B model on a live vLLM engine (CPU, in process), as a ratio to vLLM's own full
reload of the same checkpoint in the same run; median of five. Prints the target as met or missed, and records all of
it in bench/vllm.md.

  tools/bench_vllm.py --work DIR      DIR wants about 10 GB, best on tmpfs

Run by `make bench-vllm` in build/vllm-venv. Linear layers keep their weights canonical for ours (docs/design/placement.md);
vLLM's own reload is measured in an engine as vLLM configures it, and in ours too.
"""

import argparse
import contextlib
import datetime
import gc
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEIGHTCAST = os.environ.get("WEIGHTCAST_BINARY", str(ROOT / "build/weightcast"))
RUNS = 5
LEARNING_RATE = 2e-7  # changes about 1 % of the elements in a step
TARGET = 0.2  # of vLLM's own full reload
ANON_TARGET = 64 << 20

os.environ.update({
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
})


def weightcast(*args):
    done = subprocess.run([WEIGHTCAST, *map(str, args), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def anonymous():
    """Bytes of this process that no file backs."""
    return int(re.search(r"RssAnon:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024


def make_versions(work):
    """The seed and RUNS + 1 versions, each a step on; only what engines need is left."""
    weightcast("bench", "generate", work / "v0", "--size", "large")
    where = ("--catalog", f"sqlite:{work}/c.db", "--store", f"file:{work}/bytes", "--run", "policy", "--seed", work / "v0",
             "--baseline", work / "base")
    densities = []
    for step in range(1, RUNS + 2):
        weightcast("bench", "generate", work / f"v{step}", "--from", work / f"v{step - 1}", "--learning-rate", LEARNING_RATE)
        densities.append(weightcast("publish", *where, work / f"v{step}")["density"])
        if step > 1:
            shutil.rmtree(work / f"v{step - 1}")
    shutil.rmtree(work / "base")
    return densities


@contextlib.contextmanager
def engine(work, **more):
    from vllm import LLM

    llm = LLM(str(work / "v0"), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=128, max_num_seqs=4,
              enforce_eager=True, distributed_executor_backend="uni", disable_log_stats=True, **more)
    yield llm
    del llm
    gc.collect()


def generate(llm):
    """Seconds of 32 tokens."""
    from vllm import SamplingParams

    begin = time.monotonic()
    llm.generate([{"prompt_token_ids": [5, 9, 33, 7]}],
                 SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, detokenize=False), use_tqdm=False)
    return time.monotonic() - begin


def reload(llm, work):
    begin = time.monotonic()
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(work / "v0")})
    return time.monotonic() - begin


def ask(llm, request):
    return llm.collective_rpc("weightcast", args=(request,))[0]


def update(llm, uid):
    """(seconds of prepare, seconds of the pause): the pause has everything between pause and resume."""
    begin = time.monotonic()
    ask(llm, {"op": "prepare", "version": uid})
    while (status := ask(llm, {"op": "status"}))["prepared"] != uid:
        assert status["state"] == "preparing", status
        time.sleep(0.005)
    prepared = time.monotonic()
    llm.start_weight_update()
    llm.update_weights({"update_info": {"version": uid}})
    llm.finish_weight_update(uid)
    proof = ask(llm, {"op": "prove", "scope": "touched"})
    end = time.monotonic()
    assert all(row[1] == "live" for row in proof["tensors"]), "a tensor is not written in place"
    return prepared - begin, end - prepared


def measure(work):
    import weightcast as package

    uids = {v["number"]: v["uid"] for v in package.versions(f"sqlite:{work}/c.db", "policy")}
    rows = []
    with engine(work) as plain:
        generate(plain)
        speed = min(generate(plain) for _ in range(3))
        packed = [reload(plain, work) for _ in range(RUNS + 1)][1:]
    with engine(work, weight_transfer_config={"backend": "weightcast"}) as llm:
        llm.init_weight_transfer_engine({"init_info": {
            "catalog": f"sqlite:{work}/c.db", "run": "policy", "image": str(work / "image"), "seed": str(work / "v0"),
            "keep_canonical": True, "durability": "process"}})
        update(llm, uids[1])
        generate(llm)
        canonical_speed = min(generate(llm) for _ in range(3))
        before = anonymous()
        for index in range(RUNS):
            prepare, pause = update(llm, uids[index + 2])
            rows.append((packed[index], prepare, pause, anonymous() - before))
        canonical = [reload(llm, work) for _ in range(3)]
    return rows, speed, canonical_speed, min(canonical)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/dev/shm"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.work, prefix="weightcast-bench-") as scratch:
        work = pathlib.Path(scratch)
        densities = make_versions(work)
        rows, speed, canonical_speed, canonical = measure(work)
    ratio = statistics.median(pause / full for full, _, pause, _ in rows)
    grown = max(anon for *_, anon in rows)
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.strip()
    targets = [(f"pause of a {100 * statistics.median(densities):.1f} % delta / vLLM's own full reload", f"{ratio:.3f}",
                f"<= {TARGET}", ratio <= TARGET),
               ("growth of anonymous memory", f"{grown / 2**20:.1f} MiB", "<= 64 MiB", grown <= ANON_TARGET)]
    lines = [
        "# The pause of a live engine", "",
        f"Written by `make bench-vllm`: commit {commit}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}. 0.75 B "
        "parameters in the shapes of a 0.6 B model, untied, bf16, vLLM 0.32 on a CPU, in process.", "",
        "| target | measured | wanted | |", "|---|---|---|---|",
        *[f"| {name} | {found} | {wanted} | {'met' if met else 'missed'} |" for name, found, wanted, met in targets], "",
        "| run | vLLM's reload, s | prepare (serving), s | pause, s | ratio |", "|---|---|---|---|---|",
        *[f"| {i + 1} | {full:.3f} | {prepare:.3f} | {pause:.3f} | {pause / full:.3f} |"
          for i, (full, prepare, pause, _) in enumerate(rows)], "",
        f"With canonical linear layers vLLM's own reload takes {canonical:.3f} s, for it packs nothing then. 32 tokens take "
        f"{canonical_speed:.3f} s with canonical linear layers and {speed:.3f} s with vLLM's packed ones."]
    (ROOT / "bench/vllm.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
