# SPDX-License-Identifier: Apache-2.0
"""Stored responses: created, read, listed, deleted, continued; their owners; what survives a restart."""

import json

import pytest
from api import Server, scripted

openai = pytest.importorskip("openai")

STORY = "Once upon a time there was a small boat on a wide river, and in it sat an old man with a red hat. " * 3


@pytest.fixture(scope="module")
def server():
    with Server(real=True, served_model_name="demo", max_model_len=1024) as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % server.port, api_key="none", max_retries=0, timeout=60)


def respond(server, input="Count from 1 to 10.", headers=None, **body):
    return server.post("/v1/responses", {"input": input, "temperature": 0, "max_output_tokens": 40, **body}, headers=headers)


def test_a_stored_response_is_returned_unchanged(server):
    for stream in (False, True):
        r = respond(server, stream=stream, metadata={"a": "b"})
        j = json.loads(r.events()[-1])["response"] if stream else r.json()
        assert j["store"] is True and j["status"] == "completed"
        assert server.get("/v1/responses/" + j["id"]).json() == j
        gone = server.request("DELETE", "/v1/responses/" + j["id"]).json()
        assert gone == {"id": j["id"], "object": "response", "deleted": True}
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
            r = server.request(method, "/v1/responses/" + j["id"] + path)
            assert r.status == 404 and r.error["code"] == "not_found", (method, path)
            assert r.error["message"] == "Response with id '%s' not found." % j["id"]
        r = respond(server, previous_response_id=j["id"])
        assert r.status == 404 and r.error["message"] == "Response with id '%s' not found." % j["id"]


def test_items_of_the_input_may_be_references(server):
    """The prompt is that of the items themselves, and the response keeps the items, not the references."""
    first = respond(server, "one").json()
    said = first["output"][0]
    conversation = server.post("/v1/conversations", {"items": [{"role": "user", "content": "in a \0 conversation"}]}).json()["id"]
    item = server.get("/v1/conversations/%s/items" % conversation).json()["data"][0]
    asked = lambda *items: [{"role": "user", "content": "one"}, *items, {"role": "user", "content": "two"}]
    for reference, itself in (({"type": "item_reference", "id": said["id"]}, said), ({"id": said["id"]}, said), ({"type": "item_reference", "id": item["id"]}, item)):
        a, b = respond(server, asked(reference)).json(), respond(server, asked(itself)).json()
        assert a["usage"]["input_tokens"] == b["usage"]["input_tokens"] and a["output"][0]["content"] == b["output"][0]["content"]
        kept = server.get("/v1/responses/%s/input_items?order=asc" % a["id"]).json()["data"][1]
        assert kept["id"] == itself["id"] and kept["content"] == itself["content"] and kept["role"] == itself["role"]
    both = [{"type": "item_reference", "id": i["id"]} for i in (item, said)]
    assert respond(server, asked(*both)).json()["usage"]["input_tokens"] == respond(server, asked(item, said)).json()["usage"]["input_tokens"]
    server.request("DELETE", "/v1/responses/" + first["id"])
    server.request("DELETE", "/v1/conversations/" + conversation)
    for reference in both:
        r = respond(server, asked(reference))
        assert (r.status, r.error["code"], r.error["message"]) == (404, "not_found", "Item with id '%s' not found." % reference["id"])


@pytest.mark.parametrize("item, status, param", [({"type": "item_reference"}, 400, "input[1].id"), ({"type": "item_reference", "id": 5}, 400, "input[1].id"), ({"type": "item_reference", "id": "msg_1"}, 404, "input"),
                                                 ({"type": "item_reference", "id": "a\0"}, 404, "input"), ({"id": "' OR 1=1 --"}, 404, "input")], ids=range(5))
def test_wrong_references_are_refused(server, item, status, param):
    r = respond(server, [{"role": "user", "content": "a"}, item])
    assert (r.status, r.error["param"]) == (status, param), r.body


