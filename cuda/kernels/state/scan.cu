// SPDX-License-Identifier: Apache-2.0
/* The sequential part of a prompt's recurrence, from one block of the state to the next. A thread
 * block takes COLUMNS columns of one head's S, which are independent of the others, through all of
 * a sequence's blocks. For every block
 *
 *     r = strength (v - exp(G) (k S)), u = (1 + L)^-1 r     (STATE_DECAY: u = strength v)
 *     out = exp(G) (q S) + scores u + skip v
 *     S = exp(G_last) S + k^T (exp(G_last - G) u)
 *
 * One warp has GROUP columns of r, u and S, all transposed, so that a product's results are
 * operands of the next one without leaving the registers. S stays in fp32. A second warp computes
 * the outputs of these columns, a block later. The other warps load the blocks' inputs ahead of
 * their use, and store what later passes need (keys, values, decays, inputs), after every read of
 * the old contents. All meet at one barrier per block.
 *
 * The tensor cores multiply S and values rounded to 16 bits, with fp32 sums. Bound by the latency
 * of a block's steps, and by reading the L2 cache: all but the first of the thread blocks that
 * share a head find their inputs there. */
#include "cuda/kernels/state/scan.cuh"

/* ---- loads ------------------------------------------------------------------------------------
 */

/* Copies a block's rows. LOWER: only the squares of 16 rows up to the diagonal. The thread's runs
 * are STEP rows apart, so that their addresses differ by constants. */
template <bool LOWER, typename T, int N>
__device__ __forceinline__ static void load_tile(struct tile<T, N> &to, const T *from)
{
    constexpr int STEP = LOADERS / (N / RUN);
    static_assert(STEP % 8 == 0 || STEP == 4, "the permutation repeats after two runs");
    const int32_t row = loader() / (N / RUN), c = loader() % (N / RUN) * RUN;
    T *const at[2] = {to.at(row, c), to.at(row + STEP, c)};
    from += loader() * RUN;
#pragma unroll
    for (int j = 0; j < BLOCK / STEP; j++) {
        if (!LOWER || c / 16 <= j * STEP / 16) {
            cp_async_16(at[j % 2] + j / 2 * (2 * STEP * N), from + j * LOADERS * RUN, true);
        }
    }
}

/* Block i of the launch, without its queries, scores and factors. */
template <typename T, int KEY, bool DELTA>
__device__ __forceinline__ static void load_chain(const struct blocks_params &p,
                                                  const struct scan &w, int32_t i,
                                                  struct chain_stage<T, KEY, DELTA> &to)
{
    constexpr int STEP = LOADERS / (COLUMNS / RUN);
    const struct state_layer &g = p.state.geometry;
    const int64_t item = w.first + i, of_head = item * g.n_heads + w.head;
    load_tile<false>(to.k, (const T *)p.k + (item * g.n_key_heads + w.key_head) * BLOCK * KEY);
    if constexpr (DELTA) {
        load_tile<true>(to.inverse[0], (const T *)p.inverse + of_head * BLOCK * BLOCK);
    }
    const int32_t row = loader() / (COLUMNS / RUN), c = loader() % (COLUMNS / RUN) * RUN;
    const int32_t n_old = w.nth + i == 0 ? w.seq.n_past % BLOCK : 0;
    const T *v = (const T *)p.v + (of_head * BLOCK + row) * g.value_dim + w.column + c;
#pragma unroll
    for (int j = 0; j < BLOCK; j += STEP, v += STEP * g.value_dim) {
        const T *from = v;
        if (row + j < n_old) {
            const int32_t pos = w.seq.n_past - n_old + row + j;
            from = values_at<T>(p.state, w.seq.lane, pos, w.head) + w.column + c;
        }
        cp_async_16(to.v.at(row + j, c), from, true);
    }
}

template <typename T, int KEY>
__device__ __forceinline__ static void load_out(const struct blocks_params &p, const struct scan &w,
                                                int32_t i, struct out_stage<T, KEY> &to)
{
    const struct state_layer &g = p.state.geometry;
    const int64_t item = w.first + i, of_head = item * g.n_heads + w.head;
    load_tile<false>(to.q, (const T *)p.q + (item * g.n_key_heads + w.key_head) * BLOCK * KEY);
    load_tile<true>(to.scores, (const T *)p.scores + of_head * BLOCK * BLOCK);
}

