// SPDX-License-Identifier: Apache-2.0
/* Families with attention and Mamba-2 or short convolutions: Granite 4, Bamba, Falcon-H1,
 * Nemotron-H, LFM2 and 3. */
#include "engine/base/json.h"
#include "engine/base/minmax.h"
#include "engine/model/family_parts.h"

#include <math.h>
#include <string.h>

#define MAMBA_NAMES(at)                                                                            \
    .in = at ".in_proj", .conv = at ".conv1d", .a_log = at ".A_log", .dt_bias = at ".dt_bias",     \
    .skip = at ".D", .norm = at ".norm", .out = at ".out_proj"

static const struct state_names mamba_names = {MAMBA_NAMES("mamba")};
static const struct state_names mixer_names = {MAMBA_NAMES("mixer")};
static const struct state_names conv_names = {
    .in = "conv.in_proj", .conv = "conv.conv", .out = "conv.out_proj"};

static const struct tensor_names granite_names = {
    BASE_NAMES, QKV_NAMES, GRANITE_MOE_NAMES, .gate_up = "shared_mlp.input_linear",
    .down = "shared_mlp.output_linear", .state = &mamba_names,
    /* Only GGUF files use these names. */
    .gate = "shared_mlp.gate_proj", .up = "shared_mlp.up_proj"};

#define FEED_FORWARD_NAMES                                                                         \
    .embed = "model.embed_tokens", .final_norm = "model.final_layernorm", .head = "lm_head",       \
    .attn_norm = "input_layernorm", .ffn_norm = "pre_ff_layernorm", .o = "self_attn.o_proj",       \
    .gate = "feed_forward.gate_proj", .up = "feed_forward.up_proj",                                \
    .down = "feed_forward.down_proj"
static const struct tensor_names bamba_names = {QKV_NAMES, FEED_FORWARD_NAMES,
                                                .state = &mamba_names};

static const struct tensor_names nemotron_names = {.embed = "model.embeddings",
                                                   .final_norm = "model.norm_f",
                                                   .head = "lm_head",
                                                   .attn_norm = "norm",
                                                   .ffn_norm = "norm",
                                                   .q = "mixer.q_proj",
                                                   .k = "mixer.k_proj",
                                                   .v = "mixer.v_proj",
                                                   .o = "mixer.o_proj",
                                                   .up = "mixer.up_proj",
                                                   .down = "mixer.down_proj",
                                                   .router = "mixer.gate",
                                                   .correction =
                                                       "mixer.gate.e_score_correction_bias",
                                                   .expert_up = "mixer.experts.%d.up_proj",
                                                   .expert_down = "mixer.experts.%d.down_proj",
                                                   .shared_up = "mixer.shared_experts.up_proj",
                                                   .shared_down = "mixer.shared_experts.down_proj",
                                                   .latent_in = "mixer.fc1_latent_proj",
                                                   .latent_out = "mixer.fc2_latent_proj",
                                                   .state = &mixer_names};

static const struct tensor_names lfm2_names = {QKV_NAMES,
                                               .embed = "model.embed_tokens",
                                               .final_norm = "model.embedding_norm",
                                               .head = "lm_head",
                                               .attn_norm = "operator_norm",
                                               .ffn_norm = "ffn_norm",
                                               .q_norm = "self_attn.q_layernorm",
                                               .k_norm = "self_attn.k_layernorm",
                                               .o = "self_attn.out_proj",
                                               .gate = "feed_forward.w1",
                                               .up = "feed_forward.w3",
                                               .down = "feed_forward.w2",
                                               .router = "feed_forward.gate",
                                               .correction = "feed_forward.expert_bias",
                                               .expert_gate = "feed_forward.experts.%d.w1",
                                               .expert_up = "feed_forward.experts.%d.w3",
                                               .expert_down = "feed_forward.experts.%d.w2",
                                               .state = &conv_names};

#define LFM3_NAMES                                                                                 \
    QKV_NAMES, QK_NORM_NAMES, .embed = "model.embed_tokens", .final_norm = "model.embedding_norm", \
        .head = "lm_head", .attn_norm = "operator_norm", .ffn_norm = "ffn_norm",                   \
        .o = "self_attn.o_proj", .attn_gate = "self_attn.gate_proj", .gate = "feed_forward.w1",    \
        .up = "feed_forward.w3", .down = "feed_forward.w2", .state = &conv_names
static const struct tensor_names lfm3_names = {LFM3_NAMES, .attn_post_norm = "post_operator_norm",
                                               .ffn_post_norm = "post_ffn_norm"};
static const struct tensor_names lfm3_bare_names = {LFM3_NAMES};

