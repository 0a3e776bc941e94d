# SPDX-License-Identifier: Apache-2.0
"""/v1/files and /v1/batches over raw HTTP: shapes, errors, owners, limits, and restarts."""

import json
import os
import signal
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from api import DEMO, SLOW, Server
from batch_client import ENDPOINT, create, form, line, lines_of, run, upload, wait_for
from nightly import NIGHTLY


@pytest.fixture(scope="module")
def server():
    with Server(real=True, served_model_name="demo", max_model_len=1024) as s:
        yield s


def test_a_batch_from_upload_to_answers(server):
    s = server
    lines = [line("r%d" % i, {"prompt": "Count from %d" % i, "max_tokens": 4, "temperature": 0}) for i in range(40)]
    lines[7] = line("bad", {"prompt": "x", "max_tokens": -1})
    lines[9] = line("stranger", {"prompt": "x", "model": "nobody"})
    f = upload(s, "".join(lines))
    assert f.status == 200 and f.json()["object"] == "file" and f.json()["purpose"] == "batch"
    assert f.json()["bytes"] == sum(map(len, lines)) and f.json()["filename"] == "in.jsonl"
    b = create(s, f.json()["id"], metadata={"who": 'a "b"'})
    assert b.status == 200 and b.json()["status"] == "validating" and b.json()["object"] == "batch"
    end = wait_for(s, b.json()["id"])
    assert end["status"] == "completed" and end["request_counts"] == {"total": 40, "completed": 38, "failed": 2}
    assert end["metadata"] == {"who": 'a "b"'} and end["in_progress_at"] and end["completed_at"] and not end["errors"]
    good, bad = lines_of(s, end["output_file_id"]), lines_of(s, end["error_file_id"])
    assert sorted(g["custom_id"] for g in good) == sorted("r%d" % i for i in range(40) if i not in (7, 9))
    for g in good:
        assert g["response"]["status_code"] == 200 and g["error"] is None and g["id"].startswith("batch_req_")
        assert g["response"]["body"]["object"] == "text_completion"
    assert {e["custom_id"]: e["response"]["status_code"] for e in bad} == {"bad": 400, "stranger": 404}
    assert end["usage"]["output_tokens"] == sum(g["response"]["body"]["usage"]["completion_tokens"] for g in good)
    alone = s.complete("Count from 3", max_tokens=4, temperature=0).json()["choices"][0]["text"]
    assert [g for g in good if g["custom_id"] == "r3"][0]["response"]["body"]["choices"][0]["text"] == alone


def test_every_endpoint(server):
    s = server
    for url, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}),
                      ("/v1/embeddings", {"input": "hello"}),
                      ("/v1/responses", {"input": "hello", "max_output_tokens": 16})):
        end = run(s, [line("a", body, url), line("b", body, url)], endpoint=url)
        assert end["status"] == "completed" and end["request_counts"]["completed"] == 2, end


@pytest.mark.parametrize("text,code,number", [
    ("{nonsense\n", "invalid_json_line", 1),
    (line("a", {"prompt": "x"}) + "\n" + line("a", {"prompt": "y"}), "duplicate_custom_id", 3),
    (line("a\0", {"prompt": "x"}), "invalid_value", 1),
    (line("a", {"prompt": "x"}, url="/v1/chat/completions"), "invalid_url", 1),
    (line("a", {"prompt": "x"}, method="GET"), "invalid_method", 1),
    (line("a", {"prompt": "x", "stream": True}), "unsupported_parameter", 1),
    ('{"custom_id":"a","method":"POST","url":"/v1/completions"}', "missing_required_parameter", 1),
    ('{"custom_id":7,"method":"POST","url":"/v1/completions","body":{}}', "invalid_type", 1),
    ("[1]\n", "invalid_json_line", 1),
    ("", "empty_file", None),
    ("\n\n", "empty_file", None),
])
def test_a_wrong_line_fails_the_batch_before_anything_is_run(server, text, code, number):
    end = run(server, [text])
    assert end["status"] == "failed" and end["failed_at"] and end["request_counts"]["total"] == 0
    (e,) = end["errors"]["data"]
    assert e["code"] == code and e["line"] == number and e["message"]


