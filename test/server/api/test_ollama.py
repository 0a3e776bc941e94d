# SPDX-License-Identifier: Apache-2.0
"""Ollama's routes: objects, lines, tools, formats, options, and the form of their errors."""
import json

import pytest
from api import Server, scripted

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TEXTS = ["Hello there.", CALL, "<think>\nI wonder.\n</think>\n\nThe answer is 42.", "Let me see.\n" + CALL + "\n" + CALL.replace("Paris", "Rome"),
         '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par', CALL + "\nThat was it.\n" + CALL]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
FIGURES = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"}


@pytest.fixture(scope="module")
def server():
    with scripted(TEXTS, reasoning_parser="think") as s:
        yield s


@pytest.fixture(scope="module")
def real():
    with Server(real=True, threads=2) as s:
        yield s


def lines(r):
    assert r.status == 200 and r.headers["content-type"].startswith("application/x-ndjson"), r.body
    assert r.body.endswith(b"\n")
    return [json.loads(l) for l in r.body.splitlines()]


def chat(s, text="hello", seed=0, **body):
    options = {"seed": seed, **body.pop("options", {})}
    return s.post("/api/chat", {"model": "demo", "messages": [{"role": "user", "content": text}], "options": options, **body})


def folded(parts):
    """Folds the lines of a chat to one message."""
    assert [p["done"] for p in parts] == [False] * (len(parts) - 1) + [True]
    message = {"role": "assistant", "content": ""}
    for p in parts:
        assert set(p["message"]) <= {"role", "content", "thinking", "tool_calls"} and p["message"]["role"] == "assistant"
        for key in ("content", "thinking"):
            if key in p["message"]:
                message[key] = message.get(key, "") + p["message"][key]
        if "tool_calls" in p["message"]:
            message.setdefault("tool_calls", []).extend(p["message"]["tool_calls"])
    return message


@pytest.mark.parametrize("seed", range(len(TEXTS)))
def test_lines_add_up_to_the_whole_answer(server, seed):
    tools = {"tools": [TOOL]} if "tool_call" in TEXTS[seed] else {}
    whole = chat(server, seed=seed, stream=False, **tools)
    assert whole.status == 200 and whole.headers["content-type"] == "application/json"
    j, parts = whole.json(), lines(chat(server, seed=seed, **tools))
    assert folded(parts) == j["message"] and j["done"] is True and j["done_reason"] == parts[-1]["done_reason"] == "stop"
    assert FIGURES <= set(j) and FIGURES <= set(parts[-1]) and not FIGURES & set(parts[0])
    assert j["eval_count"] == parts[-1]["eval_count"] > 0 and j["prompt_eval_count"] > 0 and all(j[f] >= 0 for f in FIGURES)
    assert all(p["model"] == "demo" and p["created_at"].endswith("Z") for p in parts)


def test_text_reasoning_and_calls(server):
    message = lambda seed, **more: chat(server, seed=seed, stream=False, **more).json()["message"]
    assert message(0) == {"role": "assistant", "content": TEXTS[0]}
    assert message(1, tools=[TOOL])["tool_calls"] == [{"function": {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}}}]
    m = message(2)
    assert m["thinking"].strip() == "I wonder." and m["content"].strip() == "The answer is 42."
    m = message(3, tools=[TOOL])
    assert m["content"].strip() == "Let me see." and [c["function"]["arguments"]["city"] for c in m["tool_calls"]] == ["Paris", "Rome"]
    assert message(4, tools=[TOOL])["tool_calls"][0]["function"]["arguments"] == {}  # truncated, and still an object
    assert "tool_calls" not in message(1, tools=[]) and message(1, tools=[])["content"] == CALL


