// SPDX-License-Identifier: Apache-2.0
/* The products of moe/few.cu for one row, with experts that stay in MXFP4 (cuda/coded.h):
 *
 *   up      a block has a range of units: 8 gates and the 8 ups that belong to them, of one pick
 *   down    a block has a range of groups of 8 outputs, each the sum over all picks, two of which
 *           are multiplied at once
 *
 * As in few_coded.cu the block's items are divided evenly among its warps, each of which copies its
 * own into a ring and leaves its sums, and `down` fills its rings before its wait, beside the
 * blocks of `up`. But every warp makes the picks itself, so that its first loads wait for no
 * barrier, and `up` fills its rings before it copies the row. Bound by reading the weights; then by
 * what a launch executes once, with code that comes from memory; then by converting codes. */
#include "cuda/kernels/moe/few_single.cuh"

/* Slots of a ring; the last two: of `down`. Floats that a warp of `up` leaves. */
enum { UP_STAGES = 6, LEAST_STAGES = 3, MOST_STAGES = 6, UP_SUMS = 2 * HALF };
/* Limits on dynamic shared memory. No two blocks of `up` may share a multiprocessor: with 113 KiB
 * they do, because its 228 KiB have room for both, with the 1 KiB that each block needs besides.
 * One of `up` and one of `down` do share it, if possible. */
enum { LEAST_UP_BYTES = 114 << 10, PAIR_BYTES = 226 << 10, MOST_BYTES = 220 << 10 };

/* ---- up -------------------------------------------------------------------------------------- */

/* The units of a block, which are its segments: a range among those of all picks. */
struct unit_range {
    int32_t each, first, n; // each: units of a pick

    __device__ __forceinline__ explicit unit_range(const struct few_params &p)
    {
        each = p.ffn / HALF;
        const int32_t all = p.route.k * each;
        first = (int32_t)((int64_t)all * blockIdx.x / gridDim.x);
        n = (int32_t)((int64_t)all * (blockIdx.x + 1) / gridDim.x) - first;
    }
};

/* A block's shared memory: the row of x, biases, sums, rings. units: at most. */
struct single_up_room {
    int32_t bias, sums, rings, bytes;

    __host__ __device__ __forceinline__ single_up_room(const struct coded_few &c, int32_t units)
    {
        bias = coded_items(c.up) * ITEM_BYTES;
        sums = bias + units * HALF * (int32_t)sizeof(float2);
        rings = sums + (units + WARPS) * UP_SUMS * (int32_t)sizeof(float);
        bytes = rings + WARPS * UP_STAGES * SLOT;
    }
};

/* Copies the biases of one of the block's features. Called by all threads. id: a lane's pick. */
__device__ __forceinline__ void copy_up_bias(const struct few_params &p,
                                             const struct unit_range &all, int32_t pick, int32_t id,
                                             float *to)
{
    const int32_t expert = __shfl_sync(0xffffffffu, id, pick), i = (int32_t)threadIdx.x;
    if (p.up_bias != NULL && i < all.n * HALF) {
        const float *from =
            p.up_bias + (int64_t)expert * 2 * p.ffn + all.first * HALF + i - pick * p.ffn;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                             (uint32_t)__cvta_generic_to_shared(to + 2 * i + part)),
                         "l"(from + part * p.ffn)
                         : "memory");
        }
    }
}

/* Copies x, of which `run` is this thread's first run. */
template <typename T>
__device__ __forceinline__ void stage_row(const struct coded_few &c, uint4 run, char *to)
{
    const int32_t n = coded_items(c.up) * (ITEM / RUN);
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS) {
        store_run<T>(run, i, to);
        run = load_run((const T *)c.p.x, i + THREADS, c.up.n_in);
    }
}

/* Stores the picks, and the row that the norm was applied to. */
template <typename T>
__device__ __forceinline__ void store_picks(const struct few_params &p, const struct pick &mine)
{
    store_added<T>(p, 0);
    if (threadIdx.x < 32) {
        const float weight = weight_of_pick(mine, p.expert_scale, p.route);
        if ((int32_t)threadIdx.x < p.route.k) {
            p.ids[threadIdx.x] = mine.id;
            p.weights[threadIdx.x] = weight;
        }
    }
}