def test_lists_have_pages(server):
    s = server
    ids = [upload(s, "x%d" % i).json()["id"] for i in range(5)]
    first = s.get("/v1/files?limit=2").json()
    assert [f["id"] for f in first["data"]] == ids[:2:-1] and first["has_more"] and first["last_id"] == ids[3]
    second = s.get("/v1/files?limit=2&after=" + first["last_id"]).json()
    assert [f["id"] for f in second["data"]] == ids[2:0:-1]
    assert s.get("/v1/files?order=asc&limit=10000").json()["data"][-1]["id"] == ids[4]
    assert s.get("/v1/files?purpose=batch_output&limit=1").json()["data"][0]["purpose"] == "batch_output"
    for query in ("limit=0", "limit=x", "limit=10001", "order=up"):
        assert s.get("/v1/files?" + query).error["code"] == "invalid_value"
    assert s.get("/v1/batches?limit=101").status == 400
    page = s.get("/v1/batches?limit=1").json()
    assert len(page["data"]) == 1 and page["has_more"] and page["first_id"] == page["last_id"] == page["data"][0]["id"]
    assert s.request("DELETE", "/v1/files/" + ids[0]).json() == {"id": ids[0], "object": "file", "deleted": True}
    assert s.get("/v1/files/" + ids[0]).status == 404 and s.request("DELETE", "/v1/files/" + ids[0]).status == 404


def test_invalid_batches_are_refused(server):
    s = server
    assert upload(s, "x", purpose=b"fine-tune").error["code"] == "unsupported_value"
    body, head = form([("purpose", b"batch")])
    assert s.request("POST", "/v1/files", body, head).error["param"] == "file"
    body, head = form([("file", ("a", b"x"))])
    assert s.request("POST", "/v1/files", body, head).error["param"] == "purpose"
    assert s.request("POST", "/v1/files", "{}").status == 415
    for broken in (b"", b"--b0undary", body[:-4], body[:20], body.replace(b"name=", b"mane="), b"x" + body):
        r = s.request("POST", "/v1/files", broken, head)
        assert r.status == 400 and r.error["code"] == "invalid_multipart", broken
    more = [("expires_after[anchor]", b"created_at"), ("expires_after[seconds]", b"3600")]
    f = upload(s, "x", more=more).json()
    assert f["expires_at"] == f["created_at"] + 3600
    assert upload(s, "x", more=more[:1]).status == 400 and upload(s, "x", more=more[1:]).status == 400
    f = f["id"]
    for more, param in (({"endpoint": "/v1/nothing"}, "endpoint"), ({"completion_window": "1h"}, "completion_window"),
                        ({"input_file_id": "file-none"}, "input_file_id"), ({"metadata": {"a": 1}}, "metadata"),
                        ({"endpoint": None}, "endpoint"), ({"output_expires_after": {"anchor": "x"}}, "output_expires_after")):
        r = create(s, f, **more)
        assert r.status == (404 if param == "input_file_id" else 400) and r.error["param"] == param, (more, r.body)
    assert s.get("/v1/batches/batch_none").status == 404 and s.post("/v1/batches/batch_none/cancel", None).status == 404
    assert s.request("POST", "/v1/batches", "[]").status == 400 and s.request("POST", "/v1/batches", "").status == 400


def test_a_file_name_is_not_used_as_a_path(server):
    f = upload(server, "x", name='../../etc/pass%22wd').json()
    assert f["filename"] == '../../etc/pass"wd' and not os.path.exists("/etc/pass\"wd")


