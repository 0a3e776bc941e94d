# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""The front end when all goes well: methods, bodies, streams, addresses, TLS, CORS, the log."""

import http.client
import json
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time

import pytest
from front import SLOW, Front, Reader, events, get, request


@pytest.fixture(scope="module")
def front():
    with Front() as f:
        yield f


def test_replies_carry_type_length_and_id(front):
    r = get(front, "/hello", headers=["X-Request-Id: abc.DEF_1:2-3"])
    assert (r.status, r.json()) == (200, {"hello": "world"})
    assert r.headers["content-type"] == "application/json"
    assert r.headers["x-request-id"] == "abc.DEF_1:2-3"
    ids = {get(front, "/hello").headers["x-request-id"] for _ in range(50)}
    assert len(ids) == 50 and all(len(i) == 32 and int(i, 16) >= 0 for i in ids)
    assert get(front, "/hello", headers=["X-Request-Id: a b"]).headers["x-request-id"] != "a b"
    assert len(get(front, "/hello", headers=["X-Request-Id: " + "a" * 129]).headers["x-request-id"]) == 32


def test_errors_are_openai_objects(front):
    r = get(front, "/nope?x=1")
    assert r.status == 404
    assert r.json()["error"] == {
        "message": "Invalid URL (GET /nope)", "type": "invalid_request_error", "param": None, "code": "unknown_url",
    }
    r = get(front, "/hello", method="DELETE")
    assert r.status == 405 and r.headers["allow"] == "GET, HEAD, POST" and r.json()["error"]["code"] == "method_not_supported"
    assert get(front, "/echo", method="get").status == 405
    assert get(front, "/items/x", method="PUT").headers["allow"] == "GET, HEAD, DELETE"
    for method in ("GET", "DELETE"):  # not for an item named x/cancel
        r = get(front, "/items/x/cancel", method=method)
        assert r.status == 405 and r.headers["allow"] == "POST"


def test_head_and_trailing_slash_and_params(front):
    r = get(front, "/hello", method="HEAD")
    assert r.status == 200 and r.headers["content-length"] == "17"
    assert get(front, "/hello/").status == 200
    assert get(front, "/items/org%2Fmodel?q=a+b%26c").json() == {"id": "org/model", "q": "a b&c"}
    assert get(front, "/items/org/model").json()["id"] == "org/model"
    assert get(front, "/items/x/cancel", method="POST", body=b"").json()["id"] == "x"
    assert get(front, "/items/%C3%A9").json()["id"] == "é"
    assert get(front, "/items/").status == 404
    assert get(front, "/items/%zz").status == 400
    assert get(front, "/items/a%00b").status == 400


