// SPDX-License-Identifier: Apache-2.0
/* Shared by few_coded.cu and, in part, few_single.cu: the experts that the rows picked, a warp's
 * stream of codes (cuda/coded.h), and the products of a part of it.
 *
 * The unit of work is an item: 8 outputs by 128 inputs, which is half of a tile with 4 bits, and
 * half of each of two tiles with 8 bits. With PARTS 2 an item has 8 outputs of each of two tile
 * rows, which are the upper and the lower half of mma's operand of 16 rows. With PARTS 1 it has one
 * half, and the other one is zeros. The 8 columns of the other operand are the rows of x. Those
 * that did not pick the expert are computed but not used. So every weight is read once.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_FEW_CODED_CUH
#define SLUICE_CUDA_KERNELS_MOE_FEW_CODED_CUH

#include "cuda/kernels/device/codes.cuh"
#include "cuda/kernels/moe/few.cuh"

#include <type_traits>

enum { CODED_WARPS = 16, CODED_THREADS = 32 * CODED_WARPS, CODED_MOST_ROWS = 8 };
enum { HALF = CODED_ROWS / 2, ITEM = 128 };     // outputs and inputs of an item
enum { RECORD = 64, HALF_RECORD = RECORD / 2 }; // bytes of the scales of a tile row's item
enum { ROW_PADDING = 16 };                      // avoids bank conflicts between rows of x

__host__ __device__ static inline int32_t coded_items(const struct coded_matrix &m) // of a row
{
    return (m.n_in + ITEM - 1) / ITEM;
}

struct coded_few {
    struct few_params p;
    struct coded_matrix up, down;
    int32_t n_sms;
    int32_t kind;    // enum activation
    bool accumulate; // y += instead of y =
};

/* moe/few_single.cu: one row, MXFP4. */
bool k_moe_few_single_takes(const struct coded_few &c);
cudaError_t k_moe_few_single(cudaStream_t stream, const struct coded_few &c, enum dtype dtype);

/* ---- codes ----------------------------------------------------------------------------------- */

/* Converts the eight codes that a lane has of 32 inputs to four pairs of T. Codes of 4 bits are in
 * one word, in which pair i is nibbles i and i + 4; codes of 8 bits are in two words. unit() is the
 * factor that the results lack.
 *
 * E2M1: the last exponent bit of a code is moved to the last exponent bit of T, which gives a small
 * number that the tensor cores multiply exactly. With bf16 the products would be too small for
 * fp32, so x is multiplied by X_UP as it is copied. Two neighbouring nibbles are moved at once. */
template <typename T, enum coded_code CODE> struct few_codes {
    static constexpr bool IS_BF16 = std::is_same<T, bf16_t>::value, IS_INT = CODE == CODED_U4;
    static constexpr bool IS_8 = code_of<CODE>::BITS == 8, IS_E2M1 = CODE == CODED_E2M1;
    static constexpr bool SCALES_X = IS_BF16 && IS_E2M1;
    static constexpr uint32_t X_UP = 0x5f805f80u; // 2^64
    static constexpr int HALF_BYTES = IS_8 ? CODED_TILE_BYTES : CODED_TILE_BYTES / 2;

    static __device__ __forceinline__ float unit()
    {
        if (IS_E2M1) {
            return __uint_as_float((uint32_t)(127 + (IS_BF16 ? 126 - 64 : 14)) << 23);
        }
        return IS_INT ? 1.0f / code_constants<T>::INT_FACTOR : 1.0f;
    }

    static __device__ __forceinline__ void make_float(uint32_t word, uint32_t (&pairs)[4])
    {
        /* The distance between the two nibbles; how far the word is moved for the other two. */
        constexpr int APART = IS_BF16 ? 4 : 8, MOVE = 12 - APART, DOWN = IS_BF16 ? 6 : 3;
        constexpr uint32_t SIGN = 0x80008000u, SIZE = IS_BF16 ? 0x01c001c0u : 0x0e000e00u;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int last = i == 0 ? 3 : 3 - MOVE / 4;
            const uint32_t both = select_bits(SIGN | SIGN >> APART, shifted(word, i * MOVE),
                                              shifted(word, i * MOVE - DOWN));
            pairs[last] = both & (SIGN | SIZE);
            pairs[last - APART / 4] = both << APART & (SIGN | SIZE);
        }
    }

    static __device__ __forceinline__ void make(uint2 words, uint32_t zero, uint32_t (&pairs)[4])
    {
        if constexpr (IS_INT) {
            word_codes<T, CODE>::make(words.x, zero, pairs);
        } else if constexpr (IS_E2M1) {
            make_float(words.x, pairs);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                pairs[i] = pair_of<T, CODE>(i < 2 ? words.x : words.y, i % 2, 0);
            }
        }
    }
};

