# SPDX-License-Identifier: Apache-2.0
"""Keys of config.json in families whose layers keep a state: which may be missing or written differently without changing the
answer, and which values are refused by name."""
import json
import os

import pytest

from golden import FAMILIES
from test_checkpoint import run, scores
from test_family_keys import GONE, changed

FULL, LINEAR = "full_attention", "linear_attention"
LETTERS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}


def text(source):
    with open(os.path.join(FAMILIES, source, "config.json")) as f:
        return json.loads(f.read().replace("Infinity", "null"))


def words(source):
    return [LETTERS[letter] for letter in text(source)["hybrid_override_pattern"]]


def kimi(**more):
    """The keys that transformers 5 saves instead of linear_attn_config."""
    linear = text("kimi-linear")["linear_attn_config"]
    types = [FULL if i + 1 in linear["full_attn_layers"] else LINEAR for i in range(text("kimi-linear")["num_hidden_layers"])]
    return {"linear_attn_config": GONE, "layer_types": types, "linear_head_dim": linear["head_dim"],
            "linear_num_heads": linear["num_heads"], "linear_conv_kernel_dim": linear["short_conv_kernel_size"], **more}


def renamed(source, names):
    config = text(source)
    return {k: v for old, new in names.items() for k, v in ((old, GONE), (new, config[old]))}


SAME = {
    "kimi flat": lambda: ("kimi-linear", kimi()),
    "kimi by layer": lambda: ("kimi-linear", kimi(mlp_layer_types=[
        "dense" if i < text("kimi-linear")["first_k_dense_replace"] else "sparse"
        for i in range(text("kimi-linear")["num_hidden_layers"])])),
    "kimi other names": lambda: ("kimi-linear", renamed("kimi-linear", {
        "num_experts_per_token": "num_experts_per_tok", "moe_renormalize": "norm_topk_prob", "num_experts": "num_local_experts",
        "num_shared_experts": "n_shared_experts", "model_max_length": "max_position_embeddings"})),
    "ling other names": lambda: ("ling-3", renamed("ling-3", {
        "num_experts_per_tok": "num_experts_per_token", "n_group": "num_expert_group", "norm_topk_prob": "moe_renormalize",
        "max_position_embeddings": "model_max_length"})),
    "ling by layer": lambda: ("ling-3", {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 6, "first_k_dense_replace": GONE}),
    "nemotron words": lambda: ("nemotron-3-nano", {
        "hybrid_override_pattern": GONE, "num_hidden_layers": GONE, "layers_block_type": words("nemotron-3-nano")}),
    "nemotron proj bias": lambda: ("nemotron-nano-2", {"mamba_proj_bias": True}),  # ignored: use_bias decides
}


@pytest.mark.parametrize("which", SAME)
def test_other_spellings_give_the_same_answer(which, tmp_path):
    source, values = SAME[which]()
    assert scores(changed(tmp_path / "model", source, values)) == scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values", [
    ("kimi-linear", {"num_expert_group": 2, "topk_group": 1}),
    ("kimi-linear", {"moe_renormalize": False}),
    ("ling-3", {"num_expert_group": 2, "n_group": GONE}),
    ("ling-3", {"kda_safe_gate": False}),
])
def test_the_key_changes_the_answer(source, values, tmp_path):
    assert scores(changed(tmp_path / "model", source, values)) != scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values, named", [
    ("kimi-linear", {"num_expert_group": 4, "topk_group": 1, "num_experts_per_token": 3}, ["topk_group", "num_experts_per_tok"]),
    ("nemotron-nano-2", {"time_step_limit": [0.0, 0.9]}, ["time_step_limit"]),
    ("nemotron-nano-2", {"time_step_limit": [0.1, None]}, ["time_step_limit"]),
    ("nemotron-nano-2", {"time_step_min": 0.1}, ["time_step_min"]),
    ("nemotron-nano-2", {"use_bias": True}, ["in_proj.bias"]),  # read, but missing in the file
    ("bamba", {"partial_rotary_factor": 0.75}, ["partial_rotary_factor"]),
    ("minimax-1", {"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
    ("minimax-1", {"mlp_alpha_factor": 0}, ["mlp_alpha_factor"]),
    ("nemotron-3-super", {"mlp_bias": True}, ["fc1_latent_proj.bias"]),
    ("nemotron-nano-2", {"hybrid_override_pattern": "M-M-M-M-M-"}, ["no layer has attention"]),
    ("qwen3.5", {"layer_types": [LINEAR] * 8}, ["no layer has attention"]),
])
def test_what_is_not_supported_is_refused_by_name(source, values, named, tmp_path):
    done = run(changed(tmp_path / "model", source, values))
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in named), done.stderr


def test_u_0000_in_lists_of_modules_is_ignored(tmp_path):
    """As modelopt 0.47 writes them for Nemotron-H."""
    source = os.path.join(FAMILIES, "nemotron-3-nano")
    values = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head.\0backbone.x"]}}
    assert scores(changed(tmp_path / "model", "nemotron-3-nano", values)) == scores(source)
