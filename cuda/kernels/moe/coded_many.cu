// SPDX-License-Identifier: Apache-2.0
/* Mixture-of-experts layers with 4-bit experts (cuda/coded.h) on Hopper, from one row per expert
 * on: two grouped products on wgmma. few_coded.cu computes up to 8 rows; gemm/coded.cu computes
 * what neither of the two takes, and everything in deterministic mode.
 *
 * moe/sort.cu sorts the picks by expert and lists tiles of up to TILE_ROWS rows of one expert. An
 * item of work is a tile and a band of the weight. Persistent blocks, one per multiprocessor,
 * iterate over all items. Tiles of an expert take the same band at about the same time, so that its
 * codes are read from memory once. Nothing depends on the host, so one captured graph serves every
 * routing.
 *
 * As in gemm/four_units.cuh, 64 features of W are wgmma's register operand, and the tile's rows of
 * x the shared-memory operand. A computing warp has two units of 16 features. It copies their codes
 * into a ring of its own, which also runs ahead into the block's next item, and converts them while
 * the tensor cores work on the previous operand. One warpgroup loads x, whose rows the up product
 * gathers. Codes are scaled and rounded once, as when a weight is dequantised. Results are rounded
 * to 16 bits, and sum.cu adds a row's picks in order of expert id.
 *
 * wgmma has 32, 64, 96 or 128 columns, as few as hold the tile's rows. With few rows per expert the
 * products are bound by reading codes, with many by the tensor cores. */
#include "cuda/kernels/gemm/four_units.cuh"
#include "cuda/kernels/moe/gated.cuh"
#include "cuda/kernels/moe/room.cuh"

enum {
    BAND_UNITS = WARPS * 2,
    X_SLOTS = 6,
    X_LAG = 3, // boxes of x in flight
    X_SLOT = TILE_ROWS * BOX * 2,
    LOADERS = THREADS - WARPS * 32,
    STAGE_ROWS = 32,           // results that a warp stores at a time
    STAGE_LD = STAGE_ROWS + 8, // avoids bank conflicts
    STAGE_BYTES = CODED_ROWS * STAGE_LD * 4,
};

/* One of the two products. p has the weight, its bias, and the output: n_out is ffn or hidden. */
struct grouped_params {
    struct many_params p;
    const struct moe_tile *tiles;
    const int32_t *n_tiles;
    const int32_t *x_rows, *y_rows; // by place; NULL: row `place`
    const int32_t *sorted;
    const void *x;
    int64_t x_stride;
    const float *weights; // by pick, multiply both halves before the activation; or NULL
    int32_t n_bands, band_tiles;
    enum activation kind;
    struct act_shape shape;
};

template <enum coded_code CODE, int PER_GROUP>
struct grouped_shape : many_shape<CODE, PER_GROUP, 2, 1> {
    static constexpr int SLOT = many_shape<CODE, PER_GROUP, 2, 1>::SLOT;
    static constexpr int FIT =
        (RING_BYTES - 1024 - X_SLOTS * X_SLOT - WARPS * STAGE_BYTES) / (WARPS * SLOT);
    static constexpr int SLOTS = FIT < MAX_SLOTS ? FIT : MAX_SLOTS;
    static constexpr int RING = SLOTS * SLOT; // of a warp
    static constexpr int SMEM = 1024 + X_SLOTS * X_SLOT + WARPS * (RING + STAGE_BYTES);
    static_assert(SLOTS >= 3, "");
};

#if HAVE_SM90A

/* A tile of rows and a band of the weight. */
struct grouped_item {
    int32_t expert, first, n_rows; // first, n_rows: places of the tile's rows
    struct item band;              // only first_tile and end_tile are set
};

__device__ __forceinline__ struct moe_tile load_tile(const struct moe_tile *tile)
{
    const int4 v = *(const int4 *)tile;
    struct moe_tile t;
    memcpy(&t, &v, sizeof t);
    return t;
}

