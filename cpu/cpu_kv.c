// SPDX-License-Identifier: Apache-2.0
/* KV pages. For each KV head, a page of a layer has first K, transposed to [head_dim][tokens] so
 * that scores of many tokens read it sequentially, and then V as [token][head_dim], padded to whole
 * panels. */
#include "cpu/cpu_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The offsets within a page, and the page's size. MLA's V is a part of K and takes no memory. */
static struct kv_pages lay_out(const struct kv_set_desc *desc, int32_t layer, int32_t block_tokens)
{
    const struct kv_layer *g = &desc->layers[layer];
    struct kv_pages p = {.geometry = *g, .dtype = desc->dtype};
    p.v_stride = (int32_t)round_up(g->head_dim_v, PANEL);
    p.k =
        kv_plane_make(desc->format, desc->dtype, true, block_tokens, g->head_dim_k, g->k_scale, 0);
    p.head_bytes = p.k.n_bytes;
    if (!g->v_in_k) {
        p.v = kv_plane_make(desc->format, desc->dtype, false, block_tokens, p.v_stride, g->v_scale,
                            (size_t)round_up((int64_t)p.k.n_bytes, p.k.has_scales ? 16 : 1));
        p.head_bytes = p.v.at + p.v.n_bytes;
    }
    p.head_bytes = (size_t)round_up((int64_t)p.head_bytes, 64);
    p.block_bytes = p.head_bytes * (size_t)g->n_kv_heads;
    return p;
}

/* True for geometries that the kernels can process. */
static enum status check_desc(const struct kv_set_desc *desc)
{
    for (int32_t i = 0; i < desc->n_layers; i++) {
        const struct kv_layer *g = &desc->layers[i];
        if (g->n_kv_heads < 1 || g->head_dim_k < 1 || g->head_dim_v < 1 ||
            g->head_dim_k > MAX_HEAD_DIM || g->head_dim_v > MAX_HEAD_DIM ||
            (g->v_in_k && g->head_dim_v > g->head_dim_k) ||
            (g->index && (!g->v_in_k || g->n_kv_heads != 1))) {
            return ERR_INVALID;
        }
    }
    bool known = desc->dtype == DT_F32 || desc->dtype == DT_BF16 || desc->dtype == DT_F16;
    if (desc->n_layers < 1 || !known) {
        return ERR_INVALID;
    }
    return OK;
}

/* The bytes of one block, summed over all layers. */
enum status cpu_kv_bytes(struct backend *be, const struct kv_set_desc *desc, int32_t block_tokens,
                         size_t *out)
{
    (void)be;
    TRY(check_desc(desc));
    *out = 0;
    for (int32_t i = 0; i < desc->n_layers; i++) {
        *out += lay_out(desc, i, block_tokens).block_bytes;
    }
    return OK;
}

static bool fits(const struct cpu_backend *cpu, const struct kv_set_desc *desc)
{
    bool windowed = false;
    for (int32_t i = 0; i < desc->n_layers; i++) {
        windowed = windowed || desc->layers[i].windowed;
    }
    return !windowed || cpu->limits.n_window_pages > 0;
}

/* Makes one allocation for each layer. */
enum status cpu_kv_open(struct backend *be, int32_t set, const struct kv_set_desc *desc,
                        struct err *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(cpu->is_set_up && set >= 0 && set < MAX_KV_SETS && !cpu->kv_sets[set].layers);
    if (check_desc(desc) != OK || !fits(cpu, desc)) {
        return err_set(err, ERR_INVALID, "the KV cache's geometry is not usable");
    }
    struct kv_set *s = &cpu->kv_sets[set];
    s->n_layers = desc->n_layers;
    s->layers = xcalloc((size_t)desc->n_layers, sizeof *s->layers);
    for (int32_t i = 0; i < desc->n_layers; i++) {
        struct kv_pages *p = &s->layers[i];
        *p = lay_out(desc, i, cpu->limits.block_tokens);
        p->n_pages = desc->layers[i].windowed ? cpu->limits.n_window_pages : cpu->limits.n_blocks;
        size_t n_bytes;
        if (mem_mul(p->block_bytes, (size_t)p->n_pages, &n_bytes)) {
            p->base = cpu_memory(cpu, n_bytes);
        }
        if (!p->base) {
            return err_set(err, ERR_NOMEM, "not enough memory for a KV cache of %d blocks",
                           p->n_pages);
        }
    }
    return OK;
}

