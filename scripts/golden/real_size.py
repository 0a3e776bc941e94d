#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare `sluice generate` with transformers on random models of real shapes.

    real_size.py --device cuda [--folder /dev/shm] [NAME ...]     a GPU, 6 GB of its memory, 4 GB in the folder
    real_size.py --device cpu --small                             the same in a minute without one

A tiny model does not reach the kernels that a real one runs: their tiles, splits and tables depend
on its sizes. So this makes a Llama of 1B, a Qwen3 of 1.7B and a Qwen3-MoE of 2.5 GB with random
weights, computes with transformers in fp32 and in bf16 on the same device, and compares:
  fp32  every prompt log-probability within 1e-3; greedy tokens equal, up to a first difference between two tokens that
        transformers rates within 2e-3 of each other
  bf16  teacher-forced, the mean error against transformers' fp32 at most twice that of its bf16
Needs torch, transformers 5 and a built program (SLUICE, or build/sluice). Exit 1 if any differs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from golden import draw_ids, prompt_logprobs, seed_of, write_config

ROOT = Path(__file__).resolve().parent.parent.parent
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
TOLERANCE = 1e-3
NEAR_TIE = 2 * TOLERANCE
BF16_FACTOR = 2.0
PROMPT_LENGTHS = (33, 128, 300)
N_GREEDY = 20

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1000000.0}

SHAPES = {
    "llama-1b": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_parameters": LLAMA3_ROPE,
    },
    "qwen3-1.7b": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
        "rope_parameters": PLAIN_ROPE,
    },
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
        "rope_parameters": PLAIN_ROPE,
    },
}
COMMON = {"max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SMALL = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_experts": 16,
}


def fill(model, name):
    """Random weights, with which a layer's outputs are about as large as its inputs, and logits are a few units."""
    device = model.lm_head.weight.device
    generator = torch.Generator(device).manual_seed(seed_of(name))
    for key, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32, device=device)
        if "norm" in key:
            noise = noise.mul_(0.1).add_(1.0)
        elif "embed_tokens" in key or "lm_head" in key:
            noise.mul_(2.5 / tensor.shape[-1] ** 0.5)
        else:
            noise.mul_(1.0 / tensor.shape[-1] ** 0.5)
        tensor.copy_(noise.to(torch.bfloat16))  # compute with the stored values


def make(name, shape, folder, device):
    """The model in fp32, and stored in bf16 in several shards."""
    config = AutoConfig.for_model(**{**COMMON, **shape})
    config._attn_implementation = "eager"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        rough = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        fill(model, name)
    rough.load_state_dict(model.state_dict())
    rough.save_pretrained(folder, max_shard_size="1GB")
    write_config(folder, False)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(ROOT / "test" / "golden" / "llama-2" / file, folder / file)
    return model, rough


@torch.no_grad()
def logits_of(model, ids):
    ids = torch.tensor([ids], device=model.device)
    return model(ids, use_cache=False).logits[0].float()


def greedy(model, prompt):
    """The log-probabilities at each step, each from a full pass without a cache."""
    ids, steps = list(prompt), []
    for _ in range(N_GREEDY):
        steps.append(torch.log_softmax(logits_of(model, ids)[-1], -1))
        ids.append(int(steps[-1].argmax()))
    return steps


def generate(folder, device, requests, *flags):
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    command = [SLUICE, "generate", str(folder), "--json", "--device", device, "--log-level", "error"]
    command += ["--max-model-len", "1k", "--kv-cache-memory-bytes", "1GiB", *flags]
    done = subprocess.run(command, input=lines, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(answers) != len(requests) or any("error" in a for a in answers):
        raise SystemExit(f"sluice: exit {done.returncode}\n{done.stdout[-500:]}\n{done.stderr}")
    return answers


def mean_error(want, have):
    return sum(abs(a - b) for a, b in zip(want, have)) / len(want)


def compare_greedy(steps, tokens):
    """None, or a description of the failure. After a near tie that is resolved differently the texts may diverge."""
    if len(tokens) != len(steps):
        return f"{len(tokens)} tokens instead of {len(steps)}"
    for i, (law, token) in enumerate(zip(steps, tokens)):
        best = int(law.argmax())
        if token != best:
            gap = float(law[best] - law[token])
            return None if gap <= NEAR_TIE else f"token {i} is {token}, not {best}: {gap:.4f} less"
    return None


def check(name, shape, folder, device):
    start = time.monotonic()
    model, rough = make(name, shape, folder, device)
    prompts = [draw_ids(f"{name} {n}", n, shape["vocab_size"]) for n in PROMPT_LENGTHS]
    exact = [prompt_logprobs(logits_of(model, p), p) for p in prompts]
    laws = [greedy(model, p) for p in prompts]
    own = [prompt_logprobs(logits_of(rough, p), p) for p in prompts]
    n_params = sum(p.numel() for p in model.parameters())
    del model, rough
    if device != "cpu":
        torch.cuda.empty_cache()
    made = time.monotonic()
    ask = [{"prompt_token_ids": p, "prompt_logprobs": True, "temperature": 0, "ignore_eos": True} for p in prompts]
    fp32 = generate(folder, device, [{**r, "max_tokens": N_GREEDY} for r in ask], "--dtype", "float32")
    bf16 = generate(folder, device, [{**r, "max_tokens": 1} for r in ask])
    problems = []
    for i, prompt in enumerate(prompts):
        have = fp32[i]["prompt_logprobs"][1:]
        worst = max(abs(a - b) for a, b in zip(exact[i], have))
        ours, theirs = mean_error(exact[i], bf16[i]["prompt_logprobs"][1:]), mean_error(exact[i], own[i])
        wrong = compare_greedy(laws[i], fp32[i]["outputs"][0]["token_ids"])
        print(f"{name:12} {len(prompt):4} tokens  fp32: largest {worst:.1e}, greedy {wrong or 'equal'}"
              f"  bf16: mean {ours:.4f}, transformers' own {theirs:.4f} ({ours / theirs:.2f})", flush=True)
        if len(have) != len(exact[i]) or worst > TOLERANCE or wrong or ours > BF16_FACTOR * theirs:
            problems.append(len(prompt))
    print(f"{name:12} {n_params / 1e9:.2f} G parameters, {made - start:.0f} s to make and compute, "
          f"{time.monotonic() - made:.0f} s for sluice: {'DIFFERS' if problems else 'ok'}", flush=True)
    return not problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"), help="folder for temporary models")
    parser.add_argument("--small", action="store_true", help="small shapes, to try this script")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SHAPES))
    args = parser.parse_args()
    if set(args.names) - set(SHAPES):
        parser.error(f"no such shape: {', '.join(sorted(set(args.names) - set(SHAPES)))}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    good = True
    for name in args.names or SHAPES:
        shape = SHAPES[name]
        if args.small:
            shape = {**shape, **{k: v for k, v in SMALL.items() if k in shape}}
        folder = args.folder / f"sluice-{name}-{os.getpid()}"
        folder.mkdir(parents=True)
        try:
            good = check(name, shape, folder, args.device) and good
        finally:
            shutil.rmtree(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