__device__ __forceinline__ struct grouped_item item_of(const struct grouped_params &p,
                                                       int32_t which)
{
    const struct moe_tile any = load_tile(p.tiles + which / p.n_bands); // any tile of the group
    const int32_t in_group = which - any.group_first * p.n_bands;
    const struct moe_tile t = load_tile(p.tiles + any.group_first + in_group % any.group_n);
    const int32_t n_tiles = p.p.gated ? p.p.m.n_tiles / 2 : p.p.m.n_tiles;
    struct grouped_item it = {t.expert, t.first, t.n_rows, {}};
    it.band.first_tile = in_group / any.group_n * p.band_tiles;
    it.band.end_tile = min(it.band.first_tile + p.band_tiles, n_tiles);
    return it;
}

/* ---- loading x ------------------------------------------------------------------------------- */

/* The threads copy a box's rows with cp.async, and signal the box when X_LAG more are on their way.
 * Slots of rows that do not exist keep what they had: a row's results depend on no other row. */
template <typename T>
__device__ __forceinline__ void load_rows(const struct grouped_params &p, int32_t n_items, char *xs,
                                          struct x_ring *ring)
{
    constexpr int EACH = TILE_ROWS * 8 / LOADERS; // vectors of a box per thread
    const int tid = threadIdx.x - WARPS * 32, first_row = tid >> 3, piece = tid & 7;
    x_place<X_SLOTS> at, done;
    int n_flying = 0;
#pragma unroll 1
    for (int32_t which = (int32_t)blockIdx.x; which < n_items; which += (int32_t)gridDim.x) {
        const struct grouped_item it = item_of(p, which);
        const T *from[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int r = first_row + 16 * j, place = it.first + r;
            from[j] = NULL;
            if (r < it.n_rows) {
                const int64_t row = p.x_rows ? p.x_rows[place] : place;
                from[j] = (const T *)p.x + row * p.x_stride;
            }
        }
#pragma unroll 1
        for (int32_t box = 0; box < p.p.m.n_chunks * 2; box++) {
            barrier_wait(&ring->empty[at.slot], at.parity ^ 1);
            char *to = xs + at.slot * X_SLOT;
            const int32_t c = box * BOX + piece * 8; // past the end of K there are zeros
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                if (from[j] != NULL) {
                    copy_16(to + swizzled(first_row + 16 * j, piece),
                            from[j] + (c < p.p.m.n_in ? c : 0), c < p.p.m.n_in);
                }
            }
            copies_commit();
            at.next();
            if (++n_flying > X_LAG) {
                copies_wait<X_LAG>();
                fence_async();
                barrier_arrive(&ring->full[done.slot]);
                done.next();
                n_flying--;
            }
        }
    }
    copies_wait<0>();
    fence_async();
#pragma unroll 1
    for (; n_flying > 0; n_flying--) {
        barrier_arrive(&ring->full[done.slot]);
        done.next();
    }
}

/* ---- copying codes --------------------------------------------------------------------------- */

/* The copies of a warp's codes, scales and zeros into its ring, over all items of its block. Units
 * that do not exist are computed but not stored; both units of a warp exist or neither does. */
