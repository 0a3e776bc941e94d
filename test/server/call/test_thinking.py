# SPDX-License-Identifier: Apache-2.0
"""The length of reasoning: vLLM's thinking_token_budget, llama.cpp's names of it, and the options of both."""
import json
import os
import threading

import anthropic
import openai
import pytest
from api import DEMO, ROOT, Server
from nightly import NIGHTLY

OPENED = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
USER = lambda text: [{"role": "user", "content": text}]
DRAFT = {"method": "draft_model", "model": os.path.join(ROOT, "models/demo-draft"), "num_speculative_tokens": 4, "fixed": True}
NGRAM = {"method": "ngram", "num_speculative_tokens": 6, "fixed": True}


def serve(**options):
    return Server(real=True, model=DEMO, threads=2, chat_template=OPENED, reasoning_parser="qwen3", **options)


@pytest.fixture(scope="module")
def server():
    with serve() as s:
        yield s


def ask(s, text="The cat sat", path="/v1/chat/completions", **body):
    r = s.post(path, {"messages": USER(text), "max_tokens": 24, "temperature": 0, "return_token_ids": True, **body})
    assert r.status == 200, r.body
    return r.json()


def close_of(s):
    [close] = s.post("/tokenize", {"prompt": "</think>", "add_special_tokens": False}).json()["tokens"]
    return close


KEYS = ["thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"]


@pytest.fixture(scope="module")
def free(server):
    """The tokens of an answer without a limit."""
    return ask(server)["choices"][0]["token_ids"]


@pytest.mark.parametrize("key", KEYS)
def test_no_limit_is_the_default(server, free, key):
    assert close_of(server) not in free
    assert ask(server, **{key: -1})["choices"][0]["token_ids"] == ask(server, **{key: None})["choices"][0]["token_ids"] == free


@pytest.mark.parametrize("budget", [0, 1, 5, 20])
@pytest.mark.parametrize("key", KEYS)
def test_reasoning_ends_at_the_limit(server, free, budget, key):
    close = close_of(server)
    c = ask(server, **{key: budget})["choices"][0]
    assert c["token_ids"][:budget + 1] == free[:budget] + [close] and c["finish_reason"] == "length"
    assert c["message"]["content"] and bool(c["message"]["reasoning"]) == (budget > 0)


def test_it_is_the_same_under_drafts_and_in_batches(server):
    bodies = [dict(thinking_token_budget=b, seed=b, temperature=t, max_tokens=40, n=n, **more) for b, t, n in ((0, 0, 1), (3, 0, 1), (7, 1.2, 3), (12, 0.7, 2), (30, 1, 1))
              for more in ({}, {"reasoning_budget_message": " So: 1 2 3"}, {"structured_outputs": {"regex": "(yes|no), [a-z]{3,9}"}})]
    bodies = bodies if NIGHTLY else bodies[::2]  # every budget and every addition
    want = [[c["token_ids"] for c in ask(server, **b)["choices"]] for b in bodies]
    close = close_of(server)
    assert all(ids.index(close) >= b["thinking_token_budget"] for b, w in zip(bodies, want) for ids in w if close in ids and "reasoning_budget_message" in b)
    assert all(close in ids and ids.index(close) <= b["thinking_token_budget"] for b, w in zip(bodies, want) for ids in w if "reasoning_budget_message" not in b)
    for config in (NGRAM, DRAFT, {**DRAFT, "method": "tree"}, {**DRAFT, "rejection_sample_method": "standard", "num_speculative_tokens": 2}):
        with serve(speculative_config=json.dumps(config), max_num_batched_tokens=64, max_num_seqs=8) as s:
            got = [None] * len(bodies)

            def run(i):
                got[i] = [c["token_ids"] for c in ask(s, **bodies[i])["choices"]]
            threads = [threading.Thread(target=run, args=(i,)) for i in range(len(bodies))]
            [t.start() for t in threads]
            [t.join() for t in threads]
            assert got == want


def test_the_answer_keeps_its_constraint(server):
    for budget in (0, 4):
        c = ask(server, thinking_token_budget=budget, max_tokens=60, structured_outputs={"choice": ["red", "blue"]})["choices"][0]
        assert c["message"]["content"] in ("red", "blue") and c["finish_reason"] == "stop"