/* What the factors of a row are computed from. It is loaded a block earlier than needed, so that no
 * loader waits for it. */
struct row_inputs {
    float g, last, strength;
};

__device__ __forceinline__ static struct row_inputs load_row(const struct blocks_params &p,
                                                             const struct scan &w, int32_t i)
{
    const int64_t item = w.first + min(i, w.n - 1);
    const int64_t of_head = (item * p.state.geometry.n_heads + w.head) * BLOCK;
    const int32_t t = loader() % BLOCK;
    return {p.g[of_head + t], p.g[of_head + BLOCK - 1], p.strength[of_head + t]};
}

__device__ __forceinline__ static void make_factors(const struct row_inputs &in, bool is_old,
                                                    struct row_factors &to)
{
    const int32_t t = loader();
    if (t < BLOCK) {
        to.by_row[t] = is_old ? make_float2(1.0f, 0.0f) : make_float2(in.strength, __expf(in.g));
        to.to_end[t] = __expf(in.last - in.g);
        to.last = __expf(in.last);
    }
}

/* Stores the log decays of a block's new rows. */
__device__ __forceinline__ static void store_decays(const struct blocks_params &p,
                                                    const struct scan &w,
                                                    const struct block_item &b, float g)
{
    const int32_t t = loader();
    if (w.owns_head && t >= b.at && t < b.end) {
        *decays_at(p.state, w.seq.lane, b.begin + t, w.head) = g;
    }
}

/* Loads all blocks, and stores the rows that later passes need. */
template <typename T, int KEY, bool DELTA, int AHEAD>
__device__ static void load_blocks(const struct blocks_params &p, const struct scan &w,
                                   struct scan_room<T, KEY, DELTA, AHEAD> &m)
{
    const int32_t first_left = items_of(w.seq) - LEFT - w.nth;
    int32_t slot = 0, last_slot = AHEAD;
    struct inputs_copy<T, KEY> inputs = {w.nth + w.n == items_of(w.seq) ? loader() : INT32_MAX / 2};
    pdl_wait();
    pdl_trigger();
    struct row_inputs row = load_row(p, w, 0);
#pragma unroll 1
    for (int32_t next = 0; next <= w.n + AHEAD; next++) { // the block to load
        const int32_t i = next - AHEAD;
        if (i >= 0) {
            cp_async_wait<AHEAD - 1>();
            __syncthreads(); // block i has arrived for the chain, and block i - 1 for the outputs
        }
        if (next < w.n) {
            load_chain(p, w, next, m.chain[slot]);
        }
        if (next > 0 && next <= w.n) {
            load_out(p, w, next - 1, m.out[last_slot]);
        }
        cp_async_commit();
        last_slot = slot;
        slot = slot == AHEAD ? 0 : slot + 1;
        if (next < w.n && next >= first_left) {
            store_decays(p, w, item_of(w.seq, w.nth + next), row.g);
        }
        make_factors(row, w.nth + next == 0 && loader() < w.seq.n_past % BLOCK,
                     m.factors[next % m.FACTORS]);
        row = load_row(p, w, next + 1);
        if (i > 0 && i - 1 >= first_left) {
            store_values<T>(p, w, item_of(w.seq, w.nth + i - 1), m.made[i - 1 & 1]);
        }
        if (w.owns_key && i >= 0 && i < w.n && i >= first_left) {
            store_keys(p, w, item_of(w.seq, w.nth + i), m.chain[slot].k);
        }
        if (i >= 0) {
            inputs.step(p, w);
        }
    }
    while (inputs.to) {
        inputs.step(p, w);
    }
}

/* ---- the chain --------------------------------------------------------------------------------
 */

/* Two fragments, rounded: an operand with 16 rows of K. */
template <typename T>
__device__ __forceinline__ static void round_fragments(uint32_t (&to)[4], const float (&a)[4],
                                                       const float (&b)[4])
{
    to[0] = round_pair(a[0], a[1], T());
    to[1] = round_pair(a[2], a[3], T());
    to[2] = round_pair(b[0], b[1], T());
    to[3] = round_pair(b[2], b[3], T());
}

