// SPDX-License-Identifier: Apache-2.0
/* few.cu: S moves to the end of a block, and is stored there. Thread: device code. */
#ifndef SLUICE_CUDA_STATE_FEW_END_CUH
#define SLUICE_CUDA_STATE_FEW_END_CUH

#include "cuda/kernels/state/few.cuh"

/* The keys of step q's slots. Those of slots 16 * j + 4 * q + m are in row 4 * m + j, so that the
 * lanes of a row of the operand read different banks. */
template <typename T>
__device__ __forceinline__ void stage_keys(const struct past<T> &m, int32_t q,
                                           T (&stage)[STAGE_ROWS][STAGE_STRIDE])
{
    const int32_t slot = my_warp() * 8 + lane_i();
    if (slot % 16 / 4 == q) {
        T *to = stage[slot % 4 * 4 + slot / 16];
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            *(uint4 *)(to + first_row_of(r)) = m.key[r];
        }
    }
}

/* The operand of step q's values times their decays to the end of the block, and what rounding it
 * leaves. */
template <typename T>
__device__ __forceinline__ void decay_values(const struct past<T> &m, const float *g, int32_t q,
                                             uint32_t (&most)[4], uint32_t (&rest)[4])
{
    uint32_t step[4], value[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        step[e] = m.value[0][e];
#pragma unroll
        for (int i = 1; i < STEPS; i++) {
            step[e] = q == i ? m.value[i][e] : step[e];
        }
    }
    operand_of(step, value);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t slot = 16 * lane_j() + 4 * q + 2 * h;
        const float2 decay = {__expf(g[BLOCK - 1] - g[slot]), __expf(g[BLOCK - 1] - g[slot + 1])};
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float2 u = numbers_of<T>(value[2 * h + c]);
            split_pair<T>(u.x * decay.x, u.y * decay.y, most[2 * h + c], rest[2 * h + c]);
        }
    }
}

/* S += the products of the staged keys and these values. */
template <typename T>
__device__ __forceinline__ void add_products(struct past<T> &m,
                                             const T (&stage)[STAGE_ROWS][STAGE_STRIDE],
                                             const uint32_t (&most)[4], const uint32_t (&rest)[4])
{
    const int32_t i = lane_i();
    const uint32_t half = i % 2 ? 0x7632 : 0x5410;
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        uint4 key[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            key[k] = *(const uint4 *)&stage[4 * k + lane_j()][32 * r + 8 * (i / 2)];
        }
#pragma unroll
        for (int y = 0; y < 4; y++) {
            const uint32_t low = __byte_perm(word(key[0], y), word(key[1], y), half);
            const uint32_t high = __byte_perm(word(key[2], y), word(key[3], y), half);
            float (&s)[4] = m.s[r][y], sum[4] = {s[0], s[2], s[1], s[3]};
            mma_16x8x16(sum, most, low, high, T());
            mma_16x8x16(sum, rest, low, high, T());
            s[0] = sum[0], s[2] = sum[1], s[1] = sum[2], s[3] = sum[3];
        }
    }
}

template <typename T>
__device__ __forceinline__ void store_state(const struct past<T> &m, float *to)
{
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            *(float2 *)(to + (first_row_of(r) + e) * VALUE) =
                make_float2(m.s[r][e / 2][e % 2 * 2], m.s[r][e / 2][e % 2 * 2 + 1]);
        }
    }
}

/* The last inputs before the group's end, of the warp's channels or of the lane's. */
template <typename T, typename V>
__device__ __forceinline__ void store_inputs(const struct rows_params &p, const struct few_work &w,
                                             int32_t end, int32_t channel, T *tail)
{
    const T *x = (const T *)p.x + w.seq.first_row * p.x_stride + channel;
#pragma unroll
    for (int t = 0; t < TAPS - 1; t++) {
        const int32_t row = end - (TAPS - 1) + t;
        *(V *)(tail + (int64_t)t * p.state.geometry.conv_width + channel) =
            row < 0 ? earlier_input<T, V>(p, w, row, channel) : *(const V *)(x + row * p.x_stride);
    }
}

/* The block is full after group b: S moves to the next boundary, and is stored to its record, and
 * to a snapshot if one is due. */
template <typename T>
__device__ static void move_on(const struct rows_params &p, struct few_work &w, struct past<T> &m,
                               struct few_room<T> &room, const struct group &b)
{
    const struct state_view &s = p.state;
    const int32_t end = b.first + b.n, boundary = w.seq.n_past + end;
    const float decay = __expf(room.g[BLOCK - 1]);
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
#pragma unroll
        for (int e = 0; e < 16; e++) {
            m.s[r][e / 4][e % 4] *= decay;
        }
    }
#pragma unroll 1
    for (int32_t q = 0; q < STEPS; q++) {
        uint32_t most[4], rest[4];
        decay_values(m, room.g, q, most, rest);
        __syncthreads(); // the room's contents have been read by all threads
        stage_keys(m, q, room.stage);
        __syncthreads();
        add_products(m, room.stage, most, rest);
    }
    char *record = record_of(s, w.seq.lane, boundary);
#pragma unroll 1
    for (int j = 0; j < 2 && record; j++) {
        store_state(m, (float *)record + (int64_t)w.head * KEY * VALUE + my_column());
        T *tail = (T *)(record + s.s_bytes);
        if (w.owner && my_warp() % GROUP == 0) {
            store_inputs<T, uint2>(p, w, end, key_channel(p, w), tail);
        }
        if (lane_j() == 0) {
            store_inputs<T, uint32_t>(p, w, end, value_channel(p, w), tail);
        }
        record = kept_of(s, p.pass, w.seq.lane, boundary);
    }
    w.slot = w.slot + BLOCK < s.slots ? w.slot + BLOCK : 0;
    __syncthreads();
}

#endif