/* ---- Mamba-2 ------------------------------------------------------------------------------ */

/* Config keys, whose names differ between the programs that write configs. */
struct mamba_keys {
    const char *heads, *head_dim, *state, *groups, *kernel, *conv_bias, *proj_bias;
};
static const struct mamba_keys usual_keys = {"mamba_n_heads",  "mamba_d_head", "mamba_d_state",
                                             "mamba_n_groups", "mamba_d_conv", "mamba_conv_bias",
                                             "mamba_proj_bias"};
static const struct mamba_keys nemotron_keys = {
    "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups",
    "conv_kernel",     "use_conv_bias",  "use_bias"};

/* The range to which time steps are clamped. If an end of the range is infinite, it is not a number
 * in JSON. */
static enum status read_steps(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *limit = json_get(j, "time_step_limit");
    const struct json *low = json_first(limit), *high = low ? json_next(low) : NULL;
    c->state.dt_min = (float)json_number(low, 0.0);
    c->state.dt_max = (float)json_number(high, 0.0);
    if (c->state.dt_min < 0.0f || (json_is(high, JSON_NUMBER) && c->state.dt_max <= 0.0f)) {
        return err_set(err, ERR_FORMAT,
                       "config.json: time_step_limit is not a range of time steps");
    }
    return OK;
}

/* Reads the sizes of a Mamba-2 layer, under the family's names of the keys. */
static enum status read_mamba(const struct json *j, const struct mamba_keys *k, int64_t inner,
                              struct model_config *c, struct err *err)
{
    struct state_layer *g = &c->state.layer;
    TRY(family_size(j, k->heads, 4096, &g->n_heads, err));
    TRY(family_size(j, k->state, 4096, &g->key_dim, err));
    TRY(family_size(j, k->groups, 4096, &g->n_key_heads, err));
    TRY(family_size(j, k->kernel, 16, &g->conv_kernel, err));
    TRY(read_steps(j, c, err));
    int64_t size = json_get_int(j, k->head_dim, inner / g->n_heads);
    TRY(family_positive(k->head_dim, size, 4096, err));
    g->value_dim = (int32_t)size;
    if (g->n_heads % g->n_key_heads || (inner > 0 && inner != size * g->n_heads)) {
        return err_set(err, ERR_FORMAT,
                       "config.json: %d heads of %d do not fit %d groups and a "
                       "width of %lld",
                       g->n_heads, g->value_dim, g->n_key_heads,
                       (long long)(inner > 0 ? inner : size * g->n_heads));
    }
    g->kind = STATE_DECAY;
    family_decay_sign(j, c);
    g->conv_width = 2 * g->n_key_heads * g->key_dim + g->n_heads * g->value_dim;
    c->state.conv_silu = true;
    c->state.conv_bias = json_get_bool(j, k->conv_bias, true);
    c->state.in_bias = c->state.out_bias = json_get_bool(j, k->proj_bias, false);
    c->state.gate = GATE_SILU;
    c->state.normed = c->state.gate_first = c->state.norm_is_wide = true;
    c->state.norm_group = g->n_heads / g->n_key_heads * g->value_dim;
    c->state.norm_eps = c->norm_eps;
    return OK;
}

static void make_state(struct model_config *c, int32_t layer)
{
    c->layers[layer].kv = -1;
    c->layers[layer].state = 0;
}

/* The listed layers have attention, the others a state. */
static enum status attention_at(const struct json *j, const char *key, struct model_config *c,
                                struct err *err)
{
    for (int32_t i = 0; i < c->n_layers; i++) {
        make_state(c, i);
    }
    const struct json *list = json_get(j, key);
    for (const struct json *v = json_first(list); v; v = json_next(v)) {
        int64_t i;
        if (!json_int64(v, &i) || i < 0 || i >= c->n_layers) {
            return err_set(err, ERR_FORMAT, "config.json: %s must be integers from 0 to %d", key,
                           c->n_layers - 1);
        }
        c->layers[i].kv = 0;
        c->layers[i].state = -1;
    }
    return OK;
}

static int64_t expanded(const struct json *j, const struct model_config *c)
{
    return (int64_t)(json_get_number(j, "mamba_expand", 2.0) * c->hidden);
}

/* Layers without an entry in layer_types are Mamba-2. Attention has positions only if the config
 * says "rope". */
