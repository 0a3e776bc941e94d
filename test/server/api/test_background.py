# SPDX-License-Identifier: Apache-2.0
"""Responses that run in the background: starting, reading, following from any event, cancelling, and their state after
a restart."""

import http.client
import json
import signal
import socket
import threading
import time

import pytest
from api import Server

openai = pytest.importorskip("openai")

SLOW = {"FAKE_STEP_US": "20000"}  # 50 tokens a second


@pytest.fixture(scope="module")
def server():
    with Server(env=SLOW) as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % server.port, api_key="none", max_retries=0, timeout=60)


def begin(server, headers=None, **body):
    body = {"input": "hello there", "max_output_tokens": 50, "background": True, "ignore_eos": True, **body}
    return server.post("/v1/responses", body, headers=headers)


def path(response, more=""):
    return "/v1/responses/" + response["id"] + more


def wait(server, response, headers=None):
    end = time.time() + 60
    while (j := server.get(path(response), headers=headers).json())["status"] in ("queued", "in_progress"):
        assert time.time() < end
        time.sleep(0.02)
    return j


def parse(r):
    """A stream's events; their names are their types."""
    blocks = [b.split("\n") for b in r.body.decode().split("\n\n") if b and not b.startswith(":")]
    events = [json.loads(data[6:]) for _, data in blocks]
    assert [name[7:] for name, _ in blocks] == [e["type"] for e in events]
    return events


def test_a_response_continues_without_its_client(server):
    t = time.time()
    r = begin(server).json()
    assert r["status"] in ("queued", "in_progress") and r["background"] is True and r["output"] == [] and r["usage"] is None
    seen = set()
    while (j := server.get(path(r)).json())["status"] in ("queued", "in_progress"):
        assert j["output"] == [] and j["id"] == r["id"]
        seen.add(j["status"])
        time.sleep(0.05)
    assert "in_progress" in seen and time.time() - t > 0.9
    assert j["status"] == "incomplete" and j["usage"]["output_tokens"] == 50 and j["output"][0]["content"][0]["text"]
    plain = server.post("/v1/responses", {"input": "hello there", "max_output_tokens": 50, "ignore_eos": True}).json()
    assert j["output"][0]["content"] == plain["output"][0]["content"]
    assert server.post(path(r, "/cancel"), {}).json() == j  # it has ended
    assert server.post("/v1/responses/%s/cancel" % plain["id"], {}).status == 400
    assert server.get("/v1/responses/%s?stream=true" % plain["id"]).error["param"] == "stream"
    assert server.request("DELETE", path(r)).json()["deleted"] and server.get(path(r)).status == 404


def test_events_can_be_followed_from_anywhere(server):
    for stream in (True, False):
        r = begin(server, stream=stream)
        if stream:
            first = parse(r)
            r = first[0]["response"]
        else:
            r = r.json()
            first = parse(server.get(path(r, "?stream=true")))  # while it runs
        assert [e["sequence_number"] for e in first] == list(range(len(first)))
        kinds = [e["type"] for e in first]
        assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"] and kinds[-1] == "response.incomplete"
        assert first[-1]["response"] == server.get(path(r)).json()
        assert parse(server.get(path(r, "?stream=true"))) == first  # the response is over by now
        for after in (0, 7, len(first) - 2):
            assert parse(server.get(path(r, "?stream=true&starting_after=%d" % after))) == first[after + 1:]
        assert server.get(path(r, "?stream=true&starting_after=%d" % len(first))).body == b""
    for bad in ("-1", "x", "3x"):
        assert server.get(path(r, "?stream=true&starting_after=" + bad)).error["param"] == "starting_after"


def test_a_client_that_leaves_is_followed_by_others(server):
    c = http.client.HTTPConnection("127.0.0.1", server.port)
    body = {"input": "hello there", "max_output_tokens": 100, "background": True, "stream": True, "ignore_eos": True}
    c.request("POST", "/v1/responses", json.dumps(body), {"content-type": "application/json", "x-request-id": "left"})
    assert c.getresponse().read(300)
    c.close()
    followers, results = [], []
    for _ in range(3):
        followers.append(threading.Thread(target=lambda: results.append(server.get("/v1/responses/resp_left?stream=true&starting_after=4"))))
        followers[-1].start()
    j = wait(server, {"id": "resp_left"})
    for f in followers:
        f.join()
    assert j["status"] == "incomplete" and j["usage"]["output_tokens"] == 100
    for r in results:
        events = parse(r)
        assert events[0]["sequence_number"] == 5 and events[-1]["response"] == j


def test_a_running_response_can_be_cancelled_but_not_deleted(server):
    r = begin(server, max_output_tokens=1500).json()
    assert server.request("DELETE", path(r)).status == 400
    assert server.post("/v1/responses", {"input": "x", "previous_response_id": r["id"]}).error["param"] == "previous_response_id"
    while server.get(path(r)).json()["status"] != "in_progress":
        time.sleep(0.02)
    results = []
    follower = threading.Thread(target=lambda: results.append(server.get(path(r, "?stream=true"))))
    follower.start()
    written = server.metric("vllm:generation_tokens_total")
    while server.metric("vllm:generation_tokens_total") < written + 5:
        time.sleep(0.02)
    j = server.post(path(r, "/cancel"), {}).json()
    follower.join()
    assert j["status"] == "cancelled" and j["error"] is None and 0 < j["usage"]["output_tokens"] < 1500
    assert j["output"][0]["status"] == "incomplete" and j["output"][0]["content"][0]["text"]
    assert server.get(path(r)).json() == j == server.post(path(r, "/cancel"), {}).json()
    assert parse(results[0])[-1] == {"type": "response.cancelled", "sequence_number": len(parse(results[0])) - 1, "response": j}
    end = time.time() + 20
    while server.metric("vllm:num_requests_running"):
        assert time.time() < end
        time.sleep(0.05)


