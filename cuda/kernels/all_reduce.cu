// SPDX-License-Identifier: Apache-2.0
/* All-reduce over ranks through peer memory, fused with the residual addition and the norm that
 * follow: one kernel instead of a collective and a norm. Also gathers the ranks' logits. See
 * cuda/all_reduce.h for the protocol.
 *
 * Grid: up to two blocks per multiprocessor; a block takes rows blockIdx.x, + gridDim.x, ..., and a
 * thread holds NV 16-byte vectors of a row. A block sends all its rows before it waits for the
 * first. Every rank assigns rows to blocks in the same way, and a block waits only for rows that
 * blocks of the same or a lower number send on other ranks, so the kernel makes progress however
 * many blocks are resident. Bound by the latency of the links for small messages and by their
 * bandwidth for large ones. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/norm.cuh"
#include "cuda/kernels/device/peer.cuh"
#include "cuda/kernels/kernels.h"

struct reduce_params {
    int32_t n_rows, width, y_stride, x_stride, out_stride;
    float eps, weight_offset, delta_scale, x_scale;
    bool layer; // subtract the mean
    bool early; // start the next kernel before the wait; see device/launch.cuh
};

template <typename T> __device__ __forceinline__ vec<T> as_vec(uint4 v)
{
    vec<T> r;
    *reinterpret_cast<uint4 *>(r.v) = v;
    return r;
}

template <typename T> __device__ __forceinline__ uint4 load16(const T *p)
{
    return *reinterpret_cast<const uint4 *>(p);
}

/* Where the row of a source rank is in a receiver's area. */
struct area_map {
    int32_t n_ranks, rank, n_vecs;
    int64_t n_rows, owned; // owned: maximum number of rows that one rank sums

    __device__ __forceinline__ int64_t slot(int source, int receiver) const
    {
        return source < receiver ? source : source - 1;
    }
    __device__ __forceinline__ int64_t whole(int source, int receiver, int row, int i) const
    {
        return ((slot(source, receiver) * n_rows + row) * n_vecs + i) * 16;
    }
    __device__ __forceinline__ int64_t part(int source, int receiver, int row, int i) const
    {
        return ((slot(source, receiver) * owned + row / n_ranks) * n_vecs + i) * 16;
    }
    __device__ __forceinline__ int64_t sum(int row, int i) const
    {
        return (((n_ranks - 1) * owned + row) * n_vecs + i) * 16;
    }
};

/* Sends the block's rows: to every rank (one-shot), or to their owners (two-shot). */
template <typename T, bool TWO_SHOT>
__device__ __forceinline__ void send_rows(const struct peer_view &peers, const struct area_map &map,
                                          int64_t area, const T *y, const struct reduce_params &p)
{
    for (int row = blockIdx.x; row < p.n_rows; row += gridDim.x) {
        const int owner = row % map.n_ranks;
        if (TWO_SHOT && owner == map.rank) {
            continue;
        }
        for (int i = threadIdx.x; i < map.n_vecs; i += blockDim.x) {
            const uint4 v =
                sendable(load16(y + (int64_t)row * p.y_stride + (int64_t)i * vec<T>::N));
            if constexpr (TWO_SHOT) {
                send(peers.areas[owner] + area + map.part(map.rank, owner, row, i), v);
            } else {
                for (int r = 0; r < map.n_ranks; r++) {
                    if (r != map.rank) {
                        send(peers.areas[r] + area + map.whole(map.rank, r, row, i), v);
                    }
                }
            }
        }
    }
}

/* The sum of vector i of a row, rounded to T. Every rank adds in the order of ranks, so all get the
 * same bits. */