static enum status read_granite_hybrid(const struct json *j, struct model_config *c,
                                       struct err *err)
{
    TRY(family_granite(j, c, err));
    TRY(read_mamba(j, &usual_keys, expanded(j, c), c, err));
    const char *positions = json_get_string(j, "position_embedding_type");
    for (int32_t i = 0; i < c->n_layers; i++) {
        make_state(c, i);
        if (positions && strcmp(positions, "rope") == 0) {
            c->layers[i].rope = 0;
        } else {
            c->layers[i].rope = -1;
        }
    }
    int32_t shared;
    TRY(family_size(j, "shared_intermediate_size", 1 << 22, &shared, err));
    if (json_get_int(j, "num_local_experts", 0) == 0) {
        family_ffn(c, shared);
        return OK;
    }
    return family_granite_experts(j, c, err);
}

/* Half of each attention head is rotated. */
static enum status read_bamba(const struct json *j, struct model_config *c, struct err *err)
{
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    c->partial_rotary = 0.5f;
    if (fabs(json_get_number(j, "partial_rotary_factor", 0.5) - 0.5) > 0.0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: a partial_rotary_factor other than 0.5 is not supported");
    }
    TRY(read_mamba(j, &usual_keys, expanded(j, c), c, err));
    return attention_at(j, "attn_layer_indices", c, err);
}

/* Reads a list of n factors; all are 1 if there is no list. */
static enum status factors(const struct json *j, const char *key, int32_t n, float *out,
                           struct err *err)
{
    const struct json *list = json_get(j, key), *v = json_first(list);
    if (list && json_count(list) != (size_t)n) {
        return err_set(err, ERR_FORMAT, "config.json: %s needs %d numbers", key, n);
    }
    for (int32_t i = 0; i < n; i++) {
        out[i] = (float)json_number(v, 1.0);
        v = v ? json_next(v) : NULL;
    }
    return OK;
}

static float factor(const struct json *j, const char *key)
{
    return (float)json_get_number(j, key, 1.0);
}

/* Factors of inputs are moved into the weights, because products are linear. */
static enum status read_falcon_h1(const struct json *j, struct model_config *c, struct err *err)
{
    float ssm[5] = {0}, mlp[2] = {0}; // factors for z, x, B, C, dt; for gates and outputs
    TRY(read_mamba(j, &usual_keys, json_get_int(j, "mamba_d_ssm", expanded(j, c)), c, err));
    TRY(factors(j, "ssm_multipliers", 5, ssm, err));
    TRY(factors(j, "mlp_multipliers", 2, mlp, err));
    TRY(family_must_be(j, "mamba_proj_bias", false, err));
    TRY(family_must_be(j, "projectors_bias", false, err));
    TRY(family_must_be(j, "attention_bias", false, err));
    TRY(family_must_be(j, "mlp_bias", false, err));
    struct state_config *s = &c->state;
    const float in = factor(j, "ssm_in_multiplier"), attn = factor(j, "attention_in_multiplier");
    s->gate_scale = in * ssm[0];
    s->v_scale = in * ssm[1];
    s->k_scale = in * ssm[2];
    s->q_scale = in * ssm[3];
    s->decay_scale = in * ssm[4];
    s->normed = json_get_bool(j, "mamba_rms_norm", false);
    s->gate_first = !json_get_bool(j, "mamba_norm_before_gate", true);
    c->state_out_scale = factor(j, "ssm_out_multiplier");
    c->attn_out_scale = factor(j, "attention_out_multiplier") * attn;
    c->attn_scale *= factor(j, "key_multiplier") * attn * attn;
    c->ffn_gate_scale = mlp[0];
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].ffn_out_scale = mlp[1];
    }
    c->embed_scale = factor(j, "embedding_multiplier");
    c->logit_scale = factor(j, "lm_head_multiplier");
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].state = 0; // the layer has a state in addition to its attention
    }
    return OK;
}

/* ---- Nemotron-H --------------------------------------------------------------------------- */

/* Each entry is one sub-layer: a letter, or in transformers 5's form a word. */
static bool set_kind(struct layer_config *l, char letter)
{
    l->rope = -1;
    l->kv = letter == '*' ? 0 : -1;
    l->state = letter == 'M' ? 0 : -1;
    l->no_ffn = letter == '*' || letter == 'M';
    l->moe = letter == 'E';
    return l->no_ffn || letter == 'E' || letter == '-';
}

/* Translates the words to the letters of Nemotron's pattern. */
static char letter_of(const char *word)
{
    static const struct {
        const char *word;
        char letter;
    } rows[] = {{"mamba", 'M'},     {"linear_attention", 'M'},
                {"attention", '*'}, {"full_attention", '*'},
                {"mlp", '-'},       {"moe", 'E'}};
    for (size_t i = 0; word && i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].word, word) == 0) {
            return rows[i].letter;
        }
    }
    return '?';
}

