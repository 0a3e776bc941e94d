# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""The server in operation: health, metrics, logs, overload, deadlines, clients that leave, hints for the cache."""

import concurrent.futures
import json
import os
import re
import resource
import signal
import socket
import time

import pytest
from api import SLOW, Server, fold
from api_script import TEXTS, cached_of, eventually, kv_hints, open_stream, prompt_of, running, server


def test_health_metrics_and_page(server):
    for path in ("/health", "/health/live", "/health/ready", "/ping", "/v1/health"):
        r = server.get(path)
        assert (r.status, r.json()["status"]) == (200, "ok")
    assert server.request("HEAD", "/health").status == 200
    assert server.get("/version").json()["version"]
    assert set(server.get("/load").json()) >= {"server_load", "running", "waiting", "kv_usage", "queued_tokens"}
    text = server.get("/metrics").body.decode()
    for name in ("vllm:num_requests_running", "vllm:time_to_first_token_seconds_bucket", "vllm:request_success_total",
                 "vllm:e2e_request_latency_seconds_sum", "vllm:kv_cache_usage_perc", "vllm:cache_config_info",
                 "vllm:generation_tokens_total", "vllm:iteration_tokens_total_count", "http_requests_total"):
        assert name + "{" in text, name
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r'[a-z0-9_:]+(\{.*\})? (-?[0-9.e+-]+)', line), line
    page = server.get("/")
    assert page.headers["content-type"].startswith("text/html") and b"page/plots.js" in page.body
    assert not re.search(rb'(src|href)="http', page.body)
    assert server.get("/status.json").json()["model"]
    assert server.get("/server_info").json()["model_type"] == "fake"
    assert server.post("/reset_prefix_cache", "").status == 200


def test_the_kv_format_and_its_capacity_are_logged():
    said = {}
    for kv in ("auto", "int8", "int4"):
        with Server(real=True, kv_cache_dtype=kv, max_model_len=512, max_num_seqs=1024) as s:
            text, info = s.get("/metrics").body.decode(), s.get("/server_info").json()
            name = info["kv_cache_dtype"]
            assert re.search(r'vllm:cache_config_info\{.*cache_dtype="%s"' % name, text)
            blocks, tokens, sequences = (float(re.search(r'vllm:cache_config_info\{.*%s="([0-9.e+]+)"' % k, text)[1])
                                         for k in ("num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency"))
            assert tokens == 16 * blocks and abs(sequences * s.get("/v1/models").json()["data"][0]["max_model_len"] / tokens - 1) < 1e-5
            tokens = int(float(re.search(r"sluice_kv_cache_tokens\{.*\} ([0-9.e+]+)", text)[1]))
            assert tokens == info["num_blocks"] * info["block_size"]
            line = r"ready after .* blocks of %d tokens \(%d in %s\)" % (info["block_size"], tokens, name)
            assert eventually(lambda s=s, line=line: re.search(line, s.stderr()))  # the log has a thread of its own
            said[name] = tokens
    assert said["float32"] * 3 < said["int8"] and said["int8"] * 1.4 < said["int4"]


def test_the_status_remembers_the_last_minutes(server):
    end = time.time() + 20
    while len(server.get("/status.json?history=1").json()["history"]["rows"]) < 2:
        assert time.time() < end
        time.sleep(0.2)
    server.chat(max_tokens=3)
    n = len(server.get("/status.json?history=1").json()["history"]["rows"])
    while len(server.get("/status.json?history=1").json()["history"]["rows"]) == n < 300:
        assert time.time() < end
        time.sleep(0.1)
    now = server.get("/status.json?history=1").json()
    history, rows = now["history"], now["history"]["rows"]
    assert "history" not in server.get("/status.json").json()
    assert all(c in now for c in history["columns"]) and all(len(r) == len(history["columns"]) for r in rows)
    uptime, finished = history["columns"].index("uptime"), history["columns"].index("finished")
    assert all(0.5 < b[uptime] - a[uptime] < 20 and a[finished] <= b[finished] for a, b in zip(rows, rows[1:]))
    assert rows[-1][finished] > 0 and rows[-1][uptime] <= now["uptime"]


def test_histograms_count_what_happened(server):
    before = server.metric("vllm:e2e_request_latency_seconds_count")
    server.chat(seed=0)
    assert eventually(lambda: server.metric("vllm:e2e_request_latency_seconds_count") > before)
    assert server.metric("vllm:e2e_request_latency_seconds_count") == before + 1


