# SPDX-License-Identifier: Apache-2.0
"""Every allocation and every system call fails once, in turn: nothing crashes, hangs or leaks, every request ends, and no
answer is wrong. `make nightly` tries each of them (half an hour), `make test` a share. Failures that end the program by
design are left out: those of xmalloc and the like (engine/README.md, "Out of memory")."""
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import api
import pytest
from nightly import NIGHTLY
from preload import preload

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

BUILD = api.BUILD
FOLDER = os.path.join(ROOT, "test/golden/llama-3")
EXEMPT = ("xmalloc", "xcalloc", "xrealloc", "xstrdup", "xstrndup")

pytestmark = pytest.mark.skipif(api.SLOW, reason="a sanitizer does not share the process with another preloaded library")


@pytest.fixture(scope="module")
def library():
    return preload("torture/torture.c")["LD_PRELOAD"]


def exempt_places(program):
    """The functions that abort by design, and CUDA's runtime where it is linked into the program: it starts before main does."""
    out = subprocess.run(["nm", "-S", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [(int(r[0], 16), int(r[1], 16), r[3]) for r in (line.split() for line in out.splitlines())
            if len(r) == 4 and r[2] in "tT"]
    places = [(at, at + size) for at, size, name in rows if name in EXEMPT]
    runs, before = [], False
    for at, size, name in sorted(rows):
        is_runtime = bool(re.match("libcudart_static|cuda[A-Z]|__cuda", name))
        if is_runtime and before:
            runs[-1] = (runs[-1][0], at + size)
        elif is_runtime:
            runs.append((at, at + size))
        before = is_runtime
    return as_text(places + runs)


def as_text(places):
    assert len(places) < 256  # as many as torture.c supports
    return " ".join("%x-%x" % place for place in places)


def places_of(program, objects):
    """The functions of the program that are in these objects of its build tree."""
    def functions(path):
        out = subprocess.run(["nm", "-S", "--defined-only", path], stdout=subprocess.PIPE, text=True, check=True).stdout
        return [(r[3], int(r[1], 16), int(r[0], 16)) for r in map(str.split, out.splitlines()) if len(r) == 4 and r[2] in "tT"]

    wanted = {(name, size) for o in objects for name, size, _ in functions(o)}
    places = sorted((at, at + size) for name, size, at in functions(program) if (name, size) in wanted)
    merged = places[:1]
    for at, end in places[1:]:
        if at - merged[-1][1] < 16:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((at, end))
    return as_text(merged)


class Torture:
    """The environment in which call `number` of `kind` fails, and the report of the run."""

    def __init__(self, library, program, folder, libraries="", only=""):
        self.report_path = os.path.join(folder, "report")
        self.program = program
        self.env = {"LD_PRELOAD": library, "TORTURE_FROM": libraries, "TORTURE_EXEMPT": exempt_places(program),
                    "TORTURE_REPORT": self.report_path, **({"TORTURE_ONLY": only} if only else {})}

    def failing(self, kind, number):
        if os.path.exists(self.report_path):
            os.unlink(self.report_path)
        return {**self.env, "TORTURE_FAIL": "%s %d" % (kind, number)}

    def report(self):
        """The number of calls by kind, which one failed, and where leaked memory was allocated."""
        counts, failed, left = {}, "", []
        if not os.path.exists(self.report_path):
            return counts, "no report", left
        with open(self.report_path) as f:
            for line in f:
                word, rest = line.split(None, 1)
                if word == "left":
                    left.append(rest.strip())
                elif word == "failed":
                    failed = rest.strip()
                else:
                    counts[word] = int(rest)
        return counts, failed, left

    def place(self, address):
        out = subprocess.run(["addr2line", "-fpe", self.program, address], stdout=subprocess.PIPE, text=True).stdout
        return out.strip()


def numbers(count, share):
    """All numbers in a nightly run, otherwise `share` of them, evenly spread."""
    step = 1 if NIGHTLY else max(1, count // share)
    return range(1 + count % step, count + 1, step)


# ---- a command: loaders, tokenizer, jobs, ranks ----------------------------------------------------------------------------

def lines(path):
    with open(path) as f:
        answers = [json.loads(line) for line in f]
    return {a["custom_id"]: (a["response"] or {}).get("body", {}).get("choices", [{}])[0].get("text") for a in answers}


def run_batch(env, folder, model, flags):
    """The exit code (None: it hangs), the messages, the answers."""
    out = os.path.join(folder, "out.jsonl")
    if os.path.exists(out):
        os.unlink(out)
    command = [os.path.join(BUILD, "sluice"), "run-batch", model, "-i", os.path.join(folder, "in.jsonl"), "-o", out,
               "--device", "cpu", "--threads", "1", "--kv-cache-memory-bytes", "1MiB", *flags]
    try:
        p = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    except subprocess.TimeoutExpired:
        return None, "", {}
    return p.returncode, p.stderr.decode(errors="replace"), lines(out) if p.returncode == 0 else {}


def verdict_of(rc, said, got, expected):
    if rc is None:
        return "it hangs"
    if rc < 0:
        return "signal %d" % -rc
    if rc > 0 and not said.strip():
        return "it ended with %d without a message" % rc
    if rc == 0 and (set(got) != set(expected) or any(v not in (None, expected[k]) for k, v in got.items())):
        return "answers: %s" % got
    return ""


def what_is_wrong(t, kind, number, folder, model, flags, expected):
    rc, said, got = run_batch(t.failing(kind, number), folder, model, flags)
    verdict = verdict_of(rc, said, got, expected)
    _, failed, left = t.report() if rc is not None and rc >= 0 else ({}, "", [])
    if left:
        verdict += " left: %s" % {t.place(a) for a in left[:5]}
    name, _, at = failed.partition(" ")
    return verdict and "%s %d (%s in %s): %s: %s" % (kind, number, name, t.place(at) if at else "?", verdict, said[-300:])


def write_input(folder):
    with open(os.path.join(folder, "in.jsonl"), "w") as f:
        for i in range(6):
            body = {"prompt": "ab c%d" % i, "max_tokens": 5, "seed": i}
            f.write(json.dumps({"custom_id": "r%d" % i, "method": "POST", "url": "/v1/completions", "body": body}) + "\n")


@pytest.mark.parametrize("flags", [(), ("--tensor-parallel-size", "2")], ids=["one", "ranks"])
@pytest.mark.parametrize("kind", ["allocation", "system"])
def test_a_command_succeeds_or_ends_with_a_message(library, kind, flags):
    with tempfile.TemporaryDirectory() as folder:
        write_input(folder)
        t = Torture(library, os.path.join(BUILD, "sluice"), folder)
        rc, said, expected = run_batch(t.failing(kind, 0), folder, FOLDER, flags)
        counts, _, left = t.report()
        assert rc == 0 and len(expected) == 6 and not left, (said, [t.place(a) for a in left[:5]])
        found = (what_is_wrong(t, kind, n, folder, FOLDER, flags, expected) for n in numbers(counts[kind], 15))
        wrong = [w for w in found if w]
        assert not wrong, "%d\n%s" % (len(wrong), "\n".join(wrong[:20]))


# ---- a server: HTTP, jobs, the store ---------------------------------------------------------------------------------------

CHAT = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 8, "seed": 1}


def upload(server):
    lines = "".join(json.dumps({"custom_id": "r%d" % i, "method": "POST", "url": "/v1/chat/completions", "body": CHAT}) + "\n"
                    for i in range(3))
    parts = ('--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\nContent-Disposition: form-data; '
             'name="file"; filename="in.jsonl"\r\n\r\n%s\r\n--x--\r\n' % lines)
    return server.post("/v1/files", parts, headers={"content-type": "multipart/form-data; boundary=x"}, timeout=20)


def batch_of(server, file):
    b = server.post("/v1/batches", {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"},
                    timeout=20)
    end = time.monotonic() + 30  # temporary failures are retried after 5 s
    while b.status == 200 and b.json()["status"] not in ("completed", "failed", "cancelled"):
        assert time.monotonic() < end, "a batch does not end: %s" % b.body
        time.sleep(0.02)
        b = server.get("/v1/batches/" + b.json()["id"], timeout=20)
    return b


def session(server):
    """The answer to each of a few requests; None if it was cut off or refused."""
    def ask(name, send, take=lambda r: r.json()):
        try:
            r = send()
        except TimeoutError:
            raise AssertionError("'%s' is without its end" % name) from None
        except (OSError, http.client.HTTPException):
            return
        try:
            answers[name] = take(r) if r.status == 200 else None
        except (ValueError, KeyError, IndexError) as e:
            answers[name] = "%r: %r" % (e, r.body)
        assert r.status == 200 or r.json()["error"]["message"], (name, r.status, r.body)

    def text(r):
        return r.json()["choices"][0]["message"]["content"]

    def stream(r):
        data = [e for e in r.events() if e != "[DONE]"]
        chunks = [json.loads(d) for d in data]
        if any("error" in c for c in chunks) or "[DONE]" not in r.events():
            return None
        return "".join(d["delta"].get("content") or "" for c in chunks for d in c["choices"])

    answers, files = {}, []
    ask("models", lambda: server.get("/v1/models", timeout=20), lambda r: len(r.json()["data"]))
    ask("whole", lambda: server.post("/v1/chat/completions", CHAT, timeout=20), text)
    ask("stream", lambda: server.post("/v1/chat/completions", {**CHAT, "stream": True}, timeout=20), stream)
    ask("response", lambda: server.post("/v1/responses", {"input": "a b c", "max_output_tokens": 8, "seed": 1}, timeout=20),
        lambda r: r.json()["output"][0]["content"][0]["text"])
    ask("file", lambda: upload(server), lambda r: files.append(r.json()["id"]) or r.json()["bytes"])
    if files:
        ask("batch", lambda: batch_of(server, files[0]),
            lambda r: sum(r.json()["request_counts"].values()) if r.json()["status"] == "completed" else None)
        ask("deleted", lambda: server.request("DELETE", "/v1/files/" + files[0], timeout=20), lambda r: r.json()["deleted"])
    return answers


def descriptors(server):
    return len(os.listdir("/proc/%d/fd" % server.process.pid))


def settled(server, base):
    """The open descriptors, once connections that were cut off have been closed."""
    end = time.monotonic() + 5
    while descriptors(server) > base and time.monotonic() < end:
        time.sleep(0.02)
    return descriptors(server)


def attend(t, kind, number):
    """Runs a server from start to end. Returns its answers, its descriptors afterwards, its exit code and its messages."""
    with tempfile.TemporaryDirectory() as data:
        try:
            server = api.Server(env={**t.failing(kind, number), "FAKE_STEP_US": "200"}, data_dir=data)
        except RuntimeError as e:
            return None, 0, "not started", str(e)
        try:
            answers = session(server)
            n = settled(server, t.base) if t.base else descriptors(server)
            rc = server.stop()
        except (AssertionError, subprocess.TimeoutExpired) as e:
            return None, 0, str(e), server.stderr()
        finally:
            server.process.kill()
            server.process.wait()
        return answers, n, rc, server.stderr()


def what_is_wrong_with_a_server(t, kind, number, expected, most_left):
    answers, n, rc, said = attend(t, kind, number)
    _, failed, left = t.report()
    verdict = []
    if answers is None:
        good = rc == "not started" and "assertion" not in said and said.strip() and "before its end" not in said
        verdict += [] if good else [rc]
    else:
        verdict += ["'%s' is answered with %r" % (k, v) for k, v in answers.items() if v is not None and v != expected[k]]
        verdict += ["%d descriptors, not %d" % (n, t.base)] if n > t.base else []
        verdict += ["it ended with %s" % rc] if rc not in (0, 1) else []
        verdict += ["left: %s" % {t.place(a) for a in left[:5]}] if len(left) > most_left else []
    name, _, at = failed.partition(" ")
    return verdict and "%s %d (%s in %s): %s: %s" % (kind, number, name, t.place(at) if at else "?", "; ".join(verdict), said[-400:])


@pytest.mark.parametrize("kind,libraries", [("allocation", "libmicrohttpd"), ("allocation", "libsqlite3"),
                                            ("system", "libmicrohttpd libsqlite3")])
def test_a_server_answers_or_says_why_not(library, kind, libraries):
    with tempfile.TemporaryDirectory() as folder:
        t = Torture(library, os.path.join(BUILD, "test/server/api_server"), folder, libraries)
        t.base = 0
        expected, t.base, rc, said = attend(t, kind, 0)
        counts, _, left = t.report()
        assert rc == 0 and len(expected) == 7 and None not in expected.values(), (expected, rc, said)
        found = (what_is_wrong_with_a_server(t, kind, n, expected, len(left)) for n in numbers(counts[kind], 8))
        wrong = [w for w in found if w]
        assert not wrong, "%d\n%s" % (len(wrong), "\n".join(wrong[:20]))
