#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare `sluice generate` with transformers on random variants of every family.

    variants.py [--seeds N] [--first N] [--keep DIR] [FAMILY ...]

A golden folder tests one configuration of its family; checkpoints in the wild mix the same keys in
other ways. Each seed draws a configuration from choices_*.py, makes the model with random
weights, and stores it in a random manner (dtype, shards, older or newer config.json, without keys
that equal the family's defaults, as a wrapper's text model, with its experts in one tensor or in
many). Both sides then compute in fp32; their prompt log-probabilities must agree within 1e-3, or
with those of transformers in fp64 if its fp32 picks another of two nearly tied experts, which is
reported in a line. Needs what golden.py needs, and a built program (SLUICE, or build/sluice).
Exit 1 if any variant differs.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

import choices_classic
import choices_dense
import choices_experts
import choices_layers
import choices_sigmoid
import choices_plain
import choices_states
import choices_wrapped
import forms
from families import COMMON
from golden import fill_weights, fix_rope_length, logits_of, prompt_logprobs, seed_of, write_config

ROOT = Path(__file__).resolve().parent.parent.parent
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
TOLERANCE = 1e-3
STATES = choices_states.FAMILIES
FAMILIES = {
    **choices_dense.FAMILIES,
    **choices_experts.FAMILIES,
    **choices_layers.FAMILIES,
    **choices_sigmoid.FAMILIES,
    **choices_classic.FAMILIES,
    **choices_plain.FAMILIES,
    **STATES,
    **choices_wrapped.FAMILIES,
}
# Architectures that transformers has, under the names that released checkpoints with their own code use.
OTHER_NAMES = {"kimi_k2": "deepseek_v3"}
# Text models of multimodal wrappers, which have no Auto class of their own, and wrappers.
WHOLE = choices_wrapped.WHOLE
TEXT_PARTS = {"mistral4": "Mistral4ForCausalLM", **{wrapper: made for wrapper, made, _ in WHOLE.values()}}


# Rows in which the last of an indexer's picks and the first other key differ by less than fp32 can tell.
NEAR_TIES = []


def note_near_ties(values, k):
    gap = values[..., k - 1] - values[..., k]
    near = (gap > 0) & (gap < 1e-6 * values[..., 0].abs())
    NEAR_TIES.extend(near.nonzero()[:, 1].tolist())


def first_of_equals(scores, k, dim=-1, **_):
    """A stable topk: relu makes many scores of indexers 0, and torch's picks among equal ones are arbitrary."""
    values, indices = torch.sort(scores, dim=dim, descending=True, stable=True)
    if scores.dim() == 3 and k < scores.shape[-1]:
        note_near_ties(values, k)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


torch.Tensor.topk = first_of_equals


def class_of(family):
    return OTHER_NAMES.get(family, family)


# The weights of these routers jump where a logit is at a bound, which changes all later rows: rounded answers say nothing.
JUMPS = ("phimoe",)

NEED_HEAD_DIM = ("helium", "longcat_flash", "hunyuan_v1_dense", "hunyuan_v1_moe", "ministral", "hunyuan_vl_text")

# Keys that a checkpoint may leave out: then the default of the family's class applies.
OPTIONAL = (
    "rms_norm_eps norm_epsilon layer_norm_eps rope_parameters hidden_act hidden_activation head_dim "
    "sliding_window tie_word_embeddings attention_bias mlp_bias qkv_bias use_bias use_qkv_bias "
    "attention_multiplier query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping "
    "no_rope_layers layer_types max_window_layers routed_scaling_factor norm_topk_prob "
    "attention_out_bias sliding_window_pattern mlp_layer_types moe_num_shared_experts "
    "num_shared_experts router_scaling_factor first_k_dense_replace moe_layer_start_index "
    "num_dense_layers global_attn_every_n_layers route_scale mup_enabled"
).split()


def stored(folder, dtype):
    """The model as loaded by transformers."""
    family = json.loads((folder / "config.json").read_text())["model_type"]
    made = getattr(transformers, TEXT_PARTS.get(family, "AutoModelForCausalLM"))
    return made.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def leave_to_the_class(rng, values, family):
    """Replaces some values by the class's defaults."""
    kept = {k: v for k, v in values.items() if k not in OPTIONAL or rng.random() < 0.6}
    if family in ("minimax_m2", "cohere_compass_text"):  # their classes ignore rotary_dim, and a common rope
        kept["rope_parameters"] = values["rope_parameters"]
    # Mixtral's scalings need the size, and some classes cannot do without it.
    asked = family in NEED_HEAD_DIM or "rope_parameters" in kept
    if family == "internlm3":  # its class wants the same of both
        kept.update({k: values[k] for k in ("attention_bias", "mlp_bias")})
    if "layer_rope_theta" in values:  # its values are that of the rope, or 0
        kept["rope_parameters"] = values["rope_parameters"]
    if "head_dim" in values and asked:
        kept["head_dim"] = values["head_dim"]
    if values.get("sliding_window", 0) is None and "layer_types" in values:  # otherwise EXAONE's class fails
        kept["layer_types"] = values["layer_types"]
    if "sliding_attention" in kept.get("layer_types", []):  # SmolLM3's class has no window
        kept["sliding_window"] = values["sliding_window"]
    if "layer_types" not in kept:  # layers that share keys were drawn by layer type
        kept.pop("num_kv_shared_layers", None)
        if family == "gemma3n_text":  # its class shares the keys of more layers than there are
            kept["num_kv_shared_layers"] = 0
    if family in STATES and "layer_types" in values:  # their classes have other defaults, too large for small models
        kept["layer_types"] = values["layer_types"]
    return kept


