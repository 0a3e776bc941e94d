# SPDX-License-Identifier: Apache-2.0
"""Encoders over HTTP, with the openai SDK where it has the call: vectors, scores and classes of transformers, and what is refused."""
import math

import encoders
import pytest
from api import Server

EMBEDDERS, RERANKERS, CLASSES = encoders.having("texts"), encoders.having("pairs"), "distilbert-classes"
EMBEDDERS = [name for name in EMBEDDERS if "vector" in encoders.expected(name)["texts"][0]]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def serve():
    """Servers by name; the folders' own names are not the models'."""
    running = {}

    def get(name):
        if name not in running:
            running[name] = Server(real=True, model=encoders.folder(name), served_model_name="encoder")
        return running[name]

    yield get
    for server in running.values():
        assert server.stop() == 0, server.stderr()[-2000:]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors_with_the_sdk(serve, name):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{serve(name).port}/v1", api_key="none")
    texts = encoders.expected(name)["texts"]
    answer = client.embeddings.create(model="encoder", input=[t["text"] for t in texts])
    for data, t in zip(answer.data, texts, strict=True):
        assert data.embedding == pytest.approx(t["vector"], abs=TOLERANCE)


@pytest.mark.parametrize("name", RERANKERS)
def test_pairs_are_scored(serve, name):
    pairs = encoders.expected(name)["pairs"]
    as_it_is = name == "bert-reranker"  # as its config says
    want = [p["logits"][0] if as_it_is else sigmoid(p["logits"][0]) for p in pairs]
    body = {"text_1": [p["query"] for p in pairs], "text_2": [p["document"] for p in pairs]}
    answer = serve(name).post("/v1/score", body).json()
    assert [d["score"] for d in answer["data"]] == pytest.approx(want, abs=TOLERANCE)
    assert answer["usage"]["prompt_tokens"] == sum(p["n"] for p in pairs)
    raw = serve(name).post("/score", {**body, "use_activation": False}).json()
    assert [d["score"] for d in raw["data"]] == pytest.approx([p["logits"][0] for p in pairs], abs=TOLERANCE)


def test_texts_of_pairs_hold_no_control_tokens(serve):
    n = [serve("bert-reranker").post("/v1/score", {"text_1": "what is", "text_2": text}).json()["usage"]["prompt_tokens"]
         for text in ("a tree", "a tree [SEP]")]
    assert n[1] > n[0] + 1  # spelled out


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("name", RERANKERS)
def test_documents_are_ranked(serve, name, path):
    same = [p for p in encoders.expected(name)["pairs"] if p["query"] == "how long do trees live"]
    answer = serve(name).post(path, {"query": same[0]["query"], "documents": [p["document"] for p in same]}).json()
    order = sorted(range(len(same)), key=lambda i: -same[i]["logits"][0])
    assert [r["index"] for r in answer["results"]] == order and len(order) == 2


def test_classes(serve):
    texts = encoders.expected(CLASSES)["texts"]
    answer = serve(CLASSES).post("/classify", {"input": [t["text"] for t in texts]}).json()
    for data, t in zip(answer["data"], texts, strict=True):
        total = sum(math.exp(x) for x in t["logits"])
        assert data["probs"] == pytest.approx([math.exp(x) / total for x in t["logits"]], abs=TOLERANCE)
        assert data["num_classes"] == 3 and data["label"] == ("bad", "fair", "good")[t["logits"].index(max(t["logits"]))]
    raw = serve(CLASSES).post("/pooling", {"input": texts[0]["text"], "task": "classify", "use_activation": False}).json()
    assert raw["data"][0]["data"] == pytest.approx(texts[0]["logits"], abs=TOLERANCE)


def test_truncated_texts_keep_their_ends(serve):
    """As Hugging Face's tokenizers do."""
    server, text = serve("bert"), encoders.expected("bert")["texts"][2]["text"]
    ids = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert ids[0] == 2 and ids[-1] == 3 and len(ids) > 8
    for side, kept in (("right", [*ids[:5], 3]), ("left", [2, *ids[-5:]])):
        cut, want = (server.post("/v1/embeddings", body).json()["data"][0]["embedding"] for body in (
            {"input": text, "truncate_prompt_tokens": 6, "truncation_side": side}, {"input": kept}))
        assert cut == want


