# SPDX-License-Identifier: Apache-2.0
"""Random configurations of families with experts: functions of a random.Random."""

from choices import WINDOW, heads, layer_types, qwen_windows, rope
from choices_dense import exaone4, granite, granite_windows, hunyuan_rope, mistral, olmo2, query_growth


def mixtral(rng):
    c = mistral(rng)
    n = rng.choice([3, 4, 8])
    c.update(num_local_experts=n, num_experts_per_tok=rng.randint(1, n))
    return c


def aria_text(rng):
    c = heads(rng)
    n = rng.choice([3, 4, 8])
    c.update(
        moe_num_experts=n,
        moe_topk=rng.randint(1, n),
        moe_num_shared_experts=rng.choice([1, 2]),
        attention_bias=rng.random() < 0.3,
        mlp_bias=rng.random() < 0.3,
    )
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "llama3", "yarn"))
    return c


def phimoe(rng):
    c = mistral(rng)
    del c["head_dim"]  # the class derives the size of heads
    c["hidden_size"] = c["num_attention_heads"] * rng.choice([8, 16, 32])
    c.update(
        num_local_experts=rng.choice([3, 4, 16]),
        num_experts_per_tok=2,
        router_jitter_noise=rng.choice([0.01, 0.2, 0.4]),
        attention_bias=rng.random() < 0.5,
        lm_head_bias=rng.random() < 0.5,
    )
    if c["lm_head_bias"]:
        c["tie_word_embeddings"] = False
    dim = c["hidden_size"] // c["num_attention_heads"]
    c["rope_parameters"] = rope(rng, dim, ("default", "longrope"))
    if c["rope_parameters"]["rope_type"] == "longrope":  # the class has only the frequencies of short texts
        c["rope_parameters"].update(short_mscale=1.2, long_mscale=1.2, original_max_position_embeddings=512, factor=1.0)
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


def qwen3_moe(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3)
    qwen_experts(rng, c)
    if rng.random() < 0.5:  # this family has windows on all layers
        c.update(use_sliding_window=True, sliding_window=WINDOW)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn"))
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
    while c["topk_group"] * c["n_routed_experts"] // n_group < c["num_experts_per_tok"]:
        c["topk_group"] += 1  # otherwise the remaining picks are undefined
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


def longcat_flash(rng):
    c = deepseek(rng)
    for key in ("n_shared_experts", "first_k_dense_replace", "n_group", "topk_group", "norm_topk_prob"):
        del c[key]
    c.update(
        num_hidden_layers=2 * rng.choice([1, 2, 3]),  # two in each layer of its files
        num_experts_per_tok=rng.choice([2, 3, 5]),  # its class fails with one
        zero_expert_num=rng.choice([0, 1, 4, 11]),
        q_lora_rank=rng.choice([16, 24]),
    )
    return c


def deepseek_v32(rng):
    c = deepseek(rng)
    c.update(
        q_lora_rank=rng.choice([24, 40]),
        index_topk=rng.choice([1, 8, 17, 40, 64]),
        index_n_heads=rng.choice([1, 2, 4, 8, 11, 16]),
        index_head_dim=c["qk_rope_head_dim"] + rng.choice([0, 8, 16, 24]),
    )
    mlp_layer_types(rng, c)
    return c


def glm_moe_dsa(rng):
    c = deepseek_v32(rng)
    n = c["num_hidden_layers"]
    if rng.random() < 0.4:
        c["indexer_types"] = ["full", *(rng.choice(["full", "shared"]) for _ in range(n - 1))]
    elif rng.random() < 0.6:
        c.update(index_topk_freq=rng.choice([2, 3]), index_skip_topk_offset=rng.choice([1, 2, 3]))
    return c


def hy_v4(rng):
    c = deepseek_v32(rng)
    del c["first_k_dense_replace"]  # the class takes one dense layer, or a list
    n = c["num_hidden_layers"]
    c.update(
        hc_mult=rng.choice([1, 2, 3, 4, 4]),
        hc_magnitude=rng.choice([2.0, 0.7]),
        hc_eps=rng.choice([1e-6, 1e-2]),
        swiglu_limit=rng.choice([10.0, 0.5]),
        pad_token_id=None,  # the class sets the embedding of this token to zero when it loads a model
    )
    if rng.random() < 0.5:
        c["indexer_types"] = ["full", *(rng.choice(["full", "shared"]) for _ in range(n - 1))]
    return c


