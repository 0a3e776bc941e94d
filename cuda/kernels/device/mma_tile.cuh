// SPDX-License-Identifier: Apache-2.0
/* One block's tile of a matrix product with 16-bit operands on the tensor cores (mma.sync), with
 * cp.async stages. The caller's functions give the addresses of both operands' rows, so the same
 * code serves gathered rows (experts) and interleaved rows (gate and up side by side).
 *
 * K is summed in ascending order, in steps of 16, in one accumulator. So the bits of an element
 * depend neither on the size of the tile nor on other rows. Deterministic mode relies on that.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_MMA_TILE_CUH
#define SLUICE_CUDA_DEVICE_MMA_TILE_CUH

#include "cuda/kernels/device/types.cuh"

__device__ __forceinline__ void cp_async_16(void *shared, const void *from, bool valid)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    const int n = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n));
}

/* The same, to an address of shared memory. */
__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;");
}

template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *shared)
{
    const unsigned from = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}

__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], const void *shared)
{
    const unsigned from = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(uint32_t &r0, uint32_t &r1, const void *shared)
{
    const unsigned from = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r0), "=r"(r1)
                 : "r"(from));
}

__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1, bf16_t)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1, f16_t)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* BM x BN outputs, computed by WM x WN warps. ALIGNED: rows are aligned to 16 bytes and n_in is a
 * multiple of 8. */
template <typename T, int BM, int BN, int BK, int WM, int WN, int STAGES, bool ALIGNED>
struct mma_tile {
    static constexpr int THREADS = WM * WN * 32;
    static constexpr int LD = BK + 8; // padded, so that ldmatrix has no bank conflicts
    static constexpr int STAGE = (BM + BN) * LD;
    static constexpr int SMEM = STAGE * STAGES * (int)sizeof(T);
    static constexpr int MF = BM / WM / 16, NF = BN / WN / 8;
    static constexpr int CHUNKS = BK / 8, STEP = THREADS / CHUNKS;
    static constexpr int LOADS = (BM + BN) / STEP;
    static_assert((BM + BN) % STEP == 0 && THREADS % CHUNKS == 0 && (NF == 1 || NF % 2 == 0), "");

    float acc[MF][NF][4];

    /* Position in the tile of this thread's acc[mf][nf][2 * half] and [2 * half + 1]: row() is its
     * row, the next function its column. */
    __device__ __forceinline__ static int row(int mf, int half)
    {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        return warp / WN * (BM / WM) + mf * 16 + half * 8 + (lane >> 2);
    }
    __device__ __forceinline__ static int col(int nf)
    {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        return warp % WN * (BN / WN) + nf * 8 + (lane & 3) * 2;
    }

    __device__ __forceinline__ static void load(T *to, const T *from, int k, int n_in)
    {
        if constexpr (ALIGNED) {
            const bool valid = from && k < n_in;
            cp_async_16(to, valid ? from + k : from, valid);
        } else {
            vec<T> v;
#pragma unroll
            for (int e = 0; e < 8; e++) {
                v.v[e] = from && k + e < n_in ? from[k + e] : from_float<T>(0.0f);
            }
            v.store(to);
        }
    }

    /* A warp's operands of b for 16 inputs. */
    __device__ __forceinline__ static void load_b(uint32_t (&b)[NF][2], const T *from)
    {
        if constexpr (NF == 1) {
            ldmatrix_x2(b[0][0], b[0][1], from);
        } else {
#pragma unroll
            for (int nf = 0; nf < NF; nf += 2) {
                uint32_t r[4];
                ldmatrix_x4(r, from + nf * 8 * LD);
                b[nf][0] = r[0];
                b[nf][1] = r[1];
                b[nf + 1][0] = r[2];
                b[nf + 1][1] = r[3];
            }
        }
    }

    /* a_row(i), b_row(j): the address of the first element of a row; NULL for a row of zeros. */
    template <typename A, typename B>
    __device__ __forceinline__ void run(T *smem, int n_in, A a_row, B b_row)
    {
        const int chunk = threadIdx.x % CHUNKS * 8, first = threadIdx.x / CHUNKS;
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        const T *from[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            const int i = first + l * STEP;
            from[l] = i < BM ? a_row(i) : b_row(i - BM);
        }
#pragma unroll
        for (int mf = 0; mf < MF; mf++) {
#pragma unroll
            for (int nf = 0; nf < NF; nf++) {
                acc[mf][nf][0] = acc[mf][nf][1] = acc[mf][nf][2] = acc[mf][nf][3] = 0.0f;
            }
        }
        const int n_tiles = (n_in + BK - 1) / BK;
        auto fetch = [&](int tile) {
            if (tile < n_tiles) {
                T *stage = smem + tile % STAGES * STAGE;
#pragma unroll
                for (int l = 0; l < LOADS; l++) {
                    load(stage + (first + l * STEP) * LD + chunk, from[l], tile * BK + chunk, n_in);
                }
            }
            cp_async_commit();
        };
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) {
            fetch(s);
        }
        const int a_at = (warp / WN * (BM / WM) + (lane & 15)) * LD + (lane >> 4) * 8;
        const int b_base = BM + warp % WN * (BN / WN);
        const int b_at = NF == 1
                             ? (b_base + (lane & 7)) * LD + (lane >> 3 & 1) * 8
                             : (b_base + (lane & 7) + (lane >> 4) * 8) * LD + (lane >> 3 & 1) * 8;
        for (int tile = 0; tile < n_tiles; tile++) {
            cp_async_wait<STAGES - 2>();
            __syncthreads();
            fetch(tile + STAGES - 1);
            const T *stage = smem + tile % STAGES * STAGE;
#pragma unroll
            for (int k = 0; k < BK; k += 16) {
                uint32_t a[MF][4], b[NF][2];
#pragma unroll
                for (int mf = 0; mf < MF; mf++) {
                    ldmatrix_x4(a[mf], stage + a_at + mf * 16 * LD + k);
                }
                load_b(b, stage + b_at + k);
#pragma unroll
                for (int mf = 0; mf < MF; mf++) {
#pragma unroll
                    for (int nf = 0; nf < NF; nf++) {
                        mma_16x8x16(acc[mf][nf], a[mf], b[nf][0], b[nf][1], T());
                    }
                }
            }
        }
        cp_async_wait<0>();
        __syncthreads();
    }
};

#endif
