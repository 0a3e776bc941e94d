# SPDX-License-Identifier: Apache-2.0
"""A scripted agent, shared by tests: what the model answers at each turn, tools that record their calls, and a relay in front of
the server that tells it which turn a request belongs to."""

import http.client
import http.server
import json
import os
import threading

from api import scripted


def call(name, **arguments):
    return '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>' % (name, json.dumps(arguments, ensure_ascii=False))


# Two calls at once, a text with a call, a call with a number and a string with special characters, and an answer.
STEPS = [
    "<think>\nI look around first.\n</think>\n\n" + call("list_files", folder="src") + "\n" + call("read_file", path="README.md"),
    "<think>\nThe program is short.\n</think>\n\nI read the program.\n" + call("read_file", path='src/a "b".c\n'),
    call("count", text="caf\u00e9 \U0001F600 \\ end", times=3),
    "<think>\nNow I know.\n</think>\n\nThe program prints 42.",
]
CALLS = [("list_files", {"folder": "src"}), ("read_file", {"path": "README.md"}), ("read_file", {"path": 'src/a "b".c\n'}),
         ("count", {"text": "caf\u00e9 \U0001F600 \\ end", "times": 3})]
ANSWER = "The program prints 42."


class Tools:
    """The agent's tools, and a record of their calls."""

    def __init__(self):
        self.calls = []
        self.lock = threading.Lock()

    def note(self, name, **arguments):
        with self.lock:
            self.calls.append((name, arguments))
        return "result of " + name

    def happened(self):
        """The calls in order; the two of the first turn may run at the same time."""
        return sorted(self.calls[:2]) + self.calls[2:] == CALLS


def turn_of(body):
    """The number of assistant messages in a request of any of the three APIs."""
    spoken, before = 0, None
    items = body.get("messages") or (body["input"] if isinstance(body.get("input"), list) else [])
    for item in items:
        by = "assistant" if item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning") else "other"
        spoken += by == "assistant" and before != "assistant"
        before = by
    return spoken


class Relay:
    """Forwards requests with the number of the turn as seed. `requests` has all that it forwarded."""

    def __init__(self, port, first=None):
        relay = self
        self.requests, self.failures = [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                self.pass_on("GET")

            def do_POST(self):
                self.pass_on("POST")

            def pass_on(self, method):
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                if raw:
                    body = json.loads(raw)
                    body["seed"] = first(body) if first else turn_of(body)
                    relay.requests.append((self.path, body))
                    raw = json.dumps(body).encode()
                c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                keep = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length", "connection", "accept-encoding")}
                c.request(method, self.path, raw, keep)
                r = c.getresponse()
                self.send_response(r.status)
                for k, v in r.getheaders():
                    if k.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(k, v)
                self.send_header("connection", "close")
                self.end_headers()
                answer = b""
                while part := r.read1(65536):
                    answer += part
                    self.wfile.write(part)
                    self.wfile.flush()
                if r.status >= 400:
                    relay.failures.append((self.path, r.status, answer[:500]))
                self.close_connection = True
                c.close()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.server.shutdown()
        self.server.server_close()


def scripted_agent():
    return scripted(STEPS, reasoning_parser="think", served_model_name="demo")


def forget_script(server):
    os.unlink(server.script_path)
