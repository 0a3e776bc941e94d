# SPDX-License-Identifier: Apache-2.0
"""The real `openai` package against `sluice serve` with the demo model on the CPU."""

import json
import time

import pytest
from api import Server

openai = pytest.importorskip("openai")

WEATHER = {"name": "get_weather", "description": "Get the current weather in a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}}, "required": ["city"]}}
TOOLS = [{"type": "function", "function": WEATHER}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
COUNT = [{"role": "user", "content": "Count from 1 to 10."}]


@pytest.fixture(scope="module")
def server():
    with Server(real=True, served_model_name="demo", max_model_len=1024) as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % server.port, api_key="none", max_retries=0, timeout=60)


def test_create_and_stream_agree(client):
    whole = client.chat.completions.create(model="demo", messages=COUNT, temperature=0, max_tokens=60)
    assert whole.choices[0].finish_reason == "stop" and "5" in whole.choices[0].message.content
    assert whole._request_id and whole.usage.completion_tokens > 10
    text, usage = "", None
    for chunk in client.chat.completions.create(model="demo", messages=COUNT, temperature=0, max_tokens=60, stream=True,
                                                stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    assert text == whole.choices[0].message.content
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_equal_seeds_give_equal_answers_and_no_seed_does_not(client):
    def ask(**kw):
        r = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Tell me a story."}],
                                           temperature=1.5, max_tokens=24, **kw)
        return r.choices[0].message.content
    assert ask(seed=7) == ask(seed=7)
    assert len({ask() for _ in range(4)}) > 1


def test_stream_helper_with_tools(client):
    with client.chat.completions.stream(model="demo", messages=ASK, tools=TOOLS, temperature=0, max_tokens=80) as stream:
        kinds = [e.type for e in stream]
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    (call,) = message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Paris"}
    whole = client.chat.completions.create(model="demo", messages=ASK, tools=TOOLS, temperature=0, max_tokens=80).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content is None
    assert whole.message.tool_calls[0].function.arguments == call.function.arguments
    answer = client.chat.completions.create(model="demo", temperature=0, max_tokens=60, tools=TOOLS, messages=[
        *ASK, whole.message, {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": '{"temperature": 21}'}])
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].message.content


def test_two_samples_with_logprobs(client):
    r = client.chat.completions.create(model="demo", messages=COUNT, n=2, logprobs=True, top_logprobs=3, max_tokens=8, temperature=1, seed=1)
    assert [c.index for c in r.choices] == [0, 1] and r.usage.completion_tokens <= 16
    for c in r.choices:
        for entry in c.logprobs.content:
            assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
            assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
            assert bytes(entry.bytes).decode(errors="replace") == entry.token
    got = {0: [], 1: []}
    for chunk in client.chat.completions.create(model="demo", messages=COUNT, n=2, logprobs=True, top_logprobs=3, max_tokens=8,
                                                temperature=1, seed=1, stream=True):
        for c in chunk.choices:
            got[c.index] += c.logprobs.content if c.logprobs else []
    for c in r.choices:
        assert [(e.token, pytest.approx(e.logprob, abs=1e-4)) for e in c.logprobs.content] == [(e.token, e.logprob) for e in got[c.index]]


def test_greedy_token_is_the_most_likely(client):
    r = client.completions.create(model="demo", prompt="The cat", temperature=0, max_tokens=8, logprobs=2, echo=True)
    l = r.choices[0].logprobs
    assert l.token_logprobs[0] is None and "".join(l.tokens).endswith(r.choices[0].text[-5:])
    n = r.usage.prompt_tokens
    for token, value, top in list(zip(l.tokens, l.token_logprobs, l.top_logprobs))[n:]:
        assert value == max(top.values()) and top[token] == value


def test_embeddings_default_encoding(client):
    texts = ["The boat is red.", "The boat is blue.", "What is 12 + 30?"]
    packed = client.embeddings.create(model="demo", input=texts)  # the SDK asks for base64
    plain = client.embeddings.create(model="demo", input=texts, encoding_format="float")
    for p, f in zip(packed.data, plain.data):
        assert p.embedding == pytest.approx(f.embedding, abs=1e-6)
    def dot(i, j):
        return sum(a * b for a, b in zip(plain.data[i].embedding, plain.data[j].embedding))
    assert dot(0, 0) == pytest.approx(1, abs=1e-5) and dot(0, 1) > dot(0, 2)


def test_responses_create_and_stream(client):
    r = client.responses.create(model="demo", input="Count from 1 to 10.", temperature=0)
    assert r.status == "completed" and "5" in r.output_text and r.usage.output_tokens > 10
    with client.responses.stream(model="demo", input="Count from 1 to 10.", temperature=0) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == r.output_text == final.output_text
    tool = [{"type": "function", "strict": True, **WEATHER}]
    r = client.responses.create(model="demo", input=ASK[0]["content"], tools=tool, temperature=0)
    (call,) = [o for o in r.output if o.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Paris"}
    r = client.responses.create(model="demo", tools=tool, temperature=0, input=[
        {"role": "user", "content": ASK[0]["content"]}, call.model_dump(),
        {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21}'}])
    assert r.output_text


def events_of(reply):
    return [json.loads(e) for e in reply.events() if e != "[DONE]"]


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS}, {"logprobs": True, "top_logprobs": 3}, {"n": 3, "temperature": 1}])
def test_chat_fits_the_sdks_types(server, more):
    """The SDK constructs its objects without checking types; here each field's type is checked."""
    pydantic = pytest.importorskip("pydantic")
    whole, chunk = (pydantic.TypeAdapter(t) for t in (openai.types.chat.ChatCompletion, openai.types.chat.ChatCompletionChunk))
    body = {"messages": ASK, "max_tokens": 40, "temperature": 0, **more}
    whole.validate_python(server.post("/v1/chat/completions", body).json())
    for e in events_of(server.post("/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})):
        chunk.validate_python(e)


@pytest.mark.parametrize("more", [
    {}, {"tools": [{"type": "function", "strict": True, **WEATHER}]}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    {"max_output_tokens": 16, "input": "Tell me a story."}, {"instructions": "x", "reasoning": {"effort": "low"}, "metadata": {"a": "b"}}])
def test_responses_fit_the_sdks_types(server, more):
    pydantic = pytest.importorskip("pydantic")
    types = openai.types.responses
    body = {"input": ASK[0]["content"], "temperature": 0, "max_output_tokens": 60, **more}
    pydantic.TypeAdapter(types.Response).validate_python(server.post("/v1/responses", body).json())
    events = events_of(server.post("/v1/responses", {**body, "stream": True}))
    classes = {c.model_fields["type"].annotation.__args__[0]: c for c in vars(types).values()
               if isinstance(c, type) and c.__name__.endswith("Event") and "type" in getattr(c, "model_fields", {})
               and hasattr(c.model_fields["type"].annotation, "__args__")}
    for e in events:
        pydantic.TypeAdapter(classes[e["type"]]).validate_python(e)


def test_the_rest_fits_the_sdks_types(server):
    pydantic = pytest.importorskip("pydantic")
    fits = lambda t, v: pydantic.TypeAdapter(t).validate_python(v)
    for more in ({}, {"logprobs": 2}, {"prompt": ["a", "b"], "n": 2}):
        fits(openai.types.Completion, server.post("/v1/completions", {"prompt": "Once", "max_tokens": 5, **more}).json())
    fits(openai.types.CreateEmbeddingResponse, server.post("/v1/embeddings", {"input": ["a", "b"]}).json())
    for m in server.get("/v1/models").json()["data"]:
        fits(openai.types.Model, m)


def test_models(client):
    assert [m.id for m in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


@pytest.mark.parametrize("error,code,param,kwargs", [
    ("BadRequestError", "decimal_below_min_value", "temperature", {"temperature": -3}),
    ("BadRequestError", "context_length_exceeded", "messages", {"max_tokens": 5000}),
    ("NotFoundError", "model_not_found", "model", {"model": "gpt"}),
    ("BadRequestError", "unsupported_value", "response_format", {"response_format": {"type": "grammar"}}),
    ("BadRequestError", "invalid_value", "tool_choice", {"tools": TOOLS, "tool_choice": "always"}),
])
def test_errors_have_class_code_and_param(client, error, code, param, kwargs):
    with pytest.raises(getattr(openai, error)) as e:
        client.chat.completions.create(**{"model": "demo", "messages": COUNT, **kwargs})
    assert (e.value.code, e.value.param) == (code, param) and e.value.request_id


def test_extra_body(client):
    r = client.completions.create(model="demo", prompt=[[5, 6, 7]], max_tokens=5, extra_body={
        "ignore_eos": True, "return_token_ids": True, "min_p": 0.05, "top_k": 20, "repetition_penalty": 1.1})
    c = r.choices[0]
    assert c.prompt_token_ids == [5, 6, 7] and len(c.token_ids) == 5 and c.finish_reason == "length"


def test_equal_prompts_hit_the_prefix_cache(client, server):
    prompt = "Once upon a time there was a boat. " * 12
    first = client.completions.create(model="demo", prompt=prompt, max_tokens=2, temperature=0)
    second = client.completions.create(model="demo", prompt=prompt, max_tokens=2, temperature=0)
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens // 2
    assert first.choices[0].text == second.choices[0].text
    assert server.metric("vllm:prefix_cache_hits_total") > 0


async def all_at_once(port, n):
    import asyncio

    client = openai.AsyncOpenAI(base_url="http://127.0.0.1:%d/v1" % port, api_key="none", max_retries=0, timeout=120)
    replies = await asyncio.gather(*[client.chat.completions.create(
        model="demo", messages=COUNT, temperature=0, max_tokens=40) for _ in range(n)])
    await client.close()
    return {r.choices[0].message.content for r in replies}


def test_a_batch_of_equal_requests_gives_equal_answers(server):
    import asyncio

    assert len(asyncio.run(all_at_once(server.port, 24))) == 1


def test_files_and_batches(client, tmp_path):
    lines = [{"custom_id": "c%d" % i, "method": "POST", "url": "/v1/chat/completions",
              "body": {"model": "demo", "messages": COUNT, "max_tokens": 5 + i, "temperature": 0}} for i in range(6)]
    lines.append({**lines[0], "custom_id": "wrong", "body": {"model": "demo"}})
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    f = client.files.create(file=path.open("rb"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200})
    assert f.object == "file" and f.filename == "in.jsonl" and f.expires_at == f.created_at + 7200
    assert client.files.retrieve(f.id) == f and f in list(client.files.list(purpose="batch", limit=1))
    assert client.files.content(f.id).read() == path.read_bytes()
    batch = client.batches.create(input_file_id=f.id, endpoint="/v1/chat/completions", completion_window="24h",
                                  metadata={"a": "b"}, output_expires_after={"anchor": "created_at", "seconds": 3600})
    assert batch.id in [b.id for b in client.batches.list(limit=1)]
    while batch.status not in ("completed", "failed"):
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    type(batch).model_validate(json.loads(batch.model_dump_json()), strict=True)
    assert batch.status == "completed" and batch.metadata == {"a": "b"} and batch.model == "demo"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (7, 6, 1)
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0
    out = [json.loads(l) for l in client.files.content(batch.output_file_id).text.splitlines()]
    for o in out:
        whole = openai.types.chat.ChatCompletion.model_validate(o["response"]["body"])
        assert whole.usage.completion_tokens <= 5 + int(o["custom_id"][1:])
    assert len(out) == 6 and client.files.retrieve(batch.output_file_id).expires_at
    assert json.loads(client.files.content(batch.error_file_id).text)["custom_id"] == "wrong"
    assert client.batches.cancel(batch.id).status == "completed"
    assert client.files.delete(f.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(f.id)
    with pytest.raises(openai.BadRequestError) as e:
        client.files.create(file=b"x", purpose="fine-tune")
    assert e.value.code == "unsupported_value"