@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 65535, 65536, 1 << 20, 16 << 20])
def test_bodies_come_back_whole(front, n):
    body = os.urandom(min(n, 65536)) * (n // 65536 or 1) if n else b""
    body = body[:n]
    assert get(front, "/echo", method="POST", body=body).body == body


def test_bodies_in_chunks(front):
    parts = [b"a", b"bc" * 5000, b"d" * 70000]
    raw = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
    r = get_raw(front, request("POST", "/echo", headers=["Transfer-Encoding: chunked"]) + raw)
    assert r.body == b"".join(parts)


def get_raw(front, data):
    with front.connect() as s:
        s.sendall(data)
        return Reader(s).response()


def test_a_body_that_is_too_large_is_answered_after_it(front):
    body = b"x" * ((16 << 20) + 1)
    r = get(front, "/echo", method="POST", body=body)
    assert r.status == 413 and r.json()["error"]["code"] == "request_too_large"
    r = get(front, "/small", method="POST", body=b"x" * 1001)
    assert r.status == 413 and "1000 bytes" in r.json()["error"]["message"]
    raw = b"%x\r\n%s\r\n0\r\n\r\n" % (1001, b"x" * 1001)
    assert get_raw(front, request("POST", "/small", headers=["Transfer-Encoding: chunked"]) + raw).status == 413
    assert get(front, "/small", method="POST", body=b"x" * 1000).status == 200
    front.wait_for(held_body=0)


def test_expect_continue(front):
    with front.connect() as s:
        s.sendall(request("POST", "/echo", headers=["Content-Length: 5", "Expect: 100-continue"]))
        r = Reader(s)
        assert r.until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        s.sendall(b"hello")
        assert r.response().body == b"hello"
    with front.connect() as s:  # refused before the body is requested
        s.sendall(request("POST", "/small", headers=["Content-Length: 5000", "Expect: 100-continue"]))
        r = Reader(s)
        assert r.head()[0] == 413
        assert r.closed()
    assert get_raw(front, request("POST", "/echo", b"x", headers=["Expect: tea"])).status == 417


def test_json_routes_check_the_type(front):
    post = lambda headers, body=b'{"a":1}': get(front, "/json", method="POST", body=body, headers=headers).status
    assert post(["Content-Type: application/json; charset=utf-8"]) == 200
    assert post(["Content-Type: application/merge-patch+json"]) == 200
    assert post([]) == 200
    assert post([], b"  \n{}") == 200
    assert post([], b"a=1") == 415
    assert post(["Content-Type: text/plain"]) == 415
    assert post(["Content-Type: application/json", "Content-Encoding: gzip"]) == 415
    assert post(["Content-Type: application/x-www-form-urlencoded"]) == 415


def test_authorize_runs_before_the_body(front):
    with front.connect() as s:
        s.sendall(request("POST", "/secret", headers=["Content-Length: 9000000", "Expect: 100-continue"]))
        status, headers = Reader(s).head()
        assert status == 401 and headers["www-authenticate"] == "Bearer"
    with front.connect() as s:  # and the connection continues once the body was discarded
        r = Reader(s)
        s.sendall(request("POST", "/secret", b"x" * 100000))
        assert r.response().status == 401
        s.sendall(request("POST", "/secret", b"yes", headers=["Authorization: Bearer secret"]))
        assert r.response().body == b"yes"


def test_keep_alive_and_pipelining_keep_order(front):
    with front.connect() as s:
        r = Reader(s)
        s.sendall(b"".join(request("GET", "/items/%d" % i) for i in range(20)))
        for i in range(20):
            assert r.response().json()["id"] == str(i)
        s.sendall(request("GET", "/late?ms=50") + request("POST", "/echo", b"abc") + request("GET", "/stream?n=2") +
                  request("POST", "/upper", b"xyz") + request("GET", "/hello"))
        assert r.response().json() == {"late": True}
        assert r.response().body == b"abc"
        assert len(events(r.response().body)) == 3
        assert r.response().body == b"XYZ"
        assert r.response().json() == {"hello": "world"}
    with front.connect() as s:
        s.sendall(request("GET", "/hello", headers=["Connection: close"]) + request("GET", "/items/never"))
        r = Reader(s)
        assert r.response().status == 200
        assert r.closed() and r.data == b""


def test_http_1_0_gets_no_chunks(front):
    with front.connect() as s:
        s.sendall(request("GET", "/stream?n=3&rate=100", version="HTTP/1.0"))
        r = Reader(s)
        got = r.response()
        assert "transfer-encoding" not in got.headers
        e = events(got.body)
        assert [json.loads(x)["i"] for x in e[:3]] == [0, 1, 2] and e[3] == "[DONE]"
    assert get_raw(front, request("GET", "/hello", version="HTTP/1.0", host=None)).json() == {"hello": "world"}


def test_streams_are_framed_events(front):
    r = get(front, "/stream?n=10&rate=1000")
    assert r.headers["content-type"].startswith("text/event-stream")
    assert r.headers["x-accel-buffering"] == "no" and "no-cache" in r.headers["cache-control"]
    e = events(r.body)
    assert [json.loads(x)["i"] for x in e[:-1]] == list(range(10)) and e[-1] == "[DONE]"
    assert get(front, "/stream", method="HEAD").status == 200


@pytest.mark.parametrize("n_bytes", [1, 59000, 60001, 200000])
def test_events_of_any_size_arrive_whole(front, n_bytes):
    e = events(get(front, "/stream?n=4&bytes=%d" % n_bytes).body)
    assert len(e) == 5 and all(len(json.loads(x)["x"]) == n_bytes for x in e[:4])


def test_each_token_is_sent_at_once(front):
    with front.connect() as s:
        s.sendall(request("GET", "/stream?n=5&rate=20"))
        r = Reader(s)
        r.head()
        late = []
        for _ in range(5):
            stamp = json.loads(events(r.chunk())[0])["t"]
            late.append(time.monotonic_ns() - stamp)
        assert SLOW or min(late) < 20e6, late


def test_an_error_after_the_head_is_an_event(front):
    e = events(get(front, "/stream?n=5&fail=2").body)
    assert json.loads(e[2])["error"]["code"] == "internal_error" and e[3] == "[DONE]" and len(e) == 4


def test_a_late_refusal_keeps_its_status(front):
    r = get(front, "/refused?ms=100")
    assert r.status == 503 and r.headers["retry-after"] == "7" and r.headers["retry-after-ms"] == "7000"
    assert r.json()["error"]["code"] == "server_overloaded"


def test_the_head_goes_out_with_a_comment_after_its_delay():
    with Front(head_delay_ms=200, keep_alive_ms=300) as f:
        with f.connect() as s:
            s.sendall(request("GET", "/stream?n=1&first_ms=1200"))
            r = Reader(s)
            t = time.monotonic()
            assert r.head()[0] == 200
            assert SLOW or 0.15 < time.monotonic() - t < 1.1
            n = 0
            while True:
                c = r.chunk()
                if not c.startswith(b": "):
                    break
                assert c == b": keep-alive\n\n"
                n += 1
            assert 2 <= n <= 5 or SLOW
        r = get(f, "/refused?ms=600")  # too late: the status has been sent
        assert r.status == 200
        e = events(r.body)
        assert json.loads(e[0])["error"]["code"] == "server_overloaded" and e[1] == "[DONE]"


def test_a_slow_pool_job_does_not_hold_up_others(front):
    with front.connect() as s:
        s.sendall(request("POST", "/upper?ms=400", b"x" * 100000))
        t = time.monotonic()
        assert get(front, "/hello").status == 200
        assert SLOW or time.monotonic() - t < 0.39
        assert Reader(s).response().body == b"X" * 100000


def test_listeners_of_every_kind():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "s")
        passed = socket.socket()
        passed.bind(("127.0.0.1", 0))
        listen = ["127.0.0.1:0", "[::1]:0", "unix:" + path, "localhost:0", ":0", "fd:%d" % passed.fileno()]
        with Front(listen=listen, pass_fds=[passed.fileno()]) as f:
            assert len(f.addresses) >= 6
            for i in range(len(f.addresses)):
                if f.addresses[i].startswith("[::]"):
                    f.addresses[i] = f.addresses[i].replace("[::]", "127.0.0.1")
                assert get(f, "/hello", i=i).status == 200, f.addresses[i]
                assert len(events(get(f, "/stream?n=3", i=i).body)) == 4
            with f.connect(2) as s:
                r = Reader(s)
                for _ in range(3):
                    s.sendall(request("POST", "/echo", b"z" * 100000))
                    assert len(r.response().body) == 100000
        assert not os.path.exists(path)
        sock = socket.socket(socket.AF_UNIX)  # a stale socket is replaced
        sock.bind(path)
        sock.close()
        with Front(listen=["unix:" + path]) as f:
            assert get(f, "/hello").status == 200
            assert subprocess.run([f.process.args[0], "--listen", "unix:" + path], capture_output=True).returncode == 1
        passed.close()


