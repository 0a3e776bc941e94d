// SPDX-License-Identifier: Apache-2.0
/* Shared by the two kernels of few_single.cu: a warp's stream of pairs of half tiles, and their
 * products with one row.
 *
 * An mma multiplies two half tiles of 8 outputs by 128 inputs, each with inputs of its own. With
 * one row only two of the eight columns would be needed. Instead column 2 j + i has the 32 inputs
 * of group j that belong to half tile i, and zeros for the other groups. So the sums of all groups
 * of a half tile are separate, in a lane each, which multiplies its own by the group's scale: once
 * for 128 inputs. Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_FEW_SINGLE_CUH
#define SLUICE_CUDA_KERNELS_MOE_FEW_SINGLE_CUH

#include "cuda/kernels/moe/few_coded.cuh"

enum { CODES = CODED_TILE_BYTES / 2, SLOT = 2 * CODES + 2 * HALF_RECORD }; // bytes
enum { ITEM_BYTES = 2 * ITEM };                                            // of inputs
enum { WARPS = 12, THREADS = 32 * WARPS }; // more warps have too few registers

/* Makes the compiler compute values, none of which is ever negative, here and not after the next
 * wait, where it would take time. */
__device__ __forceinline__ void compute_now(int32_t values)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.lt.s32 p, %0, 0;\n\t@p trap;\n\t}" ::"r"(values));
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Stores a run of 8 inputs in the order in which mma's lanes need them: lane t of four has 16 bytes
 * of 32 inputs. */
template <typename T> __device__ __forceinline__ void store_run(uint4 v, int32_t run, char *to)
{
    using L = few_codes<T, CODED_E2M1>;
    uint32_t *pairs = (uint32_t *)(to + run / 4 * 64) + run % 4;
    pairs[0] = L::SCALES_X ? pair_times<T>(v.x, L::X_UP) : v.x;
    pairs[4] = L::SCALES_X ? pair_times<T>(v.y, L::X_UP) : v.y;
    pairs[8] = L::SCALES_X ? pair_times<T>(v.z, L::X_UP) : v.z;
    pairs[12] = L::SCALES_X ? pair_times<T>(v.w, L::X_UP) : v.w;
}

template <typename T>
__device__ __forceinline__ uint4 load_run(const T *from, int32_t run, int32_t n_in)
{
    return run * RUN < n_in ? *(const uint4 *)(from + run * RUN) : make_uint4(0, 0, 0, 0);
}

/* The range of a block's items that a warp takes. */
struct item_share {
    int32_t each, first, n;

    __device__ __forceinline__ explicit item_share(int32_t all)
    {
        each = max((all + WARPS - 1) / WARPS, 1);
        first = min((int32_t)(threadIdx.x >> 5) * each, all);
        n = min(each, all - first);
    }
};

/* ---- a warp's stream of weights -------------------------------------------------------------- */

/* A warp's place in its block's segments: number `at`, which is number `inner` of `outer`. */
struct segment_place {
    int32_t at, inner, outer, each; // each: the number of segments of each `outer`

    /* begin: what is added to `at` before it is divided. */
    __device__ __forceinline__ segment_place(int32_t at, int32_t begin, int32_t each)
        : at(at), outer((begin + at) / each), each(each)
    {
        inner = begin + at - outer * each;
        compute_now(inner | outer);
    }

    __device__ __forceinline__ void next()
    {
        at++;
        if (++inner == each) {
            inner = 0;
            outer++;
        }
    }
};

/* Where the two half tile rows of a segment are: their tile rows, and which half of both. */
struct halves {
    int32_t first, second, half;
};

/* A warp's ring, as addresses of shared memory. A slot is filled again in the step after the one
 * that reads it. */
template <int STAGES> struct pair_ring {
    enum { END = STAGES * SLOT };
    uint32_t begin;
    int32_t slot, last; // read now, and in the last step

    __device__ __forceinline__ explicit pair_ring(const char *memory)
        : begin((uint32_t)__cvta_generic_to_shared(memory)), slot(0), last(END - SLOT)
    {
    }

    __device__ __forceinline__ void next()
    {
        last = slot;
        slot = slot + SLOT == END ? 0 : slot + SLOT;
    }
};

/* The copies of a warp's part of a block's items. halves_of(segment) says which halves are
 * multiplied in that segment, which has one item for each 128 inputs. */
struct pair_stream {
    uint32_t code, scale;         // what this lane copies next, in 16 bytes
    int32_t apart;                // from its codes of the first half to those of the second
    int32_t run, left;            // items that are left of the segment, and beyond it
    struct segment_place segment; // the next one

    template <typename H>
    __device__ __forceinline__ void find(const struct coded_matrix &m, int32_t item,
                                         const H &halves_of)
    {
        const int32_t lane = threadIdx.x & 31;
        run = min(left, coded_items(m) - item);
        left -= run;
        if (run > 0) {
            const struct halves w = halves_of(segment);
            const int32_t all = w.first * m.n_chunks + item;
            const int32_t other = (w.second - w.first) * m.n_chunks;
            code = (uint32_t)(all * 64 + w.half * 32 + lane);
            apart = other * 64;
            scale = (uint32_t)((all + (lane < 2 ? 0 : other)) * 4 + w.half * 2 + lane % 2);
            segment.next();
        }
    }

