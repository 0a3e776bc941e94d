# SPDX-License-Identifier: Apache-2.0
"""sluice bench with our own server and with small servers that answer differently."""

import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import xml.dom.minidom

import pytest
from api import BUILD, ROOT, Server

SLUICE = os.path.join(BUILD, "sluice")


def bench(port, *args, env=None):
    """(exit code, output, JSON report)"""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "out.json")
        p = subprocess.run([SLUICE, "bench", "--url", "http://127.0.0.1:%d" % port, "--json", path, *map(str, args)],
                           capture_output=True, text=True, timeout=100, env={**os.environ, **(env or {})})
        j = None
        if os.path.exists(path):
            with open(path) as f:
                j = json.load(f)
        return p.returncode, p.stdout + p.stderr, j


def percentile(values, p):
    v = sorted(values)
    at = p * (len(v) - 1)
    low = int(at)
    return v[low] + (at - low) * (v[min(low + 1, len(v) - 1)] - v[low])


def adds_up(j, n, output_len):
    r = j["requests"]
    assert j["sent"] == j["completed"] == len(r) == n and j["failed"] == 0 and j["errors"] == {}
    assert all(q["outcome"] == "ok" and q["status"] == 200 and q["output_tokens"] == output_len for q in r)
    assert j["output_tokens"] == n * output_len and j["prompt_tokens"] == sum(q["prompt_tokens"] for q in r)
    assert abs(j["output_tokens_per_s"] * j["duration_s"] - n * output_len) < 1e-3
    for key in ("ttft_ms", "tpot_ms", "e2e_ms"):
        values = [q[key] for q in r if key in q]
        s = j[key]
        assert s["count"] == len(values)
        assert abs(s["mean"] - sum(values) / len(values)) <= 1e-3 * s["mean"]
        for name, p in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1)):
            assert abs(s[name] - percentile(values, p)) <= 1e-3 * s[name], (key, name)
    assert all(0 < q["ttft_ms"] <= q["e2e_ms"] for q in r)
    assert max(q["due_ms"] + q["e2e_ms"] for q in r) <= j["duration_s"] * 1000 + 1
    assert j["itl_ms"]["count"] == sum(q["events"] - 1 for q in r)


@pytest.fixture(scope="module")
def server():
    with Server(real=True, max_model_len=2048) as s:
        yield s


def test_random_ids_by_concurrency(server):
    rc, text, j = bench(server.port, "--requests", 12, "--concurrency", 3, "--input-len", 20, "--output-len", 8)
    assert rc == 0, text
    adds_up(j, 12, 8)
    assert j["max_in_flight"] == 3 and all(q["prompt_tokens"] == 20 for q in j["requests"])
    assert j["within_limits"] == 12 and "TTFT" in text and "throughput" in text


def test_lengths_that_vary(server):
    flags = ("--requests", 60, "--concurrency", 30, "--input-len", 40, "--output-len", 6, "--spread", 0.8)
    rc, text, j = bench(server.port, *flags, "--temperature", 0)
    assert rc == 0, text
    lengths = [q["prompt_tokens"] for q in j["requests"]]
    outputs = [q["output_tokens"] for q in j["requests"]]
    assert len(set(lengths)) > 20 and 25 < sum(lengths) / 60 < 55 and 1 <= min(lengths) and max(lengths) <= 160
    assert len(set(outputs)) > 4 and max(outputs) <= 24
    _, _, again = bench(server.port, *flags)
    assert [q["prompt_tokens"] for q in again["requests"]] == lengths
    rc, text, _ = bench(server.port, "--spread", 1, "--workload", "shared-prefix")
    assert rc != 0 and "--spread goes with --workload random" in text


def test_poisson_rate_and_limits(server):
    rc, text, j = bench(server.port, "--requests", 20, "--rate", 40, "--input-len", 4, "--output-len", 2,
                        "--ttft-limit", 0.001, "--seed", 5)
    assert rc == 0, text
    adds_up(j, 20, 2)
    assert j["within_limits"] == 0 and j["goodput_per_s"] == 0 and "goodput" in text
    due = [q["due_ms"] for q in j["requests"]]
    gaps = [b - a for a, b in zip(due, due[1:])]
    assert due[0] == 0 and min(gaps) >= 0 and 10 < sum(gaps) / len(gaps) < 60 and max(gaps) > 2 * percentile(gaps, 0.5)


def test_shared_prefix_hits_the_prefix_cache(server):
    rc, text, j = bench(server.port, "--workload", "shared-prefix", "--groups", 2, "--members", 4, "--prefix-len", 128,
                        "--suffix-len", 9, "--output-len", 2, "--concurrency", 1)
    assert rc == 0, text
    adds_up(j, 8, 2)
    assert [q["prompt_tokens"] for q in j["requests"]] == [137] * 8
    assert [q["cached_tokens"] >= 64 for q in j["requests"]] == [False] * 2 + [True] * 6


