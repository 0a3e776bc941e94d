# SPDX-License-Identifier: Apache-2.0
"""A real pretrained model, where the Python package index is reachable: SmolLM2-135M-Instruct in a GGUF file
(scripts/try_real_model). Its greedy answers are those of llama.cpp on a file with the same numbers as F32, kept in
test/gguf/real_model.json."""
import importlib.machinery
import importlib.util
import json
import os

import pytest

import golden
from nightly import NIGHTLY

SCRIPT = os.path.join(golden.ROOT, "scripts", "try_real_model")
loader = importlib.machinery.SourceFileLoader("try_real_model", SCRIPT)
real = importlib.util.module_from_spec(importlib.util.spec_from_loader("try_real_model", loader))
loader.exec_module(real)


@pytest.fixture(scope="module")
def model():
    try:
        return real.fetch(real.FOLDER)
    except LookupError as why:
        pytest.skip(str(why))


def test_answers_are_those_of_llama_cpp(model):
    with open(os.path.join(golden.ROOT, "test", "gguf", "real_model.json")) as f:
        stored = json.load(f)
    texts, step = real.prompts(len(stored)), 1 if NIGHTLY else 3
    texts, stored = texts[::step], stored[::step]
    answers = real.ours(golden.SLUICE, model, texts, len(stored[0]), ["--device", golden.DEVICE, "--dtype", "float32"])
    assert [ids for ids, _ in answers] == stored


def test_in_bf16_answers_diverge_only_at_near_ties(model):
    """bf16, where weights stay quantised, compared with float32."""
    texts = real.prompts(10 if NIGHTLY else 2)
    exact, rounded = (real.ours(golden.SLUICE, model, texts, 16, ["--device", golden.DEVICE, "--dtype", dtype])
                      for dtype in ("float32", "bfloat16"))
    for (ids, tops), (others, _) in zip(exact, rounded):
        at = next((i for i in range(16) if ids[i] != others[i]), None)
        assert at is None or tops[at][ids[at]] - tops[at].get(others[at], -99) < 0.3


def test_it_chats(model):
    command = [golden.SLUICE, "serve", model, "--port", "0", "--device", golden.DEVICE]
    _, _, answer = real.first_answer(command, "What is the capital of France?")
    assert "Paris" in answer["choices"][0]["message"]["content"]
