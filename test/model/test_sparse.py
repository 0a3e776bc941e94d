# SPDX-License-Identifier: Apache-2.0
"""Sparse attention (DeepSeek V3.2, GLM-5): the keys of config.json that describe the indexers; what a model is when no row sees
more keys than it may pick; the cache that the indexers' keys take. test_golden_families.py compares with transformers, and
test_cube.py the bits of all settings."""
import os
import re

import pytest

import golden
from golden import FAMILIES
from test_checkpoint import Checkpoint, run, scores
from test_family_keys import GONE, changed

V32, GLM = "deepseek-v3.2", "glm-5"
LISTED = ["full", "full", "shared", "shared", "full"]  # as in GLM's golden folder


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


def block_bytes(folder):
    """Bytes per block of all layers, from the error about a pool that is too small."""
    said = run(folder, "--kv-cache-memory-bytes", "100", "--block-size", "16").stderr
    return int(re.search(r"give (\d+) or more", said)[1]) // 2


def test_the_cache_holds_a_key_for_each_indexer(tmp_path):
    dense = block_bytes(changed(tmp_path / "dense", GLM, {"model_type": "deepseek_v3"}))
    some = block_bytes(os.path.join(FAMILIES, GLM))
    every = block_bytes(changed(tmp_path / "every", GLM, {"indexer_types": ["full"] * 5}))
    assert (every - dense) * 3 == (some - dense) * 5 > 0


def test_a_missing_part_of_an_indexer_is_named(tmp_path):
    for part in ("wq_b.weight", "wk.weight", "weights_proj.weight", "k_norm.weight", "k_norm.bias"):
        copy = Checkpoint(tmp_path / part, os.path.join(FAMILIES, GLM))
        for layer in (2, 4):  # the first of the two has the picks of another
            del copy.header[f"model.layers.{layer}.self_attn.indexer.{part}"]
        copy.write()
        said = run(copy.folder).stderr
        assert f"there is no tensor model.layers.4.self_attn.indexer.{part}" in said
