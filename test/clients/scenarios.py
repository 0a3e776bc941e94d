# SPDX-License-Identifier: Apache-2.0
"""Uses of a server by real clients: a function per client and task, run by scripts/check_clients in a virtual
environment that has the clients. Each reports a failure as an exception. The server runs the bundled demo model, so
that sums, tool calls and JSON are answered right."""

import asyncio
import json
import os
import subprocess
import sys

SUM = "What is 12 + 30?"
WEATHER = "What is the weather in Paris?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
          "required": ["city", "days"], "additionalProperties": False}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "The weather in a city.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}

scenarios = []  # (client, task, function)


def scenario(client):
    def add(f):
        scenarios.append((client, f.__name__.split("_", 1)[1], f))
        return f
    return add


def check_city(arguments):
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert arguments == {"city": "Paris"}, arguments


def check_object(value):
    value = json.loads(value) if isinstance(value, str) else value
    assert set(value) == {"city", "days"} and isinstance(value["days"], int), value


# ---- openai ----

def openai_client(url):
    import openai
    return openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)


@scenario("openai")
def openai_chat(url):
    r = openai_client(url).chat.completions.create(model="demo", messages=[{"role": "user", "content": SUM}], temperature=0)
    assert r.choices[0].message.content == "42" and r.choices[0].finish_reason == "stop" and r.usage.total_tokens > 0


