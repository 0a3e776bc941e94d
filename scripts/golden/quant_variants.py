#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare `sluice generate` with transformers on random quantised checkpoints.

    quant_variants.py [--seeds N] [--first N] [--keep DIR] [--families A,B] [FORMAT ...]

Each seed draws a family and a model of it as variants.py does, with sizes that blocks and groups do not divide, quantises
its matrices in one of the format's many forms (quant_formats.py), and stores them with a config in one of its spellings.
transformers loads the same model with the dequantised values in fp32; the program reads the quantised folder with
`--dtype float32`. Their prompt log-probabilities must agree within 1e-3 and greedy tokens must be equal, except for
ties. Some models are also served in their own dtype in chunks, on two ranks and with drafts, which must give the same
bits. Needs what variants.py needs. Exit 1 if any variant differs.
"""

import argparse
import json
import random
import re
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from huggingface_hub.errors import StrictDataclassClassValidationError
from safetensors import safe_open

import forms
import quant_formats
import variants
from golden import logits_of, prompt_logprobs

TOLERANCE = 1e-3
FAMILIES = (
    "llama qwen2 qwen3 gemma gemma2 gemma3_text phi3 glm4 granite seed_oss ernie4_5 exaone4 starcoder2 cohere2 olmo3 "
    "mixtral qwen2_moe qwen3_moe deepseek_v2 deepseek_v3 glm4_moe glm4_moe_lite deepseek_v32 glm_moe_dsa hy_v4 axk2 minimax_m2 "
    "ernie4_5_moe qwen3_next qwen3_5_text qwen3_5_moe_text falcon_h1 lfm2"
).split()
NEVER = re.compile(r"embed|norm|router|\.gate\.weight|shared_expert_gate|conv|bias|A_log|in_proj_ba|wte|wpe|hc_")


def larger(rng, draw):
    """Sizes around those of blocks, and rarely multiples of them."""

    def drawn(inner):
        c = draw(inner)
        c["hidden_size"] = rng.choice([64, 96, 128, 136, 160, 192, 288]) if "hidden_size" in c else 64
        heads = c.get("num_attention_heads", 4)
        c["hidden_size"] += -c["hidden_size"] % (8 * heads)
        for key in ("intermediate_size", "moe_intermediate_size"):
            if isinstance(c.get(key), int):
                c[key] = rng.choice([48, 80, 96, 128, 136, 160, 200, 256])
        c["num_hidden_layers"] = (
            min(3, c.get("num_hidden_layers", 3)) if "layer_types" not in c else c["num_hidden_layers"]
        )
        return c

    return drawn


def tensors_of(folder):
    made = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            made.update({name: file.get_tensor(name) for name in file.keys()})
    return made


def matrices(tensors):
    return {
        name[: -len(".weight")]: t.float()
        for name, t in tensors.items()
        if name.endswith(".weight") and t.dim() == 2 and not NEVER.search(name)
    }


def store(folder, tensors):
    forms.change_tensors(folder, lambda _: tensors)


def quantise(rng, folder, family, name):
    """Leaves the quantised model in `folder`, and its dequantised twin in `folder`-plain."""
    plain = folder.with_name(folder.name + "-plain")
    stored = tensors_of(folder)
    whole = name != "mxfp4" and any(n.endswith("experts.gate_up_proj") for n in stored)
    apart = forms.split(stored, False) if whole else stored
    if name == "mxfp4":
        made, values, config = quant_formats.gpt_oss(rng, stored)
    else:
        modules = matrices(apart)
        made, values, config = quant_formats.FORMATS[name](rng, modules, forms.read_config(folder))
    exact = {n: t.float() for n, t in apart.items()}
    for module, w in values.items():
        exact[module if module in exact else f"{module}.weight"] = w
    plain.mkdir()
    for path in folder.iterdir():
        if path.suffix == ".json" and "index" not in path.name:
            (plain / path.name).write_bytes(path.read_bytes())
    store(plain, forms.fuse(exact) if whole else exact)
    kept = {n: t for n, t in apart.items() if n not in {f"{m}.weight" for m in values} | set(values)}
    store(folder, {**kept, **made})
    return plain, config


def wrapped(rng, folder, family, config):
    """Also uses the wrapper's module names in the config's lists. Returns the config."""
    if family not in forms.WRAPPERS or rng.random() < 0.5:
        return config
    forms.wrap(rng, folder, family)
    inner = any(n.startswith("model.language_model.") for n in tensors_of(folder))
    if rng.random() < 0.2:
        return config  # lists with the names of the text model
    text = json.dumps(config)
    for head in ('"', '"re:', '"-:', '"+:'):
        for first in (r"model.", r"model\\."):
            new = first.replace("model", "model.language_model" if inner else "language_model.model", 1)
            if first.startswith("model\\"):
                new = new.replace("model.lang", r"model\\.lang").replace(
                    "language_model.model", r"language_model\\.model"
                )
            text = text.replace(head + first + "layers", head + new + "layers")
        if not inner:
            text = text.replace(head + "lm_head", head + "language_model.lm_head")
    return json.loads(text)


def greedy_problem(model, prompt, answer):
    """Each token must be the best, or as good as the best."""
    tokens = answer["outputs"][0]["token_ids"]
    logits = logits_of(model, prompt + tokens)[len(prompt) - 1 : -1]
    for i, (row, token) in enumerate(zip(logits, tokens)):
        if row.max() - row[token] > 2 * TOLERANCE:
            return f"greedy token {i} is {token} and not {row.argmax().item()}"
    return None


def exact_problem(folder, plain, prompts, want, model):
    request = {"max_tokens": 6, "temperature": 0, "prompt_logprobs": True, "ignore_eos": True}
    have = variants.answers(folder, request, prompts, "--dtype", "float32")
    if isinstance(have, str):
        return have
    errors = variants.errors(want, [a["prompt_logprobs"][1:] for a in have])
    worst = max(errors)
    if worst > TOLERANCE:
        double = variants.stored(plain, torch.float64)
        if hasattr(double, "set_experts_implementation"):
            double.set_experts_implementation("eager")
        with torch.no_grad():
            logits = [double(torch.tensor([p]), use_cache=False).logits[0].double() for p in prompts]
        exact = [prompt_logprobs(x, p) for x, p in zip(logits, prompts)]
        errors = variants.errors(exact, [a["prompt_logprobs"][1:] for a in have])
        if max(errors) > TOLERANCE and not variants.but_for_a_row(model.config.model_type, errors):
            return f"off by {worst:.1e}, mean {sum(errors) / len(errors):.1e}"
    for prompt, answer in zip(prompts, have):
        problem = greedy_problem(model, prompt, answer)
        if problem:
            return problem
    return None


def rounded_problem(folder, prompts, want):
    request = {"max_tokens": 0, "prompt_logprobs": True}
    have = variants.answers(folder, request, prompts, "--activation-quantization", "none")
    if isinstance(have, str):
        return "in its dtype: " + have
    errors = sorted(variants.errors(want, [a["prompt_logprobs"][1:] for a in have]))
    most = 0.3 if "index_topk" in forms.read_config(folder) else 0.15  # rounding changes the keys that rows attend to
    return f"in its dtype off by {errors[len(errors) // 2]:.2f}" if errors[len(errors) // 2] > most else None


def make(rng, family, seed, folder):
    usual = variants.FAMILIES[family]
    variants.FAMILIES[family] = larger(rng, usual) if family != "gpt_oss" else quant_formats.in_blocks(rng, usual)
    try:
        return variants.make(family, seed, folder)[0]
    except StrictDataclassClassValidationError:  # other drawn settings require the usual sizes
        variants.FAMILIES[family] = usual
        return variants.make(family, seed, folder)[0]
    finally:
        variants.FAMILIES[family] = usual


def check(name, seed, folder, families):
    rng = random.Random(f"{name} {seed}")
    family = "gpt_oss" if name == "mxfp4" else rng.choice(families)
    folder.mkdir(parents=True)
    told = make(rng, family, seed, folder)
    plain, config = quantise(rng, folder, family, name)
    prompts = [[rng.randrange(3, 384) for _ in range(n)] for n in (5, 70)]
    model = variants.stored(plain, torch.float32)
    if "full_attention" not in (getattr(model.config, "rope_parameters", None) or {}):
        variants.fix_rope_length(model)
    want = [prompt_logprobs(logits_of(model, p), p) for p in prompts]
    config = wrapped(rng, folder, family, config)
    quant_formats.write(rng, folder, name, config)
    problem = exact_problem(folder, plain, prompts, want, model)
    if not problem and rng.random() < 0.5:
        problem = rounded_problem(folder, prompts, want)
    if not problem and rng.random() < 0.5:
        problem = variants.ways_problem(folder, prompts)
    if problem:
        print(f"{name} {seed} {family} DIFFERS: {problem}\n    {json.dumps(config)[:1500]}\n    {told}", flush=True)
    return not problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="variants of each format")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--keep", type=Path, help="keep the models in this folder")
    parser.add_argument("--families", default=",".join(FAMILIES), help="only these model types")
    parser.add_argument("formats", nargs="*", help="only these formats")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    known = [*quant_formats.FORMATS, "mxfp4"]
    if set(args.formats) - set(known):
        parser.error(f"the formats are {', '.join(known)}")
    failed = 0
    for name in args.formats or known:
        good = 0
        for seed in range(args.first, args.first + args.seeds):
            with tempfile.TemporaryDirectory() as room:
                good += check(name, seed, (args.keep or Path(room)) / f"{name}-{seed}", args.families.split(","))
        print(f"{name:20} {good} of {args.seeds} agree", flush=True)
        failed += args.seeds - good
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