__device__ __forceinline__ static uint4 as_uint4(const uint32_t (&x)[4])
{
    return make_uint4(x[0], x[1], x[2], x[3]);
}

/* sum[n], sum[n + 1] += a times the transposed 16 rows of `b` from row 8 n on, columns from k on */
template <typename T, int N, int M>
__device__ __forceinline__ static void multiply_rows(float (&sum)[M][4], const uint32_t (&a)[4],
                                                     struct tile<T, N> &b, int n, int k)
{
    const int lane = threadIdx.x & 31;
    uint32_t columns[4];
    ldmatrix_x4(columns, b.at(n * 8 + (lane & 7) + (lane >> 4) * 8, k + (lane >> 3 & 1) * 8));
    mma_16x8x16(sum[n], a, columns[0], columns[1], T());
    mma_16x8x16(sum[n + 1], a, columns[2], columns[3], T());
}

/* The values of a block, transposed: v, the stored u of rows of earlier passes, or r. */
template <typename T, int KEY, bool DELTA>
__device__ __forceinline__ static void
make_values(struct chain_stage<T, KEY, DELTA> &in, const struct row_factors &factors,
            const float (&known)[BLOCK / 8][4], float (&r)[BLOCK / 8][4])
{
    const int lane = threadIdx.x & 31, column = (threadIdx.x >> 5) * GROUP;
#pragma unroll
    for (int k = 0; k < BLOCK; k += 16) {
        uint32_t v[4];
        ldmatrix_x4_transposed(
            v, in.v.at(k + (lane & 7) + (lane >> 4) * 8, column + (lane >> 3 & 1) * 8));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = k / 8 + i / 2;
            const float4 f = *(const float4 *)&factors.by_row[n * 8 + (lane & 3) * 2];
            const float2 two = unpack_pair<T>(v[i]);
            const float by_s = DELTA ? f.y * known[n][i % 2 * 2] : 0.0f;
            const float next_by_s = DELTA ? f.w * known[n][i % 2 * 2 + 1] : 0.0f;
            r[n][i % 2 * 2] = f.x * (two.x - by_s);
            r[n][i % 2 * 2 + 1] = f.z * (two.y - next_by_s);
        }
    }
}

/* Rounds u, and returns it decayed to the end of the block. */
template <typename T>
__device__ __forceinline__ static void
round_values(const struct row_factors &factors, const float (&u)[BLOCK / 8][4],
             uint32_t (&rounded)[BLOCK / 16][4], uint32_t (&decayed)[BLOCK / 16][4])
{
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++) {
        round_fragments<T>(rounded[k], u[2 * k], u[2 * k + 1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = k * 16 + (i >> 1) * 8 + (threadIdx.x & 3) * 2;
            const float2 by = *(const float2 *)&factors.to_end[t],
                         x = unpack_pair<T>(rounded[k][i]);
            decayed[k][i] = pack_pair<T>(by.x * x.x, by.y * x.y);
        }
    }
}

/* One block of the warp's columns. S is not used after a block that is not full. */
template <typename T, int KEY, bool DELTA>
__device__ __forceinline__ static void
move_on(struct chain_stage<T, KEY, DELTA> &in, const struct row_factors &factors,
        struct operands<KEY> &made, struct state_part<KEY> &s)
{
    const int lane = threadIdx.x & 31;
    uint32_t rounded[KEY / 16][4], u_rounded[BLOCK / 16][4], decayed[BLOCK / 16][4];
    float known[BLOCK / 8][4] = {}, r[BLOCK / 8][4], u[BLOCK / 8][4] = {};
#pragma unroll
    for (int k = 0; k < KEY / 16; k++) {
        round_fragments<T>(rounded[k], s.x[2 * k], s.x[2 * k + 1]);
        made.s[k][lane] = as_uint4(rounded[k]);
    }
#pragma unroll
    for (int k = 0; DELTA && k < KEY / 16; k++) {
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n += 2) {
            multiply_rows(known, rounded[k], in.k, n, k * 16);
        }
    }
    make_values(in, factors, known, r);
    if constexpr (DELTA) {
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) { // the inverse is 0 above its diagonal
            round_fragments<T>(rounded[k % (KEY / 16)], r[2 * k], r[2 * k + 1]);
#pragma unroll
            for (int n = 2 * k; n < BLOCK / 8; n += 2) {
                multiply_rows(u, rounded[k % (KEY / 16)], in.inverse[0], n, k * 16);
            }
        }
    }
    round_values<T>(factors, DELTA ? u : r, u_rounded, decayed);
