// SPDX-License-Identifier: Apache-2.0
/* The maximum memory of attention plans and of their workspace. */
#include "cuda/attention_planner.h"

/* Items in addition to one per tile: enough to give every multiprocessor eight more. */
enum { EXTRA_ITEMS_PER_SM = 8 };

static size_t align16(size_t n)
{
    return (n + 15) / 16 * 16;
}

int32_t attention_max_tiles(int32_t n_rows)
{
    return 2 * n_rows; // each row is in a tile of its sequence and in one of a shared prefix
}

int32_t attention_max_items(const struct attention_limits *limits, int32_t n_rows)
{
    return attention_max_tiles(n_rows) + EXTRA_ITEMS_PER_SM * at_least_1(limits->n_sms);
}

size_t attention_paths_offset(int32_t n_rows)
{
    return align16(sizeof(struct attention_plan_head) +
                   (size_t)n_rows * sizeof(struct attention_row));
}

size_t attention_runs_offset(const struct attention_limits *limits, int32_t n_rows)
{
    return align16(attention_paths_offset(n_rows) +
                   (size_t)limits->max_paths * sizeof(struct attention_path));
}

size_t attention_items_offset(const struct attention_limits *limits, int32_t n_rows)
{
    return align16(attention_runs_offset(limits, n_rows) +
                   (size_t)limits->max_runs * sizeof(struct attention_run));
}

size_t attention_plan_bytes(const struct attention_limits *limits, int32_t n_rows)
{
    return attention_items_offset(limits, n_rows) +
           (size_t)(attention_max_items(limits, n_rows) + attention_max_tiles(n_rows)) *
               sizeof(struct attention_item);
}

size_t attention_scratch_bytes(const struct attention_limits *limits)
{
    if (limits->deterministic) {
        return (size_t)at_least_1(limits->n_sms) * ATTENTION_TILE_ROWS * ATTENTION_MAX_DIM *
               sizeof(float);
    }
    return 0;
}

/* The bytes for slots: two slots for each row of a large model, within bounds. */
static size_t slots_bytes(const struct attention_limits *limits)
{
    const size_t wanted = (size_t)limits->max_rows * ((size_t)64 << 10);
    const size_t least = (size_t)16 << 20, most = (size_t)128 << 20;
    if (wanted < least) {
        return least;
    }
    return lesser(most, wanted);
}

size_t attention_workspace_bytes(const struct attention_limits *limits)
{
    return attention_scratch_bytes(limits) + slots_bytes(limits);
}

int32_t attention_max_slots(const struct attention_limits *limits,
                            const struct attention_shape *shape)
{
    if (shape->n_heads <= 0 || shape->head_dim_v <= 0) {
        return 0;
    }
    return (int32_t)(slots_bytes(limits) /
                     (attention_slot_floats(shape->n_heads, shape->head_dim_v) * sizeof(float)));
}

/* The number of pages available for expanding this layer's codes. 0: the kernels that read
 * floating-point pages do not support the layer. */
static int32_t run_pages(const struct attention_limits *limits, const struct kv_view *kv)
{
    const int32_t d = kv->head_dim_k, bt = kv->block_tokens;
    if (limits->max_runs == 0 || kv->codes.format == KV_PLAIN || kv->codes.tokens != 16 ||
        kv->v_offset == 0 || d != kv->head_dim_v || d % 8 != 0 || d > 256 ||
        (bt != 16 && bt != 32 && bt != 64) || (kv->dtype != DT_BF16 && kv->dtype != DT_F16)) {
        return 0;
    }
    return (int32_t)(limits->run_bytes / ((size_t)kv->n_kv_heads * 2 * (size_t)d * (size_t)bt * 2));
}

void attention_learn(struct attention_limits *limits, int32_t kv_set, int32_t n_heads,
                     const struct kv_view *kv)
{
    if (kv_set < 0 || kv_set >= MAX_KV_SETS) {
        return;
    }
    struct attention_shape *s = &limits->shapes[kv_set];
    const int32_t pages = run_pages(limits, kv);
    if (s->n_heads == 0 || pages < s->run_pages) {
        s->run_pages = pages;
    }
    if (n_heads > s->n_heads) {
        s->n_heads = n_heads;
        s->n_kv_heads = kv->n_kv_heads;
    }
    s->head_dim_v = greater(kv->head_dim_v, s->head_dim_v);
    if (kv->codes.format == KV_PLAIN) {
        s->blocks_per_sm = 1;
    } else {
        s->blocks_per_sm = ATTENTION_CODE_BLOCKS;
    }
}
