# SPDX-License-Identifier: Apache-2.0
"""Sparse attention (DeepSeek V3.2, GLM-5, and by blocks MiniMax M3): the keys of config.json that describe the indexers; what a
model is when no row sees more keys than it may pick; the cache that the indexers' keys take. test_golden_families.py compares with
transformers, and test_cube.py the bits of all settings."""
import os
import re

import pytest

import golden
from golden import FAMILIES
from test_checkpoint import Checkpoint, dummy_scores, run, scores
from test_family_keys import GONE, changed

V32, GLM, M3 = "deepseek-v3.2", "glm-5", "minimax-m3"
LISTED = ["full", "full", "shared", "shared", "full"]  # as in GLM's golden folder
OLDER = {  # as in MiniMax M3's golden folder
    "use_sparse_attention": True, "sparse_attention_freq": [0, 1, 1, 1], "sparse_num_index_heads": 2, "sparse_index_dim": 24,
    "sparse_block_size": 8, "sparse_topk_blocks": 4, "sparse_local_block": 1, "sparse_score_type": "max", "sparse_init_block": 0}
FLAT = {"index_n_heads": 2, "index_head_dim": 24, "index_block_size": 8, "index_topk_blocks": 4, "index_local_blocks": 1}
KINDS = ["full_attention"] + ["minimax_m3_sparse"] * 3


def older(**values):
    return {"sparse_attention_config": {**OLDER, **values}}


