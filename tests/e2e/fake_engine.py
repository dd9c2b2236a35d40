"""An engine as `weightcast round` sees it: vLLM's routes and the plugin's method, in a thread, with weights
that are really digested (by the reference) and misbehaviour that is planted. docs/design/engine_protocol.md."""

import http.server
import json
import pathlib
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
import digest  # noqa: E402

WORKERS = 2
UNIT = 4  # bytes: the models of these tests are float32


class Planted(Exception):
    pass


class FakeEngine:
    """`versions`: {uid: (number, {name: bytes})}. `plants`: {step: what}, steps being the last parts of paths, and
    prepare, prove and status; what is one of
      "hang"           no answer until the engine is closed
      "die"            from now on nobody is there
      "restart"        fails, and comes back as another incarnation
      "fail"           HTTP 500, everything as before
      "fence"          HTTP 500, and fenced
      "slow"           takes 0.7 s
      anything else    is looked at where the step is made
    """

    def __init__(self, versions, serves="", plants=None, journal=None):
        self.versions, self.plants = versions, plants or {}
        self.journal = journal if journal is not None else []  # (engine, step), shared by engines
        self.serves, self.prepared, self.state, self.reason = serves, "", "serving" if serves else "new", ""
        self.image = serves
        self.weights = dict(versions[serves][1]) if serves else {}
        self.touched, self.label, self.init, self.scope = set(), "", None, ""
        self.paused, self.updating, self.incarnation = False, False, "a1"
        self.preparing = False
        self.on_resume = self.on_paused = lambda: None
        self.closed = threading.Event()
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                engine.answer(self, None)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                engine.answer(self, json.loads(body) if body else None)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        if not self.closed.is_set():
            self.closed.set()
            self.server.shutdown()
            self.server.server_close()

    # ---- HTTP

    def answer(self, handler, body):
        url = urllib.parse.urlparse(handler.path)
        step = url.path.strip("/")
        if step == "collective_rpc":
            assert body["method"] == "weightcast" and "timeout" not in body
            step = body["args"][0]["op"]
            body = body["args"][0]
        if step not in ("outcome", "abandon"):  # asked around every step
            self.journal.append((self, step))
        try:
            plant = self.plants.get(step)
            if plant == "slow":
                time.sleep(0.7)
            if plant in ("hang", "die", "restart", "fail", "fence"):
                self.misbehave(step, plant)
            reply = getattr(self, "on_" + step)(body, urllib.parse.parse_qs(url.query))
            status = 200
        except Planted as planted:
            reply, status = {"error": {"message": f"Worker failed with error '{planted}'"}}, 500
        if self.closed.is_set():
            return  # without a word
        data = json.dumps(reply).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def misbehave(self, step, plant):
        if plant == "hang":
            if step == "update_weights":
                self.state = "updating"
            self.closed.wait(30)
        elif plant == "die":
            threading.Thread(target=self.close).start()
            self.closed.wait(30)
        elif plant == "restart":
            self.incarnation, self.serves, self.state, self.paused = "b2", "", "new", False
        elif plant == "fence":
            self.state, self.reason = "fenced", "layer 3 is half written"
        if plant != "hang":
            raise Planted(f"weightcast resource-exhausted: planted in {step}")

    # ---- vLLM's routes

    def on_init_weight_transfer_engine(self, body, query):
        if self.init not in (None, body["init_info"]):
            raise Planted("weightcast conflict: it was told otherwise before")
        self.init = body["init_info"]
        return {"message": "ok"}

    def on_pause(self, body, query):
        assert query["clear_cache"] == ["true"]
        self.pause_mode = query["mode"][0]
        self.on_paused()
        self.paused = self.plants.get("pause") != "pretend"
        return {"status": "paused"}

    def on_resume(self, body, query):  # replaced by a test
        raise AssertionError

    def on_is_paused(self, body, query):
        return {"is_paused": self.paused}

    def on_reset_prefix_cache(self, body, query):
        assert self.paused
        return {"success": self.pause_mode != "keep" or query.get("reset_running_requests") == ["true"]}

    def on_start_weight_update(self, body, query):
        assert self.paused
        if self.updating:
            raise Planted("start_weight_update called while a weight update is already active")
        self.updating = True
        return {"message": "ok"}

    def on_update_weights(self, body, query):
        assert self.updating
        assert body["update_info"]["version"] == self.prepared
        new = self.versions[self.prepared][1]
        old = self.versions[self.serves][1] if self.serves and self.state != "fenced" else {}
        self.touched = {name for name in new if new[name] != old.get(name)}
        self.weights.update({name: new[name] for name in self.touched})
        self.serves, self.prepared, self.state, self.reason = self.prepared, "", "serving", ""
        return {"message": "ok"}

    def on_finish_weight_update(self, body, query):
        assert self.updating
        self.label, self.updating = body["weight_version"], False
        return {"message": "ok"}

    def on_update_weight_version(self, body, query):
        self.label = body["new_version"]
        return {"message": "ok"}

    # ---- the plugin's method

    def on_outcome(self, body, query):
        return {"results": [{"worker": w} for w in range(WORKERS)]}

    def on_abandon(self, body, query):
        self.updating = False
        return self.on_outcome(body, query)

    def on_status(self, body, query):
        return {"results": [
            {"worker": w, "workers": WORKERS, "incarnation": f"{self.incarnation}{w}", "state": self.state,
             "version": self.serves, "number": self.versions[self.serves][0] if self.serves else -1,
             "preparing": self.preparing, "prepared": self.prepared, "reason": self.reason, "done": 1, "total": 2}
            for w in reversed(range(WORKERS))]}

    def on_prepare(self, body, query):
        assert body["round"]
        self.preparing, self.prepared = True, ""
        if self.state != "fenced":
            self.state, self.reason = "preparing", ""
        if self.plants.get("prepare") != "never":
            threading.Thread(target=self.prepare, args=(body["version"],)).start()
        return self.on_status(body, query)

    def prepare(self, version):
        time.sleep(0.05)
        if self.plants.get("prepare") == "later":  # fails in the background
            failure = "weightcast data-loss: part 3 does not verify"
            if self.state == "fenced":
                self.reason += "; " + failure
            else:
                self.state, self.reason = "serving", failure
        else:
            self.prepared = self.image = version
            if self.state != "fenced":
                self.state = "serving" if version == self.serves else "prepared"
        self.preparing = False

    def on_prove(self, body, query):
        if self.image != self.serves:
            raise Planted(f"weightcast conflict: the image is at {self.image}, this engine at {self.serves}")
        self.scope = body["scope"]
        names = self.weights if body["scope"] == "all" else self.touched
        if self.plants.get("prove") == "forgets":
            names = sorted(names)[1:]
        return {"results": [
            {"worker": w, "version": self.serves, "tensors": [self.proof(name, w) for name in sorted(names)]}
            for w in range(WORKERS)]}

    def proof(self, name, worker):
        data = self.weights[name]
        if self.plants.get("prove") == "wrong" and name == "b":
            data = data[:-1] + bytes([data[-1] ^ 1])
        how = {"a": "live", "b": "repacked", "c": "probed"}.get(name, "live")
        if self.plants.get("prove") == "unproven" and name == "b" and worker == 1:
            how = "unproven"
        if name == "c":  # on every worker whole
            begin, end, span = 0, len(data), "ff"
        else:
            half = len(data) // UNIT // 2 * UNIT
            begin, end, span = ((0, half, "00"), (half, len(data), "01"))[worker]
        return [name, how, f"{digest.run(begin, data[begin:end]):032x}", (end - begin) // UNIT, span]
