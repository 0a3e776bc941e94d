# SPDX-License-Identifier: Apache-2.0
"""Random configurations of the families before Llama: functions of a random.Random."""

from choices import rope


def sizes(rng, heads=(1, 2, 4, 6, 7), dims=(8, 16, 24)):
    """The heads fill the hidden size. Their number of keys, which these classes ignore, stays that of COMMON."""
    n = rng.choice(heads)
    return {"num_attention_heads": n, "num_key_value_heads": 1, "hidden_size": n * rng.choice(dims)}


def mlp(rng, c, key):
    """The width has another name in each class, which ignores the usual one."""
    c[key] = rng.choice([None if key != "ffn_dim" else 200, 96, 136])


def gpt(rng):
    c = sizes(rng)
    mlp(rng, c, "n_inner")
    c.update(
        layer_norm_epsilon=rng.choice([1e-5, 1e-6]),
        scale_attn_weights=rng.random() < 0.8,
        activation_function=rng.choice(["gelu_new", "gelu_new", "relu", "gelu"]),
        tie_word_embeddings=rng.random() < 0.7,
        max_position_embeddings=rng.choice([160, 512]),
    )
    return c


def gpt2(rng):
    return {**gpt(rng), "reorder_and_upcast_attn": rng.random() < 0.3}


def gpt_bigcode(rng):
    c = {**gpt(rng), "multi_query": rng.random() < 0.6}
    c["activation_function"] = rng.choice(["gelu_pytorch_tanh", "gelu_pytorch_tanh", "gelu"])
    return c


def gpt_neo(rng):
    c = sizes(rng)
    n = rng.choice([1, 2, 3, 4])
    kinds = [[[rng.choice(["global", "local"])], 1] for _ in range(n)]
    c.update(
        num_hidden_layers=n,
        attention_types=[[["global", "local"], n // 2]] if n % 2 == 0 and rng.random() < 0.5 else kinds,
        window_size=rng.choice([1, 24, 256]),
        intermediate_size=rng.choice([None, 96, 136]),
        layer_norm_epsilon=rng.choice([1e-5, 1e-6]),
        activation_function=rng.choice(["gelu_new", "relu", "gelu"]),
        tie_word_embeddings=rng.random() < 0.7,
        max_position_embeddings=rng.choice([160, 512]),
    )
    return c


def biogpt(rng):
    c = sizes(rng)
    c.update(
        intermediate_size=rng.choice([96, 136]),
        hidden_act=rng.choice(["gelu", "relu"]),
        scale_embedding=rng.random() < 0.7,
        tie_word_embeddings=rng.random() < 0.7,
        max_position_embeddings=rng.choice([160, 512]),
    )
    return c


def xglm(rng):
    c = biogpt(rng)
    c.update(ffn_dim=c.pop("intermediate_size"), activation_function=c.pop("hidden_act"), add_cross_attention=False)
    return c


def opt(rng):
    c = sizes(rng)
    mlp(rng, c, "ffn_dim")
    c.update(
        activation_function=rng.choice(["relu", "relu", "gelu"]),
        enable_bias=rng.random() < 0.7,
        layer_norm_elementwise_affine=rng.random() < 0.7,
        tie_word_embeddings=rng.random() < 0.7,
        word_embed_proj_dim=rng.choice([None, c["hidden_size"]]),
        max_position_embeddings=rng.choice([160, 512]),
    )
    return c


def gpt_neox(rng):
    c = sizes(rng)
    partial = rng.choice([0.25, 0.25, 0.5, 1.0])
    dim = int(c["hidden_size"] // c["num_attention_heads"] * partial)
    c.update(
        layer_norm_eps=rng.choice([1e-5, 1e-6]),
        use_parallel_residual=rng.random() < 0.6,
        attention_bias=rng.random() < 0.7,
        hidden_act=rng.choice(["gelu", "gelu", "gelu_new"]),
        tie_word_embeddings=rng.random() < 0.3,
        rope_parameters=rope(rng, dim, ("default", "default", "linear"), partial_rotary_factor=partial),
    )
    return c


def falcon(rng):
    c = sizes(rng, (1, 2, 4, 6, 8))
    mlp(rng, c, "ffn_hidden_size")
    new = rng.random() < 0.5
    kv = [n for n in (1, 2, 4) if c["num_attention_heads"] % n == 0]
    c.update(
        new_decoder_architecture=new,
        multi_query=rng.random() < 0.5,
        parallel_attn=new or rng.random() < 0.6,
        num_kv_heads=rng.choice(kv) if new else c["num_attention_heads"],
        num_ln_in_parallel_attn=rng.choice([None, 1, 2]) if new else None,
        bias=rng.random() < 0.4,
        layer_norm_epsilon=rng.choice([1e-5, 1e-6]),
        activation=rng.choice(["gelu", "gelu", "relu"]),
        tie_word_embeddings=rng.random() < 0.7,
    )
    dim = c["hidden_size"] // c["num_attention_heads"]
    c["rope_parameters"] = rope(rng, dim, ("default", "default", "linear", "yarn"))
    return c


def gptj(rng, heads=(1, 2, 4, 6, 7)):
    c = sizes(rng, heads)
    mlp(rng, c, "n_inner")
    dim = c["hidden_size"] // c["num_attention_heads"]
    c.update(
        layer_norm_epsilon=rng.choice([1e-5, 1e-6]),
        activation_function=rng.choice(["gelu_new", "gelu_new", "gelu"]),
        rotary_dim=rng.choice([4, 8, dim]),
        tie_word_embeddings=False,
    )
    return c


def codegen(rng):
    return gptj(rng, (4, 8))


FAMILIES = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "opt": opt,
    "gpt_neo": gpt_neo,
    "biogpt": biogpt,
    "xglm": xglm,
    "gpt_neox": gpt_neox,
    "falcon": falcon,
    "gptj": gptj,
    "codegen": codegen,
}
