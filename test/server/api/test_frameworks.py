# SPDX-License-Identifier: Apache-2.0
"""Whole tool loops of third-party agent frameworks: openai-agents over Responses and chat completions, pydantic-ai
over those and Messages, and the tool runner of the anthropic package; streamed and whole. With the scripted model the
tool calls are known in advance; the demo model decides on a call by itself. `scripts/check_agents` installs the
packages."""

import asyncio
import os

import pytest
from agents_loop import ANSWER, Relay, Tools, forget_script, scripted_agent
from api import Server

os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
QUESTION = "What does the program print?"
WEATHER = "What is the weather in Paris?"
KEY = "none"


@pytest.fixture(scope="module")
def model():
    with scripted_agent() as s:
        yield s
    forget_script(s)


@pytest.fixture
def relay(model):
    with Relay(model.port) as r:
        yield r
        # The tool runner first tries threads, which the server does not store, and continues without them.
        assert all(b"thread_unsupported_request" in answer for _, _, answer in r.failures) and len(r.failures) <= 1


@pytest.fixture(scope="module")
def demo():
    with Server(real=True, served_model_name="demo", max_model_len=2048, override_generation_config='{"temperature": 0}') as s:
        yield s


def thoughts_came_back(relay):
    """The last request contains the reasoning of earlier turns, in the form of its API."""
    text = str(relay.requests[-1][1])
    return "I look around first." in text and "The program is short." in text


# ---- openai-agents ----

def agents_model(url, api):
    import agents
    import openai
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
    return kind("demo", openai_client=client)


