// SPDX-License-Identifier: Apache-2.0
/* Mixture-of-experts layers on Hopper, with many rows per expert: two grouped products on wgmma.
 *
 * moe/sort.cu sorts the picks by expert and lists tiles of up to TILE_ROWS rows of one expert.
 * Persistent blocks, one per multiprocessor, iterate over all pairs of a tile and a band of COLUMNS
 * weight rows. Nothing depends on the host, so one captured graph serves every routing. Up to GROUP
 * tiles of an expert share a band at a time: its weights are read from memory once, and the rows
 * stay in the L2 cache.
 *
 * A block has one warpgroup that loads boxes (rows and weights, 64 along K) into a ring of stages,
 * and two that compute 64 rows x COLUMNS each; one without rows only releases the stages.
 * The up product's band is half gate, half up rows, so that a thread holds both halves of each pair
 * and writes act(gate) * up; its rows are gathered as they are loaded. The down product writes each
 * pick's output in 16 bits, and sum.cu adds a row's picks in order of expert id. No sum crosses a
 * tile, and K is summed in steps of 16 in one accumulator, so a row's bits depend neither on its
 * batch nor on its place in it. They are those of moe.cu, which computes fewer rows and rounds as
 * here (gated.cuh).
 *
 * Blocks form clusters of two, because the L2 cache cannot feed 132 tiles of 128 x 256: two tiles
 * of an expert take the same band, and each block loads half of it for both. A tile without a
 * partner is shared the other way: the two blocks take a band each. Bound by the tensor cores. */
#include "cuda/kernels/device/hand_over.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/gemm/x_ring.cuh"
#include "cuda/kernels/moe/room.cuh"
#include "cuda/kernels/moe/sm90_results.cuh"
#include "cuda/moe_shared.h"

#include <type_traits>

enum {
    DEPTH = 64, // along K per box
    STAGES = 4,
    THREADS = 3 * WARPGROUP,
    X_BYTES = TILE_ROWS * DEPTH * 2,
    W_BYTES = COLUMNS * DEPTH * 2,
    STAGE_BYTES = X_BYTES + W_BYTES,
    SMEM_BYTES = STAGES * STAGE_BYTES + 2048, // 2048: alignment and barriers
    MIN_ROWS = 17,                            // fewer are computed by few.cu
    MIN_ROWS_PER_EXPERT = 2,                  // on average; with one, moe.cu takes as long
    KEPT_BYTES = 40 << 20,                    // of the 50 MiB of the L2 cache
    LINE_ELEMENTS = 64,                       // of its lines: a row is discarded in whole ones
};

/* ---- the products -------------------------------------------------------------------------- */

#if HAVE_SM90A

enum { PIECE_WORDS = sizeof(struct piece) / 4 };

struct shared {
    uint64_t full[STAGES], empty[STAGES];
    uint32_t piece[STAGES][PIECE_WORDS]; // the piece whose first box is in the stage
};

/* The number of units of work for clusters: one for each pair of bands and each tile. */
__device__ __forceinline__ int n_units(const struct product_params &p)
{
    return *p.n_tiles * ((p.n_bands + 1) / 2);
}

__device__ __forceinline__ struct moe_tile load_tile(const struct moe_tile *tile)
{
    const int4 v = *(const int4 *)tile;
    struct moe_tile t;
    memcpy(&t, &v, sizeof t);
    return t;
}

__device__ __forceinline__ struct piece find_piece(const struct product_params &p, int unit,
                                                   int rank)
{
    const int per_tile = (p.n_bands + 1) / 2;
    const struct moe_tile any = load_tile(p.tiles + unit / per_tile); // any tile of the group
    const int in_group = unit - any.group_first * per_tile;
    const int i = in_group % any.group_n, bands = in_group / any.group_n * 2;
    const bool is_paired = i < any.n_paired;
    const struct moe_tile t =
        load_tile(p.tiles + any.group_first + (is_paired ? (i & ~1) + rank : i));
    const int band = bands + (is_paired ? i & 1 : rank);
    return {t.expert,  t.first,         band, (int16_t)(band < p.n_bands ? t.n_rows : 0),
            is_paired, any.group_n == 1};
}

