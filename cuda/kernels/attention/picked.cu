// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: each row attends to the keys of its list (cuda/index.h). With MLA a row has one
 * list, of keys; otherwise each of its KV heads has a list of blocks. Rows are independent, so
 * decoding rows, prompts and trees are computed alike, and a row's bits depend on its lists only;
 * in deterministic mode also how a list is split is fixed.
 *
 * Grid: (rows, groups of heads of the same list, parts of the list). Block: 8 warps and 16 MT query
 * heads. It gathers tiles of 32 keys from pages into two stages of shared memory. With MLA the
 * first elements of a key are also its value; otherwise values have stages of their own. For scores
 * a warp has 16 heads, 16 keys and, with few heads, a part of the key's elements, so that all warps
 * have work; the softmax, where a warp has whole rows, adds up the parts. Then each warp sums
 * columns of the value. If a list is split, each part leaves its values, maximum and sum, which the
 * second kernel joins in order. The bounds of parts are counted from the list's start, in whole
 * tiles.
 *
 * Bound by gathering keys from the L2 cache with few heads, and by the tensor cores with 64 or
 * more. */
#include "cuda/kernels/attention/common.cuh"
#include "cuda/kernels/attention/index_seen.cuh"
#include "cuda/kernels/device/kv_decode.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/reduce.cuh"

enum { PICKED_WARPS = 8, TILE = 32, SCORE_PITCH = TILE + 8, PROB_PITCH = TILE + 8 };
enum { PICKED_DIM_K = 576, JOIN_HEADS = 8, LEAST_PART = 64, FIXED_PART = 256 };

struct picked_params {
    const void *q;
    void *out;
    int32_t q_stride, out_stride;
    struct kv_view kv;
    struct pass_view pass;
    const int32_t *lists;
    int32_t top_k, block, n_heads, first_row;
    int32_t n_lists, group; // lists of a row; heads of a list
    float scale_log2;
    const float *sinks;    // [n_heads] or NULL
    int32_t part, n_parts; // keys of a part, at most; parts of the longest list
    float *slots; // for parts: [row - first_row][part][head][values, maximum, sum, two unused]
};

__device__ __forceinline__ float *slot_at(const struct picked_params &p, int part, int head)
{
    return p.slots +
           (((int64_t)blockIdx.x * p.n_parts + part) * p.n_heads + head) * (p.kv.head_dim_v + 4);
}

/* The list that a head of a row has. */
__device__ __forceinline__ const int32_t *list_of(const struct picked_params &p, int row, int head)
{
    return p.lists + ((int64_t)row * p.n_lists + head / p.group) * PICK_STRIDE(p.top_k);
}

/* The layout of shared memory, in bytes; pitches are in elements. Values of MLA lie in the keys. */
struct picked_layout {
    int32_t pitch, v_pitch, k, v, scores, probs, rows, total;
};

static __host__ __device__ inline int32_t pitch_of(int dim)
{
    return (dim + 15) / 16 * 16 + 8; // an odd multiple of 16 bytes
}

static __host__ __device__ inline struct picked_layout layout_of(const struct kv_view &kv, int mt)
{
    struct picked_layout l;
    const int heads = 16 * mt, parts = 4 / mt;
    l.pitch = pitch_of(kv.head_dim_k);
    l.v_pitch = kv.v_offset != 0 ? pitch_of(kv.head_dim_v) : l.pitch;
    l.k = heads * l.pitch * 2;
    l.scores = l.k + 2 * TILE * l.pitch * 2;
    l.v = l.k;
    if (kv.v_offset != 0) {
        l.v = l.scores;
        l.scores += 2 * TILE * l.v_pitch * 2;
    }
    l.probs = l.scores + parts * heads * SCORE_PITCH * 4;
    l.rows = l.probs + heads * PROB_PITCH * 2;
    l.total = l.rows + 3 * heads * 4;
    return l;
}

/* MT: tiles of 16 heads. NP: pairs of 8 columns of the value per warp. CODES: pages contain codes,
 * which are dequantised on their way to shared memory. BLOCKS: lists of blocks for each KV head,
 * with values of their own. */
