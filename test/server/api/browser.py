# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium through its debugging port: just enough of WebSocket to evaluate and to take a picture."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    def __init__(self, url, size=(1280, 900)):
        self.dir = tempfile.mkdtemp()
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server", "--hide-scrollbars", "--user-data-dir=" + self.dir,
             "--window-size=%d,%d" % size, "--remote-debugging-port=0", "--remote-allow-origins=*", url],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        port = None
        while port is None:
            line = self.process.stderr.readline().decode()
            if not line:
                raise RuntimeError("Chromium did not start")
            if "DevTools listening on" in line:
                port = int(line.split(":")[2].split("/")[0])
        end = time.time() + 20
        pages = []
        while not pages and time.time() < end:
            targets = json.load(urllib.request.urlopen("http://127.0.0.1:%d/json" % port))
            pages = [t for t in targets if t["type"] == "page" and t["url"].startswith("http")]
            time.sleep(0.05)
        host, path = pages[0]["webSocketDebuggerUrl"][5:].split("/", 1)
        self.socket = socket.create_connection(host.split(":"), timeout=30)
        self.socket.sendall(("GET /%s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n"
                             % (path, host, base64.b64encode(os.urandom(16)).decode())).encode())
        self.file = self.socket.makefile("rb")
        while self.file.readline() != b"\r\n":
            pass
        self.n, self.errors = 0, []
        self.call("Runtime.enable")
        self.call("Log.enable")

    def receive(self):
        head = self.file.read(2)
        n = head[1] & 127
        if n > 125:
            n = struct.unpack(">H" if n == 126 else ">Q", self.file.read(2 if n == 126 else 8))[0]
        return json.loads(self.file.read(n))

    def call(self, method, **params):
        self.n += 1
        data = json.dumps({"id": self.n, "method": method, "params": params}).encode()
        n = len(data)
        head = b"\x81" + (bytes([128 | n]) if n < 126 else struct.pack(">BH", 254, n) if n < 65536 else struct.pack(">BQ", 255, n))
        self.socket.sendall(head + b"\0\0\0\0" + data)  # a mask of zeros is valid
        while True:
            m = self.receive()
            entry = m.get("params", {}).get("entry", {})
            if m.get("method") == "Runtime.exceptionThrown" or entry.get("level") == "error":
                self.errors.append(m["params"])
            if m.get("id") == self.n:
                return m["result"]

    def eval(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, r
        return r["result"].get("value")

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.socket.close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)