def axk2(rng):
    c = deepseek_v32(rng)
    c["gated_norm_rank"] = rng.choice([4, 8, 16])
    if c["n_group"] == 1:
        c.update(n_group=None, topk_group=None)
    return c


ROUTING = ("first_k_dense_replace", "moe_intermediate_size", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor")


def youtu(rng):
    """The attention without experts."""
    c = deepseek_v3(rng)
    c["pad_token_id"] = None  # the class sets the embedding of this token to zero when it loads a model
    return {k: v for k, v in c.items() if "expert" not in k and k not in ROUTING}


def minicpm3(rng):
    c = youtu(rng)
    del c["rope_interleave"]
    c.update(
        scale_emb=rng.choice([1, 12, 3.3]),
        scale_depth=rng.choice([None, 1.4, 0.7]),
        dim_model_base=rng.choice([None, 16, 256]),
        mlp_bias=rng.random() < 0.3,
        v_head_dim=rng.choice([None, c["v_head_dim"]]),
    )
    return c


def mistral4(rng):
    c = deepseek(rng)
    rotated, other = rng.choice([(8, 8), (16, 16), (8, 24)])  # a fraction that divides evenly
    c.update(qk_rope_head_dim=rotated, qk_nope_head_dim=other)
    c.update(n_group=1, topk_group=1, rope_interleave=True, head_dim=None)
    c["rope_parameters"] = rope(rng, c["qk_rope_head_dim"], ("yarn",))  # the class has no other kind
    query_growth(rng, c)
    return c


def picked(rng):
    n = rng.choice([4, 6, 8])
    return n, rng.randint(1, n)


def mlp_layer_types(rng, c):
    if rng.random() < 0.6:
        n = c["num_hidden_layers"]
        c["mlp_layer_types"] = [rng.choice(["dense", "sparse"]) for _ in range(n)]


def ernie4_5_moe(rng):
    c = heads(rng)
    n, k = picked(rng)
    c.update(
        moe_num_experts=n,
        moe_k=k,
        moe_intermediate_size=rng.choice([24, 40]),
        moe_num_shared_experts=rng.choice([0, 1, 2]),
        moe_layer_interval=rng.choice([1, 1, 2]),
        moe_layer_start_index=rng.choice([0, 1, 2]),
        moe_layer_end_index=rng.choice([-1, -1, 1]),
    )
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear"))
    return c


def hunyuan_v1_moe(rng):
    c = heads(rng)
    n, k = picked(rng)
    c.update(attention_bias=rng.random() < 0.3, num_experts=n)
    c["moe_topk"] = rng.choice([k, [k] * c["num_hidden_layers"]])
    c["rope_parameters"] = hunyuan_rope(rng, c["head_dim"])
    return c


def hy_v3(rng):
    c = heads(rng)
    n, k = picked(rng)
    c.update(
        attention_bias=rng.random() < 0.3,
        mlp_bias=rng.random() < 0.3,
        num_experts=n,
        num_experts_per_tok=k,
        num_shared_experts=rng.choice([1, 2]),
        moe_intermediate_size=rng.choice([24, 40]),
        router_scaling_factor=rng.choice([1.0, 2.826]),
    )
    mlp_layer_types(rng, c)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn"))
    return c


def exaone_moe(rng):
    c = exaone4(rng)
    if not c["sliding_window"]:  # the class requires a number here
        c.update(sliding_window=WINDOW)
    n_group = rng.choice([1, 2])
    c.update(
        num_experts=8,
        num_experts_per_tok=rng.choice([1, 2, 4]),
        num_shared_experts=rng.choice([1, 2]),
        moe_intermediate_size=rng.choice([24, 40]),
        n_group=n_group,
        topk_group=rng.randint(1, n_group),
        norm_topk_prob=rng.random() < 0.7,
        routed_scaling_factor=rng.choice([1.0, 2.5]),
        first_k_dense_replace=rng.choice([0, 1, 2]),
    )
    mlp_layer_types(rng, c)
    return c


def granitemoe(rng):
    c = granite(rng)
    n, k = picked(rng)
    c.update(num_local_experts=n, num_experts_per_tok=k)
    del c["mlp_bias"]  # not a key of this class
    return c


def granitemoeshared(rng):
    return {**granitemoe(rng), "shared_intermediate_size": rng.choice([0, 24, 56])}


def granitemoe_swa(rng):
    return granite_windows(rng, granitemoeshared(rng))


def flex_olmo(rng):
    c = olmo2(rng)
    n, k = picked(rng)
    c.update(num_experts=n, num_experts_per_tok=k, norm_topk_prob=rng.random() < 0.5)
    return c


def cohere2_moe(rng):
    c = heads(rng)
    n, k = picked(rng)
    dense = rng.choice([0, 0, 1, 2])
    c.update(
        attention_bias=rng.random() < 0.3,
        expert_selection_fn=rng.choice(["softmax", "sigmoid"]),
        layer_norm_eps=1e-5,
        logit_scale=rng.choice([0.0625, 0.5, 1.0]),
        norm_topk_prob=rng.random() < 0.5,
        num_experts=n,
        num_experts_per_tok=k,
        num_shared_experts=rng.choice([0, 1, 2]),
        prefix_dense_intermediate_size=rng.choice([None, 56]),
        prefix_dense_sliding_window_pattern=rng.choice([1, 2, 3]),
        rms_norm_eps=rng.choice([None, 1e-5]),
        shared_expert_combination_strategy=rng.choice(["average", "sum"]),
        sliding_window=WINDOW,
        sliding_window_pattern=rng.choice([2, 3, 4]),
    )
    if rng.random() < 0.4:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    if rng.random() < 0.6:
        c["mlp_layer_types"] = [rng.choice(["dense", "sparse"]) for _ in range(c["num_hidden_layers"])]
    elif dense <= c["num_hidden_layers"]:
        c["first_k_dense_replace"] = dense
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default",))  # the class ignores rope_scaling
    return c


def mellum(rng):
    c = heads(rng)
    n, k = picked(rng)
    c.update(
        attention_bias=rng.random() < 0.3,
        moe_intermediate_size=rng.choice([24, 40]),
        norm_topk_prob=rng.random() < 0.7,
        num_experts=n,
        num_experts_per_tok=k,
        sliding_window=WINDOW,
    )
    if rng.random() < 0.8:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    mlp_layer_types(rng, c)
    c["rope_parameters"] = {
        kind: rope(rng, c["head_dim"], ("default", "linear", "yarn"))
        for kind in ("full_attention", "sliding_attention")
    }
    for one in c["rope_parameters"].values():
        one.pop("truncate", None)  # transformers looks for it in the wrong place
    return c


def qwen3_omni_moe(rng):
    c = qwen3_moe(rng)
    for key in ("use_sliding_window", "sliding_window"):
        c.pop(key, None)
    c["mlp_only_layers"] = rng.choice([[], [0]])
    return c


FAMILIES = {
    "qwen3_omni_moe_text": qwen3_omni_moe,
    "granitemoe": granitemoe,
    "granitemoeshared": granitemoeshared,
    "granitemoe_swa": granitemoe_swa,
    "olmoe": flex_olmo,
    "flex_olmo": flex_olmo,
    "cohere2_moe": cohere2_moe,
    "mellum": mellum,
    "mixtral": mixtral,
    "phimoe": phimoe,
    "aria_text": aria_text,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "longcat_flash": longcat_flash,
    "youtu": youtu,
    "minicpm3": minicpm3,
    "kimi_k2": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "glm_moe_dsa": glm_moe_dsa,
    "hy_v4": hy_v4,
    "axk2": axk2,
    "mistral4": mistral4,
    "ernie4_5_moe": ernie4_5_moe,
    "hunyuan_v1_moe": hunyuan_v1_moe,
    "hy_v3": hy_v3,
    "exaone_moe": exaone_moe,
}
