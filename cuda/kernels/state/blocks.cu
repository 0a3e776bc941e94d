// SPDX-License-Identifier: Apache-2.0
/* The recurrence of ops.h for prompts: sequences of more than STATE_WINDOW rows, one block of the
 * state at a time. Two kernels compute, for all blocks in parallel, everything that does not depend
 * on S: first queries, keys and values after the convolution, and the sums of log decays (bound by
 * memory bandwidth and arithmetic); then the decayed products of the block's keys and queries with
 * its keys, with the inverse that the delta rule needs (bound by latency). A thread block has one
 * head of one block of the state; in the first kernel, only its queries, keys or values. Then
 * k_state_scan processes a sequence's blocks in order. The intermediate results go through scratch
 * memory, as many blocks at a time as fit. The code is short, because every launch fetches it
 * again.
 *
 * Let L be the strictly lower part of strength_i (k_i . k_j) exp(G_i - G_j). A block's values are u
 * = (1 + L)^-1 r with r_i = strength_i (v_i - exp(G_i) k_i S). Rows from earlier passes have no row
 * in L, and their r is the stored u. */
#include "cuda/kernels/state/inverse.cuh"

enum { ROWS = BLOCK / WARPS }; // rows of a warp in the convolution

/* ---- the convolution --------------------------------------------------------------------------
 */

/* A head's queries, keys or values: N of a row's channels, of which a lane has N / 32. The block's
 * inputs and the TAPS - 1 before them come through shared memory, so that all of them are in flight
 * at once without much code, which every launch fetches again. */
struct part {
    int32_t channel; // the head's first channel
    bool normed;     // divided by the vector's L2 norm
    float scale;     // further factor, if normed
};

template <typename T, int N> struct inputs_room {
    T x[BLOCK + TAPS - 1][N]; // of positions from begin - (TAPS - 1) on
};

template <typename T, int N>
__device__ static void load_inputs(const struct blocks_params &p, const struct block_item &b,
                                   int32_t channel, struct inputs_room<T, N> &room)
{
    constexpr int VECS = N / 8, STEP = THREADS / VECS;
    const int32_t past = b.seq.n_past, end = past + b.seq.n_rows, first = threadIdx.x / VECS;
    const int32_t c = threadIdx.x % VECS * 8, before = b.begin - (TAPS - 1);
    const int64_t row_x = b.seq.first_row + before + first - past;
    const T *x = (const T *)p.x + row_x * p.x_stride + channel + c;
#pragma unroll 1
    for (int32_t row = first; row < BLOCK + TAPS - 1; row += STEP, x += STEP * p.x_stride) {
        const int32_t pos = before + row;
        const T *from = x;
        bool is = pos < end;
        if (pos < past) {
            from = inputs_at<T>(p.state, b.seq.lane, max(pos, 0)) + channel + c;
            is = pos >= 0 && pos >= past - (TAPS - 1);
        }
        cp_async_16(&room.x[row][c], is ? from : (const T *)p.x, is);
    }
    cp_async_commit();
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* x * sigmoid(x) in few instructions */
__device__ __forceinline__ float silu(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + exp2_fast(x * -1.4426950408889634f)));
    return x * r;
}

/* The threads that store the last inputs before the boundary that ends a block. */
template <int N> __device__ __forceinline__ static bool stores_tail(const struct block_item &b)
{
    return b.end == BLOCK && threadIdx.x < (TAPS - 1) * (N / 8);
}

/* The snapshot of the boundary that ends the block; -1: none. Called by whole warps. */
__device__ __forceinline__ static int32_t snapshot_of(const struct blocks_params &p,
                                                      const struct block_item &b)
{
    const int32_t n = p.pass.counts->n_keeps;
    int32_t slot = -1;
#pragma unroll 1
    for (int32_t i = threadIdx.x & 31; i < n; i += 32) {
        const struct state_keep keep = p.pass.keeps[i];
        slot = keep.lane == b.seq.lane && keep.pos == b.begin + BLOCK ? keep.slot : slot;
    }
    return __reduce_max_sync(0xffffffffu, slot);
}

/* Stores the last inputs before the boundary to the records that get it: the lane's, unless later
 * boundaries of the pass replace it, and a snapshot. */