using ring = x_place<STAGES>;

/* Loads a box of the band's weights, and of its rows if those are contiguous (the down product).
 * Weights that no other tile reads leave the L2 cache first. */
template <bool UP>
__device__ __forceinline__ void load_box(const struct product_params &p, const CUtensorMap *w_map,
                                         const CUtensorMap *x_map, const struct piece &u, int box,
                                         int rank, char *to, uint64_t *bar)
{
    const uint64_t policy = policy_normal();
    const uint64_t w_policy = u.is_alone ? policy_evict_first() : policy;
    char *w_to = to + X_BYTES;
    const int column = box * DEPTH, w_row = u.expert * p.w_rows + u.band * p.band_rows;
    const bool whole = u.n_rows > HALF_ROWS;
    if (u.n_rows == 0) {
        barrier_arrive(bar);
        return;
    }
    const int x_bytes = whole ? X_BYTES : X_BYTES / 2;
    barrier_expect(bar, W_BYTES + (UP ? 0 : x_bytes));
    if (u.is_paired) { // the neighbouring block loads the other half
        tensor_load_multicast(w_to + rank * (W_BYTES / 2), w_map, bar, column,
                              w_row + rank * p.second, 3, w_policy);
    } else {
        tensor_load(w_to, w_map, bar, column, w_row, w_policy);
        tensor_load(w_to + W_BYTES / 2, w_map, bar, column, w_row + p.second, w_policy);
    }
    if (!UP) {
        tensor_load(to, x_map, bar, column, u.first, policy);
        if (whole) {
            tensor_load(to + X_BYTES / 2, x_map, bar, column, u.first + HALF_ROWS, policy);
        }
    }
}

/* The loading warpgroup; if no rows are gathered, one thread of it. Gathered rows are copied with
 * ordinary cp.async: a thread signals a box after it has issued the next box's copies. */
template <typename T, bool UP>
__device__ __forceinline__ void load_all(const struct product_params &p, const CUtensorMap *w_map,
                                         const CUtensorMap *x_map, char *stages, struct shared *s)
{
    constexpr int EACH = UP ? TILE_ROWS * 8 / WARPGROUP : 1; // vectors of a box per thread
    const int tid = threadIdx.x, rank = (int)cluster_rank(), n = n_units(p);
    const int n_boxes = (p.n_in + DEPTH - 1) / DEPTH;
    const int first_row = tid >> 3, chunk = tid & 7;
    ring at;
    uint64_t *copying = NULL; // barrier of the previous box, whose copies may be in flight
    if (!UP && tid > 0) {
        return;
    }
    for (int i = blockIdx.x / 2; i < n; i += gridDim.x / 2) {
        const struct piece u = find_piece(p, i, rank);
        const T *from[EACH];
#pragma unroll
        for (int j = 0; UP && j < EACH; j++) {
            const int r = first_row + 16 * j;
            from[j] = r < u.n_rows ? (const T *)p.x + p.rows[u.first + r] * p.x_stride : NULL;
        }
        for (int box = 0; box < n_boxes; box++, at.next()) {
            char *to = stages + at.slot * STAGE_BYTES;
            uint64_t *bar = &s->full[at.slot];
            barrier_wait(&s->empty[at.slot], at.parity ^ 1);
            if (tid == 0) {
                if (box == 0) {
                    hand_over(s->piece[at.slot], u);
                }
                load_box<UP>(p, w_map, x_map, u, box, rank, to, bar);
            }
            if (!UP) {
                continue;
            }
            const int c = box * DEPTH + chunk * 8, bytes = c < p.n_in ? 16 : 0;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                if (from[j] != NULL) {
                    copy_async(to + swizzled(first_row + 16 * j, chunk), from[j] + (bytes ? c : 0),
                               bytes);
                }
            }
            copies_commit();
            if (copying) {
                copies_wait<1>();
                fence_async();
                barrier_arrive(copying);
            }
            copying = bar;
        }
    }
    if (copying) {
        copies_wait<0>();
        fence_async();
        barrier_arrive(copying);
    }
}

