/* The device half of attention_few.cu: what a warp does of one row and KV head.
 * Thread: device code, a warp at once. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FEW_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FEW_CUH

#include "cuda/kernels/attention_sm90.cuh"
#include "cuda/kernels/device/mma_tile.cuh"

/* Slots: chunks of keys that a warp has on their way. */
enum { WARPS = 4, CHUNK = 16, MIN_SLOTS = 2, MAX_SLOTS = 3, MAX_CLUSTER = 8 };

struct few_params {
    const void *qkv;
    void *out;
    int32_t stride, out_stride; // in elements
    struct kv_view kv;
    const struct pass_row *rows;
    const int32_t *row_seq;
    const int32_t *blocks;
    int32_t blocks_stride;
    const float *cos_sin, *q_norm, *k_norm;
    int32_t n_rows, max_pos, n_heads, group, n_slots;
    /* Logarithms: a KV head's query heads are taken in parts, each of `group`, for which there is
     * room for log_heads; tokens of a page; blocks of a cluster. */
    int32_t log_parts, log_heads, log_bt, log_cluster;
    float eps, norm_offset, scale_log2;
    bool is_early; // the next kernel is let in before the wait
};

template <int DIM> struct few_shape {
    static constexpr int J = DIM / 32;     // vectors that a lane holds of a key
    static constexpr int TILES = DIM / 16; // of a value
    static constexpr int LOG_TILES = DIM == 128 ? 3 : 2;
    static constexpr int PITCH = DIM * 2 + 16; // of a value: without bank conflicts
    static constexpr int K_BYTES = CHUNK * DIM * 2;
    static constexpr int SLOT = K_BYTES + CHUNK * PITCH;
    /* The barrier, and room for what the cluster's warps found: values and, per head, maximum and
     * sum. */
    static int bytes(const struct few_params &p)
    {
        const int n_workers = WARPS << p.log_cluster, dims = DIM >> p.log_cluster;
        return WARPS * p.n_slots * SLOT + 16 +
               (n_workers * (dims + 2) << p.log_heads) * (int)sizeof(float);
    }
};

#if HAVE_SM90A

__device__ __forceinline__ uint32_t transposed(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ uint32_t address_in(const void *shared, uint32_t block)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"(smem_address(shared)), "r"(block));
    return there;
}

/* Two values to a place of another block of the cluster, whose barrier counts their bytes; both
 * addresses are address_in's. */
__device__ __forceinline__ void store_in(uint32_t to, uint32_t bar, float a, float b)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
                 "[%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(a), "f"(b), "r"(bar)
                 : "memory");
}

/* By all threads: this block has begun, its barrier is there; the others of the cluster have. No
 * data goes by it. */
__device__ __forceinline__ void cluster_begun()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <typename T> __device__ __forceinline__ float2 unpack(uint32_t v);
template <> __device__ __forceinline__ float2 unpack<bf16_t>(uint32_t v)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 unpack<f16_t>(uint32_t v)
{
    return __half22float2(*reinterpret_cast<const __half2 *>(&v));
}

