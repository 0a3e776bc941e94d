# SPDX-License-Identifier: Apache-2.0
"""/openapi.json is a valid OpenAPI 3.1 document, bodies that it allows never cause a 5xx, and /docs shows it."""

import json
import random
import re
import time

import pytest
from api import Server
from browser import CHROMIUM, Browser

TYPES = {"null", "boolean", "integer", "number", "string", "array", "object"}


@pytest.fixture(scope="module")
def server():
    with Server(max_num_queued_reqs=64, env={"FAKE_STEP_US": "200"}) as s:  # thousands of requests, whose times do not matter
        yield s


@pytest.fixture(scope="module")
def document(server):
    r = server.get("/openapi.json")
    assert r.status == 200 and r.headers["content-type"] == "application/json"
    return r.json()


def resolve(document, ref):
    assert ref.startswith("#/")
    node = document
    for part in ref[2:].split("/"):
        node = node[part]
    return node


def check_schema(document, s):
    """Checks the part of JSON Schema 2020-12 that the document uses; any other keyword is an error."""
    if "$ref" in s:
        assert set(s) == {"$ref"}
        resolve(document, s["$ref"])
        return
    allowed = {"type", "description", "properties", "required", "additionalProperties", "dependentRequired", "items", "anyOf", "oneOf", "allOf", "not", "enum", "const",
               "minimum", "maximum", "minItems", "maxItems", "uniqueItems", "prefixItems", "minLength", "maxLength", "minProperties", "maxProperties", "propertyNames", "pattern"}
    assert set(s) <= allowed, set(s) - allowed
    types = s.get("type", [])
    types = [types] if isinstance(types, str) else types
    assert set(types) <= TYPES and len(set(types)) == len(types)
    for key in ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"):
        assert key not in s or isinstance(s[key], int) and s[key] >= 0
    assert "minimum" not in s or "maximum" not in s or s["minimum"] <= s["maximum"]
    assert "enum" not in s or s["enum"] and len(set(map(json.dumps, s["enum"]))) == len(s["enum"])
    if "pattern" in s:
        re.compile(s["pattern"])
    assert set(s.get("required", [])) <= set(s.get("properties", s.get("required", [])))
    for sub in [*s.get("properties", {}).values(), *s.get("anyOf", []), *s.get("oneOf", []), *s.get("allOf", []), *s.get("prefixItems", [])]:
        check_schema(document, sub)
    for key in ("items", "additionalProperties", "not", "propertyNames"):
        if isinstance(s.get(key), dict):
            check_schema(document, s[key])


def operations(document):
    return [(method, path, o) for path, item in document["paths"].items() for method, o in item.items()]


def test_the_document_is_valid(document):
    assert document["openapi"] == "3.1.0" and document["info"]["title"] and document["info"]["version"]
    for s in document["components"]["schemas"].values():
        check_schema(document, s)
    all_of_them = operations(document)
    ids = [o["operationId"] for _, _, o in all_of_them]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[a-z0-9_]+", i) for i in ids)
    for method, path, o in all_of_them:
        assert method in ("get", "post", "delete") and path.startswith("/")
        named = {p["name"] for p in o.get("parameters", []) if p["in"] == "path" and p["required"] is True}
        assert named == set(re.findall(r"\{(\w+)\}", path))
        for p in o.get("parameters", []):
            check_schema(document, p["schema"])
        for body in [o["requestBody"]] if "requestBody" in o else []:
            for content in body["content"].values():
                check_schema(document, content["schema"])
        assert ("200" in o["responses"] or "204" in o["responses"]) and "default" in o["responses"]
        for r in o["responses"].values():
            assert r["description"]
            for kind, content in r.get("content", {}).items():
                check_schema(document, content["schema"]) if kind != "text/event-stream" else None  # OpenAPI 3.1 has no schema for events
        for need in o.get("security", []):
            assert set(need) <= set(document["components"]["securitySchemes"])


def test_routes_answer_as_the_document_says(server, document):
    for method, path, o in operations(document):
        if method != "get" or "{" in path:
            continue
        r = server.get(path)
        answers = o["responses"].get(str(r.status), o["responses"]["default"])["content"]
        kind = r.headers["content-type"].split(";")[0]
        assert r.status < 500 and kind in answers, (path, r.status, kind)