def agents_agent(url, api, tools):
    import agents

    @agents.function_tool
    def list_files(folder: str) -> str:
        """List the files of a folder."""
        return tools.note("list_files", folder=folder)

    @agents.function_tool
    def read_file(path: str) -> str:
        """Read a file."""
        return tools.note("read_file", path=path)

    @agents.function_tool
    def count(text: str, times: int) -> str:
        """Count."""
        return tools.note("count", text=text, times=times)

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city."""
        return tools.note("get_weather", city=city)

    some = [get_weather] if tools.weather else [list_files, read_file, count]
    return agents.Agent(name="one", instructions="You help.", model=agents_model(url, api), tools=some)


def run_agents(url, api, question, tools, streamed, **more):
    import agents
    agent = agents_agent(url, api, tools)

    async def run():
        if not streamed:
            return (await agents.Runner.run(agent, question, **more)).final_output
        result = agents.Runner.run_streamed(agent, question, **more)
        async for _ in result.stream_events():
            pass
        return result.final_output
    return asyncio.run(run())


def new_tools(weather=False):
    tools = Tools()
    tools.weather = weather
    return tools


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", ["responses", "chat"])
def test_openai_agents(relay, api, streamed):
    pytest.importorskip("agents")
    tools = new_tools()
    assert run_agents(relay.url, api, QUESTION, tools, streamed) == ANSWER
    assert tools.happened(), tools.calls
    assert len(relay.requests) == 4
    assert api == "chat" or thoughts_came_back(relay)


def test_openai_agents_continue_stored_responses(demo):
    pytest.importorskip("agents")
    tools = new_tools(weather=True)
    text = run_agents("http://127.0.0.1:%d" % demo.port, "responses", WEATHER, tools, False, auto_previous_response_id=True)
    assert tools.calls == [("get_weather", {"city": "Paris"})] and text


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", ["responses", "chat"])
def test_openai_agents_with_a_model_that_decides(demo, api, streamed):
    pytest.importorskip("agents")
    tools = new_tools(weather=True)
    assert run_agents("http://127.0.0.1:%d" % demo.port, api, WEATHER, tools, streamed)
    assert tools.calls == [("get_weather", {"city": "Paris"})]


# ---- pydantic-ai ----

def pydantic_model(url, api):
    if api == "messages":
        anthropic = pytest.importorskip("anthropic")
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
        client = anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0)
        return AnthropicModel("demo", provider=AnthropicProvider(anthropic_client=client))
    import openai
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    return (OpenAIResponsesModel if api == "responses" else OpenAIChatModel)("demo", provider=OpenAIProvider(openai_client=client))


def run_pydantic(url, api, question, tools, streamed):
    import pydantic_ai
    agent = pydantic_ai.Agent(pydantic_model(url, api), instructions="You help.")
    if tools.weather:
        @agent.tool_plain
        def get_weather(city: str) -> str:
            """Get the current weather in a city."""
            return tools.note("get_weather", city=city)
    else:
        @agent.tool_plain
        def list_files(folder: str) -> str:
            """List the files of a folder."""
            return tools.note("list_files", folder=folder)

        @agent.tool_plain
        def read_file(path: str) -> str:
            """Read a file."""
            return tools.note("read_file", path=path)

        @agent.tool_plain
        def count(text: str, times: int) -> str:
            """Count."""
            return tools.note("count", text=text, times=times)

    async def run():
        if not streamed:
            return (await agent.run(question)).output
        final = None
        async with agent.iter(question) as steps:
            async for node in steps:
                if pydantic_ai.Agent.is_model_request_node(node):
                    async with node.stream(steps.ctx) as stream:
                        async for _ in stream:
                            pass
            final = steps.result.output
        return final
    return asyncio.run(run())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_pydantic_ai(relay, api, streamed):
    pytest.importorskip("pydantic_ai")
    tools = new_tools()
    assert run_pydantic(relay.url, api, QUESTION, tools, streamed) == ANSWER
    assert tools.happened(), tools.calls
    assert len(relay.requests) == 4 and thoughts_came_back(relay)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_pydantic_ai_with_a_model_that_decides(demo, api, streamed):
    pytest.importorskip("pydantic_ai")
    tools = new_tools(weather=True)
    assert run_pydantic("http://127.0.0.1:%d" % demo.port, api, WEATHER, tools, streamed)
    assert tools.calls == [("get_weather", {"city": "Paris"})]


# ---- the anthropic package's tool runner ----

def run_tool_runner(url, question, tools, streamed):
    import anthropic
    client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)

    @anthropic.beta_tool
    def list_files(folder: str) -> str:
        """List the files of a folder."""
        return tools.note("list_files", folder=folder)

    @anthropic.beta_tool
    def read_file(path: str) -> str:
        """Read a file."""
        return tools.note("read_file", path=path)

    @anthropic.beta_tool
    def count(text: str, times: int) -> str:
        """Count."""
        return tools.note("count", text=text, times=times)

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city."""
        return tools.note("get_weather", city=city)

    some = [get_weather] if tools.weather else [list_files, read_file, count]
    runner = client.beta.messages.tool_runner(model="demo", max_tokens=400, tools=some, messages=[{"role": "user", "content": question}],
                                              thinking={"type": "enabled", "budget_tokens": 1024}, **({"stream": True} if streamed else {}))
    last = None
    for message in runner:
        if streamed:
            for _ in message:
                pass
            message = message.get_final_message()
        last = message
    return "".join(b.text for b in last.content if b.type == "text")


@pytest.mark.parametrize("streamed", [False, True])
def test_tool_runner(relay, streamed):
    pytest.importorskip("anthropic")
    tools = new_tools()
    assert run_tool_runner(relay.url, QUESTION, tools, streamed).strip() == ANSWER
    assert tools.happened(), tools.calls
    assert len(relay.requests) - len(relay.failures) == 4 and thoughts_came_back(relay)


@pytest.mark.parametrize("streamed", [False, True])
def test_tool_runner_with_a_model_that_decides(demo, streamed):
    pytest.importorskip("anthropic")
    tools = new_tools(weather=True)
    assert run_tool_runner("http://127.0.0.1:%d" % demo.port, WEATHER, tools, streamed)
    assert tools.calls == [("get_weather", {"city": "Paris"})]
