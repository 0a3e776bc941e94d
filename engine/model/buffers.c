// SPDX-License-Identifier: Apache-2.0
/* Memory of a model's forward pass: its activations, sized for the largest pass, and the
 * description of what each layer stores in the KV cache. */
#include "engine/base/assert.h"
#include "engine/base/minmax.h"
#include "engine/model/model.h"

/* One buffer: a matrix of activations, or rows of something else. */
struct buffer_plan {
    struct tensor *t;
    struct dmem *raw; // used if t is NULL
    enum dtype dtype;
    int64_t width, rows;
};

struct widths {
    int64_t qkv, attn, ffn;
    int64_t low;   // MLA
    int64_t heads; // number of heads
};

static int64_t larger(int64_t a, int64_t b)
{
    return greater(a, b);
}

/* The largest width of each shared buffer that any layer needs. */
static struct widths widest_of(const struct model *m)
{
    const struct model_config *c = m->config;
    struct widths w = {.ffn = larger(m->shard.shared_ffn, larger(c->layer_input, c->branch_rank)),
                       .attn = m->shard.state.out_width};
    for (int32_t i = 0; i < c->n_layers; i++) {
        const struct layer_share share = model_layer_share(c, &m->shard, i);
        const int64_t hd = c->layers[i].head_dim, n_heads = share.n_heads;
        int64_t qkv;
        if (c->kv_lora) {
            qkv = n_heads * (c->nope_dim + c->rope_dim);
        } else {
            qkv = (n_heads + 2 * share.n_kv_heads) * hd;
        }
        const int64_t attn = n_heads * (c->kv_lora ? c->v_dim : hd);
        const int64_t gates[] = {0, attn, n_heads}; // by enum attn_gate
        const int64_t index = (int64_t)model_index_share(c, &share).n * c->index.head_dim;
        const int64_t of_gates = gates[c->attn_gate];
        const int64_t low = (c->q_twice ? 2 : 1) * (int64_t)c->q_lora + c->kv_lora + c->rope_dim;
        w.qkv = larger(w.qkv, qkv + index + (model_gates_in_low(c) ? 0 : of_gates));
        w.low = larger(w.low, low + (model_gates_in_low(c) ? of_gates : 0));
        w.attn = larger(w.attn, attn);
        w.ffn = larger(w.ffn, share.gates);
        w.heads = larger(w.heads, n_heads);
    }
    return w;
}

/* Each of these writes the rows of some buffers, and returns their number. */

/* Of latent and sparse attention. */
static int32_t plan_sparse_and_latent(struct model *m, const struct widths *w, int32_t max_rows,
                                      struct buffer_plan *p)
{
    const struct model_config *c = m->config;
    int32_t n = 0;
    const int64_t kv_low = c->kv_lora + c->rope_dim;
    if (c->kv_lora > 0) {
        p[n++] = (struct buffer_plan){&m->low, NULL, m->act, w->low, max_rows};
        p[n++] = (struct buffer_plan){&m->q_abs, NULL, m->act, w->heads * kv_low, max_rows};
        p[n++] = (struct buffer_plan){&m->attn_v, NULL, m->act, w->heads * c->kv_lora, max_rows};
    }
    if (c->index.top_k > 0) {
        const int64_t key = c->index.head_dim * (c->index.pool > 0 ? 2 : 1);
        p[n++] = (struct buffer_plan){&m->index_k, NULL, m->act, key, max_rows};
        p[n++] = (struct buffer_plan){&m->index_weights, NULL, m->act, c->index.n_heads, max_rows};
    }
    return n;
}

/* Of several streams, the branch beside attention, and inputs of layers. */
static int32_t plan_residual(struct model *m, int32_t max_rows, int32_t max_out,
                             struct buffer_plan *p)
{
    const struct model_config *c = m->config;
    int32_t n = 0;
    if (c->hyper.n > 0) {
        const int64_t all = (int64_t)c->hyper.n * c->hidden, gates = HYPER_GATES(c->hyper.n);
        p[n++] = (struct buffer_plan){&m->streams, NULL, m->residual, all, max_rows};
        p[n++] = (struct buffer_plan){&m->gates, NULL, DT_F32, gates, max_rows};
        p[n++] = (struct buffer_plan){&m->out_streams, NULL, m->residual, all, max_out};
        p[n++] = (struct buffer_plan){&m->out_gates, NULL, DT_F32, gates, max_out};
    }
    if (c->layer_input > 0) {
        const int64_t all = (int64_t)c->n_layers * c->layer_input;
        p[n++] = (struct buffer_plan){&m->inputs, NULL, m->residual, all, max_rows};
        p[n++] = (struct buffer_plan){&m->inputs_proj_out, NULL, m->act, all, max_rows};
        p[n++] = (struct buffer_plan){&m->out_input, NULL, m->residual, c->layer_input, max_out};
    }
    if (c->streams.n > 0) {
        const int64_t all = (int64_t)c->streams.n * c->hidden;
        p[n++] = (struct buffer_plan){&m->streams, NULL, m->residual, all, max_rows};
        p[n++] = (struct buffer_plan){&m->out_streams, NULL, m->residual, all, max_out};
    }
    if (c->branch_rank > 0) {
        p[n++] = (struct buffer_plan){&m->branch, NULL, m->act, c->hidden, max_rows};
    }
    return n;
}

