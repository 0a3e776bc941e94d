# SPDX-License-Identifier: Apache-2.0
"""`sluice chat` on a terminal (a pty) and through pipes: with a server, and with a model of its own."""

import glob
import http.server
import json
import os
import pty
import select
import signal
import subprocess
import tempfile
import threading
import time

import pytest
from api import BUILD, DEMO, Server

SLUICE = os.path.join(BUILD, "sluice")
ENV = {k: v for k, v in os.environ.items() if k not in ("OPENAI_API_KEY", "NO_COLOR")}


def pipe(*args, text="", env=None):
    p = subprocess.run([SLUICE, "chat", *map(str, args)], input=text.encode(), capture_output=True, timeout=100,
                       env={**ENV, **(env or {})})
    return p.returncode, p.stdout.decode(), p.stderr.decode()


class Terminal:
    """The chat on a pty. `screen` has everything that it has printed."""

    def __init__(self, *args, env=None):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([SLUICE, "chat", *map(str, args)], stdin=slave, stdout=slave, stderr=slave,
                                        start_new_session=True, env={**ENV, "TERM": "xterm", **(env or {})},
                                        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0))
        os.close(slave)
        self.screen, self.seen = "", 0

    def expect(self, text, seconds=60):
        """Waits for the text, after the one expected before, and returns the output up to it."""
        end = time.time() + seconds
        while text not in self.screen[self.seen:]:
            left = end - time.time()
            assert left > 0, "no %r in %r" % (text, self.screen[self.seen:])
            if select.select([self.master], [], [], min(left, 0.2))[0]:
                try:
                    self.screen += os.read(self.master, 65536).decode(errors="replace")
                except OSError:  # the other end is gone
                    assert text in self.screen[self.seen:], "ended without %r: %r" % (text, self.screen[self.seen:])
        at = self.screen.index(text, self.seen)
        part, self.seen = self.screen[self.seen:at], at + len(text)
        return part

    def type(self, text):
        os.write(self.master, text.encode())

    def wait(self):
        end = time.time() + 30
        while self.process.poll() is None:
            assert time.time() < end, "it does not end: " + self.screen[-500:]
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self.screen += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    pass
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *what):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


class Recorder:
    """A server that records requests and streams given answers: texts, or whole deltas."""

    def __init__(self, answers, pause=0.0):
        recorder, self.bodies, self.answers, self.gone = self, [], list(answers), threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(200, b'{"data":[{"id":"recorder"}]}')

            def do_POST(self):
                recorder.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                deltas = recorder.answers.pop(0)
                if isinstance(deltas, int):
                    return self.answer(deltas, b'{"error":{"message":"it was refused"}}')
                self.send_response(200)
                self.end_headers()
                try:
                    for d in deltas:
                        d = {"content": d} if isinstance(d, str) else d
                        self.wfile.write(b"data: " + json.dumps({"choices": [{"delta": d}]}, ensure_ascii=False).encode() + b"\n\n")
                        time.sleep(pause)
                    self.wfile.write(b"data: [DONE]\n\n")
                except OSError:
                    recorder.gone.set()

            def answer(self, status, body):
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d/v1" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def said(self, n=-1):
        return [(m["role"], m["content"]) for m in self.bodies[n]["messages"]]

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.server.shutdown()
        self.server.server_close()


# ---- pipes -------------------------------------------------------------------------------------


def test_lines_of_a_pipe_are_a_conversation_and_only_answers_come_out():
    with Recorder([["fo", "rty"], ["two ✓\n"]]) as r:
        rc, out, err = pipe(r.url, "--system", "be brief", "--temperature", "0", "--top-p=0.5", "--max-tokens", 7, "--seed", 3,
                            text="one ü\ntwo\\\nlines\n")
        assert (rc, out, err) == (0, "forty\ntwo ✓\n", "")
        first, second = r.bodies
        assert first["model"] == "recorder" and first["stream"] and first["temperature"] == 0 and first["top_p"] == 0.5
        assert first["max_tokens"] == 7 and first["seed"] == 3 and "top_k" not in first
        assert r.said() == [("system", "be brief"), ("user", "one ü"), ("assistant", "forty"), ("user", "two\nlines")]