@pytest.mark.parametrize("listen", ["127.0.0.1", "nonsense:", "fd:x", "fd:999", "unix:", "256.0.0.1:80", "127.0.0.1:99999"])
def test_bad_addresses_are_errors(front, listen):
    r = subprocess.run([front.process.args[0], "--listen", listen], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and r.stderr.startswith("front_server: ")


def test_a_port_in_use_is_an_error(front):
    r = subprocess.run([front.process.args[0], "--listen", front.addresses[0]], capture_output=True, text=True)
    assert r.returncode == 1 and "in use" in r.stderr


def test_cors_is_off_by_default_and_exact_when_on(front):
    assert "access-control-allow-origin" not in get(front, "/hello", headers=["Origin: https://a.example"]).headers
    assert get(front, "/hello", method="OPTIONS").status == 405
    with Front(cors_origins="https://a.example, https://b.example") as f:
        r = get(f, "/hello", headers=["Origin: https://b.example"])
        assert r.headers["access-control-allow-origin"] == "https://b.example" and r.headers["vary"] == "Origin"
        assert "access-control-allow-origin" not in get(f, "/hello", headers=["Origin: https://c.example"]).headers
        assert "access-control-allow-origin" not in get(f, "/hello", headers=["Origin: https://a.example.evil"]).headers
        pre = ["Origin: https://a.example", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: x-a"]
        r = get(f, "/echo", method="OPTIONS", headers=pre)
        assert r.status == 200 and "POST" in r.headers["access-control-allow-methods"]
        assert r.headers["access-control-allow-headers"] == "x-a"
        pre[0] = "Origin: https://c.example"
        r = get(f, "/echo", method="OPTIONS", headers=pre)
        assert r.status == 200 and "access-control-allow-origin" not in r.headers and "access-control-allow-methods" not in r.headers
        assert get(f, "/nothing", method="OPTIONS", headers=pre).status == 404
        r = get(f, "/stream?n=1", headers=["Origin: https://a.example"])
        assert r.headers["access-control-allow-origin"] == "https://a.example"
    with Front(cors_origins="*") as f:
        assert get(f, "/hello", headers=["Origin: null"]).headers["access-control-allow-origin"] == "*"


def test_root_path():
    with Front(root_path="/api/") as f:
        assert get(f, "/api/hello").status == 200
        assert get(f, "/hello").status == 200
        assert get(f, "/apihello").status == 404


def certificate(d):
    cert, key = os.path.join(d, "c.pem"), os.path.join(d, "k.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                    key, "-out", cert, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                   check=True, capture_output=True)
    return cert, key


def test_tls_serves_streams_and_sees_clients_leave():
    with tempfile.TemporaryDirectory() as d:
        cert, key = certificate(d)
        path = os.path.join(d, "s")
        with Front(listen=["unix:" + path, "localhost:0"], tls_cert=cert, tls_key=key) as f:
            port = int(f.addresses[1].rsplit(":", 1)[1])
            context = ssl.create_default_context(cafile=cert)

            def connect():
                raw = socket.create_connection((f.addresses[1].rsplit(":", 1)[0].strip("[]"), port), 10)
                return context.wrap_socket(raw, server_hostname="localhost")

            with connect() as s:
                r = Reader(s)
                s.sendall(request("POST", "/echo", b"q" * 300000))
                assert len(r.response().body) == 300000
                s.sendall(request("GET", "/stream?n=20&rate=500&bytes=5000"))
                assert len(events(r.response().body)) == 21
                s.sendall(request("GET", "/late?ms=20"))
                assert r.response().status == 200
            with connect() as s:
                s.sendall(request("GET", "/stream?n=1000000&rate=100"))
                Reader(s).head()
                f.wait_for(live=1)
            f.wait_for(live=0, active=1)
            with connect() as s:
                s.sendall(request("GET", "/hang"))
                f.wait_for(active=2)
            f.wait_for(active=1, gone=2)
            with connect() as s, socket.create_connection(s.getpeername()[:2]) as plain:
                plain.sendall(request("GET", "/hello"))
                assert Reader(plain).closed()
                certificate(d)  # after SIGHUP old connections continue, and new ones get the new certificate
                os.kill(f.process.pid, 1)
                end = time.monotonic() + 20
                with pytest.raises(ssl.SSLError):
                    while time.monotonic() < end:
                        connect().close()
                        time.sleep(0.02)
                s.sendall(request("GET", "/hello"))
                assert Reader(s).response().status == 200
                context = ssl.create_default_context(cafile=cert)
                with connect() as fresh:
                    fresh.sendall(request("GET", "/hello"))
                    assert Reader(fresh).response().status == 200


def test_log_lines_are_json():
    with tempfile.TemporaryFile() as log:
        with Front(log=log) as f:
            get(f, "/items/a%22b%0a?secret=1", headers=["User-Agent: te\"st"])
            get(f, "/items/a%22b?secret=1", headers=["User-Agent: te\"st", "X-Stainless-Retry-Count: 2"])
            get(f, "/stream?n=3")
            get(f, "/health")
            with f.connect() as s:
                s.sendall(request("GET", "/hang"))
                f.wait_for(active=2)
            f.wait_for(active=1)
        log.seek(0)
        lines = [json.loads(l) for l in log.read().decode().splitlines() if l.startswith("{")]
    assert [l["status"] for l in lines] == [400, 200, 200, 499]
    assert lines[1]["path"] == '/items/a"b' and lines[1]["agent"] == 'te"st' and lines[1]["retry"] == 2
    assert lines[2]["stream"] is True and lines[2]["bytes_out"] > 300
    assert lines[3]["gone"] == "closed"
    assert "secret" not in json.dumps(lines)
    assert all(l["peer"].startswith("127.0.0.1:") and l["ms"] >= 0 for l in lines)


def test_real_clients(front):
    base = "http://" + front.addresses[0]
    out = subprocess.run(["curl", "-sN", "--http2", base + "/stream?n=3"], capture_output=True, timeout=20).stdout
    assert len(events(out)) == 4
    c = http.client.HTTPConnection(front.addresses[0], timeout=10)
    for _ in range(3):
        c.request("POST", "/echo", body=(b"ab" for _ in range(10)), encode_chunked=True,
                  headers={"Transfer-Encoding": "chunked"})
        assert c.getresponse().read() == b"ab" * 10
    c.close()


def test_many_threads_at_once(front):
    failures = []

    def work(k):
        try:
            with front.connect() as s:
                r = Reader(s)
                for i in range(20):
                    s.sendall(request("POST", "/upper" if i % 3 else "/echo", b"a%d" % k))
                    want = b"A%d" % k if i % 3 else b"a%d" % k
                    assert r.response().body == want
                    s.sendall(request("GET", "/stream?n=3&rate=2000"))
                    assert len(events(r.response().body)) == 4
        except Exception as e:  # shown below
            failures.append(repr(e))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures
    front.wait_for(active=1, streams=0, held_body=0, held_stream=0)
