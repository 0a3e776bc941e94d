#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare `sluice generate` with transformers on random variants of every encoder.

    encoder_variants.py [--seeds N] [--first N] [FAMILY ...]

Each seed draws a configuration from choices_encoders.py and makes the model, or a classifier, with random weights. In fp32 the pooled
hidden states, or the logits, must agree within 1e-4 of their size; and the same texts must get the same bits one at a time, all at
once, and on two ranks. Needs what golden.py needs, and a built program (SLUICE, or build/sluice). Exit 1 if any variant differs.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

import choices_encoders
from golden import fill_weights, seed_of

ROOT = Path(__file__).resolve().parent.parent.parent
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
TOLERANCE = 1e-4
POOLINGS = {
    "mean": lambda h: h.mean(0),
    "last": lambda h: h[-1],
    "first": lambda h: h[0],
    "max": lambda h: h.max(0).values,
}
# Keys that released files have instead of those that transformers saves.
OLDER = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


def release(rng, folder):
    """Older files of ModernBERT have other keys."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if config["model_type"] == "modernbert" and rng.random() < 0.4:
        for kind, rope in config.pop("rope_parameters").items():
            config[OLDER[kind]] = rope["rope_theta"]
        every = config.pop("layer_types")
        config["global_attn_every_n_layers"] = 3
        if every != ["sliding_attention" if i % 3 else "full_attention" for i in range(len(every))]:
            config["layer_types"] = every
    path.write_text(json.dumps(config))


def make(family, seed, folder):
    rng = random.Random(f"{family} {seed}")
    values = choices_encoders.FAMILIES[family](rng)
    classifies = family in choices_encoders.CLASSIFIERS and rng.random() < 0.4
    if classifies:
        values["num_labels"] = rng.choice([1, 2, 3])
    kind = AutoModelForSequenceClassification if classifies else AutoModel
    generator = torch.Generator().manual_seed(seed_of(f"{family} {seed}"))
    model = kind.from_config(AutoConfig.for_model(family, **values), dtype=torch.float32)
    with torch.no_grad():
        fill_weights(model, generator)
    model.to(rng.choice([torch.bfloat16, torch.float16, torch.float32]))
    model.save_pretrained(folder, max_shard_size=rng.choice(["50KB", "1GB"]))
    release(rng, folder)
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval(), values


@torch.no_grad()
def wanted(model, prompt, pooling):
    out = model(torch.tensor([prompt]))
    return out.logits[0] if "logits" in out else POOLINGS[pooling](out.last_hidden_state[0])


def answers(folder, asked, *flags):
    lines = "".join(json.dumps({"prompt_token_ids": p, "pool": pooling}) + "\n" for p, pooling in asked)
    command = [SLUICE, "generate", folder, "--json", "--dtype", "float32", "--log-level", "error", *flags]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(found) != len(asked) or any("error" in f for f in found):
        return done.stderr.strip() or str(found) or f"exit {done.returncode}"
    return [f["embedding"] for f in found]


def problem_of(folder, model, asked):
    have = answers(folder, asked)
    if isinstance(have, str):
        return have
    for (prompt, pooling), vector in zip(asked, have):
        want = wanted(model, prompt, pooling)
        off = (want - torch.tensor(vector)).abs().max().item() / max(1.0, want.abs().max().item())
        if not off <= TOLERANCE:
            return f"{len(prompt)} tokens, {pooling}: off by {off:.1e}"
    if [answers(folder, [one])[0] for one in asked[:4]] != have[:4]:
        return "other bits one at a time"
    two = answers(folder, asked, "--tensor-parallel-size", "2")
    return None if two == have or "does not divide" in two else f"on two ranks: {two if isinstance(two, str) else 'other bits'}"


def check(family, seed):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        model, values = make(family, seed, Path(folder))
        prompts = [[rng.randrange(5, 384) for _ in range(n)] for n in (1, 9, rng.choice([64, 150]), 33)]
        asked = [(p, pooling) for p in prompts for pooling in POOLINGS]
        problem = problem_of(folder, model, asked)
    if problem:
        print(f"{family} {seed} DIFFERS: {problem}\n    {json.dumps(values)}", flush=True)
    return not problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="variants of each family")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("families", nargs="*", help="only these model types")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    unknown = set(args.families) - set(choices_encoders.FAMILIES)
    if unknown:
        parser.error(f"not in the table: {', '.join(sorted(unknown))}")
    failed = 0
    for family in args.families or choices_encoders.FAMILIES:
        good = sum(check(family, seed) for seed in range(args.first, args.first + args.seeds))
        print(f"{family:14} {good} of {args.seeds} agree", flush=True)
        failed += args.seeds - good
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