def test_an_engine_that_fails_is_a_failed_response(server):
    r = begin(server, seed=1003).json()
    j = wait(server, r)
    assert j["status"] == "failed" and j["error"]["code"] == "server_error" and j["error"]["message"]
    events = parse(server.get(path(r, "?stream=true")))
    assert events[-1]["type"] == "response.failed" and events[-1]["response"] == j


def test_invalid_requests_fail_immediately(server):
    assert begin(server, input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]).status == 400
    assert begin(server, store=False).error["param"] == "background"
    assert begin(server, background="yes").status == 400
    assert begin(server, max_output_tokens=10 ** 6).status == 400


def test_the_sdk_polls_and_streams_again(client):
    extra = {"ignore_eos": True}
    r = client.responses.create(model="demo", input="hello", background=True, max_output_tokens=40, extra_body=extra)
    while r.status in ("queued", "in_progress"):
        time.sleep(0.05)
        r = client.responses.retrieve(r.id)
    assert r.status == "incomplete" and r.output_text
    stream = client.responses.create(model="demo", input="hello", background=True, stream=True, max_output_tokens=40, extra_body=extra)
    seen = []
    for e in stream:
        seen.append(e)
        if e.sequence_number == 10:
            break
    stream.close()
    again = list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=10))
    assert again[0].sequence_number == 11 and again[-1].response.output_text == r.output_text
    r = client.responses.create(model="demo", input="hello", background=True, max_output_tokens=1500, extra_body=extra)
    assert client.responses.cancel(r.id).status == "cancelled"


def test_keys_see_and_cancel_their_own(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("ann inference concurrent=1\nbob inference\n")
    ann, bob = {"authorization": "Bearer ann"}, {"authorization": "Bearer bob"}
    with Server(env=SLOW, api_key_file=str(keys)) as s:
        r = begin(s, headers=ann, max_output_tokens=1000).json()
        for method, more in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")):
            assert s.request(method, path(r, more), headers=bob).status == 404, (method, more)
        assert s.get(path(r)).status == 401
        assert begin(s, headers=ann).status == 429  # it counts as one of the key's running requests
        assert s.post(path(r, "/cancel"), {}, headers=ann).json()["status"] == "cancelled"
        end = time.time() + 20
        while begin(s, headers=ann, max_output_tokens=2).status == 429:  # until the engine has released the other
            assert time.time() < end
            time.sleep(0.05)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_ends_running_responses(tmp_path, sig):
    options = {"data_dir": str(tmp_path / "data"), "env": SLOW}
    s = Server(**options)
    done = wait(s, begin(s, max_output_tokens=2).json())
    runs = [begin(s, max_output_tokens=1500).json() for _ in range(3)]
    s.process.send_signal(sig)
    s.process.wait(40)
    with Server(**options) as s:
        assert s.get(path(done)).json() == done
        for r in runs:
            j = s.get(path(r)).json()
            assert j["status"] == "failed" and j["error"]["message"] and j["id"] == r["id"] and j["background"] is True
            assert s.post(path(r, "/cancel"), {}).json() == j
            assert [i["content"][0]["text"] for i in s.get(path(r, "/input_items")).json()["data"]] == ["hello there"]


def test_a_full_store_refuses_background_responses(tmp_path):
    with Server(data_dir=str(tmp_path / "data"), data_max_bytes="1MiB", max_model_len=2048) as s:
        r = begin(s, metadata={"a": "b" * 400}, instructions="x " * 140000, truncate_prompt_tokens=100)
        assert r.status in (400, 507), r.body
        assert s.get("/health").status == 200
        assert begin(s, max_output_tokens=4).status == 200


def test_followers_that_leave_cost_nothing(server):
    r = begin(server, max_output_tokens=1500).json()
    for stream in ("?stream=true", "?stream=true&starting_after=1000000"):
        sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for s in sockets:
            s.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path(r, stream).encode())
        sockets[0].settimeout(20)
        assert stream.endswith("0") or sockets[0].recv(100)
        for s in sockets:
            s.close()
    waiting = socket.create_connection(("127.0.0.1", server.port))
    waiting.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n" % path(r, "/cancel").encode())
    waiting.close()
    assert wait(server, r)["status"] == "cancelled"
    assert server.get("/health").status == 200


def test_more_than_the_queue_holds_is_refused():
    with Server(env={**SLOW, "FAKE_LANES": "2"}, max_num_queued_reqs=4) as s:
        all_of_them = [begin(s, max_output_tokens=500) for _ in range(20)]
        taken = [r.json() for r in all_of_them if r.status == 200]
        assert {r.status for r in all_of_them} == {200, 503} and len(taken) <= 8
        assert [s.get(path(r)).json()["status"] for r in taken].count("queued") >= 2
        for r in taken:
            assert s.post(path(r, "/cancel"), {}).json()["status"] == "cancelled"
