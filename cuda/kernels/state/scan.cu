// SPDX-License-Identifier: Apache-2.0
/* The sequential part of a prompt's recurrence, from one block of the state to the next. A thread
 * block takes COLUMNS columns of one head's S, which are independent of the others, through all of
 * a sequence's blocks. S stays in registers in fp32, and the next block's inputs are loaded while
 * the current one is processed. For every block
 *
 *     r = strength (v - exp(G) (k S)), u = (1 + L)^-1 r     (STATE_DECAY: u = strength v)
 *     out = exp(G) (q S) + scores u + skip v
 *     S = exp(G_last) S + k^T (exp(G_last - G) u)
 *
 * The tensor cores multiply S and values rounded to 16 bits, with fp32 sums. Bound by the latency
 * of a block's steps, and by reading keys and queries, which come from the L2 cache for all but the
 * first of the thread blocks that share a head. The values that later passes need (keys, values,
 * decays, inputs, records) are written here, after every read of the old contents. */
#include "cuda/kernels/state/scan.cuh"

/* ---- inputs -----------------------------------------------------------------------------------
 */

template <typename T, int N>
__device__ __forceinline__ static void load_tile(T (*to)[N + 8], const T *from, int64_t stride)
{
    static_assert(SCAN_THREADS % (N / 8) == 0 && BLOCK * N / 8 % SCAN_THREADS == 0, "whole rounds");
    constexpr int ROWS = SCAN_THREADS / (N / 8);
    const int32_t t = threadIdx.x / (N / 8), c = threadIdx.x % (N / 8) * 8;
#pragma unroll
    for (int32_t i = 0; i < BLOCK; i += ROWS) {
        cp_async_16(&to[t + i][c], from + (t + i) * stride + c, true);
    }
}

template <typename T, int KEY, bool DELTA>
__device__ static void load_stage(const struct blocks_params &p, const struct scan &w, int32_t i,
                                  struct stage<T, KEY, DELTA> *to)
{
    const struct state_layer &g = p.state.geometry;
    const int64_t item = w.first + i, of_head = item * g.n_heads + w.head;
    const int64_t keys = (item * g.n_key_heads + w.key_head) * BLOCK * KEY;
    load_tile<T, KEY>(to->k, (const T *)p.k + keys, KEY);
    load_tile<T, KEY>(to->q, (const T *)p.q + keys, KEY);
    load_tile<T, BLOCK>(to->scores, (const T *)p.scores + of_head * BLOCK * BLOCK, BLOCK);
    if (DELTA) {
        load_tile<T, BLOCK>(to->inverse, (const T *)p.inverse + of_head * BLOCK * BLOCK, BLOCK);
    }
    const struct block_item b = item_of(w.seq, w.nth + i);
    static_assert(BLOCK * COLUMNS / 8 == SCAN_THREADS, "one copy per thread");
    const int32_t row = threadIdx.x / (COLUMNS / 8), c = threadIdx.x % (COLUMNS / 8) * 8;
    const T *v = (const T *)p.v + (of_head * BLOCK + row) * g.value_dim;
    if (row < b.at) {
        v = values_at<T>(p.state, w.seq.lane, b.begin + row, w.head);
    }
    cp_async_16(&to->v[row][c], v + w.column + c, true);
    if (threadIdx.x < BLOCK / 4) {
        cp_async_16(&to->g[threadIdx.x * 4], p.g + of_head * BLOCK + threadIdx.x * 4, true);
    } else if (threadIdx.x < BLOCK / 2) {
        const int32_t t = threadIdx.x * 4 - BLOCK;
        cp_async_16(&to->strength[t], p.strength + of_head * BLOCK + t, true);
    }
}

/* ---- one block --------------------------------------------------------------------------------
 */

/* A warp's part of a block's rows: 16 rows by COLUMNS / 2 columns. */
struct rows_part {
    static constexpr int NF = COLUMNS / 16;
    float x[NF][4];
};

__device__ __forceinline__ static int part_row(int half)
{
    return (threadIdx.x >> 5 & 3) * 16 + half * 8 + ((threadIdx.x & 31) >> 2);
}