/* A computing warpgroup. */
template <typename T, int KIND> struct computer {
    const struct product_params &p;
    char *stages;
    struct shared *s;
    ring at;
    int tid, group, n_boxes;
    int last; // slot of the previous box, which the tensor cores may still read
    float d[HALF_COLUMNS];
    struct results<T, KIND> done; // results of the previous piece

    __device__ __forceinline__ void release(int slot) // tells the loaders of both blocks
    {
        if ((tid & 31) < 2) {
            barrier_arrive_at(&s->empty[slot], tid & 31);
        }
    }

    /* Issues a box to the tensor cores; the previous one may still be running. */
    __device__ __forceinline__ void issue(int box)
    {
        barrier_wait(&s->full[at.slot], at.parity);
        const uint32_t x = smem_address(stages + at.slot * STAGE_BYTES);
        const uint32_t a = x + group * (X_BYTES / 2), b = x + X_BYTES;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            wgmma<T, COLUMNS>::ss(d, wgmma_operand(a + k * 32, 0), wgmma_operand(b + k * 32, 0),
                                  box > 0 || k > 0);
        }
        wgmma_commit();
    }

    __device__ __forceinline__ void finish(int box)
    {
        if (box > 0) {
            wgmma_wait<1>();
            release(last);
        }
        last = at.slot;
        at.next();
    }

    /* Issues the first boxes while the previous piece is stored. With n = 0 it only stores. */
    template <int BOX = 0> __device__ __forceinline__ void begin(int n)
    {
        if constexpr (BOX < results<T, KIND>::CHUNKS) {
            if (BOX < n) {
                issue(BOX);
                finish(BOX); // before the stores, so that the loaders need not wait for them
            }
            done.template store<BOX>(p);
            begin<BOX + 1>(n);
        }
    }

    /* This warpgroup has no rows in the piece. */
    __device__ __forceinline__ void skip()
    {
        for (int box = 0; box < n_boxes; box++, at.next()) {
            barrier_wait(&s->full[at.slot], at.parity);
            release(at.slot);
        }
    }

    __device__ __forceinline__ void run()
    {
        const int n = n_units(p), row0 = group * HALF_ROWS + (tid >> 5) * 16 + (tid >> 2 & 7);
        for (int i = blockIdx.x / 2; i < n; i += gridDim.x / 2) {
            barrier_wait(&s->full[at.slot], at.parity);
            const struct piece u = take_over<struct piece>(s->piece[at.slot], tid & 31);
            if (group * HALF_ROWS >= u.n_rows) {
                skip();
                continue;
            }
            int out_row[2]; // output rows of the thread; -1: no such row
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = row0 + 8 * r, place = u.first + row;
                out_row[r] = -1;
                if (row < u.n_rows) {
                    out_row[r] = KIND >= 0 ? place : p.sorted[place];
                }
            }
            begin(n_boxes);
            for (int box = results<T, KIND>::CHUNKS; box < n_boxes; box++) {
                issue(box);
                finish(box);
            }
            wgmma_wait<0>();
            release(last);
            wgmma_settle(d);
            done.take(p, u, d, out_row);
        }
        begin(0);
    }
};

#endif // HAVE_SM90A

