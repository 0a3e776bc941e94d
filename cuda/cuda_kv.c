// SPDX-License-Identifier: Apache-2.0
/* KV sets: the layout of pages, block copies, slot moves. */
#include "cuda/cuda_kv.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

static bool geometry_ok(const struct kv_layer *l, int32_t block_tokens)
{
    return l->n_kv_heads > 0 && l->head_dim_k > 0 && (l->head_dim_v > 0 || l->index) &&
           l->head_dim_v >= 0 && block_tokens > 0 && l->n_kv_heads <= 4096 &&
           l->head_dim_k <= 4096 && l->head_dim_v <= 4096 && block_tokens <= 4096 &&
           !(l->v_in_k && l->head_dim_v > l->head_dim_k);
}

static int32_t align16(int32_t n)
{
    return (n + 15) / 16 * 16;
}

/* The layout of records: codes of a group of tokens, then their scale words. Rows are aligned for
 * 16-byte loads. */
static struct kv_codes codes_of(const struct kv_layer *l, const struct kv_set_desc *desc,
                                int32_t block_tokens)
{
    const int32_t bits = kv_format_bits(desc->format);
    struct kv_codes c = {.format = desc->format, .k_scale = l->k_scale, .v_scale = l->v_scale};
    c.tokens = block_tokens % 16 == 0 ? 16 : block_tokens;
    c.k_row = align16((l->head_dim_k * bits + 7) / 8);
    c.v_row = l->v_in_k ? 0 : align16((l->head_dim_v * bits + 7) / 8);
    c.v_offset = l->v_in_k ? 0 : c.tokens * c.k_row;
    c.words_offset = c.tokens * (c.k_row + c.v_row);
    const bool two = kv_format_has_zero(desc->format) && desc->dtype == DT_F32;
    const bool stored = desc->format == KV_FP8 && l->k_scale > 0.0f && l->v_scale > 0.0f;
    c.word_bytes = two ? 8 : 4;
    if (stored) {
        c.word_bytes = 0;
    }
    c.record_bytes = align16(c.words_offset + c.tokens * c.word_bytes * (l->v_in_k ? 1 : 2));
    return c;
}

/* The layout of pages with plain elements or records of codes. Pages are aligned to 16 bytes. */
struct kv_view kv_view_make(const struct kv_layer *l, const struct kv_set_desc *desc,
                            int32_t block_tokens, int32_t n_pages, void *base)
{
    const bool plain = desc->format == KV_PLAIN;
    const int32_t dims = l->head_dim_k + (l->v_in_k ? 0 : l->head_dim_v);
    struct kv_view v = {
        .base = base,
        .dtype = desc->dtype,
        .n_kv_heads = l->n_kv_heads,
        .head_dim_k = l->head_dim_k,
        .head_dim_v = l->head_dim_v,
        .block_tokens = block_tokens,
        .n_pages = n_pages,
        .head_stride = dims * block_tokens,
        .v_offset = l->v_in_k ? 0 : l->head_dim_k * block_tokens,
        .v_token_stride = l->v_in_k ? l->head_dim_k : l->head_dim_v,
    };
    if (!plain) {
        v.codes = codes_of(l, desc, block_tokens);
        v.head_stride = block_tokens / v.codes.tokens * v.codes.record_bytes;
        v.v_offset = v.codes.v_offset;
    }
    v.page_stride = ((int64_t)v.head_stride * l->n_kv_heads + 7) / 8 * 8;
    return v;
}

/* The bytes of one block in all layers. */
enum status cuda_kv_bytes(struct backend *base, const struct kv_set_desc *desc,
                          int32_t block_tokens, size_t *out)
{
    (void)base;
    size_t sum = 0;
    for (int32_t i = 0; i < desc->n_layers; i++) {
        if (!geometry_ok(&desc->layers[i], block_tokens)) {
            return ERR_INVALID;
        }
        const struct kv_view v = kv_view_make(&desc->layers[i], desc, block_tokens, 0, NULL);
        sum += (size_t)v.page_stride * kv_element_bytes(&v);
    }
    *out = sum;
    return OK;
}

/* Allocates memory in which quantised keys and values that prompts read are expanded to floating
 * point. It is smaller than the pool. Without it, these prompts are slower. */