def prompts_of(path):
    lines = [json.loads(l) for l in open(path)]
    assert [l["custom_id"] for l in lines] == [str(i) for i in range(len(lines))]
    assert all(l["method"] == "POST" and l["url"] == "/v1/completions" and "stream" not in l["body"] for l in lines)
    return [tuple(l["body"]["prompt"]) for l in lines]


def test_a_batch_has_the_same_prompts_in_every_order(tmp_path):
    args = ["--workload", "shared-prefix", "--groups", "5", "--members", "3", "--prefix-len", "20", "--suffix-len", "4", "--model", "m"]
    prompts, stems = {}, {}
    for order in ("round", "grouped", "shuffled"):
        path = str(tmp_path / order)
        p = subprocess.run([SLUICE, "bench", *args, "--order", order, "--write-batch", path], capture_output=True, text=True)
        assert p.returncode == 0, p.stderr
        prompts[order] = prompts_of(path)
        stems[order] = [q[:20] for q in prompts[order]]
    assert set(prompts["round"]) == set(prompts["grouped"]) == set(prompts["shuffled"]) and len(set(prompts["round"])) == 15
    assert all(stems["round"][i] == stems["round"][i % 5] for i in range(15)) and len(set(stems["round"][:5])) == 5
    assert all(stems["grouped"][i] == stems["grouped"][i // 3 * 3] for i in range(15))
    assert stems["shuffled"] not in (stems["round"], stems["grouped"])


def test_requests_take_models_in_turn(tmp_path):
    path = str(tmp_path / "out")
    p = subprocess.run([SLUICE, "bench", "--model", "a,b,c", "--requests", "5", "--write-batch", path], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    assert [json.loads(line)["body"]["model"] for line in open(path)] == ["a", "b", "c", "a", "b"]


def test_multi_turn_grows(server):
    rc, text, j = bench(server.port, "--workload", "multi-turn", "--requests", 2, "--turns", 3, "--input-len", 6,
                        "--output-len", 5, "--concurrency", 2)
    assert rc == 0, text
    adds_up(j, 6, 5)
    for c in (0, 1):
        n = [q["prompt_tokens"] for q in j["requests"][3 * c:3 * c + 3]]
        assert n[0] + 6 < n[1] and n[1] + 6 < n[2]


def test_agents_grow_and_their_turns_hit_the_cache(server):
    rc, text, j = bench(server.port, "--workload", "agent", "--requests", 3, "--turns", 6, "--prefix-len", 100, "--input-len", 10,
                        "--output-len", 4, "--result-min", 20, "--result-max", 80, "--think", 0.05, "--concurrency", 2, "--seed", 3)
    assert rc == 0, text
    n = len(j["requests"])
    adds_up(j, n, 4)
    assert 6 <= n <= 18 and j["max_in_flight"] <= 2
    sessions = [[q for q in j["requests"] if q["index"] // 6 == s] for s in range(3)]
    for s in sessions:
        assert 2 <= len(s) <= 6
        for before, after in zip(s, s[1:]):
            assert after["prompt_tokens"] >= before["prompt_tokens"] + 20
            assert after["cached_tokens"] > before["prompt_tokens"] - 32  # blocks of 16
            assert after["due_ms"] > before["due_ms"] + before["e2e_ms"]  # the tool ran in between
    assert sessions[2][0]["cached_tokens"] >= 64  # all share one system prompt
    assert [(t["first"], t["last"]) for t in j["turns"]][:2] == [(1, 1), (2, 2)] and "turns" in text
    assert sum(t["prompt_tokens"] for t in j["turns"]) == j["prompt_tokens"] and sum(t["ttft_ms"]["count"] for t in j["turns"]) == n
    rc, text, j = bench(server.port, "--workload", "agent", "--result-min", 9, "--result-max", 8)
    assert rc == 2 and "--result-min" in text


def test_sharegpt(server, tmp_path):
    data = tmp_path / "data.json"
    items = [{"id": str(i), "conversations": [{"from": "human", "value": "Say \"%d\"\n\u00e9" % i},
                                              {"from": "gpt", "value": "x" * 12}]} for i in range(3)]
    items += [{"conversations": []}, {"conversations": [{"from": "gpt", "value": "no question"}]}]
    data.write_text(json.dumps(items))
    rc, text, j = bench(server.port, "--workload", "sharegpt", "--dataset", data, "--requests", 5, "--chat")
    assert rc == 0, text
    adds_up(j, 5, 3)
    data.write_text("[{]")
    rc, text, j = bench(server.port, "--workload", "sharegpt", "--dataset", data)
    assert rc == 1 and str(data) in text and j is None


class Canned:
    """Answers every request with the same bytes; None closes at once."""

    def __init__(self, answer):
        self.answer = answer
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                c, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        with c:
            f = c.makefile("rb")
            while True:
                n, line = 0, f.readline()
                if not line:
                    return
                while line not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        n = int(line.split(b":")[1])
                    line = f.readline()
                json.loads(f.read(n))
                for piece in self.answer:
                    c.sendall(piece)
                if b"keep-alive" not in self.answer[0]:
                    return


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@pytest.mark.parametrize("answer, errors", [
    ([b"HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nbusy"], {"http_429": 3}),
    ([b"HTTP/1.1 500 No\r\n\r\noops"], {"http_500": 3}),
    ([b"nonsense\r\n\r\n"], {"protocol": 3}),
    ([HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"], {"protocol": 3}),
    ([HEAD + b"Content-Length: 1000\r\n\r\ndata: {}\n\n"], {"closed": 3}),
    ([HEAD + b"\r\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\n"], {"incomplete": 3}),
    ([HEAD + b"\r\ndata: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n"], {"stream": 3}),
])
def test_errors_are_counted_by_kind(answer, errors):
    rc, text, j = bench(Canned(answer).port, "--model", "m", "--requests", 3)
    assert rc == 1 and j["errors"] == errors and (j["sent"], j["completed"], j["failed"]) == (3, 0, 3), text


def test_no_server_and_a_silent_one():
    s = socket.create_server(("127.0.0.1", 0))
    rc, text, j = bench(s.getsockname()[1], "--model", "m", "--requests", 2, "--timeout", 0.3)
    assert rc == 1 and j["errors"] == {"timeout": 2}
    port = s.getsockname()[1]
    s.close()
    rc, text, j = bench(port, "--model", "m", "--requests", 2)
    assert rc == 1 and j["errors"] == {"connect": 2}
    rc, text, j = bench(port)
    assert rc == 1 and "cannot connect" in text


def test_stream_variants_and_arbitrary_chunk_boundaries():
    """CRLF, no space after the colon, spaces in JSON, chunks that end anywhere, no usage."""
    events = b": hello\r\n\r\n" + b"".join(b"data:%s\r\n\r\n" % e for e in (
        b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}',
        b'{"choices": [{"delta": {"content": "\\"text\\": \\"x"}}]}',
        b'{"choices": [{"delta": {"content": "b"}}], "usage": null}',
        b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}', b"[DONE]"))
    for cut in (1, 7, 1000):
        chunks = [events[i:i + cut] for i in range(0, len(events), cut)]
        body = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
        whole = HEAD + b"Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + body
        rc, text, j = bench(Canned([whole]).port, "--model", "m", "--chat", "--requests", 4, "--concurrency", 1)
        assert rc == 0, text
        assert [(q["events"], q["output_tokens"]) for q in j["requests"]] == [(2, 2)] * 4
        assert j["events"] == 16 and j["reconnects"] == 0 and "no usage" in text


@pytest.mark.parametrize("args, text", [
    (["--nonsense"], "unknown option '--nonsense'"), (["--rate"], "--rate needs a value"), (["--rate", "x"], "not a number"),
    (["--rate", "nan"], "not a number"), (["--requests", "1.5"], "whole"), (["--requests", "0"], "within"), (["x"], "not an option"),
    (["--workload", "x"], "not one of random"), (["--order", "x"], "not one of round"), (["--order", "grouped"], "goes with --workload"),
    (["--write-batch", "x"], "needs --model"), (["--workload", "sharegpt"], "needs --dataset"), (["--chat=1"], "takes no value"),
    (["--url", "https://x"], "TLS"), (["--url", "http://:1"], "HOST:PORT"), (["--url", "http://a:99999"], "HOST:PORT"),
])
def test_bad_options(args, text):
    p = subprocess.run([SLUICE, "bench", *args], capture_output=True, text=True)
    assert p.returncode == 2 and text in p.stderr and p.stderr.startswith("sluice bench: ")


def test_help_names_every_option():
    p = subprocess.run([SLUICE, "bench", "--help"], capture_output=True, text=True)
    assert p.returncode == 0 and len(re.findall(r"^  --", p.stdout, re.M)) >= 25 and max(map(len, p.stdout.splitlines())) <= 120


def test_plot(server, tmp_path):
    paths = []
    for n in (1, 4):
        # So many tokens that they do not all arrive at once, which would leave no time per token to plot.
        _, _, j = bench(server.port, "--requests", 8, "--concurrency", n, "--input-len", 8, "--output-len", 64)
        paths.append(tmp_path / ("c%d.json" % n))
        paths[-1].write_text(json.dumps(j))
    out = tmp_path / "plot.svg"
    p = subprocess.run([os.path.join(ROOT, "scripts/plot_bench"), "-o", out, *paths], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    svg = xml.dom.minidom.parse(str(out))
    assert len(svg.getElementsByTagName("polyline")) >= 2 * 3 and "c4" in out.read_text()
    p = subprocess.run([os.path.join(ROOT, "scripts/plot_bench"), "-o", out, __file__], capture_output=True, text=True)
    assert p.returncode == 1 and "was not written by sluice bench" in p.stderr
