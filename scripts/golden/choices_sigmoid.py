# SPDX-License-Identifier: Apache-2.0
"""Random configurations of families with experts that are picked by sigmoids: functions of a random.Random."""

from choices import WINDOW, heads, layer_types, rope
from choices_experts import deepseek_v3, mlp_layer_types, picked
from choices_layers import glm4_moe


def afmoe(rng):
    c = heads(rng)
    n, k = picked(rng)
    c.update(
        attention_bias=rng.random() < 0.3,
        moe_intermediate_size=rng.choice([24, 40]),
        mup_enabled=rng.random() < 0.5,
        num_dense_layers=rng.choice([0, 1, 2]),
        num_experts=n,
        num_experts_per_tok=k,
        num_shared_experts=rng.choice([1, 2]),
        global_attn_every_n_layers=rng.choice([2, 3, 4]),
        route_scale=rng.choice([1.0, 2.826]),
        sliding_window=WINDOW,
    )
    if rng.random() < 0.6:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "yarn"))
    return c


def dots1(rng):
    c = glm4_moe(rng)
    del c["use_qk_norm"]
    c["max_window_layers"] = rng.randint(0, c["num_hidden_layers"])
    c["sliding_window"] = WINDOW
    if rng.random() < 0.4:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "yarn"))
    return c


def glm4v_moe(rng):
    c = glm4_moe(rng)
    del c["use_qk_norm"]
    ropes = c["rope_parameters"]
    pairs = int(c["head_dim"] * ropes["partial_rotary_factor"]) // 2
    first = rng.randint(0, pairs)
    ropes["mrope_section"] = [first, pairs - first, 0]
    ropes["rope_type"] = "default"
    return c


def sarvam_moe(rng):
    c = glm4_moe(rng)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "yarn"))
    return c


def sarvam_mla(rng):
    return deepseek_v3(rng)


def axk1(rng):
    c = deepseek_v3(rng)
    c["q_lora_rank"] = 24
    mlp_layer_types(rng, c)
    if "mlp_layer_types" not in c:
        c["moe_layer_freq"] = rng.choice([1, 2])
    return c


def laguna(rng):
    c = heads(rng)
    n, k = picked(rng)
    kv = c["num_key_value_heads"]
    c.update(
        attention_bias=rng.random() < 0.3,
        gating=rng.choice([True, "per-head", "per-element"]),
        moe_intermediate_size=rng.choice([24, 40]),
        moe_routed_scaling_factor=rng.choice([1.0, 2.5]),
        num_experts=n,
        num_experts_per_tok=k,
        shared_expert_intermediate_size=rng.choice([24, 56]),
        sliding_window=WINDOW,
    )
    if rng.random() < 0.7:
        more = [kv * i for i in (1, 2, 3)]
        c["num_attention_heads_per_layer"] = [rng.choice(more) for _ in range(c["num_hidden_layers"])]
    if rng.random() < 0.8:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    mlp_layer_types(rng, c)
    c["rope_parameters"] = {}
    for kind in ("full_attention", "sliding_attention"):
        partial = rng.choice([0.5, 1.0])
        one = rope(rng, int(c["head_dim"] * partial), ("default", "linear", "yarn"), partial_rotary_factor=partial)
        one.pop("truncate", None)  # transformers looks for it in the wrong place
        c["rope_parameters"][kind] = one
    return c


def mimo_v2_flash(rng):
    c = heads(rng)
    kv, groups = rng.choice([1, 2]), rng.choice([1, 2, 3])
    c.update(num_attention_heads=2 * kv * groups, num_key_value_heads=kv)  # sliding layers have twice as many
    c["head_dim"] = rng.choice([8, 32, 72, 128, 192])  # the class's share rotates an even number
    n_group = rng.choice([1, 2])
    c.update(
        attention_bias=rng.random() < 0.3,
        attention_value_scale=rng.choice([None, 0.707, 1.3]),
        moe_intermediate_size=rng.choice([24, 40]),
        n_group=n_group,
        n_routed_experts=8,
        norm_topk_prob=rng.random() < 0.7,
        num_experts_per_tok=rng.choice([1, 2, 4]),
        routed_scaling_factor=rng.choice([None, 2.5]),
        sliding_window=WINDOW,
        topk_group=rng.randint(1, n_group),
        v_head_dim=rng.choice([v for v in (8, 24, 128, 192) if v <= c["head_dim"]]),
    )
    if rng.random() < 0.8:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    mlp_layer_types(rng, c)
    c["rope_parameters"] = {}
    for kind in ("full_attention", "sliding_attention"):
        partial = rng.choice([0.5, 1.0])
        c["rope_parameters"][kind] = rope(
            rng, int(c["head_dim"] * partial), ("default", "linear"), partial_rotary_factor=partial
        )
    return c


def flint(rng):
    c = heads(rng)
    n, k = picked(rng)
    layers = c["num_hidden_layers"]
    c.update(
        attention_bias=rng.random() < 0.3,
        decoder_sparse_step=rng.choice([1, 1, 2]),
        mlp_only_layers=rng.choice([None, [], [0]]),
        moe_intermediate_size=rng.choice([24, 40]),
        norm_topk_prob=rng.random() < 0.7,
        num_experts=n,
        num_experts_per_tok=k,
        shared_expert_intermediate_size=rng.choice([24, 56]),
        sliding_window=WINDOW,
    )
    if rng.random() < 0.6:
        c["layer_types"] = layer_types(rng, layers)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "yarn"))
    return c


def kolibri1(rng):
    c = flint(rng)
    for key in ("attention_bias", "decoder_sparse_step", "mlp_only_layers"):
        del c[key]
    c["rms_norm_eps"] = rng.choice([1e-5, 1e-6])
    return c


def step3p5(rng):
    c = heads(rng)
    n, k = picked(rng)
    layers, kv = c["num_hidden_layers"], c["num_key_value_heads"]
    c.update(
        attention_bias=rng.random() < 0.3,
        layer_types=layer_types(rng, layers),
        mlp_bias=rng.random() < 0.3,
        moe_intermediate_size=rng.choice([24, 40]),
        moe_router_scaling_factor=rng.choice([1.0, 3.0]),
        n_routed_experts=n,
        num_experts_per_tok=k,
        num_sliding_attention_heads=kv * rng.choice([1, 2, 3]),
        share_expert_dim=rng.choice([24, 56]),
        sliding_window=WINDOW,
    )
    for key in ("swiglu_limits", "swiglu_limits_shared"):
        if rng.random() < 0.6:
            c[key] = [rng.choice([None, 0.0, 0.3, 1.0]) for _ in range(layers)]
    if rng.random() < 0.3:
        c["query_pre_attn_scalar"] = 24
    mlp_layer_types(rng, c)
    c["rope_parameters"] = {}
    for kind in ("full_attention", "sliding_attention"):
        partial = rng.choice([0.5, 1.0])
        kinds = ("default", "llama3") if kind == "full_attention" else ("default",)
        c["rope_parameters"][kind] = rope(rng, int(c["head_dim"] * partial), kinds, partial_rotary_factor=partial)
    return c


FAMILIES = {
    "step3p5": step3p5,
    "flint": flint,
    "kolibri1": kolibri1,
    "mimo_v2_flash": mimo_v2_flash,
    "laguna": laguna,
    "axk1": axk1,
    "afmoe": afmoe,
    "dots1": dots1,
    "glm4v_moe_text": glm4v_moe,
    "sarvam_moe": sarvam_moe,
    "sarvam_mla": sarvam_mla,
}