static enum status open_runs(struct kv_sets *kv, size_t pool_bytes,
                             struct attention_limits *attention)
{
    const size_t most = (size_t)1 << 30;
    const size_t n_bytes = lesser(pool_bytes, most);
    if (attention->max_runs == 0 || kv->run_memory) {
        return OK;
    }
    const enum status st = cuda_alloc(kv->device, n_bytes, &kv->run_memory);
    attention->run_bytes = st == OK ? n_bytes : 0;
    return st == ERR_NOMEM ? OK : st;
}

/* Copies the regions of a set's layers to the device. */
static enum status send_regions(struct kv_sets *kv, struct kv_set *set,
                                const struct kv_region *regions)
{
    struct cuda *be = kv->device;
    const size_t n_bytes = (size_t)set->n_layers * sizeof *regions;
    TRY(cuda_alloc(be, n_bytes, (void **)&set->regions));
    const enum status result = cuda_check(
        be, cudaMemcpyAsync(set->regions, regions, n_bytes, cudaMemcpyHostToDevice, be->stream),
        "KV regions");
    cudaStreamSynchronize(be->stream);
    return result;
}

/* Hidden states are a set like the others, with one layer whose keys are the states. */
enum status kv_open_hidden(struct kv_sets *kv, int32_t width, enum dtype dtype, struct err *err)
{
    struct kv_set *set = &kv->all[HIDDEN_SET];
    const size_t page = hidden_block_bytes(width, dtype, kv->block_tokens);
    const int32_t n_pages = kv->n_blocks + 1; // plus the trash page
    size_t total = 0;
    if (width <= 0 || set->n_layers > 0 || !mem_mul(page, (size_t)n_pages, &total)) {
        return err_set(err, ERR_INVALID, "rows of %d hidden states cannot be opened", width);
    }
    if (cuda_alloc(kv->device, total, &set->memory) != OK) {
        return err_set(err, ERR_NOMEM, "no %zu MiB of device memory are left for hidden states",
                       total >> 20);
    }
    set->layers = xcalloc(1, sizeof *set->layers);
    *set->layers = (struct kv_view){.base = set->memory,
                                    .dtype = dtype,
                                    .n_kv_heads = 1,
                                    .head_dim_k = width,
                                    .head_dim_v = width,
                                    .block_tokens = kv->block_tokens,
                                    .n_pages = n_pages,
                                    .head_stride = width * kv->block_tokens,
                                    .v_token_stride = width,
                                    .page_stride = (int64_t)width * kv->block_tokens,
                                    .codes = {.format = KV_PLAIN}};
    set->n_layers = 1;
    const struct kv_region region = {set->memory, (int64_t)page, *set->layers};
    return send_regions(kv, set, &region);
}

/* There is one page more than there are blocks: the trash page, to which padding rows write. Set 0
 * also has pages for the paths of trees. */
static size_t pages_of(const struct kv_sets *kv, int32_t index, const struct kv_layer *layer,
                       const struct attention_limits *attention)
{
    size_t n = (size_t)(layer->windowed ? kv->n_window_pages : kv->n_blocks) + 1;
    if (index == 0) {
        n += (size_t)attention->max_paths * (size_t)tree_path_blocks(kv->block_tokens);
    }
    return n;
}

/* The bytes of all pages of the set. False: a layer's shape is impossible. */
static bool count_bytes(const struct kv_sets *kv, int32_t index, const struct kv_set_desc *desc,
                        const struct attention_limits *attention, size_t *total)
{
    *total = 0;
    for (int32_t i = 0; i < desc->n_layers; i++) {
        const struct kv_layer *layer = &desc->layers[i];
        const struct kv_set_desc one = {1, layer, desc->dtype, desc->format};
        const size_t n_pages = pages_of(kv, index, layer, attention);
        size_t page, bytes;
        if (n_pages > INT32_MAX || cuda_kv_bytes(NULL, &one, kv->block_tokens, &page) != OK ||
            !mem_mul(page, n_pages, &bytes) || *total > SIZE_MAX - bytes ||
            (layer->windowed && (index != 0 || kv->n_window_pages <= 0))) {
            return false;
        }
        *total += bytes;
    }
    return true;
}