/* The kind of each layer: one letter per layer in older configs, a list of words in newer ones. */
static enum status read_pattern(const struct json *j, struct model_config *c, struct err *err)
{
    const char *pattern = json_get_string(j, "hybrid_override_pattern");
    const struct json *words = json_get(j, "layers_block_type");
    const size_t n = pattern ? strlen(pattern) : json_count(words);
    if (n != (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT, "config.json: %s does not describe %d layers",
                       pattern ? "hybrid_override_pattern" : "layers_block_type", c->n_layers);
    }
    const struct json *word = json_first(words);
    for (int32_t i = 0; i < c->n_layers; i++) {
        char letter = pattern ? pattern[i] : letter_of(json_string(word));
        if (!set_kind(&c->layers[i], letter)) {
            return err_set(err, ERR_UNSUPPORTED, "config.json: layer %d has an unknown kind", i);
        }
        word = word ? json_next(word) : NULL;
    }
    return OK;
}

static bool has_experts(const struct model_config *c)
{
    bool has = false;
    for (int32_t i = 0; i < c->n_layers; i++) {
        has = has || c->layers[i].moe;
    }
    return has;
}

static enum status read_nemotron_experts(const struct json *j, struct model_config *c,
                                         struct err *err)
{
    TRY(family_experts(j, "n_routed_experts", "moe_intermediate_size", c, err));
    TRY(read_pattern(j, c, err)); // so far every layer has experts
    int64_t n_shared = json_get_int(j, "n_shared_experts", 0);
    if (n_shared > 0) {
        TRY(family_size(j, "moe_shared_expert_intermediate_size", 1 << 22, &c->shared_ffn, err));
        c->shared_ffn *= (int32_t)lesser(n_shared, 64);
    }
    c->moe_latent = (int32_t)json_get_int(j, "moe_latent_size", 0);
    return family_routing_v3(j, c, err);
}

/* Implementations disagree about these values: transformers clamps to time_step_min instead of
 * time_step_limit, unlike the published code. */
static enum status refuse_steps(const struct json *j, const struct model_config *c, struct err *err)
{
    const bool bounded = c->state.dt_min > 0.0f || c->state.dt_max > 0.0f;
    if (bounded || json_get_number(j, "time_step_min", 0.0) > 0.001) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: %s is not supported",
                       bounded ? "a time_step_limit that bounds steps"
                               : "a time_step_min above 0.001");
    }
    return OK;
}

static enum status read_nemotron_h(const struct json *j, struct model_config *c, struct err *err)
{
    c->norm_eps = (float)json_get_number(j, "layer_norm_epsilon", 1e-5);
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    c->gated = false;
    TRY(read_mamba(j, &nemotron_keys, 0, c, err));
    TRY(refuse_steps(j, c, err));
    if (!json_get(j, "time_step_limit")) { // in that case, clamp as transformers does for prompts
        c->state.dt_min = (float)json_get_number(j, "time_step_min", 0.0);
    }
    TRY(read_pattern(j, c, err));
    if (has_experts(c)) {
        return read_nemotron_experts(j, c, err);
    }
    return OK;
}

/* ---- LFM2 --------------------------------------------------------------------------------- */

static enum status read_convs(const struct json *j, struct model_config *c, struct err *err)
{
    struct state_config *s = &c->state;
    TRY(family_size(j, "conv_L_cache", 16, &s->layer.conv_kernel, err));
    s->layer.kind = STATE_CONV;
    s->layer.conv_width = c->hidden;
    s->conv_bias = s->in_bias = s->out_bias = json_get_bool(j, "conv_bias", false);
    s->gate = GATE_AS_IS;
    c->norm_eps = (float)json_get_number(j, "norm_eps", 1e-5);
    c->qk_norm = QK_NORM_HEAD;
    c->tied = json_get_bool(j, "tie_embedding", true);
    return OK;
}

static enum status read_lfm2_layers(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_convs(j, c, err));
    return attention_at(j, "full_attn_idxs", c, err);
}

/* The width of the MLP is the config's; or, depending on a key, two thirds of it times a factor,
 * rounded up to a multiple. */
static enum status read_lfm2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_lfm2_layers(j, c, err));
    int64_t ffn = json_get_int(j, "block_ff_dim", json_get_int(j, "intermediate_size", 12288));
    TRY(family_positive("block_ff_dim", ffn, 1 << 22, err));
    if (json_get_bool(j, "block_auto_adjust_ff_dim", true)) {
        int64_t unit = json_get_int(j, "block_multiple_of", 256);
        TRY(family_positive("block_multiple_of", unit, 1 << 22, err));
        const int64_t two_thirds = 2 * ffn / 3;
        const double multiplier = json_get_number(j, "block_ffn_dim_multiplier", 1.0);
        ffn = (int64_t)(multiplier * (double)two_thirds);
        TRY(family_positive("block_ffn_dim_multiplier", ffn, 1 << 22, err));
        ffn = (ffn + unit - 1) / unit * unit;
    }
    family_ffn(c, (int32_t)ffn);
    return OK;
}