template <typename T, int MT, int NP, bool CODES, bool BLOCKS> struct picked_block {
    static constexpr int HEADS = 16 * MT, PARTS = 4 / MT; // PARTS: of the key's elements
    static constexpr int OWN = HEADS / PICKED_WARPS;      // rows of a warp in the softmax
    const struct picked_params &p;
    const struct picked_layout l;
    T *q, *k, *v, *probs;
    float *scores, *decay, *top_of, *sum_of;
    int tid, warp, lane, row, kv_head, first_head, n_heads;
    const int32_t *keys, *table; // the row's list without its length; its block table
    struct seen_slots seen;      // only with BLOCKS

    /* The key that this thread loads a part of next; false: there is none. */
    int64_t page;
    int token;
    bool real;

    float values[NP][MT][2][4]; // [pair][16 heads][8 columns of the pair]
    float top[OWN], sum[OWN];

    __device__ picked_block(const struct picked_params &params, char *smem)
        : p(params), l(layout_of(params.kv, MT))
    {
        q = (T *)smem;
        k = (T *)(smem + l.k);
        v = (T *)(smem + l.v);
        scores = (float *)(smem + l.scores);
        probs = (T *)(smem + l.probs);
        decay = (float *)(smem + l.rows);
        top_of = decay + HEADS;
        sum_of = top_of + HEADS;
        tid = threadIdx.x;
        warp = tid >> 5;
        lane = tid & 31;
        row = p.first_row + (int)blockIdx.x;
        const int per_list = (p.group + HEADS - 1) / HEADS, in_list = (int)blockIdx.y % per_list;
        kv_head = (int)blockIdx.y / per_list;
        first_head = kv_head * p.group + in_list * HEADS;
        n_heads = min(HEADS, p.group - in_list * HEADS);
        keys = list_of(p, row, first_head) + 1;
        table = p.pass.blocks + (int64_t)p.pass.rows[row].lane * p.pass.blocks_stride;
        if constexpr (BLOCKS) {
            seen = seen_slots_of(p.pass, row);
        }
    }

    /* Loads the queries; heads and elements that do not exist are zeros. */
    __device__ __forceinline__ void load_q()
    {
        const T *from =
            (const T *)p.q + (int64_t)row * p.q_stride + (int64_t)first_head * p.kv.head_dim_k;
        for (int h = tid >> 3; h < HEADS; h += 32) {
            for (int d = (tid & 7) * 8; d < l.pitch - 8; d += 64) {
                const bool is_real = h < n_heads && d < p.kv.head_dim_k;
                cp_async_16(q + h * l.pitch + d,
                            is_real ? from + h * p.kv.head_dim_k + d : (const T *)p.q, is_real);
            }
        }
    }

    /* Eight threads have a key of the tile at `start`. */
    __device__ __forceinline__ void look_up(int start, int end)
    {
        const int i = start + (tid >> 3);
        real = i < end;
        if (real) {
            int slot;
            if constexpr (BLOCKS) {
                slot = seen.slot_of(keys[i / p.block] * p.block + i % p.block);
            } else {
                slot = keys[i];
            }
            page = table[slot / p.kv.block_tokens];
            token = slot % p.kv.block_tokens;
        }
    }

    /* Starts to load the keys that look_up has found. Missing ones are zeros. */
    __device__ __forceinline__ void load_tile(int stage)
    {
        const struct kv_view &kv = p.kv;
        T *to = k + (stage * TILE + (tid >> 3)) * l.pitch;
        if constexpr (BLOCKS) {
            load_values(stage);
        }
        if constexpr (CODES) {
            const struct kv_place at = kv_place_of(kv, real ? page : 0, kv_head, real ? token : 0);
            const struct kv_scale scale = kv_scale_get(kv.codes, at, false);
            // the value of a key that is NaN is read as 0, as in plain pages
            const int first = !BLOCKS && isnan(scale.scale) ? kv.head_dim_v : 0;
            for (int d = (tid & 7) * 8; d < l.pitch - 8; d += 64) {
                put_decoded(to + d, kv.codes, at, false, scale, d,
                            real && d >= first && d < kv.head_dim_k);
            }
        } else {
            const T *from = (const T *)kv.base + (int64_t)kv_head * kv.head_stride +
                            (real ? page * kv.page_stride + (int64_t)token * kv.head_dim_k : 0);
#pragma unroll 3
            for (int d = (tid & 7) * 8; d < l.pitch - 8; d += 64) {
                const bool inside = real && d < kv.head_dim_k;
                cp_async_16(to + d, from + (inside ? d : 0), inside);
            }
        }
    }

    /* The same for their values. */
    __device__ __forceinline__ void load_values(int stage)
    {
        const struct kv_view &kv = p.kv;
        T *to = v + (stage * TILE + (tid >> 3)) * l.v_pitch;
        if constexpr (CODES) {
            const struct kv_place at = kv_place_of(kv, real ? page : 0, kv_head, real ? token : 0);
            const struct kv_scale scale = kv_scale_get(kv.codes, at, true);
            for (int d = (tid & 7) * 8; d < l.v_pitch - 8; d += 64) {
                put_decoded(to + d, kv.codes, at, true, scale, d, real && d < kv.head_dim_v);
            }
        } else {
            const T *from = (const T *)kv.base + (int64_t)kv_head * kv.head_stride + kv.v_offset +
                            (real ? page * kv.page_stride + (int64_t)token * kv.v_token_stride : 0);
            for (int d = (tid & 7) * 8; d < l.v_pitch - 8; d += 64) {
                const bool inside = real && d < kv.head_dim_v;
                cp_async_16(to + d, from + (inside ? d : 0), inside);
            }
        }
    }

    /* Computes this warp's part of the scores, and stores it. */
    __device__ __forceinline__ void score(int stage)
    {
        const int m = warp % MT, n = warp / MT & 1, part = warp / (2 * MT);
        const int steps = (l.pitch - 8) / 16, each = (steps + PARTS - 1) / PARTS;
        const int begin = part * each, end = min(steps, begin + each);
        const T *a_at = q + (m * 16 + (lane & 15)) * l.pitch + (lane >> 4) * 8;
        const T *b_at = k + (stage * TILE + n * 16 + (lane >> 4) * 8 + (lane & 7)) * l.pitch +
                        (lane >> 3 & 1) * 8;
        float s[2][4] = {};
#pragma unroll 4
        for (int i = begin; i < end; i++) {
            uint32_t a[4], b[4];
            ldmatrix_x4(a, a_at + i * 16);
            ldmatrix_x4(b, b_at + i * 16);
            mma_16x8x16(s[0], a, b[0], b[1], T());
            mma_16x8x16(s[1], a, b[2], b[3], T());
        }
        float *to =
            scores + (part * HEADS + m * 16 + (lane >> 2)) * SCORE_PITCH + n * 16 + (lane & 3) * 2;
#pragma unroll
        for (int f = 0; f < 2; f++) {
            *reinterpret_cast<float2 *>(to + f * 8) = make_float2(s[f][0], s[f][1]);
            *reinterpret_cast<float2 *>(to + f * 8 + 8 * SCORE_PITCH) =
                make_float2(s[f][2], s[f][3]);
        }
    }

    /* A warp turns the scores of its rows into probabilities; a lane has one key. */
    __device__ __forceinline__ void softmax(int n_keys)
    {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int h = warp * OWN + i;
            float x = scores[h * SCORE_PITCH + lane];
#pragma unroll
            for (int part = 1; part < PARTS; part++) {
                x = __fadd_rn(x, scores[(part * HEADS + h) * SCORE_PITCH + lane]);
            }
            x = lane < n_keys ? __fmul_rn(x, p.scale_log2) : -INFINITY;
            const float high = fmaxf(top[i], warp_max(x));
            const float safe = high == -INFINITY ? 0.0f : high; // all scores may be NaN
            const float old = exp2_fast(__fsub_rn(top[i], safe));
            const float e = exp2_fast(__fsub_rn(x, safe));
            probs[h * PROB_PITCH + lane] = from_float<T>(e);
            sum[i] = __fmaf_rn(sum[i], old, warp_sum(e));
            top[i] = high;
            if (lane == 0) {
                decay[h] = old;
            }
        }
    }

    /* values = values * decay + P V, for this warp's columns. */
    __device__ __forceinline__ void add_values(int stage)
    {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            const float a = decay[m * 16 + (lane >> 2)], b = decay[m * 16 + (lane >> 2) + 8];
#pragma unroll
            for (int i = 0; i < NP; i++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    values[i][m][c][0] *= a;
                    values[i][m][c][1] *= a;
                    values[i][m][c][2] *= b;
                    values[i][m][c][3] *= b;
                }
            }
        }
        const T *a_at = probs + (lane & 15) * PROB_PITCH + (lane >> 4) * 8;
        const int pitch = BLOCKS ? l.v_pitch : l.pitch;
        const T *from = v + (stage * TILE + (lane & 15)) * pitch + (lane >> 4) * 8;