/* Lays the layers out one after the other, and lists them for kernels that process all of them. */
static enum status open_layers(struct kv_sets *kv, int32_t index, const struct kv_set_desc *desc,
                               struct attention_limits *attention)
{
    struct kv_set *set = &kv->all[index];
    set->layers = xcalloc((size_t)desc->n_layers, sizeof *set->layers);
    set->windowed = xcalloc((size_t)desc->n_layers, sizeof *set->windowed);
    struct kv_region *regions = xcalloc((size_t)desc->n_layers, sizeof *regions);
    char *at = set->memory;
    int32_t n_whole = 0;
    for (int32_t i = 0; i < desc->n_layers; i++) {
        const struct kv_layer *layer = &desc->layers[i];
        const size_t n_pages = pages_of(kv, index, layer, attention);
        set->layers[i] = kv_view_make(layer, desc, kv->block_tokens, (int32_t)n_pages, at);
        set->windowed[i] = layer->windowed;
        const struct kv_view *v = &set->layers[i];
        const struct kv_region region = {at, v->page_stride * (int64_t)kv_element_bytes(v), *v};
        regions[layer->windowed ? desc->n_layers - ++set->n_windowed : n_whole++] = region;
        if (!layer->index) {
            attention_learn(attention, index, layer->n_heads, v);
        }
        at += (size_t)region.page_bytes * n_pages;
    }
    set->n_layers = desc->n_layers;
    const enum status result = send_regions(kv, set, regions);
    free(regions);
    return result;
}

enum status kv_open(struct kv_sets *kv, int32_t index, const struct kv_set_desc *desc,
                    struct attention_limits *attention, struct err *err)
{
    if (index < 0 || index >= CUDA_MAX_SETS || kv->all[index].n_layers > 0 || desc->n_layers <= 0) {
        return err_set(err, ERR_INVALID, "KV set %d cannot be opened", index);
    }
    size_t total = 0;
    if (!count_bytes(kv, index, desc, attention, &total)) {
        return err_set(err, ERR_INVALID, "KV set %d has a layer of an impossible shape", index);
    }
    const enum status st = cuda_alloc(kv->device, total, &kv->all[index].memory);
    if (st != OK) {
        return err_set(err, st,
                       "no %zu MiB of device memory are left for the KV cache; they were free a "
                       "moment ago, so another process may have taken them: start again, or lower "
                       "--gpu-memory-utilization",
                       total >> 20);
    }
    if (desc->format != KV_PLAIN) {
        TRY(open_runs(kv, total, attention));
    }
    return open_layers(kv, index, desc, attention);
}

void kv_close(struct kv_sets *kv)
{
    for (int32_t i = 0; i <= HIDDEN_SET; i++) {
        free(kv->all[i].layers);
        free(kv->all[i].windowed);
    }
}

const struct kv_view *kv_layer(const struct kv_sets *kv, int32_t set, int32_t layer)
{
    if (layer >= 0 && layer < kv->all[set].n_layers) {
        return &kv->all[set].layers[layer];
    }
    return NULL;
}

bool kv_layer_is_windowed(const struct kv_sets *kv, int32_t set, int32_t layer)
{
    return kv->all[set].windowed && layer >= 0 && layer < kv->all[set].n_layers &&
           kv->all[set].windowed[layer];
}

static enum status check_copies(int32_t n, const struct block_copy *copies, int32_t n_pages)
{
    for (int32_t i = 0; i < n; i++) {
        if (copies[i].from < 0 || copies[i].to < 0 || copies[i].from >= n_pages ||
            copies[i].to >= n_pages) {
            return ERR_INVALID;
        }
    }
    return n < 0 ? ERR_INVALID : OK;
}

/* Copies in all sets and in the hidden states, because block ids are common to all. */
enum status kv_copy_blocks(struct kv_sets *kv, struct lanes *lanes, int32_t n,
                           const struct block_copy *copies)
{
    struct cuda *be = kv->device;
    TRY(check_copies(n, copies, kv->n_blocks));
    if (n == 0) {
        return OK;
    }
    void *list = NULL;
    TRY(lanes_send(lanes, copies, (size_t)n * sizeof *copies, &list));
    for (int32_t s = 0; s <= HIDDEN_SET; s++) {
        const int32_t n_whole = kv->all[s].n_layers - kv->all[s].n_windowed;
        if (n_whole > 0) {
            CUDA_TRY(be, k_copy_blocks(be->stream, kv->all[s].regions, n_whole, list, n));
        }
    }
    return OK;
}