def test_no_key_is_needed_to_read_it():
    with Server(api_key="secret") as s:
        assert s.get("/docs").status == 200
        r = s.get("/openapi.json")
        assert r.status == 200 and "secret" not in r.body.decode()
        assert r.json()["paths"]["/v1/chat/completions"]["post"]["security"] == [{"bearer": []}, {"header": []}]
        assert s.get("/v1/models").status == 401


# ---- random bodies ----

def text(rng):
    return "".join(rng.choice("ab {}\"\\<|é\U0001F600\n") for _ in range(rng.randrange(1, 12)))


def some_number(s, rng, whole):
    low, high = s.get("minimum", -1000), s.get("maximum", 1 << 40)
    kind = rng.randrange(4)
    if kind < 2:
        return (low, high)[kind]
    high = min(high, low + 20)
    return rng.randint(int(low), int(high)) if whole else low + rng.random() * (high - low)


def some(document, s, rng, depth=0):
    """A random value that the schema allows."""
    if "$ref" in s:
        return some(document, resolve(document, s["$ref"]), rng, depth)
    if "const" in s:
        return s["const"]
    if "enum" in s:
        return rng.choice(s["enum"])
    if "allOf" in s and "properties" not in s:
        parts = [some(document, part, rng, depth) for part in s["allOf"]]
        return {k: v for part in parts for k, v in part.items()}
    if "anyOf" in s and "properties" not in s:
        return some(document, s["anyOf"][0] if rng.random() < 0.6 else rng.choice(s["anyOf"]), rng, depth)
    types = s.get("type", sorted(TYPES))
    kind = types if isinstance(types, str) else rng.choice([t for t in types if depth < 4 or t not in ("array", "object")] or types)
    if kind == "object":
        return some_object(document, s, rng, depth)
    if kind == "array":
        n = min(s.get("minItems", 0) + rng.choice([0, 1, 2, 5]), s.get("maxItems", 99))
        return [some(document, s.get("items", {}), rng, depth + 1) for _ in range(n)]
    if kind in ("integer", "number"):
        return some_number(s, rng, kind == "integer")
    if kind == "string":
        return rng.choice(["abc", "x" * 128]) if "pattern" in s else text(rng)
    return rng.random() < 0.5 if kind == "boolean" else None


def some_object(document, s, rng, depth):
    properties = s.get("properties", {})
    if not properties:
        extra = s.get("additionalProperties", {})
        return {str(rng.randrange(200)): some(document, extra if isinstance(extra, dict) else {}, rng, depth + 1)
                for _ in range(rng.randrange(3))}
    required = s.get("required", []) + (rng.choice(s["anyOf"]).get("required", []) if "anyOf" in s else [])
    keys = [k for k in properties if k in required or depth > 0 and rng.random() < 0.8]
    if depth == 0:
        keys += [k for k in rng.sample(sorted(properties), min(rng.choice([0, 1, 2, 4]), len(properties))) if k not in keys]
    o = {k: some(document, properties[k], rng, depth + 1) for k in keys}
    for rule in s.get("allOf", []):
        obey(document, s, rule, o, rng, depth)
    return o


def obey(document, s, rule, o, rng, depth):
    """Makes one of a rule's branches true of the object's members."""
    branches = rule.get("oneOf") or rule["anyOf"]
    branch = rng.choice(branches)
    required = branch.get("required", [])
    for k in {k for b in branches for k in b.get("required", [])} if "oneOf" in rule else ():
        o.pop(k, None)
    for k, v in branch["properties"].items():
        if k in required and "const" not in v:
            while o.get(k) is None:
                o[k] = some(document, s["properties"][k], rng, depth + 1)
        elif k in required or k in o:
            o[k] = some(document, v, rng, depth + 1)