template <typename T, int EACH>
__global__ void __launch_bounds__(THREADS, 2)
    single_up_kernel(const __grid_constant__ struct coded_few c, int32_t most_units)
{
    using L = few_codes<T, CODED_E2M1>;
    extern __shared__ __align__(16) char memory[];
    const struct few_params &p = c.p;
    const struct single_up_room room(c, most_units);
    const struct unit_range all(p);
    const int32_t thread = (int32_t)threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int32_t n_items = coded_items(c.up);
    const struct item_share share(all.n * n_items);
    const struct sums_of_segments mine_of(share, thread / HALF, 1, n_items);
    const struct segment_place place(share.first / n_items, all.first, all.each);
    const int32_t item = share.first - place.at * n_items;
    const int32_t bias_pick = (all.first * HALF + thread) / p.ffn;
    compute_now(bias_pick | item);
    float *bias = (float *)(memory + room.bias), *sums = (float *)(memory + room.sums);
    char *own = memory + room.rings + warp * UP_STAGES * SLOT;
    const struct pair_ring<UP_STAGES> ring(own);
    const uint32_t x = (uint32_t)__cvta_generic_to_shared(memory) + lane / 8 * 64 + lane % 4 * 16;
    if (p.up_bias == NULL && thread < all.n * HALF) {
        *(float2 *)(bias + 2 * thread) = make_float2(0.0f, 0.0f);
    }
    pdl_wait();
    pdl_trigger();
    if (n_real(p) == 0) {
        return;
    }
    const uint4 run = load_run((const T *)p.x, thread, c.up.n_in);
    const struct pick mine = pick_scores<EACH>(p.logits, p.correction, p.route, (float *)own);
    __syncwarp();                                               // the ring's memory is free
    const auto halves_of = [&](const struct segment_place &s) { // a gate's and an up's
        const int32_t tile =
            __shfl_sync(0xffffffffu, mine.id, s.outer) * c.up.n_tiles + s.inner / 2;
        return halves{tile, tile + c.up.n_tiles / 2, s.inner % 2};
    };
    struct pair_stream load = {0, 0, 0, 0, share.n, place};
    load.begin(c.up, ring, item, halves_of);
    copy_up_bias(p, all, bias_pick, mine.id, bias);
    stage_row<T>(c, run, memory);
    if (blockIdx.x == 0) {
        store_picks<T>(p, mine);
    }
    __syncthreads();
    const auto inputs_of = [&](const struct segment_place &) { return x; };
    const auto done = [&](const struct segment_place &s, const float (&sum)[2]) {
        const float gate = quad_sum(sum[0]), up = quad_sum(sum[1]);
        if (lane % 4 < 2) {
            sums[(s.at + warp) * UP_SUMS + lane % 4 * HALF + lane / 4] = lane % 4 == 0 ? gate : up;
        }
    };
    multiply_items<T>(c.up, place, item, share.n, load, ring, halves_of, inputs_of, done);
    wait_copies<0>(); // of the biases
    __syncthreads();
    if (thread < all.n * HALF) {
        const float gate = mine_of.add(sums + thread % HALF, UP_SUMS);
        const float up = mine_of.add(sums + HALF + thread % HALF, UP_SUMS);
        const float2 more = *(const float2 *)(bias + 2 * thread);
        ((T *)p.act)[all.first * HALF + thread] = from_float<T>(act_gated_of(
            c.kind, fmaf(gate, L::unit(), more.x), fmaf(up, L::unit(), more.y), p.shape));
    }
}

/* ---- down ------------------------------------------------------------------------------------ */

/* The block's groups of outputs. A group has a segment for each two picks, numbers i and i + pairs.
 * If k is odd, the last second pick is the first one again, with zeros as its inputs. */
struct group_range {
    int32_t first, n, pairs;

    __device__ __forceinline__ explicit group_range(const struct few_params &p)
    {
        const int32_t all = p.hidden / HALF;
        first = (int32_t)((int64_t)all * blockIdx.x / gridDim.x);
        n = (int32_t)((int64_t)all * (blockIdx.x + 1) / gridDim.x) - first;
        pairs = (p.route.k + 1) / 2;
    }
};

/* A block's shared memory: the inputs of all picks, sums, rings. groups: at most. */
struct single_down_room {
    int32_t sums, rings, bytes;

    __host__ __device__ __forceinline__ single_down_room(const struct coded_few &c, int32_t groups,
                                                         int32_t stages)
    {
        const int32_t pairs = (c.p.route.k + 1) / 2;
        sums = 2 * pairs * coded_items(c.down) * ITEM_BYTES;
        rings = sums + (groups * pairs + WARPS) * HALF * (int32_t)sizeof(float);
        bytes = rings + WARPS * stages * SLOT;
    }
};

