# SPDX-License-Identifier: Apache-2.0
"""vLLM's /v1/systemone and /v1/decisions: questions that are answered by the probabilities of labels."""
import math

import pytest
from api import DEMO, Server

TEAMS = {"billing": None, "shipping": "parcels", "security": None}
QUESTIONS = {"team": {"type": "choice", "instructions": "Which team?", "criteria": TEAMS},
             "urgent": {"type": "noul", "instructions": "Is money moving?", "criteria": {"true": "it moves"}},
             "tone": {"type": "score", "instructions": "How upset?", "criteria": ["calm", "annoyed", "furious"]}}
LISTED = [{"type": "predicate", "instructions": "Broken?"},
          {"type": "choice", "name": "team", "instructions": "Which team?", "choices": [{"value": "returns"}, {"value": True, "description": "d"}]},
          {"type": "score", "name": "damage", "instructions": "Rate it.", "levels": [{"label": "none"}, {"label": "some"}, {"label": "all"}]}]


@pytest.fixture(scope="module")
def server():
    with Server(real=True, model=DEMO, served_model_name="demo", threads=2) as s:
        yield s


def ask(s, path="/v1/systemone", **body):
    r = s.post(path, body)
    assert r.status == 200, r.body
    return r.json()


def check(answer, diagnostics):
    p = list(answer["probabilities"].values())
    assert sum(p) == pytest.approx(1) and all(0 <= x <= 1 for x in p) and 0 < diagnostics["label_mass"] <= 1 + 1e-6
    assert answer["confidence"] == pytest.approx(max(p) * diagnostics["label_mass"]) and isinstance(diagnostics["argmax_is_label"], bool)


def test_questions_of_each_type(server):
    j = ask(server, model="demo", state={"ticket": "charged twice", "n": [1, 2]}, questions=QUESTIONS, instructions="Be fair.")
    assert (j["object"], j["model"], list(j["answers"]), j["usage"]["output_tokens"], j["joint"]) == ("structured_decision", "demo", list(QUESTIONS), 3, None)
    assert j["usage"]["input_tokens"] > 30 and j["id"].startswith("decision-")
    team, urgent, tone = j["answers"].values()
    for key, answer in j["answers"].items():
        check(answer, j["diagnostics"][key])
    assert set(team["probabilities"]) == set(TEAMS) and team["choice"] == max(TEAMS, key=lambda t: team["probabilities"][t])
    assert urgent["noul"] == urgent["probabilities"]["yes"] and set(urgent["probabilities"]) == {"yes", "no"}
    assert tone["legend"] == {"0": "calm", "1": "annoyed", "2": "furious"} and tone["score"] == pytest.approx(sum(i * p for i, p in enumerate(tone["probabilities"].values())))


def test_the_probabilities_are_those_of_the_labels_after_the_prompt(server):
    """The same question written out as a chat gives the same prompt, and the same log-probabilities of the letters."""
    prompt = "the state\n\nQuestion: Which team?\nA: billing\nB: shipping - parcels\nC: security\nAnswer with the letter of one option only."
    ids = [server.post("/tokenize", {"prompt": c, "add_special_tokens": False}).json()["tokens"][0] for c in "ABC"]
    c = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "temperature": 0, "logprob_token_ids": ids, "ignore_eos": True}).json()
    p = [math.exp(t["logprob"]) for t in c["choices"][0]["logprobs"]["content"][0]["top_logprobs"]]
    j = ask(server, state="the state", questions={"q": QUESTIONS["team"]})
    assert j["usage"]["input_tokens"] == c["usage"]["prompt_tokens"] and j["diagnostics"]["q"]["label_mass"] == pytest.approx(sum(p), rel=1e-4)
    assert list(j["answers"]["q"]["probabilities"].values()) == pytest.approx([x / sum(p) for x in p], rel=1e-4)


def test_one_option_is_certain_but_not_confident(server):
    j = ask(server, state="x", questions={"q": {"type": "choice", "criteria": {"heads": None}}})
    assert j["answers"]["q"]["probabilities"] == {"heads": 1} and j["answers"]["q"]["confidence"] == pytest.approx(j["diagnostics"]["q"]["label_mass"])


def test_decisions_are_lists(server):
    j = ask(server, "/v1/decisions", model="demo", input=[{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_text", "text": "b"}]}], questions=LISTED)
    assert set(j) == {"model", "answers", "usage"} and j["usage"]["output_tokens"] == 3 and j["usage"]["total_tokens"] == j["usage"]["input_tokens"] + 3
    predicate, choice, score = j["answers"]
    assert predicate.keys() == {"type", "name", "probability"} and predicate["name"] is None and 0 <= predicate["probability"] <= 1
    assert [p["value"] for p in choice["probabilities"]] == ["returns", True] and choice["choice"] == max(choice["probabilities"], key=lambda p: p["probability"])["value"]
    assert [(p["value"], p["label"]) for p in score["probabilities"]] == [(0, "none"), (1, "some"), (2, "all")]
    assert score["score"] == pytest.approx(sum(p["value"] * p["probability"] for p in score["probabilities"]))


def test_a_conversation_is_a_text_with_roles(server):
    """A conversation gives the same prompt as its text with role names; without role names if the user wrote all messages."""
    call = {"type": "function_call", "call_id": "1", "name": "get", "arguments": "{}"}
    items = [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_json", "data": {"b": [1]}}]}, call,
             {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "r"}]},
             {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "x"}, {"type": "refusal", "refusal": "no"}]}]
    text = 'system: be\n\nuser: a\n{"b": [1]}\n\ncall of get: {}\n\nresult: r\n\nassistant: x\nno'
    for input_, same in ((items, text), ([items[1]], 'a\n{"b": [1]}'), ([], "")):
        a, b = [ask(server, "/v1/decisions", model="demo", input=i, questions=LISTED[:1]) for i in (input_, same)]
        assert a["answers"] == b["answers"] and a["usage"]["total_tokens"] == b["usage"]["total_tokens"]


