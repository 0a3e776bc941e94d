// SPDX-License-Identifier: Apache-2.0
/* The recurrence of gated delta nets for a few rows of a few sequences, as in decoding and in
 * verifying drafts: heads of 128 x 128 in 16 bits, from the convolution to the output gate.
 *
 * A block is one head of one sequence. There is little to compute, so it is bound by latency: of
 * the launch, of the loads, and of fetching the code. S and the rows of its block are therefore
 * loaded into registers before the wait. Blocks start as those of the preceding product leave, and
 * beside them where these have up to 80 registers per thread and leave 7 KiB of a multiprocessor's
 * shared memory.
 *
 * Up to GROUP rows that are in the same block of S are computed together, with three barriers. Each
 * of their keys and queries is convolved and normalised by a warp. A product's operand has 16 rows:
 * the keys and queries, and what rounding them left, so that products are nearly as exact as in
 * fp32. It is multiplied by the block's keys, of which a warp has eight, and by S; then the decayed
 * products with keys are multiplied by the values. A warp has 16 columns of S and of the values.
 * Only what a row's value owes to the group's earlier rows is computed row by row. The order of the
 * sums differs from that of rows.cu. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/state/few.cuh"
#include "cuda/kernels/state/few_end.cuh"

// The limit on registers per thread, so that blocks fit beside 160 threads with 80 registers each.
enum { MOST_REGISTERS = 176 };

/* D += A B with tf32 operands, of which the lowest 13 bits are ignored. */
__device__ __forceinline__ void mma_16x8x8(float (&d)[4], const float (&a)[4], float b0, float b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),
                   "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)),
                   "r"(__float_as_uint(b1)));
}

/* ---- the rows' keys and queries ---------------------------------------------------------------
 */

/* Runs of 32 elements are exchanged in every other row, against bank conflicts. */
template <typename T>
__device__ __forceinline__ T *row_run(struct few_room<T> &room, int32_t row, int32_t run)
{
    return &room.rows[row][32 * (run ^ (row & 1))];
}

__device__ __forceinline__ float element(const float4 &v, int e)
{
    return (&v.x)[e];
}

__device__ __forceinline__ float sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

__device__ __forceinline__ float silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

/* The key or query of the warp's row, convolved and normalised. Queries are scaled later. */
template <typename T>
__device__ __forceinline__ void make_row(const struct inputs<T> &in, const struct key_weights &of,
                                         struct few_room<T> &room)
{
    const int32_t lane = threadIdx.x & 31, kind = my_warp();
    float x[EACH], square = 0.0f;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        float sum = element(of.bias, e);
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            sum = fmaf(to_float(in.x[j].v[e]), element(of.taps[j], e), sum);
        }
        x[e] = silu(sum);
        square = fmaf(x[e], x[e], square);
    }
    const float scale = rsqrtf(warp_sum(square) + 1e-6f);
    uint2 most, rest;
    split_pair<T>(x[0] * scale, x[1] * scale, most.x, rest.x);
    split_pair<T>(x[2] * scale, x[3] * scale, most.y, rest.y);
    const int32_t run = lane / 8, at = lane % 8 * EACH;
    *(uint2 *)(row_run(room, kind, run) + at) = most;
    if (kind >= GROUP) {
        *(uint2 *)(row_run(room, kind + GROUP, run) + at) = rest;
    }
}

/* The values of the lane's rows, convolved, as [row][column]. */
template <typename T>
__device__ __forceinline__ void convolve_values(const struct inputs<T> &in,
                                                const struct value_weights &of,
                                                float (&out)[PAIR][PAIR])
{
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
        float2 sum = of.bias;
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            const float2 x = numbers_of<T>(in.value[r + j]);
            sum.x = fmaf(x.x, of.taps[j].x, sum.x);
            sum.y = fmaf(x.y, of.taps[j].y, sum.y);
        }
        out[r][0] = silu(sum.x);
        out[r][1] = silu(sum.y);
    }
}

/* The group's inputs and keys become part of the past. */
template <typename T>
__device__ __forceinline__ void keep_rows(const struct rows_params &p, const struct few_work &w,
                                          const struct inputs<T> &in, const struct group &b,
                                          struct few_room<T> &room)
{
    const int32_t kind = my_warp(), row = kind % GROUP, lane = threadIdx.x & 31;
    if (w.owner && row < b.n) {
        T *to = input_slot<T>(p, w, b.first + row) + key_channel(p, w);
        *(uint2 *)to = *(const uint2 *)in.x[TAPS - 1].v;
        if (kind < GROUP) {
            *(uint2 *)(key_slot<T>(p, w, b.at + row) + lane * EACH) =
                *(const uint2 *)(row_run(room, kind, lane / 8) + lane % 8 * EACH);
        }
    }
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
        if (lane_j() < 2 && my_rows() + r < b.n) {
            T *to = input_slot<T>(p, w, b.first + my_rows() + r) + value_channel(p, w);
            *(uint32_t *)to = in.value[r + TAPS - 1];
        }
    }
}

