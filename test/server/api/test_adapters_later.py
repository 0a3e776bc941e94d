# SPDX-License-Identifier: Apache-2.0
"""Adapters that are loaded and unloaded while the server runs: their answers are PEFT's, those of others do not change, and
requests of an adapter that is unloaded end as if it were not."""
import json
import os
import re
import shutil
import threading
import time

import golden
import pytest
import seeded
from api import Server

SOURCE = os.path.join(seeded.ROOT, "test/golden-adapters")


def folder(family):
    return seeded.complete(os.path.join(SOURCE, family), os.path.join(seeded.ROOT, "build/golden-adapters", family))


def model(family):
    return next(os.path.join(group, family) for group in (golden.GOLDEN, golden.FAMILIES) if os.path.isdir(os.path.join(group, family)))


def cases(family):
    with open(os.path.join(SOURCE, family, "expected.json")) as f:
        return json.load(f)["cases"]


def serve(family="llama-3", **more):
    return Server(real=True, model=model(family), served_model_name="base", threads=2, **{"max_loras": 2, "max_lora_rank": 8, **more})


@pytest.fixture(scope="module")
def server():
    with serve() as s:
        yield s


@pytest.fixture(autouse=True)
def none_is_left(request):
    yield
    if "server" in request.fixturenames:
        s = request.getfixturevalue("server")
        for m in s.get("/v1/models").json()["data"]:
            if m["parent"]:
                assert unload(s, m["id"]).status == 200


def load(s, name, path=None, **more):
    return s.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path or folder("llama-3"), **more})


def unload(s, name):
    return s.post("/v1/unload_lora_adapter", {"lora_name": name})


