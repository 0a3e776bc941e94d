# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""Keys: their scopes, rates, shares of the queue and the cache, and what web pages may do."""

import concurrent.futures
import json
import os
import re
import signal
import tempfile
import time

import pytest
from api import SLOW, Server
from api_script import cached_of, eventually, prompt_of, server


def test_keys_and_their_scopes():
    with tempfile.NamedTemporaryFile("w", delete=False) as f:
        f.write("# keys\nuser-key\nops-key admin,metrics ops\n")
    with Server(api_key="s3cret", api_key_file=f.name, wait=False) as s:
        eventually(lambda: s.get("/health").status == 200)
        auth = lambda key: {"authorization": "Bearer " + key}
        body = {"prompt": "x"}
        r = s.post("/v1/completions", body)
        assert r.status == 401 and r.error["code"] == "missing_api_key" and r.headers["www-authenticate"] == "Bearer"
        assert s.post("/v1/completions", body, headers=auth("nope")).error["code"] == "invalid_api_key"
        assert s.post("/v1/completions", body, headers=auth("user-key")).status == 200
        assert s.post("/v1/completions", body, headers={"x-api-key": "user-key"}).status == 200
        assert s.post("/v1/completions", body, headers={"x-api-key": "user-key", "authorization": "Basic abc"}).status == 200
        r = s.post("/v1/completions", body, headers={"x-api-key": "user-key", **auth("nope")})
        assert r.error["code"] == "invalid_api_key"
        assert s.post("/v1/completions", body, headers={"authorization": "Basic abc"}).error["code"] == "missing_api_key"
        assert s.post("/v1/completions", body, headers=auth("s3cret")).status == 200
        r = s.post("/v1/completions", body, headers=auth("ops-key"))
        assert r.status == 403 and r.error["code"] == "insufficient_permissions"
        assert s.get("/metrics", headers=auth("ops-key")).status == 200
        assert s.get("/metrics", headers=auth("user-key")).status == 403
        assert s.get("/metrics").status == s.get("/server_info").status == s.get("/status.json").status == 401
        assert "api-key: set, not shown" in s.get("/server_info", headers=auth("s3cret")).json()["config"]
        assert "s3cret" not in s.get("/server_info", headers=auth("s3cret")).json()["config"] + s.stderr()
        assert s.get("/").status == s.get("/health").status == 200
        with open(f.name, "w") as g:
            g.write("new-key all\n")
        s.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: s.post("/v1/completions", body, headers=auth("new-key")).status == 200)
        assert s.post("/v1/completions", body, headers=auth("user-key")).status == 401
        with open(f.name, "w") as g:
            g.write("x wrong-scope\n")
        s.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "the old API keys remain valid" in s.stderr())
        assert s.post("/v1/completions", body, headers=auth("new-key")).status == 200
        assert eventually(lambda: any(l.get("key") == "ops" for l in s.log_lines()))  # log lines are written in batches
        assert "new-key" not in json.dumps(s.log_lines())
    os.unlink(f.name)


def keyed(lines, **options):
    """A server with a key file of these lines, and a function that sends it requests with a key."""
    f = tempfile.NamedTemporaryFile("w", suffix=".keys")
    f.write(lines)
    f.flush()
    s = Server(api_key_file=f.name, wait=False, **options)
    assert eventually(lambda: s.get("/health").status == 200)
    s.keys = f
    s.ask = lambda key, path="/v1/completions", **body: s.post(path, {"prompt": "x", **body}, headers={"authorization": "Bearer " + key})
    return s


