# SPDX-License-Identifier: Apache-2.0
"""Embeddings of the golden models compared with transformers: the hidden state at the last token, times the output
matrix, must be its last logits; the mean is the mean of such states."""

import base64
import json
import os
import struct

import golden
import pytest
from api import Server

np = pytest.importorskip("numpy")

GOLDEN = golden.GOLDEN
FAMILIES = ["llama-3", "qwen3", "olmo-2", "gemma-2"]


def tensor(folder, name):
    """A bf16 or fp32 tensor of a safetensors file, as fp32."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        if name not in head:
            return None
        start, end = head[name]["data_offsets"]
        f.seek(8 + n + start)
        raw = f.read(end - start)
    if head[name]["dtype"] == "BF16":
        v = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    else:
        v = np.frombuffer(raw, "<f4")
    return v.reshape(head[name]["shape"])


def embed(server, ids, **more):
    r = server.post("/v1/embeddings", {"input": ids, **more})
    assert r.status == 200, r.body
    return np.array([d["embedding"] for d in r.json()["data"]])


@pytest.mark.parametrize("family", FAMILIES)
def test_last_and_mean_pooling_equal_transformers(family):
    folder = os.path.join(GOLDEN, family)
    cases = json.load(open(os.path.join(folder, "expected.json")))["cases"]
    matrix = tensor(folder, "lm_head.weight")
    matrix = tensor(folder, "model.embed_tokens.weight") if matrix is None else matrix
    cap = json.load(open(os.path.join(folder, "config.json"))).get("final_logit_softcapping")
    with Server(real=True, model=folder, pooler_config='{"pooling_type": "LAST", "normalize": false}') as s:
        for case in cases:
            (h,) = embed(s, [case["prompt"]])
            logits = matrix @ h
            logits = cap * np.tanh(logits / cap) if cap else logits
            assert np.abs(logits - np.array(case["last_logits"])).max() < 2e-3
            (unit,) = embed(s, [case["prompt"]], normalize=True)
            assert np.linalg.norm(unit) == pytest.approx(1, abs=1e-5) and np.abs(unit - h / np.linalg.norm(h)).max() < 1e-5
        prompt = cases[1]["prompt"]
        states = embed(s, [prompt[:i + 1] for i in range(len(prompt))])
    with Server(real=True, model=folder, pooling="mean") as s:
        (mean,) = embed(s, [prompt], use_activation=False)
    assert np.abs(mean - states.mean(0)).max() < 1e-4


def test_the_models_own_pooling_is_used(tmp_path):
    folder = os.path.join(GOLDEN, "llama-3")
    for name in os.listdir(folder):
        os.symlink(os.path.abspath(os.path.join(folder, name)), tmp_path / name)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false}')
    ids = [[5, 6, 7, 8]]
    got = {}
    for name, model, options in (("mean", folder, {}), ("last", folder, {"pooler_config": "last"}), ("own", str(tmp_path), {}),
                                 ("told", str(tmp_path), {"pooler_config": "mean"})):
        with Server(real=True, model=model, **options) as s:
            got[name] = embed(s, ids)
    assert np.abs(got["own"] - got["last"]).max() < 1e-6 and np.abs(got["told"] - got["mean"]).max() < 1e-6
    assert np.abs(got["last"] - got["mean"]).max() > 0.01


def test_an_unknown_pooling_is_refused():
    with pytest.raises(RuntimeError, match="CLS"):
        Server(pooler_config='{"pooling_type": "CLS"}')


# ---- a vector for each token ----

def test_each_token_has_a_vector():
    """--pooling none returns the state of each token; the other poolings return their mean or the last one."""
    folder = os.path.join(GOLDEN, "llama-3")
    prompts = [[5, 6, 7, 8, 9] * 30, [11, 12, 13]]
    with Server(real=True, model=folder, pooler_config='{"pooling_type": "MEAN", "normalize": false}') as s:
        means = embed(s, prompts)
        r = s.post("/pooling", {"input": prompts, "task": "token_embed", "use_activation": False}).json()
        states = [np.array(d["data"]) for d in r["data"]]
        assert [v.shape[0] for v in states] == [150, 3] and all(np.abs(v.mean(0) - m).max() < 1e-4 for v, m in zip(states, means))
        packed = s.post("/pooling", {"input": prompts, "task": "token_embed", "use_activation": False, "encoding_format": "base64"}).json()["data"]
        assert all((np.frombuffer(base64.b64decode(d["data"]), "<f4") == v.astype("f4").ravel()).all() for d, v in zip(packed, states))
        unit = np.array(s.post("/pooling", {"input": prompts[1], "task": "token_embed", "normalize": True}).json()["data"][0]["data"])
        assert np.abs(np.linalg.norm(unit, axis=1) - 1).max() < 1e-5
    with Server(real=True, model=folder, pooling="none", max_num_batched_tokens=70, max_num_seqs=4) as s:  # in several chunks
        for path, key in (("/embedding", "content"), ("/embeddings", "input")):
            got = s.post(path, {key: prompts}).json()
            assert [d["index"] for d in got] == [0, 1] and all((np.array(d["embedding"]) == v).all() for d, v in zip(got, states))
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/v2/embed", {"texts": ["a"]}), ("/api/embed", {"input": "a"}), ("/v1/score", {"text_1": "a", "text_2": "b"})):
            r = s.post(path, body)
            assert r.status == 400 and "none" in r.body.decode(), (path, r.body)
        assert s.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 2}).status == 200


# ---- inputs longer than the context ----

def test_long_inputs_are_embedded_in_chunks():
    folder = os.path.join(GOLDEN, "llama-3")
    long, short = [5 + i % 50 for i in range(150)], [7, 8, 9]
    config = {"pooling_type": "LAST", "normalize": False}
    options = {"real": True, "model": folder, "max_model_len": 64}
    with Server(pooler_config=json.dumps(config), **options) as s:
        parts = embed(s, [long[:64], long[64:128], long[128:], short])
        assert s.post("/v1/embeddings", {"input": long}).error["code"] == "context_length_exceeded"
    mean = (parts[0] * 64 + parts[1] * 64 + parts[2] * 22) / 150
    with Server(pooler_config=json.dumps({**config, "enable_chunked_processing": True, "max_embed_len": 160}), **options) as s:
        r = s.post("/v1/embeddings", {"input": [long, short, long]}).json()
        got = [np.array(d["embedding"]) for d in r["data"]]
        assert r["usage"]["prompt_tokens"] == 303 and [d["index"] for d in r["data"]] == [0, 1, 2]
        assert np.abs(got[0] - mean).max() < 1e-5 and (got[1] == parts[3]).all() and (got[2] == got[0]).all()
        (unit,) = embed(s, [long], normalize=True)
        assert np.abs(unit - mean / np.linalg.norm(mean)).max() < 1e-5
        assert np.abs(np.array(s.post("/pooling", {"input": long, "use_activation": False}).json()["data"][0]["data"]) - mean).max() < 1e-5
        assert np.abs(np.array(s.post("/embedding", {"content": long, "normalize": False}).json()[0]["embedding"][0]) - mean).max() < 1e-5
        (cut,) = embed(s, [long], truncate_prompt_tokens=64)
        assert (cut == embed(s, [long[-64:]])[0]).all()
        too_long = s.post("/v1/embeddings", {"input": [5] * 161})
        assert too_long.status == 400 and too_long.error["code"] == "context_length_exceeded"
        assert s.post("/v1/completions", {"prompt": long}).error["code"] == "context_length_exceeded"
    with Server(pooler_config='{"enable_chunked_processing": true}', **options) as s:
        assert s.post("/v1/embeddings", {"input": "a b " * 4000}).status == 200