/* ---- picks ----------------------------------------------------------------------------------- */

/* The picks of all rows, and each expert that some row picked once. */
struct coded_picks {
    int32_t id[CODED_MOST_ROWS * MOE_MAX_K]; // [n_rows, k]
    float weight[CODED_MOST_ROWS * MOE_MAX_K];
    int32_t expert[CODED_MOST_ROWS * MOE_MAX_K];
    int8_t slot[CODED_MOST_ROWS * MOE_MAX_K][CODED_MOST_ROWS]; // which of a row's picks the expert
                                                               // is; -1: none
    int32_t n_experts;
};

/* Lists the experts in the order in which they were first picked. Called by one warp. */
__device__ __forceinline__ void list_experts(struct coded_picks &s, int32_t n_rows, int32_t k)
{
    const int32_t lane = threadIdx.x & 31, n = n_rows * k;
    int32_t found = 0;
#pragma unroll 1
    for (int32_t first = 0; first < n; first += 32) {
        const int32_t i = first + lane, row = i / k, id = i < n ? s.id[i] : -1;
        int32_t at = -1;
#pragma unroll 1
        for (int32_t j = 0; j < found; j++) {
            at = s.expert[j] == id ? j : at;
        }
        const int leader = __ffs((int)__match_any_sync(0xffffffffu, id)) - 1;
        const bool is_new = i < n && at < 0 && leader == lane;
        const uint32_t fresh = __ballot_sync(0xffffffffu, is_new);
        if (is_new) {
            at = found + __popc(fresh & ((1u << lane) - 1));
            s.expert[at] = id;
            *(uint64_t *)s.slot[at] = ~(uint64_t)0;
        }
        at = __shfl_sync(0xffffffffu, at, leader);
        __syncwarp();
        if (i < n) {
            s.slot[at][row] = (int8_t)(i - row * k);
        }
        found += __popc(fresh);
        __syncwarp();
    }
    if (lane == 0) {
        s.n_experts = found;
    }
}

/* Makes the picks of all rows, a warp each, and lists their experts. Called by all threads.
 * shared: room for the picks of all rows. */
template <int EACH>
__device__ __forceinline__ void find_experts(const struct few_params &p, int32_t n_rows,
                                             float *shared, struct coded_picks &s)
{
    const int32_t lane = threadIdx.x & 31, warp = (int32_t)threadIdx.x >> 5, k = p.route.k;
    if (warp < n_rows) {
        const struct pick mine =
            pick_row<EACH>(p.logits + warp * p.n_scores, p.correction, p.expert_scale, p.route,
                           shared + warp * pick_floats(p.route));
        if (lane < k) {
            s.id[warp * k + lane] = mine.id;
            s.weight[warp * k + lane] = mine.weight;
        }
    }
    __syncthreads();
    if (warp == 0) {
        list_experts(s, n_rows, k);
    }
    __syncthreads();
}

/* ---- inputs ---------------------------------------------------------------------------------- */

__host__ __device__ static inline int32_t coded_pitch(const struct coded_matrix &m)
{
    return coded_items(m) * ITEM * 2 + ROW_PADDING;
}

/* Copies n rows of the matrix's inputs to shared memory, padded with zeros. With 8 bits, the inputs
 * are stored in the order of the pairs of codes. Called by the threads of the block from number
 * `begin` on. */
template <typename T, enum coded_code CODE>
__device__ __forceinline__ void stage_inputs(const struct coded_matrix &m, const T *from,
                                             int64_t stride, int32_t n, char *to, int32_t begin)
{
    using L = few_codes<T, CODE>;
    const int32_t runs = coded_items(m) * (ITEM / RUN), all = n * runs, pitch = coded_pitch(m);
#pragma unroll 4
    for (int32_t i = (int32_t)threadIdx.x - begin; i < all; i += CODED_THREADS - begin) {
        const int32_t row = i / runs, at = i - row * runs;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (at * RUN < m.n_in) {
            v = *(const uint4 *)(from + row * stride + at * RUN);
        }
        if (L::SCALES_X) {
            v = make_uint4(pair_times<T>(v.x, L::X_UP), pair_times<T>(v.y, L::X_UP),
                           pair_times<T>(v.z, L::X_UP), pair_times<T>(v.w, L::X_UP));
        }
        if (L::IS_8) {
            uint32_t *pairs = (uint32_t *)(to + row * pitch + at / 4 * 64) + at % 4;
            pairs[0] = __byte_perm(v.x, v.y, 0x5410);
            pairs[4] = __byte_perm(v.x, v.y, 0x7632);
            pairs[8] = __byte_perm(v.z, v.w, 0x5410);
            pairs[12] = __byte_perm(v.z, v.w, 0x7632);
        } else {
            *(uint4 *)(to + row * pitch + at * 16) = v;
        }
    }
}

