// SPDX-License-Identifier: Apache-2.0
/* Reads a checkpoint, by the tensor names of its family, and passes each weight to the backend,
 * whole or this rank's slice: norms, what surrounds the two halves of each layer, and the ends of
 * the model. */
#include "engine/model/adapter_fill.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Of alternatives between bars, the first one that the checkpoint has, or the last one. */
static void norm_name(const struct loader *l, const char *names, int32_t layer,
                      char out[NAME_BYTES])
{
    for (const char *at = names;; at += strcspn(at, "|") + 1) {
        char base[NAME_BYTES];
        const size_t n = strcspn(at, "|");
        snprintf(base, sizeof base, "%.*s", (int)n, at);
        part_layer_name(base, layer, out);
        if (!at[n] || part_exists(l, out)) {
            return;
        }
    }
}

static enum status layer_norm(struct loader *l, const char *names, int32_t layer, bool bias,
                              const struct weight **weight, const struct weight **bias_out)
{
    if (!names) {
        return OK;
    }
    char name[NAME_BYTES];
    norm_name(l, names, layer, name);
    TRY(part_norm(l, name, l->c->layer_norms_less_one, weight));
    if (bias) {
        return part_vector(l, name, ".bias", l->c->hidden, bias_out);
    }
    return OK;
}

/* Loads the weights with which a layer processes its per-layer input. */
static enum status load_layer_input(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const int64_t hidden = c->hidden, width = c->layer_input;
    char name[NAME_BYTES];
    if (width == 0) {
        return OK;
    }
    part_layer_name(c->names->input_gate, layer, name);
    struct stack gate = {
        .pieces = {{name, width, 0, width}}, .n = 1, .n_in = hidden, .n_cols = hidden};
    TRY(part_linear(l, &gate, l->options->dtype, &w->input_gate));
    part_layer_name(c->names->input_up, layer, name);
    struct stack up = {
        .pieces = {{name, hidden, 0, hidden}}, .n = 1, .n_in = width, .n_cols = width};
    TRY(part_linear(l, &up, l->options->dtype, &w->input_up));
    return layer_norm(l, c->names->input_post_norm, layer, false, &w->input_post_norm, NULL);
}

/* Loads the factor of the layer's output; dummy weights have 1. */
static enum status load_layer_scale(struct loader *l, int32_t layer, struct layer_weights *w)
{
    struct weight_part scale;
    char name[NAME_BYTES];
    w->x_scale = l->c->ffn_x_scale;
    if (!l->c->scaled_layers) {
        return OK;
    }
    part_layer_name(l->c->names->layer_scale, layer, name);
    TRY(part_of(l, name, (int64_t[]){1}, 1, &scale));
    if (weight_part_is_dummy(&scale)) {
        w->x_scale = 1.0f;
    } else {
        w->x_scale = weight_part_get(&scale, 0, 0);
    }
    if (!isfinite(w->x_scale) || fabsf(w->x_scale) <= 0.0f) { // 0 means "none" to the ops
        return err_set(l->err, ERR_FORMAT, "%s: tensor %s is %g",
                       checkpoint_where(l->options->checkpoint), name, (double)w->x_scale);
    }
    return OK;
}

/* Some files contain norms of MLPs that are not computed. */
static enum status load_ffn_post_norm(struct loader *l, const char *base, int32_t layer,
                                      struct layer_weights *w)
{
    const struct model_config *c = l->c;
    char name[NAME_BYTES];
    if (base && c->mlp_without_post_norm && !c->layers[layer].moe) {
        part_layer_name(base, layer, name);
        part_pass_over(l, name);
        return OK;
    }
    return layer_norm(l, base, layer, false, &w->ffn_post_norm, NULL);
}

/* The names of a layer's norms. */
static struct tensor_names norms_of(const struct model_config *c, int32_t layer)
{
    struct tensor_names names = *c->names;
    if (c->layers[layer].state >= 0 && names.state->attn_norm) {
        names.attn_norm = names.state->attn_norm;
        names.ffn_norm = names.state->ffn_norm;
        names.attn_post_norm = names.ffn_post_norm = NULL;
    }
    return names;
}