def test_truncated_pairs_lose_tokens_of_the_longer_text(serve):
    server, pair = serve("bert-reranker"), encoders.expected("bert-reranker")["pairs"][2]
    short = pair["document"].split()[:8]
    n = server.post("/v1/score", {"text_1": pair["query"], "text_2": " ".join(short)}).json()
    bodies = [{"text_1": pair["query"], "text_2": text, **more} for text, more in (
        (" ".join(short), {}), (pair["document"], {"truncate_prompt_tokens": n["usage"]["prompt_tokens"], "truncation_side": "right"}))]
    want, cut = (server.post("/v1/score", body).json() for body in bodies)
    assert cut["data"] == want["data"] and cut["usage"] == want["usage"]


@pytest.mark.parametrize("path, body", [
    ("/v1/completions", {"prompt": "what is"}), ("/api/generate", {"model": "encoder", "prompt": "what is"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}), ("/v1/responses", {"input": "what is"}),
    ("/v1/messages", {"model": "encoder", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}),
    ("/completion", {"prompt": "what is"})])
def test_encoders_do_not_generate(serve, path, body):
    answer = serve("bert").post(path, body)
    assert answer.status == 400 and b"does not generate text" in answer.body, answer.body


def test_what_a_model_cannot_do_is_refused(serve):
    for path, body in (("/v1/embeddings", {"input": "what is"}), ("/v2/embed", {"texts": ["what is"], "model": "encoder"}),
                       ("/api/embed", {"model": "encoder", "input": "what is"})):
        answer = serve(CLASSES).post(path, body)
        assert answer.status == 400 and b"is a classifier" in answer.body, answer.body
    answer = serve(CLASSES).post("/v1/score", {"text_1": "what is", "text_2": "a tree"})
    assert answer.status == 400 and "3 classes" in answer.error["message"]
    answer = serve("bert").post("/classify", {"input": "what is"})
    assert answer.status == 400 and "no classification head" in answer.body.decode()
    answer = serve("bert").post("/v1/embeddings", {"input": "long " * 300})
    assert answer.status == 400 and "maximum context length is 200 tokens" in answer.error["message"]


@pytest.mark.parametrize("how, pooling", [('{"pooling_type": "CLS", "normalize": false}', "first"), ('{"pooling_type": "MAX", "normalize": false}', "max"),
                                          ('{"pooling_type": "LAST", "normalize": false}', "last"), ('{"normalize": false}', "mean")])
def test_the_pooling_can_be_chosen(how, pooling):
    case = encoders.expected("modernbert")["cases"][0]
    with Server(real=True, model=encoders.folder("modernbert"), pooler_config=how) as server:
        answer = server.post("/v1/embeddings", {"input": case["prompt"]}).json()
    assert answer["data"][0]["embedding"] == pytest.approx(case[pooling], abs=TOLERANCE)


def test_first_tokens_of_other_models_have_seen_nothing():
    with pytest.raises(RuntimeError, match="CLS for encoders"):
        Server(real=True, pooler_config="cls")


def test_vectors_in_other_forms(serve):
    want = encoders.expected("embeddinggemma")["texts"][0]
    server = serve("embeddinggemma")
    ollama = server.post("/api/embed", {"model": "encoder", "input": want["text"]}).json()
    assert ollama["embeddings"][0] == pytest.approx(want["vector"], abs=TOLERANCE)
    cohere = server.post("/v2/embed", {"model": "encoder", "texts": [want["text"]], "embedding_types": ["float"]}).json()
    assert cohere["embeddings"]["float"][0] == pytest.approx(want["vector"], abs=TOLERANCE)
    one, two = ([e["embedding"] for e in server.post("/v1/embeddings", {"input": i}).json()["data"]] for i in
                (want["text"], [want["text"], "trees", want["text"]]))
    assert two[0] == two[2] == one[0]
    tokens = server.post("/pooling", {"input": want["text"], "task": "token_embed"}).json()["data"][0]["data"]
    assert {len(t) for t in tokens} == {48}  # hidden states, before the dense modules