def test_the_model_may_open_it(server):
    [opens] = server.post("/tokenize", {"prompt": "<think>", "add_special_tokens": False}).json()["tokens"]
    close = close_of(server)
    ids = lambda text, bias, **body: server.complete(text, max_tokens=12, temperature=0, logit_bias=bias, return_token_ids=True, **body).json()["choices"][0]["token_ids"]
    for budget in (0, 1, 3):
        got = ids("The cat sat", {str(opens): 100}, thinking_token_budget=budget)
        assert got == [opens] * (budget + 1) + [close] + [opens] * (10 - budget)
    # an answer without the opening marker at its start has no reasoning; after a closing marker nothing is forced
    plain = ids("The cat sat", {}, thinking_token_budget=0)
    assert plain == ids("The cat sat", {}) and opens not in plain
    assert ids("<think>", {str(close): 100}, thinking_token_budget=5) == [close] * 12


def test_streams_and_completions(server):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x")
    whole = ask(server, thinking_token_budget=3)["choices"][0]["message"]
    deltas = [e.choices[0].delta for e in client.chat.completions.create(model="demo", messages=USER("The cat sat"), max_tokens=24, temperature=0, stream=True,
                                                                         extra_body={"thinking_token_budget": 3}) if e.choices]
    assert "".join(d.content or "" for d in deltas) == whole["content"]
    assert "".join(getattr(d, "reasoning", None) or "" for d in deltas) == whole["reasoning"]
    prompt = server.post("/tokenize", {"messages": USER("The cat sat")}).json()["tokens"]
    for p in (prompt, "The cat sat\n<think>"):
        r = server.complete(p, add_special_tokens=False, thinking_token_budget=3, max_tokens=24, temperature=0, skip_special_tokens=False).json()["choices"][0]["text"]
        assert r == whole["reasoning"] + "</think>" + whole["content"]
    r = client.responses.create(model="demo", input="The cat sat", max_output_tokens=24, temperature=0, extra_body={"thinking_token_budget": 3})
    assert r.output_text == whole["content"]


def test_the_budget_of_thinking_objects(server):
    want = ask(server, thinking_token_budget=3)["choices"][0]["message"]
    got = ask(server, thinking={"type": "enabled", "budget_tokens": 3})["choices"][0]["message"]
    assert got == want and ask(server, thinking={"type": "disabled", "budget_tokens": 3})["choices"][0]["message"] != want
    client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="x")
    body = dict(model="demo", messages=USER("The cat sat"), max_tokens=24, thinking={"type": "enabled", "budget_tokens": 3})
    thought, text = client.messages.create(**body, extra_body={"temperature": 0}).content
    assert thought.thinking == want["reasoning"] and text.text == want["content"]
    with client.messages.stream(**body) as stream:
        assert [b.type for b in stream.get_final_message().content] == ["thinking", "text"]
    free = server.post("/v1/messages", {**body, "temperature": 0, "thinking": {"type": "adaptive"}}).json()
    assert [b["type"] for b in free["content"]] == ["thinking"]
    for wrong in (0, "5", 1.5):
        r = server.post("/v1/messages", {**body, "thinking": {"type": "enabled", "budget_tokens": wrong}})
        assert r.status == 400 and "thinking.budget_tokens" in r.error["message"]


def test_the_server_s_own_limit():
    with serve(reasoning_budget=2, reasoning_config=json.dumps({"reasoning_start_str": "<think>", "reasoning_end_str": " Enough.</think>"})) as s:
        m = lambda **body: ask(s, **body)["choices"][0]["message"]
        assert m()["reasoning"].endswith(" Enough.") and m()["content"]
        assert not m(thinking_token_budget=-1)["content"]
        assert m(reasoning_budget_message=" Stop.")["reasoning"].endswith(" Stop.")
        assert s.post("/v1/messages", {"messages": USER("The cat sat"), "max_tokens": 24}).status == 200
    with serve(reasoning_budget=0, reasoning_budget_message="!") as s:
        assert ask(s)["choices"][0]["message"]["reasoning"] == "!"