#pragma unroll
    for (int n = 0; n < KEY / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s.x[n][i] *= factors.last;
        }
    }
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++) {
#pragma unroll
        for (int n = 0; n < KEY / 8; n += 2) {
            uint32_t keys[4];
            ldmatrix_x4_transposed(keys, in.k.at(k * 16 + (lane & 15), n * 8 + (lane >> 4) * 8));
            mma_16x8x16(s.x[n], decayed[k], keys[0], keys[1], T());
            mma_16x8x16(s.x[n + 1], decayed[k], keys[2], keys[3], T());
        }
        made.u[k][lane] = as_uint4(u_rounded[k]);
    }
}

template <typename T, int KEY, bool DELTA, int AHEAD>
__device__ static void run_chain(const struct blocks_params &p, const struct scan &w,
                                 struct scan_room<T, KEY, DELTA, AHEAD> &m, struct next_keep keep)
{
    struct state_part<KEY> s;
    const int group = threadIdx.x >> 5;
    load_state(p, w, item_of(w.seq, w.nth).begin, s);
    int32_t slot = 0;
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (int32_t i = 0; i < w.n; i++) {
        __syncthreads();
        move_on(m.chain[slot], m.factors[i % m.FACTORS], m.made[i & 1][group], s);
        slot = slot == AHEAD ? 0 : slot + 1;
        each_record(p, w, item_of(w.seq, w.nth + i), w.n - 1 - i, keep,
                    [&](int32_t, char *record) { store_state(p, w, record, s); });
    }
    __syncthreads(); // the outputs of the last block
}

/* ---- the outputs ------------------------------------------------------------------------------
 */

/* A warp's outputs of a block, its columns in two fragments for each 16 rows. */
struct out_part {
    float x[BLOCK / 16][2][4];
};

/* sum += a times the columns of the operands b */
template <typename T, int N, bool LOWER>
__device__ __forceinline__ static void multiply_columns(struct out_part &sum, struct tile<T, N> &a,
                                                        const uint4 (*b)[32])
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        const uint4 columns = b[k][lane];
#pragma unroll
        for (int m = LOWER ? k : 0; m < BLOCK / 16; m++) { // LOWER: a is 0 above its diagonal
            uint32_t rows[4];
            ldmatrix_x4(rows, a.at(m * 16 + (lane & 15), k * 16 + (lane >> 4) * 8));
            mma_16x8x16(sum.x[m][0], rows, columns.x, columns.z, T());
            mma_16x8x16(sum.x[m][1], rows, columns.y, columns.w, T());
        }
    }
}

/* The values of a block, as operands of 16 rows. */
template <typename T>
__device__ __forceinline__ static void load_values(uint32_t (&v)[BLOCK / 16][4],
                                                   struct tile<T, COLUMNS> &from, int column)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < BLOCK / 16; m++) {
        ldmatrix_x4(v[m], from.at(m * 16 + (lane & 15), column + (lane >> 4) * 8));
    }
}

