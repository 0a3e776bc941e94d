/* KV sets: where pages lie, block copies, slot moves. */
#include "cuda/cuda_kv.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Elements of one page of the layer; 0 if the geometry makes no sense. */
static int64_t page_elements(const struct kv_layer *l, int32_t block_tokens)
{
    if (l->n_kv_heads <= 0 || l->head_dim_k <= 0 || l->head_dim_v <= 0 || block_tokens <= 0 ||
        l->n_kv_heads > 4096 || l->head_dim_k > 4096 || l->head_dim_v > 4096 ||
        block_tokens > 4096 || (l->v_in_k && l->head_dim_v > l->head_dim_k)) {
        return 0;
    }
    const int64_t dims = (int64_t)l->head_dim_k + (l->v_in_k ? 0 : l->head_dim_v);
    return dims * block_tokens * l->n_kv_heads;
}

/* Pages begin at 16 bytes. */
static int64_t page_stride(const struct kv_layer *l, int32_t block_tokens)
{
    return (page_elements(l, block_tokens) + 7) / 8 * 8;
}

enum status cuda_kv_bytes(struct backend *base, const struct kv_set_desc *desc,
                          int32_t block_tokens, size_t *out)
{
    (void)base;
    size_t sum = 0;
    if (desc->format != KV_PLAIN) {
        return ERR_UNSUPPORTED;
    }
    for (int32_t i = 0; i < desc->n_layers; i++) {
        if (page_elements(&desc->layers[i], block_tokens) == 0) {
            return ERR_INVALID;
        }
        sum += (size_t)page_stride(&desc->layers[i], block_tokens) * dtype_bytes(desc->dtype);
    }
    *out = sum;
    return OK;
}

static struct kv_view layer_view(const struct kv_layer *l, enum dtype dtype, int32_t block_tokens,
                                 int32_t n_pages, void *base)
{
    const int32_t dims = l->head_dim_k + (l->v_in_k ? 0 : l->head_dim_v);
    const struct kv_view v = {
        .base = base,
        .dtype = dtype,
        .n_kv_heads = l->n_kv_heads,
        .head_dim_k = l->head_dim_k,
        .head_dim_v = l->head_dim_v,
        .block_tokens = block_tokens,
        .n_pages = n_pages,
        .head_stride = dims * block_tokens,
        .v_offset = l->v_in_k ? 0 : l->head_dim_k * block_tokens,
        .v_token_stride = l->v_in_k ? l->head_dim_k : l->head_dim_v,
        .page_stride = page_stride(l, block_tokens),
    };
    return v;
}

enum status kv_open(struct kv_sets *kv, int32_t index, const struct kv_set_desc *desc,
                    struct attention_limits *attention, struct err *err)
{
    struct cuda *be = kv->device;
    if (index < 0 || index >= CUDA_MAX_SETS || kv->all[index].n_layers > 0 ||
        desc->n_layers <= 0) {
        return err_set(err, ERR_INVALID, "KV set %d cannot be opened", index);
    }
    const size_t element = dtype_bytes(desc->dtype);
    const int32_t block_tokens = kv->block_tokens;
    size_t n_pages = (size_t)kv->n_blocks + 1; // and the trash page
    if (index == 0) {
        n_pages += (size_t)attention->max_paths * (size_t)tree_path_blocks(block_tokens);
    }
    size_t block_bytes = 0, total = 0;
    if (n_pages > INT32_MAX || cuda_kv_bytes(NULL, desc, block_tokens, &block_bytes) != OK ||
        !mem_mul(block_bytes, n_pages, &total)) {
        return err_set(err, ERR_INVALID, "KV set %d has a layer of an impossible shape", index);
    }
    struct kv_set *set = &kv->all[index];
    const enum status st = cuda_alloc(be, total, &set->memory);
    if (st != OK) {
        return err_set(err, st, "no %zu MiB of device memory are left for the KV cache",
                       total >> 20);
    }
    set->layers = xcalloc((size_t)desc->n_layers, sizeof *set->layers);
    struct kv_region *regions = xcalloc((size_t)desc->n_layers, sizeof *regions);
    char *at = set->memory;
    for (int32_t i = 0; i < desc->n_layers; i++) {
        set->layers[i] = layer_view(&desc->layers[i], desc->dtype, block_tokens, (int32_t)n_pages,
                                    at);
        regions[i].base = at;
        regions[i].page_bytes = set->layers[i].page_stride * (int64_t)element;
        regions[i].view = set->layers[i];
        attention_learn(attention, index, desc->layers[i].n_heads, &set->layers[i]);
        at += (size_t)regions[i].page_bytes * n_pages;
    }
    set->n_layers = desc->n_layers;
    const size_t n_bytes = (size_t)desc->n_layers * sizeof *regions;
    enum status result = cuda_alloc(be, n_bytes, (void **)&set->regions);
    if (result == OK) {
        result = cuda_check(be,
                            cudaMemcpyAsync(set->regions, regions, n_bytes, cudaMemcpyHostToDevice,
                                            be->stream),
                            "KV regions");
        cudaStreamSynchronize(be->stream);
    }
    free(regions);
    return result;
}

