# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's streams that outlive their client: /v1/stream."""
import http.client
import json
import threading
import time

import pytest
from api import Server

SLOW = {"FAKE_STEP_US": "20000"}  # 50 tokens a second
BODY = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def server():
    with Server(env=SLOW, conventions="llama.cpp", metrics=True) as s:
        yield s


def url(conversation, start=None):
    return "/v1/stream?conv_id=" + conversation + ("" if start is None else "&from=%s" % start)


def named(conversation, key=None):
    return {"x-conversation-id": conversation, **({"authorization": "Bearer " + key} if key else {})}


def begin(server, conversation, n, headers=None, path="/v1/chat/completions"):
    """Starts a stream and returns its connection and response once there is an event."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    c.request("POST", path, json.dumps({**BODY, "max_tokens": n}), {"content-type": "application/json", **named(conversation), **(headers or {})})
    r = c.getresponse()
    assert r.status == 200
    r.readline()
    return c, r


def running(server):
    return server.metric("vllm:num_requests_running")


def wait(check):
    end = time.time() + 20
    while not check():
        assert time.time() < end
        time.sleep(0.02)


def n_pieces(body):
    return sum(b'"content":"' in e for e in body.split(b"\n\n"))


def test_a_finished_stream_can_be_read_again(server):
    whole = server.post("/v1/chat/completions", {**BODY, "max_tokens": 5}, headers=named("a/b:c")).body
    again = server.get(url("a%2Fb%3Ac"))
    assert again.status == 200 and again.headers["content-type"].startswith("text/event-stream") and again.body == whole and whole.endswith(b"data: [DONE]\n\n")
    assert server.get(url("a%2Fb%3Ac", 40)).body == whole[40:] and server.get(url("a%2Fb%3Ac", len(whole))).body == b""
    for wrong in (len(whole) + 1, -1, "x", "1x"):
        r = server.get(url("a%2Fb%3Ac", wrong))
        assert r.status == 400 and r.error["param"] == "from"
    assert server.request("DELETE", url("a%2Fb%3Ac")).status == 204 and server.get(url("a%2Fb%3Ac")).status == 404
    assert server.request("DELETE", url("a%2Fb%3Ac")).status == 204  # even if there is no such stream


def test_a_stream_continues_without_its_client(server):
    c, _ = begin(server, "left", 30)
    c.close()
    time.sleep(0.1)
    body = server.get(url("left", 0)).body  # follows it to its end
    assert body.endswith(b"data: [DONE]\n\n") and n_pieces(body) > 10 and b'"finish_reason":"length"' in body
    assert server.get(url("left", 0)).body == body


def test_several_clients_follow_one_stream(server):
    c, r = begin(server, "many", 25)
    bodies = []
    threads = [threading.Thread(target=lambda: bodies.append(server.get(url("many", 0)).body)) for _ in range(3)]
    for t in threads:
        t.start()
    own = r.read()
    for t in threads:
        t.join()
    c.close()
    assert len(set(bodies)) == 1 and bodies[0].endswith(own)


def test_a_delete_ends_the_stream(server):
    c, r = begin(server, "stop", 1500)
    assert running(server) == 1
    assert server.request("DELETE", url("stop")).status == 204
    rest = r.read()
    c.close()
    assert b"[DONE]" not in rest and server.get(url("stop")).status == 404
    wait(lambda: running(server) == 0)


def test_a_new_stream_takes_the_place_of_the_one_before(server):
    c, r = begin(server, "twice", 1500)
    second = server.post("/v1/chat/completions", {**BODY, "max_tokens": 3}, headers=named("twice")).body
    assert b"[DONE]" not in r.read() and server.get(url("twice")).body == second
    c.close()
    wait(lambda: running(server) == 0)


def test_errors_are_not_kept(server):
    r = server.post("/v1/chat/completions", {**BODY, "temperature": -1}, headers=named("bad"))
    assert r.status == 400 and server.get(url("bad")).status == 404
    r = server.get("/v1/stream")
    assert r.status == 400 and r.error["param"] == "conv_id" and server.request("DELETE", "/v1/stream").status == 400


def test_only_the_last_streams_are_kept(server):
    for i in range(70):
        server.post("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 1}, headers=named("n%d" % i))
    assert [server.get(url("n%d" % i)).status for i in (0, 5, 6, 69)] == [404, 404, 200, 200]


def test_whole_answers_and_other_conventions_have_no_stream(server):
    server.post("/v1/chat/completions", {**BODY, "stream": False, "max_tokens": 2}, headers=named("whole"))
    assert server.get(url("whole")).status == 404
    with Server(env=SLOW) as s:
        c, _ = begin(s, "left", 1500)
        assert s.get(url("left")).status == 404
        c.close()
        wait(lambda: running(s) == 0)  # ends with its client, as everywhere else


def test_a_stream_belongs_to_its_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one inference a\ntwo inference b\n")
    with Server(conventions="llama.cpp", api_key_file=str(keys)) as s:
        s.post("/v1/chat/completions", {**BODY, "max_tokens": 2}, headers=named("mine", "one"))
        auth = lambda key: {"authorization": "Bearer " + key}
        assert s.get(url("mine")).status == 401 and s.get(url("mine"), headers=auth("two")).status == 404
        s.request("DELETE", url("mine"), headers=auth("two"))
        assert s.get(url("mine"), headers=auth("one")).status == 200


def test_a_long_stream_loses_its_beginning():
    with Server(conventions="llama.cpp", env={"FAKE_CONTEXT": "32768", "FAKE_STEP_US": "0"}) as s:
        s.post("/v1/chat/completions", {**BODY, "max_tokens": 30000, "logprobs": True, "top_logprobs": 2}, headers=named("long"))
        r = s.get(url("long", 0))
        assert r.status == 400 and r.error["param"] == "from"
        first = int(r.error["message"].split("position from ")[1].split()[0])
        body = s.get(url("long", first)).body
        assert body.startswith(b"data: ") and body.endswith(b"[DONE]\n\n") and len(body) < 5 << 20


def test_a_stopping_server_ends_streams_without_a_client():
    with Server(conventions="llama.cpp", env=SLOW, shutdown_timeout="0.3") as s:
        c, _ = begin(s, "left", 1500)
        c.close()
        assert s.stop() == 0