template <typename T, int KIND>
__global__ void __launch_bounds__(THREADS, 1)
    moe_product_kernel(const __grid_constant__ struct product_params p,
                       const __grid_constant__ CUtensorMap w_map,
                       const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    extern __shared__ char smem_raw[];
    char *stages = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    struct shared *s = (struct shared *)(stages + STAGES * STAGE_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s->full[i], KIND >= 0 ? 1 + WARPGROUP : 1);
            barrier_init(&s->empty[i], 2 * (2 * WARPGROUP / 32)); // the warps of both blocks
        }
        barrier_init_done();
    }
    cluster_sync();
    pdl_wait();
    pdl_trigger();
    if (threadIdx.x < WARPGROUP) {
        registers_fewer<40>();
        load_all<T, (KIND >= 0)>(p, &w_map, &x_map, stages, s);
    } else {
        registers_more<232>();
        computer<T, KIND> c = {p, stages, s};
        c.tid = threadIdx.x & (WARPGROUP - 1);
        c.group = threadIdx.x / WARPGROUP - 1;
        c.n_boxes = (p.n_in + DEPTH - 1) / DEPTH;
        c.run();
    }
    cluster_sync(); // the other block may still write to this one's shared memory
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

size_t moe_lay_out(char *base, int64_t picks, const struct moe_ffn_args *a, int64_t hidden,
                   struct moe_work *w)
{
    struct moe_room room = {base, 0};
    take_sorted(&room, picks, a->n_experts, w);
    w->act = room.take(picks * a->ffn * 2);
    w->out = room.take(picks * hidden * 2);
    return room.size;
}

extern "C" size_t k_moe_sm90_scratch(const struct moe_ffn_args *a, int32_t hidden, int32_t n_rows)
{
    struct moe_work w;
    return moe_lay_out(NULL, (int64_t)n_rows * a->k, a, hidden, &w);
}

bool moe_rounds(const struct moe_ffn_args *a, const struct moe_weights *w)
{
    return !a->weigh_inputs && !a->plain && !w->gate_up_coded && !w->down_coded &&
           (w->dtype == DT_BF16 || w->dtype == DT_F16) && a->x.dtype == w->dtype &&
           w->hidden % 8 == 0 && a->ffn % 8 == 0 && a->k <= MOE_MAX_K &&
           a->n_experts <= MOE_MAX_EXPERTS &&
           (int64_t)a->n_experts * (w->hidden > 2 * a->ffn ? w->hidden : 2 * a->ffn) < 1 << 30 &&
           ((uintptr_t)w->gate_up | (uintptr_t)w->down) % 16 == 0 &&
           vec_ok(a->x.mem.p, a->x.stride, w->hidden, 2) &&
           vec_ok(a->y.mem.p, a->y.stride, w->hidden, 2);
}

extern "C" bool k_moe_sm90_takes(const struct moe_ffn_args *a, const struct moe_weights *w,
                                 int32_t sm, int32_t n_sms)
{
    return sm == 90 && n_sms >= 2 && moe_rounds(a, w) && a->n_rows >= MIN_ROWS &&
           (int64_t)a->n_rows * a->k >= (int64_t)a->n_experts * MIN_ROWS_PER_EXPERT;
}

template <typename T, int KIND>
static cudaError_t product(cudaStream_t stream, struct product_params p, const void *weights,
                           int64_t n_experts, int64_t x_rows, int64_t tiles, int32_t n_sms)
{
    auto kernel = moe_product_kernel<T, KIND>;
    const bool bf16 = std::is_same<T, bf16_t>::value;
    CUtensorMap w_map, x_map;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         SMEM_BYTES); // the attribute is per device, and ranks have
                                                      // one device each
    if (e == cudaSuccess) {
        e = tensor_map_2d(&w_map, weights, bf16, p.n_in, n_experts * p.w_rows, p.n_in * 2ll,
                          HALF_COLUMNS);
    }
    if (e == cudaSuccess) { // the up product gathers its rows without a tensor map
        e = tensor_map_2d(&x_map, p.x, bf16, p.n_in, x_rows, p.x_stride * 2, HALF_ROWS);
    }
    if (e != cudaSuccess) {
        return e;
    }
    const int64_t units = tiles * ((p.n_bands + 1) / 2), clusters = n_sms / 2;
    return launch_clusters(2, kernel, dim3(2 * (unsigned)(units < clusters ? units : clusters)),
                           dim3(THREADS), SMEM_BYTES, stream, p, w_map, x_map);
}

