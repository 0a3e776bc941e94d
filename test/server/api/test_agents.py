# SPDX-License-Identifier: Apache-2.0
"""The loop of an agent: its prompts are found in the cache to the token, calls arrive while the rest is still written,
and its reasoning between calls is passed to the template again, over each of the three APIs that agents use."""

import concurrent.futures
import http.client
import json
import os
import random
import time

import pytest
from api import Server, scripted
from nightly import NIGHTLY, nightly

TURNS, AGENTS = 20 if NIGHTLY else 10, 8
READ = {"type": "function", "function": {"name": "read_file", "description": "Read a file.", "parameters": {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]}}}
SYSTEM = "You are an agent who works on files. " * 12


# ---- the cache ----

def common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def turn(server, messages, seed):
    body = {"messages": messages, "tools": [READ], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 40,
            "seed": seed, "return_token_ids": True}
    r = server.post("/v1/chat/completions", body, timeout=300)
    assert r.status == 200, r.body
    return r.json()


def play(server, number, result_words):
    """Runs one agent. Returns (prompt ids, answer ids, cached tokens) of each turn."""
    words, seen = random.Random(number), []
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Agent %d: look into the files." % number}]
    for t in range(TURNS):
        j = turn(server, messages, 100 * number + t)
        (choice,) = j["choices"]
        seen.append((j["prompt_token_ids"], choice["token_ids"], j["usage"]["prompt_tokens_details"]["cached_tokens"]))
        call = choice["message"]["tool_calls"][0]
        result = " ".join(words.choice(("line", "of", "text", "42", "x")) for _ in range(words.randint(*result_words)))
        messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": result}]
        time.sleep(words.expovariate(20))
    return seen