/* The weighted biases of one of the block's outputs. Called by all threads. */
__device__ __forceinline__ float
load_down_bias(const struct few_params &p, const struct group_range &all, const struct pick &mine)
{
    const int32_t output = all.first * HALF + (int32_t)threadIdx.x;
    const bool is = p.down_bias && (int32_t)threadIdx.x < all.n * HALF;
    float sum = 0.0f;
#pragma unroll 4
    for (int32_t j = 0; j < p.route.k; j++) {
        const int32_t id = __shfl_sync(0xffffffffu, mine.id, j);
        const float weight = __shfl_sync(0xffffffffu, mine.weight, j);
        if (is) {
            sum = fmaf(weight, p.down_bias[(int64_t)id * p.hidden + output], sum);
        }
    }
    return sum;
}

/* A thread's runs of the inputs of all picks: this one, and the distance to the next. */
struct act_runs {
    int32_t each, pick, at, picks_on, on; // each: runs of a pick

    __device__ __forceinline__ explicit act_runs(int32_t n_items)
        : each(n_items * (ITEM / RUN)), pick((int32_t)threadIdx.x / each),
          at((int32_t)threadIdx.x - pick * each), picks_on(THREADS / each),
          on(THREADS - picks_on * each)
    {
        compute_now(pick | at | on);
    }

    __device__ __forceinline__ void next()
    {
        pick += picks_on;
        at += on;
        if (at >= each) {
            at -= each;
            pick++;
        }
    }
};

template <typename T>
__device__ __forceinline__ void stage_acts(const struct coded_few &c, const struct group_range &all,
                                           struct act_runs from, char *to)
{
    const int32_t n = 2 * all.pairs * from.each;
#pragma unroll 4
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS) {
        store_run<T>(load_run((const T *)c.p.act + (int64_t)from.pick * c.p.ffn, from.at,
                              from.pick < c.p.route.k ? c.down.n_in : 0),
                     i, to);
        from.next();
    }
}

