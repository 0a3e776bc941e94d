# SPDX-License-Identifier: Apache-2.0
"""Random configurations of language parts that transformers computes only inside their wrappers: functions of a random.Random."""

from choices import WINDOW, heads, layer_types, qwen_windows, rope
from choices_experts import deepseek, glm_moe_dsa, hy_v4, mlp_layer_types, picked
from choices_states import kinds

VISION = {"depth": 1, "hidden_size": 16, "num_heads": 1, "intermediate_size": 16, "out_hidden_size": 16}
AUDIO = {"encoder_layers": 1, "encoder_attention_heads": 1, "encoder_ffn_dim": 16, "d_model": 16, "output_dim": 16}
OMNI_VISION = {**VISION, "deepstack_visual_indexes": [], "num_position_embeddings": 4}
OMNI_AUDIO = {**AUDIO, "num_mel_bins": 8, "downsample_hidden_size": 8}
STEP_VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_ratio": 1.0, "image_size": 8}
STEP_VISION.update(patch_size=4, max_position_embeddings=4)
GLIMMER_VISION = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 16, "pos_emb_height": 2}
GLIMMER_VISION["pos_emb_width"] = 2
HY_VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16, "patch_size": 4}
HY_VISION.update(max_image_size=8, out_hidden_size=16)
GLM_VISION = {**VISION, "projection_intermediate_size": 16}
PIXTRAL = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
PIXTRAL.update(patch_size=4, image_size=8)
M3_VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 28}
HUNYUAN_VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16, "patch_size": 4}
HUNYUAN_VISION.update(max_image_size=8, out_hidden_size=16, text_hidden_size=16)
ERNIE_VISION = {"hidden_size": 16, "depth": 1, "num_heads": 1, "intermediate_size": 16, "patch_size": 4}
MLLAMA_VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 1, "intermediate_size": 16}
MLLAMA_VISION.update(vision_output_dim=32, image_size=8, patch_size=4, intermediate_layers_indices=[0])
# By the model type of the language part: that of the wrapper, its class, and its other parts.
WHOLE = {
    "glm4v_text": ("glm4v", "Glm4vForConditionalGeneration", {"vision_config": VISION}),
    "glm4v_moe_text": ("glm4v_moe", "Glm4vMoeForConditionalGeneration", {"vision_config": VISION}),
    "glm_ocr_text": ("glm_ocr", "GlmOcrForConditionalGeneration", {"vision_config": VISION}),
    "glm5_next_text": ("glm5_next", "Glm5NextForConditionalGeneration", {"vision_config": GLM_VISION}),
    "hy_v4_vl_text": ("hy_v4_vl", "HYV4VLForConditionalGeneration", {"vision_config": HY_VISION}),
    "mistral_large4_text": ("mistral_large4", "MistralLarge4ForConditionalGeneration", {"vision_config": PIXTRAL}),
    "ernie4_5_vl_moe_text": ("ernie4_5_vl_moe", "Ernie4_5_VLMoeForConditionalGeneration", {"vision_config": ERNIE_VISION}),
    "hunyuan_vl_text": ("hunyuan_vl", "HunYuanVLForConditionalGeneration", {"vision_config": HUNYUAN_VISION}),
    "mllama_text_model": ("mllama", "MllamaForConditionalGeneration", {"vision_config": MLLAMA_VISION}),
    "minimax_m3_vl_text": (
        "minimax_m3_vl",
        "MiniMaxM3SparseForConditionalGeneration",
        {"vision_config": M3_VISION, "projector_hidden_size": 16},
    ),
    "muse_glimmer_text": (
        "muse_glimmer",
        "MuseGlimmerForConditionalGeneration",
        {"vision_config": GLIMMER_VISION, "out_hidden_size": 64, "projector_hidden_size": 16},
    ),
    "qwen2_5_omni_text": (
        "qwen2_5_omni_thinker",
        "Qwen2_5OmniThinkerForConditionalGeneration",
        {"vision_config": VISION, "audio_config": AUDIO},
    ),
    "qwen3_omni_moe_text": (
        "qwen3_omni_moe_thinker",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        {"vision_config": OMNI_VISION, "audio_config": OMNI_AUDIO},
    ),
    "step3p5": ("step3p7", "Step3p7ForConditionalGeneration", {"vision_config": STEP_VISION}),
}


