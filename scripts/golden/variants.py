#!/usr/bin/env python3
"""Compare `sluice generate` with transformers on random variants of every family.

    variants.py [--seeds N] [--first N] [--keep DIR] [FAMILY ...]

A golden folder tests one configuration of its family; checkpoints in the wild mix the same keys in
other ways. Each seed draws a configuration from the choices below, makes the model with random
weights, and stores it in a random manner (dtype, shards, older or newer config.json, without keys
that say what a family takes anyway). Both sides
then compute in fp32; their prompt log-probabilities must agree within 1e-3. Needs what golden.py
needs, and a built program (SLUICE, or build/sluice). Exit 1 if any variant differs.
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
from transformers import AutoConfig, AutoModelForCausalLM

from families import COMMON
from golden import fill_weights, fix_rope_length, logits_of, prompt_logprobs, seed_of, write_config

ROOT = Path(__file__).resolve().parent.parent.parent
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
TOLERANCE = 1e-3
WINDOW = 24


def rope(rng, dim, kinds=("default", "linear", "dynamic", "llama3", "yarn", "longrope"), **extra):
    """rope_parameters of a random kind for `dim` rotated dimensions."""
    kind = rng.choice(kinds)
    value = {"rope_type": kind, "rope_theta": rng.choice([1e4, 5e5, 1e6]), **extra}
    if kind in ("linear", "dynamic"):
        value["factor"] = rng.choice([2.0, 4.0])
    if kind == "llama3":
        value.update(
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=rng.choice([2.0, 4.0]),
            original_max_position_embeddings=64,
        )
    if kind == "yarn":
        value.update(factor=rng.choice([4.0, 8.0]), original_max_position_embeddings=64)
        if rng.random() < 0.5:
            value.update(beta_fast=16.0, beta_slow=2.0, truncate=rng.random() < 0.5)
        if rng.random() < 0.3:
            value["attention_factor"] = 1.2
        if rng.random() < 0.3:
            value.update(mscale=rng.choice([1.0, 0.7]), mscale_all_dim=rng.choice([1.0, 0.5]))
    if kind == "longrope":
        value.update(
            original_max_position_embeddings=64,
            factor=8.0,
            short_factor=[1.0 + 0.05 * i for i in range(dim // 2)],
            long_factor=[1.0 + 0.5 * i for i in range(dim // 2)],
        )
    return value


def heads(rng):
    n = rng.choice([1, 2, 4, 6, 7])
    return {
        "num_attention_heads": n,
        "num_key_value_heads": rng.choice([k for k in (1, 2, 3, n) if n % k == 0]),
        "head_dim": rng.choice([8, 16, 32, 40, 72, 128, 192]),
        "hidden_size": n * rng.choice([8, 16, 24]),
        "intermediate_size": rng.choice([48, 80, 128]),
        "num_hidden_layers": rng.choice([1, 2, 3, 5]),
        "rms_norm_eps": rng.choice([1e-5, 1e-6]),
        "tie_word_embeddings": rng.random() < 0.5,
        "vocab_size": rng.choice([384, 389, 512]),
    }


# Keys that a checkpoint may leave out: the family's class then decides.
OPTIONAL = (
    "rms_norm_eps norm_epsilon layer_norm_eps rope_parameters hidden_act hidden_activation head_dim "
    "sliding_window tie_word_embeddings attention_bias mlp_bias qkv_bias use_bias use_qkv_bias "
    "attention_multiplier query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping "
    "no_rope_layers layer_types max_window_layers routed_scaling_factor norm_topk_prob"
).split()


def leave_to_the_class(rng, values):
    """Some of the values are the class's own."""
    kept = {k: v for k, v in values.items() if k not in OPTIONAL or rng.random() < 0.6}
    if "head_dim" in values and "rope_parameters" in kept:  # Mixtral's scalings ask for it
        kept["head_dim"] = values["head_dim"]
    if "sliding_attention" in kept.get("layer_types", []):  # SmolLM3's class has no window
        kept["sliding_window"] = values["sliding_window"]
    return kept