__device__ __forceinline__ static int part_col(int n)
{
    return (threadIdx.x >> 7) * (COLUMNS / 2) + n * 8 + (threadIdx.x & 3) * 2;
}

/* Loads b[k][n] of 16 x 16, stored by rows, from the warp's columns on. */
template <typename T, int LD>
__device__ __forceinline__ static void load_columns(uint32_t (&b)[4], const T (*from)[LD], int k)
{
    const int lane = threadIdx.x & 31;
    ldmatrix_x4_transposed(
        b, &from[k + (lane & 15)][(threadIdx.x >> 7) * (COLUMNS / 2) + (lane >> 4) * 8]);
}

/* sum += the warp's rows of a [BLOCK][K] times b [K][COLUMNS] */
template <typename T, int K, int LD_A, int LD_B>
__device__ __forceinline__ static void multiply(struct rows_part &sum, const T (*a)[LD_A],
                                                const T (*b)[LD_B])
{
    const int lane = threadIdx.x & 31, first = (threadIdx.x >> 5 & 3) * 16;
    uint32_t rows[K / 16][4], columns[K / 16][4];
#pragma unroll
    for (int i = 0; i < K / 16; i++) {
        ldmatrix_x4(rows[i], &a[first + (lane & 15)][i * 16 + (lane >> 4) * 8]);
        load_columns<T>(columns[i], b, i * 16);
    }
#pragma unroll
    for (int i = 0; i < K / 16; i++) {
        mma_16x8x16(sum.x[0], rows[i], columns[i][0], columns[i][1], T());
        mma_16x8x16(sum.x[1], rows[i], columns[i][2], columns[i][3], T());
    }
}

/* The same for two products with the same b, whose sums do not wait for each other. */
template <typename T, int K, int LD_A, int LD_B>
__device__ __forceinline__ static void multiply_two(struct rows_part &sum, struct rows_part &other,
                                                    const T (*a)[LD_A], const T (*of_other)[LD_A],
                                                    const T (*b)[LD_B])
{
    const int lane = threadIdx.x & 31, first = (threadIdx.x >> 5 & 3) * 16;
    constexpr int AHEAD = K / 16 < 4 ? K / 16 : 4; // steps whose operands are loaded together
#pragma unroll
    for (int k = 0; k < K; k += 16 * AHEAD) {
        uint32_t rows[AHEAD][4], other_rows[AHEAD][4], columns[AHEAD][4];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = k + i * 16 + (lane >> 4) * 8;
            load_columns<T>(columns[i], b, k + i * 16);
            ldmatrix_x4(rows[i], &a[first + (lane & 15)][at]);
            ldmatrix_x4(other_rows[i], &of_other[first + (lane & 15)][at]);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            mma_16x8x16(sum.x[0], rows[i], columns[i][0], columns[i][1], T());
            mma_16x8x16(sum.x[1], rows[i], columns[i][2], columns[i][3], T());
            mma_16x8x16(other.x[0], other_rows[i], columns[i][0], columns[i][1], T());
            mma_16x8x16(other.x[1], other_rows[i], columns[i][2], columns[i][3], T());
        }
    }
}

template <typename T> __device__ __forceinline__ static void put_pair(T *to, float a, float b)
{
    pack<T, 2> pair;
    pair.v[0] = from_float<T>(a);
    pair.v[1] = from_float<T>(b);
    *(pack<T, 2> *)to = pair;
}

/* The factors of the thread's two rows of a block, and its values. They are read before the
 * products whose results they are combined with, since the compiler does not move loads ahead of
 * stores. */
template <typename T> struct row_facts {
    float strength[2], decay[2], to_end[2]; // decay: from the block's beginning; to_end: to its end
    float last;                             // decay of S
    pack<T, 2> v[rows_part::NF][2];
};

