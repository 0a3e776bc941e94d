# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""The API over HTTP: errors, and which members of a request are accepted, refused or counted."""

import json

import pytest
from api import Server
from api_script import TEXTS, WEATHER, eventually, open_stream, running, server


@pytest.mark.parametrize("seed", [1, 2])
def test_functions_are_answered_in_the_old_form(server, seed):
    """The answer has one call, as message.function_call. TEXTS[2] has a second one, which the old form cannot express."""
    body = {"seed": seed, "functions": [WEATHER["function"]]}
    (c,) = server.chat(**body).json()["choices"]
    m = c["message"]
    assert c["finish_reason"] == "function_call" and "tool_calls" not in m
    assert m["content"] == ("Let me see." if seed == 1 else None)
    assert m["function_call"]["name"] == "get_weather" and set(m["function_call"]) == {"name", "arguments"}
    assert json.loads(m["function_call"]["arguments"])["city"].startswith("Paris")
    deltas = [c["choices"][0]["delta"] for c in server.chat(stream=True, **body).chunks()]
    calls = [d["function_call"] for d in deltas if "function_call" in d]
    assert not any("tool_calls" in d for d in deltas)
    assert calls[0] == {"name": "get_weather", "arguments": ""} and not any("name" in f for f in calls[1:])
    assert "".join(f["arguments"] for f in calls) == m["function_call"]["arguments"]


def test_a_nul_is_a_character_like_others(server):
    ids = server.post("/tokenize", {"prompt": "a\0b", "add_special_tokens": False}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json()["prompt"] == "a\0b"
    r = server.complete("a\0b", echo=True, max_tokens=0).json()
    assert r["choices"][0]["text"] == "a\0b"
    assert server.chat("a\0b", seed=0).json()["choices"][0]["message"]["content"] == TEXTS[0]


@pytest.mark.parametrize("path,body,status,code,param", [
    ("/v1/chat/completions", "{", 400, "json_parse_error", None),
    ("/v1/chat/completions", {"messages": []}, 400, "empty_array", "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": -9}, 400, "decimal_below_min_value", "temperature"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "model": "gpt-4"}, 404, "model_not_found", "model"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x " * 3000}]}, 400, "context_length_exceeded", "messages"),
    ("/v1/completions", {"prompt": [5] * 2048}, 400, "context_length_exceeded", "prompt"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 5000}, 400, "context_length_exceeded", "prompt"),
    ("/v1/nothing", {}, 404, "unknown_url", None),
])
def test_errors_are_objects(server, path, body, status, code, param):
    r = server.post(path, body)
    assert r.status == status and r.headers["content-type"] == "application/json"
    more = {"n_prompt_tokens", "n_ctx"} if code == "context_length_exceeded" else set()
    assert set(r.error) == {"message", "type", "param", "code"} | more
    assert (r.error["code"], r.error["param"], r.error["type"]) == (code, param, "invalid_request_error")
    assert r.headers["x-request-id"]
    if code == "context_length_exceeded":
        assert r.error["message"].startswith("This model's maximum context length is 2048 tokens.")


ONE = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
TOOL = {"tools": [WEATHER]}