def test_log_lines_have_every_member(server):
    server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "seed": 0},
                headers={"x-request-id": "my-id", "x-stainless-retry-count": "2"})
    assert eventually(lambda: any(l["id"] == "my-id" for l in server.log_lines()))
    line = [l for l in server.log_lines() if l["id"] == "my-id"][0]
    assert line["status"] == 200 and line["finish"] == "stop" and line["output_tokens"] > 5 and line["prompt_tokens"] > 2


PROBES = ["/health", "/health/live", "/health/ready", "/v1/health", "/ping", "/metrics"]


def test_probes_are_logged_on_request():
    for more, wanted in (({}, []), ({"enable_log_probes": True}, PROBES)):
        with Server(env={"FAKE_LOAD_MS": "400"}, wait=False, **more) as s:
            for path in PROBES:  # the model is loading: some answer 503
                s.get(path)
            s.get("/nope")
            assert eventually(lambda: any(l["path"] == "/nope" for l in s.log_lines()))
            assert [l["path"] for l in s.log_lines() if l["path"] != "/nope"] == wanted


def test_a_client_that_leaves_frees_the_engine():
    with Server(env={"FAKE_STEP_US": "50000", "FAKE_LANES": "2"}) as s:
        clients = [open_stream(s) for _ in range(6)]  # two run, the others wait
        plain = socket.create_connection(("127.0.0.1", s.port))
        body = json.dumps({"prompt": "x", "max_tokens": 1000})
        plain.sendall(("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       "Content-Length: %d\r\n\r\n%s" % (len(body), body)).encode())
        assert eventually(lambda: running(s) == 7)
        for c in clients + [plain]:
            c.close()
        assert eventually(lambda: running(s) == 0)
        assert s.metric("sluice_aborted_total", cause="disconnect") == 7


def test_deadlines():
    with Server(env={"FAKE_STEP_US": "100000", "FAKE_LANES": "1"}) as s:
        r = s.complete("x", max_tokens=1000, timeout=0.5)
        assert r.status == 504 and r.error["code"] == "request_timeout"
        assert eventually(lambda: running(s) == 0)
        c = open_stream(s)  # keeps the only lane
        assert eventually(lambda: running(s) == 1)
        with pytest.raises(TimeoutError):  # the client runs into its own time-out and is not refused
            s.post("/v1/completions", {"prompt": "x"}, headers={"x-stainless-read-timeout": "0.5"}, timeout=1)
        r = s.post("/v1/completions", {"prompt": "x"}, headers={"x-stainless-read-timeout": "0.5"})
        assert r.status == 503 and r.error["code"] == "queue_timeout" and r.headers["retry-after"]
        c.close()
        r = s.chat("x", stream=True, timeout=0.7)  # tokens have been sent: the error is an event
        assert r.status == 200 and json.loads(r.events()[-2])["error"]["code"] == "request_timeout" and r.events()[-1] == "[DONE]"


def test_log_lines_of_failed_requests_have_token_counts():
    def line(s, id):
        assert eventually(lambda: any(l["id"] == id for l in s.log_lines()))
        return next(l for l in s.log_lines() if l["id"] == id)
    with Server(env={"FAKE_STEP_US": "50000"}) as s:
        c = open_stream(s, request_id="left")
        c.getresponse().read(200)
        c.close()
        left = line(s, "left")
        assert (left["finish"], left["gone"]) == ("cancelled", "closed") and left["output_tokens"] > 0 and left["cached_tokens"] > 0
        s.complete("a b c d", max_tokens=1000, timeout=0.5, request_id="late")
        late = line(s, "late")
        assert (late["finish"], late["error"]) == ("error", "request_timeout") and late["output_tokens"] > 0
        assert late["prompt_tokens"] > late["cached_tokens"] > 0
        s.post("/v1/completions", {"prompt": "x", "temperature": -9}, headers={"x-request-id": "wrong"})
        wrong = line(s, "wrong")
        assert (wrong["status"], wrong["output_tokens"], wrong["cached_tokens"]) == (400, 0, 0)


def test_a_responses_stream_that_fails_has_an_error_event():
    with Server(env={"FAKE_STEP_US": "100000"}) as s:
        r = s.post("/v1/responses", {"input": "x", "stream": True, "timeout": 0.6, "max_output_tokens": 1000})
        last = json.loads(r.events()[-1])
        assert r.body.decode().rstrip().split("\n")[-2] == "event: error"
        assert last["type"] == "error" and last["code"] == last["error"]["code"] == "request_timeout"


def test_overload_is_refused_with_retry_after():
    with Server(max_num_queued_reqs=4, env={"FAKE_STEP_US": "50000", "FAKE_LANES": "1"}) as s:
        clients = [open_stream(s, max_tokens=2000)]
        assert eventually(lambda: s.get("/load").json()["running"] == 1)  # the queue is empty for the next four
        clients += [open_stream(s, max_tokens=2000) for _ in range(4)]
        assert eventually(lambda: running(s) == 5)
        r = s.complete("x")
        assert r.status == 503 and r.error["code"] == "server_overloaded" and int(r.headers["retry-after"]) > 0
        assert s.get("/health/ready").status == 503 and s.get("/health/live").status == 200
        assert s.metric("sluice_rejected_total", reason="queue_full") == 1
        assert [s.metric("vllm:admission_rejections_total", reason="max_num_queued_" + what) for what in ("reqs", "tokens")] == [1, 0]
        for c in clients:
            c.close()
    with Server(max_num_queued_tokens=100, overload_status=429, env={"FAKE_STEP_US": "50000", "FAKE_LANES": "1"}) as s:
        clients = [open_stream(s) for _ in range(2)]
        assert eventually(lambda: running(s) == 2)
        assert s.complete([5] * 200).status == 429
        assert [s.metric("vllm:admission_rejections_total", reason="max_num_queued_" + what) for what in ("reqs", "tokens")] == [0, 1]
        for c in clients:
            c.close()


def test_the_queue_limit_holds_in_a_burst():
    """Requests that have arrived since the engine's last step count, too: forty of them arrive within one step."""
    with Server(real=True, max_num_seqs=4, max_num_queued_reqs=2) as s:
        body = {"prompt": "x" * 50, "max_tokens": 1000, "ignore_eos": True}  # on a busy machine they take a minute
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            replies = list(pool.map(lambda i: s.post("/v1/completions", body, timeout=400), range(40)))
        codes = [r.status for r in replies]
        assert set(codes) == {200, 503} and 32 <= codes.count(503) <= 34, codes
        assert all(r.error["code"] == "server_overloaded" and r.headers["retry-after"] for r in replies if r.status == 503)
        assert s.metric("sluice_rejected_total", reason="queue_full") == codes.count(503)
        assert s.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == codes.count(503)
        assert eventually(lambda: s.metric("vllm:num_requests_waiting") == 0)


def test_each_step_is_counted_by_its_tokens():
    with Server(real=True) as s:
        assert s.complete([5] * 40, max_tokens=30, ignore_eos=True).status == 200  # 70 tokens in 69 rows
        assert eventually(lambda: s.metric("vllm:num_requests_running") == 0)
        steps = s.metric("sluice_engine_steps_total")
        assert steps >= 30 and s.metric("vllm:iteration_tokens_total_count") == steps
        assert s.metric("vllm:iteration_tokens_total_sum") == 70 and s.metric("sluice_engine_rows_total") >= 69
        assert s.metric("vllm:iteration_tokens_total_bucket", le="1.0") >= 29
        assert s.metric("vllm:iteration_tokens_total_bucket", le="32.0") == steps - 1  # all steps except that of the prompt
        assert s.metric("vllm:iteration_tokens_total_bucket", le="64.0") == steps
        assert s.complete([5] * 40, max_tokens=30, ignore_eos=True).status == 200  # most of this prompt is in the cache
        assert eventually(lambda: s.metric("vllm:num_requests_running") == 0)
        assert s.metric("vllm:iteration_tokens_total_sum") == 140 and s.metric("vllm:prefix_cache_hits_total") >= 16
        assert s.metric("vllm:iteration_tokens_total_bucket", le="32.0") == s.metric("sluice_engine_steps_total") - 2
        assert s.metric("vllm:request_num_preemptions_count") == s.metric("vllm:request_num_preemptions_bucket", le="0.5") == 2


def test_a_request_without_memory_is_refused_and_may_be_retried():
    # Without this option a sanitizer ends the process when an allocation fails.
    env = {name: os.environ.get(name, "") + ":allocator_may_return_null=1" for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")}
    with Server(env={"FAKE_STEP_US": "50000", **env}) as s:
        big = {"n": 100, "max_tokens": 1900, "logprobs": 20}  # 40 MB
        assert s.complete(n=1, max_tokens=1, logprobs=20).status == 200
        with open("/proc/%d/statm" % s.process.pid) as f:
            used = int(f.read().split()[0]) * 4096
        resource.prlimit(s.process.pid, resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
        r = s.complete(**big)
        assert (r.status, r.error["code"], r.error["type"]) == (503, "out_of_memory", "server_error") and r.headers["retry-after"]
        resource.prlimit(s.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert s.complete(stop_token_ids=[5], **{**big, "max_tokens": 1900, "prompt": [5]}).status == 200


def test_more_samples_than_the_engine_can_hold_are_not_an_overload():
    """A client that is told to retry later would retry for ever."""
    with Server(real=True, max_num_queued_reqs=2, max_num_seqs=2, max_n=4) as s:  # the queue has room for 2 * 2 + 4 sequences, and 2 more run
        assert s.complete(["x"] * 10, max_tokens=2).status == 200
        for prompts, n in ((11, 1), (4, 3)):
            r = s.complete(["x"] * prompts, n=n, max_tokens=2)
            assert r.status == 400 and "at most 10" in r.error["message"] and "retry-after" not in r.headers
        r = s.post("/v1/embeddings", {"input": ["x"] * 11})
        assert r.status == 400 and "at most 10" in r.error["message"]


def test_hints_keep_a_prompt_for_their_duration():
    with Server(real=True, num_gpu_blocks_override=64, block_size=16, max_model_len=320) as s:
        ask = lambda i, **more: cached_of(s.complete(prompt=prompt_of(i), max_tokens=1, **more))
        kept = lambda: int(re.search(r"sluice_kv_blocks_kept\{.*\} (\d+)", s.get("/metrics").body.decode())[1])
        for hints, want in ((None, 0), (kv_hints({"priority": 60, "duration": 60}), 288), (kv_hints({"priority": 60, "duration": 0}), 0)):
            ask(0, **({"kv_hints": hints} if hints else {}))
            assert kept() == (18 if want else 0) or not want and eventually(lambda: kept() == 0)
            for i in range(1, 7):
                ask(10 * i)
            assert ask(0) == want
        chat = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "kv_hints": kv_hints({"priority": 101})})
        assert (chat.status, chat.error["param"]) == (400, "kv_hints") and "from 0 to 100" in chat.error["message"]


def test_a_signal_asks_for_a_report():
    with Server(env={"FAKE_STEP_US": "50000"}) as s:
        c = open_stream(s)
        assert eventually(lambda: running(s) == 1)
        (row,) = s.get("/requests").json()["data"]
        assert row["id"].startswith("chatcmpl-") and row["stream"] and row["client"].startswith("127.0.0.1:")
        s.process.send_signal(signal.SIGUSR1)
        assert eventually(lambda: "report: ok, 1 requests" in s.stderr() and row["id"] in s.stderr())
        assert s.get("/health").status == 200
        c.close()


def test_many_at_once(server):
    def one(i):
        if i % 3 == 0:
            return fold(server.chat(seed=0, stream=True).chunks())[0]["message"]["content"] == TEXTS[0]
        if i % 3 == 1:
            return server.chat(seed=0).json()["choices"][0]["message"]["content"] == TEXTS[0]
        return server.chat(temperature=-7).status == 400
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(150)))


@pytest.mark.skipif(SLOW, reason="a sanitizer's memory")
def test_a_stream_costs_about_25_kilobytes():
    """All memory of a stream from the socket to the engine's queue, except for the kernel's buffers."""
    n = 1500
    body = json.dumps({"messages": [{"role": "user", "content": "a b c"}], "stream": True, "max_tokens": 64}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with Server(env={"FAKE_LANES": "4000", "FAKE_STEP_US": "500000"}) as s:
        def rss():
            with open("/proc/%d/status" % s.process.pid) as f:
                return next(int(l.split()[1]) * 1024 for l in f if l.startswith("VmRSS"))
        s.chat(max_tokens=1)
        before = rss()
        sockets = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(n)]
        for c in sockets:
            c.sendall(head + body)
        for c in sockets:
            assert c.recv(12) == b"HTTP/1.1 200"
        each = (rss() - before) / n
        for c in sockets:
            c.close()
    assert each < 27000, each  # 24,700 on Debian 12; other versions of the libraries may need a little more