template <typename S> struct grouped_copies {
    static constexpr int HALVES = S::UNITS * 2, LANES = 32 / HALVES; // for scales, zeros of a half
    const uint8_t *codes, *scales, *zeros; // this lane's sources in the next chunk
    int32_t which, n_items, left;          // item; chunks of it that are left
    int to;                                // offset in the ring

    __device__ __forceinline__ void open(const struct grouped_params &p)
    {
        left = 0;
        if (which >= n_items) {
            return;
        }
        const struct grouped_item it = item_of(p, which);
        const struct coded_matrix &m = p.p.m;
        const int lane = threadIdx.x & 31, unit = (threadIdx.x >> 5) * S::UNITS;
        const int64_t row = (int64_t)it.expert * m.n_tiles; // the expert's first tile row
        left = m.n_chunks;
        const int32_t tile = max(half_of(p.p, it.band, unit, 0).tile, 0);
        codes = m.tiles + (row + tile) * m.n_chunks * CODED_TILE_BYTES + lane * 16;
        const int i = lane / LANES;
        const struct half_tile t = half_of(p.p, it.band, unit + i / 2, i % 2);
        const int64_t record = (row + max(t.tile, 0)) * m.n_records;
        scales =
            m.scales + record * m.record_bytes + t.half * (m.record_bytes / 2) + lane % LANES * 16;
        zeros = m.zeros + record * (CODED_ROWS * m.record_groups) +
                t.half * (CODED_ROWS / 2 * m.record_groups) + lane % LANES * 4;
    }

    /* Copies the next chunk, if there is one. */
    __device__ __forceinline__ void fetch(const struct grouped_params &p, char *ring)
    {
        if (left == 0) {
            which += (int32_t)gridDim.x;
            open(p);
        }
        if (left > 0) {
            const int lane = threadIdx.x & 31, half = lane / LANES, piece = lane % LANES;
            char *slot = ring + to;
            const struct coded_matrix &m = p.p.m;
            const int64_t row = (int64_t)m.n_chunks * CODED_TILE_BYTES; // bytes of a tile row
            const int64_t next = p.p.gated ? row * (m.n_tiles / 2) : (int64_t)HALF_TILE;
            const int64_t unit = p.p.gated ? (int64_t)HALF_TILE : row;
#pragma unroll
            for (int i = 0; i < HALVES; i++) {
                cp_async_16(slot + i * HALF_TILE + lane * 16, codes + i / 2 * unit + i % 2 * next,
                            true);
            }
            codes += CODED_TILE_BYTES;
            if (piece * 32 < p.p.m.record_bytes) {
                cp_async_16(slot + S::SCALES + half * S::SCALE_BYTES + piece * 16, scales, true);
            }
            scales += p.p.m.record_bytes;
            if (S::ZERO_BYTES > 0 && p.p.m.zeros && piece < 2 * p.p.m.record_groups) {
                many_copies<S>::copy_4(slot + S::ZEROS + half * S::ZERO_BYTES + piece * 4, zeros);
            }
            zeros += CODED_ROWS * p.p.m.record_groups;
            left--;
            to = to + S::SLOT == S::RING ? 0 : to + S::SLOT;
        }
        cp_async_commit();
    }
};

/* ---- results --------------------------------------------------------------------------------- */

__device__ __forceinline__ float activated(const struct grouped_params &p, float g, float u)
{
    switch (p.kind) {
    case ACT_SILU: return gated<ACT_SILU>(g, u, p.shape);
    case ACT_GELU_TANH: return gated<ACT_GELU_TANH>(g, u, p.shape);
    case ACT_GELU: return gated<ACT_GELU>(g, u, p.shape);
    case ACT_GPT_OSS: return gated<ACT_GPT_OSS>(g, u, p.shape);
    case ACT_RELU2: return gated<ACT_RELU2>(g, u, p.shape);
    case ACT_SILU_CLAMPED: return gated<ACT_SILU_CLAMPED>(g, u, p.shape);
    default: return gated<ACT_RELU>(g, u, p.shape);
    }
}

/* Stores the sums of a unit for rows [first, first + STAGE_ROWS) of the tile, through shared
 * memory. d[4 j + 2 h + e]: feature h of the thread's two features, row 8 j + 2 t + e. */
template <typename T, int N>
__device__ __forceinline__ void store_rows(const struct grouped_params &p,
                                           const struct grouped_item &it, int unit, int first,
                                           float *stage, const float (&d)[N])
{
    const int lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < STAGE_ROWS / 4; i++) {
        const int h = i % 2, j = i / 2;
        *(float2 *)(stage + (h * 8 + g) * STAGE_LD + j * 8 + 2 * t) =
            make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
    }
    __syncwarp();
    const bool is_gated = p.p.gated;
    const int quarter = lane & (is_gated ? 1 : 3), shift = is_gated ? 1 : 2; // four features
    const struct half_tile tile = half_of(p.p, it.band, unit, quarter >> 1);
    if (tile.tile < 0) {
        return;
    }
    const int32_t feature = tile.tile * CODED_ROWS + tile.half * 8 + (quarter & 1) * 4;
    const float *sums = stage + quarter * 4 * STAGE_LD;
    float bias[4] = {}, up_bias[4] = {};
    if (p.p.bias) {
        const float *from = p.p.bias + (int64_t)it.expert * p.p.m.n_out + feature;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            bias[k] = from[k];
            up_bias[k] = is_gated ? from[p.p.n_out + k] : 0.0f;
        }
    }
    const int n = min((int)STAGE_ROWS, it.n_rows - first);
