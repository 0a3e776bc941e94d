# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""The start and the end of the server: loading, drain, a dead engine, bad configurations, certificates."""

import concurrent.futures
import json
import os
import signal
import socket
import time

import pytest
from api import DEMO, SLOW, Server, fold, scripted
from api_script import TEXTS, eventually, open_stream, running


def test_loading_is_visible_and_refused():
    with Server(env={"FAKE_LOAD_MS": "800"}, wait=False) as s:
        r = s.get("/health")
        assert r.status == 503 and r.json()["status"] == "loading" and "progress" in r.json()
        assert s.get("/health/live").status == 200 and s.get("/health/ready").status == 503
        r = s.complete("x")
        assert r.status == 503 and r.error["code"] == "model_loading" and r.headers["retry-after"]
        assert s.get("/v1/models").status == 503
        assert eventually(lambda: s.get("/health/ready").status == 200)
        assert s.complete("x").status == 200


def test_a_stop_while_loading_is_immediate():
    with Server(env={"FAKE_LOAD_MS": "60000"}, wait=False) as s:
        assert s.complete("x").error["code"] == "model_loading"
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(20) == 0
        assert "stopped while the model was loading" in s.stderr()
        assert [l["status"] for l in s.log_lines() if l["path"] == "/v1/completions"] == [503]


def test_a_hung_engine_is_reported():
    s = Server(stall_timeout=1, dead_timeout=1.5)
    c = open_stream(s, seed=1001)
    time.sleep(0.3)
    assert s.get("/health").status == 200
    assert eventually(lambda: s.get("/health").status == 503)
    assert s.get("/health").json()["status"] == "stalled" and s.get("/health/live").status == 200
    assert s.get("/v1/models").headers["x-engine-state"] == "stalled"
    assert eventually(lambda: s.get("/health/live").status == 503)
    assert s.complete("x").error["code"] == "engine_dead"
    r = c.getresponse()  # the request that the engine holds ends too
    assert (r.status, json.loads(r.read())["error"]["code"]) == (503, "engine_dead")
    c.close()
    assert s.process.wait(40) == 2 and "engine: dead" in s.stderr()


def test_a_dead_engine_ends_requests_and_the_process():
    s = Server()
    assert s.chat(seed=1002).error["code"] in ("internal_error", "engine_dead")
    assert eventually(lambda: s.get("/health").json()["status"] == "dead")
    assert s.get("/health/live").status == 503 and s.complete("x").error["code"] == "engine_dead"
    s.process.wait(20)
    assert s.process.returncode == 2


def test_sigterm_lets_streams_finish():
    with scripted([TEXTS[0]], env={"FAKE_STEP_US": "30000"}, drain_delay="0.5") as s:
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            streams = [pool.submit(s.chat, seed=0, stream=True) for _ in range(20)]
            assert eventually(lambda: running(s) == 20)
            s.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: s.get("/health/ready").status == 503, 0.4)
            assert s.get("/health/live").status == 200
            late = s.complete("late", max_tokens=1)  # still accepted during the delay
            assert late.status == 200
            for f in streams:
                assert fold(f.result().chunks())[0]["message"]["content"] == TEXTS[0]
        assert s.process.wait(10) == 0
    os.unlink(s.script_path)


def test_sigterm_ends_an_idle_server_at_once():
    """It ends later only if a delay was set, which is for load balancers that check readiness."""
    for delay, waits in (("-1", False), ("1", True)):
        with Server(drain_delay=delay) as s:
            assert s.complete("x", max_tokens=1).status == 200
            kept = socket.create_connection(("127.0.0.1", s.port))
            kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert kept.recv(100)
            start = time.monotonic()
            s.process.send_signal(signal.SIGTERM)
            assert s.process.wait(20) == 0
            assert SLOW or (time.monotonic() - start >= 1) == waits
    with Server(drain_delay="-1", env={"FAKE_STEP_US": "50000"}) as s:
        c = open_stream(s, max_tokens=20)
        assert eventually(lambda: running(s) == 1)
        s.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: s.get("/health/ready").status == 503) and s.complete("late", max_tokens=1).status == 200
        s.stop(signal.SIGTERM)
        c.close()


def test_threads_have_names():
    with Server(real=True, tensor_parallel_size=2, threads=2) as s:
        assert s.complete("x", max_tokens=2).status == 200
        tasks = "/proc/%d/task" % s.process.pid
        names = {open("%s/%s/comm" % (tasks, t)).read().strip() for t in os.listdir(tasks)}
        assert {"sluice", "engine", "rank 1", "pool", "cpu", "log"} <= names, names


def test_requests_during_the_drain_are_refused_and_counted():
    with Server(env={"FAKE_STEP_US": "50000"}, shutdown_timeout="1.5") as s:
        late, scrape = (socket.create_connection(("127.0.0.1", s.port)) for _ in range(2))
        body = b'{"prompt":"x"}'
        late.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        scrape.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            stream = pool.submit(s.chat, stream=True)
            assert eventually(lambda: running(s) == 1)
            s.process.send_signal(signal.SIGTERM)

            def is_closed():
                try:
                    socket.create_connection(("127.0.0.1", s.port)).close()
                except ConnectionResetError:
                    return False  # the connection was in the backlog when the socket was closed
                except ConnectionRefusedError:
                    return True

            assert eventually(is_closed)
            late.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert b"server_draining" in late.makefile("rb").read()
            scrape.sendall(b"\r\n")
            lines = scrape.makefile("rb").read().splitlines()
            assert [v for v in lines if v.startswith(b"sluice_rejected_total") and b'"draining"' in v][0].endswith(b" 1")
            assert stream.result().events()[-1] == "[DONE]"
        s.process.wait(10)