def test_a_prompt_is_a_message_or_raw(server):
    j = server.post("/api/generate", {"model": "demo:latest", "prompt": "hello", "stream": False, "options": {"seed": 0}}).json()
    assert j["response"] == TEXTS[0] and j["done"] is True and j["model"] == "demo" and FIGURES <= set(j)
    parts = lines(server.post("/api/generate", {"model": "demo", "prompt": "hello", "options": {"seed": 0}}))
    assert "".join(p["response"] for p in parts) == TEXTS[0]
    count = lambda **body: server.post("/api/generate", {"stream": False, "options": {"num_predict": 1}, "prompt": "a b", **body}).json()["prompt_eval_count"]
    assert count(raw=True) < count() < count(system="be kind")
    templated = server.post("/tokenize", {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a b"}]}).json()["count"]
    assert count(system="be kind") == templated


def test_messages_become_those_of_a_chat(server):
    messages = [{"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}]},
                {"role": "tool", "content": "11 degrees", "tool_name": "get_weather"}, {"role": "user", "content": "and\0?"}]
    openai = [messages[0], {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
        {"role": "tool", "tool_call_id": "call_0", "content": "11 degrees"}, messages[3]]
    r = server.post("/api/chat", {"messages": messages, "tools": [TOOL], "stream": False, "options": {"num_predict": 1}})
    assert r.status == 200, r.body
    assert r.json()["prompt_eval_count"] == server.post("/v1/chat/completions", {"messages": openai, "tools": [TOOL], "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    begun = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]  # the last message is continued
    r = server.post("/api/chat", {"messages": begun, "stream": False, "options": {"num_predict": 1}}).json()
    want = server.post("/v1/chat/completions", {"messages": begun, "continue_final_message": True, "max_tokens": 1}).json()
    assert r["prompt_eval_count"] == want["usage"]["prompt_tokens"]


def test_options_are_those_of_a_request(real):
    ask = lambda **options: chat(real, "What is 12 + 30?", stream=False, options=options).json()
    assert ask()["message"]["content"] == "42" and ask(temperature=0, num_predict=1)["eval_count"] == 1
    assert ask(num_predict=1)["done_reason"] == "length" and ask(num_predict=-1)["message"]["content"] == "42"
    assert ask(stop=["2"])["message"]["content"] == "4" and ask(stop="2")["message"]["content"] == "4"
    harmless = dict(num_ctx=2048, num_keep=4, num_batch=32, num_gpu=1, num_thread=2, use_mmap=True, mirostat=0, typical_p=1.0, tfs_z=1, penalize_newline=True,
                    top_k=40, top_p=0.9, min_p=0.0, repeat_penalty=1.0, repeat_last_n=64, presence_penalty=0, frequency_penalty=0, nothing=1)
    assert ask(**harmless)["message"]["content"] == "42"
    assert real.post("/api/chat", {"messages": [{"role": "user", "content": "What is 12 + 30?"}], "stream": False, "keep_alive": "5m", "options": None}).json()["message"]["content"] == "42"
    high = [ask(temperature=1e9, seed=s, num_predict=8)["message"]["content"] for s in (1, 1, 2)]
    assert high[0] == high[1] != high[2]


def test_formats_are_constraints(real):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"], "additionalProperties": False}
    for body in ({"format": schema}, {"format": schema, "think": False}):
        j = json.loads(chat(real, "What is 12 + 30?", stream=False, **body).json()["message"]["content"])
        assert set(j) == {"a"} and 0 <= j["a"] <= 9
    j = real.post("/api/generate", {"prompt": "What is 12 + 30?", "format": schema, "stream": False}).json()["response"]
    assert set(json.loads(j)) == {"a"}
    assert chat(real, stream=False, format="json", options={"num_predict": 8}).json()["message"]["content"].lstrip()[0] == "{"
    assert chat(real, stream=False, format="", options={"num_predict": 2}).status == 200


def test_log_probabilities(real):
    j = chat(real, "What is 12 + 30?", stream=False, logprobs=True, top_logprobs=2).json()
    assert [t["token"] for t in j["logprobs"]][:2] == ["4", "2"] and all(len(t["top_logprobs"]) == 2 for t in j["logprobs"])
    parts = lines(chat(real, "What is 12 + 30?", logprobs=True))
    assert [t["token"] for p in parts for t in p.get("logprobs", [])] == [t["token"] for t in j["logprobs"]]


def test_vectors(real):
    want = [d["embedding"] for d in real.post("/v1/embeddings", {"input": ["a", "b c"]}).json()["data"]]
    j = real.post("/api/embed", {"model": "demo", "input": ["a", "b c"]}).json()
    assert j["embeddings"] == want and j["prompt_eval_count"] > 0 and {"total_duration", "load_duration"} <= set(j)
    assert real.post("/api/embed", {"model": "demo", "input": "a", "options": {"num_ctx": 64}, "keep_alive": 0}).json()["embeddings"] == want[:1]
    long = "word " * 9000
    assert real.post("/api/embed", {"input": long}).json()["prompt_eval_count"] == 4096
    assert real.post("/api/embed", {"input": long, "truncate": False}).status == 400


def test_models_and_version_are_reported(server):
    (m,) = server.get("/api/tags").json()["models"]
    assert m["name"] == m["model"] == "demo:latest" and m["details"]["family"] == "fake" and m["size"] >= 0 and m["digest"] and "/" not in json.dumps(m)
    (m,) = server.get("/api/ps").json()["models"]
    assert m["name"] == "demo:latest" and m["context_length"] == 2048
    assert server.get("/api/version").json() == server.get("/version").json()
    for body in ({"model": "demo"}, {"model": "demo:latest", "verbose": True}, {"name": "demo"}):
        j = server.post("/api/show", body).json()
        assert j["capabilities"] == ["completion", "tools", "thinking", "embedding"] and j["model_info"]["general.architecture"] == "fake"
        assert j["model_info"]["fake.context_length"] == 2048 and "messages" in j["template"]


@pytest.mark.parametrize("path, body", [("/api/chat", {"model": "demo"}), ("/api/chat", {"messages": []}), ("/api/generate", {"model": "demo", "keep_alive": 0}),
                                        ("/api/generate", {"prompt": "", "stream": False})])
def test_a_request_without_a_prompt_finds_the_model_loaded(server, path, body):
    j = server.post(path, body).json()
    assert j["done"] is True and j["done_reason"] == "load" and ("message" in j) == (path == "/api/chat")


WRONG = [("/api/chat", {"model": "no", "messages": []}, 404, "`no` does not exist"), ("/api/chat", "{", 400, "could not parse"), ("/api/chat", {"messages": 5}, 400, "messages"),
         ("/api/chat", {"messages": [5]}, 400, "messages[0]"), ("/api/chat", {"messages": [{}]}, 400, "messages[0].role"),
         ("/api/chat", {"messages": [{"role": "user", "content": ["a"]}]}, 400, "messages[0].content"),
         ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}, 400, "messages[0].images"),
         ("/api/chat", {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}, 400, "arguments"),
         ("/api/chat", {"messages": [{"role": "<|im_start|>", "content": "a"}]}, 400, "is not a role"),
         ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "options": 5}, 400, "options"),
         ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "options": {"mirostat": 1}}, 400, "mirostat"),
         ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "options": {"temperature": "hot"}}, 400, "temperature"),
         ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "format": "xml"}, 400, "format"),
         ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "format": {"type": 5}}, 400, "format"),
         ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "think": "hard"}, 400, "hard"),
         ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "template": "x"}, 400, "template"),
         ("/api/generate", {"prompt": 5}, 400, "prompt"), ("/api/generate", {"prompt": "a", "context": [1, 2]}, 400, "context"),
         ("/api/generate", {"prompt": "a", "images": ["aGk="]}, 400, "images"), ("/api/embed", {}, 400, "input"), ("/api/embed", {"input": ""}, 400, "input"),
         ("/api/show", {}, 400, "model"), ("/api/show", {"model": "no"}, 404, "'no' not found"), ("/api/show", "[" * 50, 400, "could not parse")]