static enum status load_norm_gate(struct loader *l, const char *base, int32_t layer,
                                  struct norm_gate *out)
{
    const int64_t hidden = l->c->hidden, rank = l->c->norm_gate_rank;
    char module[NAME_BYTES], in[NAME_BYTES], gate[NAME_BYTES];
    part_layer_name(base, layer, module);
    snprintf(in, sizeof in, "%.240s.W_down", module);
    snprintf(gate, sizeof gate, "%.240s.W_up", module);
    struct stack first = {
        .pieces = {{in, rank, 0, rank}}, .n = 1, .n_in = hidden, .n_cols = hidden, .adapts = true};
    struct stack second = {.pieces = {{gate, hidden, 0, hidden}},
                           .n = 1,
                           .n_in = rank,
                           .n_cols = rank,
                           .adapts = true};
    TRY(part_linear(l, &first, l->options->dtype, &out->in));
    return part_linear(l, &second, l->options->dtype, &out->out);
}

/* Loads the gates of a layer's norms. */
static enum status load_norm_gates(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    if (c->norm_gate_rank == 0) {
        return OK;
    }
    TRY(load_norm_gate(l, c->names->attn_norm_gate, layer, &w->attn_norm_gate));
    if (!c->layers[layer].moe) {
        return OK;
    }
    return load_norm_gate(l, c->names->ffn_norm_gate, layer, &w->ffn_norm_gate);
}

/* Loads the norms before the last products of both sub-layers. */
static enum status load_inner_norms(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct tensor_names *names = l->c->names;
    const struct layer_config *lc = &l->c->layers[layer];
    char name[NAME_BYTES];
    if (names->o_norm) {
        part_layer_name(names->o_norm, layer, name);
        TRY(part_vector(l, name, ".weight", (int64_t)lc->n_heads * lc->head_dim, &w->o_norm));
    }
    if (names->down_norm) {
        part_layer_name(names->down_norm, layer, name);
        TRY(part_vector(l, name, ".weight", lc->ffn, &w->down_norm));
    }
    return OK;
}

/* Loads the norm before a layer's mixer. Where the embedding has a norm, that is the first layer's,
 * and if norms follow the sums, the norm before a layer is the last one of the layer before it. */
static enum status load_attn_norm(struct loader *l, const struct tensor_names *names, int32_t layer,
                                  struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const int32_t owner = c->norm_place == NORM_SUM ? layer - 1 : layer;
    if (names->embed_norm && layer == 0) {
        return OK;
    }
    return layer_norm(l, names->attn_norm, owner, c->norm_bias, &w->attn_norm, &w->attn_norm_bias);
}

/* Each loader skips weights that the layer does not have. */
static enum status load_layer(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct tensor_names norms = norms_of(c, layer), *names = &norms;
    const struct layer_config *lc = &c->layers[layer];
    if (lc->kv >= 0 || lc->state >= 0) {
        TRY(load_attn_norm(l, names, layer, w));
        TRY(layer_norm(l, names->attn_post_norm, layer, false, &w->attn_post_norm, NULL));
    }
    if ((!c->parallel_residual || c->parallel_norms) && !lc->no_ffn) {
        TRY(layer_norm(l, names->ffn_norm, layer, c->norm_bias, &w->ffn_norm, &w->ffn_norm_bias));
    }
    TRY(load_norm_gates(l, layer, w));
    TRY(load_inner_norms(l, layer, w));
    TRY(load_ffn_post_norm(l, names->ffn_post_norm, layer, w));
    TRY(load_attention(l, layer, w));
    TRY(load_recurrent(l, layer, w));
    TRY(load_layer_input(l, layer, w));
    TRY(load_streams(l, layer, w));
    TRY(load_layer_scale(l, layer, w));
    TRY(load_hyper(l, layer, w));
    return load_ffn(l, layer, w);
}

/* Loads the weights from which the per-layer inputs of all layers are computed. */
static enum status load_inputs(struct loader *l)
{
    const struct model_config *c = l->c;
    const int64_t all = (int64_t)c->n_layers * c->layer_input;
    if (c->layer_input == 0) {
        return OK;
    }
    TRY(part_table(l, c->names->inputs_embed, c->inputs_vocab, all, &l->m->inputs_embed));
    struct stack proj = {.pieces = {{c->names->inputs_proj, all, 0, all}},
                         .n = 1,
                         .n_in = c->hidden,
                         .n_cols = c->hidden};
    TRY(part_linear(l, &proj, l->options->dtype, &l->m->inputs_proj));
    return part_vector(l, c->names->inputs_norm, ".weight", c->layer_input, &l->m->inputs_norm);
}

/* If norms follow the sums, the final norm is that of the last layer. */
static enum status load_final_norm(struct loader *l)
{
    const struct model_config *c = l->c;
    struct model *m = l->m;
    if (c->norm_place == NORM_SUM) {
        return layer_norm(l, c->names->attn_norm, c->n_layers - 1, c->norm_bias, &m->final_norm,
                          &m->final_norm_bias);
    }
    TRY(part_norm(l, c->names->final_norm, false, &m->final_norm));
    return c->norm_bias
               ? part_vector(l, c->names->final_norm, ".bias", c->hidden, &m->final_norm_bias)
               : OK;
}

