// SPDX-License-Identifier: Apache-2.0
/* Frequencies of rotary positions, computed as in transformers for each rope_type: default, linear,
 * dynamic, yarn, longrope, llama3, proportional. If they depend on the length of the input, the
 * served length is used instead (rope_fit), because keys in the cache are already rotated. */
#include "engine/base/json.h"
#include "engine/base/optional.h"
#include "engine/model/config.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

/* How much of a head of head_dim elements is rotated. */
struct rope_share {
    int32_t head_dim;
    double partial;
};

struct rope_input {
    const struct json *params, *config;
    double theta, factor;
    struct rope_share share;
    int32_t dim, max_pos; // dim: rotated dimensions
};

/* The length at which the model was trained before it was extended. The top-level key takes
 * precedence. */
static double original_length(const struct rope_input *in)
{
    double original = json_get_number(in->params, "original_max_position_embeddings", in->max_pos);
    return json_get_number(in->config, "original_max_position_embeddings", original);
}

static void frequencies(int32_t n_pairs, double theta, float *inv_freq)
{
    for (int32_t i = 0; i < n_pairs; i++) {
        inv_freq[i] = (float)pow(theta, -2.0 * i / (2.0 * n_pairs));
    }
}

static void base_frequencies(const struct rope_input *in, double theta, struct rope_config *out)
{
    frequencies(in->dim / 2, theta, out->inv_freq);
}

static enum status read_default(const struct rope_input *in, struct rope_config *out,
                                struct err *err)
{
    (void)err;
    base_frequencies(in, in->theta, out);
    return OK;
}

/* Positions are divided by the factor, which is the same as dividing the frequencies. */
static enum status read_linear(const struct rope_input *in, struct rope_config *out,
                               struct err *err)
{
    (void)err;
    base_frequencies(in, in->theta, out);
    for (int32_t i = 0; i < in->dim / 2; i++) {
        out->inv_freq[i] = (float)((double)out->inv_freq[i] / in->factor);
    }
    return OK;
}

/* Hunyuan's dynamic scaling does not depend on the length. */
double rope_alpha(const struct json *config)
{
    bool has = json_get_bool(config, "rope_alpha_of_class", false);
    if (has) {
        return json_get_number(rope_params(config), "alpha", 0.0);
    }
    return 0.0;
}

/* The base is fixed at load. */
static enum status read_alpha(const struct rope_input *in, struct rope_config *out, struct err *err)
{
    const double alpha = rope_alpha(in->config);
    if (!(alpha > 0.0)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "rope: %s scaling needs an alpha, and a family with it",
                       rope_type(in->params));
    }
    const double power = in->dim > 2 ? in->dim / (in->dim - 2.0) : 0.0;
    base_frequencies(in, in->theta * pow(alpha, power), out);
    return OK;
}

/* With alpha (Hunyuan) the base is fixed. Otherwise frequencies depend on the length of the
 * text (NTK-aware growth). */
static enum status read_dynamic(const struct rope_input *in, struct rope_config *out,
                                struct err *err)
{
    if (rope_alpha(in->config) > 0.0) {
        return read_alpha(in, out, err);
    }
    out->growth = ROPE_DYNAMIC;
    out->theta = in->theta;
    out->factor = in->factor;
    out->trained_len = in->max_pos;
    base_frequencies(in, in->theta, out);
    return OK;
}

/* Long wavelengths are divided by the factor, short ones are kept, and those between are
 * interpolated. */
static enum status read_llama3(const struct rope_input *in, struct rope_config *out,
                               struct err *err)
{
    double low = json_get_number(in->params, "low_freq_factor", 1.0);
    double high = json_get_number(in->params, "high_freq_factor", 4.0);
    double original = original_length(in);
    if (!(high >= low) || !(low > 0.0) || !(original > 0.0)) {
        return err_set(err, ERR_FORMAT, "rope: llama3 scaling with invalid factors");
    }
    base_frequencies(in, in->theta, out);
    for (int32_t i = 0; i < in->dim / 2; i++) {
        double inv = (double)out->inv_freq[i];
        double wavelength = 2.0 * PI / inv;
        if (wavelength > original / low) {
            inv /= in->factor;
        } else if (wavelength >= original / high && high > low) {
            double smooth = (original / wavelength - low) / (high - low);
            inv = (1.0 - smooth) * inv / in->factor + smooth * inv;
        }
        out->inv_freq[i] = (float)inv;
    }
    return OK;
}