def possible(turns, system, block):
    """The number of tokens of each prompt that the cache can have: whole blocks of the previous prompt and its answer,
    without the answer's last token, which was never computed; in the first turn, whole blocks of the common system
    prompt. At least one token is always computed."""
    found = [common(turns[0][0], system)] + [common(p, q[0] + q[1][:-1]) for p, q in zip((t[0] for t in turns[1:]), turns)]
    return [min(n, len(t[0]) - 1) // block * block for n, t in zip(found, turns)]


@pytest.mark.parametrize("block", [16, 64])
def test_eight_agents_find_their_prompts_in_the_cache(block):
    """The cache has room for all of their prompts: every block that can be found is found, and the metrics agree with
    the usage of the answers."""
    with Server(real=True, num_gpu_blocks_override=1600 * 16 // block, block_size=block, max_model_len=4096) as s:
        first = turn(s, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hi"}], 1)
        with concurrent.futures.ThreadPoolExecutor(AGENTS) as pool:
            agents = list(pool.map(lambda i: play(s, i, (10, 40)), range(AGENTS)))
        hits, queries = s.metric("vllm:prefix_cache_hits_total"), s.metric("vllm:prefix_cache_queries_total")
    cached = prompts = could = 0
    for turns in agents:
        want = possible(turns, first["prompt_token_ids"], block)
        assert len(turns) == TURNS and all(t[2] >= n for t, n in zip(turns, want)), [(len(t[0]), t[2], n) for t, n in zip(turns, want)]
        assert len(turns[-1][0]) > 8 * len(turns[0][0]) / 4
        cached += sum(t[2] for t in turns)
        could += sum(want)
        prompts += sum(len(t[0]) for t in turns)
    print("%d prompt tokens, %d cached of %d that could be" % (prompts, cached, could))
    assert cached >= could and could / prompts > (0.85 if block == 16 else 0.8)
    assert hits == cached and queries == prompts + len(first["prompt_token_ids"])


def test_prefixes_are_found_up_to_a_multiple_of_sixteen_tokens():
    """Of 200 tokens three blocks of 64 are full, so they are cached. A row is always computed: that of the last token."""
    ids = [random.Random(9).randrange(7, 900) for _ in range(200)]
    with Server(real=True, block_size=64, max_model_len=1024) as s:
        def cached(prompt):
            r = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True})
            assert r.status == 200, r.body
            return r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached(ids) == 0
        assert cached(ids) == 192
        assert cached(ids[:192]) == 128 + 48
        assert cached(ids[:150] + [5] * 100) == 128 + 16
        assert cached(ids[:30] + [6] * 100) == 16
        assert cached(ids[:15] + [7] * 100) == 0
        assert s.metric("vllm:prefix_cache_hits_total") == 192 + 176 + 144 + 16


# ---- the time to the first token ----

def processor_ms(server):
    """Processor time of all threads of the server so far, which the load of other programs hardly changes."""
    total, tasks = 0, "/proc/%d/task" % server.process.pid
    for task in os.listdir(tasks):
        with open("%s/%s/schedstat" % (tasks, task)) as f:
            total += int(f.read().split()[0])
    return total / 1e6


def first_token_ms(server, path, body):
    before = processor_ms(server)
    r = server.post(path, {**body, "max_tokens": 1, "temperature": 0}, timeout=300)
    assert r.status == 200, r.body
    return processor_ms(server) - before, r.json()["usage"]


def conversation(server, number, turns):
    """Processor time to the first token of each turn, as a chat and as token ids. Every turn has about the same number
    of new tokens."""
    words, chat, ids = random.Random(number), [], []
    text = lambda n: " ".join(words.choice(("line", "of", "text", "42", "x")) for _ in range(n))
    messages, tokens = [{"role": "system", "content": SYSTEM}], [7 + number]
    for _ in range(turns):
        messages += [{"role": "user", "content": text(40)}]
        ms, usage = first_token_ms(server, "/v1/chat/completions", {"messages": messages})
        new = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        chat.append((ms, new, usage["prompt_tokens"]))
        tokens += [words.randrange(7, 900) for _ in range(usage["prompt_tokens"] - len(tokens))]
        ids.append(first_token_ms(server, "/v1/completions", {"prompt": tokens, "ignore_eos": True})[0])
        messages += [{"role": "assistant", "content": text(8)}]
    return chat, ids


@nightly
def test_the_thirtieth_turn_computes_only_its_new_tokens():
    """The limit is 1.3 times the processor time of the third turn, plus the additional cost of new tokens after a
    longer context, measured with token ids. Work that is repeated for the whole prompt at each turn would exceed it."""
    with Server(real=True, max_model_len=4096, threads=1) as s:
        runs = [conversation(s, i, 30) for i in range(3)]
    third = sorted(chat[2][0] for chat, _ in runs)[1]
    last = sorted(chat[29][0] for chat, _ in runs)[1]
    more = sorted(ids[29] - ids[2] for _, ids in runs)[1]
    print("turn 3: %.1f ms, turn 30: %.1f ms (%d of %d tokens new), added cost of these: %.1f ms" % (third, last, *runs[0][0][29][1:], more))
    assert last <= 1.3 * third + max(more, 0)


# ---- calls as they are written ----

def call_of(city):
    return '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>' % city


TAIL = 40
TEXT = call_of("Paris") + "\n" + call_of("Rome") + "\nNow" + " we wait" * (TAIL // 2)
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STEP_S = 0.02


@pytest.fixture(scope="module")
def slow():
    with scripted([TEXT], env={"FAKE_STEP_US": str(int(STEP_S * 1e6))}) as s:
        yield s
    os.unlink(s.script_path)


def events(server, path, body):
    """Yields (seconds since the request, the event's object) as events arrive."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    begin = time.monotonic()
    c.request("POST", path, json.dumps({**body, "stream": True, "seed": 0}), {"content-type": "application/json"})
    for line in c.getresponse():
        if line.startswith(b"data: {"):
            yield time.monotonic() - begin, json.loads(line[6:])
    c.close()


def chat_calls(server):
    """The times at which each call's arguments were complete, and at which the answer ended."""
    calls, end = {}, 0
    for t, e in events(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300,
                                                        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]}):
        for c in e["choices"]:
            for d in c["delta"].get("tool_calls", []):
                text, _ = calls.get(d["index"], ("", 0))
                calls[d["index"]] = (text + d["function"].get("arguments", ""), t)
            end = t if c["finish_reason"] else end
    return [calls[i] for i in sorted(calls)], end


def message_calls(server):
    calls, names, end = [], {}, 0
    for t, e in events(server, "/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300,
                                                "tools": [{"name": "get_weather", "input_schema": WEATHER}]}):
        if e["type"] == "content_block_start" and e["content_block"]["type"] == "tool_use":
            names[e["index"]] = ""
        elif e["type"] == "content_block_delta" and e["index"] in names:
            names[e["index"]] += e["delta"]["partial_json"]
        elif e["type"] == "content_block_stop" and e["index"] in names:
            calls.append((names[e["index"]], t))
        elif e["type"] == "message_stop":
            end = t
    return calls, end


def response_calls(server):
    calls, end = [], 0
    for t, e in events(server, "/v1/responses", {"input": "hi", "max_output_tokens": 300, "store": False,
                                                 "tools": [{"type": "function", "name": "get_weather", "parameters": WEATHER}]}):
        if e["type"] == "response.output_item.done" and e["item"]["type"] == "function_call":
            calls.append((e["item"]["arguments"], t))
        elif e["type"] == "response.completed":
            end = t
    return calls, end