def test_cancel_ends_every_line(server):
    s = server
    lines = [line("r%d" % i, {"prompt": "Count from %d" % i, "max_tokens": 900, "ignore_eos": True}) for i in range(300)]
    f = upload(s, "".join(lines)).json()
    first, second = create(s, f["id"]).json(), create(s, f["id"]).json()
    while s.get("/v1/batches/" + first["id"]).json()["status"] == "validating":
        time.sleep(0.02)
    assert s.request("DELETE", "/v1/files/" + f["id"]).error["code"] == "file_in_use"
    assert s.post("/v1/batches/%s/cancel" % second["id"], None).json()["status"] == "cancelling"
    assert wait_for(s, second["id"])["status"] == "cancelled"
    assert s.post("/v1/batches/%s/cancel" % first["id"], None).json()["status"] == "cancelling"
    end = wait_for(s, first["id"])
    assert end["status"] == "cancelled" and end["cancelling_at"] and end["cancelled_at"]
    answered = lines_of(s, end["output_file_id"]) if end["output_file_id"] else []
    errors = lines_of(s, end["error_file_id"])
    assert sorted(l["custom_id"] for l in answered + errors) == sorted("r%d" % i for i in range(300))
    assert all(e["error"]["code"] == "batch_cancelled" and e["response"] is None for e in errors)
    assert s.post("/v1/batches/%s/cancel" % first["id"], None).json()["status"] == "cancelled"
    assert s.chat("hi", max_tokens=2).status == 200


def test_interactive_requests_pass_a_batch(server):
    s = server
    lines = [line("r%d" % i, {"prompt": "Count from %d" % i, "max_tokens": 400, "ignore_eos": True}) for i in range(200)]
    b = create(s, upload(s, "".join(lines)).json()["id"]).json()
    while not s.metric("sluice_batch_lines_done_total") or s.metric("vllm:num_requests_running") < 8:
        time.sleep(0.02)
    start = time.time()
    for _ in range(3):
        assert s.chat("hi", max_tokens=1).status == 200
    assert time.time() - start < 15
    running = s.get("/requests").json()["data"]
    assert len(running) >= 8 and all(r["phase"] in ("prepare", "waiting", "decode", "ending") for r in running)
    assert s.get("/v1/batches/" + b["id"]).json()["status"] == "in_progress"
    s.post("/v1/batches/%s/cancel" % b["id"], None)
    wait_for(s, b["id"])


