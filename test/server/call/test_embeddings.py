# SPDX-License-Identifier: Apache-2.0
"""Embeddings of the golden models compared with transformers: the hidden state at the last token, times the output
matrix, must be its last logits; the mean is the mean of such states."""

import json
import os
import struct

import pytest
from api import ROOT, Server

np = pytest.importorskip("numpy")

GOLDEN = os.path.join(ROOT, "test/golden")
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
def test_last_and_mean_against_transformers(family):
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


def test_the_models_own_pooling_is_taken(tmp_path):
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