template <typename T, int N>
__device__ __forceinline__ static void
store_tail(const struct blocks_params &p, const struct block_item &b, int32_t snapshot,
           int32_t channel, const struct inputs_room<T, N> &room)
{
    const int32_t tap = threadIdx.x / (N / 8), c = threadIdx.x % (N / 8) * 8;
    const int32_t later = (b.seq.n_past + b.seq.n_rows) / BLOCK - b.begin / BLOCK - 1;
    const int64_t at = (int64_t)tap * p.state.geometry.conv_width + channel + c;
    const uint4 x = *(const uint4 *)&room.x[BLOCK + tap][c];
    if (later < p.state.n_records) {
        char *record = record_of(p.state, b.seq.lane, b.begin + BLOCK);
        *(uint4 *)((T *)(record + p.state.s_bytes) + at) = x;
    }
    if (snapshot >= 0) {
        char *record = p.state.snapshots + (snapshot - p.state.max_lanes) * p.state.record_bytes;
        *(uint4 *)((T *)(record + p.state.s_bytes) + at) = x;
    }
}

/* A warp processes ROWS rows. old: the keys of earlier passes, or NULL. */
template <typename T, int N>
__device__ static void convolve(const struct blocks_params &p, const struct block_item &b,
                                const struct part &part, const T *old, T *to,
                                struct inputs_room<T, N> &room)
{
    constexpr int E = N / 32;
    const int32_t lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * ROWS;
    float weight[TAPS][E], bias[E], in[TAPS][E];
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        const int32_t at = part.channel + lane * E;
        *(pack<float, E> *)weight[j] =
            *(const pack<float, E> *)(p.vectors.kernel + (int64_t)j * p.state.geometry.conv_width +
                                      at);
    }
#pragma unroll
    for (int e = 0; e < E; e++) {
        bias[e] = p.vectors.bias ? p.vectors.bias[part.channel + lane * E + e] : 0.0f;
    }
    pdl_wait(); // no kernel of the pass writes what was read before
    pdl_trigger();
    load_inputs<T, N>(p, b, part.channel, room);
    const bool tail = stores_tail<N>(b);
    const int32_t snapshot = __any_sync(0xffffffffu, tail) ? snapshot_of(p, b) : -1;
    cp_async_wait<0>();
    __syncthreads();
    if (tail) {
        store_tail<T, N>(p, b, snapshot, part.channel, room);
    }
#pragma unroll
    for (int j = 1; j < TAPS; j++) {
        const pack<T, E> x = *(const pack<T, E> *)&room.x[first + j - 1][lane * E];
#pragma unroll
        for (int e = 0; e < E; e++) {
            in[j][e] = to_float(x.v[e]);
        }
    }
#pragma unroll 4
    for (int32_t t = first; t < first + ROWS; t++) {
        const pack<T, E> x = *(const pack<T, E> *)&room.x[t + TAPS - 1][lane * E];
        float y[E], by = 1.0f;
#pragma unroll
        for (int e = 0; e < E; e++) {
#pragma unroll
            for (int j = 1; j < TAPS; j++) {
                in[j - 1][e] = in[j][e];
            }
            in[TAPS - 1][e] = to_float(x.v[e]);
            float sum = bias[e];
#pragma unroll
            for (int j = 0; j < TAPS; j++) {
                sum = fmaf(in[j][e], weight[j][e], sum);
            }
            y[e] = p.silu ? silu(sum) : sum;
        }
        if (part.normed) {
            float square = 0.0f;
#pragma unroll
            for (int e = 0; e < E; e++) {
                square = fmaf(y[e], y[e], square);
            }
            by = rsqrtf(warp_sum(square) + 1e-6f) * part.scale;
        }
        const bool is = t >= b.at && t < b.end;
        pack<T, E> made;
#pragma unroll
        for (int e = 0; e < E; e += 2) {
            ((uint32_t *)made.v)[e / 2] = is ? round_pair(y[e] * by, y[e + 1] * by, T()) : 0;
        }
        if (old && t < b.at) { // a key from an earlier pass
            made = *(const pack<T, E> *)(old + (int64_t)t * p.state.geometry.n_key_heads * N +
                                         lane * E);
        }
        *(pack<T, E> *)(to + t * N + lane * E) = made;
    }
}

/* A warp computes the sums of a head's log decays, and the strength of each row's value. Both rows
 * of a lane are loaded before either is used. */
