# SPDX-License-Identifier: Apache-2.0
"""Text models that transformers has only inside a multimodal class: that class around them, with a vision tower (and others)
as small as it allows."""

import transformers

VISION = {
    "depth": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 16,
    "patch_size": 2,
    "image_size": 4,
    "spatial_merge_size": 1,
}


def glm4v_moe(text):
    vision = {**VISION, "out_hidden_size": text["hidden_size"]}
    return transformers.Glm4vMoeConfig(text_config=text, vision_config=vision)


def qwen3_omni_moe(text):
    vision = {**VISION, "out_hidden_size": 16, "deepstack_visual_indexes": [], "num_position_embeddings": 4}
    audio = {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
    audio.update(d_model=16, output_dim=16, downsample_hidden_size=8)
    return transformers.Qwen3OmniMoeThinkerConfig(text_config=text, vision_config=vision, audio_config=audio)


def step3p7(text):
    vision = {"depth": None, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_ratio": 1.0}
    vision.update(image_size=8, patch_size=4, max_position_embeddings=4)
    del vision["depth"]
    return transformers.Step3p7Config(text_config=text, vision_config=vision)


# From the text model's type: the function that makes a config, and the class.
WRAPPERS = {
    "glm4v_moe_text": (glm4v_moe, "Glm4vMoeForConditionalGeneration"),
    "step3p5": (step3p7, "Step3p7ForConditionalGeneration"),
    "qwen3_omni_moe_text": (qwen3_omni_moe, "Qwen3OmniMoeThinkerForConditionalGeneration"),
}


def config_of(family, values):
    """The text part's tie_word_embeddings has no effect."""
    text = {k: v for k, v in values.items() if k != "tie_word_embeddings"}
    config = WRAPPERS[family][0](text)
    config.tie_word_embeddings = values["tie_word_embeddings"]
    return config


def class_of(family):
    return WRAPPERS[family][1] if family in WRAPPERS else None
