// SPDX-License-Identifier: Apache-2.0
/* How a warp loads records of codes: the shapes that all parts of codes.cu share, how codes become
 * fp16 operands, and the loader, which keeps a ring of chunks ahead of the arithmetic.
 * Thread: device code, one warp at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_CODES_LOAD_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_CODES_LOAD_CUH

#include "cuda/kernels/attention/common.cuh"
#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/device/kv_codes.cuh"
#include "cuda/kernels/device/mma_tile.cuh"

enum { CODE_WARPS = 4, CODE_THREADS = CODE_WARPS * 32, RECORD_KEYS = 16, CODE_MAX_SLOTS = 12 };

/* Queries are multiplied by this factor before they are rounded to fp16, so that large ones do not
 * overflow. */
static constexpr float QUERY_FACTOR = 0.03125f;

struct codes_params {
    struct attention_params a;
    bool is_bf16;                 // type of queries and outputs; otherwise fp16
    int32_t n_slots, record_room; // number of slots in a warp's ring; bytes per record in it
    int32_t n_k, n_v;             // number of 16-byte pieces in a row of K, and in a row of V
};

/* The properties of a format: how codes become fp16 operands, and the factors to apply afterwards.
 * An integer code is used as the mantissa of a subnormal fp16 number, which the tensor cores handle
 * at full speed, so a single instruction makes an operand. */
template <enum kv_format F> struct code_kind {
    static constexpr int STEPS = F == KV_INT4 ? 2 : 1; // steps of 16 elements per piece
    static constexpr int NUMBERS = 16 * STEPS, BITS = 8 / STEPS;
    static constexpr float UNIT = F == KV_FP8 ? 1.0f : 16777216.0f;
    // additional factor of every second operand
    static constexpr float ODD = F == KV_INT4 ? 0.0625f : 1.0f;
};

template <int D> struct codes_shape {
    static constexpr int RECORDS = D <= 128 ? 2 : 1;   // records per chunk, processed side by side
    static constexpr int KEYS = RECORDS * RECORD_KEYS; // keys per chunk
    static constexpr int TILES = D / 16;               // tiles per value
    static constexpr int MANY = D <= 128 ? 4 : 2; // maximum number of groups of 8 query vectors
    static constexpr int PITCH = D + 4;           // row pitch of the results to join, in floats
    static constexpr int ROOM = CODE_WARPS * 8 * PITCH;                  // floats
    static constexpr int QUERIES = MANY * TILES * 32 * 8 + MANY * 8 * 4; // bytes
    static constexpr int FOLD = MANY * 8 * PITCH; // floats, for the runs of deterministic mode

    static __host__ __device__ int fixed_bytes(bool folds)
    {
        return ROOM * 4 + QUERIES + (folds ? FOLD * 4 : 0) + CODE_WARPS * CODE_MAX_SLOTS * 8;
    }
};

#if HAVE_SM90A

/* The word at an address of shared memory. */
__device__ __forceinline__ uint32_t shared_word(uint32_t at)
{
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}

