// SPDX-License-Identifier: Apache-2.0
/* The end of a state's block in single.cu: S moves on to the next boundary. Thread: device code. */
#ifndef SLUICE_CUDA_STATE_SINGLE_END_CUH
#define SLUICE_CUDA_STATE_SINGLE_END_CUH

#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/state/single.cuh"

/* Keeps the last inputs of the convolution in the record of a boundary. */
template <typename T, int DK, int DV>
__device__ static __noinline__ void keep_tail(const struct rows_params &p,
                                              const struct single_work &w, char *record)
{
    const struct state_view &s = p.state;
    for (int32_t i = threadIdx.x; record && i < 2 * DK + w.n_heads * DV; i += THREADS) {
        const int32_t channel = channel_at<DK, DV>(p, w, i);
        for (int32_t j = 1; j < TAPS && (i >= 2 * DK || w.owner); j++) {
            const T *from = inputs_at<T>(s, w.seq.lane, w.pos - (TAPS - 1) + j);
            T *tail = (T *)(record + s.s_bytes) + (int64_t)(j - 1) * s.geometry.conv_width;
            tail[channel] = from[channel];
        }
    }
}

/* The block's values times their decays up to its end, rounded: columns [first, first + 16), as
 * the second operand of mma. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void decayed_values(const struct single_work &w,
                                               const struct mine<T, DK, DV> &h,
                                               const struct single_room<T, DK, DV> &m, float dt,
                                               int32_t first, uint32_t (&b)[BLOCK / 16][2][2])
{
    const float *weight = m.weight[threadIdx.x >> 5];
    const int32_t lane = threadIdx.x & 31, v = first + (lane >> 2);
    const T *values = h.values + v;
#pragma unroll
    for (int i = 0; i < BLOCK / 16 * 4; i++) {
        const int32_t t = (i / 4 * 2 + i % 2) * 8 + (lane & 3) * 2, column = (i / 2 & 1) * 8;
        const T x = values[t * h.stride + column], stored = values[(t + 1) * h.stride + column];
        /* Another warp may have stored the row's own value just now. */
        const T y = t + 1 == w.at ? from_float<T>(m.v[w.nth][v + column] * dt) : stored;
        b[i / 4][i / 2 & 1][i % 2] =
            pack_pair<T>(weight[t] * to_float(x), weight[t + 1] * to_float(y));
    }
}

/* Moves the warp's rows of S on to the next boundary, and stores them to its record, and to a
 * snapshot if one is due. Values are rounded once more, as for prompts (scan.cu). */
template <typename T, int DK, int DV>
__device__ static __noinline__ void
move_on(const struct single_work &w, const struct mine<T, DK, DV> &h,
        struct single_room<T, DK, DV> &m, float g, float dt, char *const (&records)[2])
{
    const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float *weight = m.weight[warp];
    __syncwarp();
    weight[lane] = __expf(g - h.g_past[0]);
    weight[lane + 32] = lane + 32 == w.at ? 1.0f : __expf(g - h.g_past[1]);
    __syncwarp();
    const float decayed = __expf(g);
    const int64_t head = (int64_t)w.head * DK * DV + h.first * DV;
#pragma unroll 1
    for (int32_t v = 0; v < DV; v += 16) {
        uint32_t b[BLOCK / 16][2][2];
        decayed_values(w, h, m, dt, v, b);
#pragma unroll 1
        for (int32_t d = 0; d < h.n; d += 16) {
            const int32_t at = (d + (lane >> 2)) * DV + v + (lane & 3) * 2;
            float s[2][4] = {};
#pragma unroll
            for (int i = 0; i < 4 && h.s; i++) {
                const float2 x = *(const float2 *)(h.s + at + i % 2 * 8 * DV + i / 2 * 8);
                s[i / 2][i % 2 * 2] = x.x * decayed;
                s[i / 2][i % 2 * 2 + 1] = x.y * decayed;
            }
#pragma unroll
            for (int k = 0; k < BLOCK / 16; k++) {
                uint32_t a[4];
                const int32_t t = k * 16 + (lane >> 4) * 8 + (lane & 7);
                ldmatrix_x4_transposed(a, &m.keys[t][h.first + d + (lane >> 3 & 1) * 8]);
                mma_16x8x16(s[0], a, b[k][0][0], b[k][0][1], T());
                mma_16x8x16(s[1], a, b[k][1][0], b[k][1][1], T());
            }
            for (int j = 0; j < 2 && records[j]; j++) {
                float *to = (float *)records[j] + head + at;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    *(float2 *)(to + i % 2 * 8 * DV + i / 2 * 8) = {s[i / 2][i % 2 * 2],
                                                                    s[i / 2][i % 2 * 2 + 1]};
                }
            }
        }
    }
}

/* Called when the row was the last of its block. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void end_block(const struct rows_params &p, const struct single_work &w,
                                          const struct mine<T, DK, DV> &h,
                                          struct single_room<T, DK, DV> &m, float g, float dt)
{
    char *const records[2] = {record_of(p.state, w.seq.lane, w.pos + 1),
                              kept_of(p.state, p.pass, w.seq.lane, w.pos + 1)};
    if (w.nth < w.n_heads) {
        move_on(w, h, m, g, dt, records);
    }
    __syncthreads();
    keep_tail<T, DK, DV>(p, w, records[0]);
    keep_tail<T, DK, DV>(p, w, records[1]);
}

#endif
