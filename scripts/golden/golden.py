#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make or check the tiny golden models of test/golden and test/golden-families with transformers.

    golden.py --make test/golden [FOLDER ...]    make the models of families.py, or those named
    golden.py --check test/golden/llama-3 ...    recompute expected.json and compare
    golden.py --share test/golden/llama-3 test/golden/mistral ...    the others take the first one's weights
    golden.py --draw test/golden-families [--seed TEXT] [--shards N] MODEL ...    folders with the configs and shapes of these
                                                 models, and weights that are drawn, not stored (describe.py)

Needs torch (CPU is enough), transformers 5, tokenizers and safetensors. expected.json holds, for
prompts of 1, 7, 33 and 150 ids: the log-probability of every prompt token given those before it,
the logits after the last one, and 20 greedy tokens with the five best log-probabilities at each
step. All of it is computed in fp32 from the bf16 weights; bf16_max_error and bf16_mean_error are the errors of
transformers' own bf16 run over the prompt's log-probabilities: the standard for a server that computes in bf16.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from describe import ROOT, seeded, write_description
from families import COMMON, FAMILIES

TOKENIZER = ROOT / "test" / "golden" / "llama-2"

PROMPT_LENGTHS = (1, 7, 33, 150)
DRAWN_LENGTHS = (1, 33, 150)  # there are many of these models
N_GREEDY = 20
N_TOP = 5
DECIMALS = 5
# Both sides are rounded to 1e-5; fp32 sums in another order move a logit of size 10 by another
# 1e-5.
TOLERANCE = 2.5e-5
# A bf16 run depends on the machine's kernels far more than an fp32 run does; its largest error
# depends on which of two nearly tied experts was chosen, so only the mean is compared.
BF16_RELATIVE_TOLERANCE = 0.5
FIRST_ORDINARY_ID = 3
MIN_GREEDY_MARGIN = 0.01