/* ---- a warp's stream of weights -------------------------------------------------------------- */

/* The range of a block's items that a warp takes: item i belongs to warp i / each. The items of a
 * block form consecutive groups, each with one result per output and row, and a group may be
 * divided among several warps. Along the items both the group and the warp only increase, so group
 * + warp is a different number for each pair that occurs: the place where the warp leaves its sums.
 */
struct coded_share {
    int32_t each, first, n;

    __device__ __forceinline__ explicit coded_share(int32_t all)
    {
        each = (all + CODED_WARPS - 1) / CODED_WARPS;
        first = min((int32_t)(threadIdx.x >> 5) * each, all);
        n = min(each, all - first);
    }

    /* The sum of a group of `size` items over its warps. */
    __device__ __forceinline__ float sum(const float *sums, int32_t pitch, int32_t group,
                                         int32_t size) const
    {
        float v = 0.0f;
        const int32_t last = (group * size + size - 1) / each;
        for (int32_t w = group * size / each; w <= last; w++) {
            v += sums[(group + w) * pitch];
        }
        return v;
    }
};

template <enum coded_code CODE, int PARTS> struct coded_slot {
    enum {
        HALF_BYTES = few_codes<bf16_t, CODE>::HALF_BYTES,
        SCALES = PARTS * HALF_BYTES,
        ZEROS = SCALES + PARTS * HALF_RECORD,
        PITCH = ZEROS + (code_of<CODE>::HAS_ZEROS ? 16 : 0)
    };
};

/* Where a segment's weights are: a tile row of an expert, which of its halves, and the distance to
 * the second tile row. */
struct coded_place {
    int32_t expert, tile, half, other;
};

/* The copies of a warp's items into its ring. A segment is all items of 8 outputs of an expert;
 * they follow each other. place_of finds a segment's weights. */
template <enum coded_code CODE, int PARTS, int STAGES> struct coded_stream {
    using S = coded_slot<CODE, PARTS>;
    static constexpr bool IS_8 = code_of<CODE>::BITS == 8;
    int32_t left, segment, item;
    uint32_t to, end; // addresses of shared memory
    const uint8_t *codes, *scales, *zeros;
    int32_t other; // tile rows to the second one

    __device__ __forceinline__ coded_stream(const char *ring, const struct coded_share &share,
                                            int32_t n_items)
        : left(share.n), segment(share.first / n_items), item(share.first - segment * n_items),
          to((uint32_t)__cvta_generic_to_shared(ring)), end(to + STAGES * S::PITCH), codes(NULL)
    {
    }

    /* With 8 bits a lane copies 16 of the 128 bytes of one output in four. */
    __device__ __forceinline__ void find(const struct coded_matrix &m, const struct coded_place &w)
    {
        const int32_t lane = threadIdx.x & 31;
        const int64_t tile = (int64_t)w.expert * m.n_tiles + w.tile;
        const int64_t row = (int64_t)m.n_chunks * 64, record = tile * m.n_records;
        codes = m.tiles + tile * m.n_chunks * CODED_TILE_BYTES;
        codes += IS_8 ? (w.half * HALF + lane / 8) * row + item * ITEM + lane % 8 * 16
                      : (int64_t)item * CODED_TILE_BYTES + w.half * S::HALF_BYTES + lane * 16;
        scales = m.scales + record * RECORD + w.half * HALF_RECORD + lane % 2 * 16;
        zeros = m.zeros + record * CODED_ROWS + w.half * HALF;
        other = w.other;
    }

    /* With 8 bits the order of an output's pieces differs by output to avoid bank conflicts. */
    __device__ __forceinline__ void copy(const struct coded_matrix &m)
    {
        const int32_t lane = threadIdx.x & 31;
        const int64_t apart = (int64_t)other * m.n_chunks * CODED_TILE_BYTES;
        const int32_t record = IS_8 ? item >> (m.record_shift - 1) : item;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const uint32_t part = to + i * S::HALF_BYTES;
            if (IS_8) {
                const uint32_t here = part + lane / 8 * 128 + (lane % 8 ^ lane / 8 * 2) * 16;
                cp_async_16(here, codes + i * apart);
                cp_async_16(here + 512, codes + i * apart + (int64_t)m.n_chunks * 256);
            } else {
                cp_async_16(part + lane * 16, codes + i * apart);
            }
        }
        if (lane < 2 * PARTS) {
            cp_async_16(to + S::SCALES + lane * 16,
                        scales + ((int64_t)(lane / 2 * other) * m.n_records + record) * RECORD);
        }
        if (code_of<CODE>::HAS_ZEROS && m.zeros && lane < PARTS) {
            const uint8_t *from =
                zeros + ((int64_t)(lane * other) * m.n_records + record) * CODED_ROWS;
            asm volatile(
                "cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + S::ZEROS + lane * HALF),
                "l"(from)
                : "memory");
        }
    }

    template <typename P>
    __device__ __forceinline__ void next(const struct coded_matrix &m, const P &place_of)
    {
        if (left > 0) {
            if (codes == NULL) {
                find(m, place_of(segment));
            }
            copy(m);
            codes += IS_8 ? (int)ITEM : (int)CODED_TILE_BYTES;
            left--;
            if (++item == coded_items(m)) {
                item = 0;
                segment++;
                codes = NULL;
            }
            to += S::PITCH;
            to = to == end ? end - STAGES * S::PITCH : to;
        }
        cp_async_commit();
    }
};

