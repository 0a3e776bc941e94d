# SPDX-License-Identifier: Apache-2.0
"""Requests choose an adapter by its name; which adapters answer rightly is tested in test/model/test_adapters.py."""
import os

import golden
import pytest
import seeded
from api import Server

FOLDER = seeded.complete(os.path.join(seeded.ROOT, "test/golden-adapters/llama-3"),
                         os.path.join(seeded.ROOT, "build/golden-adapters/llama-3"))
PROMPT = list(range(20, 60))


@pytest.fixture(scope="module")
def server():
    with Server(real=True, model=os.path.join(golden.GOLDEN, "llama-3"), served_model_name="base", threads=2,
                more=["--enable-lora", "--lora-modules", f"one={FOLDER}", f'{{"name":"two","path":"{FOLDER}"}}']) as s:
        yield s


def complete(server, model, **more):
    return server.post("/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 6, "temperature": 0,
                                           "return_token_ids": True, **more})


def test_adapters_are_listed_with_their_parent(server):
    models = {m["id"]: m for m in server.get("/v1/models").json()["data"]}
    assert list(models) == ["base", "one", "two"]
    assert models["one"]["parent"] == "base" and models["one"]["root"] == FOLDER and models["base"]["parent"] is None
    assert server.get("/v1/models/two").json()["id"] == "two"


def test_ollamas_lists_have_all_names(server):
    for path in ("/api/tags", "/api/ps"):
        models = server.get(path).json()["models"]
        assert [(m["name"], m["details"]["parent_model"]) for m in models] == [("base:latest", ""), ("one:latest", "base"), ("two:latest", "base")]
    with Server(real=True, served_model_name="x,y") as s:
        assert [m["name"] for m in s.get("/api/tags").json()["models"]] == ["x:latest", "y:latest"]


def test_a_request_names_its_adapter(server):
    base, one, two = (complete(server, name).json() for name in ("base", "one", "two"))
    assert [base["model"], one["model"], two["model"]] == ["base", "one", "two"]
    assert one["choices"][0]["token_ids"] == two["choices"][0]["token_ids"] != base["choices"][0]["token_ids"]
    reply = complete(server, "three")
    assert reply.status == 404 and reply.error["code"] == "model_not_found"


def test_cached_blocks_belong_to_one_adapter(server):
    server.post("/reset_prefix_cache", {})
    cached = lambda name: complete(server, name).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert [cached(name) for name in ("one", "base", "two")] == [0, 0, 0]
    assert all(cached(name) > 0 for name in ("one", "base", "two"))


def test_every_kind_of_request_may_name_one(server):
    for path, body in (("/v1/embeddings", {"input": PROMPT}), ("/tokenize", {"prompt": "a"}),
                       ("/completion", {"prompt": PROMPT, "n_predict": 2})):
        vectors = [server.post(path, {"model": name, **body}) for name in ("base", "one")]
        assert [v.status for v in vectors] == [200, 200]
        if path == "/v1/embeddings":
            a, b = (v.json()["data"][0]["embedding"] for v in vectors)
            assert a != b


def test_a_server_whose_adapter_is_missing_does_not_start():
    with pytest.raises(RuntimeError, match="adapter 'x': .*adapter_config.json"):
        Server(real=True, model=os.path.join(golden.GOLDEN, "llama-3"), lora_modules="x=/nowhere")