/* A warp's part of one row and KV head. ALONE: a block has no cluster. */
template <typename T, int DIM, bool NORM, bool ALONE> struct few {
    using S = few_shape<DIM>;
    const struct few_params &p;
    char *slots; // this warp's
    int rank, kv_head, part, row, lane, worker, n_workers;
    int past, n_chunks; // keys that are there; chunks with the new one

    const int32_t *blocks;
    int32_t pages; // lane l: the page of this warp's chunk i with i % 32 = l
    uint32_t q[S::J][4];
    float top[2], values[S::TILES][4], sums[4]; // of heads 2 t and 2 t + 1

    float4 cos_sin[S::J * 2], weight[NORM ? S::J * 2 : 1];

    /* What the row has, and the first chunks on their way. */
    __device__ __forceinline__ void begin(const struct pass_row &r)
    {
        past = r.slot_pos;
        n_chunks = past / CHUNK + 1;
        blocks = p.blocks + (int64_t)r.lane * p.blocks_stride;
        const float *table = p.cos_sin + (int64_t)min(r.pos, p.max_pos - 1) * DIM;
#pragma unroll
        for (int j = 0; j < S::J * 2; j++) {
            cos_sin[j] = *reinterpret_cast<const float4 *>(
                table + ((lane & 3) * 8 + j / 4 * 32) * 2 + j % 4 * 4);
        }
        if (NORM) {
            const float *from = (lane >> 2 < p.group ? p.q_norm : p.k_norm) + (lane & 3) * 8;
#pragma unroll
            for (int j = 0; j < S::J * 2; j++) {
                weight[j] = *reinterpret_cast<const float4 *>(from + j / 2 * 32 + j % 2 * 4);
            }
        }
#pragma unroll 1
        for (int i = 0; i < p.n_slots; i++) {
            fetch(i, i);
        }
    }

    /* The 32 chunks from i on. */
    __device__ __forceinline__ void look_up(int i)
    {
        const int chunk = min(worker + (i + lane) * n_workers, n_chunks - 1);
        pages = blocks[chunk * CHUNK >> p.log_bt];
    }

    __device__ __forceinline__ T *page(int chunk, int i) const
    {
        const int64_t page = __shfl_sync(0xffffffffu, pages, i & 31);
        return (T *)p.kv.base + page * p.kv.page_stride + (int64_t)kv_head * p.kv.head_stride +
               (chunk * CHUNK & (p.kv.block_tokens - 1)) * DIM;
    }

    /* This warp's chunk i to its slot; zeros where no older key is. */
    __device__ __forceinline__ void fetch(int i, int slot)
    {
        const int chunk = worker + i * n_workers, left = past - chunk * CHUNK;
        if (chunk < n_chunks) {
            if ((i & 31) == 0) {
                look_up(i);
            }
            const T *from = page(chunk, i);
            char *to = slots + slot * S::SLOT;
            const int g = lane >> 2;
            const T *k = from + g * DIM + (lane & 3) * 8;
#pragma unroll
            for (int v = 0; v < 2 * S::J; v++) {
                copy_16(to + v * 512 + lane * 16, k + v / S::J * 8 * DIM + v % S::J * 32,
                        g + v / S::J * 8 < left);
            }
            constexpr int PER_ROW = DIM / 8, ROWS = 32 / PER_ROW;
            const int r = lane / PER_ROW, c = lane % PER_ROW;
            from += p.kv.v_offset + r * DIM + c * 8;
            to += S::K_BYTES + r * S::PITCH + c * 16;
#pragma unroll
            for (int v = 0; v < CHUNK / ROWS; v++) {
                copy_16(to + v * ROWS * S::PITCH, from + v * ROWS * DIM, r + v * ROWS < left);
            }
        }
        copies_commit();
    }

    __device__ __forceinline__ int first_head() const
    {
        return ((kv_head << p.log_parts) + part) * p.group;
    }

    /* Rows of qkv as lanes hold them: row g is head g of the group, and the row behind the last
     * head is the key. */
    __device__ __forceinline__ void load_rows(const T *qkv)
    {
        const int g = lane >> 2, head = g < p.group ? first_head() + g : p.n_heads + kv_head;
#pragma unroll
        for (int j = 0; j < S::J; j++) {
            const uint4 v =
                *reinterpret_cast<const uint4 *>(qkv + head * DIM + (lane & 3) * 8 + j * 32);
            q[j][0] = v.x, q[j][1] = v.y, q[j][2] = v.z, q[j][3] = v.w;
        }
    }

    /* Rotates rows, of which element e of vector j has its partner in vector j + J / 2. */
    __device__ __forceinline__ void rotate()
    {
        float scale = 1.0f;
        if (NORM) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < S::J; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float2 x = unpack<T>(q[j][e]);
                    sum += x.x * x.x + x.y * x.y;
                }
            }
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            scale = 1.0f / sqrtf(sum / (float)DIM + p.eps);
        }