static double yarn_mscale(double scale, double factor)
{
    if (factor <= 1.0) {
        return 1.0;
    }
    return 0.1 * scale * log(factor) + 1.0;
}

/* YaRN: over the dimensions, a ramp between extrapolated and interpolated frequencies, and a factor
 * for the attention scale. */
static enum status read_yarn(const struct rope_input *in, struct rope_config *out, struct err *err)
{
    double fast = json_get_number(in->params, "beta_fast", 32.0);
    double slow = json_get_number(in->params, "beta_slow", 1.0);
    double original = original_length(in);
    double factor = json_get_number(in->params, "factor", in->max_pos / original);
    bool truncate = json_get_bool(in->params, "truncate", true);
    double mscale = json_get_number(in->params, "mscale", 0.0);
    double mscale_all = json_get_number(in->params, "mscale_all_dim", 0.0);
    if (!(fast > 0.0) || !(slow > 0.0) || !(original > 0.0) || !(in->theta > 1.0)) {
        return err_set(err, ERR_FORMAT, "rope: yarn scaling with invalid parameters");
    }
    double d = in->dim, per_log = d / (2.0 * log(in->theta));
    double low = per_log * log(original / (fast * 2.0 * PI));
    double high = per_log * log(original / (slow * 2.0 * PI));
    if (truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, d - 1.0);
    if (low == high) {
        high += 0.001;
    }
    base_frequencies(in, in->theta, out);
    for (int32_t i = 0; i < in->dim / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
        double inv = (double)out->inv_freq[i];
        out->inv_freq[i] = (float)(inv / factor * ramp + inv * (1.0 - ramp));
    }
    double attention;
    if (mscale != 0.0 && mscale_all != 0.0) {
        attention = yarn_mscale(mscale, factor) / yarn_mscale(mscale_all, factor);
    } else {
        attention = yarn_mscale(1.0, factor);
    }
    attention = json_get_number(in->params, "attention_factor", attention);
    out->desc.attention_factor = (float)attention;
    return OK;
}

/* longrope has a factor for each pair, in two lists: one for short and one for long contexts. */
static enum status read_factors(const struct rope_input *in, const char *key, float *inv_freq,
                                struct err *err)
{
    const struct json *factors = json_get(in->params, key);
    if (!json_is(factors, JSON_ARRAY) || json_count(factors) != (size_t)in->dim / 2) {
        return err_set(err, ERR_FORMAT, "rope: longrope's %s needs %d entries", key, in->dim / 2);
    }
    frequencies(in->dim / 2, in->theta, inv_freq);
    int32_t i = 0;
    for (const struct json *f = json_first(factors); f; f = json_next(f), i++) {
        inv_freq[i] = (float)((double)inv_freq[i] / json_number(f, 1.0));
    }
    return OK;
}

/* The list for long contexts applies to texts longer than the original length. */
static enum status read_longrope(const struct rope_input *in, struct rope_config *out,
                                 struct err *err)
{
    double original = original_length(in);
    TRY(read_factors(in, "short_factor", out->inv_freq, err));
    TRY(read_factors(in, "long_factor", out->long_freq, err));
    if (!(original > 1.0)) {
        return err_set(err, ERR_FORMAT, "rope: longrope for an original length of 1");
    }
    memcpy(out->short_freq, out->inv_freq, sizeof out->short_freq);
    out->growth = ROPE_LONG;
    out->trained_len = original;
    double grown = json_get_number(in->params, "factor", in->max_pos / original);
    double attention;
    if (grown <= 1.0) {
        attention = 1.0;
    } else {
        attention = sqrt(1.0 + log(grown) / log(original));
    }
    attention = json_get_number(in->params, "attention_factor", attention);
    out->desc.attention_factor = (float)attention;
    return OK;
}

/* The elements of a pair are half a head apart, and pairs beyond the rotated share are left
 * alone. */
static enum status read_proportional(const struct rope_input *in, struct rope_config *out,
                                     struct err *err)
{
    (void)err;
    const int32_t turning = (int32_t)floor(in->share.partial * in->dim / 2.0);
    base_frequencies(in, in->theta, out);
    for (int32_t i = 0; i < in->dim / 2; i++) {
        if (i < turning) {
            out->inv_freq[i] = (float)((double)out->inv_freq[i] / in->factor);
        } else {
            out->inv_freq[i] = 0.0f;
        }
    }
    return OK;
}