/* dt_of of state.cuh in few instructions */
__device__ __forceinline__ float softplus(const struct decay_law &law, float x)
{
    const float dt = fmaxf(x > 20.0f ? x : __logf(1.0f + __expf(x)), law.dt_min);
    return law.dt_max > 0.0f ? fminf(dt, law.dt_max) : dt;
}

/* The warp that computes decays stores those of earlier passes. */
template <typename T> __device__ __forceinline__ void put_decays(const struct past<T> &m, float *g)
{
    if (my_warp() == WARPS - 1) {
#pragma unroll
        for (int h = 0; h < BLOCK / 32; h++) {
            g[32 * h + (int32_t)(threadIdx.x & 31)] = m.g[h];
        }
        __syncwarp();
    }
}

/* The sums of log decays at the group's rows, of which lane r < GROUP has row r. */
template <typename T>
__device__ __forceinline__ void
make_decays(const struct rows_params &p, const struct few_work &w, const struct inputs<T> &in,
            const struct key_weights &of, const struct group &b, float *g)
{
    const int32_t lane = threadIdx.x & 31;
    const float log = -__expf(of.a_log) * softplus(p.law, decay_input(p.law, in.decay, of.dt_bias));
    float sum = b.at > 0 ? g[b.at - 1] : 0.0f, mine = 0.0f;
#pragma unroll
    for (int r = 0; r < GROUP; r++) {
        sum += __shfl_sync(0xffffffffu, log, r);
        mine = lane == r ? sum : mine;
    }
    if (lane < b.n) {
        g[b.at + lane] = *decay_slot(p, w, b.at + lane) = mine;
    }
}

/* The warp's keys of the group take their places among those of the block. */
template <typename T>
__device__ __forceinline__ void put_keys(struct past<T> &m, struct few_room<T> &room,
                                         const struct group &b)
{
    const int32_t row = my_warp() * 8 + lane_i() - b.at;
    if (row >= 0 && row < b.n) {
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            m.key[r] = *(const uint4 *)(row_run(room, row, r) + 8 * lane_j());
        }
    }
}

/* ---- products ---------------------------------------------------------------------------------
 */

/* The sums of the lane's two columns and two kinds, [column][kind]. S is added in three parts: the
 * highest bits of both factors, the rest of S, and the rest of the other factor. */
struct sums {
    float x[3][4];
};

/* S times eight elements of kind i's row: `most` and `rest`. */
template <typename T>
__device__ __forceinline__ void multiply_state(const float (&s)[4][4], const uint4 &most,
                                               const uint4 &rest, struct sums &sum)
{
#pragma unroll
    for (int y = 0; y < 4; y++) {
        const float2 x = numbers_of<T>(word(most, y)), small = numbers_of<T>(word(rest, y));
        float low[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            low[e] = s[y][e] - __uint_as_float(__float_as_uint(s[y][e]) & 0xffffe000u);
        }
        mma_16x8x8(sum.x[0], s[y], x.x, x.y);
        mma_16x8x8(sum.x[1], low, x.x, x.y);
        mma_16x8x8(sum.x[2], s[y], small.x, small.y);
    }
}

/* The lane's products of row i with the warp's keys, decayed: those with earlier keys of the block
 * as an operand, those with the group's keys for what follows. */
template <typename T>
__device__ __forceinline__ void put_scores(struct few_room<T> &room, const struct group &b,
                                           const float (&sum)[PAIR])
{
    const int32_t i = lane_i(), slot = my_warp() * 8 + lane_j() * 2, piece = my_warp() ^ (i & 1);
    const float g = room.g[b.at + min(i % GROUP, b.n - 1)];
    const float scale = i < GROUP ? 1.0f : rsqrtf((float)KEY);
    float score[PAIR];
#pragma unroll
    for (int c = 0; c < PAIR; c++) {
        const int32_t t = slot + c, row = t - b.at;
        const bool is_seen = row <= i % GROUP;
        const float x = sum[c] * scale * __expf(is_seen ? g - room.g[t] : 0.0f);
        if (row >= 0 && row < GROUP) {
            room.own[i][row] = is_seen ? x : 0.0f;
        }
        score[c] = row < 0 ? x : 0.0f;
    }
    uint32_t most, rest;
    split_pair<T>(score[0], score[1], most, rest);
    *(uint32_t *)&room.scores[i][8 * piece + 2 * lane_j()] = most;
    *(uint32_t *)&room.scores[KINDS + i][8 * piece + 2 * lane_j()] = rest;
}