template <typename T, int KEY, bool DELTA>
__device__ __forceinline__ static struct row_facts<T>
facts_of(const struct stage<T, KEY, DELTA> &in)
{
    struct row_facts<T> f;
    const float last = in.g[BLOCK - 1];
    f.last = __expf(last);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = part_row(half);
        const float g = in.g[t];
        f.strength[half] = in.strength[t];
        f.decay[half] = __expf(g);
        f.to_end[half] = __expf(last - g);
#pragma unroll
        for (int n = 0; n < rows_part::NF; n++) {
            f.v[n][half] = *(const pack<T, 2> *)&in.v[t][part_col(n)];
        }
    }
    return f;
}

/* Computes u, and u decayed to the end of the block. */
template <typename T, int KEY, bool DELTA>
__device__ __forceinline__ static void
make_values(struct scan_room<T, KEY, DELTA> &m, const struct stage<T, KEY, DELTA> &in,
            const struct row_facts<T> &f, int32_t at, const struct rows_part &known)
{
    struct rows_part u = {};
#pragma unroll
    for (int n = 0; n < u.NF; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = part_row(half), c = part_col(n);
            float r[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float v = to_float(f.v[n][half].v[i]);
                const float by_s = DELTA ? f.decay[half] * known.x[n][half * 2 + i] : 0.0f;
                r[i] = t < at ? v : f.strength[half] * (v - by_s);
                u.x[n][half * 2 + i] = DELTA ? 0.0f : r[i];
            }
            if (DELTA) {
                put_pair(&m.r[t][c], r[0], r[1]);
            }
        }
    }
    if constexpr (DELTA) {
        __syncthreads();
        multiply<T, BLOCK>(u, in.inverse, m.r);
    }
#pragma unroll
    for (int n = 0; n < u.NF; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = part_row(half), c = part_col(n);
            const float a = to_float(from_float<T>(u.x[n][half * 2]));
            const float b = to_float(from_float<T>(u.x[n][half * 2 + 1]));
            put_pair(&m.u[t][c], a, b);
            put_pair(&m.u_decayed[t][c], f.to_end[half] * a, f.to_end[half] * b);
        }
    }
}

/* by_s: q S on entry, the rows' output on return. */
template <typename T, int KEY, bool DELTA>
__device__ __forceinline__ static void
make_rows(const struct blocks_params &p, const struct scan &w,
          const struct scan_room<T, KEY, DELTA> &m, const struct stage<T, KEY, DELTA> &in,
          const struct row_facts<T> &f, struct rows_part &by_s)
{
    const float skip = p.vectors.skip ? p.vectors.skip[w.head] : 0.0f;
#pragma unroll
    for (int n = 0; n < by_s.NF; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            by_s.x[n][i] =
                fmaf(skip, to_float(f.v[n][i / 2].v[i % 2]), f.decay[i / 2] * by_s.x[n][i]);
        }
    }
    multiply<T, BLOCK>(by_s, in.scores, m.u);
}

template <typename T>
__device__ __forceinline__ static void write_rows(const struct blocks_params &p,
                                                  const struct scan &w, const struct block_item &b,
                                                  const struct rows_part &rows)
{
    const int64_t row = b.seq.first_row + b.begin - b.seq.n_past;
    T *to = (T *)p.out + (int64_t)w.head * p.state.geometry.value_dim + w.column;
#pragma unroll
    for (int n = 0; n < rows.NF; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = part_row(half);
            if (t >= b.at && t < b.end) {
                put_pair(to + (row + t) * p.out_stride + part_col(n), rows.x[n][half * 2],
                         rows.x[n][half * 2 + 1]);
            }
        }
    }
}

/* S is not used after a block that is not full. */
template <typename T, int KEY, bool DELTA>
__device__ __forceinline__ static void move_on(const struct scan_room<T, KEY, DELTA> &m,
                                               const struct stage<T, KEY, DELTA> &in, float decay,
                                               struct state_part<KEY> &s)
{
    const int lane = threadIdx.x & 31, first = (threadIdx.x >> 5 & 3) * (KEY / 4);
    each_pair(s, [&](int, int, float &a, float &b) {
        a *= decay;
        b *= decay;
    });
    uint32_t columns[BLOCK / 16][4];
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++) {
        load_columns<T>(columns[k], m.u_decayed, k * 16);
    }