static int32_t plan_states(struct model *m, int32_t max_rows, struct buffer_plan *p)
{
    const struct model_config *c = m->config;
    int32_t n = 0;
    const struct state_shard *s = &m->shard.state;
    if (c->n_state_layers > 0) {
        const struct state_layer *g = &s->layer;
        p[n++] = (struct buffer_plan){&m->mix, NULL, m->act, s->width, max_rows};
        p[n++] = (struct buffer_plan){&m->mix_conv, NULL, m->act, g->conv_width, max_rows};
        if (c->state.fixed_decays) {
            p[n++] = (struct buffer_plan){&m->mix_decay, NULL, m->act, g->n_heads, max_rows};
        }
        if (c->state.low_rank > 0) {
            int64_t keys = (int64_t)g->n_heads * g->key_dim;
            p[n++] = (struct buffer_plan){&m->mix_decay, NULL, m->act, keys, max_rows};
            p[n++] = (struct buffer_plan){&m->mix_gate, NULL, m->act, s->out_width, max_rows};
        }
    }
    return n;
}

static int32_t plan_experts(struct model *m, int32_t max_rows, struct buffer_plan *p)
{
    const struct model_config *c = m->config;
    int32_t n = 0;
    if (c->moe_latent > 0) {
        p[n++] = (struct buffer_plan){&m->latent, NULL, m->act, c->moe_latent, max_rows};
        p[n++] = (struct buffer_plan){&m->latent_y, NULL, m->act, c->moe_latent, max_rows};
    }
    if (c->n_experts > 0) {
        p[n++] = (struct buffer_plan){&m->routed, NULL, m->act, c->hidden, max_rows};
        if (c->experts_late) {
            p[n++] = (struct buffer_plan){&m->late, NULL, m->act, c->hidden, max_rows};
        }
        if (c->names->experts_norm) {
            p[n++] = (struct buffer_plan){&m->experts_in, NULL, m->act, c->hidden, max_rows};
        }
        p[n++] = (struct buffer_plan){NULL, &m->route_ids, DT_I32, c->experts_per_token, max_rows};
        p[n++] =
            (struct buffer_plan){NULL, &m->route_weights, DT_F32, c->experts_per_token, max_rows};
    }
    return n;
}

/* All activations that a pass needs, sized once for the largest pass. Buffers that this model does
 * not use get no row, and their tensors stay empty. */
static int32_t plan_buffers(struct model *m, int32_t max_rows, int32_t max_out,
                            struct buffer_plan *p)
{
    const struct model_config *c = m->config;
    const struct widths w = widest_of(m);
    const int64_t ffn = larger(w.ffn, c->norm_gate_rank), qkv = w.qkv, attn = w.attn;
    int32_t n = 0;
    p[n++] = (struct buffer_plan){&m->x, NULL, m->residual, c->hidden, max_rows};
    p[n++] = (struct buffer_plan){&m->h, NULL, m->act, c->hidden, max_rows};
    p[n++] = (struct buffer_plan){&m->qkv, NULL, m->act, qkv, max_rows};
    p[n++] = (struct buffer_plan){&m->attn, NULL, m->act, attn, max_rows};
    p[n++] = (struct buffer_plan){&m->delta, NULL, m->act, c->hidden, max_rows};
    p[n++] = (struct buffer_plan){&m->ff_in, NULL, m->act, c->gated ? 2 * ffn : ffn, max_rows};
    p[n++] = (struct buffer_plan){&m->ff, NULL, m->act, ffn, max_rows};
    p[n++] = (struct buffer_plan){&m->out_x, NULL, m->residual, c->hidden, max_out};
    p[n++] = (struct buffer_plan){&m->out_h, NULL, m->act, c->hidden, max_out};
    p[n++] = (struct buffer_plan){&m->out_attn, NULL, m->act, attn, max_out};
    if (c->parallel_norms) {
        p[n++] = (struct buffer_plan){&m->mlp_in, NULL, m->act, c->hidden, max_rows};
    }
    if (m->max_hidden > 0) {
        p[n++] = (struct buffer_plan){&m->hidden, NULL, m->residual,
                                      (int64_t)m->max_hidden * c->hidden, max_out};
    }
    n += plan_sparse_and_latent(m, &w, max_rows, p + n);
    n += plan_residual(m, max_rows, max_out, p + n);
    n += plan_states(m, max_rows, p + n);
    n += plan_experts(m, max_rows, p + n);
    if (c->head.kind != HEAD_NONE) {
        p[n++] = (struct buffer_plan){&m->wide, NULL, m->act, 2 * (int64_t)c->hidden, max_rows};
    }
    if (c->head.fed.n > 0) {
        p[n++] = (struct buffer_plan){&m->fed, NULL, m->act, c->hidden, max_rows};
    }
    if (m->draft.ids) {
        p[n++] = (struct buffer_plan){&m->own_logits, NULL, DT_F32, c->head.n_ids, max_out};
        p[n++] = (struct buffer_plan){NULL, &m->ids, DT_I32, c->head.n_ids, 1};
    }
    return n;
}

