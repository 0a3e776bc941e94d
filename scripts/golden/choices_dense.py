# SPDX-License-Identifier: Apache-2.0
"""Random configurations of families with one MLP a layer: functions of a random.Random."""

from choices import WINDOW, heads, layer_types, qwen_windows, rope


def llama(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3)
    c["rope_parameters"] = rope(rng, c["head_dim"])
    c["hidden_act"] = rng.choice(["silu", "silu", "gelu", "gelu_pytorch_tanh", "gelu_fast", "relu"])
    return c


def mistral(rng):
    c = heads(rng)
    c.update(sliding_window=rng.choice([None, WINDOW]))
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn", "linear"))
    return c


def qwen2(rng):
    c = heads(rng)
    if rng.random() < 0.7:
        c["head_dim"] = None
        c["hidden_size"] = c["num_attention_heads"] * 16
    qwen_windows(rng, c)
    c["rope_parameters"] = rope(rng, c["head_dim"] or 16, ("default", "yarn", "dynamic"))
    return c


def qwen3(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3)
    qwen_windows(rng, c)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn"))
    return c


def gemma(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3, tie_word_embeddings=True)
    c["hidden_act"] = c["hidden_activation"] = "gelu_pytorch_tanh"
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear"))
    return c


def gemma2(rng):
    c = gemma(rng)
    c.update(
        sliding_window=WINDOW,
        query_pre_attn_scalar=rng.choice([16, 24, 256]),
        attn_logit_softcapping=rng.choice([None, 50.0, 10.0]),
        final_logit_softcapping=rng.choice([None, 30.0]),
    )
    if rng.random() < 0.5:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    return c


def vaultgemma(rng):
    c = gemma2(rng)
    if not c["attn_logit_softcapping"]:
        c["query_pre_attn_scalar"] = 256  # without norms after sub-layers, larger scores amplify rounding
    return c


def gemma3_text(rng):
    c = gemma2(rng)
    c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = {
        "full_attention": rope(rng, c["head_dim"], ("default", "linear")),
        "sliding_attention": rope(rng, c["head_dim"], ("default",)),
    }
    return c


def phi3(rng):
    c = heads(rng)
    c["head_dim"] = None
    c["hidden_size"] = c["num_attention_heads"] * 16
    partial = rng.choice([1.0, 0.75, 0.5])
    c.update(sliding_window=rng.choice([None, WINDOW]), original_max_position_embeddings=64)
    c["rope_parameters"] = rope(
        rng, int(16 * partial), ("default", "longrope"), partial_rotary_factor=partial
    )
    return c


PHI_VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 1, "image_size": 28}
PHI_VISION.update(patch_size=14, crop_size=28)
PHI_AUDIO = {"hidden_size": 16, "intermediate_size": 16, "num_blocks": 1, "num_attention_heads": 1, "ext_pw_out_channel": 16}
PHI_AUDIO.update(depthwise_separable_out_channel=16, nemo_conv_channels=8, input_size=8, bias_max_distance=8)


def phi4_multimodal(rng):
    return {**phi3(rng), "vision_config": PHI_VISION, "audio_config": PHI_AUDIO}


def olmo2(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3)
    c["head_dim"] = c["hidden_size"] // c["num_attention_heads"]
    if c["hidden_size"] % c["num_attention_heads"] or c["head_dim"] % 2:
        c.update(num_attention_heads=4, num_key_value_heads=2, hidden_size=64, head_dim=16)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "yarn"))
    return c


def granite(rng):
    c = llama(rng)
    c["head_dim"] = 16
    c["hidden_size"] = c["num_attention_heads"] * 16
    c.update(
        embedding_multiplier=rng.choice([1.0, 6.0]),
        residual_multiplier=rng.choice([1.0, 0.22]),
        attention_multiplier=rng.choice([0.0625, 0.25]),
        logits_scaling=rng.choice([1.0, 8.0]),
    )
    c["rope_parameters"] = rope(rng, 16, ("default", "linear"))
    return c