def test_bodies_that_the_schema_allows_never_cause_a_server_error(server, document):
    kept = server.post("/v1/conversations", {}).json()["id"]
    done = {}
    for method, path, o in operations(document):
        content = o["requestBody"]["content"].get("application/json") if "requestBody" in o else None
        if not content or o["summary"].startswith("The same as ") or path in ("/invocations", "/completions"):
            continue
        schema = content["schema"]
        statuses, rng = done.setdefault(path, []), random.Random(path)  # one generator per path, so that a new route does not change the bodies of others
        for _ in range(120):
            body = {"ignore_eos": False, **some(document, schema, rng)}
            if path in ("/v1/chat/completions", "/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses"):
                body.setdefault("max_output_tokens" if path == "/v1/responses" else "max_tokens", 4)
            elif path == "/v1/messages":
                body["max_tokens"] = 4  # it is required
            elif path in ("/completion", "/infill", "/api/chat", "/api/generate", "/inference/v1/generate"):
                body.setdefault("n_predict", 4)
            r = server.post(path.replace("{id}", kept), body)
            assert r.status < 500, (path, body, r.body)
            if r.status >= 400:
                schema_of = o["responses"]["default"]["content"]["application/json"]["schema"]
                form = resolve(document, schema_of["$ref"])
                assert set(r.json()) >= set(form["required"]), r.body
                error = form["properties"].get("error")  # Cohere's errors have no such member
                if error and error["type"] == "string":
                    assert isinstance(r.error, str), r.body
                elif error:
                    assert set(r.error) >= set(error["required"]), r.body
            statuses.append(r.status)
    for path, statuses in done.items():
        assert statuses.count(200) >= 5 or path in ("/v1/batches", "/api/show", "/infill", "/classify"), (path, statuses)  # needs a file, a model, tokens, a head
    assert server.get("/health").status == 200


RELATED = [({"top_logprobs": 2}, False), ({"top_logprobs": 2, "logprobs": True}, True), ({"top_logprobs": 0}, True), ({"stream_options": {}}, False),
           ({"stream": True, "stream_options": {}}, True), ({"stream": True, "prompt_logprobs": 1}, False), ({"stream": False, "prompt_logprobs": 1}, True),
           ({"tool_choice": "required"}, False), ({"tool_choice": "none"}, True),
           ({"repeat_last_n": 64}, True), ({"repeat_last_n": 0, "repeat_penalty": 1.1}, True),
           ({"penalize_nl": False, "presence_penalty": 1}, False), ({"penalize_nl": True, "presence_penalty": 1}, True)]


OF_GENERATE = [({"detokenize": False}, True), ({"detokenize": False, "stop": []}, True), ({"detokenize": False, "stop": "a"}, False), ({"stop": "a"}, True),
               ({"detokenize": False, "output_mode": "text"}, False), ({"detokenize": True, "output_mode": "text"}, True)]


OF_COMPLETIONS = [({"max_tokens": 0}, False), ({"max_tokens": 0, "echo": True}, True), ({"max_tokens": 1, "echo": False}, True)]


def meets(rule, body):
    def holds(schema, value):
        if "not" in schema:
            return not holds(schema["not"], value)
        return value == schema["const"] if "const" in schema else value in schema["enum"] if "enum" in schema else value is None if schema["type"] == "null" else isinstance(value, list)
    return any(set(b.get("required", [])) <= set(body) and all(holds(s, body[k]) for k, s in b["properties"].items() if k in body) for b in rule["anyOf"])


@pytest.mark.parametrize("members, valid", RELATED, ids=range(len(RELATED)))
def test_rules_between_members_are_those_of_the_server(server, document, members, valid):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **members}
    assert all(meets(rule, body) for rule in document["components"]["schemas"]["ChatRequest"]["allOf"]) == valid
    assert server.post("/v1/chat/completions", body).status == (200 if valid else 400)


@pytest.mark.parametrize("members, valid", OF_COMPLETIONS, ids=range(len(OF_COMPLETIONS)))
def test_rules_of_completions_are_those_of_the_server(server, document, members, valid):
    body = {"prompt": "x", **members}
    assert all(meets(rule, body) for rule in document["components"]["schemas"]["CompletionRequest"]["allOf"]) == valid
    assert server.post("/v1/completions", body).status == (200 if valid else 400)


@pytest.mark.parametrize("members, valid", OF_GENERATE, ids=range(len(OF_GENERATE)))
def test_rules_of_generate_are_those_of_the_server(server, document, members, valid):
    body = {"token_ids": [5], "max_tokens": 1, **members}
    assert all(meets(rule, body) for rule in document["components"]["schemas"]["TokensRequest"]["allOf"]) == valid
    assert server.post("/inference/v1/generate", body).status == (200 if valid else 400)