def leave_out(rng, folder, values, family):
    """Drops from config.json what the class would take anyway."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    made = AutoConfig.for_model(family)
    usual = made.to_dict()
    usual["head_dim"] = getattr(type(made), "head_dim", None)  # else derived from other values
    for key in list(config):
        derived = key in ("layer_types", "no_rope_layers") and key not in values
        same = key in usual and config[key] == usual[key] and key != "vocab_size"
        if key in OPTIONAL + ["max_position_embeddings", "num_key_value_heads"]:
            if (same or derived) and rng.random() < 0.8:
                del config[key]
    path.write_text(json.dumps(config))


def layer_types(rng, n):
    return [rng.choice(["full_attention", "sliding_attention"]) for _ in range(n)]


def llama(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3)
    c["rope_parameters"] = rope(rng, c["head_dim"])
    c["hidden_act"] = rng.choice(["silu", "silu", "gelu", "gelu_pytorch_tanh", "gelu_fast", "relu"])
    return c


def mistral(rng):
    c = heads(rng)
    c.update(sliding_window=rng.choice([None, WINDOW]))
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn", "linear"))
    return c


def mixtral(rng):
    c = mistral(rng)
    n = rng.choice([3, 4, 8])
    c.update(num_local_experts=n, num_experts_per_tok=rng.randint(1, n))
    return c


def qwen_windows(rng, c):
    if rng.random() < 0.5:
        c.update(use_sliding_window=True, sliding_window=WINDOW)
        c["max_window_layers"] = rng.randint(0, c["num_hidden_layers"])
        if rng.random() < 0.5:
            c["layer_types"] = layer_types(rng, c["num_hidden_layers"])


def qwen2(rng):
    c = heads(rng)
    if rng.random() < 0.7:
        c["head_dim"] = None
        c["hidden_size"] = c["num_attention_heads"] * 16
    qwen_windows(rng, c)
    c["rope_parameters"] = rope(rng, c["head_dim"] or 16, ("default", "yarn", "dynamic"))
    return c


def qwen_experts(rng, c):
    n = rng.choice([4, 6])
    c.update(
        num_experts=n,
        num_experts_per_tok=rng.randint(1, n),
        moe_intermediate_size=rng.choice([24, 40]),
        norm_topk_prob=rng.random() < 0.5,
        decoder_sparse_step=rng.choice([1, 1, 2]),
        mlp_only_layers=rng.choice([[], [0]]),
    )


def qwen2_moe(rng):
    c = heads(rng)
    c["head_dim"] = None
    c["hidden_size"] = c["num_attention_heads"] * 16
    qwen_experts(rng, c)
    c.update(shared_expert_intermediate_size=rng.choice([24, 56]), qkv_bias=rng.random() < 0.6)
    qwen_windows(rng, c)
    c["rope_parameters"] = rope(rng, 16, ("default", "yarn"))
    return c


def qwen3(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3)
    qwen_windows(rng, c)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn"))
    return c


def qwen3_moe(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3)
    qwen_experts(rng, c)
    if rng.random() < 0.5:  # here on all layers
        c.update(use_sliding_window=True, sliding_window=WINDOW)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn"))
    return c


def gemma(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3, tie_word_embeddings=True)
    c["hidden_act"] = c["hidden_activation"] = "gelu_pytorch_tanh"
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear"))
    return c


def gemma2(rng):
    c = gemma(rng)
    c.update(
        sliding_window=WINDOW,
        query_pre_attn_scalar=rng.choice([16, 24, 256]),
        attn_logit_softcapping=rng.choice([None, 50.0, 10.0]),
        final_logit_softcapping=rng.choice([None, 30.0]),
    )
    if rng.random() < 0.5:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    return c


def gemma3_text(rng):
    c = gemma2(rng)
    c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = {
        "full_attention": rope(rng, c["head_dim"], ("default", "linear")),
        "sliding_attention": rope(rng, c["head_dim"], ("default",)),
    }
    return c


def phi3(rng):
    c = heads(rng)
    c["head_dim"] = None
    c["hidden_size"] = c["num_attention_heads"] * 16
    partial = rng.choice([1.0, 0.75, 0.5])
    c.update(sliding_window=rng.choice([None, WINDOW]), original_max_position_embeddings=64)
    c["rope_parameters"] = rope(
        rng, int(16 * partial), ("default", "longrope"), partial_rotary_factor=partial
    )
    return c


def olmo2(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3)
    c["head_dim"] = c["hidden_size"] // c["num_attention_heads"]
    if c["hidden_size"] % c["num_attention_heads"] or c["head_dim"] % 2:
        c.update(num_attention_heads=4, num_key_value_heads=2, hidden_size=64, head_dim=16)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "yarn"))
    return c


def granite(rng):
    c = llama(rng)
    c["head_dim"] = 16
    c["hidden_size"] = c["num_attention_heads"] * 16
    c.update(
        embedding_multiplier=rng.choice([1.0, 6.0]),
        residual_multiplier=rng.choice([1.0, 0.22]),
        attention_multiplier=rng.choice([0.0625, 0.25]),
        logits_scaling=rng.choice([1.0, 8.0]),
    )
    c["rope_parameters"] = rope(rng, 16, ("default", "linear"))
    return c


def gpt_oss(rng):
    c = heads(rng)
    n = rng.choice([4, 6])
    c.update(
        num_local_experts=n,
        num_experts_per_tok=rng.randint(1, n),
        sliding_window=WINDOW,
        attention_bias=rng.random() < 0.7,
        tie_word_embeddings=False,
        swiglu_limit=rng.choice([7.0, 0.5]),
        swiglu_alpha=rng.choice([1.702, 2.5]),
    )
    c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn"))
    return c


def deepseek(rng):
    c = heads(rng)
    n_group = rng.choice([1, 2, 4])
    c.update(
        num_key_value_heads=c["num_attention_heads"],
        q_lora_rank=rng.choice([None, 24]),
        kv_lora_rank=rng.choice([16, 32]),
        qk_nope_head_dim=rng.choice([8, 16]),
        qk_rope_head_dim=rng.choice([8, 16]),
        v_head_dim=rng.choice([8, 16, 24]),
        first_k_dense_replace=rng.choice([0, 1, 2, 9]),
        n_routed_experts=rng.choice([8, 16]),
        n_shared_experts=rng.choice([1, 2]),
        num_experts_per_tok=rng.choice([1, 2, 4]),
        moe_intermediate_size=16,
        n_group=n_group,
        topk_group=rng.randint(1, n_group),
        norm_topk_prob=rng.random() < 0.5,
        routed_scaling_factor=rng.choice([1.0, 2.5]),
        attention_bias=rng.random() < 0.3,
    )
    c["head_dim"] = c["qk_rope_head_dim"]
    c["rope_parameters"] = rope(rng, c["qk_rope_head_dim"], ("default", "yarn"))
    return c


def deepseek_v2(rng):
    c = deepseek(rng)
    c["mlp_bias"] = rng.random() < 0.4
    c["topk_method"] = "group_limited_greedy" if c["n_group"] > 1 else "greedy"
    return c


def deepseek_v3(rng):
    c = deepseek(rng)
    c["rope_interleave"] = rng.random() < 0.7
    return c


def smollm3(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3)
    c["no_rope_layers"] = [rng.randint(0, 1) for _ in range(c["num_hidden_layers"])]
    if rng.random() < 0.4:
        c.update(use_sliding_window=True, sliding_window=WINDOW)
        if rng.random() < 0.5:
            c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn"))
    return c


def starcoder2(rng):
    c = heads(rng)
    c["head_dim"] = None
    c["hidden_size"] = c["num_attention_heads"] * 16
    c.update(
        use_bias=rng.random() < 0.7,
        norm_epsilon=1e-5,
        sliding_window=rng.choice([None, WINDOW]),
        hidden_act=rng.choice(["gelu_pytorch_tanh", "gelu"]),
    )
    c["rope_parameters"] = rope(rng, 16, ("default", "linear"))
    return c


def stablelm(rng):
    c = heads(rng)
    c["head_dim"] = 16
    c["hidden_size"] = c["num_attention_heads"] * 16
    c.update(
        use_qkv_bias=rng.random() < 0.5,
        qk_layernorm=rng.random() < 0.5,
        use_parallel_residual=rng.random() < 0.5,
        layer_norm_eps=1e-5,
    )
    partial = rng.choice([0.25, 0.5, 1.0])
    c["rope_parameters"] = rope(rng, int(16 * partial), ("default",), partial_rotary_factor=partial)
    return c


def glm(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.5)
    partial = rng.choice([0.25, 0.5, 1.0])
    c["rope_parameters"] = rope(
        rng, int(c["head_dim"] * partial), ("default", "linear"), partial_rotary_factor=partial
    )
    return c


FAMILIES = {
    "llama": llama,
    "mistral": mistral,
    "mixtral": mixtral,
    "qwen2": qwen2,
    "qwen2_moe": qwen2_moe,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3_text,
    "phi3": phi3,
    "olmo2": olmo2,
    "granite": granite,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "smollm3": smollm3,
    "starcoder2": starcoder2,
    "stablelm": stablelm,
    "glm": glm,
    "glm4": glm,
}


def make(family, seed, folder):
    """Stores the model; returns what it is, in a line, and its dtype."""
    rng = random.Random(f"{family} {seed}")
    values = {**COMMON, **FAMILIES[family](rng)}
    values = {k: v for k, v in values.items() if k != "head_dim" or v is not None}
    sparse = rng.random() < 0.4
    if sparse:
        values = leave_to_the_class(rng, values)
    torch.manual_seed(seed_of(f"{family} {seed}"))
    config = AutoConfig.for_model(family, **values)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        fill_weights(model, torch.Generator().manual_seed(seed_of(f"{family} {seed}")))
    dtype = rng.choice([torch.bfloat16, torch.float16, torch.float32])
    model.to(dtype)
    if rng.random() < 0.3:  # some keep their norms or routers in another type
        for parameter in model.parameters():
            if rng.random() < 0.3:
                parameter.data = parameter.data.to(torch.float32)
    model.save_pretrained(folder, max_shard_size=rng.choice(["50KB", "1GB"]))
    per_layer = "full_attention" in (config.rope_parameters or {})
    # Phi keeps the original length elsewhere; GPT-OSS takes an absent scaling for its own yarn.
    legacy = not per_layer and family not in ("phi3", "gpt_oss") and rng.random() < 0.5
    write_config(folder, legacy)
    if sparse:
        leave_out(rng, folder, values, family)
    return f"{str(dtype)[6:]} legacy={legacy} sparse={sparse} {json.dumps(values)}", dtype


def expected(folder, prompts, dtype):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    ).eval()
    if "full_attention" not in (getattr(model.config, "rope_parameters", None) or {}):
        fix_rope_length(model)
    return [prompt_logprobs(logits_of(model, p), p) for p in prompts]


def answers(folder, request, prompts, *flags):
    """One answer a prompt, without usage; or a sentence."""
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
    """A scaling that depends on the length, served for no more than the model was trained for."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
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