def test_blocks_of_lines_commands_and_the_last_line_without_an_end():
    with Recorder([["a"], ["b"], ["c"], ["d"]]) as r:
        rc, out, err = pipe(r.url, text='"""one\n\n  two"""\n/retry\n/set temperature 1.5\n/system new\n/clear\nlast')
        assert rc == 0 and err == "" and out.splitlines()[:2] == ["a", "b"]
        assert [m for _, m in r.said(0)] == ["one\n\n  two"] and r.said(1) == r.said(0)
        assert r.said(2) == [("system", "new"), ("user", "last")] and r.bodies[2]["temperature"] == 1.5


def test_invalid_text_and_control_characters_are_handled():
    with Recorder([["\x1b]0;title\x07x"]]) as r:
        p = subprocess.run([SLUICE, "chat", r.url], input=b"a\xff\xfeb\n", capture_output=True, timeout=60, env=ENV)
        assert p.returncode == 0 and p.stdout == b"\x1b]0;title\x07x\n"  # a pipe gets the model's output unchanged
        assert r.said() == [("user", "a\ufffd\ufffdb")]
        r.answers = [["\x1b]0;title\x07x\u009bZ"]]
        with Terminal(r.url) as t:
            t.expect("> ")
            t.type("go\r")
            assert "\x1b]0" not in t.expect("]0;titlexZ")


def test_errors_are_printed_and_set_the_exit_status():
    with Recorder([400]) as r:
        rc, out, err = pipe(r.url, text="hello\n")
        assert (rc, out, err) == (1, "", "sluice chat: it was refused\n")
    with Server(api_key="secret") as s:
        url = "http://127.0.0.1:%d" % s.port
        rc, out, err = pipe(url, text="hello\n")
        assert rc == 2 and "requires an API key" in err and "--api-key" in err
        rc, out, err = pipe(url, "--api-key", "secret", "--max-tokens", 3, text="hello\n")
        assert rc == 0 and out and err == ""


@pytest.mark.parametrize("args, words", [
    (["https://x"], "TLS is not supported"), (["http://127.0.0.1:1"], "refused"), (["http://127.0.0.1:x"], "is not http://HOST:PORT"),
    (["http://127.0.0.1:1", "--max-model-len", "5"], "unknown option '--max-model-len'"), (["--temperature", "hot"], "'hot' is not a number"),
    (["--temperature"], "needs a value"), (["--seed", "1.5"], "whole number"), (["--seed", "1", "models/demo"], "must come first"),
    (["http://127.0.0.1:1", "--tools", "/nonexistent"], "/nonexistent"), (["/nonexistent/model"], "/nonexistent/model"),
    ([DEMO, "--max-model-length", "5"], "--max-model-len"),
])
def test_mistakes_get_a_clear_error(args, words):
    rc, out, err = pipe(*args, text="hello\n")
    assert rc in (1, 2) and out == "" and words in err and err.startswith("sluice chat: ") and err.count("\n") == 1, err


def test_a_folder_is_served_for_as_long_as_the_chat_lasts():
    with tempfile.TemporaryDirectory() as d:
        rc, out, err = pipe(DEMO, "--temperature", 0, "--device", "cpu", "--kv-cache-memory-bytes", "32MiB", env={"TMPDIR": d},
                            text="What is 12 + 30?\nWhat is 2 + 3?\n")
        assert (rc, out, err) == (0, "42\n5\n", "")
        assert os.listdir(d) == []


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        return [int(c) for c in f.read().split()]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_its_server_ends_however_the_chat_ends(sig):
    with tempfile.TemporaryDirectory() as d, Terminal(DEMO, "--device", "cpu", "--kv-cache-memory-bytes", "32MiB", env={"TMPDIR": d}) as t:
        t.expect("> ")
        child = children(t.process.pid)[0]
        t.process.send_signal(sig)
        assert t.wait() == (143 if sig == signal.SIGTERM else -9)
        end = time.time() + 20
        while os.path.exists("/proc/%d" % child) and open("/proc/%d/stat" % child).read().split()[2] != "Z":
            assert time.time() < end
            time.sleep(0.05)
        assert sig == signal.SIGKILL or glob.glob(d + "/*") == []


def test_a_server_that_dies_is_noticed():
    with Terminal(DEMO, "--device", "cpu", "--kv-cache-memory-bytes", "32MiB") as t:
        t.expect("> ")
        os.kill(children(t.process.pid)[0], signal.SIGKILL)
        t.type("hello\r")
        t.expect("the server has ended")
        assert t.wait() == 1