def sections(rng, c, dim):
    """Each kind of position has a part of the rotated pairs; for text they are the same."""
    pairs = dim // 2
    first = pairs // 2
    c["rope_parameters"]["mrope_section"] = [first, (pairs - first) // 2, pairs - first - (pairs - first) // 2]


def narrow(rng, c):
    """The classes derive the size of heads."""
    del c["head_dim"]
    c["hidden_size"] = c["num_attention_heads"] * 16


def glm4v_text(rng):
    c = heads(rng)
    narrow(rng, c)
    partial = rng.choice([0.5, 1.0])
    c["rope_parameters"] = rope(rng, int(16 * partial), ("default",), partial_rotary_factor=partial)
    sections(rng, c, int(16 * partial))
    return c


def glm_ocr_text(rng):
    c = heads(rng)
    partial = rng.choice([0.5, 1.0])
    c["head_dim"] = rng.choice([8, 16, 32, 128])
    dim = int(c["head_dim"] * partial)
    c["rope_parameters"] = rope(rng, dim, ("default",), partial_rotary_factor=partial)
    sections(rng, c, dim)
    return c


def hunyuan_vl_text(rng):
    c = heads(rng)
    c["attention_bias"] = rng.random() < 0.3
    c["head_dim"] = rng.choice([16, 32, 72, 128])
    if rng.random() < 0.6:
        c["rope_parameters"] = {"rope_type": rng.choice(["dynamic", "xdrope"]), "rope_theta": 1e4, "factor": 1.0}
        c["rope_parameters"]["alpha"] = rng.choice([1.0, 50.0, 1000.0])
    else:
        c["rope_parameters"] = rope(rng, c["head_dim"], ("default", "linear"))
    sections(rng, c, c["head_dim"])
    return c


def ernie4_5_vl_moe_text(rng):
    c = heads(rng)
    n, k = picked(rng)
    c.update(
        moe_num_experts=n,
        moe_k=k,
        moe_intermediate_size=[rng.choice([24, 40]), rng.choice([16, 24])],
        moe_num_shared_experts=rng.choice([0, 1, 2]),
    )
    c["head_dim"] = rng.choice([16, 32, 72, 128])
    mlp_layer_types(rng, c)
    c["rope_parameters"] = rope(rng, c["head_dim"], ("default",))
    pairs = c["head_dim"] // 2
    third = pairs // 3
    c["rope_parameters"]["mrope_section"] = [third, third, pairs - 2 * third]
    return c


def mllama_text_model(rng):
    c = heads(rng)
    narrow(rng, c)
    n = c["num_hidden_layers"] = rng.choice([2, 3, 5])
    c["cross_attention_layers"] = rng.choice([[], [n - 1], [0], list(range(1, n)), list(range(0, n, 2))[: n - 1]])
    c["rope_parameters"] = rope(rng, 16, ("default", "llama3"))
    return c


def qwen2_5_omni_text(rng):
    c = heads(rng)
    narrow(rng, c)
    qwen_windows(rng, c)
    c["rope_parameters"] = rope(rng, 16, ("default",))
    sections(rng, c, 16)
    return c


def muse_glimmer_text(rng):
    c = heads(rng)
    n = c["num_hidden_layers"]
    c.update(
        sliding_window=WINDOW,
        final_logit_softcapping=rng.choice([20.0, 5.0]),
        qk_scale_factor=rng.choice([3.87, 1.0]),
        output_multiplier=rng.choice([0.196, 1.0]),
        post_norm_eps=rng.choice([1e-8, 1e-4]),
    )
    if rng.random() < 0.5:
        c["layer_types"] = layer_types(rng, n)
        c["layer_rope_theta"] = [rng.choice([0, 10000.0]) for _ in range(n)]
    c["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    return c


def glm5_next_text(rng):
    c = deepseek(rng)
    for key in ("first_k_dense_replace", "head_dim", "rope_parameters"):
        del c[key]
    n = c["num_hidden_layers"] = rng.choice([2, 3, 5])
    pool = rng.choice([1, 2, 3, 4, 8, 16])
    c.update(
        qk_rope_head_dim=0,
        q_lora_rank=rng.choice([24, 40]),
        index_kpool=pool,
        index_topk=pool * rng.choice([1, 2, 5, 9]),
        index_n_heads=rng.choice([2, 4, 8, 11]),
        index_head_dim=rng.choice([8, 16, 24]),
        linear_head_dim=rng.choice([8, 16, 24, 32]),
        linear_num_heads=rng.choice([1, 2, 3, 4]),
        linear_conv_kernel_dim=rng.choice([2, 4]),
        linear_lower_bound=rng.choice([None, -5.0, -2.0]),
        hc_mult=rng.choice([1, 2, 3, 4, 4]),
        hc_eps=rng.choice([1e-6, 1e-2]),
        hc_sinkhorn_iters=rng.choice([1, 3, 20]),
        swiglu_limit=rng.choice([10.0, 0.5]),
        pad_token_id=None,  # the class sets the embedding of this token to zero when it loads a model
    )
    c["layer_types"] = kinds(rng, n, "indexed_attention")
    if rng.random() < 0.5:
        full = [i == 0 or c["layer_types"][i - 1] != "indexed_attention" for i in range(n)]
        c["indexer_types"] = ["full" if f else "shared" for f in full]
        for i in range(1, n):  # picks go from a layer with an indexer to the next layer, and no further
            if c["indexer_types"][i - 1] == "shared":
                c["indexer_types"][i] = "full"
    mlp_layer_types(rng, c)
    return c


def hy_v4_vl_text(rng):
    c = hy_v4(rng)
    sections(rng, c, c["qk_rope_head_dim"])
    return c


def mistral_large4_text(rng):
    c = glm_moe_dsa(rng)
    n = c["num_hidden_layers"]
    for key in ("q_lora_rank", "norm_topk_prob", "n_group", "topk_group", "head_dim"):
        del c[key]
    c["rope_parameters"] = rope(rng, c["qk_rope_head_dim"], ("default", "yarn"))
    c["final_logit_softcapping"] = rng.choice([30.0, 5.0])
    if rng.random() < 0.7:
        c["no_rope_layers"] = [rng.choice([0, 1, 1]) for _ in range(n)]
    rotated = c.get("no_rope_layers", [int((i + 1) % 4 != 0) for i in range(n)])
    if rng.random() < 0.7:
        sources = list(range(n))
        last = {}  # the last layer with and without positions whose keys others may read
        for i in range(n):
            if rotated[i] in last and rng.random() < 0.6:
                sources[i] = last[rotated[i]]
            elif not any(s == last.get(rotated[i]) for s in sources[i:]):
                last[rotated[i]] = i
        c["kv_source_layers"] = sources
    return c


def minimax_m3_vl_text(rng):
    c = heads(rng)
    n, k = picked(rng)
    c["head_dim"] = rng.choice([8, 16, 32, 64, 128])
    partial = rng.choice([0.5, 1.0])
    rotated = int(c["head_dim"] * partial)
    blocks = rng.choice([1, 2, 3, 5, 9])
    c.update(
        dense_intermediate_size=rng.choice([48, 80]),
        index_block_size=rng.choice([1, 3, 4, 8, 16, 32]),
        index_head_dim=rotated + rng.choice([0, 8, 24]),
        index_local_blocks=rng.randint(0, min(blocks, 3)),
        index_n_heads=c["num_key_value_heads"],
        index_topk_blocks=blocks,
        num_experts_per_tok=k,
        num_local_experts=n,
        routed_scaling_factor=rng.choice([1.0, 2.0, 2.5]),
        shared_intermediate_size=rng.choice([24, 56]),
        swiglu_alpha=rng.choice([1.702, 1.0]),
        swiglu_limit=rng.choice([7.0, 0.5]),
    )
    if rng.random() < 0.9:
        c["layer_types"] = [
            rng.choice(["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]) for _ in range(c["num_hidden_layers"])
        ]
    mlp_layer_types(rng, c)
    c["rope_parameters"] = rope(rng, rotated, ("default", "linear", "llama3", "yarn"), partial_rotary_factor=partial)
    return c


FAMILIES = {
    "mllama_text_model": mllama_text_model,
    "ernie4_5_vl_moe_text": ernie4_5_vl_moe_text,
    "hunyuan_vl_text": hunyuan_vl_text,
    "glm5_next_text": glm5_next_text,
    "hy_v4_vl_text": hy_v4_vl_text,
    "mistral_large4_text": mistral_large4_text,
    "minimax_m3_vl_text": minimax_m3_vl_text,
    "muse_glimmer_text": muse_glimmer_text,
    "glm4v_text": glm4v_text,
    "glm_ocr_text": glm_ocr_text,
    "qwen2_5_omni_text": qwen2_5_omni_text,
}
