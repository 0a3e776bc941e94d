# SPDX-License-Identifier: Apache-2.0
"""Random configurations of families whose layers keep a state: functions of a random.Random."""

from choices import WINDOW, heads, rope
from choices_experts import deepseek, mlp_layer_types, picked


def kinds(rng, n, full="full_attention", state="linear_attention"):
    """At least one layer of each kind."""
    drawn = [rng.choice([full, state, state]) for _ in range(n)]
    if len(set(drawn)) == 1:
        drawn[rng.randrange(n)] = state if drawn[0] == full else full
    return drawn


def several(rng):
    """Head counts for a model with both kinds of layers."""
    return {**heads(rng), "num_hidden_layers": rng.choice([2, 3, 5])}


def delta_net(rng, c):
    groups = rng.choice([1, 2, 3])
    c.update(
        attention_bias=rng.random() < 0.2,
        linear_num_key_heads=groups,
        linear_num_value_heads=groups * rng.choice([1, 2, 4]),
        linear_key_head_dim=rng.choice([8, 16, 24, 64]),
        linear_value_head_dim=rng.choice([8, 16, 40, 64]),
        linear_conv_kernel_dim=rng.choice([2, 3, 4, 4]),
    )
    c["head_dim"] = rng.choice([16, 32, 40, 72, 128, 192])
    if rng.random() < 0.7:
        c["layer_types"] = kinds(rng, c["num_hidden_layers"])
    else:
        c["full_attention_interval"] = rng.randint(1, min(3, c["num_hidden_layers"]))


