// SPDX-License-Identifier: Apache-2.0
/* The products of moe/few.cu for up to 8 rows, with experts whose weights stay quantised
 * (cuda/coded.h): MXFP4, int4, and FP8, the latter two with groups of a multiple of 128 inputs.
 *
 *   up      a block has a range of units: 8 gates and the 8 ups that belong to them, of one expert
 *   down    a block has a range of groups of 8 outputs, each the sum over all experts
 *
 * A block's items (few_coded.cuh) are divided evenly among its warps, each of which copies its own
 * into a ring in shared memory (cp.async) and leaves its sums when a unit or group ends; after a
 * barrier these are added in order. A block makes the picks of all rows itself, from the scores.
 * `down` makes its picks, fills its rings and loads the biases before its wait (pdl_wait), beside
 * the blocks of `up`: the scores are complete, because `up` triggers only after its own wait. Bound
 * by reading the weights and by converting codes. few_single.cu computes one row of MXFP4. */
#include "cuda/kernels/moe/few_coded.cuh"

enum { COLUMNS = CODED_MOST_ROWS };
enum { MOST_CODED_EXPERTS = 256 };
enum { UP_SUMS = 2 * HALF * COLUMNS, DOWN_SUMS = HALF * COLUMNS }; // floats that a warp leaves
/* Limits on dynamic shared memory. One block of `up` and one of `down` share a multiprocessor if
 * possible. Two of `up` should not, but with LEAST_UP_BYTES there is still room for both. */
enum { LEAST_UP_BYTES = 110 << 10, PAIR_BYTES = 215 << 10, MOST_BYTES = 220 << 10 };

/* The slots of a warp's ring. `down` has LONG, MIDDLE or SHORT rings. */
template <enum coded_code CODE> struct ring_slots {
    static constexpr bool IS_8 = code_of<CODE>::BITS == 8;
    static constexpr int UP = IS_8 ? 3 : 5, LONG = IS_8 ? 4 : 8, MIDDLE = IS_8 ? 3 : 4;
    static constexpr int SHORT = IS_8 ? 2 : 3;
};

/* ---- up -------------------------------------------------------------------------------------- */

/* A block's shared memory: rows of x, biases, sums, rings. units: at most. */
template <enum coded_code CODE> struct up_room {
    int32_t bias, sums, rings, bytes;

    __host__ __device__ __forceinline__ up_room(const struct coded_few &c, int32_t units)
    {
        bias = c.p.route.n_rows * coded_pitch(c.up);
        sums = bias + units * CODED_ROWS * (int32_t)sizeof(float);
        rings = sums + (units + CODED_WARPS) * UP_SUMS * (int32_t)sizeof(float);
        bytes = rings + CODED_WARPS * ring_slots<CODE>::UP * coded_slot<CODE, 2>::PITCH;
    }
};

/* The units of a block: a range among those of all experts. */
struct up_units {
    int32_t each, first, n; // each: units of an expert

    __device__ __forceinline__ up_units(const struct few_params &p, int32_t n_experts)
    {
        each = p.ffn / HALF;
        const int64_t all = (int64_t)n_experts * each;
        first = (int32_t)(all * blockIdx.x / gridDim.x);
        n = (int32_t)(all * (blockIdx.x + 1) / gridDim.x) - first;
    }
};

__device__ __forceinline__ void load_up_biases(const struct few_params &p,
                                               const struct coded_picks &s,
                                               const struct up_units &units, float *to)
{
    for (int32_t i = (int32_t)threadIdx.x; i < units.n * CODED_ROWS; i += CODED_THREADS) {
        const int32_t unit = units.first + i / CODED_ROWS, e = unit / units.each;
        const int32_t part = i / HALF % 2, feature = (unit - e * units.each) * HALF + i % HALF;
        to[i] = p.up_bias ? p.up_bias[((int64_t)s.expert[e] * 2 + part) * p.ffn + feature] : 0.0f;
    }
}