@pytest.mark.parametrize("source, values", [
    (V32, {"layer_types": ["indexed_attention"] * 4, "indexer_rope_interleave": False, "moe_layer_freq": GONE}),
    (V32, {"mlp_layer_types": ["dense"] + ["sparse"] * 3, "first_k_dense_replace": GONE, "routed_scaling_factor": GONE}),
    (V32, {"index_topk_freq": 1, "index_topk_pattern": None, "indexer_types": None, "attention_bias": GONE}),
    (V32, {"indexer_types": ["full"] * 4, "index_topk_freq": 4}),  # a list takes precedence
    (V32, {"model_type": "glm_moe_dsa", "indexer_rope_interleave": False, "rms_norm_eps": 1e-6}),
    (GLM, {"model_type": "deepseek_v32"}),
    (GLM, {"indexer_rope_interleave": GONE, "rope_interleave": GONE, "rms_norm_eps": GONE, "n_group": GONE}),
    (GLM, {"indexer_types": GONE, "index_topk_freq": 3}),  # all layers before the offset, then every third
    (GLM, {"indexer_types": GONE, "index_topk_freq": 3, "index_skip_topk_offset": GONE}),
    (GLM, {"indexer_types": GONE, "index_topk_pattern": "FFSSF"}),
    (GLM, {"indexer_types": GONE, "index_topk_pattern": "FFSSFFFS"}),
    (GLM, {"indexer_types": GONE, "index_topk_pattern": LISTED}),
    (GLM, {"indexer_types": LISTED + ["shared"]}),
    (M3, {"sparse_attention_config": GONE, "layer_types": KINDS, **FLAT}),
    (M3, {**FLAT, "index_topk_blocks": 2, "index_block_size": 16}),  # the older object takes precedence
    (M3, {"layer_types": KINDS, **older(sparse_attention_freq=[1, 0, 1, 0])}),  # the list takes precedence
    (M3, {"sparse_attention_config": {"sparse_block_size": 8}, "layer_types": KINDS, **FLAT}),
    (M3, {"moe_layer_freq": GONE, "mlp_layer_types": ["dense"] + ["sparse"] * 3}),
    (M3, {"moe_layer_freq": [1] * 4, "mlp_layer_types": ["dense"] + ["sparse"] * 3}),
    (M3, {"rope_theta": GONE, "swiglu_alpha": GONE, "routed_scaling_factor": GONE, "rms_norm_eps": GONE, "hidden_act": "silu"}),
    (M3, {"rotary_dim": 16}),  # partial_rotary_factor takes precedence
    (M3, {"partial_rotary_factor": GONE}),
    (M3, {"use_gemma_norm": GONE, "qk_norm_type": GONE, "scoring_func": GONE, "n_shared_experts": 1}),
])
def test_other_spellings_give_the_same_answer(source, values, tmp_path):
    assert scores(changed(tmp_path / "model", source, values)) == scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values", [
    (V32, {"index_topk": 21}),
    (V32, {"index_topk": GONE}),
    (V32, {"indexer_rope_interleave": True}),
    (V32, {"index_topk_pattern": "FFSS"}),
    (GLM, {"index_topk": 19}),
    (GLM, {"indexer_rope_interleave": False}),
    (GLM, {"indexer_types": GONE}),
    (GLM, {"indexer_types": GONE, "index_topk_freq": 3, "index_skip_topk_offset": 3}),
    (M3, older(sparse_topk_blocks=5)),
    (M3, older(sparse_block_size=9)),
    (M3, older(sparse_local_block=0)),
    (M3, older(sparse_local_block=2)),
    (M3, {"layer_types": ["full_attention"] * 4}),
    (M3, {"swiglu_limit": 2.0}),
    (M3, {"swiglu_limit": GONE}),
    (M3, {"swiglu_alpha": 1.5}),
    (M3, {"routed_scaling_factor": 1.0}),
    (M3, {"partial_rotary_factor": GONE, "rotary_dim": 16}),
    (M3, {"rope_theta": 10000.0}),
])
def test_the_key_changes_the_answer(source, values, tmp_path):
    assert scores(changed(tmp_path / "model", source, values)) != scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values, named", [
    (V32, {"index_topk": 0}, ["index_topk", "from 1"]),
    (V32, {"index_topk": 1 << 31}, ["index_topk"]),
    (V32, {"index_n_heads": 5000}, ["index_n_heads", "from 1 to 1024"]),
    (V32, {"index_head_dim": 7}, ["index_head_dim", "qk_rope_head_dim"]),
    (V32, {"index_head_dim": 32}, ["indexer.wk.weight", "[24, 64]", "[32, 64]"]),
    (V32, {"q_lora_rank": None}, ["q_lora_rank"]),
    (V32, {"moe_layer_freq": 2}, ["moe_layer_freq"]),
    (V32, {"layer_types": ["indexed_attention", "linear_attention"] * 2}, ["linear_attention"]),
    (V32, {"rope_scaling": GONE, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, ["rope_parameters", "latent attention"]),
    (V32, {"layer_types": ["indexed_attention"] * 3 + ["sliding_attention"], "sliding_window": 8}, ["sliding_attention", "layer 3"]),
    ("kimi-k2", {"layer_types": ["chunked_attention"] * 4, "attention_chunk_size": 8}, ["chunked_attention", "latent"]),
    ("kimi-k2", {"layer_types": ["indexed_attention"] * 4}, ["indexed_attention"]),
    (GLM, {"indexer_types": LISTED[:4]}, ["indexer_types", "for each layer"]),
    (GLM, {"indexer_types": LISTED[:4] + ["half"]}, ["indexer_types", "shared"]),
    (GLM, {"indexer_types": ["shared"] * 5}, ["the first layer"]),
    (GLM, {"indexer_types": "FFSSF"}, ["indexer_types", "a list"]),
    (GLM, {"indexer_types": GONE, "index_topk_pattern": "FFSS"}, ["index_topk_pattern", "for each layer"]),
    (GLM, {"indexer_types": GONE, "index_topk_pattern": "FFSSX"}, ["index_topk_pattern", "for each layer"]),
    (GLM, {"indexer_types": GONE, "index_topk_pattern": 4}, ["index_topk_pattern", "a list or a string"]),
    (GLM, {"indexer_types": ["full"] * 4 + ["shared"], "index_topk_freq": -1}, ["index_topk_freq"]),
    (M3, older(sparse_num_index_heads=1), ["index_n_heads", "num_key_value_heads"]),
    (M3, older(sparse_index_dim=4), ["index_head_dim", "rotated"]),
    (M3, older(sparse_index_dim=300), ["sparse_index_dim", "from 1 to 256"]),
    (M3, older(sparse_index_dim=16), ["index_k_proj.weight", "[24, 64]", "[16, 64]"]),
    (M3, older(sparse_topk_blocks=1024), ["index_topk_blocks", "2048"]),
    (M3, older(sparse_local_block=5), ["index_local_blocks", "index_topk_blocks"]),
    (M3, older(sparse_block_size=0), ["sparse_block_size", "from 1"]),
    (M3, older(sparse_block_size="8"), ["sparse_attention_config.sparse_block_size", "an integer"]),
    (M3, older(sparse_attention_freq=[0, 1, 1]), ["sparse_attention_freq", "fewer"]),
    (M3, older(sparse_init_block=1), ["sparse_init_block"]),
    (M3, older(sparse_score_type="sum"), ["sparse_score_type", "sum"]),
    (M3, older(use_sparse_attention=False), ["use_sparse_attention"]),
    (M3, {"sparse_attention_config": [1]}, ["sparse_attention_config", "an object"]),
    (M3, {"moe_layer_freq": [0, 1]}, ["moe_layer_freq", "fewer"]),
    (M3, {"dense_intermediate_size": 95}, ["gate_proj.weight", "[96, 64]", "[95, 64]"]),
    (M3, {"layer_types": ["full_attention"] * 3 + ["sliding_attention"], "sliding_window": 8}, ["sliding_attention", "layer 3"]),
    (M3, {"layer_types": KINDS[:3] + ["indexed_attention_"]}, ["indexed_attention_"]),
    (M3, {"use_gemma_norm": False}, ["use_gemma_norm false"]),
    (M3, {"attention_output_gate": True}, ["attention_output_gate true"]),
    (M3, {"qk_norm_type": "per_layer"}, ["qk_norm_type", "per_layer"]),
    (M3, {"scoring_func": "softmax"}, ["scoring_func", "softmax"]),
    (M3, {"n_shared_experts": 2}, ["n_shared_experts"]),
    (V32, {"layer_types": ["minimax_m3_sparse"] * 4}, ["minimax_m3_sparse"]),
])
def test_what_is_not_supported_is_refused_by_name(source, values, named, tmp_path):
    done = run(changed(tmp_path / "model", source, values))
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in named), done.stderr


