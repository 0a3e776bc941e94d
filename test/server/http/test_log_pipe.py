# SPDX-License-Identifier: Apache-2.0
"""Logs that nobody reads: the server continues, reports what it lost, and ends when it is told to."""
import fcntl
import http.client
import os
import signal
import socket
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SLUICE = os.path.join(ROOT, os.environ.get("SLUICE_BUILD", "build/release"), "sluice")
F_SETPIPE_SZ = 1031


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port, path, timeout=2):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        c.request("GET", path)
        r = c.getresponse()
        return r.status, r.read().decode()
    finally:
        c.close()


def wait_until_ready(port):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            if get(port, "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError("the server did not become ready")


def lost_lines(port):
    for line in get(port, "/metrics")[1].splitlines():
        if line.startswith("sluice_log_lost_lines_total"):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError("no such metric")


def test_an_unread_pipe_stops_nothing():
    out, into = os.pipe()
    fcntl.fcntl(into, F_SETPIPE_SZ, 4096)
    port = free_port()
    p = subprocess.Popen([SLUICE, "serve", os.path.join(ROOT, "models", "demo"), "--port", str(port)],
                         stdout=into, stderr=into, start_new_session=True)
    os.close(into)
    try:
        wait_until_ready(port)
        end = time.monotonic() + 60
        while lost_lines(port) == 0:
            assert time.monotonic() < end, "the log never overflowed"
            for _ in range(200):  # each requests a report of several lines
                p.send_signal(signal.SIGUSR1)
                time.sleep(0.001)
        started = time.monotonic()
        assert get(port, "/health/live")[0] == 200
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        c.request("POST", "/v1/completions", '{"prompt": "Once", "max_tokens": 4}', {"content-type": "application/json"})
        assert c.getresponse().status == 200
        c.close()
        assert time.monotonic() - started < 10
        p.send_signal(signal.SIGTERM)
        assert p.wait(15) == 0
    finally:
        p.kill()
        p.wait()
        os.close(out)