#pragma unroll
    for (int i = 0; i < s.MF; i++) {
        uint32_t keys[BLOCK / 16][4]; // operand k^T
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) {
            ldmatrix_x4_transposed(
                keys[k],
                &in.k[k * 16 + (lane & 7) + (lane >> 4) * 8][first + i * 16 + (lane >> 3 & 1) * 8]);
        }
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) {
            mma_16x8x16(s.x[i][0], keys[k], columns[k][0], columns[k][1], T());
            mma_16x8x16(s.x[i][1], keys[k], columns[k][2], columns[k][3], T());
        }
    }
}

/* The sequence's next snapshot. Searching the pass's list at every boundary would take longer than
 * the block's products. */
struct next_keep {
    int32_t pos;
    char *record;
};

/* The first snapshot at a boundary from `from` on; the warp searches the list together. */
__device__ static struct next_keep find_keep(const struct blocks_params &p, const struct scan &w,
                                             int32_t from)
{
    const struct pass_view &pass = p.pass;
    const int32_t n = pass.counts->n_keeps;
    int32_t pos = INT32_MAX, slot = p.state.max_lanes;
    for (int32_t i = threadIdx.x & 31; i < n; i += 32) {
        const struct state_keep keep = pass.keeps[i];
        if (keep.lane == w.seq.lane && keep.pos >= from && keep.pos % BLOCK == 0 &&
            keep.pos < pos) {
            pos = keep.pos;
            slot = keep.slot;
        }
    }
    const int32_t first = __reduce_min_sync(0xffffffffu, pos);
    const unsigned found = __ballot_sync(0xffffffffu, pos == first);
    slot = __shfl_sync(0xffffffffu, slot, __ffs((int)found) - 1);
    return {first, p.state.snapshots + (int64_t)(slot - p.state.max_lanes) * p.state.record_bytes};
}

/* Stores the boundary at the block's end: to the lane, unless later boundaries of this launch
 * replace it (`left` blocks follow; the last one may have no boundary), and to a snapshot. */
template <typename T, int KEY>
__device__ static void keep_boundary(const struct blocks_params &p, const struct scan &w,
                                     const struct block_item &b, int32_t left,
                                     struct state_part<KEY> &s, struct next_keep &keep)
{
    const int32_t boundary = b.begin + BLOCK;
    const bool is_kept = keep.pos == boundary;
    char *const records[2] = {left <= p.state.n_records ? record_of(p.state, w.seq.lane, boundary)
                                                        : NULL,
                              is_kept ? keep.record : NULL};
    for (int i = 0; i < 2; i++) {
        if (records[i]) {
            store_state(p, w, records[i], s);
            store_tail<T, KEY>(p, w, boundary, records[i]);
        }
    }
    if (is_kept) {
        keep = find_keep(p, w, boundary + 1);
    }
}

template <typename T, int KEY, bool DELTA>
__device__ static void run_blocks(const struct blocks_params &p, const struct scan &w,
                                  struct scan_room<T, KEY, DELTA> &m)
{
    struct state_part<KEY> s;
    load_state(p, w, item_of(w.seq, w.nth).begin, s);
    struct next_keep keep = find_keep(p, w, item_of(w.seq, w.nth).begin + 1);
    pdl_wait();
    pdl_trigger();
    load_stage(p, w, 0, &m.stages[0]);
    cp_async_commit();
    for (int32_t i = 0; i < w.n; i++) {
        const struct stage<T, KEY, DELTA> &in = m.stages[i & 1];
        const struct block_item b = item_of(w.seq, w.nth + i);
        each_pair(s, [&](int row, int col, float &a, float &c) { put_pair(&m.s[row][col], a, c); });
        cp_async_wait<0>();
        __syncthreads(); // S and this stage are there, and the other stage may be refilled
        const struct row_facts<T> f = facts_of(in);
        struct rows_part by_k = {}, by_q = {};
        if constexpr (DELTA) {
            multiply_two<T, KEY>(by_k, by_q, in.k, in.q, m.s);
        } else {
            multiply<T, KEY>(by_q, in.q, m.s);
        }
        if (i + 1 < w.n) { // issued after the products, which the next steps wait for
            load_stage(p, w, i + 1, &m.stages[i + 1 & 1]);
        }
        cp_async_commit();
        make_values(m, in, f, b.at, by_k);
        __syncthreads();
        move_on(m, in, f.last, s);
        make_rows(p, w, m, in, f, by_q);
        write_rows<T>(p, w, b, by_q);
        if (w.nth + i >= items_of(w.seq) - LEFT) {
            store_rows(p, w, b, m, in);
        }
        if (b.end == BLOCK) {
            keep_boundary<T>(p, w, b, w.n - 1 - i, s, keep);
        }
        if (b.is_last) {
            store_inputs<T, KEY>(p, w);
        }
    }
}

