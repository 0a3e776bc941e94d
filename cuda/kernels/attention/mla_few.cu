// SPDX-License-Identifier: Apache-2.0
/* MLA for few decoding rows, each of which is a separate sequence, for Hopper: the store of the new
 * key, the absorbed product of the query, attention, and the expansion of its result in one launch.
 * Separately these take up to six launches, each of which lasts longer than reading its operands.
 *
 * A unit is a row and a head; a cluster of blocks processes it. Every block
 *   1. computes its slice of the absorbed query and sends it to all blocks,
 *   2. attends to its part of the keys: a warp takes two consecutive keys at a time, which serve as
 *      values, too, and stay in its registers (a lane has some elements of each),
 *   3. sends its sums to all blocks, joins all blocks' sums, and computes its slice of the head.
 * The blocks exchange data by stores that the receiver's mbarrier counts, so no cluster barrier is
 * needed to order data. Each head reads the latent keys again, which is why this kernel is only for
 * short contexts (attention_few_keys); the general path reads them once for 64 heads.
 *
 * The weights of steps 1 and 3 and each warp's first keys do not depend on the preceding kernel and
 * are fetched before the wait for it. Bound by latency: launch, two exchanges, a load of keys. */
#include "cuda/kernels/attention/mla_key.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/reduce.cuh"

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    BATCH = 2,   // keys that a warp loads at once; they are in one page
    MOST_LOG = 3 // log2 of the blocks of a cluster
};

struct mla_few_params {
    const void *q, *kv;          // rows of the products: [head][nope | ROPE], [LORA | ROPE]
    const void *absorb, *expand; // weights: [head][LORA][nope], [head][v_dim][LORA]
    void *out;
    int32_t q_stride, q_head, kv_stride, out_stride, out_head;
    int32_t n_rows, n_heads, nope, v_dim;
    int32_t log_cluster, log_bt; // log2 of the blocks of a cluster, and of the tokens of a page
    struct kv_view pages;
    struct pass_view pass;
    struct rope_view rope;
    const float *kv_norm;
    float eps, scale_log2;
    struct query_growth growth;
};

/* Byte offsets in a block's shared memory, in this order: weights, then arrays of floats. */
template <int LORA> struct mla_layout {
    enum { PART = LORA + 4 }; // sums of a block: values, maximum, denominator
    int32_t absorb, expand, query, nope, latent, room, parts, bytes;

    __host__ __device__ explicit mla_layout(const struct mla_few_params &p)
    {
        absorb = 128; // after the barriers
        expand = absorb + (LORA >> p.log_cluster) * p.nope * 2;
        query = expand + (p.v_dim >> p.log_cluster) * LORA * 2;
        nope = query + (LORA + ROPE) * 4;
        latent = nope + (p.nope + 2 * ROPE) * 4; // after nope: the positional parts of q and k, not
                                                 // yet rotated
        room = latent + LORA * 4;
        parts = room + WARPS * PART * 4;
        bytes = parts + (PART << p.log_cluster) * 4;
    }
};

#if HAVE_SM90A