#pragma unroll
        for (int j = 0; j < S::J / 2; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float4 cs = cos_sin[j * 4 + e];
                float2 a = unpack<T>(q[j][e]), b = unpack<T>(q[j + S::J / 2][e]);
                if (NORM) {
                    const float *low = (const float *)&weight[j * 2 + e / 2] + e % 2 * 2;
                    const float *high =
                        (const float *)&weight[(j + S::J / 2) * 2 + e / 2] + e % 2 * 2;
                    a.x *= scale * (low[0] + p.norm_offset);
                    a.y *= scale * (low[1] + p.norm_offset);
                    b.x *= scale * (high[0] + p.norm_offset);
                    b.y *= scale * (high[1] + p.norm_offset);
                }
                q[j][e] = pack<T>(a.x * cs.x - b.x * cs.y, a.y * cs.z - b.y * cs.w);
                q[j + S::J / 2][e] = pack<T>(b.x * cs.x + a.x * cs.y, b.y * cs.z + a.y * cs.w);
            }
        }
    }

    /* The new key and value to the last chunk's slot, and to their page. */
    __device__ __forceinline__ void add_new(char *slot, int i, const uint4 &value)
    {
        const int at = past & (CHUNK - 1);
        T *to = page(n_chunks - 1, i) + at * DIM;
        if (lane >> 2 == p.group) {
            char *key = slot + (at >> 3) * S::J * 512 + ((at & 7) * 4 + (lane & 3)) * 16;
#pragma unroll
            for (int j = 0; j < S::J; j++) {
                const uint4 v = make_uint4(q[j][0], q[j][1], q[j][2], q[j][3]);
                *reinterpret_cast<uint4 *>(key + j * 512) = v;
                if (part == 0) {
                    *reinterpret_cast<uint4 *>(to + (lane & 3) * 8 + j * 32) = v;
                }
            }
        }
        if (lane < DIM / 8) {
            *reinterpret_cast<uint4 *>(slot + S::K_BYTES + at * S::PITCH + lane * 16) = value;
            if (part == 0) {
                *reinterpret_cast<uint4 *>(to + p.kv.v_offset + lane * 8) = value;
            }
        }
        __syncwarp();
    }

    /* The chunk in the slot, from its key `first` on. */
    __device__ __forceinline__ void add_chunk(const char *slot, int first)
    {
        float s[2][4] = {};
#pragma unroll
        for (int j = 0; j < S::J; j++) {
            const uint4 x = *reinterpret_cast<const uint4 *>(slot + j * 512 + lane * 16);
            const uint4 y = *reinterpret_cast<const uint4 *>(slot + (S::J + j) * 512 + lane * 16);
            const uint32_t a[4] = {x.x, y.x, x.y, y.y}, b[4] = {x.z, y.z, x.w, y.w};
            mma_16x8x16(s[0], a, q[j][0], q[j][1], T());
            mma_16x8x16(s[1], b, q[j][2], q[j][3], T());
        }
        const int key = first + (lane >> 2);
        float decay[2], x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            x[e] = key + e / 2 * 8 <= past ? s[0][e] + s[1][e] : -INFINITY;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float high = fmaxf(x[h], x[h + 2]);
            high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 4));
            high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 8));
            high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 16));
            high = fmaxf(high, top[h]);
            decay[h] = exp2_fast((top[h] - high) * p.scale_log2);
            top[h] = high;
            x[h] = exp2_fast((x[h] - high) * p.scale_log2);
            x[h + 2] = exp2_fast((x[h + 2] - high) * p.scale_log2);
        }
        const uint32_t b0 = transposed(pack<T>(x[0], x[1]));
        const uint32_t b1 = transposed(pack<T>(x[2], x[3]));
        const uint32_t one = pack<T>(1.0f, 1.0f), ones[4] = {one, one, one, one};
        const char *v =
            slot + S::K_BYTES + ((lane & 7) + (lane >> 4) * 8) * S::PITCH + (lane >> 3 & 1) * 16;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sums[e] *= decay[e & 1];
        }
        mma_16x8x16(sums, ones, b0, b1, T());
#pragma unroll
        for (int f = 0; f < S::TILES; f++) {
            uint32_t a[4];
            ldmatrix_x4_transposed(a, v + f * 32);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                values[f][e] *= decay[e & 1];
            }
            mma_16x8x16(values[f], a, b0, b1, T());
        }
    }

    /* This warp's chunks, of which the first are on their way. */
    __device__ __forceinline__ void add_chunks(const uint4 &value)
    {
        top[0] = top[1] = -INFINITY;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sums[e] = 0.0f;
#pragma unroll
            for (int f = 0; f < S::TILES; f++) {
                values[f][e] = 0.0f;
            }
        }
        int slot = 0;