def granite_windows(rng, c):
    layers = c["num_hidden_layers"]
    c["sliding_window"] = WINDOW
    if rng.random() < 0.6:
        c["layer_types"] = layer_types(rng, layers)
    if rng.random() < 0.7:
        theta = c["rope_parameters"]["rope_theta"]
        c["layer_rope_theta"] = [rng.choice([0, theta]) for _ in range(layers)]
    return c


def granite_swa(rng):
    return granite_windows(rng, granite(rng))


def bitnet(rng):
    c = heads(rng)
    del c["head_dim"]
    size = rng.choice([8, 16, 32])
    c["hidden_size"] = c["num_attention_heads"] * size
    c["attention_bias"] = rng.random() < 0.3
    c["rope_parameters"] = rope(rng, size, ("default", "yarn", "llama3"))
    return c


def exaone(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3)
    c["rope_parameters"] = rope(rng, c["head_dim"])
    return c


def cohere_compass_text(rng):
    c = heads(rng)
    size = rng.choice([8, 16, 32])
    c.update(
        head_dim=None,
        hidden_size=c["num_attention_heads"] * size,
        attention_bias=rng.random() < 0.3,
        layer_norm_eps=rng.choice([1e-5, 1e-6]),
        logit_scale=rng.choice([None, 0.25]),
        sliding_window=WINDOW,
        rope_parameters={f"{kind}_attention": rope(rng, size, ("default", "linear", "yarn")) for kind in ("full", "sliding")},
    )
    for one in c["rope_parameters"].values():  # transformers looks for it outside of these objects
        one.pop("truncate", None)
    if rng.random() < 0.6:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    return c


def smollm3(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3)
    c["no_rope_layers"] = [rng.randint(0, 1) for _ in range(c["num_hidden_layers"])]
    if rng.random() < 0.4:
        c.update(use_sliding_window=True, sliding_window=WINDOW)
        if rng.random() < 0.5:
            c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn"))
    return c


def starcoder2(rng):
    c = heads(rng)
    c["head_dim"] = None
    c["hidden_size"] = c["num_attention_heads"] * 16
    c.update(
        use_bias=rng.random() < 0.7,
        norm_epsilon=1e-5,
        sliding_window=rng.choice([None, WINDOW]),
        hidden_act=rng.choice(["gelu_pytorch_tanh", "gelu"]),
    )
    c["rope_parameters"] = rope(rng, 16, ("default", "linear"))
    return c


def stablelm(rng):
    c = heads(rng)
    c["head_dim"] = 16
    c["hidden_size"] = c["num_attention_heads"] * 16
    c.update(
        use_qkv_bias=rng.random() < 0.5,
        qk_layernorm=rng.random() < 0.5,
        use_parallel_residual=rng.random() < 0.5,
        layer_norm_eps=1e-5,
    )
    partial = rng.choice([0.25, 0.5, 1.0])
    c["rope_parameters"] = rope(rng, int(16 * partial), ("default",), partial_rotary_factor=partial)
    return c


def glm(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.5)
    partial = rng.choice([0.25, 0.5, 1.0])
    c["rope_parameters"] = rope(
        rng, int(c["head_dim"] * partial), ("default", "linear"), partial_rotary_factor=partial
    )
    return c


def query_growth(rng, c):
    """Some models scale Mistral's queries by position, with any kind of RoPE scaling."""
    values = c["rope_parameters"]
    values["llama_4_scaling_beta"] = rng.choice([0.1, 0.4])
    values.setdefault("original_max_position_embeddings", rng.choice([16, 50, 64]))


def ministral3(rng):
    c = heads(rng)
    c.update(sliding_window=rng.choice([None, None, WINDOW]))
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn", "yarn"))
    query_growth(rng, c)
    return c


def seed_oss(rng):
    c = heads(rng)
    c.update(
        attention_bias=rng.random() < 0.7,
        attention_out_bias=rng.random() < 0.4,
        mlp_bias=rng.random() < 0.3,
    )
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "yarn"))
    return c


def ernie4_5(rng):
    c = heads(rng)
    c.update(use_bias=rng.random() < 0.4)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear", "yarn"))
    return c