template <typename T>
__device__ static void sum_decays(const struct blocks_params &p, const struct block_item &b,
                                  int32_t head, float *g, float *strength)
{
    const bool delta = p.state.geometry.kind == STATE_DELTA;
    const int32_t lane = threadIdx.x & 31, slot = b.begin;
    const float rate = expf(p.vectors.a_log[head]), dt_bias = p.vectors.dt_bias[head];
    T decay[2], beta[2];
    float own[2], sum;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t t = 2 * lane + i;
        const int64_t row = b.seq.first_row + b.begin + t - b.seq.n_past;
        const bool is = t >= b.at && t < b.end;
        decay[i] = beta[i] = from_float<T>(0.0f);
        if (is) {
            decay[i] = ((const T *)p.decay + row * p.decay_stride)[head];
        }
        if (is && delta) {
            beta[i] = ((const T *)p.beta)[row * p.beta_stride + head];
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t t = 2 * lane + i;
        own[i] = 0.0f;
        strength[t] = 0.0f;
        if (t >= b.at && t < b.end) {
            const float x = decay_input(p.law, decay[i], dt_bias);
            own[i] = log_decay(p.law, rate, x);
            strength[t] =
                delta ? p.law.beta_scale / (1.0f + expf(-to_float(beta[i]))) : dt_of(p.law, x);
        }
    }
    sum = own[0] + own[1];
    for (int d = 1; d < 32; d *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, sum, d);
        sum += lane >= d ? before : 0.0f;
    }
    const float known = b.at > 0 ? *decays_at(p.state, b.seq.lane, slot + b.at - 1, head) : 0.0f;
    const float before = __shfl_up_sync(0xffffffffu, sum, 1);
    const float base = known + (lane > 0 ? before : 0.0f);
    g[2 * lane] = base + own[0];
    g[2 * lane + 1] = base + own[0] + own[1];
    for (int i = 0; i < 2; i++) {
        const int32_t t = 2 * lane + i;
        if (t < b.at) {
            g[t] = *decays_at(p.state, b.seq.lane, slot + t, head);
        }
    }
}

/* Units: the heads' queries, keys, values, and then the decays of WARPS heads. */
template <typename T, int KEY, int VALUE>
__global__ void __launch_bounds__(THREADS) state_inputs_kernel(struct blocks_params p)
{
    __shared__ __align__(16) struct inputs_room<T, (KEY > VALUE ? KEY : VALUE)> room;
    const struct state_layer &g = p.state.geometry;
    const int32_t n_keys = g.n_key_heads, unit = blockIdx.x, item = blockIdx.y;
    const bool is_value = unit >= 2 * n_keys, is_key = unit >= n_keys && !is_value;
    const int32_t head = is_value ? unit - 2 * n_keys : (is_key ? unit - n_keys : unit);
    const bool normed = g.kind == STATE_DELTA && !is_value;
    struct block_item b;
    if (!find_item(p, item, &b)) {
        pdl_wait();
        return;
    }
    if (unit >= 2 * n_keys + g.n_heads) {
        const int32_t of = (unit - 2 * n_keys - g.n_heads) * WARPS + (threadIdx.x >> 5);
        pdl_wait();
        pdl_trigger();
        if (of < g.n_heads) {
            const int64_t at = ((int64_t)item * g.n_heads + of) * BLOCK;
            sum_decays<T>(p, b, of, p.g + at, p.strength + at);
        }
        return;
    }
    const T *old = is_key ? keys_at<T>(p.state, b.seq.lane, b.begin, head) : NULL;
    T *to = (T *)(is_key ? p.k : p.q) + ((int64_t)item * n_keys + head) * BLOCK * KEY;
    struct part part = {(is_key ? p.k_at : p.q_at) + head * KEY, normed,
                        is_key ? 1.0f : rsqrtf((float)KEY)};
    if (is_value) {
        part.channel = p.v_at + head * VALUE;
        to = (T *)p.v + ((int64_t)item * g.n_heads + head) * BLOCK * VALUE;
    }
    if (KEY == VALUE || !is_value) {
        convolve<T, KEY>(p, b, part, old, to, *(struct inputs_room<T, KEY> *)&room);
    } else {
        convolve<T, VALUE>(p, b, part, old, to, *(struct inputs_room<T, VALUE> *)&room);
    }
}