void kv_close(struct kv_sets *kv)
{
    for (int32_t i = 0; i < CUDA_MAX_SETS; i++) {
        free(kv->all[i].layers);
    }
}

const struct kv_view *kv_layer(const struct kv_sets *kv, int32_t set, int32_t layer)
{
    return layer >= 0 && layer < kv->all[set].n_layers ? &kv->all[set].layers[layer] : NULL;
}

enum status kv_copy_blocks(struct kv_sets *kv, struct lanes *lanes, int32_t n,
                           const struct block_copy *copies)
{
    struct cuda *be = kv->device;
    if (n <= 0) {
        return n == 0 ? OK : ERR_INVALID;
    }
    for (int32_t i = 0; i < n; i++) {
        if (copies[i].from < 0 || copies[i].to < 0 || copies[i].from >= kv->n_blocks ||
            copies[i].to >= kv->n_blocks) {
            return ERR_INVALID;
        }
    }
    void *list = NULL;
    TRY(lanes_send(lanes, copies, (size_t)n * sizeof *copies, &list));
    for (int32_t s = 0; s < CUDA_MAX_SETS; s++) {
        if (kv->all[s].n_layers > 0) {
            CUDA_TRY(be, k_copy_blocks(be->stream, kv->all[s].regions, kv->all[s].n_layers, list,
                                       n));
        }
    }
    return OK;
}

enum status kv_move_slots(struct kv_sets *kv, struct lanes *lanes, const struct pass_view *view,
                          int32_t index, int32_t n, const struct slot_move *moves)
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
    void *list = NULL;
    TRY(lanes_send(lanes, moves, (size_t)n * sizeof *moves, &list));
    CUDA_TRY(be, k_move_slots(be->stream, kv->all[index].regions, kv->all[index].n_layers, list,
                              n, view));
    return OK;
}

enum status kv_poison_blocks(struct kv_sets *kv, struct lanes *lanes, int32_t n,
                             const int32_t *blocks)
{
    struct cuda *be = kv->device;
    if (n <= 0) {
        return n == 0 ? OK : ERR_INVALID;
    }
    for (int32_t i = 0; i < n; i++) {
        if (blocks[i] < 0 || blocks[i] >= kv->n_blocks) {
            return ERR_INVALID;
        }
    }
    void *list = NULL;
    TRY(lanes_send(lanes, blocks, (size_t)n * sizeof *blocks, &list));
    for (int32_t s = 0; s < CUDA_MAX_SETS; s++) {
        if (kv->all[s].n_layers > 0) {
            CUDA_TRY(be, k_poison_blocks(be->stream, kv->all[s].regions, kv->all[s].n_layers,
                                         list, n));
        }
    }
    return OK;
}
