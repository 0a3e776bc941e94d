"""Behind nginx and HAProxy, with the configurations that ship: two replicas, one drained, one killed, under load."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest
from front import ROOT, SLOW, Front, Reader, events, request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy:
    """The shipped file with ports of our own; and HAProxy's check where front_server has it."""

    def __init__(self, name, ports):
        self.dir = tempfile.TemporaryDirectory()
        self.port = free_port()
        file = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}[name]
        with open(os.path.join(ROOT, "configs", file)) as f:
            text = f.read()
        for old, new in ((8000, self.port), (8001, ports[0]), (8002, ports[1])):
            text, n = re.subn(r"127\.0\.0\.1:%d" % old, "127.0.0.1:%d" % new, text)
            assert n == 1
        text = text.replace("/health/ready", "/health").replace("inter 1s", "inter 200ms")
        text = text.replace("maxconn 20000", "maxconn 2000")  # it wants two descriptors for each
        path = os.path.join(self.dir.name, file)
        if name == "nginx":
            text = "daemon off; master_process off; pid %s/pid; error_log stderr crit;\n" % self.dir.name + text
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
                text = text.replace("access_log off;", "access_log off; %s_temp_path %s/%s;" % (kind, self.dir.name, kind), 1)
            args = ["nginx", "-c", path, "-p", self.dir.name]
        else:
            args = ["haproxy", "-f", path, "-db", "-q"]
        with open(path, "w") as f:
            f.write(text)
        self.process = subprocess.Popen(args, stderr=None if os.environ.get("PROXY_VERBOSE") else subprocess.DEVNULL)
        end = time.monotonic() + 10
        while True:
            try:
                self.connect().close()
                break
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    self.close()
                    raise AssertionError("the proxy does not start")
                time.sleep(0.05)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), 10)

    def close(self):
        self.process.terminate()
        self.process.wait(5)
        self.dir.cleanup()


class Load:
    """Clients that post and stream for as long as the test runs. A stream whose head had come when it broke is kept
    apart: no proxy can mend that."""

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


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_drained_and_a_killed_replica_cost_no_request(name):
    if not shutil.which(name) and not os.path.exists("/usr/sbin/" + name):
        pytest.skip(name + " is not installed")
    os.environ["PATH"] += ":/usr/sbin"
    ports = [free_port(), free_port()]
    start = lambda i: Front(listen=["127.0.0.1:%d" % ports[i]], drain_delay_ms=600, drain_timeout_ms=5000)
    proxy = Proxy(name, ports)
    a, b = start(0), start(1)
    time.sleep(2.2)  # the proxy has found them absent: until it looks again
    load = Load(proxy)
    try:
        time.sleep(0.5)
        a.process.send_signal(signal.SIGTERM)
        assert a.process.wait(10) == 0
        a.process.stdout.close()
        time.sleep(0.3)
        assert not load.failures and load.cut == 0, (load.failures[:3], load.cut)
        drained = load.n_good
        a = start(0)
        time.sleep(2.5)  # until the proxy trusts it again
        assert a.stats()["handled"] > 0
        b.process.kill()
        b.process.wait()
        b.process.stdout.close()
        time.sleep(0.7)
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
def test_tokens_and_departures_pass_through_at_once(name):
    if not shutil.which(name) and not os.path.exists("/usr/sbin/" + name):
        pytest.skip(name + " is not installed")
    os.environ["PATH"] += ":/usr/sbin"
    with Front() as f:
        port = int(f.addresses[0].rsplit(":", 1)[1])
        proxy = Proxy(name, [port, free_port()])
        try:
            with proxy.connect() as s:
                s.sendall(request("POST", "/stream?n=1000000&rate=20", b"{}"))
                r = Reader(s)
                r.head()
                late = []
                while len(late) < 10:
                    for e in events(r.chunk()):
                        late.append((time.monotonic_ns() - json.loads(e)["t"]) / 1e6)
                assert SLOW or min(late) < 30, late  # HAProxy's default adds 200 to each
            f.wait_for(live=0, seconds=3)
            with proxy.connect() as s:  # nothing flows yet
                s.sendall(request("POST", "/stream?n=1&first_ms=60000", b"{}"))
                f.wait_for(live=1)
            f.wait_for(live=0, seconds=3)
        finally:
            proxy.close()