/* ldmatrix_x4 and ldmatrix_x4_transposed from an address of shared memory. */
__device__ __forceinline__ void matrices_from(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void transposed_matrices_from(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* d += a b, with unsigned bytes in a and signed ones in b. */
__device__ __forceinline__ void mma_16x8x32(int32_t (&d)[4], const uint32_t (&a)[4], uint2 b)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

/* Transposes an 8 x 8 matrix of 16-bit elements, of which each lane holds two elements of a row. */
__device__ __forceinline__ uint32_t matrix_transposed(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ float log2_fast(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ uint32_t half_pair(float low, float high)
{
    const __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}

__device__ __forceinline__ float2 half_values(uint32_t v)
{
    return __half22float2(*reinterpret_cast<const __half2 *>(&v));
}

/* An element of a query, bf16 or fp16. */
__device__ __forceinline__ float query_element(bool is_bf16, uint32_t bits)
{
    return is_bf16 ? __uint_as_float(bits << 16) : half_values(bits).x;
}

/* Converts four E4M3 codes, the first of which is in the low byte. The conversion instruction can
 * read the upper half of a register, but the compiler uses this only if the halves are separated in
 * assembly. */
__device__ __forceinline__ void half_pairs_of_e4m3(uint32_t word, uint32_t (&pairs)[2])
{
    asm("{\n\t.reg .b16 low, high;\n\t"
        "mov.b32 {low, high}, %2;\n\t"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n\t"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n\t}"
        : "=r"(pairs[0]), "=r"(pairs[1])
        : "r"(word));
}

/* The operands from one word of a row of K. The word has four consecutive codes, or eight of 4
 * bits. q_dim defines which codes form a pair. */
template <enum kv_format F>
__device__ __forceinline__ void key_operands(uint32_t word,
                                             uint32_t (&out)[2 * code_kind<F>::STEPS])
{
    if constexpr (F == KV_FP8) {
        half_pairs_of_e4m3(word, out);
    } else if constexpr (F == KV_INT8) {
        // One instruction each; with a shift and masks, there would be three.
        out[0] = __byte_perm(word, 0, 0x4240);
        out[1] = __byte_perm(word, 0, 0x4341);
    } else {
        const uint32_t rest = word >> 8;
        out[0] = word & 0x000f000fu;
        out[1] = word & 0x00f000f0u; // the code times 16
        out[2] = rest & 0x000f000fu;
        out[3] = rest & 0x00f000f0u;
    }
}

/* The operands in a word that ldmatrix transposed: two codes (four of 4 bits) of one key in the low
 * half, and those of the next key in the high half. A pair has a code of each key. */
template <enum kv_format F>
__device__ __forceinline__ void value_operands(uint32_t word,
                                               uint32_t (&out)[2 * code_kind<F>::STEPS])
{
    key_operands<F>(F == KV_FP8 ? __byte_perm(word, 0, 0x3120) : word, out);
}

/* q_dim: the first element of operand `reg` of step `step`, as an index into the 4 (or 8) elements
 * of a word. q_pair: the distance from there to the pair's second element. */
template <enum kv_format F> __device__ __forceinline__ constexpr int q_dim(int step, int reg)
{
    if constexpr (F == KV_FP8) {
        return 2 * reg;
    } else if constexpr (F == KV_INT8) {
        return reg;
    } else {
        return 2 * step + reg;
    }
}
template <enum kv_format F> __device__ __forceinline__ constexpr int q_pair()
{
    if constexpr (F == KV_FP8) {
        return 1;
    } else if constexpr (F == KV_INT8) {
        return 2;
    } else {
        return 4;
    }
}

/* Prepares the barriers of a warp's ring. */
__device__ __forceinline__ void open_ring(uint64_t *full, int n_slots, int lane)
{
    if (lane == 0) {
        for (int i = 0; i < n_slots; i++) {
            barrier_init(&full[i], 1);
        }
        barrier_init_done();
    }
    __syncwarp();
}

/* Iterates over the units of a block, in order. */
template <int KEYS> struct unit_walk {
    const struct attention_params &p;
    int items_offset, n_sub, n_units, tile_rows, k = 0;

    __device__ __forceinline__ bool next(struct attention_unit &u)
    {
        for (; k * (int)gridDim.x < n_units; k++) {
            const int index = unit_index(k, (int)gridDim.x, (int)blockIdx.x);
            if (index < n_units) {
                u = unit_at(p, items_offset, index, n_sub, tile_rows, KEYS);
                if (u.n_packed > 0) {
                    k++;
                    return true;
                }
            }
        }
        return false;
    }
};

/* Loads one warp's chunks: chunk c of a unit, counted from the item's first key, belongs to warp c
 * % CODE_WARPS. The loader runs ahead across the borders of units. */
template <int D> struct codes_loader {
    using S = codes_shape<D>;
    static constexpr int LOOKED_UP = 32 / S::RECORDS; // number of chunks per table lookup
    const struct codes_params &p;
    char *slots;
    uint64_t *full;
    int warp, lane;
    struct unit_walk<S::KEYS> walk;
    uint64_t once, again; // cache policies: read once, read again
    struct attention_unit u = {};
    // The next chunk, the end of the chunks, and the next chunk's index among those looked up.
    int chunk = 0, end = 0, i = 0;
    int32_t record = 0, next = 0; // lane l has record l % RECORDS of chunk l / RECORDS
    bool has_unit = false, has_waited = false;

    /* Looks up the records of the chunks from `first` on. */
    __device__ __forceinline__ int32_t look_up(int first) const
    {
        const struct kv_view &kv = p.a.kv;
        const int32_t *table = p.a.blocks + (int64_t)u.item.lane * p.a.blocks_stride;
        const int n = first + lane / S::RECORDS * CODE_WARPS;
        const int key =
            min(u.item.kv_begin + n * S::KEYS + lane % S::RECORDS * RECORD_KEYS, u.hi - 1);
        const int per_head = kv.block_tokens / RECORD_KEYS, page = key / kv.block_tokens;
        return (table[page] * kv.n_kv_heads + u.kv_head) * per_head +
               (key - page * kv.block_tokens) / RECORD_KEYS;
    }

    __device__ __forceinline__ bool enter()
    {
        while (!has_unit || chunk >= end) {
            has_unit = walk.next(u);
            if (!has_unit) {
                return false;
            }
            const int first = (u.lo - u.item.kv_begin) / S::KEYS;
            chunk = first + ((warp - first) & (CODE_WARPS - 1));
            end = u.lo < u.hi ? (u.hi - u.item.kv_begin + S::KEYS - 1) / S::KEYS : 0;
            i = 0;
            if (chunk < end) {
                record = look_up(chunk);
                next = look_up(chunk + LOOKED_UP * CODE_WARPS);
            }
        }
        return true;
    }

    __device__ __forceinline__ void fetch(int slot)
    {
        if (!enter()) {
            return;
        }
        if (i == LOOKED_UP) {
            i = 0;
            record = next;
            next = look_up(chunk + LOOKED_UP * CODE_WARPS);
        }
        const int first = u.item.kv_begin + chunk * S::KEYS;
        /* The preceding kernel stores the keys of this pass. Older keys are already there. */
        if (!has_waited && u.item.mask != ATTENTION_ALL && first + S::KEYS > u.item.n_past) {
            pdl_wait();
            has_waited = true;
        }
        const int32_t n_bytes = p.a.kv.codes.record_bytes;
        const int32_t of = __shfl_sync(0xffffffffu, record, i * S::RECORDS + lane % S::RECORDS);
        const int n = min(S::RECORDS, (u.hi - first + RECORD_KEYS - 1) / RECORD_KEYS);
        if (lane == 0) {
            barrier_expect(&full[slot], (uint32_t)(n * n_bytes));
        }
        __syncwarp();
        if (lane < n) {
            bulk_load(slots + (slot * S::RECORDS + lane) * p.record_room,
                      (const char *)p.a.kv.base + (int64_t)of * n_bytes, (uint32_t)n_bytes,
                      &full[slot], u.item.n_rows > 1 ? again : once);
        }
        __syncwarp();
        chunk += CODE_WARPS;
        i++;
    }
};

#endif // HAVE_SM90A

#endif
