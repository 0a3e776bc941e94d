// SPDX-License-Identifier: Apache-2.0
/* A rank of the CUDA backend: its device and the owners of its state. Each owner has a file, and a
 * header with what others may call. Only the top-level files know all owners: cuda_open.c,
 * cuda_ops*.c (the maths entries of the backend table) and cuda_backend.c (the other entries).
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_BACKEND_H
#define SLUICE_CUDA_CUDA_BACKEND_H

#include "cuda/attention.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_gemm.h"
#include "cuda/cuda_graph.h"
#include "cuda/cuda_kv.h"
#include "cuda/cuda_lanes.h"
#include "cuda/cuda_pass.h"
#include "cuda/cuda_peer.h"
#include "cuda/cuda_state.h"
#include "cuda/cuda_step.h"

/* Scratch memory that one op uses between its kernels. */
struct op_scratch {
    void *memory, *attention;
    size_t n_bytes; // bytes of `memory`
    int32_t *picks; // see index.h; NULL: no layer is an index
    struct sample_scratch sample;
    float *shards;       // gathered shards of logits
    float *adapter_sums; // see adapter.h
};

struct cuda_backend {
    struct cuda device; // must be the first member
    struct backend_limits limits;
    bool is_set_up;
    int32_t max_draws;
    struct attention_limits attention;
    struct gemms gemms;
    struct graphs *graphs;
    struct lanes lanes;
    struct kv_sets kv;
    struct state_sets states;
    struct steps steps;
    struct passes passes;
    struct peers peers;
    struct op_scratch scratch;
};

static inline struct cuda_backend *cuda_backend_of(struct backend *be)
{
    return (struct cuda_backend *)be;
}

/* Entries of the backend table, in cuda_backend.c. */
enum status cuda_setup(struct backend *base, const struct backend_limits *limits, struct err *err);
enum status cuda_kv_open(struct backend *base, int32_t set, const struct kv_set_desc *desc,
                         struct err *err);
enum status cuda_hidden_open(struct backend *base, int32_t width, enum dtype dtype,
                             struct err *err);
enum status cuda_state_open(struct backend *base, int32_t set, const struct state_set_desc *desc,
                            int32_t n_snapshots, struct err *err);
enum status cuda_copy_states(struct backend *base, int32_t set, int32_t n,
                             const struct state_copy *copies);
enum status cuda_step_begin(struct backend *base, int32_t slot);
enum status cuda_lane_tokens(struct backend *base, int32_t lane, int32_t first_pos, int32_t n,
                             const int32_t *tokens);
enum status cuda_lane_blocks(struct backend *base, int32_t lane, int32_t first, int32_t n,
                             const int32_t *blocks);
enum status cuda_lane_params(struct backend *base, int32_t lane,
                             const struct sampling_params *params);
enum status cuda_copy_blocks(struct backend *base, int32_t n, const struct block_copy *copies);
enum status cuda_move_slots(struct backend *base, int32_t n, const struct slot_move *moves,
                            int32_t set);
enum status cuda_poison_blocks(struct backend *base, int32_t n, const int32_t *blocks);
enum status cuda_lane_pages(struct backend *base, int32_t lane, int32_t first, int32_t n,
                            const int32_t *pages);
enum status cuda_copy_pages(struct backend *base, int32_t n, const struct block_copy *copies);
enum status cuda_poison_pages(struct backend *base, int32_t n, const int32_t *pages);
enum status cuda_pass_begin(struct backend *base, const struct pass *pass,
                            struct pass_shape *shape);
enum status cuda_pass_pause(struct backend *base);
enum status cuda_pass_draws(struct backend *base, struct pass_shape *shape);
enum status cuda_pass_end(struct backend *base);
enum status cuda_step_end(struct backend *base);
enum status cuda_step_wait(struct backend *base, int32_t slot, struct pass_results *results,
                           int32_t max_passes);
bool cuda_step_done(struct backend *be, int32_t slot);
enum status cuda_alive(struct backend *base);
void cuda_close(struct backend *base);

/* cuda_ops.c */
extern const struct backend_ops cuda_ops;

#endif
