# SPDX-License-Identifier: Apache-2.0
"""scripts/train_demo/widen.py: a larger model that computes the same, through the engine."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

import golden
from nightly import nightly

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDEN = os.path.join(ROOT, "scripts/train_demo/widen.py")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="widen.py needs numpy")
QUESTION = "<|im_start|>user\nWrite a story about a fox and a lamp.<|im_end|>\n<|im_start|>assistant\n"
# All differences of the 8B's shape, but small: 4 times the width and heads, twice the head size, two more layers, and
# ids that must never be drawn.
MODELS = {"demo": ["--shape", "small"], "demo-draft": ["--shape", "draft", "--vocab", "4224"]}


def widen(made, name, *flags):
    done = subprocess.run([sys.executable, WIDEN, os.path.join(ROOT, "models", name), str(made), "--dtype", "float32",
                           *flags], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def generate(model, request, *flags):
    return golden.generate(str(model), [request], "--dtype", "float32", *flags)[0]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    made = {}
    for name, flags in MODELS.items():
        made[name] = tmp_path_factory.mktemp(name)
        code, text = widen(made[name], name, *flags, "--check")
        assert code == 0, text
    return made


@nightly
@pytest.mark.parametrize("name", MODELS)
def test_the_engine_gives_a_prompt_the_same_scores(wide, name):
    ask = {"prompt": QUESTION * 3, "max_tokens": 0, "prompt_logprobs": True}
    have = generate(wide[name], ask)["prompt_logprobs"]
    want = generate(os.path.join(ROOT, "models", name), ask)["prompt_logprobs"]
    assert len(have) == len(want) > 50
    assert max(abs(a - b) for a, b in zip(have[1:], want[1:])) < 1e-3


@nightly
def test_the_text_equals_the_small_models_with_and_without_drafts(wide):
    ask = {"prompt": QUESTION, "max_tokens": 96, "temperature": 0}
    want = generate(os.path.join(ROOT, "models/demo"), ask)["outputs"][0]["token_ids"]
    assert generate(wide["demo"], ask)["outputs"][0]["token_ids"] == want
    draft = json.dumps({"method": "draft_model", "model": str(wide["demo-draft"]), "num_speculative_tokens": 4,
                        "fixed": True})
    answer = generate(wide["demo"], ask, "--speculative-config", draft)
    assert answer["outputs"][0]["token_ids"] == want
    assert answer["usage"]["accepted_draft_tokens"] > 20


def test_a_shape_that_cannot_hold_the_model_is_refused(tmp_path):
    code, text = widen(tmp_path, "demo", "--shape", "draft", "--vocab", "5000")
    assert code != 0 and "hidden size" in text
    code, text = widen(tmp_path, "demo", "--shape", "small", "--layers", "3")
    assert code != 0 and "num_hidden_layers" in text