#pragma unroll
        for (int j = 0; j < TILE; j += 16) {
            uint32_t b[NP][4];
#pragma unroll
            for (int i = 0; i < NP; i++) {
                const int column = (warp + PICKED_WARPS * i) * 16;
                if (column < p.kv.head_dim_v) {
                    ldmatrix_x4_transposed(b[i], from + j * pitch + column);
                }
            }
#pragma unroll
            for (int m = 0; m < MT; m++) {
                uint32_t a[4];
                ldmatrix_x4(a, a_at + m * 16 * PROB_PITCH + j);
#pragma unroll
                for (int i = 0; i < NP; i++) {
                    if ((warp + PICKED_WARPS * i) * 16 < p.kv.head_dim_v) {
                        mma_16x8x16(values[i][m][0], a, b[i][0], b[i][1], T());
                        mma_16x8x16(values[i][m][1], a, b[i][2], b[i][3], T());
                    }
                }
            }
        }
    }

    /* Keys [begin, end) of the list. Leaves each head's maximum and sum in top_of and sum_of. */
    __device__ __forceinline__ void run(int begin, int end)
    {
#pragma unroll
        for (int i = 0; i < NP * MT * 8; i++) {
            (&values[0][0][0][0])[i] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            top[i] = -INFINITY;
            sum[i] = 0.0f;
        }
        load_q();
        look_up(begin, end);
        load_tile(0);
        cp_async_commit();
        look_up(begin + TILE, end);
        for (int start = begin, stage = 0; start < end; start += TILE, stage ^= 1) {
            cp_async_wait<0>();
            __syncthreads(); // the tile is there, and the other stage's values have been added
            if (start + TILE < end) {
                load_tile(stage ^ 1);
                cp_async_commit();
                look_up(start + 2 * TILE, end);
            }
            score(stage);
            __syncthreads();
            softmax(end - start);
            __syncthreads();
            add_values(stage);
        }
        cp_async_wait<0>();
        if (lane == 0) {
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                top_of[warp * OWN + i] = top[i];
                sum_of[warp * OWN + i] = sum[i];
            }
        }
        __syncthreads();
    }

    /* Writes the output, or the slots of part `part`. */
    __device__ __forceinline__ void store(int part) const
    {
        const int d = p.kv.head_dim_v;
        const bool whole = p.n_parts == 1;
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int h = m * 16 + (lane >> 2) + 8 * r, head = first_head + h;
                if (h >= n_heads) {
                    continue;
                }
                float *slot = slot_at(p, part, head);
                T *out = (T *)p.out + (int64_t)row * p.out_stride + (int64_t)head * d;
                const float w = final_weight(top_of[h], sum_of[h], p.sinks, head);
                if (!whole && warp == 0 && (lane & 3) == 0) {
                    slot[d] = top_of[h];
                    slot[d + 1] = sum_of[h];
                }
#pragma unroll
                for (int i = 0; i < NP; i++) {
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const int column = (warp + PICKED_WARPS * i) * 16 + c * 8 + (lane & 3) * 2;
                        if (column >= d) {
                            continue;
                        }
                        const float x = values[i][m][c][2 * r], y = values[i][m][c][2 * r + 1];
                        if (whole) {
                            out[column] = from_float<T>(__fmul_rn(x, w));
                            out[column + 1] = from_float<T>(__fmul_rn(y, w));
                        } else {
                            *reinterpret_cast<float2 *>(slot + column) = make_float2(x, y);
                        }
                    }
                }
            }
        }
    }
};