def test_uploads_that_break_off_leave_nothing(server):
    s = server
    n = len(s.get("/v1/files?limit=10000").json()["data"])
    body, head = form([("purpose", b"batch"), ("file", ("a", b"x" * 300000))])
    request = ("POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
               % (head["content-type"], len(body))).encode() + body
    for i in range(40):
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(request[:len(request) * i // 40])
    big = s.request("POST", "/v1/files", None, {**head, "content-length": str(300 << 20)})
    assert big.status == 413
    assert s.request("POST", "/v1/batches", json.dumps({"a": "x" * (2 << 20)})).status == 413
    with ThreadPoolExecutor(8) as pool:  # some files are deleted while others are read
        ids = [r.json()["id"] for r in pool.map(lambda i: upload(s, b"y" * 100000), range(24))]
        reads = pool.map(lambda i: s.get("/v1/files/%s/content" % i).status, ids * 3)
        deletes = list(pool.map(lambda i: s.request("DELETE", "/v1/files/" + i).status, ids))
        assert set(reads) <= {200, 404} and deletes == [200] * 24
    assert len(s.get("/v1/files?limit=10000").json()["data"]) == n
    end = time.time() + 20
    while s.metric_plain("sluice_http_held_body_bytes") > 0:
        assert time.time() < end
        time.sleep(0.1)


def test_metrics(server):
    text = server.get("/metrics").body.decode()
    for name in ('sluice_batches{', "sluice_batch_lines_done_total{", "sluice_batch_lines_failed_total{",
                 "sluice_batch_prompt_tokens_total{", "sluice_batch_computed_tokens_total{", "sluice_store_bytes{",
                 "sluice_store_files{"):
        assert name in text, name


def test_a_key_sees_only_its_own_data():
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("aaa inference a\nbbb inference b\nmmm metrics m\n")
        keys.flush()
        with Server(real=True, max_model_len=1024, api_key_file=keys.name) as s:
            a, b, m = ({"authorization": "Bearer " + k} for k in ("aaa", "bbb", "mmm"))
            f = upload(s, line("x", {"prompt": "hi", "max_tokens": 2}), headers=a).json()["id"]
            for path in ("", "/" + f, "/%s/content" % f):
                assert s.get("/v1/files" + path).status == 401 and s.get("/v1/files" + path, headers=m).status == 403
            assert s.get("/v1/files/" + f, headers=b).status == 404 and s.get("/v1/files", headers=b).json()["data"] == []
            assert s.request("DELETE", "/v1/files/" + f, headers=b).status == 404
            assert create(s, f, headers=b).error["param"] == "input_file_id"
            batch = create(s, f, headers=a).json()["id"]
            assert s.get("/v1/batches/" + batch, headers=b).status == 404
            assert s.request("POST", "/v1/batches/%s/cancel" % batch, headers=b).status == 404
            assert s.get("/v1/batches", headers=b).json()["data"] == []
            end = wait_for(s, batch, headers=a)
            assert s.get("/v1/files/%s/content" % end["output_file_id"], headers=b).status == 404
            assert len(lines_of(s, end["output_file_id"], headers=a)) == 1


def test_a_full_store_is_reported_and_loses_nothing():
    with tempfile.TemporaryDirectory() as folder:
        with Server(real=True, max_model_len=1024, data_dir=folder, data_max_bytes="2MiB") as s:
            lines = [line("r%d" % i, {"prompt": "Count", "max_tokens": 120, "ignore_eos": True}) for i in range(60)]
            b = create(s, upload(s, "".join(lines)).json()["id"]).json()["id"]
            ballast = []
            for size in (1 << 19, 1 << 17, 1 << 15, 1 << 13, 1 << 10):
                while (r := upload(s, b"x" * size)).status == 200:
                    ballast.append(r.json()["id"])
                assert r.status == 507 and r.error["code"] == "storage_full" and r.headers["x-should-retry"] == "false"
            end = time.time() + (300 if SLOW else 60)
            while "answers could not be stored" not in s.stderr() and time.time() < end:
                time.sleep(0.1)
            assert "answers could not be stored" in s.stderr()
            assert s.get("/v1/batches/" + b).json()["status"] == "in_progress"
            for f in ballast:
                assert s.request("DELETE", "/v1/files/" + f).status == 200
            end = wait_for(s, b)
            assert end["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
            assert len({l["custom_id"] for l in lines_of(s, end["output_file_id"])}) == 60


def test_a_second_server_on_the_same_folder_does_not_start():
    with tempfile.TemporaryDirectory() as folder:
        with Server(real=True, max_model_len=1024, data_dir=folder):
            with pytest.raises(RuntimeError, match="used by another server"):
                Server(real=True, max_model_len=1024, data_dir=folder)


def test_a_batch_survives_kills():
    """kill -9 at any moment: every custom_id has one answer, the same as in an undisturbed run."""
    kills, n = int(os.environ.get("SLUICE_KILLS", "200" if NIGHTLY else "4")), 400 if NIGHTLY and not SLOW else 100
    lines = [line("r%d" % i, {"prompt": "Count from %d to" % i, "max_tokens": 24, "temperature": 0, "ignore_eos": True})
             for i in range(n)]
    def texts(s, end):
        out = lines_of(s, end["output_file_id"])
        assert len(out) == len(lines)
        return {l["custom_id"]: l["response"]["body"]["choices"][0]["text"] for l in out}
    options = dict(real=True, model=DEMO, served_model_name="demo", max_model_len=1024, max_num_seqs=8)
    with Server(**options) as s:
        want = texts(s, run(s, lines))
    assert len(want) == len(lines)
    n_killed = 0
    while n_killed < kills:
        with tempfile.TemporaryDirectory() as folder:
            s = Server(data_dir=folder, **options)
            b = create(s, upload(s, "".join(lines)).json()["id"]).json()["id"]
            while n_killed < kills:
                time.sleep(0.02 + (n_killed * 7919 % 100) / 100 * 0.5)
                over = s.get("/v1/batches/" + b).json()["status"] == "completed"
                s.stop(signal.SIGKILL)
                n_killed += 1
                s = Server(data_dir=folder, **options)
                if over:
                    break
            end = wait_for(s, b, seconds=120)
            assert end["status"] == "completed" and end["request_counts"] == {"total": n, "completed": n, "failed": 0}
            assert texts(s, end) == want
            assert s.stop() == 0
