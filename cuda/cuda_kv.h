// SPDX-License-Identifier: Apache-2.0
/* KV sets on the device. Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_KV_H
#define SLUICE_CUDA_CUDA_KV_H

#include "cuda/attention.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_lanes.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_MAX_SETS = MAX_KV_SETS, HIDDEN_SET = CUDA_MAX_SETS };

struct kv_set {
    int32_t n_layers; // 0: the set is not open
    struct kv_view *layers;
    bool *windowed;            // [n_layers]
    struct kv_region *regions; // device, [n_layers], those of windowed layers last
    int32_t n_windowed;
    void *memory;
};

struct kv_sets {
    struct cuda *device;
    int32_t n_blocks, n_window_pages, block_tokens;
    // The last one has the hidden states by slot, as one layer with K only.
    struct kv_set all[CUDA_MAX_SETS + 1];
    void *run_memory; // for quantised keys and values that are expanded to floating point
                      // (attention_limits.run_bytes); shared by all sets
};

/* The layout of a layer's elements or codes in the pages at `base`. */
struct kv_view kv_view_make(const struct kv_layer *l, const struct kv_set_desc *desc,
                            int32_t block_tokens, int32_t n_pages, void *base);
enum status cuda_kv_bytes(struct backend *base, const struct kv_set_desc *desc,
                          int32_t block_tokens, size_t *out);
/* Also passes the set's layers of attention to attention_learn. */
enum status kv_open(struct kv_sets *kv, int32_t index, const struct kv_set_desc *desc,
                    struct attention_limits *attention, struct err *err);
/* Hidden states by slot, stored as K of a single head as wide as a row. */
enum status kv_open_hidden(struct kv_sets *kv, int32_t width, enum dtype dtype, struct err *err);
void kv_close(struct kv_sets *kv);
/* The layer's pages; NULL if there is no such layer. */
const struct kv_view *kv_layer(const struct kv_sets *kv, int32_t set, int32_t layer);
bool kv_layer_is_windowed(const struct kv_sets *kv, int32_t set, int32_t layer);
enum status kv_copy_blocks(struct kv_sets *kv, struct lanes *lanes, int32_t n,
                           const struct block_copy *copies);
enum status kv_copy_pages(struct kv_sets *kv, struct lanes *lanes, int32_t n,
                          const struct block_copy *copies);
/* The views have the addresses of the lanes' tables. Hidden states move together with set 0. */
enum status kv_move_slots(struct kv_sets *kv, struct lanes *lanes, const struct pass_view *view,
                          const struct pass_view *window_view, int32_t index, int32_t n,
                          const struct slot_move *moves);
enum status kv_poison_blocks(struct kv_sets *kv, struct lanes *lanes, int32_t n,
                             const int32_t *blocks);
enum status kv_poison_pages(struct kv_sets *kv, struct lanes *lanes, int32_t n,
                            const int32_t *pages);

#ifdef __cplusplus
}
#endif
#endif
