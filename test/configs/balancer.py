# SPDX-License-Identifier: Apache-2.0
"""Starts the load balancers of configs/ on free ports."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time

import pytest
from api import ROOT

FILES = {"nginx": ("nginx.conf", "nginx-affinity.conf"), "haproxy": ("haproxy.cfg", "haproxy-affinity.cfg")}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def find(name):
    """The program's path; skips the test if it is not installed."""
    path = shutil.which(name) or "/usr/sbin/" + name
    if not os.path.exists(path):
        pytest.skip(name + " is not installed")
    return path


class Balancer:
    """Starts a configuration of configs/ in front of these ports, with one server per port, however many the file has.
    ready: the path that HAProxy checks if the servers have no /health/ready."""

    def __init__(self, name, ports, affinity=False, ready=None):
        program = find(name)
        self.dir = tempfile.TemporaryDirectory()
        self.port = free_port()
        with open(os.path.join(ROOT, "configs", FILES[name][affinity])) as f:
            text = f.read()
        lines = re.findall(r"^ *server .*127\.0\.0\.1:8001.*\n", text, re.M)
        assert len(lines) == 1
        text, n = re.subn(r"^ *server .*127\.0\.0\.1:800[2-9].*\n", "", text, flags=re.M)
        assert n >= 1
        servers = ""
        for i, port in enumerate(ports):
            servers += lines[0].replace(" a ", " s%d " % i).replace("127.0.0.1:8001", "127.0.0.1:%d" % port)
        text = text.replace(lines[0], servers)
        text, n = re.subn(r"127\.0\.0\.1:8000\b", "127.0.0.1:%d" % self.port, text)
        assert n == 1
        text = text.replace("inter 1s", "inter 200ms").replace("maxconn 20000", "maxconn 2000")
        text = text.replace("/health/ready", ready) if ready else text
        path = os.path.join(self.dir.name, "config")
        if name == "nginx":
            temporary = "".join(" %s_temp_path %s/%s;" % (k, self.dir.name, k) for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
            text = text.replace("access_log off;", "access_log off;" + temporary)
            text = "daemon off; master_process off; pid %s/pid; error_log stderr crit;\n" % self.dir.name + text
            args = [program, "-c", path, "-p", self.dir.name]
        else:
            args = [program, "-f", path, "-db", "-q"]
        with open(path, "w") as f:
            f.write(text)
        self.process = subprocess.Popen(args, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while True:
            try:
                self.connect().close()
                return
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    self.close()
                    raise AssertionError(name + " does not start") from None
                time.sleep(0.05)

    def connect(self, timeout=30):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.dir.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