template <typename T, bool TWO_SHOT>
__device__ __forceinline__ vec<T> sum_of(const struct peer_view &peers, const struct area_map &map,
                                         int64_t area, uint4 own, int row, int i)
{
    const char *mine = peers.areas[map.rank] + area;
    if (TWO_SHOT && row % map.n_ranks != map.rank) {
        return as_vec<T>(receive(mine + map.sum(row, i), peers.aborted));
    }
    float sum[vec<T>::N];
#pragma unroll
    for (int e = 0; e < vec<T>::N; e++) {
        sum[e] = 0.0f;
    }
    for (int r = 0; r < map.n_ranks; r++) {
        uint4 v = own;
        if (r != map.rank) {
            v = receive(
                mine + (TWO_SHOT ? map.part(r, map.rank, row, i) : map.whole(r, map.rank, row, i)),
                peers.aborted);
        }
        const vec<T> add = as_vec<T>(v);
#pragma unroll
        for (int e = 0; e < vec<T>::N; e++) {
            sum[e] = r == 0 ? to_float(add.v[e]) : sum[e] + to_float(add.v[e]);
        }
    }
    vec<T> out;
#pragma unroll
    for (int e = 0; e < vec<T>::N; e++) {
        out.v[e] = from_float<T>(sum[e]);
    }
    if constexpr (TWO_SHOT) {
        const uint4 whole = sendable(*reinterpret_cast<const uint4 *>(out.v));
        for (int r = 0; r < map.n_ranks; r++) {
            if (r != map.rank) {
                send(peers.areas[r] + area + map.sum(row, i), whole);
            }
        }
        out = as_vec<T>(whole); // so that zeros have the sign that other ranks receive
    }
    return out;
}

/* The norm's weights for this thread's vectors. They are loaded into registers in advance if they
 * fit. */
template <typename T, int NV> struct norm_weights {
    static constexpr int N = vec<T>::N;
    static constexpr bool EARLY = NV < 4;
    const float *from;
    float offset, w[EARLY ? NV : 1][N];

    __device__ __forceinline__ float fetch(int i) const
    {
        return from ? from[i] + offset : 1.0f;
    }
    __device__ __forceinline__ norm_weights(const float *weight, float added, int32_t width)
        : from(weight), offset(added)
    {
        if constexpr (EARLY) {
#pragma unroll
            for (int j = 0; j < NV; j++) {
                const int i = (j * blockDim.x + threadIdx.x) * N;
#pragma unroll
                for (int e = 0; e < N; e++) {
                    w[j][e] = i < width ? fetch(i + e) : 1.0f;
                }
            }
        }
    }
    __device__ __forceinline__ float at(int j, int e, int i) const
    {
        return EARLY ? w[EARLY ? j : 0][e] : fetch(i + e);
    }
};

template <typename T, int NV>
__device__ __forceinline__ void
norm_row(const vec<T> *v, T *out, const struct norm_weights<T, NV> &weights, const float *bias,
         float sum, float *shared, const struct reduce_params &p)
{
    constexpr int N = vec<T>::N;
    const struct row_moments m = row_moments_of<T, NV>(v, sum, p.layer, p.width, p.eps, shared);
#pragma unroll
    for (int j = 0; j < NV; j++) {
        const int i = (j * blockDim.x + threadIdx.x) * N;
        if (i < p.width) {
            vec<T> y;
#pragma unroll
            for (int e = 0; e < N; e++) {
                y.v[e] = from_float<T>(normed(to_float(v[j].v[e]), weights.at(j, e, i),
                                              bias ? bias[i + e] : 0.0f, m.mean, m.scale));
            }
            y.store(out + i);
        }
    }
}

/* Adds the ranks' rows and the bias to the residual in v. The result stays in v and is stored to
 * `to`. Returns this thread's share of the norm's first sum. */
