# SPDX-License-Identifier: Apache-2.0
"""Responses' tools in namespaces, and vLLM's previous_input_messages."""
import json

import pytest
from api import Server, scripted

openai = pytest.importorskip("openai")

SCHEMA = {"type": "object", "properties": {"app": {"type": "string"}}, "required": ["app"], "additionalProperties": False}
SPACE = {"type": "namespace", "name": "mcp__computer", "description": "Computer control.", "tools": [
    {"type": "function", "name": "get_state", "description": "The state.", "parameters": SCHEMA, "strict": False},
    {"type": "custom", "name": "note", "description": "Takes a note."}]}
PLAIN = {"type": "function", "name": "get_state", "parameters": SCHEMA}
CALL = '<tool_call>\n{"name": "%s", "arguments": {"app": "Chrome"}}\n</tool_call>'
TEXTS = [CALL % "mcp__computer__get_state", CALL % "get_state", '<tool_call>\n{"name": "mcp__computer__note", "arguments": {"input": "hi"}}\n</tool_call>']
SHOWS = "{% for m in messages %}[{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}]{% endfor %}{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}~"


@pytest.fixture(scope="module")
def server():
    with scripted(TEXTS) as s:
        yield s


@pytest.fixture(scope="module")
def shown():
    """A sample repeats its prompt."""
    with Server(chat_template=SHOWS) as s:
        yield s


def prompt_of(s, **body):
    r = s.post("/v1/responses", {"max_output_tokens": 400, **body})
    assert r.status == 200, r.body
    return r.json()["output"][-1]["content"][0]["text"].split("~")[0]


def test_a_call_has_its_namespace_and_name(server):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x", max_retries=0)
    r = client.responses.create(model="demo", input="state?", tools=[PLAIN, SPACE], extra_body={"seed": 0})
    (call,) = [o for o in r.output if o.type == "function_call"]
    assert call.name == "get_state" and call.namespace == "mcp__computer" and json.loads(call.arguments) == {"app": "Chrome"}
    assert [t.type for t in r.tools] == ["function", "namespace"]
    (plain,) = [o for o in client.responses.create(model="demo", input="state?", tools=[PLAIN, SPACE], extra_body={"seed": 1}).output if o.type == "function_call"]
    assert plain.name == "get_state" and getattr(plain, "namespace", None) is None
    (note,) = [o for o in client.responses.create(model="demo", input="note", tools=[SPACE], extra_body={"seed": 2}).output if o.type == "custom_tool_call"]
    assert note.name == "note" and note.namespace == "mcp__computer" and note.input == "hi"
    events = list(client.responses.create(model="demo", input="state?", tools=[SPACE], stream=True, extra_body={"seed": 0}))
    for type_ in ("response.output_item.added", "response.output_item.done"):
        (item,) = [e.item for e in events if e.type == type_ and e.item.type == "function_call"]
        assert item.name == "get_state" and item.namespace == "mcp__computer"
    # the next turn names it as the model does
    again = client.responses.create(model="demo", previous_response_id=r.id, tools=[SPACE], extra_body={"seed": 1}, input=[
        {"type": "function_call_output", "call_id": call.call_id, "output": "on"}])
    assert again.output


def test_the_model_sees_flat_names(shown):
    text = prompt_of(shown, tools=[PLAIN, SPACE], input=[{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "1", "name": "get_state", "namespace": "mcp__computer", "arguments": "{}"},
                                                         {"type": "function_call_output", "call_id": "1", "output": "on"}])
    assert "(mcp__computer__get_state)" in text and text.endswith("<get_state><mcp__computer__get_state><mcp__computer__note>")


WRONG = [({"type": "namespace"}, "tools[0].name"), ({"type": "namespace", "name": "n"}, "tools[0].tools"), ({"type": "namespace", "name": "n", "tools": 5}, "tools[0].tools"),
         ({"type": "namespace", "name": "n", "tools": [5]}, "tools[0].tools[0]"), ({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, "tools[0].tools[0].name")]


@pytest.mark.parametrize("tool, param", WRONG, ids=range(len(WRONG)))
def test_wrong_namespaces_are_refused(server, tool, param):
    r = server.post("/v1/responses", {"input": "a", "tools": [tool]})
    assert r.status == 400 and r.error["param"] == param, r.body


def test_an_empty_namespace_has_no_tools(shown):
    assert prompt_of(shown, input="a", tools=[{"type": "namespace", "name": "n", "tools": []}, PLAIN]).endswith("<get_state>")


def test_messages_before_the_input(shown):
    chat = [{"role": "system", "content": "not again"}, {"role": "user", "content": "one"}, {"role": "assistant", "content": [{"type": "text", "text": "t"}, {"type": "text", "text": "wo"}]}]
    assert prompt_of(shown, input="three", instructions="be", previous_input_messages=chat) == "[system:be][user:one][assistant:two][user:three]"
    harmony = [{"author": {"role": "user"}, "content": [{"type": "text", "text": "one"}]}, {"author": {"role": "assistant"}, "channel": "analysis", "content": [{"text": "hm"}]},
               {"author": {"role": "assistant"}, "channel": "final", "content": [{"text": "two"}]}]
    assert prompt_of(shown, input="three", previous_input_messages=harmony) == "[user:one][assistant:two][user:three]"
    assert prompt_of(shown, input="three", previous_input_messages=None) == prompt_of(shown, input="three", previous_input_messages=[]) == "[user:three]"


@pytest.mark.parametrize("list_", [[5], [{}], [{"role": "wizard", "content": "a"}], [{"role": "tool", "content": "a", "tool_call_id": "1"}], [{"role": "assistant", "tool_calls": [{}]}],
                                   [{"author": {"role": "assistant"}, "recipient": "functions.f", "content": "a"}],
                                   [{"role": "user"}], [{"role": "system", "content": 5}], [{"role": "user", "content": [{"text": 5}]}], [{"author": 5, "role": "user", "content": "a"}]], ids=range(10))
def test_invalid_messages_before_the_input_are_refused(shown, list_):
    r = shown.post("/v1/responses", {"input": "a", "previous_input_messages": list_})
    assert r.status == 400 and r.error["param"] == "previous_input_messages[0]", r.body
    assert shown.post("/v1/responses", {"input": "a", "previous_input_messages": 5}).error["param"] == "previous_input_messages"
    assert shown.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "previous_input_messages": [1]}).status == 400