    template <typename H>
    __device__ __forceinline__ void copy(const struct coded_matrix &m, uint32_t slot,
                                         const H &halves_of)
    {
        if (run > 0) {
            const uint32_t lane = threadIdx.x & 31, to = slot + lane * 16;
            cp_async_16(to, m.tiles + (uint64_t)code * 16);
            cp_async_16(to + CODES, m.tiles + (uint64_t)(code + (uint32_t)apart) * 16);
            if (lane < 4) {
                cp_async_16(to + 2 * CODES, m.scales + (uint64_t)scale * 16);
            }
            code += CODED_TILE_BYTES / 16;
            scale += RECORD / 16;
            if (--run == 0) {
                find(m, 0, halves_of);
            }
        }
        cp_async_commit();
    }

    /* Fills the ring but for one slot. item: of the first segment. */
    template <int STAGES, typename H>
    __device__ __forceinline__ void begin(const struct coded_matrix &m,
                                          const struct pair_ring<STAGES> &ring, int32_t item,
                                          const H &halves_of)
    {
        find(m, item, halves_of);
#pragma unroll 1
        for (uint32_t i = 0; i < STAGES - 1; i++) {
            copy(m, ring.begin + i * SLOT, halves_of);
        }
    }
};

/* ---- products -------------------------------------------------------------------------------- */

__device__ __forceinline__ uint4 load_shared(uint32_t from)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
}

/* Loads if `is` is true. With an ordinary `if` the compiler would keep `to` in memory. */
__device__ __forceinline__ void load_if(uint4 &to, uint32_t from, bool is)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
                 "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
                 : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
                 : "r"(from), "r"((uint32_t)is));
}

/* The scale of a group. 2^-127, which is subnormal in fp32, becomes 0. */
__device__ __forceinline__ float load_scale(uint32_t from)
{
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from));
    return __uint_as_float(v << 23);
}

/* Multiplies the two half tiles of a slot and adds the products, times the groups' scales, to the
 * lane's sums. b: zeros before the first call; only the lanes of a group's columns load its part.
 */
template <typename T>
__device__ __forceinline__ void multiply(uint32_t slot, uint32_t x, uint4 (&b)[4], float (&sums)[2])
{
    using L = few_codes<T, CODED_E2M1>;
    const uint32_t lane = threadIdx.x & 31;
    const uint4 v = load_shared(slot + lane * 16), w = load_shared(slot + CODES + lane * 16);
    const uint32_t words[2][4] = {{v.x, v.y, v.z, v.w}, {w.x, w.y, w.z, w.w}};
    const float first = load_scale(slot + 2 * CODES + lane);
    const float second = load_scale(slot + 2 * CODES + HALF_RECORD + lane);
    float acc[2][4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        load_if(b[j], x, lane / 8 == j);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t pairs[2][4];
        L::make_float(words[0][j], pairs[0]);
        L::make_float(words[1][j], pairs[1]);
        const uint32_t a[2][4] = {{pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]},
                                  {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]}};
        mma_16x8x16(acc[0], a[0], b[j].x, b[j].y, T());
        mma_16x8x16(acc[1], a[1], b[j].z, b[j].w, T());
    }
    sums[0] = fmaf(acc[0][0] + acc[1][0], first, sums[0]);
    sums[1] = fmaf(acc[0][3] + acc[1][3], second, sums[1]);
}

/* The sum over the four lanes of an output. */
__device__ __forceinline__ float quad_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* Multiplies a warp's n items, the first of which is number `item` of a segment. inputs_of(segment)
 * is where its inputs begin for this lane. done(segment, sums) takes the lane's sums of a part of a
 * segment. */
template <typename T, int STAGES, typename H, typename I, typename D>
__device__ __forceinline__ void
multiply_items(const struct coded_matrix &m, struct segment_place segment, int32_t item, int32_t n,
               struct pair_stream &load, struct pair_ring<STAGES> ring, const H &halves_of,
               const I &inputs_of, const D &done)
{
    uint4 b[4] = {};
#pragma unroll 1
    for (; n > 0; item = 0) {
        int32_t run = min(n, coded_items(m) - item);
        uint32_t x = inputs_of(segment) + item * ITEM_BYTES;
        float sums[2] = {0.0f, 0.0f};
        n -= run;
#pragma unroll 1
        do {
            wait_copies<STAGES - 2>();
            __syncwarp(); // other lanes have copied, too, and have read the slot to be refilled
            load.copy(m, ring.begin + ring.last, halves_of);
            multiply<T>(ring.begin + ring.slot, x, b, sums);
            ring.next();
            x += ITEM_BYTES;
        } while (--run > 0);
        done(segment, sums);
        segment.next();
    }
}

/* The places of the sums that warps leave of n segments: that of segment s and warp w is s + w. */
struct sums_of_segments {
    int32_t first, last;

    __device__ __forceinline__ sums_of_segments(const struct item_share &share, int32_t segment,
                                                int32_t n, int32_t n_items)
        : first(segment + segment * n_items / share.each),
          last(segment + n - 1 + ((segment + n) * n_items - 1) / share.each)
    {
        compute_now(first | last);
    }

    __device__ __forceinline__ float add(const float *sums, int32_t pitch) const
    {
        float v = 0.0f;
#pragma unroll 1
        for (int32_t i = first; i <= last; i++) {
            v += sums[i * pitch];
        }
        return v;
    }
};

#endif
