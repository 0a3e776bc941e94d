// SPDX-License-Identifier: Apache-2.0
/* Moves within state sets between passes: copies of slots, and moves of the rows on a tree's
 * accepted path. One block copies a share of a slot of one layer. Bound by memory bandwidth: a copy
 * is 2 MiB or more per layer. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/state/state.cuh"

enum { COPY_BLOCKS = 16, COPY_THREADS = 512 };

__device__ static void copy_bytes(char *to, const char *from, int64_t n_bytes)
{
    const int64_t first = (int64_t)blockIdx.x * COPY_THREADS + threadIdx.x;
    for (int64_t i = first; i < n_bytes / 16; i += COPY_BLOCKS * COPY_THREADS) {
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    }
}

/* A block copies its share of one slot of one layer. */
__global__ void copy_states_kernel(const struct state_view *views, const struct state_copy *copies)
{
    pdl_wait();
    const struct state_view s = views[blockIdx.z];
    const struct state_copy c = copies[blockIdx.y];
    const bool from_lane = c.from < s.max_lanes, to_lane = c.to < s.max_lanes;
    if (from_lane && to_lane) {
        copy_bytes(lane_of(s, c.to), lane_of(s, c.from), s.lane_bytes);
        return;
    }
    const int32_t lane = from_lane ? c.from : c.to, other = from_lane ? c.to : c.from;
    char *record = record_of(s, lane, c.pos);
    char *snapshot = s.snapshots + (int64_t)(other - s.max_lanes) * s.record_bytes;
    copy_bytes(to_lane ? record : snapshot, to_lane ? snapshot : record, s.record_bytes);
    const int32_t taps = s.geometry.conv_kernel - 1;
    if (!to_lane || taps < 1) {
        return;
    }
    const int32_t size = s.dtype == DT_F32 ? 4 : 2; // inputs before the boundary go to the ring
    const int64_t row = (int64_t)s.geometry.conv_width * size;
    char *ring = lane_of(s, lane) + s.conv_at;
    const int64_t first = (int64_t)blockIdx.x * COPY_THREADS + threadIdx.x;
    for (int64_t i = first; i < taps * row / 2; i += COPY_BLOCKS * COPY_THREADS) {
        const int64_t tap = i * 2 / row, slot = c.pos - taps + tap;
        const uint16_t word = ((const uint16_t *)(snapshot + s.s_bytes))[i];
        ((uint16_t *)(ring + slot % s.conv_ring * row))[i - tap * row / 2] = word;
    }
}

extern "C" cudaError_t k_copy_states(cudaStream_t stream, const struct state_view *views,
                                     int32_t n_layers, const struct state_copy *copies, int32_t n)
{
    return launch(copy_states_kernel, dim3(COPY_BLOCKS, n, n_layers), dim3(COPY_THREADS), 0, stream,
                  views, copies);
}

__device__ static void move_words(char *base, int64_t row_bytes, int32_t ring,
                                  const struct slot_move *moves, int32_t first, int32_t n)
{
    const int32_t lane = moves[first].lane;
    for (int64_t i = threadIdx.x; i < row_bytes / 2; i += blockDim.x) { // in order, word by word
        for (int32_t m = first; m < n && moves[m].lane == lane; m++) {
            ((uint16_t *)(base + moves[m].to % ring * row_bytes))[i] =
                ((const uint16_t *)(base + moves[m].from % ring * row_bytes))[i];
        }
    }
}

/* The block of a lane's first move does all moves of that lane, for one layer. */
__global__ void move_states_kernel(const struct state_view *views, const struct slot_move *moves,
                                   int32_t n)
{
    pdl_wait();
    const int32_t first = blockIdx.x;
    if (first > 0 && moves[first - 1].lane == moves[first].lane) {
        return;
    }
    const struct state_view s = views[blockIdx.y];
    const struct state_layer &g = s.geometry;
    const int64_t size = s.dtype == DT_F32 ? 4 : 2;
    char *lane = lane_of(s, moves[first].lane);
    if (g.kind != STATE_CONV) {
        move_words(lane + s.k_at, g.n_key_heads * g.key_dim * size, s.slots, moves, first, n);
        move_words(lane + s.u_at, g.n_heads * g.value_dim * size, s.slots, moves, first, n);
        move_words(lane + s.g_at, (int64_t)g.n_heads * s.decays * 4, s.slots, moves, first, n);
    }
    if (g.conv_kernel > 0) {
        move_words(lane + s.conv_at, g.conv_width * size, s.conv_ring, moves, first, n);
    }
}

extern "C" cudaError_t k_move_states(cudaStream_t stream, const struct state_view *views,
                                     int32_t n_layers, const struct slot_move *moves, int32_t n)
{
    return launch(move_states_kernel, dim3(n, n_layers), dim3(256), 0, stream, views, moves, n);
}
