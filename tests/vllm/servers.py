"""What tests of vLLM servers share: the command that moves them, and a gate that it goes through."""

import contextlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "rl"))

from engine import Server  # noqa: E402, F401

BINARY = os.environ.get("WEIGHTCAST_BINARY", str(ROOT / "build" / "weightcast"))
BACKEND = ("--weight-transfer-config", '{"backend": "weightcast"}')
PROMPTS = [[5, 9, 33, 7], [100, 3]]
DATA, CONFLICT = 3, 4  # exit codes


def weightcast(*args, code=0):
    """The document that the command prints; `code`: how it must end; None: somehow, but not well."""
    done = subprocess.run([BINARY, *map(str, args), "--json"], capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode != 0 if code is None else done.returncode == code, (args, done.returncode, done.stderr)
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def words(urls, run, version, image, *more):
    """Of a round."""
    return ["round", "--engines", *urls, "--catalog", run.catalog, "--run", "policy", "--version", version,
            "--image", image, "--seed", run.checkpoint(0), *more]


def get(url, timeout=10):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return json.load(answer)


def post(url, body=None, timeout=60):
    request = urllib.request.Request(url, json.dumps(body or {}).encode(),
                                     {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read() or b"{}")


def ask(server, op, **request):
    """Answers of the server's workers."""
    return post(f"{server.url}/collective_rpc", {"method": "weightcast", "args": [{"op": op, **request}]})[
        "results"]


def tokens(server):
    return server.generate(PROMPTS, 16, 0)


def verified(server, run):
    """What `verify --engine` counts, when nothing is bad or unproven: {how: tensors}"""
    told = weightcast("verify", "--engine", server.url, "--catalog", run.catalog)
    assert told["verified"] and not told["tensors"]["unproven"] and not told["tensors_bad"]
    return told["tensors"]


class Gate:
    """Stands between a round and a server: `url` is the server's, but before a call of `route` gets
    through, `fault` runs, once, and the call is lost."""

    def __init__(self, server):
        gate = self
        self.server, self.route, self.fault = server, None, None

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if gate.is_at(self.path, body):
                    gate.route = None
                    gate.fault()
                    self.close_connection = True
                    return
                request = urllib.request.Request(
                    gate.server.url + self.path, body or None, method=self.command,
                    headers={"Content-Type": "application/json"})
                with contextlib.ExitStack() as open_:
                    try:
                        answer = open_.enter_context(urllib.request.urlopen(request, timeout=300))
                    except urllib.error.HTTPError as error:
                        answer = open_.enter_context(error)
                    except OSError:  # the server is gone, and so is whoever asks for it
                        self.close_connection = True
                        return
                    status, data = answer.status, answer.read()
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            do_GET = do_POST = pass_on

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def is_at(self, path, body):
        return self.route is not None and (path.startswith(self.route) or
                                           f'"op":"{self.route}"'.encode() in body)

    def at(self, route, fault):
        self.route, self.fault = route, fault

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()
