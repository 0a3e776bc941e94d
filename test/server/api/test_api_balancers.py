# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""Two replicas behind HAProxy and behind nginx, under load: one is drained, then one is killed. Nothing fails but the
streams whose head the killed replica had already sent."""

import http.client
import json
import os
import re
import signal
import threading
import time

import pytest
from api import ROOT, Server
from balancer import Balancer, find


def admin_routes():
    with open(os.path.join(ROOT, "server/api/routes.c")) as f:
        return re.findall(r'\{"(\w+)", "(/[^"]+)", \w+, SCOPE_ADMIN', f.read())


class Load:
    """Clients that send one request after the other, half of them streams."""

    def __init__(self, port, n):
        self.port, self.running, self.lock, self.results = port, True, threading.Lock(), []
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(n)]
        for t in self.threads:
            t.start()

    def one(self, stream):
        """(outcome, whether the head of the answer had arrived)"""
        body = {"prompt": "x y z", "max_tokens": 20, "stream": stream}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        head = False
        try:
            c.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            r = c.getresponse()
            head = r.status == 200
            data = r.read()
            if r.status != 200:
                return "status %d" % r.status, False
            whole = data.endswith(b"data: [DONE]\n\n") if stream else json.loads(data)["choices"][0]["finish_reason"] == "length"
            return ("ok" if whole else "cut"), True
        except (OSError, http.client.HTTPException) as e:
            return "cut" if head else type(e).__name__, head
        finally:
            c.close()

    def client(self, i):
        while self.running:
            outcome = self.one(i % 2 == 0)
            with self.lock:
                self.results.append((i % 2 == 0, *outcome))

    def stop(self):
        self.running = False
        for t in self.threads:
            t.join()
        return self.results


def wait_until_used(server):
    """nginx counts fail_timeout in whole seconds, so a replica that has come back gets no requests for up to two seconds. Its
    first request is a trial: only if it succeeds does nginx use the replica again."""
    end = time.time() + 30
    while (server.metric("vllm:request_success_total", finished_reason="length") or 0) < 6:
        assert time.time() < end, "the balancer sends nothing to the replica that came back"
        time.sleep(0.05)


@pytest.mark.parametrize("affinity", [False, True])
@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_operators_routes_stay_on_the_machine(kind, affinity):
    """Clients use the load balancer's name; replicas without keys only accept loopback names."""
    find(kind)
    with Server() as s:
        balancer = Balancer(kind, [s.port], affinity=affinity)
        try:
            def ask(method, path, body=None):
                c = http.client.HTTPConnection("127.0.0.1", balancer.port, timeout=30)
                c.request(method, path, body, {"content-type": "application/json", "host": "llm.example"})
                r = c.getresponse()
                r.read()
                c.close()
                return r.status
            end = time.time() + 20
            while ask("GET", "/health") != 200:
                assert time.time() < end
                time.sleep(0.05)
            assert ask("POST", "/v1/completions", '{"prompt": "x", "max_tokens": 2}') == ask("GET", "/v1/models") == 200
            assert ("POST", "/drain") in admin_routes()
            for method, path in [*admin_routes(), ("POST", "/drain/"), ("POST", "/%64rain"), ("POST", "/reset_prefix_cache?x=1"),
                                 ("POST", "//drain")]:
                assert ask(method, path, "") in (403, 404), path
            assert s.get("/health/ready").status == 200 and s.get("/requests").status == 200
        finally:
            balancer.close()


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_one_drained_one_killed(kind):
    find(kind)
    env = {"FAKE_STEP_US": "10000"}
    servers = [Server(env=env, drain_delay="1") for _ in range(2)]
    a, b = servers
    balancer = Balancer(kind, [a.port, b.port])
    load = None
    try:
        load = Load(balancer.port, 12)
        for s in servers:
            wait_until_used(s)
        a.process.send_signal(signal.SIGTERM)  # a drain is announced before the server ends, so no client notices
        assert a.process.wait(20) == 0
        time.sleep(0.5)
        with load.lock:
            drained = list(load.results)
        assert {o for _, o, _ in drained} == {"ok"}, [r for r in drained if r[1] != "ok"][:5]
        replacement = Server(env=env, port=a.port)
        servers.append(replacement)
        wait_until_used(replacement)
        time.sleep(0.5)
        in_flight = b.get("/load").json()["server_load"]
        b.process.kill()
        time.sleep(2)
        end = time.time() + 30
        while len(load.results) < len(drained) + 21 and time.time() < end:
            time.sleep(0.1)
        results = load.stop()[len(drained):]
    finally:
        if load:
            load.running = False
        balancer.close()
        for s in servers:
            s.process.kill()
    failed = [r for r in results if r[1] != "ok"]
    assert all(stream and head and outcome == "cut" for stream, outcome, head in failed), failed
    assert len(failed) <= max(in_flight, 12)
    assert len(results) > 20
