# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""`sluice serve` on the fake device (fake_cuda.h), which computes nothing and fails while the server runs: each stream ends with
an error, the health check fails, the process exits. Every answer is token 0."""
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from nightly import at_night

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SLUICE = os.path.join(ROOT, os.environ.get("SLUICE_BUILD", "build/release"), "test", "cuda", "fake", "sluice")

pytestmark = pytest.mark.skipif(not os.path.exists(SLUICE), reason="built without CUDA")


class Server:
    def __init__(self, folder, *args, env=None):
        self.lost = os.path.join(folder, "lost")
        self.log = open(os.path.join(folder, "log"), "w+")
        env = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(SLUICE), "FAKE_CUDA_LOST": self.lost, **(env or {})}
        self.p = subprocess.Popen([SLUICE, "serve", os.path.join(ROOT, "models", "demo"), "--device", "cuda", "--port", "0",
                                   *args], stderr=self.log, stdout=self.log, env=env)
        self.port = None

    def wait_ready(self):
        end = time.time() + 30
        while self.port is None or self.status("/health/ready") != 200:
            assert time.time() < end and self.p.poll() is None, self.text()
            told = re.search(r"listening on \S+:(\d+)\n", self.text())
            self.port = told and told[1]
            time.sleep(0.02)

    def text(self):
        with open(self.log.name) as f:
            return f.read()

    def says(self, text):
        """Waits for the text in the log, which a separate thread writes."""
        end = time.time() + 10
        while text not in self.text() and time.time() < end:
            time.sleep(0.02)
        return text in self.text()

    def open(self, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=30)

    def status(self, path, body=None):
        try:
            with self.open(path, body) as r:
                r.read()
                return r.status
        except urllib.error.HTTPError as e:
            return e.code
        except OSError:
            return None

    def lose(self):
        open(self.lost, "w").close()


@pytest.fixture
def start(tmp_path):
    servers = []

    def make(*args, follows=False, **kw):  # node 1 has no port; node 0 waits for it
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        servers.append(Server(str(folder), *args, **kw))
        if not follows:
            servers[-1].wait_ready()
        return servers[-1]

    yield make
    for s in servers:
        s.p.kill()
        s.p.wait()
        s.log.close()


BODY = {"prompt": "hello", "max_tokens": 3000, "ignore_eos": True, "stream": True}
SLOW = {"FAKE_CUDA_WAIT_US": "2000"}  # so that no answer is complete before the failure
RANKS = [(), ("--tensor-parallel-size", "2")]


@pytest.mark.parametrize("args", RANKS)
def test_it_serves_and_ends(start, args):
    s = start(*args, "--drain-delay", "0")
    with s.open("/v1/completions", {**BODY, "max_tokens": 50, "stream": False}) as r:
        answer = json.load(r)
    assert answer["usage"]["completion_tokens"] == 50 and answer["choices"][0]["finish_reason"] == "length"
    s.p.send_signal(signal.SIGTERM)
    assert s.p.wait(20) == 0, s.text()


@pytest.mark.parametrize("args", RANKS)
def test_a_lost_device_ends_every_stream_with_an_error(start, args):
    s = start(*args, env=SLOW)
    ends, begun = [], threading.Barrier(9)

    def read():
        with s.open("/v1/completions", BODY) as r:
            first = r.readline()
            begun.wait(20)
            ends.append(first + r.read())

    readers = [threading.Thread(target=read) for _ in range(8)]
    for t in readers:
        t.start()
    begun.wait(20)
    s.lose()
    for t in readers:
        t.join(20)
    assert len(ends) == 8 and all(b'"error"' in e and e.rstrip().endswith(b"data: [DONE]") for e in ends), ends
    assert s.status("/health") == 503 and s.status("/health/live") == 503
    assert s.status("/v1/completions", {**BODY, "stream": False}) == 503
    assert s.says("is lost")
    assert args or s.p.wait(30) != 0  # waits 10 s for probes to see it: tested in one case


@pytest.mark.parametrize("args", RANKS)
def test_memory_that_other_processes_take_stops_nothing(start, args, tmp_path):
    """Between the start and the first request. Nothing is captured yet, and a graph takes memory."""
    others = tmp_path / "others"
    s = start(*args, env={"FAKE_CUDA_OTHERS": str(others)})
    others.touch()
    for n in (1, 5, 2):  # steps of different shapes
        with s.open("/v1/completions", {**BODY, "max_tokens": 50, "stream": False, "n": n, "temperature": 1}) as r:
            answer = json.load(r)
        assert [c["finish_reason"] for c in answer["choices"]] == ["length"] * n
    assert s.says("has no memory left, since other processes use it") and s.status("/health") == 200


def wait_until_lost(s):
    end = time.time() + 10
    while s.status("/health/live") == 200:
        assert time.time() < end
        time.sleep(0.05)
    assert s.says("is lost") and s.p.poll() is None


@pytest.mark.parametrize("args", RANKS)
def test_a_device_that_is_lost_while_idle_is_noticed(start, args):
    s = start(*args)
    s.lose()
    wait_until_lost(s)


def test_a_device_of_another_node_that_is_lost_while_idle_is_noticed(start):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    args = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port, "--tensor-parallel-size", "2"]
    other = start(*args, "--node-rank", "1", follows=True)
    s = start(*args, "--node-rank", "0")
    assert other.says("node 1 of 2 is ready")  # which may be later than the first node's answers
    other.lose()
    wait_until_lost(s)
    assert other.p.wait(20) == 2 and "rank 1: its device is lost" in other.text()


STUCK = ("--stall-timeout", "1", "--dead-timeout", "1", "--drain-delay", "0")


HANGS = [("collective health abort", RANKS[1]), *at_night(("event", ()), ("event", RANKS[1]), ("collective", RANKS[1]))]


@pytest.mark.parametrize("calls,args", HANGS)
def test_a_call_that_never_returns_ends_every_stream_with_an_error(start, tmp_path, calls, args):
    """As server/README.md, "Health", promises: engine_dead for running and new requests, and exit code 2 after 10 s."""
    hangs = tmp_path / "hangs"
    s = start(*args, *STUCK, env={**SLOW, "FAKE_CUDA_HANGS": str(hangs)})
    with s.open("/v1/completions", BODY) as r:
        first = r.readline()
        (tmp_path / "new").write_text(calls)
        (tmp_path / "new").rename(hangs)
        rest = r.read()
    assert first.startswith(b"data: {") and b'"engine_dead"' in rest and rest.rstrip().endswith(b"data: [DONE]"), rest[-500:]
    assert s.status("/health") == 503 and s.status("/health/live") == 503
    with pytest.raises(urllib.error.HTTPError) as e:
        s.open("/v1/completions", {**BODY, "stream": False})
    assert e.value.code == 503 and json.load(e.value)["error"]["code"] == "engine_dead"
    assert s.p.wait(30) == 2 and s.says("does not return"), s.text()