def test_a_nul_in_questions_is_kept(server):
    named = [{**LISTED[1], "name": "a\0b", "choices": [{"value": "\0"}, {"value": "c"}]}]
    answer = ask(server, "/v1/decisions", input="\0", questions=named)["answers"][0]
    assert answer["name"] == "a\0b" and answer["probabilities"][0]["value"] == "\0"
    assert list(ask(server, state="x", questions={"a\0": QUESTIONS["team"]})["answers"]) == ["a\0"]


def many(n):
    return {"type": "choice", "criteria": {str(i): None for i in range(n)}}


WRONG = [({"questions": QUESTIONS}, "'state'"), ({"state": "x"}, "'questions'"), ({"state": "x", "questions": {}}, "at least one"), ({"state": "x", "questions": []}, "expected an object"),
         ({"state": "x", "questions": {str(i): many(2) for i in range(65)}}, "at most 64"), ({"state": "x", "questions": {"q": many(27)}}, "at most 26 options"),
         ({"state": "x", "questions": {"q": {**many(2), "more": 1}}}, "unknown field(s)"), ({"state": "x", "questions": {"q": {"type": "noul", "criteria": ["yes"]}}}, "must be an object"),
         ({"state": "x", "questions": {"q": {"type": "noul", "criteria": {"maybe": "a"}}}}, "unknown field(s)"), ({"state": "x", "questions": {"": many(2)}}, "id of a question"),
         ({"state": "x", "questions": {"q": {"type": "score", "criteria": ["calm"]}}}, "ordered list of levels"), ({"state": "x", "questions": {"q": {"type": "score", "criteria": ["a", "a"]}}}, "two options"),
         ({"state": "x", "questions": {"q": {"type": "guess"}}}, "unknown question type"), ({"state": "x", "questions": {"q": 5}}, "must be an object"), ({"state": "x", "questions": {"q": many(0)}}, "must map"),
         ({"state": "x", "questions": QUESTIONS, "chat_template_kwargs": {"enable_thinking": True}}, "thinking must be off"), ({"state": "x", "questions": QUESTIONS, "joint": True}, "joint"),
         ({"state": "x", "questions": QUESTIONS, "images": ["data:"]}, "images"), ({"state": "x" * 100000, "questions": QUESTIONS}, "maximum context length")]


@pytest.mark.parametrize("body, words", WRONG, ids=range(len(WRONG)))
def test_wrong_questions_are_refused(server, body, words):
    r = server.post("/v1/systemone", body)
    assert r.status == 400 and words in r.error["message"], r.body


WRONG_LISTS = [({"questions": LISTED}, "'input'"), ({"input": "x", "questions": {}}, "an array"), ({"input": 5, "questions": LISTED}, "a string or an array"),
               ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "questions": LISTED}, "text input only"),
               ({"input": [{"role": "tool", "content": "x"}], "questions": LISTED}, "role user"), ({"input": [{"role": "user"}], "questions": LISTED}, "content must be"),
               ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}], "questions": LISTED}, "'call_id'"), ({"input": [{"type": "computer_call"}], "questions": LISTED}, "role user"),
               ({"input": [{"type": "custom_tool_call", "call_id": "1", "input": ""}], "questions": LISTED}, "'name'"), ({"input": "x", "questions": [{"type": "predicate"}]}, "instructions"),
               ({"input": "x", "questions": [{**LISTED[0], "criteria": 1}]}, "unknown field(s)"), ({"input": "x", "questions": [{**LISTED[1], "choices": [{"value": "a"}]}]}, "at least two"),
               ({"input": "x", "questions": [{**LISTED[1], "choices": [{"value": 5}, {"value": 6}]}]}, "'value'"), ({"input": "x", "questions": [{**LISTED[0], "name": None}]}, "a name is a string"),
               ({"input": "x", "questions": [{**LISTED[2], "levels": [{"label": str(i)} for i in range(11)]}]}, "at most 10")]


@pytest.mark.parametrize("body, words", WRONG_LISTS, ids=range(len(WRONG_LISTS)))
def test_wrong_decisions_are_refused(server, body, words):
    r = server.post("/v1/decisions", body)
    assert r.status == 400 and words in r.error["message"], r.body


def test_the_routes_need_a_key():
    with Server(api_key="secret") as s:
        for path in ("/v1/systemone", "/v1/decisions"):
            assert s.post(path, {}).status == 401