/* The products of row i with the warp's keys, and those of the lane's kinds with its columns of
 * S. */
template <typename T>
__device__ __forceinline__ void multiply_rows(const struct past<T> &m, struct few_room<T> &room,
                                              float (&scores)[PAIR], struct sums &sum)
{
    const int32_t i = lane_i(), j = lane_j();
    float part[2][4] = {};
    sum = {};
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint4 most = *(const uint4 *)(row_run(room, i, r) + 8 * j);
        uint4 rest = {0, 0, 0, 0};
        if (i >= GROUP) {
            rest = *(const uint4 *)(row_run(room, i + GROUP, r) + 8 * j);
        }
        const uint32_t first[4] = {most.x, rest.x, most.y, rest.y};
        const uint32_t second[4] = {most.z, rest.z, most.w, rest.w};
        mma_16x8x16(part[0], first, m.key[r].x, m.key[r].y, T());
        mma_16x8x16(part[1], second, m.key[r].z, m.key[r].w, T());
        multiply_state<T>(m.s[r], most, rest, sum);
    }
#pragma unroll
    for (int c = 0; c < PAIR; c++) {
        scores[c] = (part[0][c] + part[1][c]) + (part[0][2 + c] + part[1][2 + c]);
    }
}

/* The products with S, decayed, as [row][column]. */
template <typename T>
__device__ __forceinline__ void decay_sums(const struct few_room<T> &room, const struct group &b,
                                           const struct sums &sum, float (&x)[PAIR][PAIR])
{
    const float scale = lane_j() < 2 ? 1.0f : rsqrtf((float)KEY);
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
        const float decay = __expf(room.g[b.at + min(my_rows() + r, b.n - 1)]) * scale;
#pragma unroll
        for (int c = 0; c < PAIR; c++) {
            const int at = 2 * c + r;
            x[r][c] = (sum.x[0][at] + (sum.x[1][at] + sum.x[2][at])) * decay;
        }
    }
}

/* Adds the products of the scores with the values of the block's earlier rows. */
template <typename T>
__device__ __forceinline__ void add_values(const struct past<T> &m, const struct few_room<T> &room,
                                           float (&x)[PAIR][PAIR])
{
    const int32_t i = lane_i(), j = lane_j();
    float most[4] = {}, rest[4] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int32_t at = 8 * ((2 * j + half) ^ (i & 1));
        const uint4 a = *(const uint4 *)&room.scores[i][at];
        const uint4 b = *(const uint4 *)&room.scores[KINDS + i][at];
        uint32_t value[4], next[4];
        operand_of(m.value[2 * half], value);
        operand_of(m.value[2 * half + 1], next);
        mma_16x8x16(most, value, a.x, a.y, T());
        mma_16x8x16(rest, value, b.x, b.y, T());
        mma_16x8x16(most, next, a.z, a.w, T());
        mma_16x8x16(rest, next, b.z, b.w, T());
    }
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
#pragma unroll
        for (int c = 0; c < PAIR; c++) {
            x[r][c] += most[2 * c + r] + rest[2 * c + r];
        }
    }
}

/* ---- values and results -----------------------------------------------------------------------
 */

/* From what the block's earlier rows contribute, `x`, and the convolved values: in lanes of keys
 * the rows' own values, which are returned in pairs, and in lanes of queries the results, in x. */
template <typename T>
__device__ __forceinline__ void
make_values(const struct few_room<T> &room, const struct group &b, const float (&value)[PAIR][PAIR],
            const float (&strength)[PAIR], float (&x)[PAIR][PAIR], uint32_t (&kept)[PAIR])
{
    const int32_t row = my_rows();
    const bool is_key = lane_j() < 2;
    float own[PAIR][GROUP];
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
        *(float4 *)own[r] = *(const float4 *)room.own[2 * lane_j() + r];
#pragma unroll
        for (int c = 0; c < PAIR; c++) {
            x[r][c] = is_key ? value[r][c] - x[r][c] : x[r][c];
        }
        kept[r] = pack_pair<T>(x[r][0] * strength[r], x[r][1] * strength[r]);
    }