template <typename T, int NV, bool TWO_SHOT>
__device__ __forceinline__ float add_row(const struct peer_view &peers, const struct area_map &map,
                                         int64_t area, const uint4 (&own)[NV], vec<T> (&v)[NV],
                                         int row, const float *sum_bias, bool residual, T *to,
                                         const struct reduce_params &p)
{
    constexpr int N = vec<T>::N;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < NV; j++) {
        const int i = j * blockDim.x + threadIdx.x;
        if (i < map.n_vecs) {
            vec<T> s = sum_of<T, TWO_SHOT>(peers, map, area, own[j], row, i);
#pragma unroll
            for (int e = 0; e < N; e++) {
                if (sum_bias) {
                    s.v[e] = from_float<T>(to_float(s.v[e]) + sum_bias[i * N + e]);
                }
                if (residual) {
                    const float f = to_float(v[j].v[e]) + p.delta_scale * to_float(s.v[e]);
                    s.v[e] = from_float<T>(f * p.x_scale);
                }
                sum = moment_add(sum, to_float(s.v[e]), p.layer);
            }
            v[j] = s;
            s.store(to + i * N);
        }
    }
    return sum;
}

/* x NULL: the sums are stored to y. Otherwise x = (x + delta_scale * (sum + sum_bias)) * x_scale
 * and, if `out` is given, out = norm(x). Values are rounded wherever the separate ops would have
 * stored them. */
template <typename T, int NV, bool TWO_SHOT>
__global__ void __launch_bounds__(1024)
    reduce_norm_kernel(const __grid_constant__ struct peer_view peers, T *y, const float *sum_bias,
                       T *x, T *out, const float *weight, const float *bias, struct reduce_params p)
{
    constexpr int N = vec<T>::N;
    __shared__ float shared[32];
    /* No kernel writes the weights, so they can be loaded before the rows arrive. */
    const struct norm_weights<T, NV> weights(weight, p.weight_offset, out ? p.width : 0);
    pdl_wait();
    pdl_trigger();
    const uint32_t now = area_of_call(peers.state);
    const int64_t area = (int64_t)now * (int64_t)peers.area_bytes;
    const struct area_map map = {peers.n_ranks, peers.rank, p.width / N, p.n_rows,
                                 (p.n_rows + peers.n_ranks - 1) / peers.n_ranks};
    send_rows<T, TWO_SHOT>(peers, map, area, y, p);
    clear_before(peers, now);
    next_call(peers.state, now,
              peer_bytes(TWO_SHOT ? PEER_TWO_SHOT : PEER_ONE_SHOT, peers.n_ranks, p.n_rows,
                         (int64_t)map.n_vecs * 16));
    for (int row = blockIdx.x; row < p.n_rows; row += gridDim.x) {
        vec<T> v[NV];
        uint4 own[NV];
        T *x_row = x + (int64_t)row * p.x_stride, *y_row = y + (int64_t)row * p.y_stride;
#pragma unroll
        // While waiting, load everything that other ranks do not send.
        for (int j = 0; j < NV; j++) {
            const int i = j * blockDim.x + threadIdx.x;
            if (i < map.n_vecs) {
                own[j] = sendable(load16(y_row + i * N));
                if (x) {
                    v[j].load(x_row + i * N);
                }
            }
        }
        const float sum = add_row<T, NV, TWO_SHOT>(peers, map, area, own, v, row, sum_bias,
                                                   x != nullptr, x ? x_row : y_row, p);
        if (out) {
            norm_row<T, NV>(v, out + (int64_t)row * p.out_stride, weights, bias, sum, shared, p);
        }
    }
}

/* The one-shot version with one block per row. It issues all loads of a row at once, which is one
 * round trip to memory before the wait for the other ranks, and advances the shared state after
 * that wait. */
