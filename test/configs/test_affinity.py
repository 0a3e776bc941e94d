# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""Prefix affinity of the load balancers in configs/: the key of each request, and the hit rate of the prefix caches of four
real replicas."""

import collections
import concurrent.futures
import http.client
import json
import random
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from api import SLOW, Server
from balancer import Balancer
from nightly import NIGHTLY

BALANCERS = ["nginx", "haproxy"]


def need(name):
    if not shutil.which(name):
        pytest.skip(name + " is not installed")


# ---- the key of a request ------------------------------------------------------------------------


class Replica(ThreadingHTTPServer):
    """Answers with its own number and the length of the body."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        """HAProxy's checks end with a reset."""

    def __init__(self, number):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet: a second packet would wait for the acknowledgement of the first

            def log_message(self, *_):
                pass

            def answer(self):
                n = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                if self.server.dead:
                    self.close_connection = True
                    return
                data = b"%d %d" % (number, n)
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

        self.dead = False  # kept-alive connections then also end without an answer
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


def where(port, body, headers=()):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    text = body if isinstance(body, str) else json.dumps(body)
    try:
        c.request("POST", "/v1/chat/completions", text, {"Content-Type": "application/json", **dict(headers)})
        r = c.getresponse()
        number, n = r.read().split()
        assert r.status == 200 and int(n) == len(text.encode())
        return int(number)
    finally:
        c.close()


@pytest.fixture(scope="module", params=BALANCERS)
def routed(request):
    """The port of a load balancer with affinity in front of four replicas that answer with their number."""
    need(request.param)
    replicas = [Replica(i) for i in range(4)]
    with Balancer(request.param, [r.server_port for r in replicas], affinity=True) as b:
        yield b.port
    for r in replicas:
        r.shutdown()


SYSTEM = {"role": "system", "content": "You are of \"great\" help."}


def turns(i, n, system=True):
    """The body of conversation i's n-th turn."""
    messages = [SYSTEM] if system else []
    for t in range(n):
        messages.append({"role": "user", "content": "Conversation %d, turn %d: what \"is\" new?\n" % (i, t)})
        messages.append({"role": "assistant", "content": "Answer %d." % random.randrange(10**6)})
    return {"model": "m", "messages": messages[:-1], "temperature": random.random()}


def stays(port, bodies_of):
    """bodies_of(i): requests that belong together. All of them reach the same replica, and every replica gets some i."""
    used = collections.Counter()
    for i in range(100):  # with 24, in about one of two hundred runs some replica would get none
        requests = bodies_of(i)
        places = {where(port, *request) for request in (requests if i < 24 else requests[:1])}
        assert len(places) == 1, (i, places)
        used.update(places)
    assert len(used) == 4, used


def test_turns_of_a_conversation(routed):
    stays(routed, lambda i: [(turns(i, n, i % 2 == 0),) for n in (1, 2, 4)])


def test_a_session_header_wins(routed):
    stays(routed, lambda i: [(turns(random.randrange(99), n), {"X-Session-Id": "s%d" % i}) for n in (1, 2, 3)])


def test_a_prompt_cache_key_wins_over_messages(routed):
    stays(routed, lambda i: [({**turns(random.randrange(99), n), "prompt_cache_key": "key %d" % i},) for n in (1, 2, 3)])


def test_text_prompts(routed):
    start = "x" * 120
    stays(routed, lambda i: [({"prompt": "%8d %s%s" % (i, start, "y" * n)},) for n in (1, 500, 3000)])


def test_a_long_conversation(routed):
    """Of a body larger than HAProxy's buffer only the beginning counts."""
    def long(i, n):
        body = turns(i, 2)
        body["messages"][2]["content"] = "z" * n
        return (body,)
    stays(routed, lambda i: [long(i, 10), long(i, 30000), long(i, 200000)])


def test_requests_without_a_key_are_served(routed):
    for body in ("", "no json", "[]", "{", '{"messages": []}', '{"messages": [{"role": "system"}]}', '{"prompt": [1, 2]}',
                 '{"messages": [{"role": "user", "content": [{"type": "text", "text": "parts"}]}]}'):
        assert where(routed, body) in range(4)


@pytest.mark.parametrize("name", BALANCERS)
def test_only_a_lost_replicas_keys_move(name):
    need(name)
    replicas = [Replica(i) for i in range(4)]
    bodies = [turns(i, 1) for i in range(32)]
    with Balancer(name, [r.server_port for r in replicas], affinity=True) as b:
        before = [where(b.port, body) for body in bodies]
        lost = replicas[before[0]]
        lost.dead = True
        lost.shutdown()
        lost.server_close()
        after = [where(b.port, body) for body in bodies]  # all are answered, those of the lost replica by others
    for r in replicas:
        if r is not lost:
            r.shutdown()
    moved = [(x, y) for x, y in zip(before, after) if x != y]
    assert moved and all(x == before[0] for x, _ in moved) and before[0] not in after


# ---- hit rates --------------------------------------------------------------------------------

N_REPLICAS, N_CONVERSATIONS, N_TURNS = 4, 40 if NIGHTLY else 24, 5
N_BLOCKS = 12 * N_CONVERSATIONS  # blocks of 16 tokens; in the end all conversations together need about twice as many


def words(rng, n):
    return " ".join("".join(rng.choice("abcdefghilmnoprstu") for _ in range(4)) for _ in range(n))


def ask(port, messages):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": messages, "max_tokens": 8, "temperature": 0}),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        data = r.read()
        assert r.status == 200, data
        return json.loads(data)["choices"][0]["message"]["content"]
    finally:
        c.close()


def talk(port, seed):
    """Runs all conversations turn by turn, each turn in another order, eight requests at a time."""
    rng = random.Random(seed)
    conversations = [[{"role": "system", "content": "Be brief."}] for _ in range(N_CONVERSATIONS)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(N_TURNS):
            rng.shuffle(conversations)
            for c in conversations:
                c.append({"role": "user", "content": words(rng, 18)})
            for c, answer in zip(conversations, pool.map(lambda c: ask(port, c), conversations)):
                c.append({"role": "assistant", "content": answer})


def hit_rate(replicas, name, affinity, seed):
    def sums():
        return [sum(r.metric("vllm:prefix_cache_" + what) for r in replicas) for what in ("hits_total", "queries_total")]

    for r in replicas:
        assert r.post("/reset_prefix_cache", {}).status == 200
    before = sums()
    with Balancer(name, [r.port for r in replicas], affinity) as b:
        talk(b.port, seed)
    hits, queries = (a - b for a, b in zip(sums(), before))
    return hits / queries


@pytest.mark.skipif(SLOW, reason="a sanitizer does not change hit rates")
def test_affinity_makes_hits():
    for name in BALANCERS:
        need(name)
    replicas = []
    try:
        for _ in range(N_REPLICAS):
            replicas.append(Server(real=True, num_gpu_blocks_override=N_BLOCKS, max_model_len=2048, threads=1, wait=False))
        for r in replicas:
            while not r.is_ready():
                assert r.process.poll() is None, r.stderr()
        for seed, name in enumerate(BALANCERS):
            plain, sticky = (hit_rate(replicas, name, a, seed) for a in (False, True))
            print("%s: %.2f of the prompts' tokens found without affinity, %.2f with it: %.1f times" % (name, plain, sticky, sticky / plain))
            assert sticky >= 1.8 * plain
            assert sticky > 0.5
    finally:
        for r in replicas:
            r.stop()
