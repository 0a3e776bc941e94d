"""What programs written for vLLM, llama.cpp or OpenAI ask for beyond the plain API: members, routes, headers, browsers."""
import json

import pytest
from api import Server


@pytest.fixture(scope="module")
def server():
    with Server(max_num_queued_reqs=64) as s:  # without a script a sample repeats its prompt
        yield s


# ---- members ----

ITEMS = [[{"role": "user", "content": "a\0b"}],
         [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a\0b"}]}],
         [{"role": "user", "content": "x"}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
          {"type": "function_call_output", "call_id": "c", "output": "a\0b"}],
         "a\0b"]


@pytest.mark.parametrize("items", ITEMS, ids=range(len(ITEMS)))
def test_a_nul_in_an_item_is_a_character_like_others(server, items):
    r = server.post("/v1/responses", {"input": items, "instructions": "i\0j", "max_output_tokens": 300})
    assert r.status == 200, r.body
    text = r.json()["output"][-1]["content"][0]["text"]
    assert "a\0b" in text and "i\0j" in text and r.json()["instructions"] == "i\0j"
    again = server.post("/v1/responses", {"input": "and\ufffe?", "previous_response_id": r.json()["id"], "max_output_tokens": 600})
    assert again.status == 200, again.body
    text = again.json()["output"][-1]["content"][0]["text"]
    assert "a\0b" in text and "and\ufffe?" in text


def test_a_nul_in_a_block_is_a_character_like_others(server):
    body = {"max_tokens": 300, "system": "s\0t", "messages": [
        {"role": "user", "content": "a\0b\ufffe\uffff"}, {"role": "assistant", "content": [{"type": "text", "text": "c\0d"}]},
        {"role": "user", "content": [{"type": "text", "text": "e\0f"}]}]}
    r = server.post("/v1/messages", body)
    assert r.status == 200, r.body
    text = r.json()["content"][0]["text"]
    assert all(t in text for t in ("s\0t", "a\0b\ufffe\uffff", "c\0d", "e\0f"))
    plain = json.loads(json.dumps(body).replace("\\u0000", "-"))
    n = server.post("/v1/messages/count_tokens", plain).json()["input_tokens"]
    assert server.post("/v1/messages/count_tokens", body).json()["input_tokens"] >= n


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_with_echo_begins_with_what_was_begun(server, stream):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "text", "text": "one\0"}, {"type": "text", "text": "two"}]}]
    r = server.post("/v1/chat/completions", {"messages": messages, "echo": True, "continue_final_message": True, "max_tokens": 3, "n": 2, "stream": stream})
    plain = server.post("/v1/chat/completions", {"messages": messages, "continue_final_message": True, "max_tokens": 3}).json()
    said = "one\0\ntwo" + plain["choices"][0]["message"]["content"]
    if stream:
        deltas = [[c["choices"][0]["delta"].get("content", "") for c in r.chunks() if c["choices"][0]["index"] == i] for i in (0, 1)]
        assert ["".join(d) for d in deltas] == [said] * 2
    else:
        assert [c["message"]["content"] for c in r.json()["choices"]] == [said] * 2
    last = server.chat("x", echo=True, max_tokens=3).json()
    assert last["choices"][0]["message"]["content"] == server.chat("x", max_tokens=3).json()["choices"][0]["message"]["content"]


def test_top_logprobs_begin_with_the_token_itself(server):
    r = server.complete("a b c d", echo=True, logprobs=3, max_tokens=2).json()["choices"][0]["logprobs"]
    assert r["top_logprobs"][0] is None and len(r["tokens"]) == len(r["top_logprobs"]) > 4
    for token, logprob, tops in zip(r["tokens"][1:], r["token_logprobs"][1:], r["top_logprobs"][1:]):
        assert next(iter(tops.items())) == (token, logprob) and 3 <= len(tops) <= 4


def test_usage_may_be_forced_into_every_chunk():
    with Server(enable_force_include_usage=True) as s:
        chunks = s.chat("x", stream=True, max_tokens=3).chunks()
        assert len(chunks) > 3 and all(c["usage"]["prompt_tokens"] > 0 for c in chunks) and chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 3


def test_operators_words_for_tokens_tools_and_efforts():
    tools = [{"type": "function", "function": {"name": "zebra", "parameters": {"type": "object", "properties": {}}}}]
    with Server(return_tokens_as_token_ids=True, exclude_tools_when_tool_choice_none=True, disable_fastapi_docs=True,
                reasoning_effort_map='{"medium": "low"}') as s:
        r = s.complete("a b", logprobs=1, max_tokens=2).json()["choices"][0]["logprobs"]
        assert all(t.startswith("token_id:") for t in r["tokens"])
        r = s.complete("a b", logprobs=1, max_tokens=2, return_tokens_as_token_ids=False).json()["choices"][0]["logprobs"]
        assert not any(t.startswith("token_id:") for t in r["tokens"])
        n = [s.chat("x", tools=tools, tool_choice=c, max_tokens=1).json()["usage"]["prompt_tokens"] for c in ("none", "auto")]
        assert n[0] < n[1] and n[0] == s.chat("x", max_tokens=1).json()["usage"]["prompt_tokens"]
        assert s.get("/docs").status == 404 and s.get("/openapi.json").status == 404
        assert s.chat("x", reasoning_effort="medium", max_tokens=1).status == 200
