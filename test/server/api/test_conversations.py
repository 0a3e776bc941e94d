# SPDX-License-Identifier: Apache-2.0
"""Conversations: made, read, changed, deleted; their items; responses that continue them and are added to them."""

import json

import pytest
from api import Server

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def server():
    with Server(real=True, served_model_name="demo", max_model_len=1024) as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % server.port, api_key="none", max_retries=0, timeout=60)


def message(text, role="user"):
    return {"type": "message", "role": role, "content": text}


def texts(items):
    return [i.content[0].text for i in items if i.type == "message"]


def test_the_sdk_creates_reads_changes_and_deletes_conversations(client):
    c = client.conversations.create(metadata={"a": "b"}, items=[message("one"), message("two", "assistant")])
    assert c.id.startswith("conv_") and c.object == "conversation" and c.metadata == {"a": "b"}
    assert client.conversations.retrieve(c.id) == c
    assert client.conversations.update(c.id, metadata={"x": "y"}).metadata == {"x": "y"}
    added = client.conversations.items.create(c.id, items=[message("three"), message("four")])
    assert texts(added.data) == ["three", "four"]
    assert texts(client.conversations.items.list(c.id, order="asc")) == ["one", "two", "three", "four"]
    assert texts(client.conversations.items.list(c.id, limit=3).data) == ["four", "three", "two"]
    assert texts(client.conversations.items.list(c.id, limit=3)) == ["four", "three", "two", "one"]  # all pages
    item = client.conversations.items.retrieve(added.data[0].id, conversation_id=c.id)
    assert item == added.data[0] and item.role == "user"
    assert client.conversations.items.delete(item.id, conversation_id=c.id).id == c.id
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(item.id, conversation_id=c.id)
    assert texts(client.conversations.items.list(c.id, order="asc")) == ["one", "two", "four"]
    assert client.conversations.delete(c.id).deleted is True
    for call in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            call(c.id)


@pytest.mark.parametrize("how", ["whole", "stream", "background"])
def test_responses_continue_a_conversation_and_are_added_to_it(server, client, how):
    c = client.conversations.create(items=[message("Count from 1 to 5.")])
    body = {"model": "demo", "temperature": 0, "max_output_tokens": 30}
    options = {"whole": {}, "stream": {"stream": True}, "background": {"background": True}}[how]
    r = server.post("/v1/responses", {**body, "input": "Count from 1 to 10.", "conversation": c.id, **options})
    assert r.status == 200, r.body
    j = json.loads(r.events()[-1])["response"] if how == "stream" else r.json()
    while j["status"] in ("queued", "in_progress"):
        j = server.get("/v1/responses/" + j["id"]).json()
    assert j["conversation"] == {"id": c.id}
    said = j["output"][0]["content"][0]["text"]
    assert texts(client.conversations.items.list(c.id, order="asc")) == ["Count from 1 to 5.", "Count from 1 to 10.", said]
    by_hand = [message("Count from 1 to 5."), message("Count from 1 to 10."), message(said, "assistant"), message("And?")]
    a = client.responses.create(input=by_hand, **body)
    b = client.responses.create(input="And?", conversation={"id": c.id}, **body)
    assert a.usage.input_tokens == b.usage.input_tokens and a.output_text == b.output_text
    assert len(client.conversations.items.list(c.id).data) == 5


def test_invalid_requests_are_refused(server):
    made = server.post("/v1/conversations", {}).json()["id"]
    kept = server.post("/v1/responses", {"input": "x", "max_output_tokens": 16}).json()["id"]

    def respond(**body):
        return server.post("/v1/responses", {"input": "x", "max_output_tokens": 16, **body})

    assert respond(conversation="conv_none").status == 404 and respond(conversation=3).status == 400
    assert respond(conversation={}).status == 400
    assert respond(conversation=made, previous_response_id=kept).error["param"] == "conversation"
    assert respond(conversation=made, store=False).error["param"] == "conversation"
    path = "/v1/conversations/%s" % made
    for body in ({}, {"items": "x"}, {"items": [3]}, {"items": [{"type": "computer_call"}]}, {"items": [{"role": "robot", "content": "x"}]},
                 {"items": [{"role": "user", "content": {}}]}, {"items": [{"role": "user"}]}, {"items": [{"type": 5, "role": "user", "content": "x"}]},
                 {"items": [message("x")] * 21}):
        assert server.post(path + "/items", body).status == 400, body
    assert server.post(path, {"metadata": {"a": 3}}).status == 400
    assert server.post("/v1/conversations", {"metadata": {str(i): "x" for i in range(17)}}).status == 400
    for key, value, status in (("ü" * 64, "ü" * 512, 200), ("ü" * 65, "", 400), ("a", "ü" * 513, 400)):  # characters, as in OpenAI's API
        assert server.post("/v1/conversations", {"metadata": {key: value}}).status == status
    assert server.get(path + "/items?limit=0").status == 400 and server.get(path + "/items/").status in (200, 404)
    assert server.get(path + "/items/msg_none").status == 404 and server.get("/v1/conversations/none/items").status == 404
    assert server.get(path + "/items/" + "a/" * 100).status == 404
    assert server.get(path + "/items").json()["data"] == []


def test_keys_see_only_their_own_and_a_folder_keeps_them(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("ann inference\nbob inference\n")
    ann, bob = {"authorization": "Bearer ann"}, {"authorization": "Bearer bob"}
    options = {"api_key_file": str(keys), "data_dir": str(tmp_path / "data")}
    with Server(**options) as s:
        c = s.post("/v1/conversations", {"items": [message("one")]}, headers=ann).json()
        path = "/v1/conversations/" + c["id"]
        item = s.get(path + "/items", headers=ann).json()["data"][0]["id"]
        for method, more, body in (("GET", "", None), ("POST", "", {"metadata": {}}), ("DELETE", "", None), ("GET", "/items", None),
                                   ("POST", "/items", {"items": [message("x")]}), ("GET", "/items/" + item, None),
                                   ("DELETE", "/items/" + item, None)):
            assert s.request(method, path + more, body, headers=bob).status == 404, (method, more)
            assert s.request(method, path + more, body).status == 401
        assert s.post("/v1/responses", {"input": "x", "conversation": c["id"]}, headers=bob).status == 404
    with Server(**options) as s:
        assert s.get(path, headers=ann).json() == c
        assert [i["id"] for i in s.get(path + "/items", headers=ann).json()["data"]] == [item]


def test_unused_conversations_are_evicted():
    with Server(data_max_bytes="1MiB") as s:  # a quarter for conversations
        ids = [s.post("/v1/conversations", {"items": [message("x" * 50000)]}).json()["id"] for _ in range(3)]
        assert s.post("/v1/conversations/%s/items" % ids[0], {"items": [message("y")]}).status == 200
        for _ in range(3):
            ids.append(s.post("/v1/conversations", {"items": [message("x" * 50000)]}).json()["id"])
        assert [s.get("/v1/conversations/" + i).status for i in ids] == [200, 404, 200, 200, 200, 200]
        assert s.post("/v1/conversations", {"items": [message("x" * 300000)]}).status == 507