const struct kv_pages *cpu_kv_layer(const struct cpu_backend *cpu, int32_t layer)
{
    const struct kv_set *s = &cpu->kv_sets[cpu->pass->kv_set];
    ASSERT(layer >= 0 && layer < s->n_layers);
    return &s->layers[layer];
}

/* The page, and the token in it, where a position is stored. */
struct kv_slot cpu_kv_slot(const struct cpu_backend *cpu, const struct kv_pages *pages,
                           int32_t lane, int32_t pos)
{
    int32_t tokens = cpu->limits.block_tokens;
    int32_t block = cpu_kv_table(cpu, pages, lane)[pos / tokens];
    ASSERT(block >= 0 && block < pages->n_pages);
    return (struct kv_slot){pages->base + (size_t)block * pages->block_bytes, pos % tokens};
}

/* Plain values are converted; codes get a scale per token and head. */
static void store(const struct cpu_backend *cpu, const struct kv_plane *p, struct kv_slot slot,
                  char *head, const float *x, int32_t n)
{
    uint8_t codes[MAX_HEAD_DIM];
    struct kv_scale scale;
    if (p->format == KV_PLAIN) {
        kv_put_plain(p, head, slot.token, x, n);
        return;
    }
    cpu->kernels->encode(p, x, n, codes, &scale);
    kv_put_codes(p, head, slot.token, codes, n, scale);
}

/* The smallest number that becomes infinite in a page, or that could make the scale of codes
 * infinite. */
static float overflow_of(const struct kv_plane *p)
{
    if (p->format != KV_PLAIN) {
        return 0x1p126f;
    }
    if (p->dtype == DT_F32) {
        return INFINITY;
    }
    return p->dtype == DT_F16 ? 65520.0f : 0x1.ffp127f;
}

static bool is_storable(const struct kv_plane *p, const float *x, int32_t n)
{
    const float most = overflow_of(p);
    bool ok = true;
    for (int32_t i = 0; i < n; i++) {
        ok &= fabsf(x[i]) < most;
    }
    return ok;
}

static void fill(float *x, float value, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        x[i] = value;
    }
}

/* Values that are not numbers never go to a page. A tile of rows multiplies the values of all keys
 * that any of its rows sees, for the other rows by a weight of 0, and 0 times NaN is NaN: a broken
 * row would spoil the rows before it, and through the prefix cache other requests. A key of NaN is
 * stored instead, from which the rows that see it, and only those, become NaN. */
void cpu_kv_store(const struct cpu_backend *cpu, const struct kv_pages *pages, struct kv_slot slot,
                  int32_t head, const float *k, const float *v)
{
    const struct kv_layer *g = &pages->geometry;
    char *at = slot.block + (size_t)head * pages->head_bytes;
    float nan[MAX_HEAD_DIM], zeros[MAX_HEAD_DIM];
    if (!is_storable(&pages->v, v, g->head_dim_v)) {
        fill(nan, NAN, g->head_dim_k);
        fill(zeros, 0.0f, g->head_dim_v);
        k = nan;
        v = zeros;
    }
    store(cpu, &pages->k, slot, at, k, g->head_dim_k);
    store(cpu, &pages->v, slot, at, v, g->head_dim_v);
}

/* The same where the values are the first elements of the key. */
void cpu_kv_store_joined(const struct cpu_backend *cpu, const struct kv_pages *pages,
                         struct kv_slot slot, int32_t head, float *key)
{
    const struct kv_layer *g = &pages->geometry;
    char *at = slot.block + (size_t)head * pages->head_bytes;
    if (!is_storable(&pages->k, key, g->head_dim_v)) {
        fill(key, 0.0f, g->head_dim_v);
        fill(key + g->head_dim_v, NAN, g->head_dim_k - g->head_dim_v);
    }
    store(cpu, &pages->k, slot, at, key, g->head_dim_k);
}