def leave_out(rng, folder, values, family):
    """Drops keys from config.json that equal the class's defaults."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    made = AutoConfig.for_model(class_of(family))
    usual = made.to_dict()
    usual["head_dim"] = getattr(type(made), "head_dim", None)  # else derived from other values
    for key in list(config):
        derived = key in ("layer_types", "no_rope_layers") and key not in values
        derived = derived and family not in STATES
        same = key in usual and config[key] == usual[key] and key != "vocab_size"
        if key in OPTIONAL + ["max_position_embeddings", "num_key_value_heads"]:
            if (same or derived) and rng.random() < 0.8:
                del config[key]
    path.write_text(json.dumps(config))


def config_of(family, values):
    if family not in WHOLE:
        return AutoConfig.for_model(class_of(family), **values)
    wrapper, _, others = WHOLE[family]
    text = {**values, "model_type": family}
    tied = text.pop("tie_word_embeddings")
    return AutoConfig.for_model(wrapper, text_config=text, tie_word_embeddings=tied, **others)


def make(family, seed, folder):
    """Stores the model; returns a one-line description and its dtype."""
    rng = random.Random(f"{family} {seed}")
    values = {**COMMON, **FAMILIES[family](rng)}
    values = {k: v for k, v in values.items() if k != "head_dim" or v is not None}
    sparse = rng.random() < 0.4 and family not in WHOLE
    if sparse:
        values = leave_to_the_class(rng, values, family)
    torch.manual_seed(seed_of(f"{family} {seed}"))
    config = config_of(family, values)
    if config.model_type in TEXT_PARTS:
        made = getattr(transformers, TEXT_PARTS[config.model_type])
        model = made._from_config(config, dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        fill_weights(model, torch.Generator().manual_seed(seed_of(f"{family} {seed}")))
    dtype = rng.choice([torch.bfloat16, torch.float16, torch.float32])
    model.to(dtype)
    if rng.random() < 0.3:  # some files have norms or routers in another dtype
        for parameter in model.parameters():
            if rng.random() < 0.3:
                parameter.data = parameter.data.to(torch.float32)
    model.save_pretrained(folder, max_shard_size=rng.choice(["50KB", "1GB"]))
    ropes = getattr(config, "rope_parameters", None)  # some families have no position embeddings
    per_layer = "full_attention" in (ropes or {})
    # Phi has the original length elsewhere; GPT-OSS and Mistral 4 use their own yarn if there
    # is no scaling.
    newer = per_layer or not ropes or family in ("phi3", "gpt_oss", "mistral4")
    legacy = not newer and rng.random() < 0.5
    write_config(folder, legacy)
    if sparse:
        leave_out(rng, folder, values, family)
    forms.release(rng, folder, values, family)
    return f"{str(dtype)[6:]} legacy={legacy} sparse={sparse} {json.dumps(values)}", dtype


def rename(folder, family):
    """Applied after transformers has computed."""
    if family in WHOLE:
        return
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": family}))


def expected(folder, prompts, dtype):
    model = stored(folder, dtype)
    if "full_attention" not in (getattr(model.config, "rope_parameters", None) or {}):
        fix_rope_length(model)
    return [prompt_logprobs(logits_of(model, p), p) for p in prompts]


def answers(folder, request, prompts, *flags):
    """One answer per prompt, without usage; or an error message."""
    lines = "".join(json.dumps({"prompt_token_ids": p, **request}) + "\n" for p in prompts)
    done = subprocess.run(
        [SLUICE, "generate", folder, "--json", "--log-level", "error", *flags],
        input=lines,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        return done.stderr.strip() or f"exit {done.returncode}"
    result = [json.loads(line) for line in done.stdout.splitlines()]
    for answer in result:
        if "error" in answer:
            return str(answer)
        del answer["usage"]
    return result


def served(folder, prompts, dtype):
    request = {"max_tokens": 0, "prompt_logprobs": True}
    result = answers(folder, request, prompts, "--dtype", dtype)
    return result if isinstance(result, str) else [a["prompt_logprobs"][1:] for a in result]


WAYS = [
    ("--max-num-batched-tokens", "16"),
    ("--tensor-parallel-size", "2"),
    (
        "--speculative-config",
        '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":1,"fixed":true}',
    ),
]


def ways_problem(folder, prompts):
    request = {"max_tokens": 12, "temperature": 0.8, "seed": 5, "prompt_logprobs": True}
    request.update(logprobs=2, ignore_eos=True)
    plain = answers(folder, request, prompts)
    for way in WAYS:
        other = answers(folder, request, prompts, *way)
        if other != plain and "does not divide" not in other:
            return f"{' '.join(way)}: {other if isinstance(other, str) else 'other bits'}"
    return None


def short_problem(folder, prompt):
    """True if the RoPE scaling depends on the length, and no more than the trained length is served."""
    model = stored(folder, torch.float32)
    kind = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type")
    if kind not in ("dynamic", "longrope"):
        return None
    want = prompt_logprobs(logits_of(model, prompt), prompt)
    request = {"max_tokens": 0, "prompt_logprobs": True}
    have = answers(folder, request, [prompt], "--dtype", "float32", "--max-model-len", "60")
    if isinstance(have, str):
        return have
    worst = max(errors([want], [have[0]["prompt_logprobs"][1:]]))
    return None if worst <= TOLERANCE else f"served for 60 tokens off by {worst:.1e}"


def errors(want, have):
    return [abs(a - b) for w, h in zip(want, have) for a, b in zip(w, h)]


def in_float64(family, seed, prompts):
    """What transformers computes in fp64, where near ties are resolved correctly (its states stay in fp32). Its indexers stay in
    fp32, too: answers end where one of their picks is in doubt."""
    with tempfile.TemporaryDirectory() as folder:
        make(family, seed, Path(folder))
        model = stored(Path(folder), torch.float64)
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # the others have no fp64
        fix_rope_length(model)
        with torch.no_grad():
            result = []
            for prompt in prompts:
                NEAR_TIES.clear()
                logits = model(torch.tensor([prompt]), use_cache=False).logits[0].double()
                result.append(prompt_logprobs(logits, prompt)[: min(NEAR_TIES, default=len(prompt))])
        return result


def but_for_a_row(family, all_errors):
    """Norms of states close to zero, and the unscaled products of Gemma 3n and 4, amplify rounding in one or two rows of a
    hundred."""
    far = sum(e > TOLERANCE for e in all_errors)
    small = statistics.median(all_errors) <= 0.02 * TOLERANCE
    may = family in STATES or family.startswith(("gemma3n", "gemma4"))
    return may and small and far <= len(all_errors) / 50 and max(all_errors) <= 10 * TOLERANCE


def exact_problem(folder, prompts, want, family, seed):
    have = served(folder, prompts, "float32")
    if isinstance(have, str):
        return have
    worst = max(errors(want, have))
    if worst <= TOLERANCE:
        return None
    exact = errors(in_float64(family, seed, prompts), have)
    if max(exact) <= TOLERANCE or but_for_a_row(family, exact):
        print(f"{family} {seed}: off by {worst:.1e}, by {max(exact):.1e} in float64", flush=True)
        return None
    return f"off by {worst:.1e}, by {max(exact):.1e} in float64"


def rounded_problem(folder, prompts, want, theirs):
    """For models with experts the median error counts: one row with different picks would dominate the mean."""
    have = served(folder, prompts, "bfloat16")
    if isinstance(have, str):
        return have
    experts = "expert" in (folder / "config.json").read_text()
    middle = statistics.median if experts else statistics.mean
    ratio = middle(errors(want, have)) / max(middle(errors(want, theirs)), 1e-3)
    return None if ratio <= 2.0 else f"in bf16 {ratio:.2f} times transformers' error"


def check(family, seed, folder):
    told, dtype = make(family, seed, folder)
    rng = random.Random(seed)
    prompts = [[rng.randrange(3, 384) for _ in range(n)] for n in (9, 150)]
    want = expected(folder, prompts, torch.float32)
    theirs = expected(folder, prompts, torch.bfloat16) if dtype == torch.bfloat16 and family not in JUMPS else None
    problem = short_problem(folder, prompts[0])
    if rng.random() < 0.3:  # transformers needs the index, but we do not
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    rename(folder, family)
    form = forms.disguise(rng, folder, family)
    problem = problem or exact_problem(folder, prompts, want, family, seed)
    if not problem and theirs:
        problem = rounded_problem(folder, prompts, want, theirs)
    problem = problem or ways_problem(folder, prompts)
    if problem:
        print(f"{family} {seed} DIFFERS: {problem}\n    {form} {told}", flush=True)
    return not problem


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="variants of each family")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--keep", type=Path, help="keep the models in this folder")
    parser.add_argument("families", nargs="*", help="only these model types")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    unknown = set(args.families) - set(FAMILIES)
    if unknown:
        parser.error(f"not in the table: {', '.join(sorted(unknown))}")
    passed = failed = 0
    for family in args.families or FAMILIES:
        good = 0
        for seed in range(args.first, args.first + args.seeds):
            with tempfile.TemporaryDirectory() as folder:
                kept = args.keep / f"{family}-{seed}" if args.keep else Path(folder)
                good += check(family, seed, kept)
        print(f"{family:14} {good} of {args.seeds} agree", flush=True)
        passed, failed = passed + good, failed + args.seeds - good
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