template <typename T, int LORA> struct mla_unit {
    const struct mla_few_params &p;
    char *smem;
    struct mla_layout<LORA> at;
    struct pass_row row; // row.slot_pos: the number of earlier keys
    int row_id, head, rank, n_blocks;
    struct key_of<T, LORA> keys[BATCH];
    float2 angle;                        // of element threadIdx.x of the query's positional part
    float query[LORA / 32 + 2];          // this lane's elements
    float values[LORA / 32], top, total; // of this warp's keys

    __device__ __forceinline__ uint64_t *bar(int i) const
    {
        return (uint64_t *)smem + i;
    }
    __device__ __forceinline__ float *floats(int32_t offset) const
    {
        return (float *)(smem + offset);
    }

    /* Barriers: weights, absorbed query, sums of all blocks. */
    __device__ __forceinline__ void begin()
    {
        if (threadIdx.x == 0) {
            const int slice = LORA >> p.log_cluster, v_slice = p.v_dim >> p.log_cluster;
            const uint32_t absorb = (uint32_t)(slice * p.nope * 2);
            const uint32_t expand = (uint32_t)(v_slice * LORA * 2);
            for (int i = 0; i < 3; i++) {
                barrier_init(bar(i), 1);
            }
            barrier_init_done();
            barrier_expect(bar(0), absorb + expand);
            barrier_expect(bar(1), (LORA + ROPE) * 4);
            barrier_expect(bar(2), (uint32_t)(n_blocks * (LORA * 4 + 8)));
            const uint64_t once = policy_evict_first();
            bulk_load(smem + at.absorb,
                      (const T *)p.absorb + ((int64_t)head * LORA + rank * slice) * p.nope, absorb,
                      bar(0), once);
            bulk_load(smem + at.expand,
                      (const T *)p.expand + ((int64_t)head * p.v_dim + rank * v_slice) * LORA,
                      expand, bar(0), once);
        }
        __syncthreads();
        cluster_begun();
    }

    /* The address of key `number` of the sequence. */
    __device__ __forceinline__ T *key_at(int number) const
    {
        const int64_t page =
            p.pass.blocks[(int64_t)row.lane * p.pass.blocks_stride + (number >> p.log_bt)];
        return (T *)p.pages.base + page * p.pages.page_stride +
               (int64_t)(number & ((1 << p.log_bt) - 1)) * (LORA + ROPE);
    }

    /* Loads the earlier keys from `first` on. */
    __device__ __forceinline__ void load_keys(int first)
    {
        if (first >= row.slot_pos) {
            return;
        }
        const T *key = key_at(first);
#pragma unroll
        for (int i = 0; i < BATCH; i++) { // past the end, repeat the last key
            keys[i].load(key + min(i, row.slot_pos - 1 - first) * (LORA + ROPE));
        }
    }

    __device__ __forceinline__ const float *angles() const
    {
        const int32_t pos = min(row.pos, p.rope.max_pos - 1);
        return p.rope.cos_sin + (int64_t)pos * p.rope.n_pairs * 2;
    }

    /* Called before the wait. */
    __device__ __forceinline__ void load_angle()
    {
        if (threadIdx.x < ROPE) {
            angle = angle_of((int)threadIdx.x, p.rope, angles());
        }
    }

    /* Brings the head's query to shared memory, and rotates its positional part, which the barrier
     * of the absorbed query counts, too. */
    __device__ __forceinline__ void load_query()
    {
        const T *q = (const T *)p.q + (int64_t)row_id * p.q_stride + (int64_t)head * p.q_head;
        const float growth = growth_at(p.growth, row.pos);
        float *nope = floats(at.nope), *raw = nope + p.nope;
        for (int i = threadIdx.x; i < p.nope + ROPE; i += THREADS) {
            const float x = to_float(q[i]);
            nope[i] = i < p.nope && growth != 1.0f ? to_float(from_float<T>(x * growth)) : x;
        }
        __syncthreads();
        const int i = (int)threadIdx.x;
        if (i < ROPE) {
            const float x = to_float(from_float<T>(rotated(raw, i, p.rope, angle) * growth));
            const float next = __shfl_down_sync(0xffffffffu, x, 1);
            if (i % 2 == 0) {
                store_in(address_in(floats(at.query) + LORA + i, rank), address_in(bar(1), rank), x,
                         next);
            }
        }
    }

    /* Four lanes compute an element; they take blocks of 32 inputs in an order that avoids bank
     * conflicts. Each of eight lanes sends the same pair of elements to a different block. */
    __device__ __forceinline__ void absorb()
    {
        const int lane = threadIdx.x & 31, slice = LORA >> p.log_cluster;
        const float *x = floats(at.nope);
#pragma unroll 1
        for (int o = (int)threadIdx.x >> 2; o < slice; o += THREADS / 4) {
            const T *w = (const T *)(smem + at.absorb) + o * p.nope;
            float sum = 0.0f;
#pragma unroll 1
            for (int b = 0; b < p.nope / 32; b++) {
                const int i = (b ^ (o & 1)) * 32 + (lane & 3) * 8;
                sum = add_dot(sum, w + i, x + i);
            }
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            sum = to_float(from_float<T>(sum));
            const float other = __shfl_xor_sync(0xffffffffu, sum, 4);
            const int to = lane & 7;
            if (to < n_blocks) {
                store_in(address_in(floats(at.query) + rank * slice + (o & ~1), to),
                         address_in(bar(1), to), lane & 4 ? other : sum, lane & 4 ? sum : other);
            }
        }
    }

    /* sum + eight elements of w times those of x. */
    __device__ __forceinline__ static float add_dot(float sum, const T *w, const float *x)
    {
        vec<T> v;
        v.load(w);
        const float4 a = *(const float4 *)x, b = *(const float4 *)(x + 4);
        sum = fmaf(to_float(v.v[0]), a.x, sum);
        sum = fmaf(to_float(v.v[1]), a.y, sum);
        sum = fmaf(to_float(v.v[2]), a.z, sum);
        sum = fmaf(to_float(v.v[3]), a.w, sum);
        sum = fmaf(to_float(v.v[4]), b.x, sum);
        sum = fmaf(to_float(v.v[5]), b.y, sum);
        sum = fmaf(to_float(v.v[6]), b.z, sum);
        return fmaf(to_float(v.v[7]), b.w, sum);
    }

    /* Called by one warp. Makes the new key: normalises the latent part and rotates the rest. The
     * cluster of the first head stores the key. */
    __device__ __forceinline__ struct key_of<T, LORA> new_key()
    {
        const int lane = threadIdx.x & 31;
        struct key_of<T, LORA> key;
        key.load((const T *)p.kv + (int64_t)row_id * p.kv_stride);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < LORA / 32; i++) {
            const float x = to_float(key.latent[i / 8].v[i % 8]);
            sum = fmaf(x, x, sum);
        }
        const float scale = rsqrtf(warp_sum(sum) * (1.0f / (float)LORA) + p.eps);
#pragma unroll
        for (int i = 0; i < LORA / 32; i++) {
            const float w = p.kv_norm ? p.kv_norm[i / 8 * 256 + lane * 8 + i % 8] : 1.0f;
            T &x = key.latent[i / 8].v[i % 8];
            x = from_float<T>(to_float(x) * scale * w);
        }
        const bool ok = key.drop_broken();
        float *raw = floats(at.nope) + p.nope + ROPE;
        const float2 two = unpack_pair<T>(key.rope);
        raw[lane * 2] = two.x;
        raw[lane * 2 + 1] = two.y;
        __syncwarp();
        float two_rotated[2];
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            const float x = rotated(raw, lane * 2 + i, p.rope, angles());
            two_rotated[0] = i == 0 ? x : two_rotated[0];
            two_rotated[1] = x;
        }
        key.rope = ok ? pack<T>(two_rotated[0], two_rotated[1]) : pack<T>(NAN, NAN);
        if (head == 0) {
            key.store(key_at(row.slot_pos));
        }
        return key;
    }

    /* This lane's elements of the absorbed query. */
    __device__ __forceinline__ void take_query()
    {
        const int lane = threadIdx.x & 31;
        const float *q = floats(at.query);
#pragma unroll
        for (int i = 0; i < LORA / 32; i++) {
            query[i] = q[i / 8 * 256 + lane * 8 + i % 8];
            values[i] = 0.0f;
        }
        query[LORA / 32] = q[LORA + lane * 2];
        query[LORA / 32 + 1] = q[LORA + lane * 2 + 1];
        top = -INFINITY;
        total = 0.0f;
    }

    /* Attends to the first n keys of the batch. */
    __device__ __forceinline__ void add_keys(int n)
    {
        float score[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const float2 two = unpack_pair<T>(keys[k].rope);
            score[k] = two.x * query[LORA / 32] + two.y * query[LORA / 32 + 1];
#pragma unroll
            for (int i = 0; i < LORA / 32; i++) {
                score[k] = fmaf(to_float(keys[k].latent[i / 8].v[i % 8]), query[i], score[k]);
            }
        }
        float high = top;
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            score[k] = k < n ? warp_sum(score[k]) : -INFINITY;
            high = fmaxf(high, score[k]);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            keys[k].forget_floats();
        }
        const float decay = exp2_fast((top - high) * p.scale_log2);
        top = high;
        total *= decay;
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            score[k] = exp2_fast((score[k] - high) * p.scale_log2);
            total += score[k];
        }