#pragma unroll 1
        for (int i = 0, c = worker; c < n_chunks; i++, c += n_workers) {
            if (p.n_slots == MAX_SLOTS) {
                copies_wait<MAX_SLOTS - 1>();
            } else {
                copies_wait<1>();
            }
            __syncwarp();
            char *at = slots + slot * S::SLOT;
            if (c == n_chunks - 1) {
                add_new(at, i, value);
            }
            add_chunk(at, c * CHUNK);
            __syncwarp();
            fetch(i + p.n_slots, slot);
            slot = slot + 1 < p.n_slots ? slot + 1 : 0;
        }
    }

    __device__ __forceinline__ int log_blocks() const
    {
        return ALONE ? 0 : p.log_cluster;
    }

    /* Elements of a head that this block joins. */
    __device__ __forceinline__ int dims_mine() const
    {
        return DIM >> log_blocks();
    }

    __device__ __forceinline__ int heads_sent() const
    {
        return (p.group + 1) & ~1;
    }

    __device__ __forceinline__ void put(float *to, uint64_t *bar, int block, float a, float b) const
    {
        if (ALONE) {
            *reinterpret_cast<float2 *>(to) = make_float2(a, b);
        } else {
            store_in(address_in(to, block), address_in(bar, block), a, b);
        }
    }

    /* This warp's results to the blocks that join them. Room: for each worker the block's elements
     * of each head, then for each worker and head the maximum and the sum. */
    __device__ __forceinline__ void send(float *room, uint64_t *bar) const
    {
        const int g = lane >> 2, h = (lane & 3) * 2, heads = 1 << p.log_heads;
        const int dims = dims_mine();
        if (worker >= n_chunks || h >= p.group) {
            return;
        }
        float *mine = room + ((worker * dims + g) << p.log_heads) + h;
        const int log_tiles = S::LOG_TILES - log_blocks(); // of a block
#pragma unroll
        for (int f = 0; f < S::TILES; f++) {
            const int block = f >> log_tiles;
            float *to = mine + ((f - (block << log_tiles)) * 16 << p.log_heads);
            put(to, bar, block, values[f][0], values[f][1]);
            put(to + 8 * heads, bar, block, values[f][2], values[f][3]);
        }
        if (g < 1 << log_blocks()) {
            float *rest = room + ((n_workers * dims + worker * 2) << p.log_heads) + h * 2;
            put(rest, bar, g, top[0], sums[0]);
            put(rest + 2, bar, g, top[1], sums[1]);
        }
    }

    /* What all send to this block. */
    __device__ __forceinline__ uint32_t bytes_sent() const
    {
        return (uint32_t)(min(n_workers, n_chunks) * heads_sent() * (dims_mine() * 4 + 8));
    }

    /* All workers' results for this block's elements. */
    __device__ __forceinline__ void join_all(const float *room) const
    {
        const int dims = dims_mine(), n_mine = dims << p.log_heads;
        const int n = min(n_workers, n_chunks);
#pragma unroll 1
        for (int i = threadIdx.x; i < n_mine; i += WARPS * 32) {
            const int d = i >> p.log_heads, h = i & ((1 << p.log_heads) - 1);
            if (h >= p.group) {
                continue;
            }
            const float2 *rest = (const float2 *)(room + n_workers * n_mine) + h;
            float high = -INFINITY, sum = 0.0f, value = 0.0f;
#pragma unroll 1
            for (int first = 0; first < n; first += 4) {
#pragma unroll
                for (int k = 0; k < 4; k++) { // the last again, rather than none
                    high = fmaxf(high, rest[min(first + k, n - 1) << p.log_heads].x);
                }
            }
#pragma unroll 1
            for (int first = 0; first < n; first += 4) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const int w = min(first + k, n - 1);
                    const float2 other = rest[w << p.log_heads];
                    const float weight =
                        first + k < n ? exp2_fast((other.x - high) * p.scale_log2) : 0.0f;
                    sum += other.y * weight;
                    value += room[w * n_mine + i] * weight;
                }
            }
            T *to = (T *)p.out + (int64_t)row * p.out_stride + (first_head() + h) * DIM +
                    rank * dims + d;
            *to = from_float<T>(__fdividef(value, sum));
        }
    }
};

#endif // HAVE_SM90A

#endif
