# SPDX-License-Identifier: Apache-2.0
"""Random configurations for variants.py: the part that all families share."""

WINDOW = 24


def rope(rng, dim, kinds=("default", "linear", "dynamic", "llama3", "yarn", "longrope"), **extra):
    """rope_parameters of a random kind for `dim` rotated dimensions."""
    kind = rng.choice(kinds)
    value = {"rope_type": kind, "rope_theta": rng.choice([1e4, 5e5, 1e6]), **extra}
    if kind in ("linear", "dynamic"):
        value["factor"] = rng.choice([2.0, 4.0])
    if kind == "llama3":
        value.update(
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=rng.choice([2.0, 4.0]),
            original_max_position_embeddings=64,
        )
    if kind == "yarn":
        value.update(factor=rng.choice([4.0, 8.0]), original_max_position_embeddings=64)
        if rng.random() < 0.5:
            value.update(beta_fast=16.0, beta_slow=2.0, truncate=rng.random() < 0.5)
        if rng.random() < 0.3:
            value["attention_factor"] = 1.2
        if rng.random() < 0.3:
            value.update(mscale=rng.choice([1.0, 0.7]), mscale_all_dim=rng.choice([1.0, 0.5]))
    if kind == "longrope":
        value.update(
            original_max_position_embeddings=64,
            factor=8.0,
            short_factor=[1.0 + 0.05 * i for i in range(dim // 2)],
            long_factor=[1.0 + 0.5 * i for i in range(dim // 2)],
        )
    return value


def heads(rng):
    n = rng.choice([1, 2, 4, 6, 7])
    return {
        "num_attention_heads": n,
        "num_key_value_heads": rng.choice([k for k in (1, 2, 3, n) if n % k == 0]),
        "head_dim": rng.choice([8, 16, 32, 40, 72, 128, 192]),
        "hidden_size": n * rng.choice([8, 16, 24]),
        "intermediate_size": rng.choice([48, 80, 128]),
        "num_hidden_layers": rng.choice([1, 2, 3, 5]),
        "rms_norm_eps": rng.choice([1e-5, 1e-6]),
        "tie_word_embeddings": rng.random() < 0.5,
        "vocab_size": rng.choice([384, 389, 512]),
    }


def layer_types(rng, n):
    return [rng.choice(["full_attention", "sliding_attention"]) for _ in range(n)]


def qwen_windows(rng, c):
    if rng.random() < 0.5:
        c.update(use_sliding_window=True, sliding_window=WINDOW)
        c["max_window_layers"] = rng.randint(0, c["num_hidden_layers"])
        if rng.random() < 0.5:
            c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