@pytest.mark.parametrize("path,more,code,param", [
    ("chat", {"stream": True, "stream_options": {"include_usage": "yes"}}, "invalid_type", "stream_options.include_usage"),
    ("chat", {"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ("chat", {"store": "x"}, "invalid_type", "store"),
    ("chat", {"metadata": 5}, "invalid_type", "metadata"),
    ("chat", {"service_tier": 5}, "invalid_type", "service_tier"),
    ("chat", {"request_id": "a b"}, "invalid_value", "request_id"),
    ("chat", {"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
    ("chat", {"audio": {"voice": "a"}}, "unsupported_parameter", "audio"),
    ("chat", {"modalities": ["audio"]}, "unsupported_value", "modalities"),
    ("chat", {"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    ("chat", {"n": 2.5}, "invalid_type", "n"),
    ("chat", {"seed": 1 << 63}, "invalid_value", "seed"),
    ("chat", {"stop": ["a"] * 17}, "array_above_max_length", "stop"),
    ("chat", {"stop": "a" * 1025}, "string_above_max_length", "stop"),
    ("chat", {"stop": ["b", "\u00e4" * 2049]}, "string_above_max_length", "stop"),
    ("chat", {"logit_bias": {"99999": 1}}, "invalid_value", "logit_bias"),
    ("chat", {"allowed_token_ids": []}, "empty_array", "allowed_token_ids"),
    ("chat", {"tools": []}, "empty_array", "tools"),
    ("chat", {"tools": [5]}, "invalid_type", "tools[0]"),
    ("chat", {"tools": [WEATHER] * 129}, "array_above_max_length", "tools"),
    ("chat", {"functions": [WEATHER["function"]] * 129}, "array_above_max_length", "functions"),
    ("chat", {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "invalid_type", "tools[0].function.parameters"),
    ("chat", {"tools": [{"type": "custom"}]}, "missing_required_parameter", "tools[0].custom"),
    ("chat", {"tools": [{"type": "mcp"}]}, "unsupported_value", "tools[0].type"),
    ("chat", {"tool_choice": "auto"}, "invalid_value", "tool_choice"),
    ("chat", {**TOOL, "tool_choice": "foo"}, "invalid_value", "tool_choice"),
    ("chat", {**TOOL, "tool_choice": {"type": "function", "function": {"name": "b"}}}, "invalid_value", "tool_choice"),
    ("chat", {**TOOL, "tool_choice": {"type": "allowed_tools"}}, "invalid_value", "tool_choice"),
    ("chat", {"response_format": {"type": "grammar"}}, "unsupported_value", "response_format"),
    ("chat", {"use_beam_search": True, "n": 11}, "integer_above_max_value", "n"),
    ("chat", {"chat_template": "x"}, "unsupported_parameter", "chat_template"),
    ("chat", {"messages": [{"role": "system|user", "content": "a"}]}, "invalid_value", "messages[0].role"),
    ("chat", {"reasoning_effort": "low|high"}, "invalid_value", "reasoning_effort"),
    ("chat", {"reasoning": {"effort": {}}}, "invalid_type", "reasoning.effort"), ("chat", {"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
    ("chat", {"messages": [{"role": "user", "name": 5, "content": "a"}]}, "invalid_type", "messages[0].name"),
    ("chat", {"messages": [{"role": "tool", "content": "a"}]}, "missing_required_parameter", "messages[0].tool_call_id"),
    ("chat", {"messages": [{"role": "tool", "content": "a", "tool_call_id": 5}]}, "invalid_type", "messages[0].tool_call_id"),
    ("chat", {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]},
     "missing_required_parameter", "messages[0].tool_calls[0].function.arguments"),
    ("completions", {"prompt": ""}, "invalid_value", "prompt"),
    ("completions", {"prompt": ["a", ""]}, "invalid_value", "prompt"),
    ("completions", {"prompt": [[]]}, "empty_array", "prompt"),
    ("completions", {"prompt": [-1]}, "invalid_value", "prompt"),
    ("completions", {"prompt": [1, "a"]}, "invalid_type", "prompt"),
    ("completions", {"prompt": [99999]}, "invalid_value", "prompt"),
    ("completions", {"suffix": "x"}, "unsupported_value", "suffix"),
    ("completions", {"best_of": 2}, "unsupported_value", "best_of"),
    ("completions", {"logprobs": 21}, "integer_above_max_value", "logprobs"),
    ("completions", {"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
    ("completions", {"prompt_logprobs": -1}, "integer_below_min_value", "prompt_logprobs"),
    ("completions", {"stream": True, "prompt_logprobs": 1}, "invalid_value", "prompt_logprobs"),
    ("embeddings", {"input": [""] * 3000}, "array_above_max_length", "input"),
    ("embeddings", {"encoding_format": "hex"}, "invalid_value", "encoding_format"),
    ("embeddings", {"dimensions": 3}, "unsupported_value", "dimensions"),
    ("embeddings", {"input": ["a"] * 2049}, "array_above_max_length", "input"),
    ("responses", {"tool_choice": "foo"}, "invalid_value", "tool_choice"),
    ("responses", {"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
    ("responses", {"tools": [5]}, "invalid_type", "tools[0]"),
    ("responses", {"tools": [{"type": "function", "name": ""}]}, "missing_required_parameter", "tools[0].name"),
    ("responses", {"tools": [{"type": "function", "name": "f", "parameters": "x"}]}, "invalid_type", "tools[0].parameters"),
    ("responses", {"tools": [{"type": "function", "name": "f"}] * 129}, "array_above_max_length", "tools"),
    ("responses", {"max_tool_calls": "x"}, "invalid_type", "max_tool_calls"),
    ("responses", {"max_tool_calls": 0}, "integer_below_min_value", "max_tool_calls"),
    ("responses", {"truncation": "foo"}, "invalid_value", "truncation"),
    ("responses", {"truncation": "auto"}, "unsupported_value", "truncation"),
    ("responses", {"text": {"format": {"type": "grammar"}}}, "unsupported_value", "text.format"),
    ("responses", {"input": [{"role": "user|assistant", "content": "a"}]}, "invalid_value", "input[0].role"),
    ("responses", {"input": []}, "empty_array", "input"),
])
def test_wrong_members_are_named(server, path, more, code, param):
    base = {"chat": ONE, "completions": {"prompt": "x"}, "embeddings": {"input": "x"}, "responses": {"input": "x"}}[path]
    r = server.post("/v1/" + {"chat": "chat/completions"}.get(path, path), {**base, **more})
    assert (r.status, r.error["code"], r.error["param"]) == (400, code, param), r.body


@pytest.mark.parametrize("path, body, param", [
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}, "messages[0].content")
    for part in ({"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "input_audio", "input_audio": {}},
                 {"type": "video_url", "video_url": {"url": "data:,"}}, {"type": "file", "file": {}})
] + [
    ("responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, "input[0].content"),
])
def test_content_other_than_text_is_refused_by_its_type(server, path, body, param):
    """This also applies to multimodal models, of which the server only runs the language part."""
    r = server.post(f"/v1/{path}", body)
    assert (r.status, r.error["code"], r.error["param"]) == (400, "unsupported_value", param), r.body
    assert "only text" in r.error["message"] and "of type '" in r.error["message"]


@pytest.mark.parametrize("more", [
    {"stream_options": None}, {"temperature": None}, {"top_p": 0}, {"n": 1.0}, {"stop": []}, {"stop": None}, {"stop": "a" * 1024}, {"seed": -1}, {"top_k": -1},
    {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prediction": None, "verbosity": "low"}, {"foo": 1},
    {"tool_choice": "none"}, {"modalities": ["text"]}, {"guided_json": None, "use_beam_search": False}, {"response_format": {"type": "text"}},
    {"max_tokens": 5000, "max_completion_tokens": 1}, {"logprobs": False}, {"parallel_tool_calls": True}, {"reasoning_effort": "low"},
])
def test_harmless_members_are_accepted(server, more):
    assert server.chat(**{**ONE, **more}).status == 200


def test_unknown_members_are_counted(server):
    before = server.metric("sluice_unknown_parameters_total")
    assert server.chat(**ONE, foo=1, bar=None).status == 200
    assert server.metric("sluice_unknown_parameters_total") == before + 2
    with Server(strict_parameters=True) as s:
        r = s.chat(**ONE, foo=1)
        assert (r.status, r.error["code"], r.error["param"]) == (400, "unknown_parameter", "foo")
        r = s.chat(**ONE, **{"model|messages": 1})
        assert (r.status, r.error["code"], r.error["param"]) == (400, "unknown_parameter", "model|messages")
        assert s.chat(**ONE).status == 200


def test_a_nul_is_refused_only_where_it_would_be_another_character(server):
    for member in ('"user":"a\\u0000b"', '"metadata":{"a":"\\u0000"}', '"stop":["a\\u0000b"]', '"foo":"\\u0000"'):
        r = server.request("POST", "/v1/completions", '{"prompt":"x","max_tokens":1,%s}' % member)
        assert r.status == 200, (member, r.body)
    r = server.request("POST", "/v1/completions", r'{"request_id":"a\u0000b","prompt":"x"}')
    assert (r.status, r.error["code"], r.error["param"]) == (400, "invalid_value", "request_id")


def test_charset_must_be_utf8(server):
    for charset, status in (("utf-8", 200), ('"UTF-8"', 200), ("iso-8859-1", 415)):
        r = server.request("POST", "/v1/completions", '{"prompt":"x"}', {"content-type": "application/json; charset=" + charset})
        assert r.status == status


def test_ids_of_requests_and_traces(server):
    r = server.chat(**ONE, request_id="mine-1")
    assert r.headers["x-request-id"] == "mine-1" and r.json()["id"] == "chatcmpl-mine-1"
    assert r.headers["openai-version"] and int(r.headers["openai-processing-ms"]) >= 0
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    body = {**ONE, "request_id": "mine-2"}
    r = server.post("/v1/chat/completions", body, headers={"x-request-id": "head-1", "traceparent": "00-%s-00f067aa0ba902b7-01" % trace})
    assert r.headers["x-request-id"] == "head-1" and r.json()["id"] == "chatcmpl-head-1"
    assert eventually(lambda: any(l["id"] == "head-1" and l.get("trace") == trace for l in server.log_lines()))
    assert any(l["id"] == "mine-1" for l in server.log_lines())


def test_chat_has_prompt_ids_where_vllm_has_them(server):
    j = server.chat(return_token_ids=True, max_tokens=2).json()
    assert j["prompt_token_ids"] == j["choices"][0]["prompt_token_ids"] and len(j["choices"][0]["token_ids"]) == 2
    first = server.chat(return_token_ids=True, max_tokens=2, stream=True).chunks()[0]
    assert first["prompt_token_ids"] == first["choices"][0]["prompt_token_ids"] == j["prompt_token_ids"]


def test_stored_responses_are_not_found(server):
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        r = server.request(method, "/v1/responses/resp_1" + path)
        assert (r.status, r.error["code"]) == (404, "not_found")


def test_reset_prefix_cache_reports_what_it_freed():
    with Server(env={"FAKE_STEP_US": "20000"}) as s:
        assert s.post("/reset_prefix_cache", "").json() == {"freed_blocks": 3}
        c = open_stream(s)
        assert eventually(lambda: s.get("/load").json()["running"] == 1)
        r = s.post("/reset_prefix_cache", "")
        assert (r.status, r.error["code"], r.headers["x-should-retry"]) == (409, "conflict", "false")
        assert s.post("/reset_prefix_cache?reset_running_requests=true", "").status == 200
        c.close()


def test_metrics_in_both_formats(server):
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    plain = pytest.importorskip("prometheus_client.parser")
    r = server.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0, text/plain"})
    assert r.headers["content-type"].startswith("application/openmetrics-text")
    families = {f.name: f.type for f in parser.text_string_to_metric_families(r.body.decode())}
    assert families["vllm:prompt_tokens"] == "counter" and families["vllm:iteration_tokens_total"] == "histogram"
    r = server.get("/metrics")
    assert r.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert len(list(plain.text_string_to_metric_families(r.body.decode()))) == len(families)


def test_http_errors(server):
    r = server.get("/v1/chat/completions")
    assert r.status == 405 and r.headers["allow"] and r.error["code"] == "method_not_supported"
    r = server.request("POST", "/v1/completions", "prompt=x", {"content-type": "text/plain"})
    assert r.status == 415 and r.error["code"] == "unsupported_media_type"


def test_engine_errors_before_and_after_the_first_token(server):
    assert server.chat(seed=1003).error["code"] == "internal_error"
    r = server.chat(seed=1003, stream=True)  # nothing was sent yet, so the error has its own status
    assert r.status == 500 and r.error["type"] == "server_error"


def test_default_max_tokens_and_random_seeds(server):
    assert server.complete("hello").json()["usage"]["completion_tokens"] == 16
    n = server.complete("hello", max_tokens=None).json()["usage"]
    assert n["total_tokens"] == 2048