/* Loads the embedding, the final norm and the output head. A tied head is the embedding itself,
 * unless the ranks share its rows. */
static enum status load_ends(struct loader *l)
{
    const struct model_config *c = l->c;
    struct model *m = l->m;
    TRY(load_embedding(l));
    TRY(load_inputs(l));
    TRY(load_stream_ends(l));
    TRY(load_end_hyper(l));
    TRY(load_final_norm(l));
    if (part_is_headless(l)) {
        return OK;
    }
    bool tied = part_head_is_tied(l);
    if (tied && c->n_other_embeds > 0) {
        return err_set(l->err, ERR_UNSUPPORTED,
                       "the output head cannot be the embedding, which has %d more rows",
                       c->n_other_embeds);
    }
    if (tied && !m->shard.head_sharded) {
        m->head = m->embed;
        return OK;
    }
    const char *base = tied ? part_embed_name(l) : c->names->head;
    return part_head(l, base, true);
}

/* Learned factors of the rope's frequencies; dummy weights have none. */
static enum status load_rope_factors(struct loader *l)
{
    const struct model_config *c = l->c;
    const int64_t n = c->rope_dim / 2;
    struct weight_part alpha;
    if (!c->names->rope_alpha || !l->options->checkpoint) {
        return OK;
    }
    TRY(part_of(l, c->names->rope_alpha, &n, 1, &alpha));
    l->m->rope_factors = xmalloc((size_t)n * sizeof *l->m->rope_factors);
    for (int64_t i = 0; i < n; i++) {
        const float factor = expf(weight_part_get(&alpha, 0, i));
        if (!isfinite(factor)) {
            return err_set(l->err, ERR_FORMAT, "%s: tensor %s has an invalid element",
                           checkpoint_where(l->options->checkpoint), c->names->rope_alpha);
        }
        l->m->rope_factors[i] = factor;
    }
    return OK;
}

/* The device computes tables of angles from these frequencies. */
enum status model_open_ropes(struct model *m, struct err *err)
{
    const struct model_config *c = m->config;
    for (int32_t i = 0; i < c->n_ropes; i++) {
        struct rope_desc d = c->rope[i].desc;
        float scaled[MAX_ROPE_PAIRS];
        d.inv_freq = c->rope[i].inv_freq;
        for (int32_t k = 0; m->rope_factors && k < d.n_pairs; k++) {
            scaled[k] = d.inv_freq[k] * m->rope_factors[k];
        }
        if (m->rope_factors) {
            d.inv_freq = scaled;
        }
        enum status st = m->be->ops->rope_open(m->be, &d, &m->ropes[i]);
        if (st != OK) {
            return err_set(err, st,
                           "the rope tables do not fit the device; try a smaller --max-model-len");
        }
    }
    return OK;
}

static enum status divide_layer(const struct model_config *c, int32_t layer, int32_t n_ranks,
                                struct err *err)
{
    const struct layer_config *l = &c->layers[layer];
    const bool replicated = l->n_kv_heads < n_ranks;
    if (l->ffn % n_ranks == 0 && l->n_heads % n_ranks == 0 &&
        (c->kv_lora > 0 || l->kv < 0 ||
         (replicated ? n_ranks % l->n_kv_heads == 0 : l->n_kv_heads % n_ranks == 0))) {
        return OK;
    }
    return err_set(err, ERR_UNSUPPORTED,
                   "tensor parallel over %d ranks does not divide this model (%d heads, %d "
                   "key/value heads, ffn %d in layer %d)",
                   n_ranks, l->n_heads, l->n_kv_heads, l->ffn, layer);
}

/* Whether this many ranks can share the model. Every sharded size must be divisible by their
 * number. */
enum status model_shard_of(const struct model_config *c, int32_t rank, int32_t n_ranks,
                           struct model_shard *out, struct err *err)
{
    for (int32_t i = 0; i < c->n_layers; i++) {
        TRY(divide_layer(c, i, n_ranks, err));
    }
    if (c->moe_ffn % n_ranks != 0 || c->shared_ffn % n_ranks != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor parallel over %d ranks does not divide this model's experts (ffn "
                       "%d, of the shared ones %d)",
                       n_ranks, c->moe_ffn, c->shared_ffn);
    }
    *out = (struct model_shard){
        .rank = rank,
        .n_ranks = n_ranks,
        .moe_ffn = c->moe_ffn / n_ranks,
        .shared_ffn = c->shared_ffn / n_ranks,
        .head_sharded = n_ranks > 1 && c->vocab % n_ranks == 0,
    };
    out->vocab = out->head_sharded ? c->vocab / n_ranks : c->vocab;
    if (!state_shard_of(c, rank, n_ranks, &out->state)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor parallel over %d ranks does not divide the %d "
                       "heads of this model's recurrent layers",
                       n_ranks, c->state.layer.n_heads);
    }
    return OK;
}