#pragma unroll 1
    for (int r = lane >> shift; r < n; r += 32 >> shift) {
        const int32_t place = it.first + first + r;
        const float weight = p.weights ? p.weights[p.sorted[place]] : 1.0f;
        const int64_t row = p.y_rows ? p.y_rows[place] : place;
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            v[k] = sums[k * STAGE_LD + r] + bias[k];
            if (is_gated) {
                const float up = sums[(k + 8) * STAGE_LD + r] + up_bias[k];
                v[k] = activated(p, v[k] * weight, up * weight);
            }
        }
        *(uint2 *)((T *)p.p.y + row * p.p.n_out + feature) =
            make_uint2(pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]));
    }
}

/* ---- computing ------------------------------------------------------------------------------- */

template <typename T, enum coded_code CODE, int PER_GROUP> struct grouped_warp {
    using S = grouped_shape<CODE, PER_GROUP>;
    enum { SUMS = TILE_ROWS / 2 }; // of a unit
    static_assert(S::UNITS == 2, "store() moves one unit to the place of the other");
    const struct grouped_params &p;
    uint32_t x0; // address of the ring of x
    struct x_ring *x_ring;
    char *ring;
    float *stage;
    grouped_copies<S> copies;
    x_place<X_SLOTS> at;
    int from; // slot of the ring

    /* Four steps over a box of up to N rows. They use the first N / 2 sums. */
    template <int N>
    static __device__ __forceinline__ void issue_of(float (&d)[SUMS], const uint32_t (&a)[4][4],
                                                    uint32_t x, int add)
    {
        float (&sums)[N / 2] = *(float (*)[N / 2]) & d;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) {
            wgmma<T, N>::rk(sums, a[step], wgmma_operand(x + step * 32, 0), step > 0 ? 1 : add);
        }
        wgmma_commit(); // in the branch, or else the compiler adds a commit before it
    }

    static __device__ __forceinline__ void issue(int n_rows, float (&d)[SUMS],
                                                 const uint32_t (&a)[4][4], uint32_t x, int add)
    {
        if (n_rows <= 32) {
            issue_of<32>(d, a, x, add);
        } else if (n_rows <= 64) {
            issue_of<64>(d, a, x, add);
        } else if (n_rows <= 96) {
            issue_of<96>(d, a, x, add);
        } else {
            issue_of<TILE_ROWS>(d, a, x, add);
        }
    }

    __device__ __forceinline__ void compute(const struct grouped_item &it)
    {
        const int lane = threadIdx.x & 31;
        float d[S::UNITS][SUMS];
        many_codes<T, CODE, PER_GROUP, S> codes;
        uint32_t a[S::UNITS][4][4];
        int last = -1, add = 0; // last: slot of x that the tensor cores may still read; add: 0 if a
                                // product overwrites the sums
#pragma unroll 1
        for (int32_t chunk = 0; chunk < p.p.m.n_chunks; chunk++) {
            cp_async_wait<S::SLOTS - 2>();
            __syncwarp(); // makes the scales that other lanes copied visible; all lanes have now
                          // read the slot that is refilled next
            copies.fetch(p, ring);
            codes.read(p.p, ring + from);
            from = from + S::SLOT == S::RING ? 0 : from + S::SLOT;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t x = x0 + at.slot * X_SLOT;
#pragma unroll
                for (int unit = 0; unit < S::UNITS; unit++) {
                    codes.make(unit, half, a[unit]); // the other one is in use
                    if (unit == 0) {
                        barrier_wait(&x_ring->full[at.slot], at.parity);
                    }
                    issue(it.n_rows, d[unit], a[unit], x, add);
                    wgmma_wait<1>();
                    if (unit == 0 && last >= 0 && lane == 0) {
                        barrier_arrive(&x_ring->empty[last]);
                    }
                }
                last = at.slot;
                at.next();
                add = 1;
            }
        }
        wgmma_wait<0>();
        if (lane == 0) {
            barrier_arrive(&x_ring->empty[last]);
        }
        wgmma_settle(d);
        store(it, d);
    }

    /* Only the first sums of d[0] are stored, and the others are moved there one after another:
     * code that stores all of them would be long, and fetching it takes longer than running it. */
    __device__ __forceinline__ void store(const struct grouped_item &it, float (&d)[S::UNITS][SUMS])
    {
        constexpr int STORED = STAGE_ROWS / 2; // sums
#pragma unroll 1
        for (int unit = 0; unit < S::UNITS; unit++) {
#pragma unroll 1
            for (int first = 0; first < it.n_rows; first += STAGE_ROWS) {
                store_rows<T>(p, it, (threadIdx.x >> 5) * S::UNITS + unit, first, stage, d[0]);
#pragma unroll
                for (int k = 0; k + STORED < SUMS; k++) {
                    d[0][k] = d[0][k + STORED];
                }
            }
#pragma unroll
            for (int k = 0; k < SUMS; k++) {
                d[0][k] = d[S::UNITS - 1][k];
            }
        }
    }

    __device__ __forceinline__ void run(int32_t n_items)
    {
        copies.which = (int32_t)blockIdx.x;
        copies.n_items = n_items;
        copies.to = 0;
        copies.open(p);
#pragma unroll 1
        for (int s = 0; s < S::SLOTS - 1; s++) {
            copies.fetch(p, ring);
        }
        from = 0;
#pragma unroll 1
        for (int32_t which = (int32_t)blockIdx.x; which < n_items; which += (int32_t)gridDim.x) {
            compute(item_of(p, which));
        }
        cp_async_wait<0>();
    }
};

