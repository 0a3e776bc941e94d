# SPDX-License-Identifier: Apache-2.0
"""GPT-OSS's output format over HTTP: channels and calls whose markers are special tokens. The tests make a template and a
tokenizer with these tokens; the template alone selects the parser."""

import json
import os

import pytest
from api import DEMO, fold, scripted

MARKERS = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"]
FIRST_ID = 4088  # replaces the demo's <tool_call> and similar tokens
TEMPLATE = """{% for m in messages %}{% if m.tool_calls %}<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}\
<|channel|>commentary json<|message|>{{ m.tool_calls[0].function.arguments|tojson }}<|call|>{% elif m.role == 'assistant' %}\
{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}\
<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% else %}\
<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}\
{% if tools %}{{ tools|tojson }}{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
ARGUMENTS = '{"city": "Paris \\"x\\" \u00e9\U0001F600"}'
THINKS = "<|channel|>analysis<|message|>I wonder \U0001F600.<|end|><|start|>assistant"
TEXTS = [
    THINKS + "<|channel|>final<|message|>The answer\nis 42.<|return|>",
    THINKS + "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + ARGUMENTS + "<|call|>no more",
    " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>" + ARGUMENTS + "<|call|>no more",
    THINKS + "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions."
    "get_weather<|message|>" + ARGUMENTS + "<|call|>no more",
    "No markers at all.",
    THINKS + "<|channel|>final<|end|><|message|><|channel|>\u00e9<|start|><|start|>",
    "<|channel|>final <|constrain|>json<|message|>" + ARGUMENTS + "<|return|>",
    "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    "<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>analysis<|message|>Three.<|end|><|start|>assistant"
    "<|channel|>final<|message|>Four.<|return|>",
]
MESSAGES = [  # reasoning, content, and calls if there are tools
    ("I wonder \U0001F600.", "The answer\nis 42.", 0),
    ("I wonder \U0001F600.", None, 1),
    (None, None, 1),
    ("I wonder \U0001F600.", "Let me see.", 1),
    (None, "No markers at all.", 0),
    ("I wonder \U0001F600.", "\u00e9", 0),
    (None, ARGUMENTS, 0),
    ("One.\nTwo.\nThree.", "I look.\nFour.", 0),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harmony")
    with open(os.path.join(DEMO, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    for token in tokenizer["added_tokens"]:
        if 0 <= token["id"] - FIRST_ID < len(MARKERS):
            token.update(content=MARKERS[token["id"] - FIRST_ID], special=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module", params=[1, 5], ids=["single", "grouped"])
def server(request, folder):
    env = {"FAKE_GROUP": str(request.param), "FAKE_EOS": str(FIRST_ID + MARKERS.index("<|call|>"))}
    with scripted(TEXTS, model=str(folder), env=env) as s:
        yield s
    os.unlink(s.script_path)


def ask(s, **body):
    """The choice, after checking that the stream is equal."""
    whole = s.chat(**body)
    assert whole.status == 200, whole.body
    (choice,) = whole.json()["choices"]
    (f,) = fold(s.chat(stream=True, **body).chunks())
    m = choice["message"]
    assert f["finish"] == choice["finish_reason"] and (f["message"]["content"] or None) == (m["content"] or None)
    assert f["message"].get("reasoning_content") == m.get("reasoning_content") == m.get("reasoning")
    calls = [c["function"] for c in m.get("tool_calls", [])]
    assert [c["function"] for c in f["message"].get("tool_calls", [])] == calls
    return choice, whole.json()["usage"]


def test_the_template_selects_the_parser(server):
    assert server.get("/server_info").json()["tool_call_parser"] == "harmony"


@pytest.mark.parametrize("seed", range(len(TEXTS)))
def test_channels_and_calls(server, seed):
    reasoning, content, n_calls = MESSAGES[seed]
    choice, usage = ask(server, seed=seed, tools=[WEATHER])
    m = choice["message"]
    assert (m.get("reasoning_content"), m["content"]) == (reasoning, content)
    assert choice["finish_reason"] == ("tool_calls" if n_calls else "stop")
    calls = [c["function"] for c in m.get("tool_calls", [])]
    assert calls == [{"name": "get_weather", "arguments": ARGUMENTS}] * n_calls
    assert (usage["completion_tokens_details"]["reasoning_tokens"] > 0) == (reasoning is not None)


@pytest.mark.parametrize("seed", range(len(TEXTS)))
@pytest.mark.parametrize("more", [{}, {"tools": [WEATHER], "tool_choice": "none"}])
def test_markers_are_removed_even_without_tools(server, seed, more):
    reasoning, content, n_calls = MESSAGES[seed]
    choice, _ = ask(server, seed=seed, **more)
    m = choice["message"]
    assert (m.get("reasoning_content"), choice["finish_reason"]) == (reasoning, "stop") and "tool_calls" not in m
    shown = 0 if more else n_calls
    assert (m["content"] or "") == "\n".join(([content] if content else []) + [ARGUMENTS] * shown)
    m = ask(server, seed=seed, include_reasoning=False, **more)[0]["message"]
    assert m["reasoning"] is None and "I wonder" not in (m["content"] or "")


def test_markers_that_are_letters_are_text(server):
    """A sample without a script repeats its prompt: once as letters, once as special tokens."""
    text = "<|channel|>commentary to=functions.get_weather<|message|>{}<|call|>"
    ids = server.post("/tokenize", {"prompt": text, "add_special_tokens": False, "parse_special": False}).json()["tokens"]
    assert max(ids) < FIRST_ID
    choice, _ = ask(server, text=text, tools=[WEATHER], max_tokens=200)
    assert choice["finish_reason"] == "length" and text in choice["message"]["content"]


def test_every_cut_by_max_tokens(server):
    for n in range(1, 40):
        choice, _ = ask(server, seed=3, tools=[WEATHER], max_tokens=n)
        m = choice["message"]
        assert "I wonder \U0001F600.".startswith(m.get("reasoning_content", "").rstrip("\ufffd"))
        assert "Let me see.".startswith(m["content"] or "")
        for c in m.get("tool_calls", []):
            assert ARGUMENTS.startswith(c["function"]["arguments"].rstrip("\ufffd")) or c["function"]["arguments"] == "{}"


def test_responses(server):
    tool = {"type": "function", **WEATHER["function"]}
    j = server.post("/v1/responses", {"input": "q", "seed": 3, "tools": [tool]}).json()
    assert [o["type"] for o in j["output"]] == ["reasoning", "message", "function_call"]
    assert j["output"][2]["arguments"] == ARGUMENTS and j["output"][1]["content"][0]["text"] == "Let me see."
    r = server.post("/v1/responses", {"input": "q", "seed": 3, "tools": [tool], "stream": True})
    done = [json.loads(e) for e in r.events()][-1]["response"]
    assert [o["type"] for o in done["output"]] == [o["type"] for o in j["output"]]


def test_the_items_of_a_response_are_the_same_in_a_stream(server):
    """The items are in the order of the channels, each with its own text and the log-probabilities of that text."""
    def items(response):
        shown = [(o, o.get("content", [{}])[0]) for o in response["output"]]
        return [(o["type"], c.get("text", o.get("arguments")), "".join(l["token"] for l in c.get("logprobs", []))) for o, c in shown]

    for seed, expected in ((3, [("reasoning", "I wonder \U0001F600."), ("message", "Let me see."), ("function_call", ARGUMENTS)]),
                           (7, [("reasoning", "One."), ("message", "I look."), ("reasoning", "Two.\nThree."), ("message", "Four.")])):
        body = {"input": "q", "seed": seed, "tools": [{"type": "function", **WEATHER["function"]}],
                "include": ["message.output_text.logprobs"]}
        whole = items(server.post("/v1/responses", body).json())
        assert [i[:2] for i in whole] == expected
        assert all(probs.endswith(text) if kind == "message" else not probs for kind, text, probs in whole)
        events = [json.loads(e) for e in server.post("/v1/responses", {**body, "stream": True}).events()]
        assert items(events[-1]["response"]) == whole
        deltas = [e for e in events if e["type"] == "response.output_text.delta"]
        assert "".join(l["token"] for e in deltas for l in e["logprobs"]) == "".join(probs for _, _, probs in whole)


@pytest.mark.parametrize("options, expected", [
    ({"tool_call_parser": "none"}, ("I wonder \U0001F600.", "Let me see.\n" + ARGUMENTS, 0)),
    ({"chat_template": "{{ messages[0].content }}", "tool_call_parser": "harmony", "reasoning_parser": "harmony"}, MESSAGES[3]),
    ({"reasoning_parser": "none"}, (None, "I wonder \U0001F600.\nLet me see.", 1))])
def test_parsers_by_name(folder, options, expected):
    with scripted(TEXTS, model=str(folder), env={"FAKE_EOS": str(FIRST_ID + 6)}, **options) as s:
        choice, _ = ask(s, seed=3, tools=[WEATHER])
    os.unlink(s.script_path)
    m = choice["message"]
    assert (m.get("reasoning_content"), m["content"], len(m.get("tool_calls", []))) == expected
