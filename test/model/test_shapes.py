# SPDX-License-Identifier: Apache-2.0
"""configs/shapes: each shape has as many weights as its name says, the engine reads all its keys, and the shape runs if it is
scaled down with the same ratios. Families without a row in engine/model are skipped."""
import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess

import pytest

from golden import ROOT, SLUICE

SHAPES = os.path.join(ROOT, "configs", "shapes")
NAMES = sorted(name[: -len(".json")] for name in os.listdir(SHAPES))
SMALL = {
    "hidden_size": 64, "intermediate_size": 64, "intermediate_size_mlp": 96, "moe_intermediate_size": 32, "vocab_size": 384,
    "shared_intermediate_size": 32, "shared_expert_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32,
    "block_dim": 64, "block_ff_dim": 96, "block_multiple_of": 16, "max_position_embeddings": 512, "model_max_length": 512,
    "head_dim": 16, "global_head_dim": 32, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 16, "rotary_dim": 8, "sliding_window": 24, "attention_chunk_size": 32,
    "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_num_heads": 8, "mamba_d_head": 16, "mamba_head_dim": 16,
    "mamba_d_state": 16, "ssm_state_size": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "num_experts": 16, "n_routed_experts": 16, "num_local_experts": 16, "moe_num_experts": 16,
}


def bench_shapes():
    path = os.path.join(ROOT, "scripts", "bench_shapes")
    loader = importlib.machinery.SourceFileLoader("bench_shapes", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_shapes", loader))
    loader.exec_module(module)
    return module


def shape(name):
    with open(os.path.join(SHAPES, name + ".json")) as f:
        return json.load(f)


def shrunk(c):
    c = bench_shapes().cut({**c, "num_hidden_layers": min(c["num_hidden_layers"], 18)}, 1e9)
    small = {**c, **{key: value for key, value in SMALL.items() if c.get(key)}}
    group = c["num_attention_heads"] // c["num_key_value_heads"]
    small.update(num_attention_heads=2 * group, num_key_value_heads=2)
    if c.get("num_global_key_value_heads"):
        small["num_global_key_value_heads"] = 1
    for key in ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"):
        if key in c:
            small[key] = min(c[key], 3)
    if "index_block_size" in c:
        small.update(index_n_heads=2, index_block_size=4, index_topk_blocks=3)
    if "linear_num_key_heads" in c:
        ratio = c["linear_num_value_heads"] // c["linear_num_key_heads"]
        small.update(linear_num_key_heads=2, linear_num_value_heads=2 * ratio)
    if "linear_attn_config" in c:
        small["linear_attn_config"] = {**c["linear_attn_config"], "head_dim": 16, "num_heads": small["num_attention_heads"]}
    return small


@pytest.mark.parametrize("name", NAMES)
def test_the_size_matches_the_name(name):
    billions = float(re.search(r"-([\d.]+)b(?:-|$)", name)[1])
    total, always, single, n_sparse = bench_shapes().weights(shape(name))
    assert abs(total / 1e9 / billions - 1.0) < 0.08, total
    active = re.search(r"-a([\d.]+)b$", name)
    if active:
        read = always + n_sparse * single * bench_shapes().experts_of(shape(name))[1]
        assert abs(read / 1e9 / float(active[1]) - 1.0) < 0.3, read


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_are_read(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(shrunk(shape(name))))
    command = [SLUICE, "bench-engine", str(tmp_path), "--load-format", "dummy", "--device", "cpu", "--batch", "2",
               "--context", "40", "--steps", "2", "--max-num-batched-tokens", "64", "--max-model-len", "256"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if "the model_type" in done.stderr and "is not one of" in done.stderr:
        pytest.skip(f"not loaded yet: {shape(name)['model_type']}")
    assert done.returncode == 0, done.stderr
    assert "decode   batch    2" in done.stdout


def test_a_shape_loses_layers_until_it_fits():
    module = bench_shapes()
    whole = shape("k-exaone-236b-a23b")
    short = module.cut(whole, 100.0)
    assert 0 < short["num_hidden_layers"] < whole["num_hidden_layers"]
    assert module.weights(short)[0] * 2 <= 100e9 < module.weights({**short, "num_hidden_layers":
                                                                   short["num_hidden_layers"] + 1})[0] * 2
    once, many = (module.roofline(short, batch, 256, 4.3e12, 790e12) for batch in (1, 64))
    assert once < many < 64 * once


@pytest.mark.parametrize("name, kind, values", [("bamba-9.8b", "mamba", 128 * 64 * 128), ("qwen3.5-27b", "delta", 48 * 128 * 128),
                                                ("kimi-linear-48b-a3b", "delta", 32 * 128 * 128), ("lfm2-1.2b", "conv", 0)])
def test_the_roofline_counts_each_sequences_states(name, kind, values):
    module, c = bench_shapes(), shape(name)
    assert module.state(c, kind) == values
    n_layers = module.kinds(c)[0].count(kind)
    assert n_layers > 0
    bytes_of = [module.roofline(c, batch, 0, 1.0, 1e99) for batch in (1, 2)]  # no keys and values, no time to multiply
    if module.experts_of(c)[0] == 0:
        assert bytes_of[1] - bytes_of[0] == 4 * values * n_layers
    else:
        assert bytes_of[1] - bytes_of[0] > 4 * values * n_layers
