# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""Shutdown and systemd: SIGTERM drains, systemd is notified, sockets are inherited."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from front import BUILD, SLOW, Front, Reader, events, get, request


def term(front):
    front.process.send_signal(signal.SIGTERM)


def test_drain_lets_streams_finish_and_refuses_new_work():
    with Front(drain_delay_ms=400, drain_timeout_ms=5000) as f:
        idle, busy, late, kept = f.connect(), f.connect(), f.connect(), f.connect()
        busy.sendall(request("GET", "/stream?n=40&rate=20"))
        r = Reader(busy)
        assert r.head()[0] == 200
        kept.sendall(request("GET", "/hello"))
        rk = Reader(kept)
        assert rk.response().status == 200
        late.sendall(request("GET", "/late?ms=1200"))
        term(f)
        f.wait_for(state=1)
        assert get(f, "/health").status == 503  # the drain is announced, but everything is still served
        kept.sendall(request("GET", "/hello"))
        got = rk.response()
        assert got.status == 200 and got.headers["connection"] == "close" and rk.closed()
        end = time.monotonic() + 20
        with pytest.raises(OSError):
            while time.monotonic() < end:
                f.connect(timeout=1).close()
                time.sleep(0.02)
        assert Reader(idle).closed()
        got = Reader(late).response()
        assert got.status == 200 and got.headers["connection"] == "close"
        n = 0
        while True:
            c = r.chunk()
            if not c:
                break
            n += c.count(b"data: ")
        assert n == 41
        assert r.closed()
        assert f.process.wait(5) == 0


def test_a_request_on_an_old_connection_gets_503_while_closing():
    with Front(drain_delay_ms=0) as f:
        with f.connect() as busy, f.connect() as s:
            busy.sendall(request("GET", "/stream?n=1000&rate=500"))
            r = Reader(s)
            s.sendall(request("GET", "/late?ms=500") + request("GET", "/hello"))
            Reader(busy).head()
            f.wait_for(active=3)
            term(f)
            assert r.response().headers["connection"] == "close"
            assert r.closed()
        assert f.process.wait(5) == 0


def test_the_drain_deadline_ends_remaining_streams_with_an_error_event():
    with Front(drain_timeout_ms=400) as f:
        with f.connect() as s:
            s.sendall(request("GET", "/stream?n=100000&rate=50"))
            r = Reader(s)
            f.wait_for(live=1)
            term(f)
            e = events(r.response().body)
            assert json.loads(e[-2])["error"]["code"] == "server_draining" and e[-1] == "[DONE]"
        assert f.process.wait(5) == 1


def test_requests_that_do_not_end_are_cut_off():
    with Front(drain_timeout_ms=200) as f:
        with f.connect() as s:
            s.sendall(request("GET", "/hang"))
            f.wait_for(active=2)
            t = time.monotonic()
            term(f)
            assert f.process.wait(8) == 1
            assert SLOW or 2 < time.monotonic() - t < 6
            assert Reader(s).closed()


def test_a_second_signal_stops_at_once():
    with Front() as f:
        with f.connect() as s, f.connect() as t:
            s.sendall(request("GET", "/stream?n=100000&rate=50"))
            t.sendall(request("GET", "/late?ms=20000"))
            f.wait_for(active=3)
            term(f)
            time.sleep(0.2)
            assert f.process.poll() is None
            start = time.monotonic()
            term(f)
            assert f.process.wait(5) == 1
            assert SLOW or time.monotonic() - start < 3


def test_an_idle_server_ends_at_once():
    with Front() as f:
        with f.connect():
            start = time.monotonic()
            term(f)
            assert f.process.wait(5) == 0
            assert SLOW or time.monotonic() - start < 3


def test_the_delay_is_skipped_if_nobody_would_notice():
    """The drain delay is skipped if nobody has been connected for that long, since nobody would notice it. With an open
    connection it is not skipped."""
    def drain(f, delay_s, idle_s):
        time.sleep(idle_s)
        start = time.monotonic()
        term(f)
        assert f.process.wait(10) == 0
        return time.monotonic() - start >= delay_s

    with Front(drain_delay_ms=1000) as f:
        assert get(f, "/hello").status == 200
        assert not drain(f, 1, 1.3)
    with Front(drain_delay_ms=1000) as f:
        assert get(f, "/hello").status == 200
        assert drain(f, 1, 0)
    with Front(drain_delay_ms=1000) as f, f.connect():
        assert drain(f, 1, 1.3)


def test_ctrl_c_waits_for_requests_but_not_for_balancers():
    with Front(drain_delay_ms=20000) as f:
        with f.connect() as idle, f.connect() as busy:
            busy.sendall(request("GET", "/stream?n=40&rate=40"))
            r = Reader(busy)
            assert r.head()[0] == 200
            start = time.monotonic()
            f.process.send_signal(signal.SIGINT)
            assert Reader(idle).closed()
            assert SLOW or time.monotonic() - start < 1
            n = 0
            while chunk := r.chunk():
                n += chunk.count(b"data: ")
            assert n == 41
        assert f.process.wait(5) == 0


def test_systemd_gets_notifications_and_watchdog_pings():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "notify")
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        s.bind(path)
        s.settimeout(5)
        with Front(env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "400000"}) as f:
            assert s.recv(100) == b"READY=1"
            assert s.recv(100) == b"WATCHDOG=1"
            t = time.monotonic()
            assert s.recv(100) == b"WATCHDOG=1"
            assert time.monotonic() - t < 1 or SLOW
            term(f)
            while s.recv(100) != b"STOPPING=1":
                pass
            assert f.process.wait(8) == 0  # a second signal might arrive when nothing handles it any more
        s.close()


def test_systemd_sockets_are_inherited():
    """Through a helper that sets LISTEN_PID to itself and then becomes the server, as systemd does."""
    passed = socket.socket()
    passed.bind(("127.0.0.1", 0))
    passed.listen(5)
    waiting = socket.create_connection(passed.getsockname())
    waiting.settimeout(10)
    waiting.sendall(request("GET", "/hello"))  # no server runs yet: it waits in the backlog
    start = ("import os,sys; os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()));"
             "os.execv(sys.argv[2], sys.argv[2:])")
    binary = os.path.join(BUILD, "test/server/http/front_server")
    os.set_inheritable(passed.fileno(), True)
    p = subprocess.Popen([sys.executable, "-c", start, str(passed.fileno()), binary], close_fds=False,
                         stdout=subprocess.PIPE)
    try:
        assert Reader(waiting).response().status == 200
        assert p.stdout.readline().decode().strip() == "listening 127.0.0.1:%d" % passed.getsockname()[1]
    finally:
        p.terminate()
        assert p.wait(5) == 0
        p.stdout.close()
        waiting.close()
        passed.close()
