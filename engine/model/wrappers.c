// SPDX-License-Identifier: Apache-2.0
#include "engine/model/wrappers.h"

#include "engine/base/optional.h"

#include <string.h>

/* Multimodal models nest the config of the language part, some of them twice; "speculators" nests
 * that of a draft head's layer. Some models repeat the language part's sizes outside. */
static const struct {
    const char *key;
    bool always; // if not, sizes outside count
} places[] = {
    {"thinker_config", true},
    {"llm_config", true},
    {"text_config", false},
};

static struct json *object_at(struct json *j, const char *key)
{
    struct json *inner = (struct json *)json_get(j, key);
    return json_is(inner, JSON_OBJECT) ? inner : NULL;
}

struct json *wrapper_text(struct json *root)
{
    struct json *j = root;
    if (json_get(root, "speculators_model_type")) {
        struct json *head = object_at(root, "transformer_layer_config");
        return head && !json_get(root, "hidden_size") ? head : root;
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        struct json *inner = object_at(j, places[i].key);
        if (inner && (places[i].always || !json_get(j, "hidden_size"))) {
            j = inner;
        }
    }
    return j;
}

/* For text configs without a model_type, and for types that transformers renamed. */
static const struct {
    const char *model_type, *family;
} families[] = {
    {"aria", "aria_text"},
    {"audioflamingo3", "qwen2"},
    {"aya_vision", "cohere2"},
    {"cohere2_vision", "cohere2"},
    {"cohere_compass", "cohere_compass_text"},
    {"deepseek_vl", "llama"},
    {"ernie4_5_moe_vl", "ernie4_5_vl_moe_text"},
    {"ernie4_5_vl_moe", "ernie4_5_vl_moe_text"},
    {"exaone4_5", "exaone4"},
    {"exaone4_5_text", "exaone4"},
    {"fast_vlm", "qwen2"},
    {"glm46v", "glm4v_text"},
    {"glm4v", "glm4v_text"},
    {"glm5_next", "glm5_next_text"},
    {"glm_ocr", "glm_ocr_text"},
    {"glmasr", "llama"},
    {"got_ocr2", "qwen2"},
    {"granite_speech", "granite"},
    {"granite_speech_plus", "granite"},
    {"hunyuan_vl", "hunyuan_vl_text"},
    {"hy_v4_vl", "hy_v4_vl_text"},
    {"hyperclovax_vision_v2", "hyperclovax"},
    {"idefics2", "mistral"},
    {"idefics3", "llama"},
    {"internvl", "qwen2"},
    {"lfm2_vl", "lfm2"},
    {"lfm3_vl", "lfm3"},
    {"lighton_ocr", "qwen3"},
    {"llava", "llama"},
    {"llava_next", "llama"},
    {"llava_next_video", "llama"},
    {"llava_onevision", "qwen2"},
    {"minicpmv4_6", "qwen3_5_text"},
    {"minicpmv4_7", "qwen3_5_text"},
    {"mistral_large4", "mistral_large4_text"},
    {"mllama", "mllama_text_model"},
    {"muse_glimmer", "muse_glimmer_text"},
    {"musicflamingo", "qwen2"},
    {"nemotron_h_omni", "nemotron_h"},
    {"ovis2", "qwen2"},
    {"perception_lm", "llama"},
    {"phi4mm", "phi4_multimodal"},
    {"qianfan_ocr", "qwen3"},
    {"qwen2_5_omni", "qwen2_5_omni_text"},
    {"qwen2_5_omni_thinker", "qwen2_5_omni_text"},
    {"qwen2_audio", "qwen2"},
    {"qwen3_asr", "qwen3"},
    {"smolvlm", "llama"},
    {"video_llama_3", "qwen2"},
    {"vipllava", "llama"},
    {"voxtral", "llama"},
};

const char *wrapper_family(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].model_type, model_type) == 0) {
            return families[i].family;
        }
    }
    return NULL;
}

/* Their classes wrote the key only into the text config at first. */
bool wrapper_heeds_inner_tie(const struct json *root)
{
    static const char *const types[] = {
        "fast_vlm",        "glm4v",      "glm_ocr",  "llava",        "llava_next_video",
        "llava_onevision", "qwen2_5_vl", "qwen2_vl", "video_llama_3"};
    const char *type = json_get_string(root, "model_type");
    for (size_t i = 0; type && i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i], type) == 0) {
            return true;
        }
    }
    return false;
}

/* LLaVA's and Idefics' text configs leave out the sizes that are those of the class. */
static const struct {
    const char *family, *sizes;
} defaults[] = {
    {"llama", "{\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
              "\"num_attention_heads\":32,\"vocab_size\":32000}"},
    {"mistral", "{\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
                "\"num_attention_heads\":32,\"vocab_size\":32000}"},
};

static enum status add_sizes(const char *family, struct json *text, struct err *err)
{
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        if (strcmp(defaults[i].family, family) != 0) {
            continue;
        }
        struct json *sizes;
        TRY(json_parse(defaults[i].sizes, strlen(defaults[i].sizes), NULL, &sizes, err));
        const bool good = json_add_missing(text, sizes);
        json_free(sizes);
        return good ? OK : err_set(err, ERR_NOMEM, "no memory for the text part's sizes");
    }
    return OK;
}

enum status wrapper_complete(const struct json *root, const char *family, struct json *text,
                             struct err *err)
{
    const char *type = json_get_string(root, "model_type");
    if (strcmp(or_empty(type), "paligemma") == 0) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "config.json: the model_type 'paligemma' is not supported: a prompt's tokens "
            "see later ones");
    }
    return text == root ? OK : add_sizes(family, text, err);
}

/* The encoders of other modalities are not loaded, so their tensors are not reported as unused. */
bool wrapper_is_tower(const char *name)
{
    static const char *const towers[] = {"visual",
                                         "visual_",
                                         "vision_",
                                         "audio_",
                                         "embed_vision",
                                         "embed_audio",
                                         "multi_modal_projector",
                                         "mm_projector",
                                         "patch_merge_mlp",
                                         "patch_merger",
                                         "pre_mm_projector_norm",
                                         "vit_large_projector",
                                         "vit",
                                         "perceive",
                                         "projector",
                                         "encoder",
                                         "connector",
                                         "image_newline",
                                         "embed_tokens_extend",
                                         "resampler_model",
                                         "weight_1", // a router for images
                                         "mlp1",
                                         "talker",
                                         "code2wav",
                                         "token2wav"};
    for (const char *at = name; *at; at += strcspn(at, "."), at += *at == '.') {
        const size_t n = strcspn(at, ".");
        for (size_t i = 0; i < sizeof towers / sizeof towers[0]; i++) {
            const size_t m = strlen(towers[i]);
            const bool begins = m <= n && strncmp(at, towers[i], m) == 0;
            if (begins && (m == n || towers[i][m - 1] == '_')) {
                return true;
            }
        }
    }
    return false;
}