def exact_problem(folder, prompts, want):
    have = served(folder, prompts, "float32")
    if isinstance(have, str):
        return have
    worst = max(errors(want, have))
    return None if worst <= TOLERANCE else f"off by {worst:.1e}"


def rounded_problem(folder, prompts, want, theirs):
    have = served(folder, prompts, "bfloat16")
    if isinstance(have, str):
        return have
    ours, theirs = errors(want, have), errors(want, theirs)
    ratio = sum(ours) / max(sum(theirs), 1e-3 * len(theirs))
    return None if ratio <= 2.0 else f"in bf16 {ratio:.2f} times transformers' error"


def check(family, seed, folder):
    told, dtype = make(family, seed, folder)
    rng = random.Random(seed)
    prompts = [[rng.randrange(3, 384) for _ in range(n)] for n in (9, 150)]
    want = expected(folder, prompts, torch.float32)
    theirs = expected(folder, prompts, torch.bfloat16) if dtype == torch.bfloat16 else None
    problem = short_problem(folder, prompts[0])
    if rng.random() < 0.3:  # transformers needs the index, we do not
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    problem = problem or exact_problem(folder, prompts, want)
    if not problem and theirs:
        problem = rounded_problem(folder, prompts, want, theirs)
    problem = problem or ways_problem(folder, prompts)
    if problem:
        print(f"{family} {seed} DIFFERS: {problem}\n    {told}", flush=True)
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