template <typename T, int NV>
__global__ void __launch_bounds__(1024)
    reduce_norm_row_kernel(const __grid_constant__ struct peer_view peers, T *y,
                           const float *sum_bias, T *x, T *out, const float *weight,
                           const float *bias, struct reduce_params p)
{
    constexpr int N = vec<T>::N;
    __shared__ float shared[32];
    const struct norm_weights<T, NV> weights(weight, p.weight_offset, out ? p.width : 0);
    const int row = blockIdx.x;
    const struct area_map map = {peers.n_ranks, peers.rank, p.width / N, p.n_rows, 0};
    T *x_row = x + (int64_t)row * p.x_stride, *y_row = y + (int64_t)row * p.y_stride;
    vec<T> v[NV];
    uint4 own[NV];
    if (p.early) {
        pdl_trigger();
    }
    pdl_wait();
    pdl_trigger();
#pragma unroll
    for (int j = 0; j < NV; j++) {
        const int i = j * blockDim.x + threadIdx.x;
        if (i < map.n_vecs) {
            own[j] = load16(y_row + i * N);
            if (x) {
                v[j].load(x_row + i * N);
            }
        }
    }
    uint64_t used[PEER_AREAS];
    const uint32_t now = state_of_call(peers.state, used);
    const int64_t area = (int64_t)now * (int64_t)peers.area_bytes;
#pragma unroll
    for (int j = 0; j < NV; j++) {
        const int i = j * blockDim.x + threadIdx.x;
        if (i < map.n_vecs) {
            own[j] = sendable(own[j]);
            for (int r = 0; r < map.n_ranks; r++) {
                if (r != map.rank) {
                    send(peers.areas[r] + area + map.whole(map.rank, r, row, i), own[j]);
                }
            }
        }
    }
    const uint32_t before = now == 0 ? PEER_AREAS - 1 : now - 1;
    clear_area(peers, before, used_of(used, before));
    __syncthreads(); // all threads have read the state
    uint32_t n_ended = 0;
    if (threadIdx.x == 0 && gridDim.x > 1) {
        // Overlaps with the wait for the other ranks' rows.
        n_ended = atomicAdd(&peers.state->ended, 1u);
    }
    const float sum = add_row<T, NV, false>(peers, map, area, own, v, row, sum_bias, x != nullptr,
                                            x ? x_row : y_row, p);
    if (threadIdx.x == 0 && n_ended == gridDim.x - 1) {
        move_on(peers.state, now,
                peer_bytes(PEER_ONE_SHOT, peers.n_ranks, p.n_rows, (int64_t)map.n_vecs * 16));
    }
    if (out) {
        norm_row<T, NV>(v, out + (int64_t)row * p.out_stride, weights, bias, sum, shared, p);
    }
}

__global__ void absent_kernel(uint4 *p, uint64_t n)
{
    pdl_wait();
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        p[i] = make_uint4(PEER_ABSENT, PEER_ABSENT, PEER_ABSENT, PEER_ABSENT);
    }
}

extern "C" cudaError_t k_peer_clear(cudaStream_t stream, void *areas, uint64_t n_bytes)
{
    return launch(absent_kernel, dim3(1024), dim3(256), 0, stream, (uint4 *)areas, n_bytes / 16);
}

template <typename T, int NV>
static cudaError_t launch_way(cudaStream_t stream, enum peer_way way, dim3 grid, dim3 block,
                              const struct peer_view &peers, T *y, const float *sum_bias, T *x,
                              T *out, const float *weight, const float *bias,
                              const struct reduce_params &p)
{
    if (way == PEER_ONE_SHOT && grid.x == (unsigned)p.n_rows) {
        return launch(reduce_norm_row_kernel<T, NV>, grid, block, 0, stream, peers, y, sum_bias, x,
                      out, weight, bias, p);
    }
    return way == PEER_ONE_SHOT ? launch(reduce_norm_kernel<T, NV, false>, grid, block, 0, stream,
                                         peers, y, sum_bias, x, out, weight, bias, p)
                                : launch(reduce_norm_kernel<T, NV, true>, grid, block, 0, stream,
                                         peers, y, sum_bias, x, out, weight, bias, p);
}

