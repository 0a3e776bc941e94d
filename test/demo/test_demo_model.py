# SPDX-License-Identifier: Apache-2.0
"""Compares the demo model and its draft, through templates, tokenizer and engine, with transformers and
with the right answers. expected.json is written by scripts/train_demo/expect.py."""

import json
import os
import subprocess
import sys

import pytest
from nightly import NIGHTLY

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLUICE = os.environ.get("SLUICE", os.path.join(ROOT, "build", "sluice"))
DEVICE = os.environ.get("SLUICE_TEST_DEVICE", "cpu")
sys.path.insert(0, os.path.join(ROOT, "scripts", "train_demo"))

import corpus  # noqa: E402
import judge  # noqa: E402

# With a smaller lead in logits, the order of a sum may decide between two tokens.
NEAR_TIE = 0.01

with open(os.path.join(ROOT, "test", "demo", "expected.json")) as f:
    CASES = json.load(f)["cases"]


def sluice(command, model, lines, *flags):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(
        [SLUICE, command, os.path.join(ROOT, "models", model), *flags],
        input=text,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines)
    return answers


def prompts(cases, model="demo"):
    """The prompts' ids, by our own template engine and tokenizer."""
    requests = [
        {"messages": c["messages"], "tools": c["tools"], "add_generation_prompt": True}
        for c in cases
    ]
    texts = [a["text"] for a in sluice("render", model, requests)]
    lines = [{"text": t, "add_special_tokens": False, "parse_special": True} for t in texts]
    return [a["ids"] for a in sluice("tokenize", model, lines)]


def generate(model, ids, max_tokens, *flags):
    requests = [
        {"prompt_token_ids": i, "max_tokens": n, "temperature": 0} for i, n in zip(ids, max_tokens)
    ]
    answers = sluice(
        "generate", model, requests, "--json", "--device", DEVICE, "--log-level", "error", *flags
    )
    for answer in answers:
        assert "error" not in answer, answer
    return [a["outputs"][0] for a in answers]


def test_prompts_equal_transformers():
    assert prompts(CASES) == [c["prompt"] for c in CASES]


@pytest.mark.parametrize("model", ["demo", "demo-draft"])
def test_greedy_answers_equal_transformers(model):
    outputs = generate(
        model, [c["prompt"] for c in CASES], [c["max_tokens"] for c in CASES], "--dtype", "float32"
    )
    compared = 0
    for case, output in zip(CASES, outputs):
        if case[model]["lead"] < NEAR_TIE:
            continue
        ends = output["finish_reason"] == "stop"
        assert ends == (len(case[model]["ids"]) < case["max_tokens"]), case["task"]
        assert output["token_ids"] == case[model]["ids"], case["task"]
        compared += 1
    assert compared > 0.8 * len(CASES)


@pytest.mark.parametrize(
    "task, n", [("arithmetic", 60), ("word problem", 20), ("lookup", 30 if NIGHTLY else 8), ("json", 20)]
)
def test_default_dtype_answers_held_out_questions(task, n):
    cases = corpus.cases(task, n)
    outputs = generate("demo", prompts(cases), [c["max_tokens"] for c in cases])
    right = sum(
        o["finish_reason"] == "stop" and judge.is_right(c, o["text"])
        for c, o in zip(cases, outputs)
    )
    assert right / n >= 0.95, f"{task}: {right} of {n}"