/* Multiplies the warp's items. */
template <typename T, enum coded_code CODE, typename P>
__device__ __forceinline__ void
up_items(const struct coded_few &c, const char *x, const char *ring, struct coded_share share,
         struct coded_stream<CODE, 2, ring_slots<CODE>::UP> &load, const P &place_of, float *sums)
{
    using S = coded_slot<CODE, 2>;
    const int32_t lane = threadIdx.x & 31, n_items = coded_items(c.up);
    int32_t unit = share.first / n_items, item = share.first - unit * n_items, at = 0;
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int32_t i = 0; i < share.n; i++) {
        wait_copies<ring_slots<CODE>::UP - 2>();
        __syncwarp(); // other lanes have copied the scales and have read the slot that is refilled
                      // now
        load.next(c.up, place_of);
        add_item<T, CODE, 2>(c.up, ring + at, x + item * (ITEM * 2), acc);
        at = at + S::PITCH == ring_slots<CODE>::UP * S::PITCH ? 0 : at + S::PITCH;
        if (++item == n_items || i + 1 == share.n) {
            float *to = sums + (unit + (int32_t)(threadIdx.x >> 5)) * UP_SUMS + lane * 2;
            *(float2 *)to = make_float2(acc[0], acc[1]); // [output, row]
            *(float2 *)(to + HALF * COLUMNS) = make_float2(acc[2], acc[3]);
            acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
            item = 0;
            unit++;
        }
    }
}

template <typename T, typename L>
__device__ __forceinline__ void
store_acts(const struct coded_few &c, const struct coded_picks &s, const struct up_units &units,
           const struct coded_share &share, int32_t n_rows, const float *bias, const float *sums)
{
    const struct few_params &p = c.p;
    for (int32_t i = (int32_t)threadIdx.x; i < units.n * HALF * n_rows; i += CODED_THREADS) {
        const int32_t output = i / n_rows, row = i - output * n_rows, g = output % HALF;
        const int32_t own = output / HALF, unit = units.first + own, e = unit / units.each;
        const int32_t slot = s.slot[e][row];
        if (slot < 0) {
            continue;
        }
        const float *from = sums + g * COLUMNS + row;
        float v[2];
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const float sum =
                share.sum(from + part * HALF * COLUMNS, UP_SUMS, own, coded_items(c.up));
            v[part] = fmaf(sum, L::unit(), bias[own * CODED_ROWS + part * HALF + g]);
        }
        const int32_t feature = (unit - e * units.each) * HALF + g;
        ((T *)p.act)[(int64_t)row * p.n_acts + slot * p.ffn + feature] =
            from_float<T>(act_gated_of(c.kind, v[0], v[1], p.shape));
    }
}

/* Warps that make no picks copy x. Block 0 stores the picks. */
template <typename T, enum coded_code CODE>
__device__ __forceinline__ void find_inputs(const struct coded_few &c, int32_t n_rows, char *memory,
                                            float *shared, struct coded_picks &s)
{
    const struct few_params &p = c.p;
    if ((int32_t)threadIdx.x >= 32 * n_rows) {
        stage_inputs<T, CODE>(c.up, (const T *)p.x, p.x_stride, n_rows, memory, 32 * n_rows);
    }
    find_experts<8>(p, n_rows, shared, s);
    if (blockIdx.x == 0) {
        for (int32_t i = (int32_t)threadIdx.x; i < n_rows * p.route.k; i += CODED_THREADS) {
            p.ids[i] = s.id[i];
            p.weights[i] = s.weight[i];
        }
    }
}

template <typename T, enum coded_code CODE>
__global__ void __launch_bounds__(CODED_THREADS, 2)
    coded_up_kernel(const __grid_constant__ struct coded_few c, int32_t most_units)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ struct coded_picks s;
    const struct up_room<CODE> room(c, most_units);
    const int32_t lane = threadIdx.x & 31, warp = (int32_t)threadIdx.x >> 5;
    const int32_t n_rows = n_real(c.p);
    float *bias = (float *)(memory + room.bias), *sums = (float *)(memory + room.sums);
    char *rings = memory + room.rings,
         *ring = rings + warp * ring_slots<CODE>::UP * coded_slot<CODE, 2>::PITCH;
    const char *x =
        memory + min(lane & 7, max(n_rows, 1) - 1) * coded_pitch(c.up) + (lane >> 3) * 16;
    pdl_wait();
    pdl_trigger();
    find_inputs<T, CODE>(c, n_rows, memory, (float *)rings, s);
    const struct up_units units(c.p, s.n_experts);
    const struct coded_share share(units.n * coded_items(c.up));
    const auto place_of = [&](int32_t segment) {
        const int32_t unit = units.first + segment, e = unit / units.each;
        const int32_t half = unit - e * units.each;
        return coded_place{s.expert[e], half / 2, half % 2, c.up.n_tiles / 2};
    };
    struct coded_stream<CODE, 2, ring_slots<CODE>::UP> load(ring, share, coded_items(c.up));