/* ---- products between the rows of a block -----------------------------------------------------
 */

template <typename T, int KEY> struct scores_room {
    static constexpr int LD = KEY + 8; // padded so that ldmatrix has no bank conflicts
    union {
        struct {
            T q[BLOCK][LD], k[BLOCK][LD];
        };
        struct { // once q and k have been read
            float lower[BLOCK][BLOCK + 4], half[BLOCK / 2][BLOCK + 4];
        };
    };
    float g[BLOCK], strength[BLOCK];
};

/* Starts the loads of a block's rows: queries, keys, decays and strengths. */
template <typename T, int KEY>
__device__ __forceinline__ void load_scores(scores_room<T, KEY> &m, const struct blocks_params &p,
                                            int32_t item, int32_t head, int32_t key_head)
{
    const struct state_layer &g = p.state.geometry;
    constexpr int STEP = THREADS / (KEY / 8); // rows that all threads load at a time
    const int32_t t = threadIdx.x / (KEY / 8), d = threadIdx.x % (KEY / 8) * 8;
    const int64_t keys = ((int64_t)item * g.n_key_heads + key_head) * BLOCK * KEY + t * KEY + d;
    const T *q = (const T *)p.q + keys, *k = (const T *)p.k + keys;
#pragma unroll
    for (int i = 0; i < BLOCK; i += STEP) {
        cp_async_16(&m.q[t][d] + i * m.LD, q + i * KEY, true);
        cp_async_16(&m.k[t][d] + i * m.LD, k + i * KEY, true);
    }
    const int64_t of_head = (int64_t)item * g.n_heads + head;
    if (threadIdx.x < BLOCK / 4) {
        cp_async_16(&m.g[threadIdx.x * 4], p.g + of_head * BLOCK + threadIdx.x * 4, true);
    } else if (threadIdx.x < BLOCK / 2) {
        const int32_t t = threadIdx.x * 4 - BLOCK;
        cp_async_16(&m.strength[t], p.strength + of_head * BLOCK + t, true);
    }
}

/* Stores a warp's products, decayed: those with queries to `scores`, up to the squares on the
 * diagonal, and L to shared memory. Rows before `at` have no row in L. */
template <typename T, int KEY, bool DELTA>
__device__ __forceinline__ static void
decay_scores(scores_room<T, KEY> &m, const float (&qk)[BLOCK / 8][4],
             const float (&kk)[BLOCK / 8][4], int32_t at, T *scores)
{
    const int32_t lane = threadIdx.x & 31, mine = (threadIdx.x >> 5) * 16;
    const int32_t row = mine + (lane >> 2);
    constexpr float LOG2_E = 1.4426950408889634f;
    const float g_row[2] = {m.g[row], m.g[row + 8]};
    const float strength[2] = {row >= at ? m.strength[row] : 0.0f,
                               row + 8 >= at ? m.strength[row + 8] : 0.0f};
#pragma unroll
    for (int n = 0; n < BLOCK / 8; n++) {
        const int32_t j = n * 8 + (lane & 3) * 2;
        const bool is_masked = n * 8 > mine + 8; // all of the warp's elements
        float2 g_column = make_float2(0.0f, 0.0f);
        if (!is_masked) {
            g_column = *(const float2 *)&m.g[j];
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t i = row + half * 8;
            float seen[2] = {0.0f, 0.0f}, lower[2] = {0.0f, 0.0f};
            if (!is_masked) {
#pragma unroll
                for (int e = 0; e < 2; e++) { // decays above the diagonal may be infinite
                    // The difference first: it is exact where both are large and nearly equal.
                    const float decay =
                        exp2_fast((g_row[half] - (e == 0 ? g_column.x : g_column.y)) * LOG2_E);
                    seen[e] = j + e <= i ? decay * qk[n][half * 2 + e] : 0.0f;
                    lower[e] = j + e < i ? strength[half] * decay * kk[n][half * 2 + e] : 0.0f;
                }
                *(uint32_t *)(scores + i * BLOCK + j) = round_pair(seen[0], seen[1], T());
            }
            if (DELTA) {
                *(float2 *)&m.lower[i][j] = make_float2(lower[0], lower[1]);
            }
        }
    }
}