template <typename T, int EACH, int STAGES>
__global__ void __launch_bounds__(THREADS, 2)
    single_down_kernel(const __grid_constant__ struct coded_few c, int32_t most_groups)
{
    using L = few_codes<T, CODED_E2M1>;
    extern __shared__ __align__(16) char memory[];
    const struct few_params &p = c.p;
    const struct single_down_room room(c, most_groups, STAGES);
    const struct group_range all(p);
    const int32_t thread = (int32_t)threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int32_t n_items = coded_items(c.down), k = p.route.k;
    const struct item_share share(all.n * all.pairs * n_items);
    float *sums = (float *)(memory + room.sums);
    char *own = memory + room.rings + warp * STAGES * SLOT;
    struct pair_ring<STAGES> ring(own);
    const struct segment_place place(share.first / n_items, 0, all.pairs);
    const int32_t item = share.first - place.at * n_items;
    if (n_real(p) == 0) {
        pdl_wait();
        return;
    }
    struct pick mine = pick_scores<EACH>(p.logits, p.correction, p.route, (float *)own);
    __syncwarp();                                               // the ring's memory is free
    const auto halves_of = [&](const struct segment_place &s) { // two picks'
        const int32_t half = all.first + s.outer, m = s.inner + all.pairs;
        const int32_t first = __shfl_sync(0xffffffffu, mine.id, s.inner);
        const int32_t second = __shfl_sync(0xffffffffu, mine.id, m < k ? m : s.inner);
        return halves{first * c.down.n_tiles + half / 2, second * c.down.n_tiles + half / 2,
                      half % 2};
    };
    struct pair_stream load = {0, 0, 0, 0, share.n, place};
    load.begin(c.down, ring, item, halves_of);
    mine.weight = weight_of_pick(mine, p.expert_scale, p.route);
    mine.weight = lane < k ? mine.weight : 0.0f;
    const float bias = load_down_bias(p, all, mine);
    const struct act_runs runs(n_items);
    const struct sums_of_segments mine_of(share, thread / HALF * all.pairs, all.pairs, n_items);
    /* Odd columns belong to the second pick. */
    const uint32_t x = (uint32_t)__cvta_generic_to_shared(memory) + lane / 8 * 64 + lane % 4 * 16 +
                       lane / 4 % 2 * all.pairs * n_items * ITEM_BYTES;
    for (int32_t i = thread; i < (all.n * all.pairs + WARPS) * HALF; i += THREADS) {
        sums[i] = 0.0f; // a place is left out where a segment ends with a warp's part
    }
    pdl_wait();
    pdl_trigger();
    stage_acts<T>(c, all, runs, memory);
    __syncthreads();
    const auto inputs_of = [&](const struct segment_place &s) {
        return x + s.inner * n_items * ITEM_BYTES;
    };
    const auto done = [&](const struct segment_place &s, const float (&sum)[2]) {
        const float first = __shfl_sync(0xffffffffu, mine.weight, s.inner);
        const float second = __shfl_sync(0xffffffffu, mine.weight, s.inner + all.pairs);
        const float v = quad_sum(first * sum[0] + second * sum[1]);
        if (lane % 4 == 0) {
            sums[(s.at + warp) * HALF + lane / 4] = v;
        }
    };
    multiply_items<T>(c.down, place, item, share.n, load, ring, halves_of, inputs_of, done);
    __syncthreads();
    if (thread < all.n * HALF) {
        const float v = fmaf(mine_of.add(sums + thread % HALF, HALF), L::unit(), bias);
        T *to = (T *)p.y + all.first * HALF + thread;
        *to = from_float<T>(c.accumulate ? to_float(*to) + v : v);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static int32_t most_units(const struct coded_few &c) // of a block
{
    return (c.p.route.k * (c.p.ffn / HALF) + c.n_sms - 1) / c.n_sms;
}

static int32_t most_groups(const struct coded_few &c)
{
    return (c.p.hidden / HALF + c.n_sms - 1) / c.n_sms;
}

static int32_t up_bytes(const struct coded_few &c)
{
    const int32_t bytes = single_up_room(c, most_units(c)).bytes;
    return bytes > LEAST_UP_BYTES ? bytes : (int32_t)LEAST_UP_BYTES;
}

static int32_t down_bytes(const struct coded_few &c, int32_t stages)
{
    return single_down_room(c, most_groups(c), stages).bytes;
}

/* The longest rings of `down` that fit beside a block of `up` or, if none do, alone. 0: none fit.
 */
static int32_t down_stages(const struct coded_few &c)
{
    for (int32_t limit = PAIR_BYTES - up_bytes(c); limit <= MOST_BYTES; limit = MOST_BYTES) {
        for (int32_t stages = MOST_STAGES; stages >= LEAST_STAGES; stages--) {
            if (down_bytes(c, stages) <= limit) {
                return stages;
            }
        }
        if (limit == MOST_BYTES) {
            break;
        }
    }
    return 0;
}

/* True if the stream's numbers do not overflow. */
static bool is_small(const struct coded_matrix &m)
{
    return m.n_records == m.n_chunks &&
           (int64_t)m.n_experts * m.n_tiles * m.n_chunks < INT32_MAX / 64;
}

bool k_moe_few_single_takes(const struct coded_few &c)
{
    return c.p.route.n_rows == 1 && c.up.code == CODED_E2M1 && is_small(c.up) && is_small(c.down) &&
           most_units(c) * HALF <= THREADS && most_groups(c) * HALF <= THREADS &&
           up_bytes(c) <= MOST_BYTES && down_stages(c) > 0;
}

template <typename T, int EACH>
static cudaError_t launch_up(cudaStream_t stream, const struct coded_few &c)
{
    const auto kernel = single_up_kernel<T, EACH>;
    const cudaError_t e = allow_shared(kernel, MOST_BYTES);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((unsigned)c.n_sms), dim3(THREADS),
                                     (size_t)up_bytes(c), stream, c, most_units(c));
}

template <typename T, int EACH, int STAGES>
static cudaError_t launch_down(cudaStream_t stream, const struct coded_few &c)
{
    const auto kernel = single_down_kernel<T, EACH, STAGES>;
    const cudaError_t e = allow_shared(kernel, MOST_BYTES);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((unsigned)c.n_sms), dim3(THREADS),
                                     (size_t)down_bytes(c, STAGES), stream, c, most_groups(c));
}

template <typename T, int EACH>
static cudaError_t both(cudaStream_t stream, const struct coded_few &c)
{
    const cudaError_t e = launch_up<T, EACH>(stream, c);
    if (e != cudaSuccess) {
        return e;
    }
    switch (down_stages(c)) {
    case 6: return launch_down<T, EACH, 6>(stream, c);
    case 5: return launch_down<T, EACH, 5>(stream, c);
    case 4: return launch_down<T, EACH, 4>(stream, c);
    default: return launch_down<T, EACH, LEAST_STAGES>(stream, c);
    }
}

template <typename T> static cudaError_t by_experts(cudaStream_t stream, const struct coded_few &c)
{
    return c.p.route.n_experts <= 32 ? both<T, 1>(stream, c) : both<T, 8>(stream, c);
}

cudaError_t k_moe_few_single(cudaStream_t stream, const struct coded_few &c, enum dtype dtype)
{
    return dtype == DT_BF16 ? by_experts<bf16_t>(stream, c) : by_experts<f16_t>(stream, c);
}