#pragma unroll
        for (int i = 0; i < LORA / 32; i++) {
            float v = values[i] * decay;
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                v = fmaf(score[k], to_float(keys[k].latent[i / 8].v[i % 8]), v);
            }
            values[i] = v;
        }
    }

    /* Puts the new key into the batch that begins at key `first` if it belongs there. */
    __device__ __forceinline__ void add_new_key(int first)
    {
        if (row.slot_pos < first || row.slot_pos >= first + BATCH) {
            return;
        }
        const struct key_of<T, LORA> added = new_key();
#pragma unroll
        for (int k = 0; k < BATCH; k++) { // the places after it hold no keys
            if (row.slot_pos <= first + k) {
                keys[k] = added;
            }
        }
    }

    /* Processes all keys of this warp. The first batch has been loaded, except the new key. */
    __device__ __forceinline__ void attend()
    {
        int first = (rank * WARPS + ((int)threadIdx.x >> 5)) * BATCH;
#pragma unroll 1
        for (bool begun = false;; begun = true) {
            add_new_key(first);
            if (!begun) {
                barrier_wait(bar(1), 0);
                take_query();
            }
            if (first > row.slot_pos) {
                break;
            }
            add_keys(min(BATCH, row.slot_pos + 1 - first));
            first += n_blocks * WARPS * BATCH;
            load_keys(first);
        }
    }

    /* The factor that converts sums relative to the maximum `part` to sums relative to `all`. */
    __device__ __forceinline__ float share(float part, float all) const
    {
        return part == -INFINITY ? 0.0f : exp2_fast((part - all) * p.scale_log2);
    }

    /* Joins n parts, up to MOST. Thread t of the block gets elements 2 t and 2 t + 1. */
    template <int MOST>
    __device__ __forceinline__ float2 join(const float *parts, int n, float *high, float *sum) const
    {
        enum { PART = mla_layout<LORA>::PART };
        const int e = min(2 * (int)threadIdx.x, LORA - 2);
        float2 v = {0.0f, 0.0f};
        float tops[MOST];
        *high = -INFINITY;
        *sum = 0.0f;
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            tops[i] = i < n ? parts[i * PART + LORA] : -INFINITY;
            *high = fmaxf(*high, tops[i]);
        }
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (i < n) {
                const float *part = parts + i * PART;
                const float by = share(tops[i], *high);
                const float2 x = *(const float2 *)(part + e);
                v.x = fmaf(x.x, by, v.x);
                v.y = fmaf(x.y, by, v.y);
                *sum = fmaf(part[LORA + 1], by, *sum);
            }
        }
        return v;
    }

    /* Joins the sums of the block's warps, sends the result to all blocks, and joins what all
     * blocks sent: attention's output, in latent form.
     */
    __device__ __forceinline__ void exchange()
    {
        enum { PART = mla_layout<LORA>::PART };
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, e = 2 * (int)threadIdx.x;
        float *mine = floats(at.room) + warp * PART, high, sum;
#pragma unroll
        for (int i = 0; i < LORA / 32; i += 4) {
            *(float4 *)(mine + i / 8 * 256 + lane * 8 + i % 8) =
                make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
        }
        if (lane == 0) {
            mine[LORA] = top;
            mine[LORA + 1] = total;
        }
        __syncthreads();
        float2 v = join<WARPS>(floats(at.room), WARPS, &high, &sum);
        float *part = floats(at.parts) + rank * PART;
#pragma unroll 1
        for (int to = 0; to < n_blocks; to++) {
            const uint32_t there = address_in(bar(2), to);
            if (e < LORA) {
                store_in(address_in(part + e, to), there, v.x, v.y);
            }
            if (threadIdx.x == 0) {
                store_in(address_in(part + LORA, to), there, high, sum);
            }
        }
        barrier_wait(bar(2), 0);
        v = join<1 << MOST_LOG>(floats(at.parts), n_blocks, &high, &sum);
        if (e < LORA) {
            float *latent = floats(at.latent) + e;
            latent[0] = to_float(from_float<T>(__fdividef(v.x, sum)));
            latent[1] = to_float(from_float<T>(__fdividef(v.y, sum)));
        }
        __syncthreads();
    }

    /* Eight lanes compute an element of the head. */
    __device__ __forceinline__ void expand()
    {
        const int lane = threadIdx.x & 31, slice = p.v_dim >> p.log_cluster;
        const float *x = floats(at.latent);
        T *out =
            (T *)p.out + (int64_t)row_id * p.out_stride + (int64_t)head * p.out_head + rank * slice;
#pragma unroll 1
        for (int o = (int)threadIdx.x >> 3; o < slice; o += THREADS / 8) {
            const T *w = (const T *)(smem + at.expand) + o * LORA;
            float sum = 0.0f;
#pragma unroll 2
            for (int i = (lane & 7) * 8; i < LORA; i += 64) {
                sum = add_dot(sum, w + i, x + i);
            }
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            sum += __shfl_xor_sync(0xffffffffu, sum, 4);
            if ((lane & 7) == 0) {
                out[o] = from_float<T>(sum);
            }
        }
    }
};