#pragma unroll
    for (int t = 0; t < GROUP; t++) {
        if (t == b.n) {
            break;
        }
        const uint32_t pair = __shfl_sync(0xffffffffu, kept[t % 2], t / 2, 4);
        const float2 u = numbers_of<T>(pair);
#pragma unroll
        for (int r = 0; r < PAIR; r++) {
            const bool sees = is_key ? t < row + r : t <= row + r;
            const float factor = is_key ? -own[r][t] : own[r][t];
            x[r][0] = sees ? fmaf(factor, u.x, x[r][0]) : x[r][0];
            x[r][1] = sees ? fmaf(factor, u.y, x[r][1]) : x[r][1];
            kept[r] = pack_pair<T>(x[r][0] * strength[r], x[r][1] * strength[r]);
        }
    }
}

/* opened_by of rows.cuh in few instructions */
__device__ __forceinline__ float opened(const struct rows_params &p, float gate)
{
    const float x = p.gate_scale * gate;
    return gate_factor(p.gate_act, x, sigmoid(x));
}

/* The sums of the squares of the warp's results. */
template <typename T>
__device__ __forceinline__ void put_squares(struct few_room<T> &room, const float (&x)[PAIR][PAIR])
{
    const bool second = lane_i() & 1;
    float square[PAIR];
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
        square[r] = fmaf(x[r][0], x[r][0], x[r][1] * x[r][1]);
    }
    float sum = second ? square[1] : square[0];
    sum += __shfl_xor_sync(0xffffffffu, second ? square[0] : square[1], 4);
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    if (lane_j() >= 2 && lane_i() < 2) {
        room.squares[my_rows() + lane_i()][my_warp()] = sum;
    }
}

/* Normalises the results and applies the gate. */
template <typename T>
__device__ __forceinline__ void finish(const struct rows_params &p, const struct few_work &w,
                                       const struct inputs<T> &in, const struct group &b,
                                       const struct few_room<T> &room, const float2 &norm,
                                       const float (&x)[PAIR][PAIR])
{
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
        const int32_t row = my_rows() + r;
        if (lane_j() >= 2 && row < b.n) {
            float squares = 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS; i++) {
                squares += room.squares[row][i];
            }
            const float scale = rsqrtf(squares / (float)VALUE + p.eps);
            const float2 gate = numbers_of<T>(in.gate[r]);
            const uint32_t pair = pack_pair<T>(x[r][0] * norm.x * scale * opened(p, gate.x),
                                               x[r][1] * norm.y * scale * opened(p, gate.y));
            T *to = (T *)p.out + (w.seq.first_row + b.first + row) * p.out_stride;
            *(uint32_t *)(to + w.head * VALUE + my_column()) = pair;
        }
    }
}

template <typename T>
__device__ __forceinline__ void
run_group(const struct rows_params &p, const struct few_work &w, struct past<T> &m,
          struct few_room<T> &room, const struct inputs<T> &in, const struct key_weights &of,
          const struct value_weights &of_values, const struct group &b)
{
    if (my_warp() % GROUP < b.n) {
        make_row(in, of, room);
    }
    if (my_warp() == WARPS - 1) {
        make_decays(p, w, in, of, b, room.g);
    }
    __syncthreads();
    float scores[PAIR], value[PAIR][PAIR], x[PAIR][PAIR];
    struct sums sum;
    put_keys(m, room, b);
    multiply_rows(m, room, scores, sum);
    convolve_values(in, of_values, value);
    keep_rows(p, w, in, b, room);
    put_scores(room, b, scores);
    decay_sums(room, b, sum, x);
    __syncthreads();
    add_values(m, room, x);
    const float scale = p.law.beta_scale;
    const float strength[PAIR] = {scale * sigmoid(to_float(in.beta[0])),
                                  scale * sigmoid(to_float(in.beta[1]))};
    uint32_t kept[PAIR];
    make_values(room, b, value, strength, x, kept);
    put_squares(room, x);
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
        if (lane_j() < 2 && my_rows() + r < b.n) {
            *(uint32_t *)(value_slot<T>(p, w, b.at + my_rows() + r) + my_column()) = kept[r];
        }
    }
    __syncthreads();
    finish(p, w, in, b, room, of_values.norm, x);
}

/* ---- all rows ---------------------------------------------------------------------------------
 */