/* One row per name in "rope_type". rope_type() reads some other names as these. */
static const struct rope_row {
    const char *name;
    enum status (*read)(const struct rope_input *in, struct rope_config *out, struct err *err);
    bool needs_factor, whole; // whole: pairs span the whole head, even if only a part is rotated
} rope_rows[] = {
    {"default", read_default, false, false}, {"linear", read_linear, true, false},
    {"dynamic", read_dynamic, true, false},  {"llama3", read_llama3, true, false},
    {"yarn", read_yarn, false, false},       {"longrope", read_longrope, false, false},
    {"su", read_longrope, false, false},     {"proportional", read_proportional, false, true},
    {"ntk_alpha", read_alpha, false, false}, {"xdrope", read_alpha, false, false},
    {"mrope", read_default, false, false}, // older files of Qwen2-VL; the sections are read nowhere
};

/* The older key is used if it has any members, because files with both were converted from the
 * older form. */
const struct json *rope_params(const struct json *config)
{
    const struct json *older = json_get(config, "rope_scaling");
    const struct json *newer = json_get(config, "rope_parameters");
    if (json_is(older, JSON_OBJECT) && json_count(older) > 0) {
        return older;
    }
    if (json_is(newer, JSON_OBJECT)) {
        return newer;
    }
    return json_get(config, "rope_of_class");
}

const char *rope_type(const struct json *params)
{
    const char *type = json_get_string(params, "rope_type");
    if (!type) {
        type = json_get_string(params, "type");
    }
    if (type && strcmp(type, "deepseek_yarn") == 0) { // Sarvam's name for it
        return "yarn";
    }
    return or_text(type, "default");
}

static const struct rope_row *find_row(const struct json *params)
{
    const char *type = rope_type(params);
    if (strcmp(type, "yarn") == 0 && json_is(json_get(params, "long_factor"), JSON_ARRAY)) {
        type = "longrope"; // the name that the first Phi models use
    }
    for (size_t i = 0; i < sizeof rope_rows / sizeof rope_rows[0]; i++) {
        if (strcmp(rope_rows[i].name, type) == 0) {
            return &rope_rows[i];
        }
    }
    return NULL;
}

/* The rope that these parameters describe. */
static enum status rope_of(const struct json *params, double theta, struct rope_share share,
                           const struct json *config, struct rope_config *out, struct err *err)
{
    const struct rope_row *row = find_row(params);
    if (!row) {
        return err_set(err, ERR_UNSUPPORTED, "rope: unknown scaling '%s'", rope_type(params));
    }
    if (row->needs_factor && json_type(json_get(params, "factor")) == JSON_NULL &&
        !(rope_alpha(config) > 0.0)) {
        return err_set(err, ERR_FORMAT, "rope: %s scaling without a factor", row->name);
    }
    int32_t dim;
    if (row->whole) {
        dim = share.head_dim;
    } else {
        dim = (int32_t)(share.head_dim * share.partial);
    }
    int32_t max_pos = (int32_t)json_get_int(config, "max_position_embeddings", 2048);
    struct rope_input in = {
        .params = params,
        .config = config,
        .theta = theta,
        .factor = json_get_number(params, "factor", 1.0),
        .share = share,
        .dim = dim,
        .max_pos = max_pos,
    };
    if (dim < 2 || dim % 2 || dim / 2 > MAX_ROPE_PAIRS) {
        return err_set(err, ERR_UNSUPPORTED, "rope: %d rotated dimensions are not supported", dim);
    }
    if (!(in.theta > 0.0) || !(in.factor > 0.0)) {
        return err_set(err, ERR_FORMAT, "rope: theta and factor must be above 0");
    }
    out->desc = (struct rope_desc){.n_pairs = dim / 2, .attention_factor = 1.0f};
    out->growth = ROPE_FIXED;
    return row->read(&in, out, err);
}

bool rope_fit(struct rope_config *rope, int32_t max_len)
{
    float before[MAX_ROPE_PAIRS];
    memcpy(before, rope->inv_freq, sizeof before);
    int32_t dim = 2 * rope->desc.n_pairs;
    rope->desc.max_pos = max_len;
    if (rope->growth == ROPE_LONG) {
        bool is_long = max_len > rope->trained_len;
        memcpy(rope->inv_freq, is_long ? rope->long_freq : rope->short_freq, sizeof rope->inv_freq);
    } else if (rope->growth == ROPE_DYNAMIC) {
        double theta = rope->theta;
        if (max_len > rope->trained_len && dim > 2) {
            double grown = rope->factor * max_len / rope->trained_len - (rope->factor - 1.0);
            theta *= pow(grown, (double)dim / (dim - 2));
        }
        frequencies(rope->desc.n_pairs, theta, rope->inv_freq);
    }
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): whether any bit has changed
    return memcmp(before, rope->inv_freq, sizeof before) != 0;
}