def test_a_key_is_limited_in_requests_and_tokens_per_minute():
    lines = "a=b inference first requests-per-minute=3\nb tokens-per-minute=600\nc inference,metrics third ignored\n"
    with keyed(lines, key_requests_per_minute=1000) as s:
        replies = [s.ask("a=b") for _ in range(4)]
        assert [r.status for r in replies] == [200, 200, 200, 429]
        assert [r.headers["x-ratelimit-remaining-requests"] for r in replies] == ["2", "1", "0", "0"]
        r = replies[3]
        assert (r.error["type"], r.error["code"]) == ("requests", "rate_limit_exceeded") and "3 requests a minute" in r.error["message"]
        assert 15 <= int(r.headers["retry-after"]) <= 20 and r.headers["x-ratelimit-limit-requests"] == "3"
        assert re.fullmatch(r"5\ds|1m0s", r.headers["x-ratelimit-reset-requests"]) and "x-ratelimit-limit-tokens" not in r.headers
        assert s.ask("c").headers["x-ratelimit-limit-requests"] == "1000"  # the default for all keys
        r = s.ask("b", prompt=[5] * 400, max_tokens=100, stream=True)
        assert r.status == 200 and r.headers["x-ratelimit-remaining-tokens"] == "200"
        r = s.ask("b", prompt=[5] * 300)  # 100 tokens are left: the answer counts, too
        assert r.status == 429 and r.error["type"] == "tokens" and 15 <= int(r.headers["retry-after"]) <= 20
        assert s.ask("b", prompt=[5] * 50, max_tokens=1).status == 200
        metrics = s.get("/metrics", headers={"authorization": "Bearer c"}).body.decode()
        assert re.search(r'sluice_rejected_total\{.*reason="rate_limit"\} 2\n', metrics)
        s.process.send_signal(signal.SIGHUP)  # used tokens stay counted
        assert eventually(lambda: "API keys were reloaded" in s.stderr())
        assert s.ask("a=b").status == 429


def test_a_key_is_limited_in_concurrent_requests_and_its_share_of_the_queue():
    slow = {"FAKE_STEP_US": "25000", "FAKE_LANES": "1"}
    lines = "a concurrent=2\nb queue-share=0.25\nc all\n"
    with keyed(lines, max_num_queued_reqs=8, env=slow) as s, concurrent.futures.ThreadPoolExecutor(8) as pool:
        ask = lambda key: pool.submit(s.ask, key, max_tokens=40)
        count = lambda: s.get("/load").json()["server_load"]
        two = [ask("a"), ask("a")]
        assert eventually(lambda: count() == 2)
        r = s.ask("a", max_tokens=1)
        assert r.status == 429 and "2 requests at once" in r.error["message"] and r.headers["retry-after"] == "1"
        assert eventually(lambda: s.get("/load").json()["running"] == 1)
        four = [ask("b") for _ in range(2)]
        assert eventually(lambda: count() == 4)
        r = s.ask("b", max_tokens=1)
        assert r.status == 429 and "2 places in the queue" in r.error["message"]
        four.append(ask("c"))
        assert all(f.result().status == 200 for f in two + four)
        assert s.ask("a", max_tokens=1).status == s.ask("b", max_tokens=1).status == 200


def test_a_key_is_limited_to_a_range_of_priorities():
    with keyed("a min-priority=-2 max-priority=5\nb\nc min-priority=3 max-priority=9\n", no_request_priority=True) as s:
        assert s.ask("a", priority=-2).status == s.ask("a", priority=5).status == s.ask("b", priority=0).status == 200
        assert s.ask("c").status == 200  # without a priority: the best one that the key may use
        for key, priority in (("a", -3), ("a", 6), ("b", 1), ("c", 2)):
            r = s.ask(key, priority=priority)
            assert (r.status, r.error["param"]) == (400, "priority") and str(priority) in r.error["message"]
    with Server(no_request_priority=True) as s:
        assert s.complete(priority=1).status == 400 and s.complete().status == 200
    with Server(key_concurrent=1, key_requests_per_minute=2) as s:  # without keys the limits apply to all requests together
        assert [s.complete().status for _ in range(3)] == [200, 200, 429]


