// SPDX-License-Identifier: Apache-2.0
/* gemm_small's products of E4M3 codes with codes (small.cuh). The tensor cores sum over 128 inputs
 * at most, because they accumulate codes with fewer bits than fp32. The sums of a stage are issued
 * back to back, while the previous ones are scaled and accumulated in fp32. Bound by reading the
 * weight. */
#include "cuda/kernels/gemm/small.cuh"

#if HAVE_SM90A

/* The scales a thread needs for a box's sums: of its two rows, and of the weight's blocks that
 * contain the band's halves, at most two each. */
struct box_scales {
    float x[2], w[2][2];
};

template <int N, bool GATED> struct scale_reader {
    const float *x[2], *w[2][2]; // scales of box 0
    int split[2];                // groups of eight features of a half that lie in its first block
    int x_step, last;            // 0 with one scale per row
    bool blocks;

    __device__ __forceinline__ scale_reader(const struct small_params &p, int band, int row)
    {
        constexpr int BLOCK = 128;
        blocks = p.scales.n_blocks > 0;
        x_step = p.n_rows;
        last = p.n_boxes - 1;
        const int width = GATED ? 2 * p.up_row : p.n_out, last_block = (width - 1) / BLOCK;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int first = GATED ? h * p.up_row + band * (N / 2) : band * N + h * (N / 2);
            const int block = first / BLOCK;
            x[h] = p.scales.x + min(row + 8 * h, p.n_rows - 1);
            split[h] = (BLOCK - first % BLOCK) / 8;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                w[h][i] = p.scales.w + (int64_t)min(block + i, last_block) * p.scales.n_blocks;
            }
        }
    }

    __device__ __forceinline__ struct box_scales of(int box) const
    {
        struct box_scales s;
        const int b = min(box, last); // past the end of K the codes are zero
#pragma unroll
        for (int h = 0; h < 2; h++) {
            s.x[h] = blocks ? x[h][(int64_t)b * x_step] : 1.0f;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                s.w[h][i] = blocks ? w[h][i][b] : 1.0f;
            }
        }
        return s;
    }

    __device__ __forceinline__ void add(float (&sums)[N / 2], const float (&d)[N / 2],
                                        const struct box_scales &s) const
    {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const int h = j / (N / 16);
            const float of_w = j % (N / 16) < split[h] ? s.w[h][0] : s.w[h][1];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums[4 * j + i] = fmaf(d[4 * j + i], of_w * s.x[i / 2], sums[4 * j + i]);
            }
        }
    }
};

/* Applies scales of whole rows of x and W. */
template <int N, bool GATED>
__device__ __forceinline__ void scale_band(const struct small_params &p, int band, int row,
                                           float (&sums)[N / 2])
{
    const float x[2] = {p.scales.x[min(row, p.n_rows - 1)], p.scales.x[min(row + 8, p.n_rows - 1)]};
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const int h = GATED ? j / (N / 16) : 0, in_half = GATED ? j % (N / 16) : j;
        const int f = band * (GATED ? N / 2 : N) + in_half * 8 + (threadIdx.x & 3) * 2;
        const float2 w = *(const float2 *)(p.scales.w + h * p.up_row + min(f, p.n_out - 2));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sums[4 * j + 2 * r] *= w.x * x[r];
            sums[4 * j + 2 * r + 1] *= w.y * x[r];
        }
    }
}

/* Waits until at most the last n wgmma groups are in flight; n is a constant once loops are
 * unrolled. */
__device__ __forceinline__ void wait_but(int n)
{
    switch (n) {
    case 0: wgmma_wait<0>(); break;
    case 1: wgmma_wait<1>(); break;
    case 2: wgmma_wait<2>(); break;
    default: wgmma_wait<3>(); break;
    }
}

template <int N, bool GATED> struct band_product<e4m3_t, N, GATED> {
    static __device__ __forceinline__ void make(const struct small_params &p, char *smem,
                                                uint64_t *full, uint64_t *empty,
                                                struct ring_place &at, int band,
                                                float (&sums)[N / 2])
    {
        using S = stage_of<N>;
        static_assert(S::BOXES <= 4, "wait_but");
        const uint32_t groups = p.x_rows > 8 ? 1024 : 0;
        const int bytes = S::bytes(p.x_rows), x_box = p.x_rows * BOX_BYTES;
        const int row = (threadIdx.x >> 5) * 16 + (threadIdx.x >> 2 & 7);
        const scale_reader<N, GATED> scales(p, band, row);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            sums[i] = 0.0f;
        }
#pragma unroll 1
        for (int box = 0; box < p.n_boxes; box += S::BOXES) {
            float d[S::BOXES][N / 2];
            struct box_scales s[S::BOXES];
#pragma unroll
            for (int b = 0; b < S::BOXES; b++) {
                s[b] = scales.of(box + b);
            }
            barrier_wait(&full[at.stage], at.parity);
            const uint32_t w = smem_address(smem + at.stage * bytes), x = w + S::BOXES * S::W_BOX;
            wgmma_fence();
#pragma unroll
            for (int b = 0; b < S::BOXES; b++) {
                multiply_box<e4m3_t, N>(d[b], x + b * x_box, w + b * S::W_BOX, groups, false);
                wgmma_commit();
            }
#pragma unroll
            for (int b = 0; b < S::BOXES; b++) {
                wait_but(S::BOXES - 1 - b);
                sums_done(d[b]);
                if (b == S::BOXES - 1 && (threadIdx.x & 31) == 0) {
                    barrier_arrive(&empty[at.stage]);
                }
                scales.add(sums, d[b], s[b]);
            }
            at.next(p.n_stages);
        }
        if (p.scales.n_blocks == 0) {
            scale_band<N, GATED>(p, band, row, sums);
        }
    }
};

#endif // HAVE_SM90A

template <typename Y, bool GATED>
static cudaError_t by_band(cudaStream_t stream, const struct gemm_args *a, int n_sms, int band,
                           const struct small_params &p)
{
    switch (band) {
    case 32: return launch_small<e4m3_t, Y, 32, GATED>(stream, a, n_sms, p);
    case 48: return launch_small<e4m3_t, Y, 48, GATED>(stream, a, n_sms, p);
    case 64: return launch_small<e4m3_t, Y, 64, GATED>(stream, a, n_sms, p);
    case 96: return launch_small<e4m3_t, Y, 96, GATED>(stream, a, n_sms, p);
    case 112: return launch_small<e4m3_t, Y, 112, GATED>(stream, a, n_sms, p);
    case 128: return launch_small<e4m3_t, Y, 128, GATED>(stream, a, n_sms, p);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t gemm_small_codes(cudaStream_t stream, const struct gemm_args *a, int n_sms, int band,
                             const struct small_params &p)
{
    if (a->y_dtype == DT_F32) {
        return by_band<float, false>(stream, a, n_sms, band, p);
    }
    if (a->gated) {
        return a->y_dtype == DT_BF16 ? by_band<bf16_t, true>(stream, a, n_sms, band, p)
                                     : by_band<f16_t, true>(stream, a, n_sms, band, p);
    }
    return a->y_dtype == DT_BF16 ? by_band<bf16_t, false>(stream, a, n_sms, band, p)
                                 : by_band<f16_t, false>(stream, a, n_sms, band, p);
}
