/* KV pages. A page of a layer holds for each kv head first K, transposed to [head_dim][tokens] so
 * that a score of many tokens is one stream, then V as [token][head_dim], padded to whole panels. */
#include "cpu/cpu_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct kv_pages lay_out(const struct kv_set_desc *desc, int32_t layer, int32_t block_tokens)
{
    const struct kv_layer *g = &desc->layers[layer];
    size_t size = dtype_bytes(desc->dtype);
    struct kv_pages p = {.geometry = *g, .dtype = desc->dtype};
    p.v_stride = (int32_t)round_up(g->head_dim_v, PANEL);
    p.k_bytes = (size_t)g->head_dim_k * (size_t)block_tokens * size;
    p.head_bytes = p.k_bytes;
    if (!g->v_in_k) {
        p.head_bytes += (size_t)p.v_stride * (size_t)block_tokens * size;
    }
    p.head_bytes = (size_t)round_up((int64_t)p.head_bytes, 64);
    p.block_bytes = p.head_bytes * (size_t)g->n_kv_heads;
    return p;
}

static enum status check_desc(const struct kv_set_desc *desc)
{
    if (desc->format != KV_PLAIN) {
        return ERR_UNSUPPORTED;
    }
    for (int32_t i = 0; i < desc->n_layers; i++) {
        const struct kv_layer *g = &desc->layers[i];
        if (g->n_kv_heads < 1 || g->head_dim_k < 1 || g->head_dim_v < 1 || g->head_dim_k > 4096 ||
            g->head_dim_v > 4096 || (g->v_in_k && g->head_dim_v > g->head_dim_k)) {
            return ERR_INVALID;
        }
    }
    bool known = desc->dtype == DT_F32 || desc->dtype == DT_BF16 || desc->dtype == DT_F16;
    return desc->n_layers < 1 || !known ? ERR_INVALID : OK;
}

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