# ---- a terminal --------------------------------------------------------------------------------

PLAIN = {"TERM": "dumb"}  # no line editing


@pytest.mark.parametrize("env", [None, PLAIN])
def test_a_conversation_with_figures_reasoning_and_unicode(env):
    with Recorder([[{"reasoning": "hm ✓"}, "42", " ü"], ["ok"]]) as r, Terminal(r.url, env=env) as t:
        t.expect("recorder, " + r.url)
        t.expect("> ")
        t.type("größe\r")
        t.expect("\x1b[2mhm ✓\x1b[0m")
        t.expect("42 ü")
        t.expect("tokens/s")
        t.expect("> ")
        t.type("/sett\r")
        t.expect("did you mean /set?")
        t.type("next\r")
        t.expect("ok")
        t.expect("> ")
        t.type("\x04")
        assert t.wait() == 0
        assert r.said() == [("user", "größe"), ("assistant", "42 ü"), ("user", "next")]


def test_lines_can_be_edited_and_recalled():
    with open(SLUICE, "rb") as f:
        if b"libedit.so" not in f.read():
            pytest.skip("built without libedit")
    with Recorder([["a"], ["b"]]) as r, Terminal(r.url) as t:
        t.expect("> ")
        t.type("wörd\x1b[D\x1b[D\x7fo\r")  # left, left, backspace
        t.expect("token")
        t.expect("> ")
        t.type("\x1b[A!\r")  # recalls the previous line
        t.expect("token")
        assert [r.said(0)[0][1], r.said(1)[-1][1]] == ["word", "word!"]


@pytest.mark.parametrize("env", [None, PLAIN])
def test_ctrl_c_ends_the_answer_and_a_second_one_the_chat(env):
    with Recorder([["x "] * 2000, ["after"]], pause=0.01) as r, Terminal(r.url, env=env) as t:
        t.expect("> ")
        t.type("go\r")
        t.expect("x x")
        t.type("\x03")
        t.expect("(stopped)")
        assert r.gone.wait(20)
        t.expect("> ")
        t.type("on\r")
        t.expect("after")
        assert r.said()[1][0] == "assistant" and r.said()[1][1].startswith("x x")  # the partial answer is kept
        t.expect("> ")
        t.type("\x03")
        t.expect("Ctrl-C again")
        t.expect("> ")
        t.type("\x03")
        assert t.wait() == 0


def test_ctrl_c_drops_only_the_typed_text():
    with Recorder([["a"]]) as r, Terminal(r.url) as t:
        for _ in range(3):
            t.expect("> ")
            t.type("nonsense")
            t.expect("nonsense")
            t.type("\x03")
        t.expect("> ")
        t.type("sense\r")
        t.expect("token")
        assert r.said() == [("user", "sense")]


def test_ctrl_c_while_the_model_loads():
    with Terminal(DEMO, "--device", "cpu", "--max-num-seqs", "1") as t:
        t.expect("Loading")
        t.type("\x03")
        assert t.wait() in (130, 0)


def test_tool_calls_are_shown_and_their_results_are_typed(tmp_path):
    call = [{"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":"Ulm"}'}}]}]
    tools = [{"type": "function", "function": {"name": "weather"}}]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    with Recorder([call, ["It rains."]]) as r, Terminal(r.url, "--tools", tmp_path / "tools.json") as t:
        t.expect("> ")
        t.type("Ulm?\r")
        t.expect('[tool call] weather {"city":"Ulm"}')
        t.expect("result of weather> ")
        t.type("rain\r")
        t.expect("It rains.")
        assert r.bodies[0]["tools"] == tools
        messages = r.bodies[1]["messages"]
        assert messages[1]["tool_calls"][0] == {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}}
        assert messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "rain"}


def test_a_failed_stream_does_not_end_the_chat():
    with Recorder([500, ["fine"]]) as r, Terminal(r.url) as t:
        t.expect("> ")
        t.type("a\r")
        t.expect("error: it was refused")
        t.expect("> ")
        t.type("b\r")
        t.expect("fine")
        assert r.said() == [("user", "b")]  # the question that failed is not part of the conversation