#endif // HAVE_SM90A

template <typename T, int LORA>
__global__ void __launch_bounds__(THREADS, 2)
    mla_few_kernel(const __grid_constant__ struct mla_few_params p)
{
#if HAVE_SM90A
    extern __shared__ __align__(128) char smem[];
    const int unit = (int)blockIdx.x >> p.log_cluster, row_id = unit / p.n_heads;
    if (p.pass.row_seq[row_id] < 0) { // padding
        pdl_wait();
        return;
    }
    mla_unit<T, LORA> f = {p, smem, mla_layout<LORA>(p), p.pass.rows[row_id]};
    f.row_id = row_id;
    f.head = unit % p.n_heads;
    f.rank = (int)cluster_rank();
    f.n_blocks = 1 << p.log_cluster;
    f.begin();
    f.load_angle();
    f.load_keys((f.rank * WARPS + ((int)threadIdx.x >> 5)) * BATCH);
    pdl_wait();
    pdl_trigger();
    f.load_query();
    barrier_wait(f.bar(0), 0);
    cluster_wait(); // the barriers of all blocks exist
    f.absorb();
    f.attend();
    f.exchange();
    f.expand();
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

enum { MOST_BYTES = 220 * 1024 }; // of a block's shared memory

/* log2 of the largest cluster with which all blocks are resident, two per multiprocessor. */
static int log_cluster_of(int64_t n_units, int32_t n_sms)
{
    int log = MOST_LOG;
    while (log > 1 && n_units << log > 2 * (int64_t)n_sms) {
        log--;
    }
    return log;
}

static struct mla_few_params params_of(const struct mla_few *m)
{
    struct mla_few_params p = {};
    p.q = m->store->q.mem.p;
    p.kv = m->store->kv.mem.p;
    p.absorb = m->absorb;
    p.expand = m->expand;
    p.out = m->out.mem.p;
    p.q_stride = m->store->q.stride;
    p.q_head = m->store->q_head;
    p.kv_stride = m->store->kv.stride;
    p.out_stride = m->out.stride;
    p.out_head = m->out_head;
    p.n_rows = m->store->n_rows;
    p.n_heads = m->store->n_heads;
    p.nope = m->store->q_rope_offset;
    p.v_dim = m->v_dim;
    p.log_cluster = log_cluster_of((int64_t)p.n_rows * p.n_heads, m->limits->n_sms);
    p.log_bt = m->pages->block_tokens == 32 ? 5 : 6;
    if (m->pages->block_tokens == 16) {
        p.log_bt = 4;
    }
    p.pages = *m->pages;
    p.pass = *m->pass;
    p.rope = *m->rope;
    p.kv_norm = m->kv_norm;
    p.eps = m->store->eps;
    p.scale_log2 = m->scale * 1.4426950408889634f;
    p.growth = m->store->growth;
    return p;
}

static int32_t bytes_of(const struct mla_few_params &p, int32_t lora)
{
    return lora == 256 ? mla_layout<256>(p).bytes : mla_layout<512>(p).bytes;
}

extern "C" bool k_mla_few_takes(const struct mla_few *m)
{
    const struct mla_store_args *s = m->store;
    const struct kv_view *kv = m->pages;
    const struct mla_few_params p = params_of(m);
    const int n_blocks = 1 << p.log_cluster;
    return m->limits->sm == 90 && !m->limits->deterministic && kv->codes.format == KV_PLAIN &&
           (kv->dtype == DT_BF16 || kv->dtype == DT_F16) && s->q.dtype == kv->dtype &&
           (s->kv_lora == 256 || s->kv_lora == 512) && s->rope_dim == ROPE &&
           kv->head_dim_k == s->kv_lora + ROPE && kv->head_dim_v == s->kv_lora &&
           (kv->block_tokens == 16 || kv->block_tokens == 32 || kv->block_tokens == 64) &&
           kv->page_stride % 8 == 0 && (uintptr_t)kv->base % 16 == 0 && p.nope > 0 &&
           p.nope % 64 == 0 && p.v_dim % (4 * n_blocks) == 0 && m->scale > 0.0f &&
           s->kv.stride % 8 == 0 && (uintptr_t)s->kv.mem.p % 16 == 0 &&
           ((uintptr_t)p.absorb | (uintptr_t)p.expand) % 16 == 0 &&
           bytes_of(p, s->kv_lora) <= MOST_BYTES;
}

template <typename T, int LORA>
static cudaError_t launch_mla(cudaStream_t stream, const struct mla_few_params &p)
{
    const auto kernel = mla_few_kernel<T, LORA>;
    const int32_t bytes = mla_layout<LORA>(p).bytes;
    const cudaError_t e = // the attribute is per device, and each rank has one device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const int32_t n_units = p.n_rows * p.n_heads;
    return e != cudaSuccess ? e
                            : launch_clusters(1u << p.log_cluster, kernel,
                                              dim3((unsigned)n_units << p.log_cluster),
                                              dim3(THREADS), (size_t)bytes, stream, p);
}

extern "C" cudaError_t k_mla_few(cudaStream_t stream, const struct mla_few *m)
{
    const struct mla_few_params p = params_of(m);
    if (m->pages->dtype == DT_BF16) {
        return m->store->kv_lora == 256 ? launch_mla<bf16_t, 256>(stream, p)
                                        : launch_mla<bf16_t, 512>(stream, p);
    }
    return m->store->kv_lora == 256 ? launch_mla<f16_t, 256>(stream, p)
                                    : launch_mla<f16_t, 512>(stream, p);
}