extern "C" cudaError_t k_peer_reduce(cudaStream_t stream, enum peer_way way,
                                     const struct peer_view *peers, const struct tensor *y,
                                     const float *sum_bias, const struct norm_args *a,
                                     const float *weight, const float *bias, int32_t n_rows,
                                     int32_t width, int32_t max_blocks)
{
    struct reduce_params p = {};
    p.early = n_rows <= 32; // with more rows this gains nothing
    p.n_rows = n_rows;
    p.width = width;
    p.y_stride = y->stride;
    if (a) {
        p.x_stride = a->x.stride;
        p.out_stride = a->out.stride;
        p.eps = a->eps;
        p.weight_offset = a->weight_offset;
        p.delta_scale = a->delta_scale;
        p.x_scale = a->x_scale != 0.0f ? a->x_scale : 1.0f;
        p.layer = a->kind == NORM_LAYER;
    }
    BY_DTYPE(y->dtype, T, {
        T *y_mem = (T *)y->mem.p, *x = a ? (T *)a->x.mem.p : NULL;
        T *out = a ? (T *)a->out.mem.p : NULL;
        const int n_vecs = width / vec<T>::N;
        const int threads = n_vecs >= 1024 ? 1024 : (n_vecs + 31) / 32 * 32;
        const dim3 grid(n_rows < max_blocks ? n_rows : max_blocks), block(threads);
        switch ((n_vecs + threads - 1) / threads) {
        case 1:
            return launch_way<T, 1>(stream, way, grid, block, *peers, y_mem, sum_bias, x, out,
                                    weight, bias, p);
        case 2:
            return launch_way<T, 2>(stream, way, grid, block, *peers, y_mem, sum_bias, x, out,
                                    weight, bias, p);
        case 3:
        case 4:
            return launch_way<T, 4>(stream, way, grid, block, *peers, y_mem, sum_bias, x, out,
                                    weight, bias, p);
        default: return cudaErrorInvalidValue;
        }
    });
    return cudaErrorInvalidValue;
}

/* Gathers the ranks' columns of the logits, [n_out, width] each, side by side. The protocol is that
 * of a one-shot sum. Each rank also stores its own columns in the form in which it sends them, so
 * that all ranks have the same bits. */
__global__ void join_peers_kernel(const __grid_constant__ struct peer_view peers,
                                  const float *local, float *out, int64_t out_stride, int32_t n_out,
                                  int32_t width)
{
    pdl_wait();
    pdl_trigger();
    const uint32_t now = area_of_call(peers.state);
    const int64_t area = (int64_t)now * (int64_t)peers.area_bytes;
    const int32_t n_vecs = width / 4, first = blockIdx.x * blockDim.x + threadIdx.x;
    const struct area_map map = {peers.n_ranks, peers.rank, n_vecs, n_out, 0};
    const int32_t n = n_out * n_vecs, step = gridDim.x * blockDim.x;
    float *own = out + (int64_t)peers.rank * width;
    for (int32_t i = first; i < n; i += step) {
        const int32_t row = i / n_vecs, at = i % n_vecs;
        const uint4 v = sendable(load16(local + (int64_t)i * 4));
        for (int r = 0; r < peers.n_ranks; r++) {
            if (r != peers.rank) {
                send(peers.areas[r] + area + map.whole(peers.rank, r, row, at), v);
            }
        }
        *reinterpret_cast<uint4 *>(own + row * out_stride + at * 4) = v;
    }
    clear_before(peers, now);
    next_call(peers.state, now,
              peer_bytes(PEER_ONE_SHOT, peers.n_ranks, n_out, (int64_t)n_vecs * 16));
    const char *mine = peers.areas[peers.rank] + area;
    for (int r = 0; r < peers.n_ranks; r++) {
        for (int32_t i = first; i < n && r != peers.rank; i += step) {
            const int32_t row = i / n_vecs, at = i % n_vecs;
            *reinterpret_cast<uint4 *>(out + row * out_stride + (int64_t)r * width + at * 4) =
                receive(mine + map.whole(r, peers.rank, row, at), peers.aborted);
        }
    }
}

extern "C" cudaError_t k_join_peers(cudaStream_t stream, const struct peer_view *peers,
                                    const float *local, float *out, int32_t out_stride,
                                    int32_t n_out, int32_t width, int32_t max_blocks)
{
    const int64_t blocks = ((int64_t)n_out * (width / 4) + 255) / 256;
    return launch(join_peers_kernel, dim3((unsigned)(blocks < max_blocks ? blocks : max_blocks)),
                  dim3(256), 0, stream, *peers, local, out, (int64_t)out_stride, n_out, width);
}