/* Upper bound of the number of rows that plan_buffers fills; today at most 37. */
enum { MAX_BUFFERS = 38 };

/* An upper bound, for planning memory before anything is allocated. It includes 256 bytes of
 * alignment per buffer. */
size_t model_setup_bytes(const struct model *m, int32_t max_rows, int32_t max_out)
{
    struct model copy = *m;
    struct buffer_plan p[MAX_BUFFERS];
    int32_t n = plan_buffers(&copy, max_rows, max_out, p);
    ASSERT(n <= MAX_BUFFERS);
    size_t total = 0;
    for (int32_t i = 0; i < n; i++) {
        total += (size_t)(p[i].width * p[i].rows) * dtype_bytes(p[i].dtype) + 256;
    }
    return total;
}

/* Allocates the activations once, for the largest pass, so that a pass never allocates. */
enum status model_setup(struct model *m, int32_t max_rows, int32_t max_out, struct tensor logits,
                        struct tensor logits_local)
{
    const bool x_is_read = m->config->norm_place == NORM_POST || m->config->layer_input > 0 ||
                           m->config->embed_normed || m->embed_norm || m->config->streams.n > 0 ||
                           m->config->norms_replace;
    ASSERT(m->act == m->residual || !x_is_read);
    ASSERT(m->max_hidden <= MAX_HIDDEN_LAYERS);
    struct buffer_plan p[MAX_BUFFERS];
    int32_t n = plan_buffers(m, max_rows, max_out, p);
    ASSERT(n <= MAX_BUFFERS);
    for (int32_t i = 0; i < n; i++) {
        struct dmem mem;
        TRY(m->be->ops->alloc(m->be, (size_t)(p[i].width * p[i].rows) * dtype_bytes(p[i].dtype),
                              &mem));
        if (p[i].t) {
            *p[i].t = (struct tensor){mem, p[i].dtype, (int32_t)p[i].width};
        } else {
            *p[i].raw = mem;
        }
    }
    if (m->draft.ids) {
        TRY(m->be->ops->write(m->be, m->ids, m->draft.ids,
                              (size_t)m->config->head.n_ids * sizeof *m->draft.ids));
    }
    m->max_rows = max_rows;
    m->max_out = max_out;
    m->logits = logits;
    m->logits_local = logits_local;
    return OK;
}

/* The keys of an indexer, and what they are pooled from. */
static void index_layers(const struct model_config *c, int32_t n_heads, struct kv_layer *layers)
{
    layers[0] = (struct kv_layer){.n_heads = n_heads,
                                  .n_kv_heads = 1,
                                  .head_dim_k = c->index.head_dim,
                                  .head_dim_v = c->index.head_dim,
                                  .v_in_k = true,
                                  .index = true,
                                  .pick_block = c->index.block};
    if (c->index.pool > 0) {
        layers[1] = layers[0];
        layers[1].head_dim_k = layers[1].head_dim_v = 2 * c->index.head_dim;
    }
}

/* The values that each layer stores in the cache: those of this rank's heads, or MLA's latent,
 * which all heads share. A layer that reads the keys of another layer stores none. Every rank has
 * all keys of an indexer. */
void model_kv_layers(const struct model *m, struct kv_layer *layers)
{
    const struct model_config *c = m->config;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const int32_t kv = c->layers[i].kv, hd = c->layers[i].head_dim;
        bool mla = c->kv_lora > 0;
        const struct layer_share share = model_layer_share(c, &m->shard, i);
        if (kv >= 0 && c->layers[i].kv_of == i) {
            layers[kv] =
                (struct kv_layer){.n_heads = share.n_heads,
                                  .n_kv_heads = mla ? 1 : share.n_kv_heads,
                                  .head_dim_k = mla ? c->kv_lora + model_rope_dim(c, i) : hd,
                                  .head_dim_v = mla ? c->kv_lora : hd,
                                  .v_in_k = mla,
                                  .k_scale = m->layers[i].k_scale,
                                  .v_scale = m->layers[i].v_scale};
        }
        if (c->layers[i].index >= 0) {
            index_layers(c, model_index_share(c, &share).n, &layers[c->layers[i].index]);
        }
    }
}

void model_state_layers(const struct model *m, struct state_layer *layers)
{
    for (int32_t i = 0; i < m->config->n_state_layers; i++) {
        layers[i] = m->shard.state.layer;
    }
}