/* Scale j of a word of four E8M0 scales. 2^-127, which is subnormal in fp32, becomes 0. */
__device__ __forceinline__ float scale_of_word(uint32_t word, int j)
{
    return __uint_as_float(shifted(word, 23 - 8 * j) & 0x7f800000u);
}

/* Adds an item's products to acc: outputs g of the first part in acc[0] and acc[1], of the second
 * in acc[2] and acc[3], for rows 2 t and 2 t + 1. x: this lane's row of the item's inputs, as
 * ldmatrix needs it. */
template <typename T, enum coded_code CODE, int PARTS>
__device__ __forceinline__ void add_item(const struct coded_matrix &m, const char *from,
                                         const char *x, float (&acc)[2 * PARTS])
{
    using L = few_codes<T, CODE>;
    using S = coded_slot<CODE, PARTS>;
    const int32_t lane = threadIdx.x & 31, g = lane >> 2;
    uint32_t words[PARTS][4], scales[PARTS], zero[PARTS];
    float sums[4];
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        if (!L::IS_8) {
            const uint4 v = *(const uint4 *)(from + i * S::HALF_BYTES + lane * 16);
            words[i][0] = v.x, words[i][1] = v.y, words[i][2] = v.z, words[i][3] = v.w;
        }
        scales[i] = *(const uint32_t *)(from + S::SCALES + i * HALF_RECORD + g * 4);
        zero[i] = 0;
        if (L::IS_INT) {
            const int32_t of_row = m.zeros ? (uint8_t)from[S::ZEROS + i * HALF + g] : m.zero;
            zero[i] = word_codes<T, CODE>::zero(of_row);
        }
    }
#pragma unroll
    for (int j = 0; j < ITEM / 32; j++) {
        uint32_t b[4], pairs[2][4] = {};
        ldmatrix_x4(b, x + j * 64);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const char *at = from + i * S::HALF_BYTES + g * 128 + (j ^ (g & 3)) * 32 + lane % 4 * 8;
            const uint2 both = L::IS_8 ? *(const uint2 *)at : make_uint2(words[i][j], 0);
            L::make(both, zero[i], pairs[i]);
        }
        if (L::IS_E2M1 || j == 0) {
            sums[0] = sums[1] = sums[2] = sums[3] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const uint32_t a[4] = {pairs[0][i], pairs[1][i], pairs[0][i + 1], pairs[1][i + 1]};
            mma_16x8x16(sums, a, b[i], b[i + 1], T());
        }
        if (L::IS_E2M1 || j == ITEM / 32 - 1) { // the end of a group
#pragma unroll
            for (int i = 0; i < 2 * PARTS; i++) {
                const float scale =
                    L::IS_E2M1 ? scale_of_word(scales[i / 2], j) : __uint_as_float(scales[i / 2]);
                acc[i] = fmaf(sums[i], scale, acc[i]);
            }
        }
    }
}

#endif
