# SPDX-License-Identifier: Apache-2.0
"""Architectures of GGUF files whose families have no stored answers: a folder with random weights, whose family
scripts/golden/variants.py compares with transformers, and the file that llama.cpp's converter would write from it."""
import json
import os
import shutil

import numpy
import pytest

import golden
import gguf_archs
from gguf_files import BOOL, F32, U32
from test_gguf import refused
from test_gguf_archs import check_close, write_safetensors

COMMON = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "vocab_size": 384, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": False, "attention_bias": False}
ATTENTION = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64)}
NORMS = {"input_layernorm": (64,), "post_attention_layernorm": (64,)}
MLP = {"mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96)}
PLAIN = {"mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96)}


def experts(n, width):
    halves = {"gate_proj": (width, 64), "up_proj": (width, 64), "down_proj": (64, width)}
    return {"mlp.gate": (n, 64), **{"mlp.experts.%d.%s" % (i, half): shape for i in range(n) for half, shape in halves.items()}}


def shared(width):
    return {"mlp.shared_experts.gate_proj": (width, 64), "mlp.shared_experts.up_proj": (width, 64),
            "mlp.shared_experts.down_proj": (64, width)}


DOTS1 = {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 24, "n_group": 2,
         "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "sliding_window": None}
GRANITE = {"num_local_experts": 6, "num_experts_per_tok": 3, "shared_intermediate_size": 24, "embedding_multiplier": 6.0,
           "residual_multiplier": 0.5, "attention_multiplier": 0.125, "logits_scaling": 2.0, "tie_word_embeddings": True}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MELLUM = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True, "head_dim": 16,
          "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"], "mlp_layer_types": ["sparse"] * 2,
          "rope_parameters": {"full_attention": {**PLAIN_ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
                              "sliding_attention": PLAIN_ROPE}}
# family: (config, the shapes of a layer, those of the first layer if they differ, which of them have biases)
MODELS = {
    "arcee": ({"hidden_act": "relu2"}, {**ATTENTION, **NORMS, **PLAIN}, None, ()),
    "dots1": (DOTS1, {**ATTENTION, **NORMS, "self_attn.q_norm": (16,), "self_attn.k_norm": (16,), **experts(8, 24), **shared(48),
                      "mlp.gate.e_score_correction_bias": (8,)},
              {**ATTENTION, **NORMS, "self_attn.q_norm": (16,), "self_attn.k_norm": (16,), **MLP}, ()),
    "olmo": ({}, {**ATTENTION, **MLP}, None, ()),
    "olmoe": ({"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False, "intermediate_size": 24},
              {**ATTENTION, **NORMS, "self_attn.q_norm": (64,), "self_attn.k_norm": (32,), **experts(8, 24)}, None, ()),
    "mellum": (MELLUM, {**ATTENTION, **NORMS, "self_attn.q_norm": (16,), "self_attn.k_norm": (16,), **experts(8, 24)}, None, ()),
    "granitemoeshared": (GRANITE, {**ATTENTION, **NORMS, "block_sparse_moe.router.layer": (6, 64),
                                   "block_sparse_moe.input_linear": (6, 192, 64), "block_sparse_moe.output_linear": (6, 64, 96),
                                   "shared_mlp.input_linear": (48, 64), "shared_mlp.output_linear": (64, 24)}, None, ()),
    "jais2": ({"hidden_act": "relu2", "layer_norm_eps": 1e-5, "attention_bias": True, "mlp_bias": True},
              {**ATTENTION, **NORMS, **PLAIN}, None, ("_proj", "norm")),
    "phi": ({"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "num_key_value_heads": 4, "partial_rotary_factor": 0.5},
            {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (64, 64), "self_attn.v_proj": (64, 64), "self_attn.dense": (64, 64),
             "input_layernorm": (64,), "mlp.fc1": (96, 64), "mlp.fc2": (64, 96)}, None, ("_proj", "dense", "norm", "fc", "lm_head")),
}


def drawn(name, shape, rng):
    if "norm" in name and not name.endswith("bias"):
        return 1 + 0.1 * rng.standard_normal(shape)
    return 0.3 * rng.standard_normal(shape) / (1 if len(shape) == 1 else (shape[-1] / 64) ** 0.5)


def made(family, path):
    """The folder."""
    config, layer, first, with_bias = MODELS[family]
    config = {**COMMON, **config, "model_type": family}
    shapes = {"model.embed_tokens": (384, 64)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head"] = (384, 64)
    if family != "olmo":
        shapes["model.final_layernorm" if family == "phi" else "model.norm"] = (64,)
    for i in range(config["num_hidden_layers"]):
        shapes.update({"model.layers.%d.%s" % (i, part): shape for part, shape in (i == 0 and first or layer).items()})
    tensors, rng = {}, numpy.random.default_rng(5)
    for name, shape in shapes.items():
        stored = name if name.endswith("_bias") else name + ".weight"
        tensors[stored] = drawn(stored, shape, rng)
        if any(part in name for part in with_bias):
            tensors[name + ".bias"] = drawn(name + ".bias", shape[:1], rng)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(golden.GOLDEN, "qwen3", name), path)
    write_safetensors(path / "model.safetensors", tensors)
    return str(path)


@pytest.mark.parametrize("family", MODELS)
def test_files_answer_as_folders(family, tmp_path):
    folder = made(family, tmp_path / "folder")
    check_close(gguf_archs.convert(folder, str(tmp_path / "m.gguf")), folder)


@pytest.mark.parametrize("family, keys, words", [
    ("olmo", {"attention.clamp_kqv": (F32, 8.0)}, ["olmo.attention.clamp_kqv is 8"]),
    ("olmo", {"attention.layer_norm_epsilon": (F32, 1e-6)}, ["olmo.attention.layer_norm_epsilon is"]),
    ("dots1", {"expert_gating_func": (U32, 1)}, ["dots1.expert_gating_func is 1"]),
    ("olmoe", {"expert_weights_scale": (F32, 2.0)}, ["olmoe.expert_weights_scale is 2"]),
    ("mellum", {"rope.freq_base_swa": (F32, 5.0)}, ["mellum.rope.freq_base_swa or dimension_count_swa unlike"]),
    ("granitemoeshared", {"rope.scaling.finetuned": (BOOL, False)}, ["granitemoe.rope.scaling.finetuned is false"]),
])
def test_keys_that_are_not_supported_are_named(family, keys, words, tmp_path):
    refused(gguf_archs.convert(made(family, tmp_path / "folder"), str(tmp_path / "m.gguf"), more=keys), *words)