enum dtype model_stored_dtype(const struct model_config *c, const struct checkpoint *checkpoint)
{
    struct model_load_options options = {.config = c, .checkpoint = checkpoint};
    struct loader l = {.options = &options, .c = c};
    part_find_form(&l);
    return part_embed_dtype(&l, c->dtype);
}

/* Some families round the factor of the embeddings to the model's dtype. */
static float embed_scale(const struct model_config *c, enum dtype dtype, float scale)
{
    int bits = 0;
    if (dtype == DT_BF16) {
        bits = 8;
    } else if (dtype == DT_F16) {
        bits = 11;
    }
    if (!c->embed_scale_rounded || bits == 0) {
        return scale;
    }
    int exponent;
    float mantissa = frexpf(scale, &exponent);
    return ldexpf(rintf(ldexpf(mantissa, bits)), exponent - bits);
}

/* An upper bound of the length of the model's vectors. */
static size_t widest_vector(const struct model_config *c)
{
    size_t ffn = 0, heads = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        ffn = greater((size_t)c->layers[i].ffn, ffn);
        heads = greater((size_t)c->layers[i].n_heads * (size_t)c->layers[i].head_dim, heads);
    }
    return ffn * 2 + (size_t)c->shared_ffn * 2 + (size_t)c->hidden + heads * 3 +
           (size_t)c->index.head_dim;
}

/* True if --quantization should give FP8 weights a scale per block of 128 x 128 and not per row:
 * for mixtures, whose experts' kernels are made for blocks, if all matrices consist of whole
 * blocks, so that all parts of a fused weight have the same kind of scale. Dense models are faster
 * with scales of rows. */
static bool wants_blocks(const struct model_config *c)
{
    enum { BLOCK = 128 };
    bool fits = c->n_experts > 0 && c->hidden % BLOCK == 0 && c->moe_ffn % BLOCK == 0 &&
                c->shared_ffn % BLOCK == 0 && c->kv_lora == 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        fits = fits && l->ffn % BLOCK == 0 && l->n_heads * l->head_dim % BLOCK == 0 &&
               l->n_kv_heads * l->head_dim % BLOCK == 0 &&
               (c->attn_gate != ATTN_GATE_HEADS || l->n_heads % BLOCK == 0);
    }
    return fits;
}

/* If this device cannot run the model, the error names the reason. */
static enum status check_device(const struct model_config *c, const struct backend *be,
                                const struct backend_facts *facts, bool adapted, struct err *err)
{
    if (c->n_experts > 0 && !c->gated && !facts->plain_experts) {
        return err_set(err, ERR_UNSUPPORTED,
                       "experts without a gate are not supported on this device yet; "
                       "--device cpu supports them");
    }
    if (c->head.kind != HEAD_NONE && !be->ops->hidden_open) {
        return err_set(err, ERR_UNSUPPORTED, "draft heads are not supported on this device");
    }
    const bool gates = c->attn_gate != ATTN_GATE_NONE || c->norm_gate_rank > 0;
    if ((c->n_state_layers > 0 && !be->ops->state_open) || (gates && !be->ops->gate)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: models with recurrent layers or gated attention "
                       "are not supported on this device",
                       c->model_type);
    }
    if (c->index.top_k > 0 && !(be->ops->index_store && be->ops->index_pick)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: models with sparse attention are not supported on this device",
                       c->model_type);
    }
    if (c->index.pool > 0 && !facts->pooled_keys) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: indexers that pool keys are not supported on this device yet; "
                       "--device cpu supports them",
                       c->model_type);
    }
    bool cuts = false;
    for (int32_t i = 0; i < c->n_layers; i++) {
        cuts = cuts || c->layers[i].cutoff.is_on;
    }
    if ((c->streams.n > 0 && !(be->ops->streams && be->ops->rms_match)) ||
        (cuts && !be->ops->cutoff)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: models with several residual streams or sparse activations are not "
                       "supported on this device",
                       c->model_type);
    }
    if (c->hyper.n > 0 && !be->ops->hyper) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: models with hyper-connections are not supported on this device",
                       c->model_type);
    }
    if (c->n_identity > 0 && !be->ops->moe_identity) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: experts that return their input are not supported on this device",
                       c->model_type);
    }
    if (adapted && !be->ops->linear_adapter) {
        return err_set(err, ERR_UNSUPPORTED, "adapters are not supported on this device");
    }
    return OK;
}

