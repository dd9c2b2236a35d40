"""vLLM as the rollout: a server in its own processes, moved from version to version by rounds."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the routes of weight transfer
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1",
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """An unmodified vLLM that serves a checkpoint directory. Started when made, ended when closed."""

    def __init__(self, model, log, *options, ready_timeout=300):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = pathlib.Path(log)
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
                   "--served-model-name", "policy", "--host", "127.0.0.1", "--port", str(port),
                   "--dtype", "bfloat16", "--max-model-len", "64", "--max-num-seqs", "64",
                   "--enforce-eager", *options]
        environment = {**os.environ, **ENVIRONMENT}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # without .pyc files it starts in minutes
        with open(self.log, "w") as out:
            # A session of its own: its processes outlive each other, and are ended as one group.
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment,
                                            start_new_session=True)
        try:
            self._wait_ready(ready_timeout)
        except BaseException:
            self.close()
            raise

    def _wait_ready(self, timeout):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"vLLM ended with {self.process.returncode}: {self._tail()}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            time.sleep(0.5)
        raise TimeoutError(f"vLLM was not ready in {timeout} s: {self._tail()}")

    def _tail(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def generate(self, prompts, max_tokens, temperature):
        """Token ids of one response a prompt. Drawn with the server's own seed: one seed in the request
        would be every prompt's, and their responses one draw."""
        body = {"model": "policy", "prompt": prompts, "max_tokens": max_tokens, "temperature": temperature,
                "ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            choices = json.load(answer)["choices"]
        return [choice["token_ids"] for choice in sorted(choices, key=lambda c: c["index"])]

    def close(self):
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20 if sign == signal.SIGTERM else 5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class ServedRollout:
    """A server that follows a run: `update` is a round, with all of its proofs."""

    def __init__(self, server, weightcast, catalog, run, image, seed):
        self.server = server
        self.command = [weightcast, "round", "--json", "--engines", server.url, "--catalog", catalog,
                        "--run", run, "--image", str(image), "--seed", str(seed)]
        self.rounds = {}  # by step

    def update(self, step):
        command = [*self.command, "--version", str(step)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"round to version {step} ended with {done.returncode}: {done.stderr}")
        self.rounds[step] = json.loads(done.stdout)

    def generate(self, prompts, max_tokens, temperature):
        return self.server.generate(prompts, max_tokens, temperature)
