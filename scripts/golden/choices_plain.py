# SPDX-License-Identifier: Apache-2.0
"""Random configurations of families whose MLP has no gate: functions of a random.Random."""

from choices import heads, rope


def arcee(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "yarn", "llama3"))
    c["hidden_act"] = rng.choice(["relu2", "relu2", "gelu"])
    return c


def apertus(rng):
    c = heads(rng)
    c["head_dim"] = None
    c["hidden_size"] = c["num_attention_heads"] * rng.choice([8, 16, 24])
    c.update(attention_bias=rng.random() < 0.3, hidden_act="xielu")
    dim = c["hidden_size"] // c["num_attention_heads"]
    c["rope_parameters"] = rope(rng, dim, ("default", "llama3", "llama3", "yarn"))
    return c


def apertus1p5_text(rng):
    c = {**apertus(rng), "vocab_size": 512}
    c["output_vocab_size"] = rng.choice([None, 400, 511])
    if c["output_vocab_size"]:
        c["tie_word_embeddings"] = False
    return c


def nemotron(rng):
    c = heads(rng)
    partial = rng.choice([0.25, 0.5, 0.5, 1.0])
    c.update(
        attention_bias=rng.random() < 0.3,
        mlp_bias=rng.random() < 0.3,
        norm_eps=rng.choice([1e-5, 1e-6]),
        hidden_act="relu2",
    )
    dim = int(c["head_dim"] * partial)
    c["rope_parameters"] = rope(rng, dim, ("default", "linear"), partial_rotary_factor=partial)
    return c


def jais2(rng):
    c = heads(rng)
    del c["rms_norm_eps"]
    c.update(
        attention_bias=rng.random() < 0.6,
        mlp_bias=rng.random() < 0.6,
        layer_norm_eps=rng.choice([1e-5, 1e-6]),
        hidden_act="relu2",
    )
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear"))
    return c


def nanochat(rng):
    c = heads(rng)
    c["head_dim"] = None
    c["hidden_size"] = c["num_attention_heads"] * 16
    c.update(
        attention_bias=rng.random() < 0.3,
        final_logit_softcapping=rng.choice([None, 15.0]),
        hidden_act="relu2",
    )
    c["rope_parameters"] = rope(rng, 16, ("default", "linear"))
    return c


def phi(rng):
    c = heads(rng)
    del c["rms_norm_eps"]
    c["head_dim"] = None
    c["hidden_size"] = c["num_attention_heads"] * 16
    c.update(tie_word_embeddings=False, layer_norm_eps=rng.choice([1e-5, 1e-6]), hidden_act="gelu_new")
    partial = rng.choice([0.5, 0.5, 1.0])
    dim = int(16 * partial)
    c["rope_parameters"] = rope(rng, dim, ("default", "linear"), partial_rotary_factor=partial)
    return c


FAMILIES = {
    "phi": phi,
    "nanochat": nanochat,
    "apertus": apertus,
    "apertus1p5_text": apertus1p5_text,
    "arcee": arcee,
    "nemotron": nemotron,
    "jais2": jais2,
}