/* Loads everything that the checkpoint has for this model. */
static enum status load_weights(struct loader *l)
{
    const struct model_load_options *options = l->options;
    const struct model_config *c = l->c;
    TRY(c->head.kind == HEAD_NONE ? load_ends(l) : load_head(l));
    TRY(load_labels(l));
    for (int32_t i = 0; i < c->n_layers; i++) {
        TRY(load_layer(l, i, &l->m->layers[i]));
        if (options->on_progress) {
            options->on_progress((i + 1.0) / c->n_layers, options->progress_arg);
        }
    }
    TRY(load_adapters_end(l));
    TRY(load_rope_factors(l));
    TRY(model_open_ropes(l->m, l->err));
    if (l->taken && !c->head.in_target) {
        part_report_unused(l);
    }
    return OK;
}

/* Loads everything in a fixed order. At the end, unused tensors are reported, because an unused
 * tensor may mean that a name is wrong. */
enum status model_load(const struct model_load_options *options, struct backend *be,
                       struct model *out, struct err *err)
{
    const struct model_config *c = options->config;
    *out = (struct model){.config = c, .be = be, .index = options->index, .kv_set = options->index};
    TRY(model_shard_of(c, options->rank, options->n_ranks, &out->shard, err));
    struct backend_facts facts;
    TRY(be->ops->facts(be, &facts));
    out->act = facts.act;
    out->residual = facts.residual;
    out->exact_ranks = facts.exact_ranks;
    TRY(check_device(c, be, &facts, options->n_adapters > 0, err));
    out->embed_scale = embed_scale(c, options->dtype, c->embed_scale);
    out->inputs_scale = embed_scale(c, options->dtype, sqrtf((float)c->layer_input));
    out->layers = xcalloc((size_t)c->n_layers, sizeof *out->layers);
    size_t widest = widest_vector(c);
    struct loader l = {.options = options,
                       .c = c,
                       .m = out,
                       .be = be,
                       .err = err,
                       .n_const = widest,
                       .round_inputs = facts.rounds_inputs && !options->inputs_as_they_are &&
                                       options->dtype != DT_F32,
                       .seed = (uint64_t)options->index << 32};
    l.ones = xmalloc(widest * sizeof *l.ones);
    l.zeros = xcalloc(widest, sizeof *l.zeros);
    for (size_t i = 0; i < widest; i++) {
        l.ones[i] = 1.0f;
    }
    if (options->checkpoint && options->rank == 0) {
        size_t n;
        checkpoint_tensors(options->checkpoint, &n);
        l.taken = xcalloc(n, sizeof *l.taken);
    }
    l.adapted = xcalloc((size_t)adapters_n_modules(options->adapters) + 1, sizeof *l.adapted);
    struct quant *quant = NULL;
    enum status st = OK;
    const char *dir;
    if (options->checkpoint) {
        dir = checkpoint_dir(options->checkpoint);
    } else {
        dir = options->dummy_dir;
    }
    if (dir) {
        st = quant_open(dir, &quant, err);
    }
    l.quant = quant;
    // A draft head may be quantised though its target's checkpoint is already: parts that are stay.
    if (!quant || c->head.kind != HEAD_NONE) {
        const enum requantise_kind kind = options->requantise;
        l.requantise =
            (struct requantise){kind, .blocks = kind == REQUANTISE_FP8 && wants_blocks(c)};
    }
    const char *kv_cache = quant_kv_cache(quant);
    snprintf(out->kv_cache, sizeof out->kv_cache, "%s", or_empty(kv_cache));
    part_find_form(&l);
    if (st == OK) {
        st = load_weights(&l);
    }
    quant_close(quant);
    requantise_deinit(&l.requantise);
    free(l.ones);
    free(l.zeros);
    free(l.taken);
    free(l.adapted);
    return st;
}

void model_deinit(struct model *m)
{
    free(m->layers);
    free(m->rope_factors);
    for (int32_t i = 0; i < m->n_adapted; i++) {
        adapter_layout_free(m->adapted[i].layout);
    }
    free(m->adapted);
    free(m->draft.ids);
    pooling_deinit(&m->pooling);
    m->layers = NULL;
    m->rope_factors = NULL;
    m->adapted = NULL;
    m->n_adapted = 0;
    m->draft.ids = NULL;
}