/* Before the wait, a block finds its sequence and loads S. If an earlier launch of this pass wrote
 * S, that launch has ended, because all kernels in between wait before they trigger. */
template <typename T, int KEY, bool DELTA>
__global__ void __launch_bounds__(SCAN_THREADS, 1) state_scan_kernel(struct blocks_params p)
{
    extern __shared__ __align__(16) char memory[];
    scan_room<T, KEY, DELTA> &m = *(scan_room<T, KEY, DELTA> *)memory;
    const struct state_layer &g = p.state.geometry;
    const int32_t parts = g.value_dim / COLUMNS, per_key = g.n_heads / g.n_key_heads;
    struct scan w;
    w.head = blockIdx.x / parts;
    w.column = blockIdx.x % parts * COLUMNS;
    w.key_head = w.head / per_key;
    w.owns_head = w.column == 0;
    w.owns_key = w.owns_head && w.head % per_key == 0;
    int32_t nth = blockIdx.y, before = 0;
    const int32_t seq =
        find_seq(p.pass, &nth, [](const struct pass_seq &s) { return (int32_t)(items_of(s) > 0); });
    if (seq < 0) {
        pdl_wait();
        return;
    }
    for (int32_t i = threadIdx.x & 31; i < seq; i += 32) {
        before += items_of(p.pass.seqs[i]);
    }
    for (int32_t d = 16; d > 0; d /= 2) {
        before += __shfl_xor_sync(0xffffffffu, before, d);
    }
    w.seq = p.pass.seqs[seq];
    w.nth = max(p.first_item - before, 0);
    w.first = before + w.nth - p.first_item;
    w.n = min(items_of(w.seq) - w.nth, p.n_items - w.first);
    if (w.n > 0) {
        run_blocks(p, w, m);
    } else {
        pdl_wait();
    }
}

template <typename T, int KEY, bool DELTA>
static cudaError_t launch_scan(cudaStream_t stream, int32_t n_chains, const struct blocks_params &p)
{
    const struct state_layer &g = p.state.geometry;
    const size_t n_bytes = sizeof(scan_room<T, KEY, DELTA>);
    const auto kernel = state_scan_kernel<T, KEY, DELTA>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3(g.n_heads * (g.value_dim / COLUMNS), n_chains),
                                     dim3(SCAN_THREADS), n_bytes, stream, p);
}

template <typename T>
static cudaError_t scan_by_dims(cudaStream_t stream, int32_t n_chains,
                                const struct blocks_params &p)
{
    const bool delta = p.state.geometry.kind == STATE_DELTA;
    switch (p.state.geometry.key_dim) {
    case 64:
        return delta ? launch_scan<T, 64, true>(stream, n_chains, p)
                     : launch_scan<T, 64, false>(stream, n_chains, p);
    case 128:
        return delta ? launch_scan<T, 128, true>(stream, n_chains, p)
                     : launch_scan<T, 128, false>(stream, n_chains, p);
    case 256:
        return delta ? launch_scan<T, 256, true>(stream, n_chains, p)
                     : launch_scan<T, 256, false>(stream, n_chains, p);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t k_state_scan(cudaStream_t stream, enum dtype dtype, int32_t n_chains,
                         const struct blocks_params &p)
{
    return dtype == DT_BF16 ? scan_by_dims<bf16_t>(stream, n_chains, p)
                            : scan_by_dims<f16_t>(stream, n_chains, p);
}