WRONG = [({"thinking_token_budget": -2}, "integer_below_min_value"), ({"thinking_token_budget": "a"}, "invalid_type"), ({"thinking_token_budget": 1.5}, "invalid_type"),
         ({"reasoning_budget_message": 5}, "invalid_type"), ({"thinking_token_budget": 3, "use_beam_search": True}, "unsupported_value")]


@pytest.mark.parametrize("body, code", WRONG, ids=range(len(WRONG)))
def test_wrong_limits_are_refused(server, body, code):
    r = server.chat(**body)
    assert r.status == 400 and r.error["code"] in (code, "unsupported_parameter") and r.error["param"] in body, r.body


def test_a_model_without_reasoning_has_nothing_to_limit():
    with Server(real=True, threads=2) as s:
        r = s.chat(thinking_token_budget=3)
        assert r.status == 400 and r.error["param"] == "thinking_token_budget" and "--reasoning-parser" in r.error["message"]
        assert s.chat(thinking_token_budget=-1, max_tokens=2).status == 200
        # a client of Messages cannot know whether the model can reason
        r = s.post("/v1/messages", {"messages": USER("Hi"), "max_tokens": 2, "thinking": {"type": "enabled", "budget_tokens": 1024}})
        assert r.status == 200


MARKERS = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"]
CHANNELS = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|channel|>analysis<|message|>{% endif %}"
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


@pytest.fixture(scope="module")
def harmony(tmp_path_factory):
    """The demo model with the markers of GPT-OSS in place of its own."""
    folder = tmp_path_factory.mktemp("harmony")
    for name in os.listdir(DEMO):
        if name not in ("tokenizer.json", "chat_template.jinja"):
            os.symlink(os.path.join(DEMO, name), folder / name)
    with open(os.path.join(DEMO, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    for token in tokenizer["added_tokens"]:
        if 0 <= token["id"] - 4088 < len(MARKERS):
            token.update(content=MARKERS[token["id"] - 4088], special=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(CHANNELS)
    with Server(real=True, threads=2, model=str(folder), served_model_name="demo", tool_call_parser="openai", max_model_len=512) as s:
        yield s


def test_reasoning_in_channels(harmony):
    ids = lambda text: harmony.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    next_one, final = ids("<|end|><|start|>assistant"), ids("<|channel|>final<|message|>")
    ban = {str(i): -100 for i in ids("".join(MARKERS))}
    free = ask(harmony, logit_bias=ban)["choices"][0]
    assert free["message"]["reasoning"] and not free["message"]["content"]
    for budget in (0, 1, 5):
        c = ask(harmony, logit_bias=ban, thinking_token_budget=budget)["choices"][0]
        assert c["token_ids"][:budget + len(next_one + final)] == free["token_ids"][:budget] + next_one + final
        assert c["message"]["content"] and bool(c["message"]["reasoning"]) == (budget > 0)
    # with tools the model may choose between a call and the answer; a call that is required follows
    c = ask(harmony, logit_bias=ban, thinking_token_budget=2, tools=[WEATHER])["choices"][0]
    assert c["token_ids"][2:2 + len(next_one)] == next_one and c["token_ids"][2 + len(next_one)] not in final
    c = ask(harmony, thinking_token_budget=2, tools=[WEATHER], tool_choice="required", max_tokens=64)["choices"][0]
    assert c["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    c = ask(harmony, thinking_token_budget=2, structured_outputs={"choice": ["red", "blue"]})["choices"][0]
    assert c["message"]["content"] in ("red", "blue") and c["finish_reason"] == "stop"
    # the limit may be reached within a character, which then stays incomplete
    part = {str(ids("🦆")[0]): 100}
    for more in ({}, {"reasoning_budget_message": " So:"}):
        c = ask(harmony, thinking_token_budget=1, logit_bias=part, structured_outputs={"choice": ["red", "blue"]}, **more)["choices"][0]
        assert c["message"]["content"] in ("red", "blue") and c["message"]["reasoning"].startswith("\ufffd")
    c = ask(harmony, logit_bias=ban, thinking_token_budget=2, reasoning_budget_message=" So:")["choices"][0]
    assert c["message"]["reasoning"].endswith(" So:") and c["message"]["content"]