/* Nobody multiplies such a key by 0, so the whole of it may be NaN. */
void cpu_kv_store_key(const struct cpu_backend *cpu, const struct kv_pages *pages,
                      struct kv_slot slot, const float *key)
{
    const int32_t n = pages->geometry.head_dim_k;
    float nan[MAX_HEAD_DIM];
    if (!is_storable(&pages->k, key, n)) {
        fill(nan, NAN, n);
        key = nan;
    }
    store(cpu, &pages->k, slot, slot.block, key, n);
}

/* Copies in all sets, because draft models use the same block ids. */
static enum status copy(struct backend *be, int32_t n, const struct block_copy *copies,
                        bool windowed)
{
    struct cpu_backend *cpu = cpu_of(be);
    for (int32_t set = 0; set < MAX_KV_SETS; set++) {
        for (int32_t l = 0; l < cpu->kv_sets[set].n_layers; l++) {
            const struct kv_pages *p = &cpu->kv_sets[set].layers[l];
            for (int32_t i = 0; i < n && p->geometry.windowed == windowed; i++) {
                ASSERT(copies[i].from >= 0 && copies[i].from < p->n_pages);
                ASSERT(copies[i].to >= 0 && copies[i].to < p->n_pages);
                memmove(p->base + (size_t)copies[i].to * p->block_bytes,
                        p->base + (size_t)copies[i].from * p->block_bytes, p->block_bytes);
            }
        }
    }
    return OK;
}

enum status cpu_copy_blocks(struct backend *be, int32_t n, const struct block_copy *copies)
{
    return copy(be, n, copies, false);
}

enum status cpu_copy_pages(struct backend *be, int32_t n, const struct block_copy *copies)
{
    return copy(be, n, copies, true);
}

/* The elements of a token are scattered over its page, so they are moved one by one. */
static void move_slot(const struct cpu_backend *cpu, const struct kv_pages *p,
                      const struct slot_move *m)
{
    struct kv_slot from = cpu_kv_slot(cpu, p, m->lane, m->from);
    struct kv_slot to = cpu_kv_slot(cpu, p, m->lane, m->to);
    for (int32_t h = 0; h < p->geometry.n_kv_heads; h++) {
        char *a = from.block + (size_t)h * p->head_bytes, *b = to.block + (size_t)h * p->head_bytes;
        kv_move(&p->k, a, from.token, b, to.token);
        if (!p->geometry.v_in_k) {
            kv_move(&p->v, a, from.token, b, to.token);
        }
    }
}

/* Moves in the given order; the engine orders moves so that none overwrites the source of a later
 * one. */
enum status cpu_move_slots(struct backend *be, int32_t n, const struct slot_move *moves,
                           int32_t kv_set)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(kv_set >= 0 && kv_set < MAX_KV_SETS);
    for (int32_t i = 0; i < n; i++) {
        ASSERT(moves[i].lane >= 0 && moves[i].lane < cpu->limits.max_lanes);
        for (int32_t l = 0; l < cpu->kv_sets[kv_set].n_layers && moves[i].from != moves[i].to;
             l++) {
            move_slot(cpu, &cpu->kv_sets[kv_set].layers[l], &moves[i]);
        }
    }
    return OK;
}

/* For tests: fills everything with NaN, so that a read that should not happen shows in the
 * result. */
static enum status poison(struct backend *be, int32_t n, const int32_t *blocks, bool windowed)
{
    struct cpu_backend *cpu = cpu_of(be);
    for (int32_t set = 0; set < MAX_KV_SETS; set++) {
        for (int32_t l = 0; l < cpu->kv_sets[set].n_layers; l++) {
            const struct kv_pages *p = &cpu->kv_sets[set].layers[l];
            const int32_t n_heads = p->geometry.windowed == windowed ? p->geometry.n_kv_heads : 0;
            for (int32_t i = 0; i < n * n_heads; i++) {
                char *head = p->base + (size_t)blocks[i / n_heads] * p->block_bytes +
                             (size_t)(i % n_heads) * p->head_bytes;
                kv_poison(&p->k, head);
                if (!p->geometry.v_in_k) {
                    kv_poison(&p->v, head);
                }
            }
        }
    }
    return OK;
}

enum status cpu_poison_blocks(struct backend *be, int32_t n, const int32_t *blocks)
{
    return poison(be, n, blocks, false);
}

enum status cpu_poison_pages(struct backend *be, int32_t n, const int32_t *pages)
{
    return poison(be, n, pages, true);
}
