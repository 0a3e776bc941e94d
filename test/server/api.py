# SPDX-License-Identifier: Apache-2.0
"""Starts `sluice serve` (or api_server: the same server on an engine with scripted answers) and speaks to it."""

import http.client
import json
import os
import signal
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("SLUICE_BUILD", "build/release"))
SLOW = "asan" in BUILD or "tsan" in BUILD  # sanitizers: times are not checked
DEMO = os.path.join(ROOT, "models/demo")
# The demo's draft model has its tokenizer and template, and a tenth of its weights: for tests that do not need right answers.
SMALL = os.path.join(ROOT, "models/demo-draft")


class Reply:
    def __init__(self, response, body):
        self.status, self.headers, self.body = response.status, dict((k.lower(), v) for k, v in response.getheaders()), body

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]

    def events(self):
        """The data of each event; the last one is [DONE]."""
        return [l[6:] for e in self.body.decode().split("\n\n") for l in e.split("\n") if l.startswith("data: ")]

    def chunks(self):
        events = self.events()
        assert events[-1] == "[DONE]"
        return [json.loads(e) for e in events[:-1]]


class Server:
    """Keyword arguments are options (max_model_len=2048); True stands for a flag without a value. `more` is appended
    unchanged. A real model is the small one, under the name "demo", unless `model` names another."""

    def __init__(self, real=False, model=None, env=None, wait=True, port=0, cwd=None, more=(), **options):
        args = [os.path.join(BUILD, "sluice"), "serve"] if real else [os.path.join(BUILD, "test/server/api_server")]
        if real and not model:
            options.setdefault("served_model_name", "demo")
        args += [model or (SMALL if real else DEMO), "--port", str(port)]
        if real:
            args += ["--kv-cache-memory-bytes", "64MiB", "--device", "cpu", "--dtype", "float32"]
        options.setdefault("drain_delay", "0")
        for name, value in options.items():
            args += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
        args += more
        self.log = tempfile.TemporaryFile()
        self.err = tempfile.TemporaryFile()
        self.process = subprocess.Popen(args, stdout=self.log, stderr=self.err, cwd=cwd, env={**os.environ, **(env or {})})
        self.port = None
        end = time.time() + (300 if SLOW else 60)
        while self.port is None or (wait and not self.is_ready()):
            if self.process.poll() is not None or time.time() > end:
                self.process.kill()
                raise RuntimeError("the server did not start: " + self.stderr())
            for line in self.stderr().splitlines():
                if "listening on" in line:
                    self.port = int(line.rsplit(":", 1)[1])
            time.sleep(0.02)

    def stderr(self):
        return os.pread(self.err.fileno(), 1 << 20, 0).decode()

    def log_lines(self):
        return [json.loads(l) for l in os.pread(self.log.fileno(), 1 << 24, 0).decode().splitlines()]

    def is_ready(self):
        try:
            return self.get("/health").status == 200
        except OSError:
            return False

    def request(self, method, path, body=None, headers=None, timeout=300 if SLOW else 60):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        try:
            c.request(method, path, body, {"content-type": "application/json", **(headers or {})})
            r = c.getresponse()
            return Reply(r, r.read())
        finally:
            c.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def chat(self, text="hello", **body):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body})

    def complete(self, prompt="hello", **body):
        return self.post("/v1/completions", {"prompt": prompt, **body})

    def metric(self, name, **labels):
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name + "{") and all('%s="%s"' % kv in line for kv in labels.items()):
                return float(line.rsplit(" ", 1)[1])
        return None

    def metric_plain(self, name):
        """The value of a metric without labels."""
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        return None

    def rss(self):
        with open("/proc/%d/statm" % self.process.pid) as f:
            return int(f.read().split()[1]) * 4096

    def __enter__(self):
        return self

    def __exit__(self, *what):
        rc = self.stop()
        if what[0] is None:
            assert rc == 0, "the server ended with %d: %s" % (rc, self.stderr()[-2000:])

    def stop(self, sig=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        return self.process.returncode


def scripted(texts, **options):
    """A server whose request with seed N is answered with texts[N]."""
    with Server(**({"model": options["model"]} if "model" in options else {})) as s:
        ids = [s.post("/tokenize", {"prompt": t, "add_special_tokens": False}).json()["tokens"] for t in texts]
    with tempfile.NamedTemporaryFile("w", suffix=".ids", delete=False) as f:
        f.write("".join(" ".join(map(str, i)) + "\n" for i in ids))
    env = {"FAKE_SCRIPTS": f.name, **options.pop("env", {})}
    server = Server(env=env, **options)
    server.script_path = f.name
    return server


def fold(chunks):
    """Accumulates a chat stream's chunks into the choices of the whole object, as the SDKs do."""
    choices = {}
    for chunk in chunks:
        for c in chunk["choices"]:
            o = choices.setdefault(c["index"], {"message": {"role": None, "content": None}, "finish": None, "logprobs": []})
            m, d = o["message"], c["delta"]
            for key in ("role", "content", "reasoning", "reasoning_content"):
                if d.get(key) is not None:
                    m[key] = (m.get(key) or "") + d[key]
            for call in d.get("tool_calls", []):
                calls = m.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    kind = call["type"]
                    assert call["id"] and kind in ("function", "custom") and call[kind]["name"]
                    calls.append({"id": call["id"], "type": kind, kind: dict(call[kind])})
                else:
                    assert call["index"] == len(calls) - 1 and "id" not in call
                    kind, key = ("custom", "input") if "custom" in call else ("function", "arguments")
                    calls[-1][kind][key] += call[kind][key]
            if c.get("logprobs"):
                o["logprobs"] += c["logprobs"]["content"]
            if c["finish_reason"]:
                assert o["finish"] is None
                o["finish"] = c["finish_reason"]
    return [choices[i] for i in sorted(choices)]