def test_addresses_of_clients_are_shown_to_admins_alone():
    slow = {"FAKE_STEP_US": "50000"}
    with keyed("i\nm metrics\nops admin\n", env=slow) as s, concurrent.futures.ThreadPoolExecutor(1) as pool:
        get = lambda path, key: s.get(path, headers={"authorization": "Bearer " + key})
        running = pool.submit(s.ask, "i", max_tokens=40)
        assert eventually(lambda: "127.0.0.1:" in get("/requests", "ops").body.decode())
        assert get("/requests", "m").status == get("/requests", "i").status == 403
        for path in ("/status.json", "/metrics", "/load"):
            r = get(path, "m")
            assert r.status == 200 and b"127.0.0.1" not in r.body, path
        assert running.result().status == 200


@pytest.mark.parametrize("line, why", [("k requests=5", "unknown setting 'requests'"), ("k concurrent=x", "not a number"),
                                       ("k queue-share=1.5", "a share from 0 to 1"), ("k cache-share=-1", "a share from 0 to 1"), ("k min-priority=4 max-priority=3", "above"),
                                       ("k max-priority=3000000000", "not a number"), ("k requests-per-minute=-1", "not a number")])
def test_settings_of_a_key_are_checked(line, why):
    with pytest.raises(RuntimeError, match=r"keys:1: .*" + re.escape(why)):
        keyed(line + "\n")


