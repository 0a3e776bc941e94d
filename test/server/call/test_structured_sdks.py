# SPDX-License-Identifier: Apache-2.0
"""Structured outputs as third-party programs request them: the openai package's parsers, instructor, pydantic-ai and
langchain-openai, against the demo model. What is not installed is skipped."""

import asyncio

import pytest
from api import Server

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

ASK = "In Berlin we met Ada, a singer of 81 years.\n\nGive name, job, city, age as a JSON object."
MESSAGES = [{"role": "user", "content": ASK}]


class Person(pydantic.BaseModel):
    """A person who was met."""

    name: str
    job: str
    city: str
    age: int


class Weather(pydantic.BaseModel):
    """Get the current weather in a city."""

    city: str


# As text and as a tool call: a small model only knows the forms that it was trained on.
WEATHER = "What is the weather in Paris?"
PARIS = Weather(city="Paris")
ADA = Person(name="Ada", job="singer", city="Berlin", age=81)


@pytest.fixture(scope="module")
def server():
    with Server(real=True, served_model_name="demo", max_model_len=2048) as s:
        yield s


@pytest.fixture(scope="module")
def url(server):
    return "http://127.0.0.1:%d/v1" % server.port


@pytest.fixture(scope="module")
def client(url):
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)


# ---- the openai package ----

def test_chat_parse(client):
    r = client.chat.completions.parse(model="demo", messages=MESSAGES, response_format=Person, temperature=0)
    assert r.choices[0].message.parsed == ADA and r.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(model="demo", messages=MESSAGES, response_format=Person, temperature=0) as stream:
        assert "content.delta" in [e.type for e in stream]
        assert stream.get_final_completion().choices[0].message.parsed == ADA


def test_chat_parse_of_tools(client):
    tools = [openai.pydantic_function_tool(Weather, name="get_weather")]
    messages = [{"role": "user", "content": WEATHER}]
    for choice in ("auto", "required", {"type": "function", "function": {"name": "get_weather"}}):
        r = client.chat.completions.parse(model="demo", messages=messages, tools=tools, tool_choice=choice, temperature=0)
        (call,) = r.choices[0].message.tool_calls
        assert call.function.parsed_arguments == PARIS


def test_chat_parse_of_a_truncated_answer(client):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="demo", messages=MESSAGES, response_format=Person, max_tokens=5)


def test_responses_parse(client):
    r = client.responses.parse(model="demo", input=ASK, text_format=Person, temperature=0)
    assert r.output_parsed == ADA
    with client.responses.stream(model="demo", input=ASK, text_format=Person, temperature=0) as stream:
        assert "response.output_text.delta" in [e.type for e in stream]
        assert stream.get_final_response().output_parsed == ADA


def test_responses_parse_of_tools(client):
    tools = [openai.pydantic_function_tool(Weather, name="get_weather")]
    tools = [{"type": "function", **tools[0]["function"]}]
    r = client.responses.parse(model="demo", input=WEATHER, tools=tools, tool_choice="required", temperature=0)
    (call,) = [o for o in r.output if o.type == "function_call"]
    assert Weather.model_validate_json(call.arguments) == PARIS


# ---- instructor ----

@pytest.mark.parametrize("mode,ask,answer", [
    ("TOOLS", WEATHER, PARIS), ("TOOLS_STRICT", WEATHER, PARIS), ("RESPONSES_TOOLS", WEATHER, PARIS),
    ("JSON_SCHEMA", ASK, ADA), ("JSON", ASK, None), ("MD_JSON", ASK, None),  # these modes put the schema into the prompt
])
def test_instructor(client, mode, ask, answer):
    instructor = pytest.importorskip("instructor")
    c = instructor.from_openai(client, mode=instructor.Mode[mode], model="demo")
    asked = type(answer) if answer else Person
    r = c.chat.completions.create(messages=[{"role": "user", "content": ask}], response_model=asked, max_retries=0, temperature=0)
    assert isinstance(r, asked) and r.model_dump() == (answer or r).model_dump()


@pytest.mark.parametrize("mode,ask,answer", [("TOOLS", WEATHER, PARIS), ("JSON_SCHEMA", ASK, ADA)])
def test_instructor_streams(client, mode, ask, answer):
    instructor = pytest.importorskip("instructor")
    c = instructor.from_openai(client, mode=instructor.Mode[mode], model="demo")
    *_, last = c.chat.completions.create_partial(messages=[{"role": "user", "content": ask}], response_model=type(answer), temperature=0)
    assert last.model_dump() == answer.model_dump()


# ---- pydantic-ai ----

@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize("output,ask,answer", [
    ("ToolOutput", WEATHER, PARIS), ("NativeOutput", ASK, ADA), ("PromptedOutput", ASK, None),
])
def test_pydantic_ai(url, kind, output, ask, answer):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    provider = pytest.importorskip("pydantic_ai.providers.openai").OpenAIProvider(base_url=url, api_key="none")
    make = models.OpenAIChatModel if kind == "chat" else models.OpenAIResponsesModel
    asked = type(answer) if answer else Person
    agent = pydantic_ai.Agent(make("demo", provider=provider), output_type=getattr(pydantic_ai, output)(asked),
                              model_settings={"temperature": 0}, retries=0)
    r = asyncio.run(agent.run(ask))
    assert isinstance(r.output, asked) and r.output == (answer or r.output)


# ---- langchain ----

@pytest.mark.parametrize("method,more,ask,answer", [
    ("function_calling", {}, WEATHER, PARIS), ("function_calling", {"strict": True}, WEATHER, PARIS),
    ("json_schema", {}, ASK, ADA), ("json_schema", {"strict": True}, ASK, ADA), ("json_mode", {}, ASK, ADA),
])
@pytest.mark.parametrize("responses", [False, True])
def test_langchain(url, method, more, ask, answer, responses):
    langchain = pytest.importorskip("langchain_openai")
    llm = langchain.ChatOpenAI(model="demo", base_url=url, api_key="none", temperature=0, max_retries=0,
                               use_responses_api=responses)
    assert llm.with_structured_output(type(answer), method=method, **more).invoke(ask) == answer