/* The group that begins at row `first`. */
__device__ __forceinline__ struct group group_at(const struct few_work &w, int32_t first)
{
    const int32_t at = (w.seq.n_past + first) % BLOCK, left = min(w.seq.n_rows - first, GROUP);
    return {first, min(left, BLOCK - at), at};
}

template <typename T>
__device__ __forceinline__ void run_rows(const struct rows_params &p, struct few_work &w,
                                         struct past<T> &m, struct few_room<T> &room)
{
    struct group b = group_at(w, 0);
#pragma unroll 1
    while (b.n > 0) {
        struct inputs<T> in;
        struct key_weights of;
        struct value_weights of_values;
        load_weights(p, w, of);
        load_weights(p, w, of_values);
        load_before(p, w, b, in);
        if (b.first == 0) {
            pdl_wait();
            pdl_trigger();
        }
        load_after(p, w, b, in);
        if (b.first == 0) {
            put_decays(m, room.g);
        }
        run_group(p, w, m, room, in, of, of_values, b);
        const int32_t end = b.at + b.n, next = b.first + b.n;
        if (end == BLOCK || next < w.seq.n_rows) {
            __syncwarp(); // the group's values, which the warp has stored, join the block's
            load_values(p, w, m, end);
        }
        if (end == BLOCK) {
            move_on(p, w, m, room, b);
        }
        b = group_at(w, next);
    }
}

template <typename T>
__global__ void __maxnreg__(MOST_REGISTERS) state_few_kernel(struct rows_params p)
{
    __shared__ struct few_room<T> room;
    const int32_t per_key = p.state.geometry.n_heads / p.state.geometry.n_key_heads;
    const int32_t head = blockIdx.x;
    struct pass_seq seq = p.pass.seqs[blockIdx.y]; // loaded together with their number
    const int32_t n_seqs = p.pass.counts->n_seqs;
    struct past<T> m;
    for (int32_t i = blockIdx.y; i < n_seqs; i += gridDim.y) {
        seq = i == (int32_t)blockIdx.y ? seq : p.pass.seqs[i];
        if (seq.n_rows > 0) {
            struct few_work w = {seq, head, head / per_key, head % per_key == 0, 0, 0};
            w.slot = seq.n_past / BLOCK * BLOCK % p.state.slots;
            w.ring = seq.n_past % p.state.conv_ring;
            load_past(p, w, m);
            run_rows(p, w, m, room);
            __syncthreads();
        }
    }
    pdl_wait();
    pdl_trigger();
}

template <typename T>
static cudaError_t launch_few(cudaStream_t stream, const struct state_rows_launch *l)
{
    return launch(state_few_kernel<T>, dim3(l->state.geometry.n_heads, l->n_seqs), dim3(THREADS), 0,
                  stream, rows_params_of(l));
}

/* True if all rows and vectors can be read four elements at a time. */
static bool is_aligned(const struct rows_params &p)
{
    const int64_t at = p.q_at | p.k_at | p.v_at | p.x_stride | p.gate_stride | p.out_stride;
    const uintptr_t rows = (uintptr_t)p.x | (uintptr_t)p.gate | (uintptr_t)p.out;
    const uintptr_t vectors =
        (uintptr_t)p.vectors.kernel | (uintptr_t)p.vectors.bias | (uintptr_t)p.vectors.norm;
    return at % EACH == 0 && rows % 8 == 0 && vectors % 16 == 0;
}

extern "C" bool k_state_few_takes(const struct state_rows_launch *l)
{
    enum { MOST_BLOCKS = 264 }; // with more, rows.cu runs two on a multiprocessor
    const struct state_layer *g = &l->state.geometry;
    const struct gate_args *gate = l->gate;
    const bool shape = g->kind == STATE_DELTA && !g->per_channel && g->key_dim == KEY &&
                       g->value_dim == VALUE && g->conv_kernel == TAPS && l->state.block == BLOCK;
    const bool ops = l->conv && l->conv->silu && gate && l->vectors.norm && !gate->gate_first &&
                     !gate->per_group && !l->vectors.skip && l->a->decay_bound == 0.0f;
    return shape && ops && l->state.dtype != DT_F32 && launch_sm() >= 90 &&
           l->n_seqs * g->n_heads <= MOST_BLOCKS && is_aligned(rows_params_of(l));
}

extern "C" cudaError_t k_state_few(cudaStream_t stream, const struct state_rows_launch *l)
{
    return l->state.dtype == DT_BF16 ? launch_few<bf16_t>(stream, l) : launch_few<f16_t>(stream, l);
}