def test_web_pages_cannot_use_routes_of_operators():
    """Without keys, any web page could make a browser send a POST to the server."""
    page = lambda origin: {"origin": origin, "content-type": "text/plain", "sec-fetch-site": "cross-site"}
    with Server(allowed_origins="https://ops.example") as s:
        for path in ("/drain", "/reset_prefix_cache"):
            for headers in (page("http://evil.example"), page("null"), {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
                r = s.post(path, "x", headers=headers)
                assert (r.status, r.error["code"]) == (403, "origin_not_allowed") and "API keys" in r.error["message"]
        assert s.get("/health/ready").status == 200
        assert s.post("/reset_prefix_cache", "").status == 200
        assert s.post("/reset_prefix_cache", "", headers={"sec-fetch-site": "same-origin"}).status == 200
        assert s.post("/reset_prefix_cache", "", headers=page("https://ops.example")).status == 200
        assert s.post("/v1/completions", {"prompt": "x"}, headers={"origin": "https://ops.example"}).status == 200
        assert s.post("/drain", "").status == 200
        assert s.process.wait(20) == 0  # a late signal would change its exit code
    with Server(api_key="s3cret") as s:
        headers = {"origin": "http://evil.example"}
        assert s.post("/reset_prefix_cache", "", headers=headers).status == 401
        assert s.post("/reset_prefix_cache", "", headers={**headers, "authorization": "Bearer s3cret"}).status == 200


def test_web_pages_cannot_use_a_loopback_server_without_keys():
    body = {"prompt": "x", "max_tokens": 1}
    with Server(allowed_origins="https://ops.example", allowed_hosts="gpu.example") as s:
        post = lambda path="/v1/completions", **headers: s.post(path, body, headers={k.replace("_", "-"): v for k, v in headers.items()})
        own = "http://127.0.0.1:%d" % s.port
        for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"},
                        {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"}, {"origin": "http://localhost:3000"}):
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/embeddings"):
                r = post(path, **headers)
                assert (r.status, r.error["code"]) == (403, "origin_not_allowed"), headers
            for path in ("/v1/models", "/requests", "/metrics"):
                r = s.get(path, headers={k.replace("_", "-"): v for k, v in headers.items()})
                assert (r.status, r.error["code"]) == (403, "origin_not_allowed"), headers
        for headers in ({}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
                        {"origin": own, "sec-fetch-site": "same-origin"}, {"origin": "https://ops.example"}):
            assert s.get("/v1/models", headers=headers).status == 200, headers
        assert s.get("/health", headers={"origin": "http://evil.example"}).status == 200  # probes reveal nothing
        for headers in ({}, {"origin": own}, {"origin": own, "sec_fetch_site": "same-origin"}, {"origin": "https://ops.example"}):
            assert post(**headers).status == 200, headers
        for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.0.1"):
            for r in (post(host=host), s.get("/v1/models", headers={"host": host}), s.get("/requests", headers={"host": host})):
                assert (r.status, r.error["code"]) == (403, "host_not_allowed") and "--allowed-hosts" in r.error["message"], host
            assert s.get("/health", headers={"host": host}).status == s.get("/health/ready", headers={"host": host}).status == 200
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:80", "[::1]:8000", "a.localhost:80", "gpu.example", "GPU.example:443"):
            assert post(host=host).status == 200, host
        assert s.request("POST", "/v1/completions", json.dumps(body), {"content-type": ""}).status == 200  # curl without a content type
    with Server(host="0.0.0.0") as s:  # serves other machines, whose names it cannot know
        assert s.post("/v1/completions", body, headers={"host": "gpu.example", "origin": "http://ui.example"}).status == 200
        assert s.post("/drain", "", headers={"origin": "http://ui.example"}).status == 403
    with Server(api_key="s3cret") as s:
        headers = {"host": "gpu.example", "origin": "http://ui.example", "authorization": "Bearer s3cret"}
        assert s.post("/v1/completions", body, headers=headers).status == 200


def test_a_key_learns_nothing_about_anothers_prompts():
    prompt = [7 + i % 200 for i in range(200)]
    cached = lambda r: r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    with keyed("a\nb\nc cache-salt-by-key=false\nd cache-salt-by-key=false\n", real=True, cache_salt_by_key=True) as s:
        ask = lambda key, **more: cached(s.ask(key, prompt=prompt, max_tokens=1, **more))
        assert ask("a") == 0 and ask("a") > 100
        assert ask("b") == 0 and ask("b") > 100
        assert ask("a", cache_salt="own") == 0 and ask("b", cache_salt="own") == 0 and ask("a", cache_salt="own") > 100
        assert ask("c") == 0 and ask("d") > 100  # these two share the prompts of keys without a salt


@pytest.mark.skipif(SLOW, reason="measures time")
def test_a_key_learns_nothing_by_time():
    """CPU time of the server for a prompt of 800 tokens: one that another key has sent costs as much as a new one."""
    def cpu(s):
        tasks = "/proc/%d/task" % s.process.pid
        return sum(int(open("%s/%s/schedstat" % (tasks, t)).read().split()[0]) for t in os.listdir(tasks))

    with keyed("a\nb\n", real=True, cache_salt_by_key=True, max_model_len=1024) as s:
        def cost(key, n):
            before = cpu(s)
            assert s.ask(key, prompt=[7 + n] + [7 + i * i % 199 for i in range(800)], max_tokens=1).status == 200
            return cpu(s) - before

        cost("a", 100)  # pays for the work that is done only once
        rounds = [(cost("a", n), cost("b", n), cost("b", n)) for n in range(7)]  # new, sent by another, sent by itself
        new, others, own = (sorted(r[i] for r in rounds)[3] for i in range(3))
        assert own < 0.5 * new, rounds
        assert 0.8 * new < others < 1.25 * new, rounds


def test_a_key_has_a_share_of_the_cache():
    """A prompt takes 19 of 60 blocks, so a key's six prompts need more than there are, unless its share is 20 blocks."""
    with keyed("a\nb cache-share=0.34\nc\n", real=True, num_gpu_blocks_override=60, block_size=16, max_model_len=320) as s:
        ask = lambda key, i: cached_of(s.ask(key, prompt=prompt_of(i), max_tokens=1))
        for other, want in (("c", 0), ("b", 288)):
            ask("a", 0)
            for i in range(1, 7):
                ask(other, 10 * i)
            assert ask("a", 0) == want, other