/* Assigns a rope to each layer. */
static void choose_ropes(struct model_config *c)
{
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        if (l->rope == 0 && l->window > 0) {
            l->rope = c->n_ropes - 1;
        } else if (c->full_without_rope) {
            l->rope = -1;
        }
    }
}

/* Reads a rope, for the head size of the layers that use it. */
static enum status read_rope(const struct json *params, double theta, const struct json *j,
                             int32_t rope, struct model_config *c, struct err *err)
{
    double partial = json_get_number(j, "partial_rotary_factor", (double)c->partial_rotary);
    if (c->rope_share[rope] > 0.0) {
        partial = c->rope_share[rope];
    }
    if (c->rope_theta[rope] > 0.0) {
        theta = c->rope_theta[rope];
    } else {
        theta = json_get_number(params, "rope_theta", theta);
    }
    partial = json_get_number(params, "partial_rotary_factor", partial);
    int32_t head_dim = c->head_dim;
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (c->layers[i].rope == rope) {
            head_dim = c->layers[i].head_dim;
        }
    }
    const bool interleaved = c->rope[0].desc.interleaved;
    struct rope_share share = {c->kv_lora ? c->rope_dim : head_dim, c->kv_lora ? 1.0 : partial};
    TRY(rope_of(params, theta, share, j, &c->rope[rope], err));
    c->rope[rope].desc.interleaved = interleaved;
    if (c->rope_attention > 0.0f) {
        c->rope[rope].desc.attention_factor = c->rope_attention;
    }
    for (int32_t i = 0; c->rope_backwards && i < MAX_ROPE_PAIRS; i++) {
        c->rope[rope].inv_freq[i] = -c->rope[rope].inv_freq[i];
    }
    return OK;
}

/* The indexers' rope differs from that of the layers at most in its pairs. It takes the place of
 * the rope of layers with a window. */
static void add_index_rope(struct model_config *c)
{
    if (c->index.top_k > 0 && c->index.interleaved != c->rope[0].desc.interleaved) {
        c->index.rope = c->n_ropes++;
        c->rope[c->index.rope] = c->rope[0];
        c->rope[c->index.rope].desc.interleaved = c->index.interleaved;
    }
}

/* Reads both forms: transformers 5's rope_parameters, which may be given per layer type, and the
 * older rope_theta with rope_scaling. */
enum status ropes_read(const struct json *j, struct model_config *c, struct err *err)
{
    double theta = json_get_number(j, "rope_theta", 10000.0);
    const struct json *params = rope_params(j), *full = json_get(params, "full_attention");
    const struct json *sliding = json_get(params, "sliding_attention");
    const bool own = c->rope_theta[0] > 0.0 || c->rope_theta[1] > 0.0;
    if (json_is(json_get(j, "rope_theta"), JSON_ARRAY) && !own) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: rope_theta must be a number in this family");
    }
    if (json_is(full, JSON_OBJECT) || json_is(sliding, JSON_OBJECT)) {
        c->n_ropes = 2;
    } else {
        full = params;
        sliding = NULL;
    }
    if (c->kv_lora > 0 && c->n_ropes > 1) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: rope_parameters of each type of layer are not supported with "
                       "latent attention");
    }
    if (c->kv_lora > 0 && c->rope_dim == 0) {
        c->n_ropes = 0;
        return OK;
    }
    choose_ropes(c);
    if (c->n_ropes == 2) { // the rope of the sliding layers; the older form never scales it
        double local = json_get_number(j, "rope_local_base_freq", 10000.0);
        TRY(read_rope(sliding, local, j, 1, c, err));
    }
    bool together = json_get_bool(j, "rope_pairs_together", c->rope[0].desc.interleaved);
    TRY(read_rope(full, theta, j, 0, c, err));
    c->rope[0].desc.interleaved = together;
    c->rope[1].desc.interleaved = together;
    add_index_rope(c);
    return OK;
}
