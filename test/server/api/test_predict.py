# SPDX-License-Identifier: Apache-2.0
"""Vertex AI's /predict, as llama.cpp accepts it: several requests in one."""
import json

import pytest
from api import Server

CHAT = {"@requestFormat": "chatCompletions", "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": "What is 12 + 30?"}]}
TEXT = {"@requestFormat": "completions", "prompt": "Once upon", "max_tokens": 5, "temperature": 0}
NATIVE = {"@requestFormat": "completion", "prompt": "Once upon", "n_predict": 5, "temperature": 0}


@pytest.fixture(scope="module")
def server():
    with Server(real=True, threads=2) as s:
        yield s


def test_each_instance_is_a_request(server):
    r = server.post("/predict", {"instances": [CHAT, TEXT, NATIVE, {"@requestFormat": "embeddings", "input": "a"}, {"prompt": "Once upon", "max_tokens": 5, "temperature": 0},
                                               {"@requestFormat": "tokenize", "content": "a b"}, {**CHAT, "stream": True}]})
    assert r.status == 200, r.body
    chat, text, native, vector, told, tokens, streamed = r.json()["predictions"]
    assert chat["choices"][0]["message"]["content"] == streamed["choices"][0]["message"]["content"] == "42" and chat["object"] == "chat.completion"
    assert text["choices"][0]["text"] == told["choices"][0]["text"] == native["content"] and len(vector["data"][0]["embedding"]) > 1 and tokens["tokens"]
    assert server.post("/predict", {"instances": []}).json() == {"predictions": []}
    assert server.metric("vllm:num_requests_running") == 0


WRONG = [("[", None), ("5", None), ("[]", None), ("", None), ({}, "instances"), ({"instances": 5}, "instances"), ({"instances": {}}, "instances"), ({"instances": [5]}, None),
         ({"instances": [{}]}, "messages"), ({"instances": [CHAT, {**CHAT, "max_tokens": -1}]}, "max_tokens"), ({"instances": [{**TEXT, "prompt": "a " * 9000}]}, "prompt"),
         ({"instances": [{"@requestFormat": "responses", "input": "a", "background": True}]}, "@requestFormat"), ({"instances": [{**CHAT, "@requestFormat": 5}]}, "@requestFormat")]


@pytest.mark.parametrize("body, param", WRONG, ids=range(len(WRONG)))
def test_the_first_error_is_the_answer(server, body, param):
    r = server.post("/predict", body)
    assert r.status in (400, 415) and (param is None or r.error["param"] == param), r.body


def test_it_needs_a_key_and_counts_for_its_limits(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k inference n requests-per-minute=2\na admin m\n")
    with Server(real=True, threads=2, api_key_file=keys) as s:
        ask = lambda n, key: s.post("/predict", {"instances": [CHAT] * n}, headers={"authorization": "Bearer " + key})
        assert s.post("/predict", {}).status == 401 and ask(1, "a").status == 403
        assert ask(2, "k").status == 200 and ask(1, "k").status == 429
        # one of several instances may be too many
    keys.write_text("k inference n requests-per-minute=2\n")
    with Server(real=True, threads=2, api_key_file=keys) as s:
        assert s.post("/predict", {"instances": [CHAT] * 3}, headers={"authorization": "Bearer k"}).status == 429


def test_a_client_that_leaves_ends_the_prediction(server):
    with pytest.raises(Exception):
        server.request("POST", "/predict", {"instances": [{**NATIVE, "n_predict": 4000, "ignore_eos": True}] * 50}, timeout=0.4)
    for _ in range(200):
        if server.metric("vllm:num_requests_running") == 0:
            break
        __import__("time").sleep(0.02)
    assert server.metric("vllm:num_requests_running") == 0 and server.chat("What is 12 + 30?", max_tokens=5, temperature=0).status == 200