@scenario("openai")
def openai_stream(url):
    parts = list(openai_client(url).chat.completions.create(model="demo", messages=[{"role": "user", "content": SUM}], temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == "42" and parts[-1].usage.completion_tokens > 0


@scenario("openai")
def openai_tools(url):
    c = openai_client(url)
    messages = [{"role": "user", "content": WEATHER}]
    m = c.chat.completions.create(model="demo", messages=messages, tools=[TOOL], temperature=0).choices[0].message
    check_city(m.tool_calls[0].function.arguments)
    messages += [m.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": '{"temperature": 21}'}]
    assert "21" in c.chat.completions.create(model="demo", messages=messages, tools=[TOOL], temperature=0).choices[0].message.content


@scenario("openai")
def openai_structured(url):
    import pydantic

    class Trip(pydantic.BaseModel):
        city: str
        days: int

    r = openai_client(url).chat.completions.parse(model="demo", messages=[{"role": "user", "content": "Three days in Rome, as JSON."}], response_format=Trip, max_tokens=200, temperature=0)
    assert isinstance(r.choices[0].message.parsed, Trip)


@scenario("openai")
def openai_embeddings(url):
    r = openai_client(url).embeddings.create(model="demo", input=["a b", "c"])  # base64 on the wire
    assert len(r.data) == 2 and abs(sum(x * x for x in r.data[0].embedding) - 1) < 1e-3


@scenario("openai")
def openai_models(url):
    c = openai_client(url)
    assert "demo" in [m.id for m in c.models.list()] and c.models.retrieve("demo").id == "demo"


@scenario("openai")
def openai_responses(url):
    r = openai_client(url).responses.create(model="demo", input=SUM, temperature=0)
    assert r.output_text == "42" and r.status == "completed"


@scenario("openai")
def openai_completions(url):
    r = openai_client(url).completions.create(model="demo", prompt="Once upon a time", max_tokens=8, n=2)
    assert len(r.choices) == 2 and r.choices[0].text


# ---- langchain-openai ----

def langchain_chat_model(url, **more):
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(base_url=url + "/v1", api_key="x", model="demo", temperature=0, max_retries=0, **more)


@scenario("langchain-openai")
def langchain_chat(url):
    assert langchain_chat_model(url).invoke(SUM).content == "42"


@scenario("langchain-openai")
def langchain_stream(url):
    assert "".join(c.content for c in langchain_chat_model(url).stream(SUM)) == "42"


@scenario("langchain-openai")
def langchain_tools(url):
    from langchain_core.tools import tool

    @tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return city

    check_city(langchain_chat_model(url).bind_tools([get_weather]).invoke(WEATHER).tool_calls[0]["args"])


@scenario("langchain-openai")
def langchain_structured(url):
    check_object(langchain_chat_model(url, max_tokens=200).with_structured_output({"title": "trip", **SCHEMA}, method="json_schema").invoke("Three days in Rome, as JSON."))


@scenario("langchain-openai")
def langchain_embeddings(url):
    from langchain_openai import OpenAIEmbeddings
    v = OpenAIEmbeddings(base_url=url + "/v1", api_key="x", model="demo", check_embedding_ctx_length=False).embed_documents(["a b", "c"])
    assert len(v) == 2 and len(v[0]) == len(v[1]) > 8


# ---- llama-index ----

def index_model(url):
    from llama_index.llms.openai_like import OpenAILike
    return OpenAILike(api_base=url + "/v1", api_key="x", model="demo", is_chat_model=True, is_function_calling_model=True, temperature=0, context_window=2048, max_tokens=100, max_retries=0)


@scenario("llama-index-llms-openai-like")
def index_chat(url):
    from llama_index.core.llms import ChatMessage
    assert index_model(url).chat([ChatMessage(role="user", content=SUM)]).message.content == "42"


@scenario("llama-index-llms-openai-like")
def index_stream(url):
    from llama_index.core.llms import ChatMessage
    assert "".join(c.delta or "" for c in index_model(url).stream_chat([ChatMessage(role="user", content=SUM)])) == "42"


@scenario("llama-index-llms-openai-like")
def index_tools(url):
    from llama_index.core.tools import FunctionTool

    def get_weather(city: str) -> str:
        """The weather in a city."""
        return city

    m = index_model(url)
    r = m.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg=WEATHER, tool_required=True)
    check_city(m.get_tool_calls_from_response(r)[0].tool_kwargs)


# ---- instructor ----

@scenario("instructor")
def instructor_structured(url):
    import instructor
    import pydantic

    class Trip(pydantic.BaseModel):
        city: str
        days: int

    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        c = instructor.from_openai(openai_client(url), mode=mode)
        assert isinstance(c.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Three days in Rome."}], response_model=Trip, max_tokens=200, temperature=0, max_retries=0), Trip)


# ---- pydantic-ai ----

def pydantic_agent(url, **more):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    return Agent(OpenAIChatModel("demo", provider=OpenAIProvider(base_url=url + "/v1", api_key="x")), model_settings={"temperature": 0, "max_tokens": 200}, **more)


@scenario("pydantic-ai-slim[openai]")
def pydantic_chat(url):
    assert pydantic_agent(url).run_sync(SUM).output == "42"


@scenario("pydantic-ai-slim[openai]")
def pydantic_stream(url):
    async def run():
        async with pydantic_agent(url).run_stream(SUM) as r:
            return [t async for t in r.stream_text()][-1]
    assert asyncio.run(run()) == "42"


@scenario("pydantic-ai-slim[openai]")
def pydantic_tools(url):
    agent, cities = pydantic_agent(url), []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return '{"temperature": 21}'

    assert "21" in agent.run_sync(WEATHER).output and cities == ["Paris"]


# ---- openai-agents ----

@scenario("openai-agents")
def agents_tools(url):
    import agents
    import openai
    agents.set_tracing_disabled(True)
    cities = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return '{"temperature": 21}'

    async def ask(kind):
        model = kind("demo", openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0))
        agent = agents.Agent(name="a", model=model, tools=[get_weather], model_settings=agents.ModelSettings(temperature=0, max_tokens=200))
        return (await agents.Runner.run(agent, WEATHER)).final_output

    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        assert "21" in asyncio.run(ask(kind)), kind
    assert cities == ["Paris", "Paris"]


# ---- llm ----

@scenario("llm")
def llm_chat(url):
    import tempfile
    with tempfile.TemporaryDirectory() as home:
        with open(os.path.join(home, "extra-openai-models.yaml"), "w") as f:
            f.write("- model_id: here\n  model_name: demo\n  api_base: %s/v1\n" % url)
        env = {**os.environ, "LLM_USER_PATH": home, "OPENAI_API_KEY": "x"}
        for more in ([], ["--no-stream"]):
            r = subprocess.run([sys.executable, "-m", "llm", "-m", "here", *more, "-o", "temperature", "0", SUM], env=env, capture_output=True, text=True, timeout=120)
            assert r.stdout.strip() == "42", r.stdout + r.stderr


# ---- litellm ----

def litellm_ask(url, provider="openai", **more):
    import litellm
    litellm.suppress_debug_info = True
    base = url + ("/v1" if provider in ("openai", "hosted_vllm") else "")
    return litellm.completion(model=provider + "/demo", api_base=base, api_key="x", temperature=0, num_retries=0, **more)


@scenario("litellm")
def litellm_chat(url):
    for provider in ("openai", "hosted_vllm", "ollama_chat"):
        r = litellm_ask(url, provider, messages=[{"role": "user", "content": SUM}])
        assert r.choices[0].message.content == "42", provider


@scenario("litellm")
def litellm_stream(url):
    parts = litellm_ask(url, messages=[{"role": "user", "content": SUM}], stream=True)
    assert "".join(p.choices[0].delta.content or "" for p in parts) == "42"


@scenario("litellm")
def litellm_tools(url):
    r = litellm_ask(url, messages=[{"role": "user", "content": WEATHER}], tools=[TOOL])
    check_city(r.choices[0].message.tool_calls[0].function.arguments)


@scenario("litellm")
def litellm_embeddings(url):
    import litellm
    r = litellm.embedding(model="openai/demo", api_base=url + "/v1", api_key="x", input=["a b", "c"])
    assert len(r.data) == 2 and len(r.data[0]["embedding"]) > 8


@scenario("litellm")
def litellm_too_long(url):
    import litellm
    try:
        litellm_ask(url, messages=[{"role": "user", "content": "b " * 9000}])
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("no ContextWindowExceededError")


# ---- anthropic ----

def anthropic_client(url):
    import anthropic
    return anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)


@scenario("anthropic")
def anthropic_chat(url):
    r = anthropic_client(url).messages.create(model="demo", max_tokens=50, messages=[{"role": "user", "content": SUM}], extra_body={"temperature": 0})
    assert r.content[0].text == "42" and r.stop_reason == "end_turn"


@scenario("anthropic")
def anthropic_stream(url):
    with anthropic_client(url).messages.stream(model="demo", max_tokens=50, messages=[{"role": "user", "content": SUM}], extra_body={"temperature": 0}) as s:
        assert "".join(s.text_stream) == "42"


@scenario("anthropic")
def anthropic_tools(url):
    tool = {"name": "get_weather", "description": "The weather in a city.", "input_schema": PARAMETERS}
    r = anthropic_client(url).messages.create(model="demo", max_tokens=100, messages=[{"role": "user", "content": WEATHER}], tools=[tool], extra_body={"temperature": 0})
    check_city([b.input for b in r.content if b.type == "tool_use"][0])


@scenario("anthropic")
def anthropic_count(url):
    assert anthropic_client(url).messages.count_tokens(model="demo", messages=[{"role": "user", "content": SUM}]).input_tokens > 5


@scenario("anthropic")
def anthropic_models(url):
    c = anthropic_client(url)
    listed = list(c.models.list(limit=1))
    assert listed[0].id == "demo" and listed[0].display_name == "demo" and listed[0].created_at.year > 2000
    assert c.models.retrieve("demo").type == "model"


# ---- ollama ----

def ollama_client(url):
    import ollama
    return ollama.Client(host=url)


@scenario("ollama")
def ollama_chat(url):
    c = ollama_client(url)
    assert c.chat(model="demo", messages=[{"role": "user", "content": SUM}], options={"temperature": 0}).message.content == "42"
    assert c.generate(model="demo", prompt=SUM, options={"temperature": 0}).response == "42"


@scenario("ollama")
def ollama_stream(url):
    parts = list(ollama_client(url).chat(model="demo", messages=[{"role": "user", "content": SUM}], options={"temperature": 0}, stream=True))
    assert "".join(p.message.content or "" for p in parts) == "42" and parts[-1].done


@scenario("ollama")
def ollama_tools(url):
    r = ollama_client(url).chat(model="demo", messages=[{"role": "user", "content": WEATHER}], tools=[TOOL], options={"temperature": 0})
    check_city(dict(r.message.tool_calls[0].function.arguments))


@scenario("ollama")
def ollama_structured(url):
    r = ollama_client(url).chat(model="demo", messages=[{"role": "user", "content": "Three days in Rome."}], format=SCHEMA, options={"temperature": 0, "num_predict": 200})
    check_object(r.message.content)


@scenario("ollama")
def ollama_embeddings(url):
    assert len(ollama_client(url).embed(model="demo", input=["a b", "c"]).embeddings) == 2


@scenario("ollama")
def ollama_models(url):
    c = ollama_client(url)
    assert any(m.model.startswith("demo") for m in c.list().models) and c.show("demo").capabilities


# ---- the runner ----

def run(url, only):
    """Prints a line of JSON for each scenario: client, task, and what went wrong."""
    for client, task, function in scenarios:
        if only and not any(o in client for o in only):
            continue
        error = None
        try:
            function(url)
        except ImportError as e:
            error = "not installed: %s" % e
        except BaseException as e:  # a client may end the program
            error = "%s: %s" % (type(e).__name__, str(e)[:300])
        print(json.dumps({"client": client, "task": task, "error": error}), flush=True)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
