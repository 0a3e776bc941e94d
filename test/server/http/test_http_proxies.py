# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""Behind nginx and HAProxy, with the configurations that ship: two replicas, one drained, one killed, under load."""

import json
import signal
import threading
import time

import pytest
from balancer import Balancer, find, free_port
from front import SLOW, Front, Reader, events, request


class Load:
    """Clients that post and stream for as long as the test runs. A stream that broke after its head had arrived is counted
    separately, because no proxy can repeat its request."""

    def __init__(self, proxy, n=6):
        self.proxy, self.running = proxy, True
        self.n_good, self.cut, self.failures = 0, 0, []
        self.threads = [threading.Thread(target=self.work, args=(k,)) for k in range(n)]
        [t.start() for t in self.threads]

    def work(self, k):
        while self.running:
            for stream in (False, True):
                head = False
                try:
                    with self.proxy.connect() as s:
                        r = Reader(s)
                        if stream:
                            s.sendall(request("POST", "/stream?n=10&rate=100", b"{}"))
                            status, headers = r.head()
                            head = status == 200
                            assert status == 200, status
                            body = b""
                            while True:
                                c = r.chunk()
                                if not c:
                                    break
                                body += c
                            assert len(events(body)) == 11, body[-200:]
                        else:
                            s.sendall(request("POST", "/upper?ms=5", b"abc" * 1000))
                            got = r.response()
                            assert got.status == 200 and got.body == b"ABC" * 1000, (got.status, got.body[:200])
                    self.n_good += 1
                except (OSError, EOFError, AssertionError) as e:
                    if head:
                        self.cut += 1
                    else:
                        self.failures.append(repr(e))

    def stop(self):
        self.running = False
        [t.join() for t in self.threads]


def eventually(check, what, seconds=30):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def wait_for_both(proxy, *replicas):
    """Waits until each replica has served some requests through the proxy. The proxy tries a replica that was away
    again after a second or two; nginx uses it only if that trial succeeds."""
    def all_serve():
        try:
            with proxy.connect() as s:
                s.sendall(request("POST", "/upper?ms=1", b"abc"))
                Reader(s).response()
        except (OSError, EOFError):
            pass
        return all(r.stats()["handled"] > 5 for r in replicas)
    eventually(all_serve, "the proxy does not use all replicas")


def wait_for_work(load, n):
    eventually(lambda: load.n_good >= n, "the load does not move")


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_drained_and_a_killed_replica_cost_no_request(name):
    find(name)
    ports = [free_port(), free_port()]
    start = lambda i: Front(listen=["127.0.0.1:%d" % ports[i]], drain_delay_ms=1500, drain_timeout_ms=5000)
    a, b = start(0), start(1)
    proxy = Balancer(name, ports, ready="/health")
    wait_for_both(proxy, a, b)
    load = Load(proxy)
    try:
        wait_for_work(load, 6)
        a.process.send_signal(signal.SIGTERM)
        assert a.process.wait(10) == 0
        a.process.stdout.close()
        time.sleep(0.3)
        assert not load.failures and load.cut == 0, (load.failures[:3], load.cut)
        drained = load.n_good
        a = start(0)
        wait_for_both(proxy, a)  # the proxy uses it again
        b.process.kill()
        b.process.wait()
        b.process.stdout.close()
        time.sleep(0.7)
        wait_for_work(load, drained + 12)
        load.stop()
        assert not load.failures, load.failures[:3]
        assert drained > 20 and load.n_good > drained and load.cut <= 6
        print("%s: %d good, %d streams cut with the killed replica" % (name, load.n_good, load.cut))
    finally:
        load.stop()
        proxy.close()
        a.stop()
        if b.process.poll() is None:
            b.stop()


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_tokens_and_disconnects_pass_through_immediately(name):
    find(name)
    with Front() as f:
        port = int(f.addresses[0].rsplit(":", 1)[1])
        proxy = Balancer(name, [port, free_port()], ready="/health")
        try:
            with proxy.connect() as s:
                s.sendall(request("POST", "/stream?n=1000000&rate=20", b"{}"))
                r = Reader(s)
                r.head()
                late = []
                while len(late) < 10:
                    for e in events(r.chunk()):
                        late.append((time.monotonic_ns() - json.loads(e)["t"]) / 1e6)
                assert SLOW or min(late) < 30, late  # HAProxy's default adds 200 ms to each
            f.wait_for(live=0, seconds=3)
            with proxy.connect() as s:  # nothing has been sent yet
                s.sendall(request("POST", "/stream?n=1&first_ms=60000", b"{}"))
                f.wait_for(live=1)
            f.wait_for(live=0, seconds=3)
        finally:
            proxy.close()
