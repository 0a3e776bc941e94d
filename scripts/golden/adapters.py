#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the adapters of test/golden-adapters, and their answers with PEFT, an independent implementation.

    pip install torch transformers peft                 # versions used: 2.15.0, 5.24.0, 0.21.2
    scripts/golden/adapters.py [NAME ...]

An adapter folder belongs to the model of the same name in test/golden or test/golden-families. Its weights are drawn when tests
run (test/model/seeded.py), so a folder has only their description, the config that PEFT reads, and the answers."""
import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

import torch
from transformers.pytorch_utils import Conv1D

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "test" / "model")]

import golden  # noqa: E402
import seeded  # noqa: E402

RANK, ALPHA = 4, 8
# What differs between the adapters: a pattern for the modules that they change, and keys of their config.
ROWS = {
    "llama-3": (r"", {}),
    "phi-3": (r"", {"use_rslora": True}),
    "qwen2-moe": (r"(attn|shared_expert)\.", {"rank_pattern": {"layers.1.self_attn.q_proj": 7, ".*shared_expert.down_proj": 2},
                                            "alpha_pattern": {"q_proj": 20}}),
    "deepseek-v3": (r"self_attn\.(?!kv_b)", {}),
    "gemma-3": (r"(q_proj|v_proj|down_proj)$", {"layers_to_transform": [0, 2, 5]}),
    "gpt-oss": (r"attn\.", {}),
    "starcoder2": (r"", {}),
    "qwen3.5": (r"", {}),
    "kimi-linear": (r"self_attn\.(?!kv_b)", {}),
    "falcon-h1": (r"(?<!out_proj)$", {}),
    "gemma-3n": (r"(self_attn|mlp|laurel)\.", {}),
    "gemma-4-e": (r"(self_attn|mlp)\.", {}),
    "gpt-neox": (r"", {}),
    "gpt2": (r"", {"fan_in_fan_out": True, "alpha_pattern": {"transformer.h.1.attn.c_attn": 20}}),
}
NEVER = re.compile(r"experts\.|router|\.gate$|shared_expert_gate$|visual|vision|per_layer")


def base_of(name):
    for group in ("golden", "golden-families"):
        folder = ROOT / "test" / group / name
        if folder.exists():
            return folder
    raise SystemExit(f"there is no model {name}")


def ranks_of(config, module):
    """PEFT's own rule."""
    for key, rank in config.get("rank_pattern", {}).items():
        if re.match(rf"(.*\.)?({key})$", module):
            return rank
    return RANK


def describe(name, model, pattern, config):
    layers = config.get("layers_to_transform")
    tensors, targets = [], []
    for module, layer in model.named_modules():
        number = re.search(r"(?:layers|h)\.(\d+)\.", module)
        if not isinstance(layer, (torch.nn.Linear, Conv1D)) or not number or NEVER.search(module) or not re.search(pattern, module):
            continue
        if layers and int(number[1]) not in layers:
            continue
        rank, prefix = ranks_of(config, module), f"base_model.model.{module}"
        targets.append(module)
        dtype = "F32" if module.endswith(("v_proj", "down_proj")) else "BF16"
        n_in, n_out = layer.weight.shape if isinstance(layer, Conv1D) else layer.weight.shape[::-1]
        tensors.append([f"{prefix}.lora_A.weight", [rank, n_in], 0.0, round(n_in**-0.5, 4), dtype])
        tensors.append([f"{prefix}.lora_B.weight", [n_out, rank], 0.0, 0.1, dtype])
    return join(tensors), targets


def join(tensors):
    """One row for all layers whose tensors are alike."""
    rows = {}
    for name, *rest in tensors:
        head, number, tail = re.fullmatch(r"(.*(?:layers|h)\.)(\d+)(\..*)", name).groups()
        rows.setdefault((head, tail, json.dumps(rest)), []).append(number)
    return [[f"{h}{{{','.join(n)}}}{t}" if len(n) > 1 else f"{h}{n[0]}{t}", *json.loads(rest)] for (h, t, rest), n in rows.items()]


def make(name):
    import peft

    pattern, more = ROWS[name]
    base, folder = base_of(name), ROOT / "test" / "golden-adapters" / name
    made = json.loads((base / "expected.json").read_text()).get("class")
    model = golden.load(base, made)[0]
    tensors, targets = describe(name, model, pattern, more)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "lora_dropout": 0.0,
              "target_modules": sorted({t.rsplit(".", 1)[1] for t in targets}), **more}
    folder.mkdir(parents=True, exist_ok=True)
    description = {"seed": f"adapter {name}", "file": "adapter_model.safetensors", "tensors": tensors}
    description["sha256"] = seeded.digest(description)
    rows = ",\n ".join(json.dumps(t) for t in tensors)
    text = json.dumps({k: v for k, v in description.items() if k != "tensors"})[:-1]
    (folder / "tensors.json").write_text(f'{text}, "tensors": [\n {rows}]}}\n')
    (folder / "adapter_config.json").write_text(json.dumps(config) + "\n")
    with tempfile.TemporaryDirectory() as whole:
        seeded.complete(str(folder), whole)
        exact = dict(config, target_modules=targets)  # the modules with tensors, by their whole names
        exact.pop("layers_to_transform", None)
        Path(whole, "adapter_config.json").unlink()
        Path(whole, "adapter_config.json").write_text(json.dumps(exact))
        adapted = peft.PeftModel.from_pretrained(model, whole).eval()
        made = {n.split(".lora_")[0].removeprefix("base_model.model.") for n, _ in adapted.named_parameters() if "lora_" in n}
        assert made == set(targets), made ^ set(targets)
        cases = []
        for n in (9, 40):
            prompt = golden.draw_prompt(f"adapter {name}", n, model)
            logits = golden.logits_of(adapted, prompt)
            cases.append({"prompt": prompt, "prompt_logprobs": [x and round(x, 5) for x in golden.prompt_logprobs(logits, prompt)],
                          "greedy": [g["id"] for g in golden.greedy(adapted, prompt)][:8]})
    (folder / "expected.json").write_text(json.dumps({"transformers": golden.transformers.__version__, "peft": peft.__version__,
                                                      "cases": cases}) + "\n")
    print(f"{name}: {len(targets)} modules")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(ROWS))
    for each in parser.parse_args().names:
        make(each)
