# SPDX-License-Identifier: Apache-2.0
"""Starts front_server (test/server/http/front_server.c) and speaks to it over raw sockets."""

import json
import os
import re
import signal
import socket
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.path.join(ROOT, os.environ.get("SLUICE_BUILD", "build/release"))
SLOW = "asan" in BUILD or "tsan" in BUILD  # sanitizers: times are not checked


class Front:
    """One front_server; keyword arguments are its options."""

    def __init__(self, listen=("127.0.0.1:0",), env=None, pass_fds=(), preexec=None, log=None, wait=True, **options):
        args = [os.path.join(BUILD, "test/server/http/front_server")]
        for l in listen:
            args += ["--listen", l]
        for name, value in options.items():
            args += ["--" + name, str(value)]
        if log is not None:
            args += ["--log_fd", "2"]
        self.process = subprocess.Popen(
            args, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **(env or {})}, pass_fds=pass_fds,
            preexec_fn=preexec,
        )
        self.addresses = []
        self.version = (0, 0, 0)
        while wait:
            line = self.process.stdout.readline().decode()
            if line.startswith("libmicrohttpd"):
                self.version = tuple(int(v) for v in re.findall(r"\d+", line)[:3])
                break
            if not line:
                raise RuntimeError("front_server did not start: %s" % self.process.wait())
            self.addresses.append(line.split(None, 1)[1].strip())

    def __enter__(self):
        return self

    def __exit__(self, *what):
        rc = self.stop()
        if what[0] is None:
            assert rc in (0, 1), "front_server ended with %d" % rc

    def stop(self, sig=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(8)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        self.process.stdout.close()
        return self.process.returncode

    def connect(self, i=0, timeout=10):
        a = self.addresses[i]
        if a.startswith("unix:"):
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(timeout)
            s.connect(a[5:])
            return s
        host, port = a.rsplit(":", 1)
        return socket.create_connection((host.strip("[]"), int(port)), timeout)

    def stats(self):
        with self.connect() as s:
            s.sendall(request("GET", "/stats"))
            return json.loads(Reader(s).response().body)

    def wait_for(self, seconds=10, **values):
        end = time.monotonic() + seconds
        while True:
            stats = self.stats()
            if all(stats.get(k) == v for k, v in values.items()):  # absent: the request was refused for now
                return stats
            if time.monotonic() > end:
                raise AssertionError("wanted %s, have %s" % (values, stats))
            time.sleep(0.02)

    def rss(self):
        with open("/proc/%d/statm" % self.process.pid) as f:
            return int(f.read().split()[1]) * 4096

    def n_fds(self):
        return len(os.listdir("/proc/%d/fd" % self.process.pid))

    def cpu(self):
        with open("/proc/%d/stat" % self.process.pid) as f:
            p = f.read().rsplit(")", 1)[1].split()
        return (int(p[11]) + int(p[12])) / os.sysconf("SC_CLK_TCK")


def request(method, target, body=None, headers=(), version="HTTP/1.1", host="x"):
    lines = ["%s %s %s" % (method, target, version)]
    if host:
        lines.append("Host: " + host)
    if body is not None:
        lines.append("Content-Length: %d" % len(body))
    lines += list(headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


class Reader:
    """Reads responses from a socket, strictly."""

    def __init__(self, sock, head_only=False):
        self.sock, self.data, self.head_only = sock, b"", head_only

    def fill(self):
        more = self.sock.recv(65536)
        self.data += more
        return bool(more)

    def until(self, mark):
        while mark not in self.data:
            if not self.fill():
                raise EOFError("closed after %r" % self.data[:200])
        head, self.data = self.data.split(mark, 1)
        return head

    def exactly(self, n):
        while len(self.data) < n:
            if not self.fill():
                raise EOFError("closed after %d of %d bytes" % (len(self.data), n))
        out, self.data = self.data[:n], self.data[n:]
        return out

    def head(self):
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        m = re.fullmatch(r"HTTP/1\.[01] (\d{3}) .*", lines[0])
        assert m, lines[0]
        headers = {}
        for l in lines[1:]:
            name, value = l.split(":", 1)
            headers[name.lower()] = value.strip()
        return int(m.group(1)), headers

    def chunk(self):
        size = int(self.until(b"\r\n"), 16)
        data = self.exactly(size)
        assert self.exactly(2) == b"\r\n"
        return data

    def response(self, head_only=False):
        status, headers = self.head()
        while status == 100:
            status, headers = self.head()
        if head_only or status == 204:
            return Response(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                c = self.chunk()
                if not c:
                    return Response(status, headers, body)
                body += c
        if "content-length" in headers:
            return Response(status, headers, self.exactly(int(headers["content-length"])))
        while self.fill():
            pass
        body, self.data = self.data, b""
        return Response(status, headers, body)

    def closed(self):
        """True once the other side has closed. self.data has what arrived before."""
        try:
            while self.fill():
                pass
        except ConnectionResetError:
            pass
        except (TimeoutError, socket.timeout):
            return False
        return True


def get(front, target, method="GET", body=None, headers=(), i=0):
    with front.connect(i) as s:
        s.sendall(request(method, target, body, headers))
        return Reader(s).response(head_only=method == "HEAD")


def events(body):
    out = []
    for part in body.decode().split("\n\n"):
        if part.startswith("data: "):
            out.append(part[6:])
    return out