template <typename T, int KIND>
static cudaError_t products(cudaStream_t stream, const struct moe_ffn_args *a,
                            const struct moe_weights *w, const struct moe_work &s, int32_t n_sms)
{
    const int64_t picks = (int64_t)a->n_rows * a->k, tiles = moe_most_tiles(picks, a->n_experts);
    struct product_params up = {};
    up.tiles = s.tiles;
    up.n_tiles = s.n_tiles;
    up.sorted = s.sorted;
    up.rows = s.rows;
    struct product_params down = up;
    up.x = a->x.mem.p;
    up.x_stride = a->x.stride;
    up.bias = w->gate_up_bias;
    up.out = s.act;
    up.n_in = w->hidden;
    up.n_out = a->ffn;
    up.w_rows = 2 * a->ffn;
    up.shape = a->shape;
    up.band_rows = HALF_COLUMNS;
    up.second = a->ffn;
    up.n_bands = (a->ffn + HALF_COLUMNS - 1) / HALF_COLUMNS;
    down.x = s.act;
    down.x_stride = a->ffn;
    down.bias = a->partial ? nullptr : w->down_bias;
    down.out = s.out;
    down.n_in = a->ffn;
    down.n_out = down.w_rows = w->hidden;
    down.band_rows = COLUMNS;
    down.second = HALF_COLUMNS;
    down.n_bands = (w->hidden + COLUMNS - 1) / COLUMNS;
    down.keeps_out = s.keeps_out;
    const cudaError_t e =
        product<T, KIND>(stream, up, w->gate_up, a->n_experts, a->n_rows, tiles, n_sms);
    return e != cudaSuccess
               ? e
               : product<T, -1>(stream, down, w->down, a->n_experts, picks, tiles, n_sms);
}

template <typename T>
static cudaError_t moe_ffn_sm90(cudaStream_t stream, const struct moe_ffn_args *a,
                                const struct moe_weights *w, const float *gate,
                                const struct moe_shared *shared, const struct moe_work &s,
                                const int32_t *real, int32_t row_offset, int32_t n_sms)
{
    cudaError_t e = moe_sort(stream, a, s, real, row_offset);
    if (e == cudaSuccess && shared) {
        e = moe_shared_down(stream, shared, a, w->gate_up);
    }
    if (e == cudaSuccess) {
        BY_ACTIVATION(a->kind, KIND, e = products<T, KIND>(stream, a, w, s, n_sms));
    }
    if (e != cudaSuccess) {
        return e;
    }
    return moe_sum(stream, a, gate, s, w->hidden, real, row_offset);
}

cudaError_t moe_ffn_beside(cudaStream_t stream, const struct moe_ffn_args *a,
                           const struct moe_weights *w, const float *gate,
                           const struct moe_shared *shared, void *scratch, const int32_t *real,
                           int32_t row_offset, int32_t n_sms)
{
    const int64_t picks = (int64_t)a->n_rows * a->k;
    struct moe_work s;
    moe_lay_out((char *)scratch, picks, a, w->hidden, &s);
    s.keeps_out = picks * w->hidden * 2 <= KEPT_BYTES && w->hidden % LINE_ELEMENTS == 0;
    return w->dtype == DT_BF16
               ? moe_ffn_sm90<bf16_t>(stream, a, w, gate, shared, s, real, row_offset, n_sms)
               : moe_ffn_sm90<f16_t>(stream, a, w, gate, shared, s, real, row_offset, n_sms);
}

extern "C" cudaError_t k_moe_ffn_sm90(cudaStream_t stream, const struct moe_ffn_args *a,
                                      const struct moe_weights *w, const float *gate, void *scratch,
                                      const int32_t *real, int32_t row_offset, int32_t n_sms)
{
    return moe_ffn_beside(stream, a, w, gate, NULL, scratch, real, row_offset, n_sms);
}