@pytest.mark.parametrize("path, key, schema", [("/v1/embeddings", "input", "EmbeddingTexts"), ("/embedding", "content", "NativeEmbedRequest"), ("/completion", "prompt", "NativeRequest")])
def test_a_text_may_be_empty_if_the_tokenizer_adds_a_token(server, document, path, key, schema):
    rule = [r for r in document["components"]["schemas"][schema]["allOf"] if "add_special_tokens" in str(r)]
    assert len(rule) == 1 and {"type": "string", "minLength": 1} in rule[0]["anyOf"][1]["properties"][key]["anyOf"]
    for text, more, valid in (("", {}, True), ("", {"add_special_tokens": False}, False), ("x", {"add_special_tokens": False}, True)):
        assert server.post(path, {key: text, "n_predict": 1, **more}).status == (200 if valid else 400), (text, more)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/render"])
def test_messages_require_max_tokens_itself(server, path):
    body = {"messages": [{"role": "user", "content": "x"}]}
    assert server.post(path, {**body, "max_tokens": 1}).status == 200
    for more in ({}, {"max_new_tokens": 1}, {"max_tokens": None}):
        assert server.post(path, {**body, **more}).status == 400


@pytest.mark.parametrize("path, body", [("/api/generate", {"system": {}}), ("/api/chat", {"messages": [{"role": "user", "content": "x", "tool_name": {}}]}), ("/v1/stream", {})], ids=range(3))
def test_types_are_checked_where_a_member_has_no_effect(server, path, body):
    r = server.request("DELETE", path + "?conv_id=") if path == "/v1/stream" else server.post(path, body)
    assert r.status == 400


def test_a_bias_may_be_given_by_id_and_tools_may_be_empty_where_llama_allows_it(server, document):
    pairs = document["components"]["schemas"]["NativeRequest"]["properties"]["logit_bias"]["anyOf"][2]["items"]["prefixItems"][0]["anyOf"]
    assert {"$ref": "#/components/schemas/TokenId"} in pairs
    assert server.post("/completion", {"prompt": "x", "n_predict": 1, "logit_bias": [[5, 1.0], ["a", False]]}).status == 200
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": []}
    assert [server.post(p, asked).status for p in ("/apply-template", "/tokenize", "/v1/chat/completions")] == [200, 200, 400]


def test_a_stream_that_is_ended_has_no_answer(server):
    r = server.request("DELETE", "/v1/stream?conv_id=x")
    assert r.status == 204 and "content-type" not in r.headers and not r.body


def test_additions_to_responses_are_strings(server):
    assert server.post("/v1/responses", {"input": "x", "max_output_tokens": 1, "include": ["reasoning.encrypted_content"]}).status == 200
    assert server.post("/v1/responses", {"input": "x", "include": [None]}).error["param"] == "include"


# ---- the page ----

def test_the_page_has_no_remote_parts(server):
    r = server.get("/docs")
    assert r.status == 200 and r.headers["content-type"].startswith("text/html")
    assert r.headers["content-security-policy"] == server.get("/").headers["content-security-policy"]
    assert not re.search(r"https?://|//[a-z]", r.body.decode())


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_lists_endpoints_and_members(server, document):
    b = Browser("http://127.0.0.1:%d/docs" % server.port)
    try:
        end = time.time() + 20
        while not b.eval("document.readyState === 'complete' && document.querySelectorAll('.endpoint').length"):
            assert time.time() < end
            time.sleep(0.1)
        assert b.eval("document.querySelectorAll('.endpoint').length") == len(operations(document))
        n = len(document["components"]["schemas"]["ChatRequest"]["properties"])
        assert b.eval("document.querySelector('.endpoint').querySelectorAll('.member').length") == n
        assert not b.errors, b.errors
    finally:
        b.close()


def test_integers_of_64_bits_have_their_bounds(document):
    seed = document["components"]["schemas"]["ChatRequest"]["properties"]["seed"]
    assert (seed["minimum"], seed["maximum"]) == (-2**63, 2**63 - 1)