#pragma unroll 1
    for (int i = 0; i < ring_slots<CODE>::UP - 1; i++) {
        load.next(c.up, place_of);
    }
    load_up_biases(c.p, s, units, bias);
    if ((int32_t)blockIdx.x < n_rows) {
        store_added<T>(c.p, (int32_t)blockIdx.x);
    }
    up_items<T, CODE>(c, x, ring, share, load, place_of, sums);
    __syncthreads();
    store_acts<T, few_codes<T, CODE>>(c, s, units, share, n_rows, bias, sums);
}

/* ---- down ------------------------------------------------------------------------------------ */

/* A block's shared memory: the inputs of all picks, biases, sums, rings. groups: at most. */
template <enum coded_code CODE> struct down_room {
    int32_t bias, sums, rings, bytes;

    __host__ __device__ __forceinline__ down_room(const struct coded_few &c, int32_t groups,
                                                  int32_t stages)
    {
        bias = c.p.route.n_rows * c.p.route.k * coded_pitch(c.down);
        sums = bias + groups * DOWN_SUMS * (int32_t)sizeof(float);
        rings = sums + (groups + CODED_WARPS) * DOWN_SUMS * (int32_t)sizeof(float);
        bytes = rings + CODED_WARPS * stages * coded_slot<CODE, 1>::PITCH;
    }
};

struct down_groups {
    int32_t first, n;

    __device__ __forceinline__ explicit down_groups(const struct few_params &p)
    {
        const int32_t all = p.hidden / HALF;
        first = (int32_t)((int64_t)all * blockIdx.x / gridDim.x);
        n = (int32_t)((int64_t)all * (blockIdx.x + 1) / gridDim.x) - first;
    }
};

/* The weighted biases of the block's outputs, [output, row]. */
__device__ __forceinline__ void load_down_biases(const struct few_params &p,
                                                 const struct coded_picks &s,
                                                 const struct down_groups &groups, int32_t n_rows,
                                                 float *to)
{
    const int32_t k = p.route.k;
    for (int32_t i = (int32_t)threadIdx.x; i < groups.n * DOWN_SUMS; i += CODED_THREADS) {
        const int32_t row = i % COLUMNS, output = groups.first * HALF + i / COLUMNS;
        float v = 0.0f;
#pragma unroll 4
        for (int32_t j = 0; j < k; j++) {
            if (p.down_bias && row < n_rows) {
                v = fmaf(s.weight[row * k + j],
                         p.down_bias[(int64_t)s.id[row * k + j] * p.hidden + output], v);
            }
        }
        to[i] = v;
    }
}

/* Multiplies the warp's items. A group's items are those of its experts, one after another. */
template <typename T, enum coded_code CODE, int STAGES, typename P>
__device__ __forceinline__ void
down_items(const struct coded_few &c, const struct coded_picks &s, const char *inputs,
           const char *ring, struct coded_share share, struct coded_stream<CODE, 1, STAGES> &load,
           const P &place_of, float *sums)
{
    using S = coded_slot<CODE, 1>;
    const int32_t lane = threadIdx.x & 31, n_items = coded_items(c.down), k = c.p.route.k;
    const int32_t segment = share.first / n_items, pitch = coded_pitch(c.down);
    int32_t group = segment / s.n_experts, e = segment - group * s.n_experts;
    int32_t item = share.first - segment * n_items, at = 0;
    float acc[2] = {0.0f, 0.0f}, total[2] = {0.0f, 0.0f};
    const auto inputs_of = [&]() { // of this lane's row, for ldmatrix
        const int32_t row = lane & 7, slot = s.slot[e][row];
        return inputs + (slot < 0 ? 0 : row * k + slot) * pitch + (lane >> 3) * 16;
    };
    const char *x = inputs_of();
#pragma unroll 1
    for (int32_t i = 0; i < share.n; i++) {
        wait_copies<STAGES - 2>();
        __syncwarp(); // as in up_items
        load.next(c.down, place_of);
        add_item<T, CODE, 1>(c.down, ring + at, x + item * (ITEM * 2), acc);
        at = at + S::PITCH == STAGES * S::PITCH ? 0 : at + S::PITCH;
        if (++item < n_items && i + 1 < share.n) {
            continue;
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int32_t row = lane % 4 * 2 + j, slot = s.slot[e][row];
            if (slot >= 0) {
                total[j] = fmaf(s.weight[row * k + slot], acc[j], total[j]);
            }
            acc[j] = 0.0f;
        }
        item = 0;
        if (++e == s.n_experts || i + 1 == share.n) {
            float *to = sums + (group + (int32_t)(threadIdx.x >> 5)) * DOWN_SUMS + lane * 2;
            *(float2 *)to = make_float2(total[0], total[1]);
            total[0] = total[1] = 0.0f;
            e = 0;
            group++;
        }
        x = inputs_of();
    }
}