#endif // HAVE_SM90A

template <typename T, enum coded_code CODE, int PER_GROUP>
__global__ void __launch_bounds__(THREADS, 1)
    moe_coded_many_kernel(const __grid_constant__ struct grouped_params p)
{
#if HAVE_SM90A
    using S = grouped_shape<CODE, PER_GROUP>;
    extern __shared__ char smem_raw[];
    __shared__ struct x_ring ring;
    char *xs = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < X_SLOTS; i++) {
            barrier_init(&ring.full[i], LOADERS);
            barrier_init(&ring.empty[i], WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    const int32_t n_items = *p.n_tiles * p.n_bands;
    if (threadIdx.x >= WARPS * 32) {
        registers_fewer<40>();
        load_rows<T>(p, n_items, xs, &ring);
    } else {
        registers_more<232>();
        const int warp = threadIdx.x >> 5;
        char *rings = xs + X_SLOTS * X_SLOT, *stages = rings + WARPS * S::RING;
        grouped_warp<T, CODE, PER_GROUP> w = {p, smem_address(xs), &ring, rings + warp * S::RING,
                                              (float *)(stages + warp * STAGE_BYTES)};
        w.run(n_items);
    }
#endif
}

/* ---- host ------------------------------------------------------------------------------------ */

static bool is_four(const struct coded_matrix *m)
{
    return m && coded_bits(m->code) == 4;
}

extern "C" bool k_moe_coded_many_takes(const struct moe_ffn_args *a, const struct moe_weights *w,
                                       int32_t sm)
{
    return sm == 90 && !a->plain && is_four(w->gate_up_coded) && is_four(w->down_coded) &&
           (w->dtype == DT_BF16 || w->dtype == DT_F16) && a->x.dtype == w->dtype &&
           w->hidden % 8 == 0 && a->ffn % CODED_ROWS == 0 && a->k <= MOE_MAX_K &&
           a->n_experts <= MOE_MAX_EXPERTS && vec_ok(a->x.mem.p, a->x.stride, w->hidden, 2) &&
           vec_ok(a->y.mem.p, a->y.stride, w->hidden, 2) &&
           (int64_t)a->n_rows * a->k >= a->n_experts;
}

template <typename T, enum coded_code CODE, int PER_GROUP>
static cudaError_t launch_grouped(cudaStream_t stream, const struct grouped_params &p,
                                  int64_t most_tiles, int32_t n_sms)
{
    using S = grouped_shape<CODE, PER_GROUP>;
    auto kernel = moe_coded_many_kernel<T, CODE, PER_GROUP>;
    const cudaError_t e = // set at every launch, because each rank has its own device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SMEM);
    if (e != cudaSuccess) {
        return e;
    }
    const int64_t items = most_tiles * p.n_bands;
    return launch(kernel, dim3((unsigned)(items < n_sms ? items : n_sms)), dim3(THREADS), S::SMEM,
                  stream, p);
}

/* A product of the experts' weight m. p has its operands. */
template <typename T>
static cudaError_t product(cudaStream_t stream, struct grouped_params p,
                           const struct coded_matrix *m, int64_t most_tiles, int32_t n_sms)
{
    const int32_t n_tiles = p.p.gated ? m->n_tiles / 2 : m->n_tiles;
    p.p.m = *m;
    p.band_tiles = p.p.gated ? BAND_UNITS / 2 : BAND_UNITS;
    p.n_bands = items_up(n_tiles, p.band_tiles);
    switch (m->code) {
    case CODED_E2M1: return launch_grouped<T, CODED_E2M1, 1>(stream, p, most_tiles, n_sms);
    case CODED_U4:
        return m->record_groups == 1 ? launch_grouped<T, CODED_U4, 4>(stream, p, most_tiles, n_sms)
                                     : launch_grouped<T, CODED_U4, 1>(stream, p, most_tiles, n_sms);
    case CODED_E4M3: break; // k_moe_coded_many_takes rejects it
    }
    return cudaErrorInvalidValue;
}

template <typename T>
static cudaError_t products(cudaStream_t stream, const struct moe_ffn_args *a,
                            const struct moe_weights *w, const struct moe_work &s, int32_t n_sms)
{
    const int64_t tiles = moe_most_tiles((int64_t)a->n_rows * a->k, a->n_experts);
    struct grouped_params up = {};
    up.tiles = s.tiles;
    up.n_tiles = s.n_tiles;
    up.sorted = s.sorted;
    struct grouped_params down = up;
    up.p.gated = true;
    up.p.bias = w->gate_up_bias;
    up.p.y = s.act;
    up.p.n_out = a->ffn;
    up.x = a->x.mem.p;
    up.x_stride = a->x.stride;
    up.x_rows = s.rows;
    up.weights = a->weigh_inputs ? (const float *)a->weights.p : NULL;
    up.kind = a->kind;
    up.shape = a->shape;
    down.p.bias = a->partial ? NULL : w->down_bias;
    down.p.y = s.out;
    down.p.n_out = w->hidden;
    down.x = s.act;
    down.x_stride = a->ffn;
    down.y_rows = s.sorted;
    const cudaError_t e = product<T>(stream, up, w->gate_up_coded, tiles, n_sms);
    return e == cudaSuccess ? product<T>(stream, down, w->down_coded, tiles, n_sms) : e;
}

extern "C" cudaError_t k_moe_ffn_coded_many(cudaStream_t stream, const struct moe_ffn_args *a,
                                            const struct moe_weights *w, const float *gate,
                                            void *scratch, const int32_t *real, int32_t row_offset,
                                            int32_t n_sms)
{
    struct moe_work s;
    moe_lay_out((char *)scratch, (int64_t)a->n_rows * a->k, a, w->hidden, &s);
    cudaError_t e = moe_sort(stream, a, s, real, row_offset);
    if (e == cudaSuccess) {
        e = w->dtype == DT_BF16 ? products<bf16_t>(stream, a, w, s, n_sms)
                                : products<f16_t>(stream, a, w, s, n_sms);
    }
    return e == cudaSuccess ? moe_sum(stream, a, gate, s, w->hidden, real, row_offset) : e;
}