def qwen3_5(rng):
    c = several(rng)
    delta_net(rng, c)
    partial = rng.choice([0.25, 0.5, 1.0])
    turned = int(c["head_dim"] * partial) // 2 * 2
    c["rope_parameters"] = rope(
        rng, turned, ("default", "yarn"), partial_rotary_factor=turned / c["head_dim"]
    )
    third = turned // 2 // 3
    c["rope_parameters"]["mrope_section"] = [turned // 2 - 2 * third, third, third]
    c["rope_parameters"]["mrope_interleaved"] = True
    return c


def shared_expert(rng, c):
    n, k = picked(rng)
    c.update(
        num_experts=n,
        num_experts_per_tok=k,
        moe_intermediate_size=rng.choice([24, 40]),
        shared_expert_intermediate_size=rng.choice([24, 56]),
    )


def qwen3_5_moe(rng):
    c = qwen3_5(rng)
    shared_expert(rng, c)
    return c


def qwen3_next(rng):
    c = qwen3_5(rng)
    for key in ("mrope_section", "mrope_interleaved"):
        del c["rope_parameters"][key]
    shared_expert(rng, c)
    c.update(
        norm_topk_prob=rng.random() < 0.5,
        decoder_sparse_step=rng.choice([1, 1, 2]),
        mlp_only_layers=rng.choice([[], [0]]),
    )
    return c


def latent(rng):
    """DeepSeek's sizes and router; classes name the rest differently."""
    c = {**deepseek(rng), "num_hidden_layers": rng.choice([2, 3, 5])}
    for key in ("attention_bias", "first_k_dense_replace", "head_dim", "rope_parameters"):
        del c[key]
    c["q_lora_rank"] = None
    c["num_local_experts"] = c.pop("n_routed_experts")
    return c


def kimi_linear(rng):
    c = latent(rng)
    n = c["num_hidden_layers"]
    c["layer_types"] = kinds(rng, n)
    mlp_layer_types(rng, c)
    c.update(
        linear_head_dim=rng.choice([8, 16, 24, 32]),
        linear_num_heads=rng.choice([1, 2, 3, 4]),
        linear_conv_kernel_dim=rng.choice([2, 4]),
    )
    return c


def bailing_hybrid(rng):
    c = latent(rng)
    del c["q_lora_rank"]
    c.update(
        head_dim=rng.choice([8, 16, 24, 32]),
        layer_group_size=rng.randint(1, min(3, c["num_hidden_layers"])),
        short_conv_kernel_size=rng.choice([2, 4]),
        kda_safe_gate=rng.random() < 0.6,
        kda_lower_bound=rng.choice([-5.0, -2.0]),
        num_mtp_layers=0,
        first_k_dense_replace=rng.choice([0, 1, 2]),
    )
    c["rope_theta"] = rng.choice([1e4, 6e6])
    return c


def mamba(rng, c, width=None):
    """`width`: that of all heads together, for classes that have no other key for it."""
    groups = rng.choice([1, 2, 4])
    n = groups * rng.choice([1, 2])
    if width is None:
        c["hidden_size"] = 16 * c["num_attention_heads"] if n in (1, 2) else 64
        while c["hidden_size"] % c["num_attention_heads"]:
            c.update(num_attention_heads=4, num_key_value_heads=rng.choice([1, 2, 4]))
        c["mamba_expand"] = rng.choice([1, 2])
        while c["mamba_expand"] * c["hidden_size"] % n:
            n, groups = 1, 1
        c["mamba_d_head"] = c["mamba_expand"] * c["hidden_size"] // n
    c.update(
        mamba_n_heads=n,
        mamba_n_groups=groups,
        mamba_d_state=rng.choice([8, 16, 24, 64]),
        mamba_d_conv=rng.choice([2, 3, 4, 4]),
        mamba_conv_bias=rng.random() < 0.7,
        mamba_proj_bias=rng.random() < 0.3,
        mamba_chunk_size=rng.choice([16, 32, 256]),
    )
    if rng.random() < 0.3:
        c["time_step_limit"] = rng.choice([[0.0, 0.9], [0.4, 1.5]])


def granitemoehybrid(rng):
    c = several(rng)
    del c["head_dim"]
    mamba(rng, c)
    if c["hidden_size"] // c["num_attention_heads"] % 2:
        c.update(num_attention_heads=4, num_key_value_heads=2)
    n, k = picked(rng)
    c.update(
        attention_bias=rng.random() < 0.3,
        embedding_multiplier=rng.choice([1.0, 6.0]),
        residual_multiplier=rng.choice([1.0, 0.22]),
        attention_multiplier=rng.choice([0.0625, 0.25]),
        logits_scaling=rng.choice([1.0, 8.0]),
        num_local_experts=rng.choice([0, n]),
        num_experts_per_tok=k,
        shared_intermediate_size=rng.choice([24, 56]),
        position_embedding_type=rng.choice([None, "nope", "rope"]),
        layer_types=kinds(rng, c["num_hidden_layers"]),
    )
    c["rope_parameters"] = rope(rng, 16, ("default", "linear"))
    return c


def bamba(rng):
    c = several(rng)
    del c["head_dim"]
    mamba(rng, c)
    if c["hidden_size"] // c["num_attention_heads"] % 4:
        c.update(num_attention_heads=4, num_key_value_heads=2)
    n = c["num_hidden_layers"]
    drawn = kinds(rng, n)
    c.update(
        attention_bias=rng.random() < 0.3,
        mlp_bias=rng.random() < 0.3,
        attn_layer_indices=[i for i in range(n) if drawn[i] == "full_attention"],
    )
    c["rope_parameters"] = rope(rng, 8, ("default", "linear"))
    return c


def falcon_h1(rng):
    c = several(rng)
    mamba(rng, c, width="mamba_d_ssm")
    size = rng.choice([8, 16, 24])
    c.update(
        mamba_d_head=size,
        mamba_d_ssm=size * c["mamba_n_heads"],
        mamba_proj_bias=False,
        mamba_rms_norm=rng.random() < 0.5,
        mamba_norm_before_gate=rng.random() < 0.5,
        ssm_multipliers=[rng.choice([0.5, 1.0, 1.4]) for _ in range(5)],
        mlp_multipliers=[rng.choice([0.5, 1.0, 1.4]) for _ in range(2)],
    )
    for key in ("ssm_in", "ssm_out", "attention_in", "attention_out", "key", "embedding", "lm_head"):
        c[f"{key}_multiplier"] = rng.choice([0.5, 1.0, 1.4])
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear"))
    return c


def nemotron_h(rng):
    c = several(rng)
    del c["rms_norm_eps"], c["num_hidden_layers"]
    mamba(rng, c, width="mamba_num_heads")
    size = rng.choice([8, 16, 24])
    groups = c.pop("mamba_n_groups")
    for key in ("mamba_d_conv", "mamba_conv_bias", "mamba_chunk_size", "time_step_limit"):
        c.pop(key, None)
    c.update(
        use_bias=rng.random() < 0.3,
        mlp_bias=rng.random() < 0.3,
        layer_norm_epsilon=rng.choice([1e-5, 1e-6]),
        mamba_num_heads=c.pop("mamba_n_heads"),
        mamba_head_dim=size,
        n_groups=groups,
        ssm_state_size=c.pop("mamba_d_state"),
        conv_kernel=rng.choice([2, 4]),
        use_conv_bias=rng.random() < 0.7,
        chunk_size=rng.choice([16, 128]),
    )
    kinds_of = ["linear_attention", "full_attention", "mlp", "moe"]
    n = rng.choice([2, 4, 6])
    c["layers_block_type"] = [rng.choice(kinds_of) for _ in range(n)]
    state, full = rng.sample(range(n), 2)
    c["layers_block_type"][state] = "linear_attention"
    c["layers_block_type"][full] = "full_attention"
    experts, k = picked(rng)
    c.update(
        n_routed_experts=experts,
        num_experts_per_tok=k,
        n_shared_experts=1,
        moe_intermediate_size=rng.choice([24, 40]),
        moe_shared_expert_intermediate_size=rng.choice([24, 56]),
        moe_latent_size=rng.choice([None, 16, 40]),
        norm_topk_prob=rng.random() < 0.7,
        routed_scaling_factor=rng.choice([1.0, 2.5]),
    )
    if rng.random() < 0.5 and experts % 2 == 0:
        c.update(n_group=2, topk_group=rng.choice([1, 2]))
        c["num_experts_per_tok"] = min(k, c["topk_group"] * experts // 2)
    return c


def lfm2(rng):
    c = several(rng)
    del c["rms_norm_eps"], c["head_dim"]
    c["hidden_size"] = 16 * c["num_attention_heads"]
    c.update(
        norm_eps=rng.choice([1e-5, 1e-6]),
        conv_bias=rng.random() < 0.4,
        conv_L_cache=rng.choice([2, 3, 4]),
        block_multiple_of=rng.choice([8, 32]),
        block_ffn_dim_multiplier=rng.choice([1.0, 1.5]),
        block_auto_adjust_ff_dim=rng.random() < 0.5,
    )
    drawn = kinds(rng, c["num_hidden_layers"], state="conv")
    if rng.random() < 0.5:
        c["layer_types"] = drawn
    else:
        c["full_attn_idxs"] = [i for i, kind in enumerate(drawn) if kind == "full_attention"]
    c["rope_parameters"] = rope(rng, 16, ("default", "linear"))
    return c


def lfm2_moe(rng):
    c = lfm2(rng)
    for key in ("block_multiple_of", "block_ffn_dim_multiplier", "block_auto_adjust_ff_dim"):
        del c[key]
    c.pop("full_attn_idxs", None)
    n, k = picked(rng)
    c.update(
        layer_types=kinds(rng, c["num_hidden_layers"], state="conv"),
        num_dense_layers=rng.choice([0, 1, 2]),
        num_experts=n,
        num_experts_per_tok=k,
        moe_intermediate_size=rng.choice([24, 40]),
        norm_topk_prob=rng.random() < 0.7,
        routed_scaling_factor=rng.choice([1.0, 2.5]),
        use_expert_bias=True,
    )
    return c


def lfm3(rng):
    c = several(rng)
    del c["rms_norm_eps"]
    gate = rng.random() < 0.7
    c.update(
        norm_eps=rng.choice([1e-5, 1e-6]),
        head_dim=rng.choice([8, 16, 32]),
        conv_bias=rng.random() < 0.4,
        conv_L_cache=rng.choice([3, 7]),
        sliding_window=WINDOW,
        use_sandwich_norm=rng.random() < 0.7,
        use_attention_gate=gate,
        attention_bias=not gate and rng.random() < 0.5,
    )
    n = c["num_hidden_layers"]
    kinds_of = ["conv", "full_attention", "sliding_attention"]
    c["layer_types"] = [rng.choice(kinds_of) for _ in range(n - 1)] + [rng.choice(kinds_of[1:])]
    whole = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": rng.choice([0.5, 1.0])}
    c["rope_parameters"] = {
        "sliding_attention": rope(rng, c["head_dim"], ("default",)),
        "full_attention": rng.choice([whole, rope(rng, c["head_dim"], ("default", "linear"))]),
    }
    return c


def olmo_hybrid(rng):
    c = several(rng)
    c["hidden_size"] = 16 * c["num_attention_heads"]
    del c["head_dim"]
    c.update(
        attention_bias=rng.random() < 0.3,
        linear_conv_kernel_dim=rng.choice([2, 4]),
        linear_allow_neg_eigval=rng.random() < 0.7,
    )
    if rng.random() < 0.7:
        n = rng.choice([1, 2, 3])
        c.update(linear_num_key_heads=n, linear_num_value_heads=n * rng.choice([1, 2]))
        c.update(linear_key_head_dim=rng.choice([8, 12]), linear_value_head_dim=rng.choice([8, 24]))
    c["layer_types"] = kinds(rng, c["num_hidden_layers"])
    no_positions = {"rope_type": "default", "rope_theta": None}
    c["rope_parameters"] = rng.choice([no_positions, rope(rng, 16, ("default", "linear"))])
    return c


def minimax(rng):
    c = heads(rng)
    n = c["num_hidden_layers"] = rng.choice([2, 3, 5])
    experts = rng.choice([3, 4, 8])
    c.update(num_local_experts=experts, num_experts_per_tok=rng.randint(2, experts), block_size=rng.choice([8, 64, 256]))
    c["layer_types"] = ["full_attention", *(rng.choice(["linear_attention", "full_attention"]) for _ in range(n - 1))]
    if rng.random() < 0.3:
        c["layer_types"] = ["linear_attention", "full_attention"] * 3
        c["layer_types"] = c["layer_types"][:n]
    if rng.random() < 0.3:
        c["sliding_window"] = WINDOW
    for kind in ("full_attn", "linear_attn", "mlp"):
        c[f"{kind}_alpha_factor"], c[f"{kind}_beta_factor"] = rng.choice([1, 3.5, 0.7]), rng.choice([1, 0.5, 2])
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn", "llama3"))
    return c


FAMILIES = {
    "minimax": minimax,
    "olmo_hybrid": olmo_hybrid,
    "lfm3": lfm3,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_5,
    "qwen3_5_moe_text": qwen3_5_moe,
    "kimi_linear": kimi_linear,
    "bailing_hybrid": bailing_hybrid,
    "granitemoehybrid": granitemoehybrid,
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "nemotron_h": nemotron_h,
    "lfm2": lfm2,
    "lfm2_moe": lfm2_moe,
}
