// SPDX-License-Identifier: Apache-2.0
/* The recurrence of ops.h for prompts: sequences of more than STATE_WINDOW rows, one block of the
 * state at a time. Two kernels compute, for all blocks in parallel, everything that does not depend
 * on S: queries, keys and values after the convolution (bound by memory bandwidth), and the decayed
 * products of the block's keys and queries with its keys, with the inverse that the delta rule
 * needs (bound by the inverse, each column of which one thread computes serially). Then
 * k_state_scan processes a sequence's blocks in order. The intermediate results go through scratch
 * memory, as many blocks at a time as fit.
 *
 * Let L be the strictly lower part of strength_i (k_i . k_j) exp(G_i - G_j). A block's values are u
 * = (1 + L)^-1 r with r_i = strength_i (v_i - exp(G_i) k_i S). Rows from earlier passes have no row
 * in L, and their r is the stored u. */
#include "cuda/kernels/state/blocks.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, ROWS = BLOCK / WARPS };

/* ---- the convolution --------------------------------------------------------------------------
 */

/* A warp processes ROWS rows of a head's queries, keys or values; a lane has E of its channels. */
struct part {
    int32_t channel; // the lane's first channel
    bool normed;     // divided by the vector's length
    float scale;     // further factor, if normed
};

template <typename T, int E>
__device__ static pack<T, E> load_input(const struct blocks_params &p, const struct block_item &b,
                                        int32_t pos, int32_t channel)
{
    pack<T, E> in;
    const int32_t past = b.seq.n_past, row = b.seq.first_row + pos - past;
    const T *from = pos >= past ? (const T *)p.x + row * p.x_stride
                                : inputs_at<T>(p.state, b.seq.lane, max(pos, 0));
    if (pos >= 0 && pos >= past - (TAPS - 1) && pos < past + b.seq.n_rows) {
        return *(const pack<T, E> *)(from + channel);
    }
#pragma unroll
    for (int e = 0; e < E; e++) {
        in.v[e] = from_float<T>(0.0f);
    }
    return in;
}

template <typename T, int E>
__device__ static void convolve(const struct blocks_params &p, const struct block_item &b,
                                const struct part &part, const T *old, T *to)
{
    const int32_t lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * ROWS;
    float weight[TAPS][E], bias[E], in[TAPS][E];
#pragma unroll
    for (int e = 0; e < E; e++) {
        const int32_t channel = part.channel + e;
        bias[e] = p.vectors.bias ? p.vectors.bias[channel] : 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            weight[j][e] = p.vectors.kernel[(int64_t)j * p.state.geometry.conv_width + channel];
        }
    }
#pragma unroll
    for (int j = 1; j < TAPS; j++) {
        const pack<T, E> x = load_input<T, E>(p, b, b.begin + first - TAPS + j, part.channel);
#pragma unroll
        for (int e = 0; e < E; e++) {
            in[j][e] = to_float(x.v[e]);
        }
    }
#pragma unroll 4
    for (int32_t t = first; t < first + ROWS; t++) {
        const pack<T, E> x = load_input<T, E>(p, b, b.begin + t, part.channel);
        float y[E], square = 0.0f;
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
            y[e] = p.silu ? sum / (1.0f + __expf(-sum)) : sum;
            square = fmaf(y[e], y[e], square);
        }
        const float by = part.normed ? rsqrtf(warp_sum(square) + 1e-6f) * part.scale : 1.0f;
        const bool is_here = t >= b.at && t < b.end;
        pack<T, E> made;
#pragma unroll
        for (int e = 0; e < E; e++) {
            made.v[e] = from_float<T>(is_here ? y[e] * by : 0.0f);
        }
        if (old && t < b.at) { // a key from an earlier pass
            made = *(const pack<T, E> *)(old + (int64_t)t * p.state.geometry.n_key_heads * E * 32 +
                                         lane * E);
        }
        *(pack<T, E> *)(to + (int64_t)t * E * 32 + lane * E) = made;
    }
}

template <typename T, int KEY, int VALUE>
__global__ void __launch_bounds__(THREADS) state_inputs_kernel(struct blocks_params p)
{
    const struct state_layer &g = p.state.geometry;
    const int32_t n_keys = g.n_key_heads, lane = threadIdx.x & 31;
    const int32_t unit = blockIdx.x, item = blockIdx.y;
    const bool delta = g.kind == STATE_DELTA;
    struct block_item b;
    pdl_wait();
    pdl_trigger();
    if (!find_item(p, item, &b)) {
        return;
    }
    if (unit < 2 * n_keys) {
        const bool is_key = unit >= n_keys;
        const int32_t head = is_key ? unit - n_keys : unit;
        const struct part part = {(is_key ? p.k_at : p.q_at) + head * KEY + lane * (KEY / 32),
                                  delta, is_key ? 1.0f : rsqrtf((float)KEY)};
        const T *old = is_key ? keys_at<T>(p.state, b.seq.lane, b.begin, head) : NULL;
        T *to = (T *)(is_key ? p.k : p.q) + ((int64_t)item * n_keys + head) * BLOCK * KEY;
        convolve<T, KEY / 32>(p, b, part, old, to);
        return;
    }
    const int32_t head = unit - 2 * n_keys;
    const struct part part = {p.v_at + head * VALUE + lane * (VALUE / 32), false, 1.0f};
    T *to = (T *)p.v + ((int64_t)item * g.n_heads + head) * BLOCK * VALUE;
    convolve<T, VALUE / 32>(p, b, part, (const T *)NULL, to);
}

