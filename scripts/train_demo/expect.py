#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes test/demo/expected.json: the answers of transformers for models/demo and models/demo-draft.

For two held-out cases of each task: the request, the ids of its rendered prompt, and the greedy
answer in fp32, with the smallest lead of the best token over the second. Needs torch and
transformers; run it after each training.

    scripts/train_demo/expect.py models test/demo/expected.json
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import corpus

# Far from any training or evaluation by default: eval_demo begins at case 0.
FIRST, PER_TASK = 100_000, 2


@torch.no_grad()
def greedy(model, ids, max_tokens):
    """Returns the answer's ids and the smallest lead of its tokens."""
    found, lead, cache, ends = [], float("inf"), None, set(model.generation_config.eos_token_id)
    feed = torch.tensor([ids])
    for _ in range(max_tokens):
        out = model(feed, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        values, best = out.logits[0, -1].float().topk(2)
        lead = min(lead, (values[0] - values[1]).item())
        found.append(best[0].item())
        if found[-1] in ends:
            break
        feed = best[None, :1]
    return found, round(lead, 4)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(args.models / "demo")
    models = {
        name: AutoModelForCausalLM.from_pretrained(args.models / name, dtype=torch.float32).eval()
        for name in ("demo", "demo-draft")
    }
    cases = []
    for task in corpus.TASKS:
        for i in range(FIRST, FIRST + PER_TASK):
            case = corpus.case(task, i)
            ids = tokenizer.apply_chat_template(
                case["messages"], tools=case["tools"], add_generation_prompt=True, return_dict=True
            )["input_ids"]
            entry = {key: case[key] for key in ("task", "messages", "tools", "max_tokens")}
            entry["prompt"] = ids
            for name, model in models.items():
                answer, lead = greedy(model, ids, case["max_tokens"])
                entry[name] = {
                    "ids": answer,
                    "lead": lead,
                    "text": tokenizer.decode(answer, skip_special_tokens=True),
                }
            cases.append(entry)
    args.out.write_text(
        json.dumps(
            {"transformers": transformers.__version__, "cases": cases},
            ensure_ascii=False,
            separators=(",", ":"),
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
