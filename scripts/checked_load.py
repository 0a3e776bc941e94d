# SPDX-License-Identifier: Apache-2.0
"""Requests with known answers, sent by many clients: shared by `soak` and `chaos`.

An answer depends only on its request, so the answer of an idle server is the reference for all later ones."""
import http.client
import json
import os
import random
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "test", "server"))
import api  # noqa: E402

TOPICS = ("What is %d + %d?", "Write the word tree %d times, then the number %d.", "Tell a story of %d cats and %d dogs.",
          "Sort these numbers: %d, %d, 7, 3.", "Copy this: alpha %d beta %d gamma.")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": SCHEMA}}


def bodies(draw, count):
    """Requests whose answer depends only on the request: greedy, or with a seed."""
    shared = " ".join("Rule %d: answer in few words." % i for i in range(40))
    for i in range(count):
        text = draw.choice(TOPICS) % (draw.randrange(90), draw.randrange(90))
        if draw.random() < 0.4:
            text = shared + " " + text
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": draw.randrange(1, 80), "seed": i,
                "temperature": draw.choice((0, 0, 0.7, 1.0))}
        kind = draw.random()
        if kind < 0.1:
            body["n"] = 2
        elif kind < 0.2:
            body.update(logprobs=True, top_logprobs=2)
        elif kind < 0.3:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
            body["max_tokens"] = 80
        elif kind < 0.35:
            body.update(tools=[TOOL], tool_choice="required", max_tokens=80)
        elif kind < 0.45:
            body.update(stop=["e"], presence_penalty=0.5)
        yield body


def essence(message, logprobs, finish_reason):
    """The part that must be equal in a whole answer and in a stream."""
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    return [message.get("content") or "", calls, finish_reason, [t["logprob"] for t in logprobs or []]]


class Totals:
    def __init__(self):
        self.lock = threading.Lock()
        self.count = dict.fromkeys(("requests", "compared", "streams", "left", "refused", "wrong"), 0)
        self.findings = []

    def add(self, **what):
        with self.lock:
            for key, n in what.items():
                self.count[key] += n

    def wrong(self, text):
        with self.lock:
            self.count["wrong"] += 1
            self.findings.append(text)


def whole(server, body):
    r = server.post("/v1/chat/completions", body, timeout=600)
    if r.status in (429, 503):
        return None
    if r.status != 200:
        raise RuntimeError("status %d: %s" % (r.status, r.body[:300]))
    return [essence(c["message"], (c.get("logprobs") or {}).get("content"), c["finish_reason"]) for c in r.json()["choices"]]


def streamed(server, body, leave_after, pause):
    """The concatenated stream; None if the request was rejected, or was abandoned after the given number of bytes."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        c.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), {"content-type": "application/json"})
        r = c.getresponse()
        if r.status in (429, 503):
            return None
        if r.status != 200:
            raise RuntimeError("status %d: %s" % (r.status, r.read()[:300]))
        data = b""
        while True:
            if leave_after is not None and len(data) >= leave_after:
                return None
            piece = r.read1(4096)
            if not piece:
                break
            data += piece
            if pause:
                time.sleep(pause)
        folded = api.fold(api.Reply(r, data).chunks())
        return [essence(c["message"], c["logprobs"], c["finish"]) for c in folded]
    finally:
        c.close()


def client(server, work, expected, totals, end, draw):
    while time.monotonic() < end:
        i = draw.randrange(len(work))
        way = draw.random()
        leave = draw.randrange(2000) if way > 0.85 else None
        try:
            if way < 0.5:
                got = whole(server, work[i])
            else:
                got = streamed(server, work[i], leave, 0.01 if draw.random() < 0.1 else 0)
                totals.add(streams=1)
        except (OSError, http.client.HTTPException, RuntimeError, ValueError, AssertionError, KeyError) as e:
            totals.wrong("request %d: %r" % (i, e))
            continue
        totals.add(requests=1)
        if got is None:
            totals.add(**{"left" if leave is not None else "refused": 1})
        elif got == expected[i]:
            totals.add(compared=1)
        else:
            shown = json.dumps({**work[i], "messages": work[i]["messages"][-1]["content"][-60:]})
            totals.wrong("request %d %s\n  alone  %s\n  loaded %s" % (i, shown, expected[i], got))