def hunyuan_rope(rng, dim):
    """The usual kinds, and one whose base is scaled once, by alpha."""
    if rng.random() < 0.6:
        value = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0}
        return {**value, "alpha": rng.choice([1.0, 50.0, 1000.0])}
    return rope(rng, dim, ("default", "linear", "dynamic"))


def hunyuan_v1_dense(rng):
    c = heads(rng)
    c.update(attention_bias=rng.random() < 0.3)
    c["rope_parameters"] = hunyuan_rope(rng, c["head_dim"])
    return c


def exaone4(rng):
    c = heads(rng)
    c.update(sliding_window=rng.choice([None, WINDOW, WINDOW]))
    if c["sliding_window"]:
        c["sliding_window_pattern"] = rng.choice([1, 2, 4])
        if rng.random() < 0.6:
            c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    else:
        c["layer_types"] = ["full_attention"] * c["num_hidden_layers"]
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "llama3", "linear"))
    return c


def square(rng, c, width=16):
    """Heads whose size follows from the hidden size."""
    c["head_dim"] = None
    c["hidden_size"] = c["num_attention_heads"] * width


def cohere(rng):
    c = heads(rng)
    del c["rms_norm_eps"]
    square(rng, c)
    c.update(
        attention_bias=rng.random() < 0.3,
        use_qk_norm=rng.random() < 0.5,
        logit_scale=rng.choice([0.0625, 1.0, 0.3]),
        layer_norm_eps=rng.choice([1e-5, 1e-6]),
    )
    c["rope_parameters"] = rope(rng, 16, ("default", "linear"))
    return c


def olmo(rng):
    c = heads(rng)
    del c["rms_norm_eps"]
    square(rng, c)
    c.update(attention_bias=rng.random() < 0.3)
    c["rope_parameters"] = rope(rng, 16, ("default", "linear", "yarn"))
    return c


def internlm3(rng):
    c = heads(rng)
    c["attention_bias"] = c["mlp_bias"] = rng.random() < 0.4
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "dynamic", "linear"))
    return c


def helium(rng):
    c = heads(rng)
    square(rng, c)
    c.update(head_dim=16, attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3)
    c["rms_norm_eps"] = rng.choice([1e-8, 1e-5])
    c["rope_parameters"] = rope(rng, 16, ("default", "linear"))
    return c


def cwm(rng):
    c = heads(rng)
    c.update(mlp_bias=rng.random() < 0.3, sliding_window=WINDOW)
    if rng.random() < 0.5:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "llama3", "llama3", "yarn"))
    return c


def ministral(rng):
    c = heads(rng)
    c.update(sliding_window=WINDOW)
    if rng.random() < 0.7:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "yarn"))
    return c


def hyperclovax(rng):
    c = granite(rng)
    c.update(use_post_norm=rng.random() < 0.6, logits_scaling=rng.choice([1.0, 0.125, 2.0]))
    c["attention_multiplier"] = rng.choice([None, 0.0625, 0.2])
    return c


FAMILIES = {
    "bitnet": bitnet,
    "phi4_multimodal": phi4_multimodal,
    "cohere_compass_text": cohere_compass_text,
    "exaone": exaone,
    "llama": llama,
    "mistral": mistral,
    "ministral3": ministral3,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3_text,
    "phi3": phi3,
    "olmo2": olmo2,
    "granite": granite,
    "granite_swa": granite_swa,
    "smollm3": smollm3,
    "starcoder2": starcoder2,
    "stablelm": stablelm,
    "glm": glm,
    "glm4": glm,
    "seed_oss": seed_oss,
    "ernie4_5": ernie4_5,
    "hunyuan_v1_dense": hunyuan_v1_dense,
    "exaone4": exaone4,
    "vaultgemma": vaultgemma,
    "cohere": cohere,
    "olmo": olmo,
    "internlm3": internlm3,
    "iquestcoder": llama,
    "helium": helium,
    "cwm": cwm,
    "ministral": ministral,
    "hyperclovax": hyperclovax,
}
