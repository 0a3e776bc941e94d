#include "engine/model/family_parts.h"

#include "engine/base/json.h"

const struct tensor_names llama_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES};

void family_window_on_all(const struct json *j, struct model_config *c)
{
    int32_t window = (int32_t)json_get_int(j, "sliding_window", 0);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].window = window > 0 ? window : 0;
    }
}

void family_window_on_even(const struct json *j, struct model_config *c)
{
    family_window_on_all(j, c);
    for (int32_t i = 1; i < c->n_layers; i += 2) {
        c->layers[i].window = 0;
    }
}

void family_windows_if_used(const struct json *j, struct model_config *c)
{
    for (int32_t i = 0; i < c->n_layers && !json_get_bool(j, "use_sliding_window", false); i++) {
        c->layers[i].window = 0;
    }
}

void family_window_but_every(const struct json *j, int64_t n, struct model_config *c)
{
    family_window_on_all(j, c);
    for (int32_t i = 0; i < c->n_layers && n > 0; i++) {
        c->layers[i].window = (i + 1) % n ? c->layers[i].window : 0;
    }
}

enum status family_positive(const char *key, int64_t v, int64_t max, struct err *err)
{
    if (v < 1 || v > max) {
        return err_set(err, ERR_FORMAT, "config.json: %s must be from 1 to %lld", key,
                       (long long)max);
    }
    return OK;
}

enum status family_experts(const struct json *j, const char *count_key, const char *ffn_key,
                           struct model_config *c, struct err *err)
{
    int64_t n = json_get_int(j, count_key, 0), k = json_get_int(j, "num_experts_per_tok", 0);
    if (n == 0) { // transformers 5 writes one name for all
        n = json_get_int(j, "num_local_experts", 0);
    }
    int64_t ffn = json_get_int(j, ffn_key, 0);
    TRY(family_positive(count_key, n, MAX_EXPERTS, err));
    TRY(family_positive("num_experts_per_tok", k, n < MAX_PICKS ? n : MAX_PICKS, err));
    TRY(family_positive(ffn_key, ffn, 1 << 22, err));
    c->n_experts = (int32_t)n;
    c->experts_per_token = (int32_t)k;
    c->moe_ffn = (int32_t)ffn;
    c->n_group = c->topk_group = 1;
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = true;
    }
    return OK;
}