/* The products of a block's queries and keys with its keys, with their decays, for one head; for
 * delta nets also the inverse that turns r into u. A warp computes 16 rows, up to the diagonal. */
template <typename T, int KEY, bool DELTA>
__global__ void __launch_bounds__(THREADS) state_scores_kernel(struct blocks_params p)
{
    extern __shared__ __align__(16) char memory[];
    typedef scores_room<T, KEY> room;
    room &m = *(room *)memory;
    const struct state_layer &g = p.state.geometry;
    const int32_t head = blockIdx.x, item = blockIdx.y,
                  key_head = head / (g.n_heads / g.n_key_heads);
    const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    struct block_item b;
    const bool is = find_item(p, item, &b);
    pdl_wait();
    pdl_trigger();
    if (!is) {
        return;
    }
    load_scores<T, KEY>(m, p, item, head, key_head);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();

    float qk[BLOCK / 8][4] = {}, kk[BLOCK / 8][4] = {};
    const int32_t mine = warp * 16; // row; columns after it are masked
#pragma unroll 2
    for (int k = 0; k < KEY; k += 16) {
        uint32_t q_rows[4], k_rows[4], columns[4];
        ldmatrix_x4(q_rows, &m.q[mine + (lane & 15)][(lane >> 4) * 8 + k]);
        ldmatrix_x4(k_rows, &m.k[mine + (lane & 15)][(lane >> 4) * 8 + k]);
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n += 2) {
            if (n * 8 <= mine) {
                ldmatrix_x4(columns,
                            &m.k[n * 8 + (lane & 7) + (lane >> 4) * 8][(lane >> 3 & 1) * 8 + k]);
                mma_16x8x16(qk[n], q_rows, columns[0], columns[1], T());
                mma_16x8x16(qk[n + 1], q_rows, columns[2], columns[3], T());
                if (DELTA) {
                    mma_16x8x16(kk[n], k_rows, columns[0], columns[1], T());
                    mma_16x8x16(kk[n + 1], k_rows, columns[2], columns[3], T());
                }
            }
        }
    }
    const int64_t of_head = (int64_t)item * g.n_heads + head;
    T *scores = (T *)p.scores + of_head * BLOCK * BLOCK;
    __syncthreads();
    decay_scores<T, KEY, DELTA>(m, qk, kk, b.at, scores);
    if (DELTA) {
        T *inverse = (T *)p.inverse + of_head * BLOCK * BLOCK;
        __syncthreads();
        invert(m.lower, m.half);
        store_inverse(inverse, m.lower);
    }
}

/* ---- launches ---------------------------------------------------------------------------------
 */

static size_t take(char *base, size_t *at, size_t n_bytes, char **out)
{
    *out = base + *at;
    *at += (n_bytes + 255) / 256 * 256;
    return *at;
}

/* The scratch bytes for n items, and the addresses of the arrays. */
static size_t lay_out(const struct state_layer *g, char *base, int64_t n, struct blocks_params *p)
{
    const size_t size = 2, heads = (size_t)(n * g->n_heads), rows = heads * BLOCK;
    const size_t keys = (size_t)(n * g->n_key_heads) * BLOCK * (size_t)g->key_dim * size;
    const size_t squares = rows * BLOCK * size;
    size_t at = 0;
    take(base, &at, keys, (char **)&p->q);
    take(base, &at, keys, (char **)&p->k);
    take(base, &at, rows * (size_t)g->value_dim * size, (char **)&p->v);
    take(base, &at, squares, (char **)&p->scores);
    take(base, &at, g->kind == STATE_DELTA ? squares : 0, (char **)&p->inverse);
    take(base, &at, rows * sizeof(float), (char **)&p->g);
    return take(base, &at, rows * sizeof(float), (char **)&p->strength);
}

static bool dims_ok(const struct state_layer *g)
{
    const bool keys = g->key_dim == 64 || g->key_dim == 128 || g->key_dim == 256;
    return keys && (g->value_dim == 64 || g->value_dim == 128) && !g->per_channel;
}