@pytest.mark.parametrize("path, body, status, words", WRONG, ids=range(len(WRONG)))
def test_errors_are_sentences(server, path, body, status, words):
    r = server.post(path, body)
    assert r.status == status and list(r.json()) == ["error"] and words in r.json()["error"], r.body


def test_an_error_in_a_stream_is_a_line(server):
    assert list(chat(server, seed=1003).json()) == ["error"]  # nothing was sent before
    with Server(env={"FAKE_STEP_US": "100000"}) as s:
        parts = lines(chat(s, timeout=0.7))
        assert len(parts) > 1 and list(parts[-1]) == ["error"] and "message" in parts[0]


MANAGE = [("POST", "/api/pull"), ("POST", "/api/push"), ("POST", "/api/create"), ("POST", "/api/copy"), ("DELETE", "/api/delete")]


def test_managing_models_is_refused_with_a_reason(server):
    for method, path in MANAGE:
        r = server.request(method, path, {"model": "x", "prompt": "a"})
        assert r.status == 403 and list(r.json()) == ["error"] and "sluice pull" in r.json()["error"], (path, r.body)


def test_the_older_form_of_embeddings(server):
    r = server.post("/api/embeddings", {"model": "demo", "prompt": "a story", "options": {"num_ctx": 64}, "keep_alive": "5m"})
    assert r.status == 200 and list(r.json()) == ["embedding"], r.body
    new = server.post("/api/embed", {"model": "demo", "input": "a story"}).json()["embeddings"][0]
    old = r.json()["embedding"]
    length = sum(x * x for x in old) ** 0.5
    assert abs(length - 1) > 1e-3 and all(abs(x / length - y) < 1e-5 for x, y in zip(old, new, strict=True))
    for body, words in [({"model": "demo"}, "'prompt'"), ({"model": "demo", "prompt": ["a"]}, "'prompt'"), ({"model": "demo", "prompt": ""}, "'prompt'")]:
        r = server.post("/api/embeddings", body)
        assert r.status == 400 and words in r.json()["error"], r.body
    assert server.post("/api/embeddings", {"model": "other", "prompt": "a"}).status == 404
    with Server(api_key="s3cret") as s:
        assert s.post("/api/embeddings", {"model": "demo", "prompt": "a"}).status == 401


def test_the_routes_need_a_key():
    with Server(api_key="s3cret") as s:
        for method, path in [("POST", "/api/chat"), ("POST", "/api/generate"), ("POST", "/api/embed"), ("POST", "/api/show"), ("GET", "/api/tags"), ("GET", "/api/ps")]:
            body = {"model": "demo"} if method == "POST" else None
            r = s.request(method, path, body)
            assert r.status == 401 and isinstance(r.json()["error"], str)
            assert s.request(method, path, body, {"authorization": "Bearer s3cret"}).status in (200, 400)
        assert all(s.request(method, path, {}).status == 401 for method, path in MANAGE)
        assert s.get("/api/version").status == 200
