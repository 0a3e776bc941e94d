# SPDX-License-Identifier: Apache-2.0
"""What clients do besides chat completions, for `soak`: responses in all their forms, batches, cancellations, look-ups.

Each way in WAYS returns a text that depends only on the prompt, which is compared with the answer of an idle server, or
None if there is nothing to compare. It deletes what it made the server keep."""
import json
import random
import time

from checked_load import TOPICS

ENDED = ("completed", "failed", "expired", "cancelled", "incomplete")
WAIT_S = 600


class Refused(Exception):
    """The server is too busy, and said so."""


def prompts(draw, count):
    """Bodies of /v1/responses."""
    for _ in range(count):
        yield {"input": draw.choice(TOPICS) % (draw.randrange(90), draw.randrange(90)), "temperature": 0,
               "max_output_tokens": draw.randrange(16, 64)}


def ok(reply):
    if reply.status in (429, 503):
        raise Refused()
    if reply.status != 200:
        raise RuntimeError("status %d: %s" % (reply.status, reply.body[:300]))
    return reply


def text_of(response):
    return "".join(part["text"] for item in response["output"] for part in item.get("content") or [])


def ended(server, path):
    """The state of a response or batch once it has ended."""
    end = time.monotonic() + WAIT_S
    while True:
        state = ok(server.get(path, timeout=WAIT_S)).json()
        if state["status"] in ENDED:
            return state
        if time.monotonic() > end:
            raise RuntimeError("%s has not ended: %s" % (path, state))
        time.sleep(0.05)


def respond(server, body, draw):
    return text_of(ok(server.post("/v1/responses", {**body, "store": False}, timeout=WAIT_S)).json())


def respond_streamed(server, body, draw):
    reply = ok(server.post("/v1/responses", {**body, "store": False, "stream": True}, timeout=WAIT_S))
    events = [json.loads(line[6:]) for line in reply.body.decode().split("\n") if line.startswith("data: {")]
    if text_of(events[-1]["response"]) != "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta"):
        raise RuntimeError("the deltas are not the text of %s" % events[-1])
    return text_of(events[-1]["response"])


def respond_in_background(server, body, draw):
    path = "/v1/responses/" + ok(server.post("/v1/responses", {**body, "background": True}, timeout=WAIT_S)).json()["id"]
    try:
        if draw.random() < 0.4:
            time.sleep(draw.random() ** 3 / 4)
            ok(server.post(path + "/cancel", {}, timeout=WAIT_S))
        state = ended(server, path)
        return None if state["status"] == "cancelled" else text_of(state)
    finally:
        server.request("DELETE", path, timeout=WAIT_S)


def converse(server, body, draw):
    """A second turn after a stored first one."""
    first = ok(server.post("/v1/responses", body, timeout=WAIT_S)).json()
    try:
        ok(server.post("/v1/responses", {**body, "input": "Again.", "previous_response_id": first["id"], "store": False},
                       timeout=WAIT_S))
        return text_of(first)
    finally:
        server.request("DELETE", "/v1/responses/" + first["id"], timeout=WAIT_S)


def batch(server, body, draw):
    """A batch whose lines are all alike; now and then it is cancelled."""
    line = {"custom_id": "", "method": "POST", "url": "/v1/responses", "body": body}
    lines = "".join(json.dumps({**line, "custom_id": str(i)}) + "\n" for i in range(draw.randrange(1, 6)))
    form = ('--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: form-data; '
            'name="file"; filename="in.jsonl"\r\n\r\n%s\r\n--edge--\r\n' % lines)
    head = {"content-type": "multipart/form-data; boundary=edge"}
    files = [ok(server.request("POST", "/v1/files", form, headers=head, timeout=WAIT_S)).json()["id"]]
    try:
        path = "/v1/batches/" + ok(server.post("/v1/batches", {"input_file_id": files[0], "endpoint": "/v1/responses",
                                                               "completion_window": "24h"}, timeout=WAIT_S)).json()["id"]
        if draw.random() < 0.3:
            time.sleep(draw.random() ** 3 / 4)
            server.post(path + "/cancel", {}, timeout=WAIT_S)
        state = ended(server, path)
        files += [state[name] for name in ("output_file_id", "error_file_id") if state[name]]
        if state["status"] != "completed":
            return None
        text = ok(server.get("/v1/files/%s/content" % state["output_file_id"], timeout=WAIT_S)).body.decode()
        answers = {text_of(json.loads(a)["response"]["body"]) for a in text.splitlines()}
        if len(answers) != 1:
            raise RuntimeError("the lines of a batch are answered with %s" % answers)
        return answers.pop()
    finally:
        for file in files:
            server.request("DELETE", "/v1/files/" + file, timeout=WAIT_S)


def look_up(server, body, draw):
    for path in ("/metrics", "/health", "/v1/models", "/v1/batches", "/v1/files"):
        ok(server.get(path, timeout=WAIT_S))
    ids = ok(server.post("/tokenize", {"prompt": body["input"], "add_special_tokens": False}, timeout=WAIT_S)).json()["tokens"]
    said = ok(server.post("/detokenize", {"tokens": ids}, timeout=WAIT_S)).json()["prompt"]
    if said != body["input"]:
        raise RuntimeError("%r is detokenized as %r" % (body["input"], said))
    return None


WAYS = (respond, respond_streamed, respond_in_background, converse, batch, look_up)


def client(server, work, expected, totals, end, seed):
    draw = random.Random(seed)
    while time.monotonic() < end:
        i, way = draw.randrange(len(work)), draw.choice(WAYS)
        try:
            got = way(server, work[i], draw)
        except Refused:
            totals.add(requests=1, refused=1)
            continue
        except Exception as e:  # pylint: disable=broad-except  # whatever it is, the server's answer was not expected
            totals.wrong("%s %s: %r" % (way.__name__, work[i], e))
            continue
        totals.add(requests=1)
        if got == expected[i]:
            totals.add(compared=1)
        elif got is not None:
            totals.wrong("%s %s\n  alone  %r\n  loaded %r" % (way.__name__, work[i], expected[i], got))