def test_references_find_only_items_of_their_key():
    with Server(api_key="one,two") as s:
        keys = [{"authorization": "Bearer " + k} for k in ("one", "two")]
        said = respond(s, "a", headers=keys[0]).json()["output"][0]["id"]
        statuses = [respond(s, [{"type": "item_reference", "id": said}, {"role": "user", "content": "b"}], headers=k).status for k in keys]
        assert statuses == [200, 404]


QUESTION = ("Summarise this conversation, so that it can be continued without its earlier messages: what the user wants, what was decided and done, facts, names and "
            "figures that are still needed, and what is open. Write only the summary.")


def test_a_conversation_is_compacted(server):
    """The summary is the model's answer to the conversation and a question after it; with the user's messages it replaces the conversation."""
    first = respond(server, "a \0 b").json()
    said = first["output"][0]["content"][0]["text"]
    more = [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "1", "output": "x"}, {"role": "user", "content": "c"}]
    r = server.post("/v1/responses/compact", {"model": "demo", "previous_response_id": first["id"], "input": more, "temperature": 0, "max_output_tokens": 30})
    j = r.json()
    assert r.status == 200 and set(j) == {"id", "object", "created_at", "model", "output", "usage"} and j["object"] == "response.compaction" and j["id"].startswith("resp_")
    *users, summary = j["output"]
    assert [u["content"][0]["text"] for u in users] == ["a \0 b", "c"] and all(u["role"] == "user" and u["status"] == "completed" and u["id"] for u in users)
    assert set(summary) == {"id", "type", "encrypted_content"} and summary["type"] == "compaction" and summary["id"].startswith("cmp_")
    chat = [{"role": "user", "content": "a \0 b"}, {"role": "assistant", "content": said}, {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "1", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "x"}, {"role": "user", "content": "c"}, {"role": "user", "content": QUESTION}]
    want = server.post("/v1/chat/completions", {"messages": chat, "temperature": 0, "max_tokens": 30}).json()
    assert summary["encrypted_content"] == want["choices"][0]["message"]["content"] and j["usage"]["input_tokens"] == want["usage"]["prompt_tokens"]
    assert server.get("/v1/responses/" + j["id"]).status == 404
    again = respond(server, [*j["output"], {"role": "user", "content": "d"}]).json()
    chat = [{"role": "user", "content": "a \0 b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "Summary of the conversation so far:\n" + summary["encrypted_content"]},
            {"role": "user", "content": "d"}]
    assert again["usage"]["input_tokens"] == server.post("/v1/chat/completions", {"messages": chat, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    kept = server.post("/v1/conversations", {"items": j["output"]}).json()["id"]
    assert respond(server, "d", conversation=kept).json()["usage"]["input_tokens"] == again["usage"]["input_tokens"]
    assert server.post("/v1/conversations", {"items": [{"type": "compaction"}]}).error["param"] == "items[0]"
    only = server.post("/v1/responses/compact", {"previous_response_id": first["id"], "max_output_tokens": 5}).json()
    assert [i["type"] for i in only["output"]] == ["message", "compaction"]


@pytest.mark.parametrize("body, status, param", [({}, 400, "input"), ({"input": []}, 400, "input"), ({"input": "a", "stream": True}, 400, "stream"), ({"input": "a", "background": True}, 400, "background"),
                                                 ({"input": "a", "previous_response_id": "resp_1"}, 404, "previous_response_id"), ({"input": "a " * 2000}, 400, "input"),
                                                 ({"input": [{"type": "compaction"}]}, 400, "input[0].encrypted_content")], ids=range(7))
def test_what_cannot_be_compacted_is_refused(server, body, status, param):
    r = server.post("/v1/responses/compact", body)
    assert (r.status, r.error["param"]) == (status, param), r.body


def test_text_after_a_custom_call_is_an_item_after_it():
    call = '<tool_call>\n{"name": "run", "arguments": {"input": "1"}}\n</tool_call>'
    with scripted([call + "\nText.\n" + call]) as s:
        body = {"input": "a", "seed": 0, "store": False, "tools": [{"type": "custom", "name": "run"}]}
        done = [json.loads(e) for e in s.post("/v1/responses", {**body, "stream": True}).events()][-1]["response"]
        for output in (s.post("/v1/responses", body).json()["output"], done["output"]):
            assert [i.get("input") or i["content"][0]["text"] for i in output] == ["1", "\nText.", "1"], output


def test_a_summary_that_looks_like_a_call_is_text():
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    with scripted([call]) as s:
        for choice in ("auto", "required"):
            r = s.post("/v1/responses/compact", {"input": "a", "seed": 0, "tool_choice": choice, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]})
            assert r.status == 200 and r.json()["output"][-1]["encrypted_content"] == call, r.body


def test_compacting_needs_a_key_and_counts_towards_its_limits(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one inference a requests-per-minute=1\n")
    with Server(api_key_file=str(keys)) as s:
        assert s.post("/v1/responses/compact", {"input": "a"}).status == 401
        statuses = [s.post("/v1/responses/compact", {"input": "a"}, headers={"authorization": "Bearer one"}).status for _ in range(2)]
        assert statuses == [200, 429]


def test_nothing_is_left_of_a_response_that_is_not_stored(server):
    j = respond(server, store=False).json()
    assert j["store"] is False and server.get("/v1/responses/" + j["id"]).status == 404
    assert respond(server, store="yes").status == 400
    r = respond(server, store=False, background=True)
    assert r.error["param"] == "background" and "background can only be used when `store` is true" in r.error["message"]
    kept = respond(server).json()["id"]
    r = server.post("/v1/responses/%s/cancel" % kept, {})
    assert r.status == 400 and r.error["message"].startswith("Cannot cancel a synchronous response")


def test_events_have_timings_on_request(server):
    events = [json.loads(e) for e in respond(server, stream=True, timings_per_token=True, store=False).events()]
    timed = [e for e in events if "timings" in e]
    assert {e["type"] for e in timed} == {"response.output_text.delta", "response.completed"}
    n = [e["timings"]["predicted_n"] for e in timed]
    assert n == sorted(n) and n[-1] == events[-1]["response"]["usage"]["output_tokens"]
    assert not any("timings" in e for e in map(json.loads, respond(server, stream=True, store=False).events()))


def test_progress_of_the_prompt_is_sent_on_request(server):
    r = respond(server, STORY * 3, stream=True, return_progress=True, store=False, cache_salt="news")
    events = [json.loads(e) for e in r.events()]
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"] and "prompt_progress" not in events[1]
    assert [e["type"] for e in events].count("response.created") == 1
    news = [e for e in events if "prompt_progress" in e]
    assert len(news) >= 2 and {e["type"] for e in news} == {"response.in_progress"}
    total = events[-1]["response"]["usage"]["input_tokens"]
    done = [e["prompt_progress"]["processed"] for e in news]
    assert done == sorted(done) and done[0] == 0 and done[-1] == total and all(e["prompt_progress"]["total"] == total for e in news)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))


def test_later_turns_find_the_earlier_ones_in_the_cache(server):
    first = respond(server, STORY).json()
    second = respond(server, "And then?", previous_response_id=first["id"]).json()
    assert second["previous_response_id"] == first["id"]
    before = first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    assert second["usage"]["input_tokens"] > before
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= (before - 1) // 16 * 16  # whole blocks
    third = respond(server, [{"role": "user", "content": "Why?"}], previous_response_id=second["id"], stream=True)
    third = json.loads(third.events()[-1])["response"]
    items = [{"role": "user", "content": STORY}, *first["output"], {"role": "user", "content": "And then?"}, *second["output"],
             {"role": "user", "content": "Why?"}]
    by_hand = respond(server, items).json()
    assert third["usage"]["input_tokens"] == by_hand["usage"]["input_tokens"]
    assert third["output"][0]["content"] == by_hand["output"][0]["content"]
    n = server.post("/v1/responses/input_tokens", {"input": "Why?", "previous_response_id": second["id"]}).json()
    assert n["input_tokens"] == third["usage"]["input_tokens"]
    server.request("DELETE", "/v1/responses/" + first["id"])
    assert respond(server, "x", previous_response_id=second["id"]).status == 404


def test_instructions_are_not_carried_over(server):
    first = respond(server, "hi", instructions="Speak like a pirate. " * 5).json()
    second = respond(server, "hi", previous_response_id=first["id"]).json()
    plain = respond(server, [{"role": "user", "content": "hi"}, *first["output"], {"role": "user", "content": "hi"}]).json()
    assert second["usage"]["input_tokens"] == plain["usage"]["input_tokens"] and second["instructions"] is None


def test_input_items_are_listed_in_pages(client):
    items = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "three"}]}]
    r = client.responses.create(model="demo", input=items, max_output_tokens=16)
    def texts(page):
        return [i.content[0].text for i in page.data]
    assert texts(client.responses.input_items.list(r.id, order="asc")) == ["one", "two", "three"]
    page = client.responses.input_items.list(r.id, limit=2)
    assert texts(page) == ["three", "two"] and page.has_more and len({i.id for i in page.data}) == 2
    rest = client.responses.input_items.list(r.id, limit=2, after=page.data[-1].id)
    assert texts(rest) == ["one"] and not rest.has_more
    r = client.responses.create(model="demo", input="a \"text\"", max_output_tokens=16)
    assert texts(client.responses.input_items.list(r.id)) == ["a \"text\""]
    assert client.responses.retrieve(r.id).output_text == r.output_text
    client.responses.delete(r.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(r.id)


def test_tool_results_continue_a_stored_call(client):
    tool = [{"type": "function", "name": "get_weather", "description": "Get the current weather in a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}}, "required": ["city"]}}]
    r = client.responses.create(model="demo", input="What is the weather in Paris?", tools=tool, temperature=0)
    (call,) = [o for o in r.output if o.type == "function_call"]
    r = client.responses.create(model="demo", tools=tool, temperature=0, previous_response_id=r.id, input=[
        {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21}'}])
    assert r.output_text and [i.type for i in client.responses.input_items.list(r.id).data] == ["function_call_output"]


def test_keys_see_only_their_own_and_a_folder_keeps_them(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("ann inference\nbob inference\n")
    ann, bob = {"authorization": "Bearer ann"}, {"authorization": "Bearer bob"}
    options = {"api_key_file": str(keys), "data_dir": str(tmp_path / "data")}
    with Server(**options) as s:
        mine = respond(s, headers=ann).json()["id"]
        assert s.get("/v1/responses/" + mine, headers=ann).status == 200
        assert s.get("/v1/responses/" + mine, headers=bob).status == 404
        assert s.request("DELETE", "/v1/responses/" + mine, headers=bob).status == 404
        assert respond(s, headers=bob, previous_response_id=mine).status == 404
    with Server(**options) as s:
        assert s.get("/v1/responses/" + mine, headers=ann).json()["id"] == mine
        assert respond(s, headers=ann, previous_response_id=mine).status == 200
    with Server() as s:
        assert s.get("/v1/responses/" + mine).status == 404


def test_a_circle_of_responses_ends_with_an_error():
    with Server() as s:
        ids = {"x-request-id": "same"}
        first = respond(s, headers=ids, max_output_tokens=16).json()["id"]
        again = respond(s, headers=ids, max_output_tokens=16, previous_response_id=first)
        assert again.status == 200 and again.json()["id"] == first
        r = respond(s, previous_response_id=first)
        assert r.status == 400 and r.error["param"] in ("previous_response_id", "input"), r.body
        assert respond(s, previous_response_id="x" * 5000).status == 404
        assert s.get("/health").status == 200
