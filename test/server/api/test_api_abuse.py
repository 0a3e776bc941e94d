# SPDX-License-Identifier: Apache-2.0
"""The same raw bytes as test_http_abuse, against the whole server: its own routes, keys, log and engine."""

import json
import os
import re
import signal
import socket
import time

import pytest
from api import SLOW, Server
from front import Reader
from test_http_abuse import FRAMING, raise_files

HIDDEN = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"  # counted by route in /metrics


@pytest.fixture(scope="module")
def server():
    with Server(header_timeout="1", body_timeout="1") as s:
        yield s


def connect(server, timeout=5):
    s = socket.create_connection(("127.0.0.1", server.port), timeout)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def served(server, route):
    text = server.get("/metrics").body.decode()
    return sum(int(n) for n in re.findall(r'^http_requests_total\{[^}]*handler="%s"\} (\d+)$' % re.escape(route), text, re.M))


def eventually(check, seconds=20):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("name", FRAMING)
def test_a_hidden_request_never_runs(server, name):
    data, _ = FRAMING[name]
    data = data.replace(b"/echo", b"/v1/completions").replace(b"/items/a", b"/v1/models/a")
    before = served(server, "/version")
    with connect(server) as s:
        try:
            s.sendall(data + HIDDEN)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert Reader(s).closed()
    assert served(server, "/version") == before


def test_pipelined_requests_are_answered_in_order(server):
    with connect(server) as s:
        body = json.dumps({"prompt": [5, 6], "max_tokens": 2, "return_token_ids": True}).encode()
        post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        s.sendall(post + HIDDEN + post + b"GARBAGE\x01 /\r\n\r\n" + HIDDEN)
        r = Reader(s)
        for want in ("choices", "version", "choices"):
            reply = r.response()
            assert reply.status == 200 and want in reply.json()
        assert r.closed()


@pytest.mark.parametrize("data", [b"POST /v1/chat/com", b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n",
                                  b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{\"mess"])
@pytest.mark.parametrize("then", ["wait", "leave"])
def test_incomplete_requests_leave_no_connection(server, data, then):
    with connect(server, timeout=20) as s:
        s.sendall(data)
        if then == "wait":
            r = Reader(s)
            assert r.closed() and r.data.startswith(b"HTTP/1.1 408")
    eventually(lambda: server.metric_plain("sluice_http_connections") == 1)


def test_thousands_of_streams_killed_at_once_free_the_engine():
    n = min(6000, raise_files() - 500) if not SLOW else 500
    with Server(max_connections=n + 50, max_num_queued_reqs=n + 50, env={"FAKE_STEP_US": "100000", "FAKE_QUEUE": "8000"}) as s:
        body = json.dumps({"prompt": "x", "stream": True, "max_tokens": 2000}).encode()
        data = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)) + body
        pid = os.fork()
        if pid == 0:  # so that one kill closes them all
            try:
                socks = []
                for _ in range(n):
                    c = connect(s)
                    c.sendall(data)
                    socks.append(c)
                time.sleep(120)
            finally:
                os._exit(0)
        try:
            eventually(lambda: s.get("/load").json()["server_load"] == n, 60)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        t = time.monotonic()
        eventually(lambda: s.get("/load").json()["server_load"] == 0, 60)
        eventually(lambda: s.metric_plain("sluice_http_connections") == 1)
        print("%d streams given back in %.2f s" % (n, time.monotonic() - t))
        assert s.metric("sluice_aborted_total", cause="disconnect") == n
        assert s.complete("x", max_tokens=1).status == 200


def test_excess_load_is_refused_and_costs_no_memory():
    """Accepted requests are served, and the others get 503 with Retry-After at once."""
    import concurrent.futures

    with Server(max_num_queued_reqs=16, env={"FAKE_STEP_US": "5000", "FAKE_LANES": "8"}) as s:
        def one(_):
            t = time.monotonic()
            r = s.complete("x y z", max_tokens=20)
            return r.status, r.headers.get("retry-after"), time.monotonic() - t
        with concurrent.futures.ThreadPoolExecutor(240) as pool:
            first = list(pool.map(one, range(2400)))
            before = s.rss()
            more = list(pool.map(one, range(2400)))
        assert {r[0] for r in first + more} == {200, 503}
        assert all(int(r[1]) > 0 for r in more if r[0] == 503)
        assert sum(r[0] == 200 for r in more) > 20
        assert SLOW or s.rss() - before < 8 << 20
        assert s.get("/health/ready").status == 200