template <typename T, typename L>
__device__ __forceinline__ void
store_outputs(const struct coded_few &c, const struct coded_picks &s,
              const struct down_groups &groups, const struct coded_share &share, int32_t n_rows,
              const float *bias, const float *sums)
{
    const int32_t size = s.n_experts * coded_items(c.down);
    for (int32_t i = (int32_t)threadIdx.x; i < groups.n * DOWN_SUMS; i += CODED_THREADS) {
        const int32_t row = i % COLUMNS, group = i / DOWN_SUMS;
        if (row >= n_rows) {
            continue;
        }
        const float sum = share.sum(sums + i % DOWN_SUMS, DOWN_SUMS, group, size);
        const float v = fmaf(sum, L::unit(), bias[i]);
        T *to = (T *)c.p.y + row * c.p.y_stride + groups.first * HALF + i / COLUMNS;
        *to = from_float<T>(c.accumulate ? to_float(*to) + v : v);
    }
}

template <typename T, enum coded_code CODE, int STAGES>
__global__ void __launch_bounds__(CODED_THREADS, 2)
    coded_down_kernel(const __grid_constant__ struct coded_few c, int32_t most_groups)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ struct coded_picks s;
    const struct down_room<CODE> room(c, most_groups, STAGES);
    const int32_t warp = (int32_t)threadIdx.x >> 5, n_rows = n_real(c.p), k = c.p.route.k;
    float *bias = (float *)(memory + room.bias), *sums = (float *)(memory + room.sums);
    char *rings = memory + room.rings, *ring = rings + warp * STAGES * coded_slot<CODE, 1>::PITCH;
    find_experts<8>(c.p, n_rows, (float *)rings, s);
    const struct down_groups groups(c.p);
    const struct coded_share share(groups.n * s.n_experts * coded_items(c.down));
    const auto place_of = [&](int32_t segment) {
        const int32_t group = segment / s.n_experts, half = groups.first + group;
        return coded_place{s.expert[segment - group * s.n_experts], half / 2, half % 2, 0};
    };
    struct coded_stream<CODE, 1, STAGES> load(ring, share, coded_items(c.down));
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) {
        load.next(c.down, place_of);
    }
    load_down_biases(c.p, s, groups, n_rows, bias);
    pdl_wait();
    pdl_trigger();
    stage_inputs<T, CODE>(c.down, (const T *)c.p.act, c.p.ffn, n_rows * k, memory, 0);
    __syncthreads();
    if (share.n > 0) {
        down_items<T, CODE, STAGES>(c, s, memory, ring, share, load, place_of, sums);
    }
    __syncthreads();
    if (s.n_experts > 0) {
        store_outputs<T, few_codes<T, CODE>>(c, s, groups, share, n_rows, bias, sums);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static int32_t up_units_of(const struct coded_few &c) // at most, of a block
{
    const int32_t n = c.p.route.n_rows * c.p.route.k;
    const int32_t experts = n < c.p.route.n_experts ? n : c.p.route.n_experts;
    return (experts * (c.p.ffn / HALF) + c.n_sms - 1) / c.n_sms;
}

static int32_t down_groups_of(const struct coded_few &c)
{
    return (c.p.hidden / HALF + c.n_sms - 1) / c.n_sms;
}

template <enum coded_code CODE> static int32_t up_bytes(const struct coded_few &c)
{
    const int32_t bytes = up_room<CODE>(c, up_units_of(c)).bytes;
    return bytes > LEAST_UP_BYTES ? bytes : (int32_t)LEAST_UP_BYTES;
}

template <enum coded_code CODE> static int32_t down_bytes(const struct coded_few &c, int32_t stages)
{
    return down_room<CODE>(c, down_groups_of(c), stages).bytes;
}

/* The longest rings of `down` that fit beside a block of `up` or, if even the middle ones do not,
 * alone. 0: none fit. */
template <enum coded_code CODE> static int32_t down_stages(const struct coded_few &c)
{
    typedef ring_slots<CODE> slots;
    const int32_t up = up_bytes<CODE>(c), all[3] = {slots::LONG, slots::MIDDLE, slots::SHORT};
    for (int i = 0; i < 2; i++) {
        if (up + down_bytes<CODE>(c, all[i]) <= PAIR_BYTES) {
            return all[i];
        }
    }
    for (int i = 0; i < 3; i++) {
        if (down_bytes<CODE>(c, all[i]) <= MOST_BYTES) {
            return all[i];
        }
    }
    return 0;
}

template <enum coded_code CODE> static bool fits(const struct coded_few &c)
{
    return up_bytes<CODE>(c) <= MOST_BYTES && down_stages<CODE>(c) > 0;
}

static struct coded_few few_of(const struct few_params &p, const struct moe_few *m)
{
    return {p,
            *m->weights.gate_up_coded,
            *m->weights.down_coded,
            m->n_sms,
            m->ffn->kind,
            m->ffn->accumulate};
}

/* A record of scales belongs to the 128 inputs of an item, or to several items. */
static bool is_in_items(const struct coded_matrix *m)
{
    const bool is_8 = coded_bits(m->code) == 8;
    return m->record_bytes == RECORD &&
           (is_8 ? m->record_shift >= 1 && m->n_chunks % 2 == 0 : m->record_shift == 0);
}

bool k_moe_few_coded_takes(const struct moe_few *m)
{
    const struct moe_ffn_args *a = m->ffn;
    const struct coded_matrix *up = m->weights.gate_up_coded, *down = m->weights.down_coded;
    if (!up || !down || up->code != down->code || !is_in_items(up) || !is_in_items(down) ||
        launch_sm() < 90 || a->plain || a->weigh_inputs || m->shared_ffn > 0 ||
        a->n_rows > CODED_MOST_ROWS || a->n_experts > MOST_CODED_EXPERTS ||
        a->ffn % CODED_ROWS != 0) {
        return false;
    }
    struct few_params p = {};
    p.route = route_params_of(m->route);
    p.hidden = m->weights.hidden;
    p.ffn = a->ffn;
    const struct coded_few c = few_of(p, m);
    switch (up->code) {
    case CODED_U4: return fits<CODED_U4>(c);
    case CODED_E2M1: return fits<CODED_E2M1>(c);
    case CODED_E4M3: return fits<CODED_E4M3>(c);
    }
    return false;
}

template <typename T, enum coded_code CODE>
static cudaError_t launch_up(cudaStream_t stream, const struct coded_few &c)
{
    const auto kernel = coded_up_kernel<T, CODE>;
    const cudaError_t e = allow_shared(kernel, MOST_BYTES);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((unsigned)c.n_sms), dim3(CODED_THREADS),
                                     (size_t)up_bytes<CODE>(c), stream, c, up_units_of(c));
}