def seed_of(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


# ---- making ----


def fill_weights(model, generator):
    """Random weights of a size that keeps activations near one, so that every layer contributes.

    The ordinary initialisation (0.02) leaves a model of this size close to a bigram table: an error
    in attention would hide below the tolerance. Norms and biases are random, too, so that a missing one is noticed.
    """
    is_gemma = model.config.model_type.startswith("gemma")
    adds_one = is_gemma and not model.config.model_type.startswith(("gemma3n", "gemma4"))  # Gemma's norms multiply by 1 + weight
    adds_one = adds_one or model.config.model_type in ("nemotron", "step3p7", "minimax_m3_vl", "minimax_m3_vl_text")
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
        if name.endswith("dt_bias"):
            value = noise  # decays over single steps, and over hundreds
        elif name.endswith(("softmax_scaling.scale", "rotary_emb.alpha")):
            value = 0.3 * noise
        elif name.endswith("softmax_scaling.bias"):
            value = 0.3 * noise + 1.0
        elif name.endswith("bias"):
            value = 0.1 * noise
        elif name.endswith("A_log"):
            value = noise
        elif name.endswith(("act_fn.beta", "act_fn.eps")) or "patch_merger" in name:
            continue  # constants of an activation; not of the language part
        elif name.endswith(("slope_rate", "_decay")):
            continue  # computed
        elif "vision_" in name or "resampler" in name or "embed_tokens_extend" in name or name.endswith(("_attn_gate", "_mlp_gate")):
            value = 0.1 * noise
        elif name.endswith(("alpha_p", "alpha_n", ".D")):
            value = 0.5 * noise + 1.0
        elif "conv" in name and tensor.dim() == 3:
            value = tensor.shape[-1] ** -0.5 * noise
        elif "layernorm.mlp." in name:  # the gate of a norm
            value = 1.3 / tensor.shape[-1] ** 0.5 * noise
        elif "norm" in name or ".ln_" in name or "LayerNorm" in name:
            value = 0.1 * noise + (0.0 if adds_one else 1.0)
        elif name.endswith("modality_router.weight"):  # its products are divided by the width
            value = tensor.shape[-1] ** 0.5 * noise
        elif name.endswith(("prediction_coefs.weight", "correction_coefs.weight")):
            value = 0.2 * noise
        elif name.endswith("correct_output_scale"):
            value = 0.2 * noise + 1.0
        elif name.endswith(("layer_scalar", "router.scale", "per_expert_scale", "lambda_1", "lambda_2")):
            value = 0.2 * noise + 1.0
        elif name.startswith("embeddings.") or ".embeddings." in name:  # of an encoder: words, positions, types
            value = 0.5 * noise
        elif "embed_tokens" in name:
            # Gemma multiplies embeddings by sqrt(hidden), and its tied head uses them unscaled.
            value = (0.12 if is_gemma else 0.4 if model.config.tie_word_embeddings else 0.8) * noise
        elif any(k in name for k in (".gate.weight", "shared_expert_gate", "router")):
            value = 2.0 / tensor.shape[-1] ** 0.5 * noise
        elif name.endswith("sinks") or name.endswith(("_hc.base", "hc_base")):
            value = noise
        elif name.endswith(("_hc.scale", "hc_scale")):
            value = 0.5 * noise + 1.0
        elif tensor.dim() >= 2:
            value = 1.3 / tensor.shape[-1] ** 0.5 * noise
        else:
            raise SystemExit(f"{name}: no rule for a tensor of shape {tuple(tensor.shape)}")
        tensor.copy_(value)


def write_config(folder, legacy):
    """Writes the same settings under the older names if `legacy`: both are in use."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.pop("_name_or_path", None)
    if legacy:
        rope = config.pop("rope_parameters")
        config["torch_dtype"] = config.pop("dtype")
        config["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        if config["model_type"] == "phi3":
            # Phi has the original length only at the top level.
            config["original_max_position_embeddings"] = rope.pop(
                "original_max_position_embeddings"
            )
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    path.write_text(json.dumps(config, indent=2) + "\n")


def make(row, folder):
    generator = torch.Generator().manual_seed(seed_of(row["folder"]))
    config = AutoConfig.for_model(row["model_type"], **{**COMMON, **row["config"]})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        fill_weights(model, generator)
    model.to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").unlink(missing_ok=True)  # the target of a link must not change
    model.save_pretrained(folder)
    write_config(folder, row.get("legacy", False))
    link(folder, ("tokenizer.json", "tokenizer_config.json"))
    if "weights_of" in row:
        share_weights(folder, row["weights_of"])
    elif row.get("drawn"):
        write_description(folder, folder, row["folder"])
    write_answers(folder)


def link(folder, names):
    """All models have the same tokenizer."""
    for name in names:
        if (folder / name).resolve() != TOKENIZER / name:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(os.path.relpath(TOKENIZER / name, folder))


def share_weights(folder, owner):
    """A model that differs from another only in its config shares its weights."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    name = "tensors.json" if (folder.parent / owner / "tensors.json").exists() else "model.safetensors"
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(Path("..") / owner / name)


def draw(source, folder, seed, n_shards):
    """A model with the source's config and shapes, whose weights are drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder != source:
        (folder / "config.json").write_text((source / "config.json").read_text())
    link(folder, ("generation_config.json", "tokenizer.json", "tokenizer_config.json"))
    write_description(source, folder, seed, n_shards)
    stored = source / "expected.json"
    made = json.loads(stored.read_text()).get("class") if stored.exists() else None
    write_answers(folder, made)


def write_answers(folder, made=None):
    """`made`: the class of transformers, if it is not the one that config.json leads to."""
    lengths = DRAWN_LENGTHS if (folder / "tensors.json").exists() else PROMPT_LENGTHS
    models = load(folder, made)
    prompts = [draw_prompt(folder.name, n, models[0]) for n in lengths]
    write_expected(folder, expected(models, prompts, made))


def draw_ids(seed, n, vocab_size):
    generator = torch.Generator().manual_seed(seed_of(seed))
    return torch.randint(FIRST_ORDINARY_ID, vocab_size, (n,), generator=generator).tolist()


def draw_prompt(name, n, model):
    """A prompt of n ids whose greedy continuation has no near tie, so that equal tokens can be
    demanded."""
    for attempt in range(200):
        prompt = draw_ids(f"{name} {n} {attempt}", n, COMMON["vocab_size"])
        steps = greedy(model, prompt)
        if min(s["top"][0][1] - s["top"][1][1] for s in steps) >= MIN_GREEDY_MARGIN:
            return prompt
    raise SystemExit(f"{name}: no prompt of {n} ids without a near tie")


def write_expected(folder, value):
    (folder / "expected.json").write_text(json.dumps(value, separators=(",", ":")) + "\n")


# ---- computing ----


def fix_rope_length(model):
    """Fixes a RoPE that depends on the current length to the longest length that the model serves.

    transformers recomputes dynamic and longrope frequencies whenever a longer input arrives. A server cannot, because
    keys in its cache are already rotated. So the expected answers are those of the model at its full length, which for
    dynamic scaling is max_position_embeddings times the factor.
    """
    rotary = getattr(getattr(model, "model", None), "rotary_emb", None)
    rope = getattr(model.config, "rope_parameters", None) or {}
    kind = rope.get("rope_type")
    if kind not in ("dynamic", "longrope") or rotary.rope_type == "ntk_alpha":  # Hunyuan's frequencies are fixed
        return
    longest = model.config.max_position_embeddings
    if kind == "dynamic":
        longest = int(longest * rope["factor"])
    init = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
    rotary.inv_freq, rotary.attention_scaling = init(
        model.config, torch.device("cpu"), seq_len=longest
    )
    # Any other name switches the recomputation off.
    rotary.rope_type = "fixed"


def name_for(made, path):
    """Kimi K2's own model_type is not known to transformers, whose class for it has another. A class for a wrapper's text part
    finds the part's config by itself."""
    config, name = json.loads(path.read_text()), getattr(transformers, made).config_class.model_type
    if any(isinstance(part, dict) and part.get("model_type") == name for part in config.values()):
        return
    path.unlink()
    path.write_text(json.dumps({**config, "model_type": name}))


def load(folder, made=None):
    """The model in fp32 and in bf16, both from the stored bf16 weights."""
    models = []
    with tempfile.TemporaryDirectory() as whole:
        seeded.complete(folder, whole)
        if made:
            name_for(made, Path(whole) / "config.json")
        for dtype in (torch.float32, torch.bfloat16):
            model = getattr(transformers, made or "AutoModelForCausalLM").from_pretrained(
                whole, dtype=dtype, attn_implementation="eager"
            ).eval()
            fix_rope_length(model)
            models.append(model)
    return models


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def prompt_logprobs(logits, ids):
    logprobs = torch.log_softmax(logits, -1)
    return [logprobs[i, ids[i + 1]].item() for i in range(len(ids) - 1)]


def greedy(model, prompt):
    """Twenty greedy tokens, each from a full pass over all tokens, without a cache."""
    ids, steps = list(prompt), []
    for _ in range(N_GREEDY):
        values, best = torch.log_softmax(logits_of(model, ids)[-1], -1).topk(N_TOP)
        top = [[i, round(v, DECIMALS)] for i, v in zip(best.tolist(), values.tolist())]
        steps.append({"id": top[0][0], "top": top})
        ids.append(top[0][0])
    return steps


def expected_case(models, prompt):
    logits = logits_of(models[0], prompt)
    exact = prompt_logprobs(logits, prompt)
    rough = prompt_logprobs(logits_of(models[1], prompt), prompt)
    errors = [abs(a - b) for a, b in zip(exact, rough)]
    return {
        "prompt": prompt,
        "prompt_logprobs": [None] + [round(v, DECIMALS) for v in exact],
        "last_logits": [round(v, DECIMALS) for v in logits[-1].tolist()],
        "greedy": greedy(models[0], prompt),
        "bf16_max_error": round(max(errors, default=0.0), DECIMALS),
        "bf16_mean_error": round(sum(errors) / max(1, len(errors)), DECIMALS + 1),
    }


def expected(models, prompts, made=None):
    return {
        "family": models[0].config.model_type,
        "transformers": transformers.__version__,
        **({"class": made} if made else {}),
        "cases": [expected_case(models, prompt) for prompt in prompts],
    }


# ---- checking ----


def largest_difference(stored, computed):
    if len(stored) != len(computed):
        return float("inf")
    return max((abs(a - b) for a, b in zip(stored, computed) if a is not None), default=0.0)


def case_problems(stored, computed):
    """Compares a stored case with the same case computed here: (largest difference, descriptions of all differences)."""
    problems = []
    steps = list(zip(stored["greedy"], computed["greedy"]))
    if any(a["id"] != b["id"] for a, b in steps) or len(stored["greedy"]) != N_GREEDY:
        problems.append("greedy tokens differ")
    worst = max(
        largest_difference(stored["prompt_logprobs"], computed["prompt_logprobs"]),
        largest_difference(stored["last_logits"], computed["last_logits"]),
        *(largest_difference([t[1] for t in a["top"]], [t[1] for t in b["top"]]) for a, b in steps),
    )
    if worst > TOLERANCE:
        problems.append(f"values differ by up to {worst:.1e}")
    mean = "bf16_mean_error"
    if abs(stored[mean] - computed[mean]) > BF16_RELATIVE_TOLERANCE * max(stored[mean], 1e-3):
        problems.append(f"{mean} is {computed[mean]}, stored {stored[mean]}")
    return worst, problems


def check(folder):
    stored = json.loads((folder / "expected.json").read_text())
    computed = expected(load(folder, stored.get("class")), [case["prompt"] for case in stored["cases"]])
    problems = [] if stored["family"] == computed["family"] else ["family differs"]
    worst = 0.0
    for a, b in zip(stored["cases"], computed["cases"]):
        case_worst, found = case_problems(a, b)
        worst = max(worst, case_worst)
        problems += [f"prompt of {len(a['prompt'])}: {text}" for text in found]
    print(
        f"{folder.name:16} {'ok' if not problems else 'DIFFERS':8} largest difference {worst:.1e}",
        flush=True,
    )
    for text in problems:
        print(f"    {text}")
    return not problems


def tell(folder):
    size = sum(f.stat().st_size for f in folder.iterdir() if not f.is_symlink())
    print(f"{folder.name:18} made, {size // 1000} kB", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument(
        "--make", metavar="DIR", type=Path, help="folder that gets the golden folders, such as test/golden"
    )
    mode.add_argument(
        "--check", metavar="DIR", type=Path, nargs="+", help="golden folders to recompute"
    )
    mode.add_argument(
        "--share", metavar="DIR", type=Path, nargs="+", help="the folder that has the weights, then those that share them"
    )
    mode.add_argument("--draw", metavar="DIR", type=Path, help="folder that gets the golden folders")
    parser.add_argument("--seed", help="with --draw: instead of the folder's name")
    parser.add_argument("--shards", type=int, default=1, help="with --draw: number of files of weights")
    parser.add_argument("folders", nargs="*", help="with --make: only these rows of families.py; with --draw: models")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    if args.check:
        sys.exit(0 if all([check(folder) for folder in args.check]) else 1)
    if args.share:
        for folder in args.share[1:]:
            share_weights(folder, args.share[0].name)
            write_answers(folder)
        return
    if args.draw:
        for source in map(Path, args.folders):
            draw(source, args.draw / source.name, args.seed or source.name, args.shards)
            tell(args.draw / source.name)
        return
    unknown = set(args.folders) - {row["folder"] for row in FAMILIES}
    if unknown:
        parser.error(f"no such row in families.py: {', '.join(sorted(unknown))}")
    for row in FAMILIES:
        if not args.folders or row["folder"] in args.folders:
            make(row, args.make / row["folder"])
            tell(args.make / row["folder"])


if __name__ == "__main__":
    main()