@pytest.mark.parametrize("calls_of", [chat_calls, message_calls, response_calls])
def test_a_call_is_sent_as_soon_as_it_is_complete(slow, calls_of):
    """A client can run a call while the answer goes on: more than ten tokens come between the two calls, and TAIL
    tokens after them."""
    calls, end = calls_of(slow)
    assert [json.loads(text) for text, _ in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert calls[0][1] < calls[1][1] - 5 * STEP_S
    assert calls[1][1] < end - TAIL / 2 * STEP_S


# ---- thoughts between calls ----

SHOW = ("{% for m in messages %}[{{ m.role }}{% if m.reasoning_content %} thought={{ m.reasoning_content }}{% endif %}] {{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{{ '\\n' }}{% endfor %}")
SHOWN = ("[user] go\n[assistant thought=first] f({\"a\": 1})\n[tool] one\n[assistant thought=then] now f({\"a\": 2})\n[tool] two\n"
         "[assistant thought=last] done\n[user] more\n")


def chat_history():
    step = lambda thought, text, i: {"role": "assistant", "content": text, "reasoning_content": thought, "tool_calls": [
        {"id": "c%d" % i, "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": i})}}]}
    return {"messages": [{"role": "user", "content": "go"}, step("first", None, 1), {"role": "tool", "tool_call_id": "c1", "content": "one"},
                         step("then", "now ", 2), {"role": "tool", "tool_call_id": "c2", "content": "two"},
                         {"role": "assistant", "content": "done", "reasoning_content": "last"}, {"role": "user", "content": "more"}]}


def message_history():
    think = lambda text: {"type": "thinking", "thinking": text, "signature": "s"}
    use = lambda i: {"type": "tool_use", "id": "c%d" % i, "name": "f", "input": {"a": i}}
    result = lambda i, text: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c%d" % i, "content": text}]}
    return {"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": [think("first"), use(1)]}, result(1, "one"),
                         {"role": "assistant", "content": [think("then"), {"type": "text", "text": "now "}, use(2)]}, result(2, "two"),
                         {"role": "assistant", "content": [think("last"), {"type": "text", "text": "done"}]}, {"role": "user", "content": "more"}]}


def response_history():
    think = lambda text: {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
    use = lambda i: {"type": "function_call", "call_id": "c%d" % i, "name": "f", "arguments": json.dumps({"a": i})}
    result = lambda i, text: {"type": "function_call_output", "call_id": "c%d" % i, "output": text}
    say = lambda text: {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]}
    return {"store": False, "input": [{"role": "user", "content": "go"}, think("first"), use(1), result(1, "one"), think("then"), say("now "), use(2),
                                      result(2, "two"), think("last"), say("done"), {"role": "user", "content": "more"}]}


@pytest.fixture(scope="module")
def shown():
    with Server(chat_template=SHOW) as s:
        yield s


@pytest.mark.parametrize("path, history, length, text", [
    ("/v1/chat/completions", chat_history, "max_tokens", lambda j: j["choices"][0]["message"]["content"]),
    ("/v1/messages", message_history, "max_tokens", lambda j: j["content"][0]["text"]),
    ("/v1/responses", response_history, "max_output_tokens", lambda j: j["output"][0]["content"][0]["text"])])
def test_reasoning_between_calls_reaches_the_template(shown, path, history, length, text):
    """The fake engine repeats its prompt."""
    n = len(shown.post("/tokenize", {"prompt": SHOWN, "add_special_tokens": False}).json()["tokens"])
    r = shown.post(path, {**history(), length: n, "ignore_eos": True})
    assert r.status == 200, r.body
    assert text(r.json()) == SHOWN


@pytest.mark.parametrize("status, end", [("incomplete", "[user] go\n[assistant] The answer is"), ("in_progress", "[user] go\n[assistant] The answer is"),
                                         ("completed", "[user] go\n[assistant] The answer is\n")])
def test_a_response_continues_an_incomplete_answer(shown, status, end):
    said = {"type": "message", "role": "assistant", "status": status, "content": [{"type": "output_text", "text": "The answer is"}]}
    n = len(shown.post("/tokenize", {"prompt": end, "add_special_tokens": False}).json()["tokens"])
    j = shown.post("/v1/responses", {"input": [{"role": "user", "content": "go"}, said], "store": False, "max_output_tokens": n, "ignore_eos": True}).json()
    assert j["output"][0]["content"][0]["text"] == end