enum status cpu_kv_open(struct backend *be, int32_t set, const struct kv_set_desc *desc,
                        struct err *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(cpu->is_set_up && set >= 0 && set < MAX_KV_SETS && !cpu->kv_sets[set].layers);
    if (check_desc(desc) != OK) {
        return err_set(err, ERR_INVALID, "the KV cache's geometry is not usable");
    }
    struct kv_set *s = &cpu->kv_sets[set];
    s->n_layers = desc->n_layers;
    s->layers = xcalloc((size_t)desc->n_layers, sizeof *s->layers);
    for (int32_t i = 0; i < desc->n_layers; i++) {
        struct kv_pages *p = &s->layers[i];
        *p = lay_out(desc, i, cpu->limits.block_tokens);
        size_t n_bytes;
        if (mem_mul(p->block_bytes, (size_t)cpu->limits.n_blocks, &n_bytes)) {
            p->base = cpu_memory(cpu, n_bytes);
        }
        if (!p->base) {
            return err_set(err, ERR_NOMEM, "not enough memory for a KV cache of %d blocks",
                           cpu->limits.n_blocks);
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

struct kv_slot cpu_kv_slot(const struct cpu_backend *cpu, const struct kv_pages *pages,
                           int32_t lane, int32_t pos)
{
    int32_t tokens = cpu->limits.block_tokens;
    int32_t block = cpu->lanes[lane].blocks[pos / tokens];
    ASSERT(block >= 0 && block < cpu->limits.n_blocks);
    return (struct kv_slot){pages->base + (size_t)block * pages->block_bytes, pos % tokens};
}

static void put(enum dtype dtype, void *to, int64_t at, float x)
{
    switch (dtype) {
    case DT_BF16: ((uint16_t *)to)[at] = bf16_of(x); break;
    case DT_F16: ((uint16_t *)to)[at] = f16_of(x); break;
    default: ((float *)to)[at] = x; break;
    }
}

/* n numbers, `step` elements apart. */
static void put_run(enum dtype dtype, void *to, int64_t at, int64_t step, const float *x, int32_t n)
{
    if (dtype == DT_BF16) { // what nearly all pages are of
        uint16_t *out = (uint16_t *)to + at;
        for (int32_t i = 0; i < n; i++) {
            out[i * step] = bf16_of(x[i]);
        }
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        put(dtype, to, at + i * step, x[i]);
    }
}

void cpu_kv_store_k(const struct cpu_backend *cpu, const struct kv_pages *pages,
                    struct kv_slot slot, int32_t head, const float *k)
{
    char *to = slot.block + (size_t)head * pages->head_bytes;
    put_run(pages->dtype, to, slot.token, cpu->limits.block_tokens, k, pages->geometry.head_dim_k);
}

void cpu_kv_store_v(const struct cpu_backend *cpu, const struct kv_pages *pages,
                    struct kv_slot slot, int32_t head, const float *v)
{
    char *to = slot.block + (size_t)head * pages->head_bytes + pages->k_bytes;
    (void)cpu;
    put_run(pages->dtype, to, (int64_t)slot.token * pages->v_stride, 1, v,
            pages->geometry.head_dim_v);
    for (int32_t d = pages->geometry.head_dim_v; d < pages->v_stride; d++) {
        put(pages->dtype, to, (int64_t)slot.token * pages->v_stride + d, 0.0f);
    }
}

enum status cpu_copy_blocks(struct backend *be, int32_t n, const struct block_copy *copies)
{
    struct cpu_backend *cpu = cpu_of(be);
    for (int32_t set = 0; set < MAX_KV_SETS; set++) {
        for (int32_t l = 0; l < cpu->kv_sets[set].n_layers; l++) {
            const struct kv_pages *p = &cpu->kv_sets[set].layers[l];
            for (int32_t i = 0; i < n; i++) {
                ASSERT(copies[i].from >= 0 && copies[i].from < cpu->limits.n_blocks);
                ASSERT(copies[i].to >= 0 && copies[i].to < cpu->limits.n_blocks);
                memmove(p->base + (size_t)copies[i].to * p->block_bytes,
                        p->base + (size_t)copies[i].from * p->block_bytes, p->block_bytes);
            }
        }
    }
    return OK;
}

static void move_slot(const struct cpu_backend *cpu, const struct kv_pages *p,
                      const struct slot_move *m)
{
    struct kv_slot from = cpu_kv_slot(cpu, p, m->lane, m->from);
    struct kv_slot to = cpu_kv_slot(cpu, p, m->lane, m->to);
    size_t size = dtype_bytes(p->dtype), tokens = (size_t)cpu->limits.block_tokens;
    size_t v_bytes = (size_t)p->v_stride * size;
    for (int32_t h = 0; h < p->geometry.n_kv_heads; h++) {
        char *a = from.block + (size_t)h * p->head_bytes, *b = to.block + (size_t)h * p->head_bytes;
        for (size_t d = 0; d < (size_t)p->geometry.head_dim_k; d++) {
            memcpy(b + (d * tokens + (size_t)to.token) * size,
                   a + (d * tokens + (size_t)from.token) * size, size);
        }
        if (!p->geometry.v_in_k) {
            memmove(b + p->k_bytes + (size_t)to.token * v_bytes,
                    a + p->k_bytes + (size_t)from.token * v_bytes, v_bytes);
        }
    }
}

enum status cpu_move_slots(struct backend *be, int32_t n, const struct slot_move *moves,
                           int32_t kv_set)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(kv_set >= 0 && kv_set < MAX_KV_SETS);
    for (int32_t i = 0; i < n; i++) {
        ASSERT(moves[i].lane >= 0 && moves[i].lane < cpu->limits.max_lanes);
        for (int32_t l = 0; l < cpu->kv_sets[kv_set].n_layers && moves[i].from != moves[i].to; l++) {
            move_slot(cpu, &cpu->kv_sets[kv_set].layers[l], &moves[i]);
        }
    }
    return OK;
}

enum status cpu_poison_blocks(struct backend *be, int32_t n, const int32_t *blocks)
{
    struct cpu_backend *cpu = cpu_of(be);
    for (int32_t set = 0; set < MAX_KV_SETS; set++) {
        for (int32_t l = 0; l < cpu->kv_sets[set].n_layers; l++) {
            const struct kv_pages *p = &cpu->kv_sets[set].layers[l];
            int64_t count = (int64_t)(p->block_bytes / dtype_bytes(p->dtype));
            for (int32_t i = 0; i < n; i++) {
                char *block = p->base + (size_t)blocks[i] * p->block_bytes;
                for (int64_t e = 0; e < count; e++) {
                    put(p->dtype, block, e, NAN);
                }
            }
        }
    }
    return OK;
}