template <typename T, int MT, int NP, bool CODES, bool BLOCKS>
__global__ void __launch_bounds__(PICKED_WARPS * 32, MT == 1 ? 2 : 1)
    attention_picked_kernel(const __grid_constant__ struct picked_params p)
{
    extern __shared__ __align__(128) char picked_smem[];
    pdl_wait();
    pdl_trigger();
    picked_block<T, MT, NP, CODES, BLOCKS> block(p, picked_smem);
    const int begin = (int)blockIdx.z * p.part, n_keys = block.keys[-1];
    if (begin > 0 && begin >= n_keys) {
        return; // the list has no such part
    }
    block.run(begin, min(n_keys, begin + p.part));
    block.store((int)blockIdx.z);
}

/* Grid: (rows, heads / JOIN_HEADS); a warp joins the parts of one row and head, and each lane has
 * four columns at a time. Bound by the latency of reading the slots. */
template <typename T>
__global__ void __launch_bounds__(JOIN_HEADS * 32)
    attention_picked_join_kernel(const __grid_constant__ struct picked_params p)
{
    pdl_wait();
    pdl_trigger();
    const int row = p.first_row + (int)blockIdx.x, d = p.kv.head_dim_v;
    const int head = (int)blockIdx.y * JOIN_HEADS + (int)(threadIdx.x >> 5);
    if (head >= p.n_heads) {
        return;
    }
    const int n_keys = list_of(p, row, head)[0];
    const int n_parts = max(1, (n_keys + p.part - 1) / p.part);
#pragma unroll 1
    for (int c = (int)(threadIdx.x & 31) * 4; c < d; c += 128) {
        float top = -INFINITY, sum = 0.0f;
        float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (int part = 0; part < n_parts; part++) {
            const float *slot = slot_at(p, part, head);
            const float2 ml = *reinterpret_cast<const float2 *>(slot + d);
            const float4 add = *reinterpret_cast<const float4 *>(slot + c);
            const struct join_weights w = join(top, sum, ml.x, ml.y);
            value.x = join_value(w, value.x, add.x);
            value.y = join_value(w, value.y, add.y);
            value.z = join_value(w, value.z, add.z);
            value.w = join_value(w, value.w, add.w);
        }
        const float w = final_weight(top, sum, p.sinks, head);
        T *to = (T *)p.out + (int64_t)row * p.out_stride + (int64_t)head * d + c;
        to[0] = from_float<T>(__fmul_rn(value.x, w));
        to[1] = from_float<T>(__fmul_rn(value.y, w));
        to[2] = from_float<T>(__fmul_rn(value.z, w));
        to[3] = from_float<T>(__fmul_rn(value.w, w));
    }
}