@pytest.mark.parametrize("source", [V32, GLM])
def test_with_as_many_picks_as_keys_it_is_deepseek_v3(source, tmp_path):
    """The same bits, with the indexers' weights among those of a product."""
    sparse = changed(tmp_path / "sparse", source, {"index_topk": 512})
    dense = changed(tmp_path / "dense", source, {"model_type": "deepseek_v3", "layer_types": GONE})
    for flags in ((), ("--kv-cache-dtype", "int8"), golden.CHUNKS):
        assert scores(sparse, *flags) == scores(dense, *flags)


def test_with_as_many_blocks_as_keys_attention_is_full(tmp_path):
    sparse = changed(tmp_path / "sparse", M3, older(sparse_topk_blocks=64))
    dense = changed(tmp_path / "dense", M3, {"layer_types": ["full_attention"] * 4})
    for flags in ((), ("--kv-cache-dtype", "int8"), golden.CHUNKS):
        assert scores(sparse, *flags) == scores(dense, *flags)


def block_bytes(folder):
    """Bytes per block of all layers, from the error about a pool that is too small."""
    said = run(folder, "--kv-cache-memory-bytes", "100", "--block-size", "16").stderr
    return int(re.search(r"give (\d+) or more", said)[1]) // 2


def test_the_cache_holds_a_key_for_each_indexer(tmp_path):
    dense = block_bytes(changed(tmp_path / "dense", GLM, {"model_type": "deepseek_v3"}))
    some = block_bytes(os.path.join(FAMILIES, GLM))
    every = block_bytes(changed(tmp_path / "every", GLM, {"indexer_types": ["full"] * 5}))
    assert (every - dense) * 3 == (some - dense) * 5 > 0


def test_the_cache_holds_a_key_for_each_sparse_layer(tmp_path):
    dense = block_bytes(changed(tmp_path / "dense", M3, {"layer_types": ["full_attention"] * 4}))
    one = block_bytes(changed(tmp_path / "one", M3, {"layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"]}))
    assert (one - dense) * 3 == block_bytes(os.path.join(FAMILIES, M3)) - dense > 0


@pytest.mark.parametrize("flags", [("--kv-cache-dtype", f) for f in ("fp8", "int8", "int4", "int8_per_token_head")])
def test_blocks_of_codes_have_the_bits_of_any_chunks_and_ranks(flags):
    folder = os.path.join(FAMILIES, M3)
    whole = scores(folder, *flags)
    assert whole == scores(folder, *flags, *golden.CHUNKS) == scores(folder, *flags, "--tensor-parallel-size", "2")
    assert whole != scores(folder)


def test_an_m3_indexer_s_missing_part_is_named(tmp_path):
    for part in ("index_q_proj", "index_k_proj", "index_q_norm", "index_k_norm"):
        copy = Checkpoint(tmp_path / part, os.path.join(FAMILIES, M3))
        del copy.header[f"language_model.model.layers.2.self_attn.{part}.weight"]
        copy.write()
        assert f"layers.2.self_attn.{part}.weight" in run(copy.folder).stderr


def test_missing_keys_have_the_class_s_defaults(tmp_path):
    bare = {"model_type": "minimax_m3_vl_text", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 384,
            "num_local_experts": 8, "layer_types": ["minimax_m3_sparse"] * 2, "index_topk_blocks": 1, "index_block_size": 4}
    usual = {"intermediate_size": 3072, "num_key_value_heads": 4, "head_dim": 128, "num_experts_per_tok": 4, "routed_scaling_factor": 2.0,
             "dense_intermediate_size": 12288, "shared_intermediate_size": 3072, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
             "rope_theta": 5e6, "index_n_heads": 4, "index_head_dim": 128, "index_local_blocks": 1, "rms_norm_eps": 1e-6,
             "mlp_layer_types": ["sparse"] * 2, "eos_token_id": 200020}
    assert dummy_scores(tmp_path / "bare", bare) == dummy_scores(tmp_path / "full", {**bare, **usual})


def test_modules_that_draft_are_refused():
    done = run(os.path.join(FAMILIES, M3), "--speculative-config", '{"method":"mtp","num_speculative_tokens":1}')
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_missing_part_of_an_indexer_is_named(tmp_path):
    for part in ("wq_b.weight", "wk.weight", "weights_proj.weight", "k_norm.weight", "k_norm.bias"):
        copy = Checkpoint(tmp_path / part, os.path.join(FAMILIES, GLM))
        for layer in (2, 4):  # the first of the two has the picks of another
            del copy.header[f"model.layers.{layer}.self_attn.indexer.{part}"]
        copy.write()
        said = run(copy.folder).stderr
        assert f"there is no tensor model.layers.4.self_attn.indexer.{part}" in said