template <typename T, int KEY>
__device__ __forceinline__ static void
make_rows(const struct blocks_params &p, const struct scan &w, const struct block_item &b,
          struct out_stage<T, KEY> &in, const struct row_factors &factors,
          const struct operands<KEY> &made, const uint32_t (&v)[BLOCK / 16][4], int column)
{
    const int lane = threadIdx.x & 31;
    const float skip = p.vectors.skip ? p.vectors.skip[w.head] : 0.0f;
    struct out_part out = {};
    multiply_columns<T, KEY, false>(out, in.q, made.s);
#pragma unroll
    for (int i = 0; i < BLOCK / 4; i++) { // pairs of columns
        const int m = i / 4, n = i / 2 % 2, half = i % 2;
        const float decay = factors.by_row[m * 16 + half * 8 + (lane >> 2)].y;
        const float2 two = unpack_pair<T>(v[m][n * 2 + half]);
        float (&x)[4] = out.x[m][n];
        x[half * 2] = fmaf(skip, two.x, decay * x[half * 2]);
        x[half * 2 + 1] = fmaf(skip, two.y, decay * x[half * 2 + 1]);
    }
    multiply_columns<T, BLOCK, true>(out, in.scores, made.u);
    const int64_t row = w.seq.first_row + b.begin - w.seq.n_past;
    T *to = (T *)p.out + (int64_t)w.head * p.state.geometry.value_dim + w.column + column +
            (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < BLOCK / 4; i++) {
        const int m = i / 4, n = i / 2 % 2, half = i % 2;
        const int32_t t = m * 16 + half * 8 + (lane >> 2);
        if (t >= b.at && t < b.end) {
            *(uint32_t *)(to + (row + t) * p.out_stride + n * 8) =
                pack_pair<T>(out.x[m][n][half * 2], out.x[m][n][half * 2 + 1]);
        }
    }
}

template <typename T, int KEY, bool DELTA, int AHEAD>
__device__ static void run_outputs(const struct blocks_params &p, const struct scan &w,
                                   struct scan_room<T, KEY, DELTA, AHEAD> &m)
{
    const int group = (threadIdx.x >> 5) - FIRST_OUT;
    uint32_t v[BLOCK / 16][4] = {};
    int32_t slot = 0, last_slot = AHEAD;
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (int32_t i = 0; i <= w.n; i++) {
        __syncthreads();
        if (i > 0) {
            make_rows(p, w, item_of(w.seq, w.nth + i - 1), m.out[last_slot],
                      m.factors[(i - 1) % m.FACTORS], m.made[i - 1 & 1][group], v, group * GROUP);
        }
        if (p.vectors.skip && i < w.n) {
            load_values(v, m.chain[slot].v, group * GROUP);
        }
        last_slot = slot;
        slot = slot == AHEAD ? 0 : slot + 1;
    }
}

template <typename T, int KEY, bool DELTA, int AHEAD>
__device__ __forceinline__ static void run_blocks(const struct blocks_params &p,
                                                  const struct scan &w,
                                                  struct scan_room<T, KEY, DELTA, AHEAD> &m)
{
    const int warp = threadIdx.x >> 5;
    if (warp < FIRST_OUT) {
        run_chain(p, w, m, find_keep(p, w, item_of(w.seq, w.nth).begin + 1));
    } else if (warp < FIRST_LOAD) {
        run_outputs(p, w, m);
    } else {
        load_blocks(p, w, m);
    }
}

/* As many as shared memory holds. */
__host__ __device__ static constexpr int blocks_ahead(int sm, int key_dim)
{
    return key_dim < 128 || (key_dim == 128 && sm >= 90) ? 2 : 1;
}

/* Before the wait, a block finds its sequence and loads S. If an earlier launch of this pass wrote
 * S, that launch has ended, because all kernels in between wait before they trigger. */
template <typename T, int KEY, bool DELTA>
__global__ void __launch_bounds__(SCAN_THREADS, 1) state_scan_kernel(struct blocks_params p)
{
#if __CUDA_ARCH__ >= 900
    constexpr int AHEAD = blocks_ahead(90, KEY);
#else
    constexpr int AHEAD = blocks_ahead(80, KEY);
#endif
    typedef scan_room<T, KEY, DELTA, AHEAD> room;
    extern __shared__ __align__(16) char memory[];
    room &m = *(room *)memory;
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
    const size_t n_bytes = launch_sm() >= 90
                               ? sizeof(scan_room<T, KEY, DELTA, blocks_ahead(90, KEY)>)
                               : sizeof(scan_room<T, KEY, DELTA, blocks_ahead(80, KEY)>);
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