/* ---- launches ------------------------------------------------------------------------------ */

/* The maximum shared memory of a block. */
static int most_shared(int sm)
{
    if (sm == 80 || sm == 87) {
        return 163 << 10;
    }
    return (sm >= 90 && sm < 120 ? 227 : 99) << 10;
}

/* How many tiles of 16 heads a block has: as many as there are, up to four. With values of up to
 * 128 elements, and for blocks, there is only one kernel. 0: shared memory is too small. */
static int head_tiles(const struct attention_launch *a)
{
    int mt = a->n_heads <= 16 || a->kv.head_dim_v <= 128 || a->pick_block > 0 ? 1 : 4;
    if (mt == 4 && a->n_heads <= 32) {
        mt = 2;
    }
    while (mt > 0 && layout_of(a->kv, mt).total > most_shared(a->limits->sm)) {
        mt /= 2;
    }
    return mt;
}

/* True if rows of keys and values in plain pages are whole vectors. */
static bool is_aligned(const struct kv_view *kv)
{
    return kv->codes.format != KV_PLAIN || (kv->page_stride % 8 == 0 && kv->head_stride % 8 == 0 &&
                                            kv->v_offset % 8 == 0 && kv->v_token_stride % 8 == 0);
}

static bool is_fast(const struct attention_launch *a)
{
    const struct kv_view *kv = &a->kv;
    return a->limits->sm >= 80 && a->dtype == kv->dtype && a->dtype != DT_F32 &&
           kv->head_dim_k % 8 == 0 && kv->head_dim_v % 8 == 0 && kv->head_dim_k <= PICKED_DIM_K &&
           kv->head_dim_v <= ATTENTION_MAX_DIM && (kv->v_offset == 0) == (a->pick_block == 0) &&
           is_aligned(kv) && ((uintptr_t)kv->base | (uintptr_t)a->q) % 16 == 0 &&
           a->q_stride % 8 == 0 && head_tiles(a) > 0;
}

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* The keys of a part: all of them if that gives every multiprocessor a block, otherwise fewer. In
 * deterministic mode it must not depend on the number of rows. */
static int part_of(const struct attention_launch *a, int most_keys, int n_groups)
{
    if (a->limits->deterministic) {
        return FIXED_PART;
    }
    int part = ceil_div(most_keys, LEAST_PART) * LEAST_PART;
    while (part > LEAST_PART &&
           (int64_t)a->n_rows * n_groups * ceil_div(most_keys, part) < a->limits->n_sms) {
        part = ceil_div(part / 2, LEAST_PART) * LEAST_PART;
    }
    return part;
}

