// SPDX-License-Identifier: Apache-2.0
/* State sets as kernels see them, and the launchers of kernels/state/. A lane's memory for one
 * layer:
 *
 *     records      [n_records] S [head][key_dim][value_dim] fp32, then inputs [kernel - 1][width]
 *     keys         [slots][key head][key_dim]
 *     values (u)   [slots][head][value_dim]
 *     decays (G)   [slots][head][decays] fp32: sums of log decays since the start of the block
 *     inputs       [conv_ring][width]
 *
 * slots = n_pages * block: slot position s is at s % slots. Everything except S and G has the set's
 * dtype, which is that of activations. Snapshots are records. All parts are aligned to 16 bytes.
 * Compiles as C11 and C++17.
 * Thread: plain data; launchers: the rank's owner. */
#ifndef SLUICE_CUDA_STATE_H
#define SLUICE_CUDA_STATE_H

#include "cuda/layout.h"
#include "engine/device/ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct state_view {
    struct state_layer geometry;
    enum dtype dtype;
    int32_t block, slots, n_records, conv_ring, decays;
    int64_t s_bytes, record_bytes, lane_bytes;
    int64_t k_at, u_at, g_at, conv_at; // offsets in a lane's memory
    char *lanes, *snapshots;
    int32_t max_lanes;
};

/* The number of rows of a sequence that one launch computes. It is small enough that a launch never
 * overwrites anything that it reads, whatever the order in which its blocks run. */
enum { STATE_WINDOW = 16 };

/* The work of a pass's recurrent layers. */
struct state_work {
    int32_t windows;     // launches of k_state_rows if it computes only short sequences and trees
    int32_t all_windows; // the same if it computes all sequences
    int32_t n_chains;    // sequences of more than STATE_WINDOW rows, other than trees
    int32_t n_blocks;    // blocks of the state in which chains have rows
    int32_t has_trees;
    int32_t has_single;  // sequences of one row
    int32_t has_several; // trees, or sequences of 2 to STATE_WINDOW rows
};

/* The vectors of the ops, in device memory. */
struct state_vectors {
    const float *kernel, *bias; // those of the convolution; kernel NULL: x is already convolved
    const float *a_log, *dt_bias, *skip;
    const float *norm;
    bool norm_is_wide; // the norm's weights cover all heads
};

/* The recurrence for rows [window * STATE_WINDOW, + STATE_WINDOW) of each sequence, including the
 * convolution if `conv` is given and the gate if `gate` is given. With `conv` but without `a`: the
 * convolution of a STATE_CONV layer. */
struct state_rows_launch {
    const struct short_conv_args *conv;
    const struct recurrence_args *a;
    const struct gate_args *gate;
    struct state_vectors vectors;
    struct state_view state;
    struct pass_view pass;
    int32_t window;
    int32_t n_seqs; // maximum number of sequences in the bucket
    bool few_alone; // skip sequences of more than STATE_WINDOW rows unless they are trees
    bool several;   // skip sequences of one row

    /* For k_state_blocks: the maximum number of such sequences, and of blocks of the state in which
     * they have rows. */
    int32_t n_chains, n_blocks;
    const struct gate_args *before; // k_short_conv: the gate of x; `gate` is that of out
};
/* True if the layer's shape fits into a multiprocessor. */
bool k_state_rows_takes(const struct state_view *state);
cudaError_t k_state_rows(cudaStream_t stream, const struct state_rows_launch *l);

/* The same for a few sequences of up to STATE_WINDOW rows, none of which is a tree, in gated delta
 * nets of one shape. A row's bits differ from those of k_state_rows. */
bool k_state_few_takes(const struct state_rows_launch *l);
cudaError_t k_state_few(cudaStream_t stream, const struct state_rows_launch *l);

/* The same for the sequences of one row that are not trees, in Mamba-2 layers of a few shapes. A
 * row's bits differ from those of k_state_rows. */
bool k_state_single_takes(const struct state_rows_launch *l);
cudaError_t k_state_single(cudaStream_t stream, const struct state_rows_launch *l);

/* The recurrence for sequences of more than STATE_WINDOW rows that are not trees, one whole block
 * of the state at a time, without the gate; only for 16-bit layers and with their convolution. A
 * row's bits differ from those of k_state_rows, and depend on how a block is divided into
 * passes. */
bool k_state_blocks_takes(const struct state_rows_launch *l);
size_t k_state_blocks_bytes(const struct state_view *state,
                            int32_t n_blocks); // scratch bytes; n_blocks 1 gives the minimum
cudaError_t k_state_blocks(cudaStream_t stream, const struct state_rows_launch *l, void *scratch,
                           size_t n_bytes);
/* True if k_short_conv can apply the gate itself: one value per element, used as it is, and no
 * norm. */
bool k_short_conv_takes_gate(const struct gate_args *a);
cudaError_t k_short_conv(cudaStream_t stream, const struct state_rows_launch *l);
cudaError_t k_gate(cudaStream_t stream, const struct gate_args *a, const float *norm, bool wide);

/* views: the views of all layers, in device memory. All copies in one call are of the same kind. */
cudaError_t k_copy_states(cudaStream_t stream, const struct state_view *views, int32_t n_layers,
                          const struct state_copy *copies, int32_t n);
cudaError_t k_move_states(cudaStream_t stream, const struct state_view *views, int32_t n_layers,
                          const struct slot_move *moves, int32_t n);

#ifdef __cplusplus
}
#endif
#endif