def test_streams_longer_than_the_drain_get_an_error_event():
    with Server(env={"FAKE_STEP_US": "50000"}, shutdown_timeout="0.3") as s:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            stream = pool.submit(s.chat, stream=True)
            assert eventually(lambda: running(s) == 1)
            time.sleep(0.3)
            s.process.send_signal(signal.SIGTERM)
            events = stream.result().events()
        assert events[-1] == "[DONE]" and json.loads(events[-2])["error"]["code"] == "server_draining"
        s.process.wait(10)


def test_bad_configuration_ends_with_a_clear_error():
    import subprocess

    from api import BUILD
    run = lambda *a: subprocess.run([BUILD + "/sluice", "serve", *a], capture_output=True, text=True, timeout=60)
    r = run("models/demo", "--prot", "5")
    assert r.returncode == 2 and "did you mean" in r.stderr
    r = run("/nonexistent", "--port", "0")
    assert r.returncode == 1 and "/nonexistent" in r.stderr
    assert "there is no such folder; pass one with config.json" in r.stderr
    r = run("--help")
    assert r.returncode == 0 and "--max-model-len" in r.stdout
    r = run(DEMO, "--print-config", "--port", "7")
    assert r.returncode == 0 and "port: 7" in r.stdout


@pytest.mark.parametrize("options,sentence", [
    (["--override-generation-config", '{"temperatur": 1}'], "override-generation-config: unknown key 'temperatur'; the known keys are temperature,"),
    (["--override-generation-config", '{"temperature": "hot"}'], "override-generation-config: 'temperature' should be a number"),
    (["--override-generation-config", '{"temperature": -3}'], "override-generation-config: temperature: -3 is not between 0 and 1e+30"),
    (["--override-generation-config", '{"top_k": 99999999999}'], "override-generation-config: 'top_k' should be a count"),
    (["--override-generation-config", '{"do_sample": 1}'], "override-generation-config: 'do_sample' should be true or false"),
    (["--chat-template", "{% for m in messages %}"], "chat-template: line 1: "),
    (["--kv-cache-memory-bytes", "1k"], "kv-cache-memory-bytes is 1000: give "),
])
def test_settings_that_no_request_could_use_stop_the_start(options, sentence):
    import subprocess

    from api import BUILD
    r = subprocess.run([BUILD + "/sluice", "serve", DEMO, "--port", "0", *options], capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and sentence in r.stderr, r.stderr


def test_few_descriptors_lower_the_default_but_not_an_operators_limit():
    import subprocess

    from api import BUILD
    serve = "ulimit -n 512; exec '%s/sluice' serve '%s' --port 0 --drain-delay 0 --max-connections " % (BUILD, DEMO)
    r = subprocess.run(["bash", "-c", serve + "400"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and "400 connections need 676 descriptors, but the hard limit is 512" in r.stderr
    with subprocess.Popen(["bash", "-c", serve + "auto"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as p:
        lines = []
        while not any("ready after" in l for l in lines):
            lines.append(p.stderr.readline())
            assert lines[-1], lines
        p.send_signal(signal.SIGTERM)
        assert p.wait(60) == 0
    assert any("connections are limited to 243: the hard limit of descriptors is 512" in l for l in lines)


def test_a_key_of_another_certificate_is_reported(tmp_path):
    import subprocess

    from api import BUILD
    for name in ("a", "b"):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-keyout",
                        tmp_path / (name + ".key"), "-out", tmp_path / (name + ".pem"), "-subj", "/CN=x"], check=True, capture_output=True)
    r = subprocess.run([BUILD + "/sluice", "serve", DEMO, "--port", "0", "--ssl-certfile", tmp_path / "a.pem", "--ssl-keyfile", tmp_path / "b.key"],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and "b.key: they must be a PEM certificate chain and the private key" in r.stderr, r.stderr


@pytest.mark.parametrize("least, spoken", [(None, {"TLSv1_2", "TLSv1_3"}), ("1.3", {"TLSv1_3"})])
def test_old_tls_versions_are_refused(least, spoken, tmp_path):
    import ssl
    import subprocess
    import warnings
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert, "-subj", "/CN=x"],
                   check=True, capture_output=True)
    with Server(wait=False, ssl_certfile=cert, ssl_keyfile=key, **({"ssl_min_version": least} if least else {})) as s:
        found = set()
        for name in ("TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.set_ciphers("ALL:@SECLEVEL=0")
                context.minimum_version = context.maximum_version = ssl.TLSVersion[name]
            try:
                with socket.create_connection(("127.0.0.1", s.port), 10) as raw, context.wrap_socket(raw) as tls:
                    tls.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    if tls.recv(100).startswith(b"HTTP/1.1 200"):
                        found.add(name)
            except OSError:
                pass
        assert found == spoken


def test_sampling_defaults_may_be_switched_off_and_overridden():
    with Server(override_generation_config='{"top_k": -1, "temperature": 0, "top_p": null, "max_new_tokens": 2}') as s:
        assert s.chat("a b c d e").json()["usage"]["completion_tokens"] == 2


def test_a_context_beyond_the_models_own_causes_a_warning():
    with Server(real=True, max_model_len=5000) as s:
        assert "max-model-len 5000 is more than the 4096 positions" in s.stderr()
