# SPDX-License-Identifier: Apache-2.0
"""Random configurations of families whose layers differ: functions of a random.Random."""

from choices import WINDOW, heads, layer_types, rope
from choices_experts import deepseek, mlp_layer_types, picked


def olmo3(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3, sliding_window=WINDOW)
    c.update(num_attention_heads=4, num_key_value_heads=rng.choice([1, 2, 4]))
    c.update(hidden_size=64, head_dim=16)
    if rng.random() < 0.7:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = {
        "full_attention": rope(rng, 16, ("default", "linear", "yarn")),
        "sliding_attention": rope(rng, 16, ("default",)),
    }
    c["rope_parameters"]["full_attention"].pop("truncate", None)  # transformers 5.23 looks for it in the wrong place
    return c


def cohere2(rng):
    c = heads(rng)
    del c["rms_norm_eps"]
    c["head_dim"] = 16
    c["hidden_size"] = c["num_attention_heads"] * 16
    c.update(
        attention_bias=rng.random() < 0.3,
        layer_norm_eps=1e-5,
        logit_scale=rng.choice([0.0625, 0.5, 1.0]),
        sliding_window=WINDOW,
        tie_word_embeddings=True,
    )
    if rng.random() < 0.7:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = rope(rng, 16, ("default", "linear"))
    return c


def minimax_m2(rng):
    c = heads(rng)
    n, k = picked(rng)
    c.update(num_local_experts=n, num_experts_per_tok=k)
    c["rotary_dim"] = c["head_dim"] // rng.choice([1, 2, 4]) // 2 * 2
    c["rope_parameters"] = rope(rng, c["rotary_dim"], ("default", "linear"))
    c["rope_parameters"]["partial_rotary_factor"] = c["rotary_dim"] / c["head_dim"]
    return c


def glm4_moe(rng):
    c = heads(rng)
    n_group = rng.choice([1, 2])
    c.update(
        attention_bias=rng.random() < 0.5,
        use_qk_norm=rng.random() < 0.5,
        first_k_dense_replace=rng.choice([0, 1, 2]),
        n_routed_experts=rng.choice([8, 16]),
        n_shared_experts=rng.choice([1, 2]),
        num_experts_per_tok=rng.choice([1, 2, 4]),
        moe_intermediate_size=rng.choice([24, 40]),
        n_group=n_group,
        topk_group=rng.randint(1, n_group),
        norm_topk_prob=rng.random() < 0.7,
        routed_scaling_factor=rng.choice([1.0, 2.5]),
    )
    partial = rng.choice([0.25, 0.5, 1.0])
    c["rope_parameters"] = rope(
        rng, int(c["head_dim"] * partial), ("default", "linear"), partial_rotary_factor=partial
    )
    return c


def solar_open(rng):
    c = glm4_moe(rng)
    del c["use_qk_norm"], c["first_k_dense_replace"]
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "yarn"))
    return c


def glm4_moe_lite(rng):
    c = deepseek(rng)
    c["rope_interleave"] = rng.random() < 0.7
    del c["first_k_dense_replace"]  # the class takes one dense layer, or a list
    mlp_layer_types(rng, c)
    return c


def llama4_text(rng):
    c = heads(rng)
    n, k = picked(rng)
    layers = c["num_hidden_layers"]
    c.update(
        attention_bias=rng.random() < 0.3,
        attention_chunk_size=rng.choice([16, 33, 64]),
        attn_temperature_tuning=rng.random() < 0.7,
        floor_scale=rng.choice([8, 16]),
        attn_scale=rng.choice([0.1, 0.3]),
        intermediate_size_mlp=rng.choice([48, 96]),
        interleave_moe_layer_step=rng.choice([1, 2]),
        num_local_experts=n,
        num_experts_per_tok=k,
        use_qk_norm=rng.random() < 0.7,
    )
    if rng.random() < 0.6:
        c["no_rope_layers"] = [rng.randint(0, 1) for _ in range(layers)]
    if rng.random() < 0.3:
        c["moe_layers"] = [i for i in range(layers) if rng.random() < 0.5]
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "llama3", "linear"))
    return c


def gemma4_layers(rng, n):
    """Kinds of layers, the last of which is full attention, and the number of final layers that share earlier keys and values."""
    kinds = layer_types(rng, n)
    kinds[-1] = "full_attention"
    room = [s for s in range(n) if set(kinds[: n - s]) == set(kinds)]
    return kinds, rng.choice(room) if rng.random() < 0.5 else 0