/* The regions of set 0's windowed layers, after the others. */
static const struct kv_region *window_regions(const struct kv_set *set)
{
    return set->regions + (set->n_layers - set->n_windowed);
}

enum status kv_copy_pages(struct kv_sets *kv, struct lanes *lanes, int32_t n,
                          const struct block_copy *copies)
{
    struct cuda *be = kv->device;
    const struct kv_set *set = &kv->all[0];
    TRY(check_copies(n, copies, kv->n_window_pages));
    if (n == 0 || set->n_windowed == 0) {
        return OK;
    }
    void *list = NULL;
    TRY(lanes_send(lanes, copies, (size_t)n * sizeof *copies, &list));
    CUDA_TRY(be, k_copy_blocks(be->stream, window_regions(set), set->n_windowed, list, n));
    return OK;
}

/* A block of the kernel makes all moves of a lane, in order. */
enum status kv_move_slots(struct kv_sets *kv, struct lanes *lanes, const struct pass_view *view,
                          const struct pass_view *window_view, int32_t index, int32_t n,
                          const struct slot_move *moves)
{
    struct cuda *be = kv->device;
    if (n < 0 || index < 0 || index >= CUDA_MAX_SETS || kv->all[index].n_layers == 0) {
        return ERR_INVALID;
    }
    if (n == 0) {
        return OK;
    }
    for (int32_t i = 0; i < n; i++) {
        if (moves[i].lane < 0 || moves[i].lane >= lanes->max_lanes) {
            return ERR_INVALID;
        }
    }
    const struct kv_set *set = &kv->all[index], *hidden = &kv->all[HIDDEN_SET];
    const int32_t n_whole = set->n_layers - set->n_windowed;
    void *list = NULL;
    TRY(lanes_send(lanes, moves, (size_t)n * sizeof *moves, &list));
    if (n_whole > 0) {
        CUDA_TRY(be, k_move_slots(be->stream, set->regions, n_whole, list, n, view));
    }
    if (set->n_windowed > 0) {
        CUDA_TRY(be, k_move_slots(be->stream, window_regions(set), set->n_windowed, list, n,
                                  window_view));
    }
    if (index == 0 && hidden->n_layers > 0) {
        CUDA_TRY(be, k_move_slots(be->stream, hidden->regions, 1, list, n, view));
    }
    return OK;
}

static enum status check_ids(int32_t n, const int32_t *ids, int32_t n_pages)
{
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= n_pages) {
            return ERR_INVALID;
        }
    }
    return n < 0 ? ERR_INVALID : OK;
}

/* For tests: fills blocks with NaN. */
enum status kv_poison_blocks(struct kv_sets *kv, struct lanes *lanes, int32_t n,
                             const int32_t *blocks)
{
    struct cuda *be = kv->device;
    TRY(check_ids(n, blocks, kv->n_blocks));
    if (n == 0) {
        return OK;
    }
    void *list = NULL;
    TRY(lanes_send(lanes, blocks, (size_t)n * sizeof *blocks, &list));
    for (int32_t s = 0; s <= HIDDEN_SET; s++) {
        const int32_t n_whole = kv->all[s].n_layers - kv->all[s].n_windowed;
        if (n_whole > 0) {
            CUDA_TRY(be, k_poison_blocks(be->stream, kv->all[s].regions, n_whole, list, n));
        }
    }
    return OK;
}

enum status kv_poison_pages(struct kv_sets *kv, struct lanes *lanes, int32_t n,
                            const int32_t *pages)
{
    struct cuda *be = kv->device;
    const struct kv_set *set = &kv->all[0];
    TRY(check_ids(n, pages, kv->n_window_pages));
    if (n == 0 || set->n_windowed == 0) {
        return OK;
    }
    void *list = NULL;
    TRY(lanes_send(lanes, pages, (size_t)n * sizeof *pages, &list));
    CUDA_TRY(be, k_poison_blocks(be->stream, window_regions(set), set->n_windowed, list, n));
    return OK;
}
