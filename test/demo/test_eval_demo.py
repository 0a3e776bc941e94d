# SPDX-License-Identifier: Apache-2.0
"""scripts/eval_demo with a server that knows all answers and gives some wrong ones on purpose."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "train_demo"))

import constraint  # noqa: E402
import corpus  # noqa: E402
import judge  # noqa: E402

N = 4


def right_message(case):
    """The right answer in the API's format."""
    if case["check"] == "calls":
        calls = [
            {
                "id": f"c{i}",
                "type": "function",
                "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])},
            }
            for i, c in enumerate(case["answer"])
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    if case["check"] == "story":
        return {"role": "assistant", "content": f"A {' met a '.join(case['answer'])}. The end."}
    return {"role": "assistant", "content": case["answer"]}


class Crowded(ThreadingHTTPServer):
    request_queue_size = 64  # with a backlog of 5 a busy machine resets some of 16 simultaneous connections


class Knowing(BaseHTTPRequestHandler):
    """mode: 'right', 'wrong sums', 'raw calls', 'broken' (status 500 for lookups), 'cut'
    (finish_reason length) or 'loose' (answers that violate the constraint of their request)."""

    protocol_version = "HTTP/1.1"
    mode = "right"
    answers = {}

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply(200 if self.path == "/v1/models" else 404, {"data": [{"id": "demo"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        case = self.answers[key_of(body["messages"])]
        assert (
            body["model"] == "demo"
            and body["temperature"] == 0
            and body["max_tokens"] == case["max_tokens"]
        )
        wanted = constraint.members_of(case) if self.mode == "loose" else {}
        assert body.get("tools") == wanted.get("tools", case["tools"])
        assert all(body[name] == value for name, value in wanted.items())
        for message in body["messages"]:
            for call in message.get("tool_calls", []):
                assert isinstance(call["function"]["arguments"], str)
        message, finish = right_message(case), "stop"
        if self.mode == "wrong sums" and case["task"] == "arithmetic":
            message["content"] += "0"
        if self.mode == "raw calls" and message.get("tool_calls"):
            calls = message.pop("tool_calls")
            message["content"] = "\n".join(
                '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
                % (c["function"]["name"], c["function"]["arguments"])
                for c in calls
            )
        if self.mode == "broken" and case["task"] == "lookup":
            return self.reply(500, {"error": {"message": "no"}})
        if self.mode == "loose" and case["task"] == "json":
            message["content"] = json.dumps({**json.loads(case["answer"]), "more": 1})
        if self.mode == "loose" and case["task"] == "tool call":
            message["tool_calls"][0]["function"]["arguments"] = "{}"
        if self.mode == "loose" and case["task"] == "lookup":
            message["content"] += "."
        if self.mode == "cut":
            finish = "length"
        self.reply(
            200,
            {
                "choices": [{"message": message, "finish_reason": finish}],
                "usage": {"completion_tokens": 3},
            },
        )


def key_of(messages):
    return "|".join(m["role"] + ":" + (m["content"] or "") for m in messages)


@pytest.fixture(scope="module")
def server():
    Knowing.answers = {
        key_of(c["messages"]): c for task in corpus.TASKS for c in corpus.cases(task, N)
    }
    server = Crowded(("127.0.0.1", 0), Knowing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def evaluate(server, mode, *flags):
    Knowing.mode = mode
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    return subprocess.run(
        [os.path.join(ROOT, "scripts", "eval_demo"), "--base-url", url, "--cases", str(N), *flags],
        capture_output=True,
        text=True,
        timeout=60,
    )


def rows(done):
    return json.loads(done.stdout)["tasks"]


def test_right_answers_reach_every_floor(server):
    done = evaluate(server, "right", "--floor", "1.0", "--json")
    assert done.returncode == 0, done.stderr
    assert set(rows(done)) == set(corpus.TASKS)
    assert all(row["accuracy"] == 1.0 and row["cases"] == N for row in rows(done).values())


def test_wrong_answers_fall_below_the_floor_of_their_task(server):
    done = evaluate(server, "wrong sums", "--floor", "0.9", "--json")
    assert done.returncode == 1
    assert rows(done)["arithmetic"]["accuracy"] == 0 and rows(done)["lookup"]["accuracy"] == 1
    assert evaluate(server, "wrong sums", "--floor", "lookup=0.9").returncode == 0


def test_calls_left_in_the_text_count(server):
    done = evaluate(server, "raw calls", "--tasks", "tool call", "--floor", "1.0")
    assert done.returncode == 0, done.stdout


def test_answers_cut_short_are_wrong(server):
    assert evaluate(server, "cut", "--tasks", "copy,story", "--floor", "0.1").returncode == 1


def test_answers_that_break_their_constraint_are_counted(server):
    formed = ["--tasks", "json,tool call,lookup,copy"]
    done = evaluate(server, "loose", *formed, "--constrain", "--json")
    assert done.returncode == 1, done.stderr
    assert {t: r["invalid"] for t, r in rows(done).items()} == {"json": N, "tool call": N, "lookup": N, "copy": 0}
    assert evaluate(server, "right", *formed).returncode == 0


def test_failed_requests_are_reported(server):
    done = evaluate(server, "broken")
    assert done.returncode == 2 and "500" in done.stderr and "4 requests failed" in done.stderr


def test_saved_answers_are_compared(server, tmp_path):
    saved = str(tmp_path / "answers.json")
    assert evaluate(server, "right", "--save", saved).returncode == 0
    same = evaluate(server, "right", "--compare", saved, "--json")
    assert same.returncode == 0 and all(row["differ"] == 0 for row in rows(same).values())
    changed = rows(evaluate(server, "wrong sums", "--compare", saved, "--json"))
    assert changed["arithmetic"]["differ"] == N and changed["copy"]["differ"] == 0


@pytest.mark.parametrize(
    "flags", [["--cases", "0"], ["--tasks", "nothing"], ["--floor", "high"], ["--extra", "{"]]
)
def test_bad_arguments_are_refused(server, flags):
    assert evaluate(server, "right", *flags).returncode != 0


def test_training_never_sees_held_out_sums():
    import turns

    rng = corpus.shard_rng(0)
    for _ in range(2000):
        assert not turns.is_held_out(*turns.draw(rng, False, turns.sum_or_difference, lambda v: v))
    assert all(
        turns.is_held_out(*turns.draw(rng, True, turns.sum_or_difference, lambda v: v))
        for _ in range(100)
    )


def test_judge_refuses_near_misses():
    call = {"check": "calls", "answer": [{"name": "f", "arguments": {"a": 1}}]}
    assert judge.is_right(call, "", [("f", '{"a":1}')])
    assert not judge.is_right(call, "", [("f", '{"a":2}')])
    assert not judge.is_right(call, "", [("f", "{")])
    assert not judge.is_right(call, "f")
    text = {"check": "exact", "answer": "12"}
    assert (
        judge.is_right(text, " 12\n")
        and not judge.is_right(text, "120")
        and not judge.is_right(text, None)
    )
    assert not judge.is_right(text, "12", [("f", "{}")])
    story = {"check": "story", "answer": ["fox", "lamp"]}
    assert judge.is_right(story, "The fox took the lamp. The end.") and not judge.is_right(
        story, "The fox. The end."
    )