def gemma3n_text(rng):
    c = heads(rng)
    if c["hidden_size"] >= 64 and rng.random() < 0.3:
        c["num_hidden_layers"] = 11  # the class then closes gates of the first ten
        c["head_dim"] = 16  # unscaled products of larger heads would amplify rounding in so many layers
    n = c["num_hidden_layers"]
    kinds = layer_types(rng, n)
    room = [s for s in range(n) if set(kinds[: n - s]) == set(kinds)]
    streams = rng.choice([2, 3, 4, 4])
    c.update(
        attention_bias=rng.random() < 0.2,
        final_logit_softcapping=rng.choice([8.0, 30.0]),
        hidden_activation="gelu_pytorch_tanh",
        hidden_size_per_layer_input=rng.choice([8, 16]),
        vocab_size_per_layer_input=rng.choice([100, c["vocab_size"], 500]),
        altup_num_inputs=streams,
        altup_active_idx=rng.choice([0, 0, streams - 1]),
        altup_correct_scale=rng.random() < 0.7,
        laurel_rank=rng.choice([8, 12]),
        layer_types=kinds,
        num_kv_shared_layers=rng.choice(room) if rng.random() < 0.7 else 0,
        sliding_window=WINDOW,
        tie_word_embeddings=rng.random() < 0.8,
    )
    if rng.random() < 0.7:
        c["activation_sparsity_pattern"] = [rng.choice([0.0, 0.3, 0.5, 0.95]) for _ in range(n)]
    if rng.random() < 0.5:
        c["intermediate_size"] = [rng.choice([48, 96, 160]) for _ in range(n)]
    c["rope_parameters"] = {
        "full_attention": rope(rng, c["head_dim"], ("default", "linear", "yarn")),
        "sliding_attention": rope(rng, c["head_dim"], ("default",)),
    }
    c["rope_parameters"]["full_attention"].pop("truncate", None)  # as in olmo3
    return c


def gemma4_text(rng):
    c = heads(rng)
    n = c["num_attention_heads"]
    kinds, shared = gemma4_layers(rng, c["num_hidden_layers"])
    c.update(
        attention_bias=rng.random() < 0.2,
        attention_k_eq_v=rng.random() < 0.5,
        final_logit_softcapping=rng.choice([None, 30.0]),
        global_head_dim=rng.choice([16, 64, 128, 512]),
        num_global_key_value_heads=rng.choice([None] + [k for k in (1, 2, n) if n % k == 0]),
        hidden_activation="gelu_pytorch_tanh",
        hidden_size_per_layer_input=rng.choice([8, 16] if shared else [0, 0, 8]),  # transformers 5.23 requires it
        vocab_size_per_layer_input=c["vocab_size"],
        layer_types=kinds,
        num_kv_shared_layers=shared,
        use_double_wide_mlp=rng.random() < 0.5,
        sliding_window=WINDOW,
        tie_word_embeddings=True,
    )
    if rng.random() < 0.5:
        experts, k = picked(rng)
        c.update(enable_moe_block=True, num_experts=experts, top_k_experts=k)
        c["moe_intermediate_size"] = rng.choice([24, 40])
    full = {"rope_type": "proportional", "rope_theta": rng.choice([1e4, 1e6])}
    full["partial_rotary_factor"] = rng.choice([0.25, 0.5, 1.0])
    c["rope_parameters"] = {
        "full_attention": full,
        "sliding_attention": rope(rng, c["head_dim"], ("default",)),
    }
    return c


def gemma4_unified_text(rng):
    c = gemma4_text(rng)
    for key in list(c):
        if "per_layer" in key or "expert" in key or "moe" in key:
            del c[key]
    return c


FAMILIES = {
    "olmo3": olmo3,
    "cohere2": cohere2,
    "minimax_m2": minimax_m2,
    "glm4_moe": glm4_moe,
    "glm4_moe_lite": glm4_moe_lite,
    "solar_open": solar_open,
    "llama4_text": llama4_text,
    "gemma3n_text": gemma3n_text,
    "gemma4_text": gemma4_text,
    "gemma4_unified_text": gemma4_unified_text,
}