/* ---- products between the rows of a block -----------------------------------------------------
 */

template <typename T, int KEY> struct scores_room {
    static constexpr int LD = KEY + 8; // padded so that ldmatrix has no bank conflicts
    union {
        struct {
            T q[BLOCK][LD], k[BLOCK][LD];
        };
        float lower[BLOCK][BLOCK + 4]; // once q and k have been read
    };
    float g[BLOCK], strength[BLOCK];
};

/* The first warp computes sums of log decays, and the strength of each row's value. */
template <typename T>
__device__ static void sum_decays(const struct blocks_params &p, const struct block_item &b,
                                  int32_t head, float *g, float *strength)
{
    const bool delta = p.state.geometry.kind == STATE_DELTA;
    const int32_t lane = threadIdx.x & 31, slot = b.begin;
    const float rate = expf(p.vectors.a_log[head]);
    float own[2], sum;
    for (int i = 0; i < 2; i++) {
        const int32_t t = 2 * lane + i;
        const int64_t row = b.seq.first_row + b.begin + t - b.seq.n_past;
        own[i] = 0.0f;
        strength[t] = 0.0f;
        if (t >= b.at && t < b.end) {
            const float x = decay_input(p.law, ((const T *)p.decay + row * p.decay_stride)[head],
                                        p.vectors.dt_bias[head]);
            own[i] = log_decay(p.law, rate, x);
            strength[t] =
                delta ? 1.0f / (1.0f +
                                expf(-to_float(((const T *)p.beta)[row * p.beta_stride + head])))
                      : dt_of(p.law, x);
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

/* One thread computes column `column` of (1 + L)^-1, from row FIRST on. */
template <typename T, int FIRST>
__device__ static void invert_column(const float (*lower)[BLOCK + 4], int32_t column, T *to)
{
    float x[BLOCK];
#pragma unroll
    for (int i = FIRST; i < BLOCK; i++) {
        float sum[4] = {i == column ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int m = FIRST; m < i; m++) {
            sum[m & 3] = fmaf(-lower[i][m], x[m], sum[m & 3]);
        }
        x[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        to[i * BLOCK + column] = from_float<T>(x[i]);
    }
#pragma unroll
    for (int i = 0; i < FIRST; i++) {
        to[i * BLOCK + column] = from_float<T>(0.0f);
    }
}

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
    pdl_wait();
    pdl_trigger();
    if (!find_item(p, item, &b)) {
        return;
    }
    const int64_t keys = ((int64_t)item * g.n_key_heads + key_head) * BLOCK * KEY;
    for (int32_t i = threadIdx.x; i < BLOCK * KEY / 8; i += THREADS) {
        const int32_t t = i / (KEY / 8), d = i % (KEY / 8) * 8;
        cp_async_16(&m.q[t][d], (const T *)p.q + keys + t * KEY + d, true);
        cp_async_16(&m.k[t][d], (const T *)p.k + keys + t * KEY + d, true);
    }
    cp_async_commit();
    const int64_t of_head = (int64_t)item * g.n_heads + head;
    if (warp == 0) {
        sum_decays<T>(p, b, head, m.g, m.strength);
        __syncwarp();
        for (int32_t t = lane; t < BLOCK; t += 32) {
            p.g[of_head * BLOCK + t] = m.g[t];
            p.strength[of_head * BLOCK + t] = m.strength[t];
        }
    }
    cp_async_wait<0>();
    __syncthreads();

    float qk[BLOCK / 8][4] = {}, kk[BLOCK / 8][4] = {};
    const int32_t mine = warp * 16; // row; columns after it are masked
#pragma unroll
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
    T *scores = (T *)p.scores + of_head * BLOCK * BLOCK;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < BLOCK / 8; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t i = mine + (lane >> 2) + half * 8, j = n * 8 + (lane & 3) * 2;
            pack<T, 2> seen;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float decay = j + e <= i ? __expf(m.g[i] - m.g[j + e]) : 0.0f;
                seen.v[e] = from_float<T>(j + e <= i ? decay * qk[n][half * 2 + e] : 0.0f);
                if (DELTA) {
                    m.lower[i][j + e] =
                        j + e < i && i >= b.at ? m.strength[i] * decay * kk[n][half * 2 + e] : 0.0f;
                }
            }
            *(pack<T, 2> *)(scores + i * BLOCK + j) = seen;
        }
    }
    if (DELTA) {
        T *inverse = (T *)p.inverse + of_head * BLOCK * BLOCK;
        __syncthreads();
        if (warp == 0) {
            invert_column<T, 0>(m.lower, lane, inverse);
        } else if (warp == 1) {
            invert_column<T, 32>(m.lower, 32 + lane, inverse);
        }
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
    const int32_t units = 2 * g.n_key_heads + g.n_heads, n_bytes = (int)sizeof(scores_room<T, KEY>);
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