template <typename T, enum coded_code CODE, int STAGES>
static cudaError_t launch_down(cudaStream_t stream, const struct coded_few &c)
{
    const auto kernel = coded_down_kernel<T, CODE, STAGES>;
    const cudaError_t e = allow_shared(kernel, MOST_BYTES);
    return e != cudaSuccess
               ? e
               : launch(kernel, dim3((unsigned)c.n_sms), dim3(CODED_THREADS),
                        (size_t)down_bytes<CODE>(c, STAGES), stream, c, down_groups_of(c));
}

template <typename T, enum coded_code CODE>
static cudaError_t both(cudaStream_t stream, const struct coded_few &c)
{
    typedef ring_slots<CODE> slots;
    const cudaError_t e = launch_up<T, CODE>(stream, c);
    if (e != cudaSuccess) {
        return e;
    }
    switch (down_stages<CODE>(c)) {
    case slots::LONG: return launch_down<T, CODE, slots::LONG>(stream, c);
    case slots::MIDDLE: return launch_down<T, CODE, slots::MIDDLE>(stream, c);
    default: return launch_down<T, CODE, slots::SHORT>(stream, c);
    }
}

template <typename T> static cudaError_t by_code(cudaStream_t stream, const struct coded_few &c)
{
    switch (c.up.code) {
    case CODED_U4: return both<T, CODED_U4>(stream, c);
    case CODED_E2M1: return both<T, CODED_E2M1>(stream, c);
    case CODED_E4M3: return both<T, CODED_E4M3>(stream, c);
    }
    return cudaErrorInvalidValue;
}

cudaError_t k_moe_few_coded(cudaStream_t stream, const struct few_params &p,
                            const struct moe_few *m)
{
    const struct coded_few c = few_of(p, m);
    if (k_moe_few_single_takes(c)) {
        return k_moe_few_single(stream, c, m->ffn->x.dtype);
    }
    return m->ffn->x.dtype == DT_BF16 ? by_code<bf16_t>(stream, c) : by_code<f16_t>(stream, c);
}