def complete(s, name, prompt, n=8, **more):
    return s.post("/v1/completions", {"model": name, "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                                      "return_token_ids": True, **more})


def ids(r):
    assert r.status == 200, r.body
    return r.json()["choices"][0]["token_ids"]


def cached(r):
    return r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("family, ranks", [("llama-3", 1), ("llama-3", 2), ("qwen3.5", 1), ("deepseek-v3", 1), ("phi-3", 1), ("kimi-linear", 2)])
def test_answers_are_those_of_peft(family, ranks):
    with serve(family, dtype="float32", tensor_parallel_size=ranks) as s:
        before = [ids(complete(s, "base", c["prompt"], len(c["greedy"]))) for c in cases(family)]
        r = load(s, "it", folder(family))
        assert (r.status, r.body.decode()) == (200, "Success: LoRA adapter 'it' added successfully.") and r.headers["content-type"].startswith("text/plain")
        for case, base in zip(cases(family), before):
            r = complete(s, "it", case["prompt"], len(case["greedy"]), prompt_logprobs=0)
            assert ids(r) == case["greedy"] != base
            got = [next(iter(p.values()))["logprob"] for p in r.json()["choices"][0]["prompt_logprobs"][1:]]
            assert max(abs(a - b) for a, b in zip(got, case["prompt_logprobs"])) <= 1e-3
            assert ids(complete(s, "base", case["prompt"], len(case["greedy"]))) == base


def test_the_document_has_their_routes(server):
    assert {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"} <= set(server.get("/openapi.json").json()["paths"])


def test_it_is_listed_until_it_is_unloaded(server):
    names = lambda: [(m["id"], m["parent"], m["root"]) for m in server.get("/v1/models").json()["data"][1:]]
    assert names() == [] and load(server, "b").status == 200 and load(server, "a").status == 200
    assert names() == [("b", "base", folder("llama-3")), ("a", "base", folder("llama-3"))]
    assert server.get("/v1/models/a").json()["root"] == folder("llama-3")
    r = unload(server, "b")
    assert (r.status, r.body.decode()) == (200, "Success: LoRA adapter 'b' removed successfully.") and [n[0] for n in names()] == ["a"]
    assert complete(server, "b", [5, 6]).error["code"] == "model_not_found" and server.get("/v1/models/b").status == 404
    assert (unload(server, "b").status, unload(server, "base").status) == (404, 404)


def other(tmp_path, edit=lambda c: {**c, "lora_alpha": 5 * c["lora_alpha"]}, name="other"):
    path = shutil.copytree(folder("llama-3"), tmp_path / name)
    config = json.loads((path / "adapter_config.json").read_text())
    os.remove(path / "adapter_config.json")
    (path / "adapter_config.json").write_text(json.dumps(edit(config)))
    return str(path)


def test_a_place_is_used_again_but_never_its_blocks(server, tmp_path):
    prompt = list(range(20, 84))
    changed = other(tmp_path)
    assert load(server, "x").status == 200
    first = complete(server, "x", prompt)
    assert cached(complete(server, "x", prompt)) > 0 == cached(first)
    assert unload(server, "x").status == 200 and load(server, "x", changed).status == 200
    second = complete(server, "x", prompt)
    assert cached(second) == 0 and ids(second) != ids(first)
    assert load(server, "x").error["param"] == "lora_name"  # without load_inplace
    assert load(server, "x", load_inplace=True).status == 200
    third = complete(server, "x", prompt)
    assert cached(third) == 0 and ids(third) == ids(first)
    assert [m["id"] for m in server.get("/v1/models").json()["data"]] == ["base", "x"]


def test_requests_of_an_unloaded_adapter_end_first(server, tmp_path):
    changed, prompt = other(tmp_path), list(range(20, 40))
    assert load(server, "x").status == 200
    want = ids(complete(server, "x", prompt, 300))
    answers = []
    ask = threading.Thread(target=lambda: answers.append(complete(server, "x", prompt, 300)))
    ask.start()
    while not answers and all(r["phase"] not in ("waiting", "decode") for r in server.get("/requests").json()["data"]):
        pass  # until it has been read: before that it does not hold its adapter
    assert unload(server, "x").status == 200 and complete(server, "x", prompt).status == 404
    assert load(server, "y", changed).status == 200
    r = load(server, "z", changed)  # the place of x is free when its request has ended
    ask.join()
    assert ids(answers[0]) == want
    end = time.time() + 5  # an answer can be here before its request has ended there
    while r.status != 200:
        assert r.error["code"] == "unsupported_value" and "--max-loras" in r.error["message"] and time.time() < end, r.body
        r = load(server, "z", changed)
    assert ids(complete(server, "z", prompt, 20)) == ids(complete(server, "y", prompt, 20)) != want[:20]


def info(s):
    (line,) = [l for l in s.get("/metrics").body.decode().splitlines() if l.startswith("vllm:lora_requests_info{")]
    labels, value = line[len("vllm:lora_requests_info{"):].split("} ")
    return dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)


def test_the_metric_of_gateways_names_adapters_with_requests():
    with serve(max_num_seqs=1, lora_modules=f"one={folder('llama-3')}", max_loras=3) as s:
        assert load(s, "two").status == 200
        idle = {"max_lora": "3", "running_lora_adapters": "", "waiting_lora_adapters": ""}
        assert info(s)[0] == idle and abs(info(s)[1] - time.time()) < 5
        stop, end = threading.Event(), time.time() + 30

        def ask(name):
            while not stop.is_set():
                assert complete(s, name, [5, 6, 7], 200).status == 200
        asks = [threading.Thread(target=ask, args=(name,)) for name in ("two", "one", "base")]
        for t in asks:
            t.start()
        while info(s)[0] != {**idle, "running_lora_adapters": "two", "waiting_lora_adapters": "one"}:
            assert time.time() < end
        stop.set()
        for t in asks:
            t.join()
        end = time.time() + 5
        while info(s)[0] != idle:
            assert time.time() < end
    with Server(real=True) as s:
        assert "lora_requests_info" not in s.get("/metrics").body.decode()


def test_loads_beside_other_requests(server, tmp_path):
    """Answers of the model itself, while adapters come and go."""
    changed, prompt = other(tmp_path), list(range(60, 90))
    want, stop, wrong = ids(complete(server, "base", prompt, 60)), threading.Event(), []

    def ask():
        while not stop.is_set():
            got = ids(complete(server, "base", prompt, 60))
            if got != want:
                wrong.append(got)
    askers = [threading.Thread(target=ask) for _ in range(3)]
    for t in askers:
        t.start()
    seen = set()
    for i in range(12):
        assert load(server, "x", [None, changed][i % 2], load_inplace=True).status == 200
        seen.add((i % 2, tuple(ids(complete(server, "x", prompt, 6)))))
    stop.set()
    for t in askers:
        t.join()
    assert not wrong and len(seen) == 2


@pytest.mark.parametrize("body, status, param", [
    ({"lora_path": "/x"}, 400, "lora_name"), ({"lora_name": "x"}, 400, "lora_path"), ({"lora_name": "", "lora_path": "/x"}, 400, "lora_name"),
    ({"lora_name": 5, "lora_path": "/x"}, 400, "lora_name"), ({"lora_name": "x", "lora_path": "/nowhere"}, 404, "lora_path"),
    ({"lora_name": "base", "lora_path": "/x"}, 400, "lora_name"), ({"lora_name": "base", "lora_path": "/x", "load_inplace": True}, 400, "lora_name"),
    ({"lora_name": "x", "lora_path": "/x", "load_inplace": "yes"}, 400, "load_inplace")])
def test_mistakes_are_named(server, body, status, param):
    r = server.post("/v1/load_lora_adapter", body)
    assert (r.status, r.error["param"]) == (status, param), r.body


def test_what_does_not_fit_is_refused_and_the_place_stays_free(server, tmp_path):
    for edit, word in ((lambda c: {**c, "use_dora": True}, "use_dora"), (lambda c: {**c, "r": 9}, "has rank 4")):
        r = load(server, "x", other(tmp_path, edit, word.replace(" ", "")))
        assert r.status == 400 and r.error["param"] == "lora_path" and word in r.error["message"], r.body
    for _ in range(3):
        r = load(server, "x", folder("phi-3"))
        assert r.status == 400 and ("another model" in r.error["message"] or "not possible" in r.error["message"]), r.body
    assert load(server, "x").status == 200 and load(server, "y").status == 200
    assert load(server, "z").error["code"] == "unsupported_value"
    assert complete(server, "base", [5, 6, 7]).status == 200


def test_a_larger_rank_needs_room():
    with serve(max_lora_rank=1, max_loras=1) as s:  # ranks are padded to 16, so that of the stored adapter fits
        assert load(s, "x").status == 200


def test_without_places_nothing_is_loaded():
    with serve(max_loras=0) as s:
        assert not any("lora" in path for path in s.get("/openapi.json").json()["paths"])
        r = load(s, "x")
        assert r.status == 404 and "--max-loras" in r.error["message"]
    with serve(lora_modules=f"one={folder('llama-3')}", max_loras=1) as s:
        assert load(s, "x").status == 404


def test_adapters_of_the_command_line_may_be_unloaded():
    with serve(lora_modules=f"one={folder('llama-3')}", max_loras=2) as s:
        want = ids(complete(s, "one", [5, 6, 7]))
        assert load(s, "two").status == 200 and ids(complete(s, "two", [5, 6, 7])) == want
        assert unload(s, "one").status == 200 and complete(s, "one", [5]).status == 404
        assert load(s, "three").status == 200 and ids(complete(s, "three", [5, 6, 7])) == want


def test_only_operators_may_load(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("user inference\noperator inference,admin\n")
    with serve(api_key_file=keys, wait=False) as s:
        ask = lambda key: s.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": folder("llama-3")}, headers={"authorization": "Bearer " + key})
        while s.get("/health").status != 200:
            pass
        assert (ask("user").status, ask("operator").status) == (403, 200)
