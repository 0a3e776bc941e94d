#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds keys of config.json that change transformers' answer, but not ours.

    keys.py [--seed N] [FAMILY ...]

Makes one model of each family of variants.py, and changes one key of its config.json at a time. Both
sides compute the prompt's log-probabilities with it. Unless we refuse the key, or transformers cannot
load the model with it, both must agree. Prints the keys for which they do not; the exit status is 1 if there are any.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

import torch
import transformers

import variants
from golden import fix_rope_length, logits_of, prompt_logprobs

# Keys without an effect on log-probabilities: training, end of text, names.
PASSED_OVER = (
    "architectures dtype model_type transformers_version vocab_size bos_token_id eos_token_id "
    "pad_token_id use_cache torch_dtype max_position_embeddings model_max_length"
).split()
FAR = 1e-2


def another(value):
    """Other values of the same type; for null, values of all types."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value, 1] if value else [1]
    if isinstance(value, float):
        return [value * 1.5 + 0.05]
    if isinstance(value, list) and value != value[::-1]:
        return [value[::-1]]
    return [0.5, 2] if value is None else []


def changes(config):
    """(path of the key, its new value, the changed config), including keys within the RoPE parameters."""
    for key, value in config.items():
        if key in PASSED_OVER:
            continue
        if isinstance(value, dict):
            for name, inner in changes_of(value):
                yield f"{key}.{name[0]}", name[1], {**config, key: inner}
        for other in another(value):
            yield key, other, {**config, key: other}


def changes_of(values):
    for key, value in values.items():
        if isinstance(value, dict):
            for (name, other), inner in changes_of(value):
                yield (f"{key}.{name}", other), {**values, key: inner}
        for other in another(value):
            yield (key, other), {**values, key: other}


def theirs(folder, prompt):
    """None if the model cannot be loaded or run."""
    family = json.loads((folder / "config.json").read_text())["model_type"]
    made = getattr(transformers, variants.TEXT_PARTS.get(family, "AutoModelForCausalLM"))
    try:
        model, info = made.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        if info["missing_keys"] or info["mismatched_keys"] or info["unexpected_keys"]:
            return None
        if "full_attention" not in (getattr(model.config, "rope_parameters", None) or {}):
            fix_rope_length(model)
        return prompt_logprobs(logits_of(model.eval(), prompt), prompt)
    except Exception:
        return None


def ours(folder, prompt):
    """None if we refuse it."""
    have = variants.served(folder, [prompt], "float32")
    return None if isinstance(have, str) else have[0]


def problems(family, seed, folder):
    variants.make(family, seed, folder)
    rng = random.Random(seed)
    prompt = [rng.randrange(3, 384) for _ in range(70)]
    path = folder / "config.json"
    config = json.loads(path.read_text())
    plain, found, refused = theirs(folder, prompt), [], []
    for where, value, changed in changes(config):
        path.write_text(json.dumps(changed))
        want = theirs(folder, prompt)
        have = ours(folder, prompt) if want else None
        if want and not have:
            refused.append(where)
        elif want and not max(abs(a - b) for a, b in zip(want, have)) <= FAR:
            moved = max(abs(a - b) for a, b in zip(want, plain)) > FAR
            found.append(f"{where}={value}{'' if moved else ' (not in transformers)'}")
    return found, sorted(set(refused))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("families", nargs="*", help="only these model types")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    bad = False
    for family in args.families or variants.FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found, refused = problems(family, args.seed, Path(folder))
        bad = bad or bool(found)
        print(f"{family}: {', '.join(found) or 'none'}; refused: {', '.join(refused)}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