extern "C" bool k_state_blocks_takes(const struct state_rows_launch *l)
{
    const struct state_layer *g = &l->state.geometry;
    const struct recurrence_args *a = l->a;
    if (!l->conv || l->state.dtype == DT_F32 || l->state.block != BLOCK || !dims_ok(g) ||
        g->conv_kernel != TAPS) {
        return false;
    }
    const bool places = (a->q_at | a->k_at | a->v_at) % 8 == 0;
    return places && vec_ok(l->conv->x.mem.p, l->conv->x.stride, g->conv_width, 2) &&
           vec_ok(a->out.mem.p, a->out.stride, g->n_heads * g->value_dim, 2);
}

extern "C" size_t k_state_blocks_bytes(const struct state_view *state, int32_t n_items)
{
    struct blocks_params p = {};
    return lay_out(&state->geometry, NULL, n_items, &p);
}

template <typename T, int KEY, int VALUE>
static cudaError_t launch_blocks(cudaStream_t stream, const struct blocks_params &p)
{
    const struct state_layer &g = p.state.geometry;
    const int32_t units = 2 * g.n_key_heads + g.n_heads + (g.n_heads + WARPS - 1) / WARPS;
    const int32_t n_bytes = (int)sizeof(scores_room<T, KEY>);
    const auto scores = g.kind == STATE_DELTA ? state_scores_kernel<T, KEY, true>
                                              : state_scores_kernel<T, KEY, false>;
    cudaError_t e =
        cudaFuncSetAttribute(scores, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes);
    if (e == cudaSuccess) {
        e = launch(state_inputs_kernel<T, KEY, VALUE>, dim3(units, p.n_items), dim3(THREADS), 0,
                   stream, p);
    }
    return e != cudaSuccess ? e
                            : launch(scores, dim3(g.n_heads, p.n_items), dim3(THREADS),
                                     (size_t)n_bytes, stream, p);
}

template <typename T>
static cudaError_t launch_by_dims(cudaStream_t stream, const struct blocks_params &p)
{
    const struct state_layer &g = p.state.geometry;
    const bool wide = g.value_dim == 128;
    switch (g.key_dim) {
    case 64:
        return wide ? launch_blocks<T, 64, 128>(stream, p) : launch_blocks<T, 64, 64>(stream, p);
    case 128:
        return wide ? launch_blocks<T, 128, 128>(stream, p) : launch_blocks<T, 128, 64>(stream, p);
    case 256:
        return wide ? launch_blocks<T, 256, 128>(stream, p) : launch_blocks<T, 256, 64>(stream, p);
    default: return cudaErrorInvalidValue;
    }
}

static struct blocks_params params_of(const struct state_rows_launch *l)
{
    const struct recurrence_args *a = l->a;
    struct blocks_params p = {};
    p.state = l->state;
    p.pass = l->pass;
    p.vectors = l->vectors;
    p.law = decay_law_of(a);
    p.x = l->conv->x.mem.p;
    p.x_stride = l->conv->x.stride;
    p.decay = a->decay.mem.p;
    p.decay_stride = a->decay.stride;
    p.beta = a->beta.mem.p;
    p.beta_stride = a->beta.stride;
    p.out = a->out.mem.p;
    p.out_stride = a->out.stride;
    p.q_at = a->q_at;
    p.k_at = a->k_at;
    p.v_at = a->v_at;
    p.silu = l->conv->silu;
    return p;
}

extern "C" cudaError_t k_state_blocks(cudaStream_t stream, const struct state_rows_launch *l,
                                      void *scratch, size_t n_bytes)
{
    struct blocks_params p = params_of(l);
    const size_t each = k_state_blocks_bytes(&l->state, 1);
    const int64_t fit = (int64_t)(n_bytes / each), most = 65535; // the limit of a grid dimension
    const int32_t slice = (int32_t)(fit < most ? fit : most);
    cudaError_t e = slice > 0 ? cudaSuccess : cudaErrorInvalidValue;
    for (int32_t first = 0; e == cudaSuccess && first < l->n_blocks; first += slice) {
        p.first_item = first;
        p.n_items = l->n_blocks - first < slice ? l->n_blocks - first : slice;
        lay_out(&l->state.geometry, (char *)scratch, p.n_items, &p);
        e = l->state.dtype == DT_BF16 ? launch_by_dims<bf16_t>(stream, p)
                                      : launch_by_dims<f16_t>(stream, p);
        e = e == cudaSuccess ? k_state_scan(stream, l->state.dtype, l->n_chains, p) : e;
    }
    return e;
}