template <typename T, int MT, int NP, bool CODES, bool BLOCKS = false>
static cudaError_t launch_rows(cudaStream_t stream, const struct picked_params &p, int n_rows)
{
    const auto kernel = attention_picked_kernel<T, MT, NP, CODES, BLOCKS>;
    const int bytes = layout_of(p.kv, MT).total;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const dim3 grid((unsigned)n_rows, (unsigned)(p.n_lists * ceil_div(p.group, 16 * MT)),
                    (unsigned)p.n_parts);
    return e != cudaSuccess ? e : launch(kernel, grid, dim3(PICKED_WARPS * 32), bytes, stream, p);
}

template <typename T, bool CODES>
static cudaError_t launch_by_heads(cudaStream_t stream, const struct picked_params &p, int mt,
                                   int n_rows)
{
    if (p.block > 0) {
        return p.kv.head_dim_v <= 128 ? launch_rows<T, 1, 1, CODES, true>(stream, p, n_rows)
                                      : launch_rows<T, 1, 4, CODES, true>(stream, p, n_rows);
    }
    if (p.kv.head_dim_v <= 128) {
        return launch_rows<T, 1, 1, CODES>(stream, p, n_rows);
    }
    if (mt == 1) {
        return launch_rows<T, 1, 4, CODES>(stream, p, n_rows);
    }
    return mt == 2 ? launch_rows<T, 2, 4, CODES>(stream, p, n_rows)
                   : launch_rows<T, 4, 4, CODES>(stream, p, n_rows);
}

/* Launches for as many rows at a time as have slots. */
template <typename T>
static cudaError_t launch_picked(cudaStream_t stream, const struct attention_launch *a)
{
    const size_t scratch = attention_scratch_bytes(a->limits);
    const int mt = head_tiles(a), n_lists = a->kv.n_kv_heads, group = a->n_heads / n_lists;
    const int most_keys = (int)index_most_keys(a->top_k, a->pick_block);
    const int part = part_of(a, most_keys, n_lists * ceil_div(group, 16 * mt));
    const int n_parts = ceil_div(most_keys, part);
    const size_t row_bytes =
        (size_t)n_parts * attention_slot_floats(a->n_heads, a->kv.head_dim_v) * sizeof(float);
    struct picked_params p = {a->q,
                              a->out,
                              a->q_stride,
                              a->out_stride,
                              a->kv,
                              a->pass,
                              a->picks,
                              a->top_k,
                              a->pick_block,
                              a->n_heads,
                              0,
                              n_lists,
                              group,
                              a->scale * 1.4426950408889634f,
                              a->sinks,
                              part,
                              n_parts,
                              (float *)((char *)a->workspace + scratch)};
    int at_once = a->n_rows;
    if (n_parts > 1) {
        const size_t room = a->workspace_bytes > scratch ? a->workspace_bytes - scratch : 0;
        at_once = (int)(room / row_bytes < (size_t)at_once ? room / row_bytes : (size_t)at_once);
        if (at_once == 0) {
            return cudaErrorInvalidValue;
        }
    }
    cudaError_t e = cudaSuccess;
    for (; e == cudaSuccess && p.first_row < a->n_rows; p.first_row += at_once) {
        const int left = a->n_rows - p.first_row, n = left < at_once ? left : at_once;
        e = a->kv.codes.format == KV_PLAIN ? launch_by_heads<T, false>(stream, p, mt, n)
                                           : launch_by_heads<T, true>(stream, p, mt, n);
        if (e == cudaSuccess && n_parts > 1) {
            const dim3 grid((unsigned)n, (unsigned)ceil_div(a->n_heads, JOIN_HEADS));
            e = launch(attention_picked_join_kernel<T>, grid, dim3(JOIN_HEADS * 32), 0, stream, p);
        }
    }
    return e;
}

cudaError_t attention_picked(cudaStream_t stream, const struct attention_launch *a)
{
    if (!is_fast(a)) {
        return attention_plain(stream, a);
    }
    return a->dtype == DT_BF16 ? launch_picked<bf16_t>(stream, a) : launch_picked<f16_t>(stream, a);
}
