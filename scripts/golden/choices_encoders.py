# SPDX-License-Identifier: Apache-2.0
"""Random configurations of encoders: functions of a random.Random."""

from choices import layer_types, rope


def sizes(rng, dims=(8, 16, 24, 40)):
    n = rng.choice([1, 2, 4, 6])
    return {
        "num_attention_heads": n,
        "hidden_size": n * rng.choice(dims),
        "intermediate_size": rng.choice([48, 80, 128]),
        "num_hidden_layers": rng.choice([1, 2, 3, 5]),
        "vocab_size": rng.choice([384, 389, 512]),
        "max_position_embeddings": rng.choice([200, 512]),
    }


def bert(rng):
    return {
        **sizes(rng),
        "hidden_act": rng.choice(["gelu", "gelu", "relu", "gelu_new"]),
        "layer_norm_eps": rng.choice([1e-12, 1e-5]),
        "type_vocab_size": rng.choice([1, 2, 2]),
    }


def roberta(rng):
    return {**bert(rng), "pad_token_id": rng.choice([0, 1, 1])}


def distilbert(rng):
    c = sizes(rng)
    return {
        "n_heads": c["num_attention_heads"],
        "dim": c["hidden_size"],
        "hidden_dim": c["intermediate_size"],
        "n_layers": c["num_hidden_layers"],
        "vocab_size": c["vocab_size"],
        "max_position_embeddings": c["max_position_embeddings"],
        "activation": rng.choice(["gelu", "relu"]),
    }


def nomic_bert(rng):
    c = sizes(rng)
    dim = c["hidden_size"] // c["num_attention_heads"]
    c.update(hidden_act=rng.choice(["silu", "silu", "gelu"]), layer_norm_eps=rng.choice([1e-12, 1e-5]))
    c.update(type_vocab_size=rng.choice([1, 2]), rope_parameters=rope(rng, dim, ("default", "default", "linear")))
    return c


def gte(rng):
    return {**nomic_bert(rng), "hidden_act": rng.choice(["gelu", "silu"]), "type_vocab_size": rng.choice([0, 1, 2]), "pad_token_id": 1}


def modernbert(rng):
    c = sizes(rng)
    kinds = rng.choice([None, layer_types(rng, c["num_hidden_layers"])])
    c.update(
        hidden_activation=rng.choice(["gelu", "gelu", "silu"]),
        norm_eps=rng.choice([1e-5, 1e-6]),
        norm_bias=rng.random() < 0.3,
        attention_bias=rng.random() < 0.3,
        mlp_bias=rng.random() < 0.3,
        local_attention=rng.choice([2, 15, 32, 128]),
        classifier_pooling=rng.choice(["cls", "mean"]),
        classifier_bias=rng.random() < 0.3,
        classifier_activation=rng.choice(["gelu", "relu", "tanh"]),
        layer_types=kinds,
        pad_token_id=0,
    )
    if rng.random() < 0.5:
        c["rope_parameters"] = {kind: {"rope_type": "default", "rope_theta": rng.choice([1e4, 1.6e5])}
                                for kind in ("full_attention", "sliding_attention")}
    return c


def eurobert(rng):
    c = sizes(rng)
    dim = c["hidden_size"] // c["num_attention_heads"]
    c.update(
        hidden_act=rng.choice(["silu", "silu", "gelu"]),
        rms_norm_eps=rng.choice([1e-5, 1e-6]),
        num_key_value_heads=rng.choice([k for k in (1, 2, c["num_attention_heads"]) if c["num_attention_heads"] % k == 0]),
        attention_bias=rng.random() < 0.3,
        mlp_bias=rng.random() < 0.3,
        classifier_pooling=rng.choice(["bos", "mean"]),
        rope_parameters=rope(rng, dim, ("default", "default", "linear", "llama3")),
        pad_token_id=0,
    )
    return c


def gemma3_text(rng):
    c = sizes(rng)
    c.update(
        use_bidirectional_attention=True,
        head_dim=rng.choice([8, 16, 24]),
        num_key_value_heads=rng.choice([k for k in (1, 2, c["num_attention_heads"]) if c["num_attention_heads"] % k == 0]),
        sliding_window=rng.choice([3, 16, 40]),
        query_pre_attn_scalar=rng.choice([16, 24]),
        num_hidden_layers=rng.choice([1, 3, 7]),
    )
    return c


FAMILIES = {
    "bert": bert,
    "roberta": roberta,
    "xlm-roberta": roberta,
    "camembert": roberta,
    "distilbert": distilbert,
    "nomic_bert": nomic_bert,
    "modernbert": modernbert,
    "gte": gte,
    "eurobert": eurobert,
    "gemma3_text": gemma3_text,
}
CLASSIFIERS = [family for family in FAMILIES if family != "gemma3_text"]