static enum status read_lfm2_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_lfm2_layers(j, c, err));
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    TRY(family_routing_v3(j, c, err));
    TRY(family_must_be(j, "use_expert_bias", true, err));
    int64_t dense = json_get_int(j, "num_dense_layers", 0);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = i >= dense;
    }
    return OK;
}

/* In each four layers one has full attention and, except in the first four, one a window. */
static void lfm3_layers(const struct json *j, struct model_config *c)
{
    const int32_t window = (int32_t)json_get_int(j, "sliding_window", 0);
    for (int32_t i = 0; i < c->n_layers; i++) {
        const bool full = i % 4 == 2, slides = i % 4 == 0 && i > 0;
        if (!full && !slides) {
            make_state(c, i);
        }
        c->layers[i].window = slides ? greater(window, 0) : 0;
    }
}

/* LFM2 with windows, a gate for each head, and norms around each sub-layer. */
static enum status read_lfm3(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_convs(j, c, err));
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    if (json_get_bool(j, "use_attention_gate", true)) {
        c->attn_gate = ATTN_GATE_HEADS;
        TRY(family_must_be(j, "attention_bias", false, err)); // the gates would have none
    }
    c->norm_place = NORM_SANDWICH;
    if (!json_get_bool(j, "use_sandwich_norm", true)) {
        c->names = &lfm3_bare_names;
        c->norm_place = NORM_PRE;
    }
    lfm3_layers(j, c);
    return OK;
}

static const struct family rows[] = {
    {.model_type = "granitemoehybrid",
     .names = &granite_names,
     .defaults = "{\"attention_multiplier\":1,\"mamba_n_groups\":1,\"mamba_d_conv\":4,"
                 "\"mamba_d_state\":256,\"mamba_n_heads\":128}",
     .read = read_granite_hybrid},
    {.model_type = "bamba",
     .names = &bamba_names,
     .defaults = "{\"mamba_n_groups\":1,\"mamba_d_conv\":4,\"mamba_d_state\":256,"
                 "\"mamba_n_heads\":128,\"rms_norm_eps\":1e-5,\"num_key_value_heads\":8}",
     .read = read_bamba},
    {.model_type = "falcon_h1",
     .names = &bamba_names,
     .defaults = "{\"mamba_n_groups\":1,\"mamba_d_conv\":4,\"mamba_d_state\":256,"
                 "\"mamba_n_heads\":128,\"rms_norm_eps\":1e-5,\"num_key_value_heads\":8}",
     .read = read_falcon_h1},
    {.model_type = "nemotron_h",
     .names = &nemotron_names,
     .defaults = "{\"n_groups\":8,\"conv_kernel\":4,\"ssm_state_size\":128,"
                 "\"mamba_num_heads\":128,\"mamba_head_dim\":64,\"mlp_hidden_act\":\"relu2\","
                 "\"num_key_value_heads\":8,\"head_dim\":128}",
     .read = read_nemotron_h},
    {.model_type = "lfm2",
     .names = &lfm2_names,
     .defaults = "{\"conv_L_cache\":3,\"num_key_value_heads\":8,\"rope_theta\":1000000}",
     .read = read_lfm2},
    {.model_type = "lfm2_moe",
     .names = &lfm2_names,
     .defaults = "{\"conv_L_cache\":3,\"num_key_value_heads\":8,\"rope_theta\":1000000,"
                 "\"num_dense_layers\":2,\"routed_scaling_factor\":1}",
     .read = read_lfm2_moe},
    {.model_type = "lfm3",
     .names = &lfm3_names,
     .defaults = "{\"conv_L_cache\":7,\"num_key_value_heads\":4,\"head_dim\":128,"
                 "\"sliding_window\":256,\"eos_token_id\":124900,\"rope_theta\":1000000,"
                 "\"max_position_embeddings\":128000,\"rope_of_class\":{"
                 "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000},"
                 "\"full_attention\":{\"rope_type\":\"proportional\",\"rope_theta\":1000000,"
                 "\"partial_rotary_factor\":0.5}}}",
     .read = read_lfm3},
};
const struct family_table families_mamba = {rows, sizeof rows / sizeof rows[0]};
