"""Two replicas behind HAProxy and behind nginx, under load: one is drained, then one is killed. Nothing fails but the
streams whose head the killed replica had already sent."""

import concurrent.futures
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest
from api import Server

HAPROXY = """
global
    maxconn 4000
defaults
    mode http
    option abortonclose
    option http-no-delay
    option http-buffer-request
    option redispatch 1
    retries 3
    retry-on all-retryable-errors
    timeout connect 2s
    timeout client 60s
    timeout server 60s
frontend front
    bind 127.0.0.1:{port}
    default_backend replicas
backend replicas
    balance leastconn
    option httpchk GET /health/ready
    default-server check inter 200ms fall 1 rise 1
    server a 127.0.0.1:{a}
    server b 127.0.0.1:{b}
"""

NGINX = """
daemon off;
pid {dir}/nginx.pid;
error_log {dir}/error.log;
events {{ worker_connections 1000; }}
http {{
    access_log off;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
    upstream replicas {{
        least_conn;
        server 127.0.0.1:{a} max_fails=1 fail_timeout=1s;
        server 127.0.0.1:{b} max_fails=1 fail_timeout=1s;
        keepalive 32;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_connect_timeout 2s;
            proxy_next_upstream error timeout http_503 non_idempotent;
            proxy_next_upstream_tries 3;
        }}
    }}
}}
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Balancer:
    def __init__(self, kind, a, b):
        self.dir = tempfile.mkdtemp()
        self.port = free_port()
        path = os.path.join(self.dir, "conf")
        with open(path, "w") as f:
            f.write((HAPROXY if kind == "haproxy" else NGINX).format(port=self.port, a=a, b=b, dir=self.dir))
        os.chmod(self.dir, 0o777)
        args = ["haproxy", "-f", path] if kind == "haproxy" else ["nginx", "-c", path, "-p", self.dir]
        self.process = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=open(os.path.join(self.dir, "stderr"), "w"))

    def stop(self):
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self.dir, ignore_errors=True)


class Load:
    """Clients that send one request after the other, half of them streams."""

    def __init__(self, port, n):
        self.port, self.running, self.lock, self.results = port, True, threading.Lock(), []
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(n)]
        for t in self.threads:
            t.start()

    def one(self, stream):
        """(outcome, whether the answer's head had come)"""
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
    """nginx counts its fail_timeout in whole seconds, so that a replica which is back is left alone for up to two."""
    end = time.time() + 10
    while server.get("/load").json()["server_load"] == 0:
        assert time.time() < end, "the balancer sends nothing to the replica that came back"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_one_drained_one_killed(kind):
    if not shutil.which(kind):
        pytest.skip(kind + " is not installed")
    env = {"FAKE_STEP_US": "10000"}
    servers = [Server(env=env, drain_delay="1") for _ in range(2)]
    a, b = servers
    balancer = Balancer(kind, a.port, b.port)
    try:
        end = time.time() + 10
        while time.time() < end:
            try:
                socket.create_connection(("127.0.0.1", balancer.port)).close()
                break
            except OSError:
                time.sleep(0.05)
        time.sleep(0.5)
        load = Load(balancer.port, 12)
        time.sleep(1.5)
        assert all(s.get("/load").json()["server_load"] > 0 for s in servers)
        a.process.send_signal(signal.SIGTERM)  # drained: announced, then gone, and nobody notices
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
        results = load.stop()[len(drained):]
    finally:
        balancer.stop()
        for s in servers:
            s.process.kill()
    failed = [r for r in results if r[1] != "ok"]
    assert all(stream and head and outcome == "cut" for stream, outcome, head in failed), failed
    assert len(failed) <= max(in_flight, 12)
    assert len(results) > 20
