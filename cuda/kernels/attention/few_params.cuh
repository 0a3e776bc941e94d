// SPDX-License-Identifier: Apache-2.0
/* The parameters of few.cu, and how it divides the device among units.
 * Thread: plain data. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FEW_PARAMS_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FEW_PARAMS_CUH

#include "cuda/few.h"
#include "cuda/gemm.h"
#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/kernels.h"

/* What processes a unit: a cluster; a block, without or with partial sums to add; with many rows,
 * one of the blocks that fill the device and take units in turn, without or with partial sums; or,
 * with codes, a cluster. */
enum few_way {
    BY_CLUSTER,
    BY_BLOCK,
    BY_BLOCK_OF_SUMS,
    IN_TURN,
    IN_TURN_OF_SUMS,
    BY_CLUSTER_OF_CODES
};

/* Which elements of a head are rotated together: those that are half a head apart; neighbours
 * (heads without norms); or, in heads of 256, only the first FIRST_ELEMENTS, in halves. */
enum few_turn { TURN_HALVES, TURN_NEIGHBOURS, TURN_FIRST };
enum { FIRST_ELEMENTS = 64 };

enum { CHUNK = 16, MAX_CLUSTER = 8, MAX_UNITS = 32, BARRIER_BYTES = 128 };
enum { FEW_PART_BYTES = CHUNK * 128 }; // 64 elements of a chunk's keys or values, swizzled

static constexpr float LOG2E = 1.4426950408889634f;

struct few_params {
    const void *qkv;
    struct sum_parts sums; // partial sums of qkv; n 0: qkv is complete
    void *out;
    struct round_args codes;    // written instead of out, unless codes.codes is NULL
    int32_t stride, out_stride; // in elements
    struct kv_view kv;
    const struct pass_row *rows;
    const int32_t *row_seq;
    const int32_t *blocks;
    int32_t blocks_stride;
    const float *cos_sin, *q_norm, *k_norm;
    int32_t n_rows, max_pos, n_heads, group;
    int32_t n_units; // rows x KV heads (or parts of their groups)
    // Strides, in rows of head_dim elements: from page to page, from head to head, from K to V.
    int32_t page_rows, head_rows, v_rows;
    /* Logarithms to base 2: the number of parts of a KV head's query heads (each part has `group`
     * heads, and room for 2^log_heads); the tokens of a page; the blocks of a cluster. */
    int32_t log_parts, log_heads, log_bt, log_cluster;
    float eps, norm_offset, scale_log2;
    struct query_growth growth;
    bool v_norm; // only with heads of 256

    /* The number of units of a row: its KV heads, or the parts of their groups. */
    __host__ __device__ int heads_y() const
    {
        return kv.n_kv_heads << log_parts;
    }
};

/* window: number of keys that a row sees, including its own; 0: all. sinks: may be NULL. Both are
 * unused if MANY. */
struct few_bounds {
    int32_t window;
    const float *sinks;
};

/* few_fixed.cu: deterministic mode. norm: queries and keys have norms. */
cudaError_t attention_few_fixed(cudaStream_t stream, const struct few_params &p, bool norm,
                                int n_sms);

/* few_kv.cu: pages of codes. Each unit is processed by a cluster. */
cudaError_t attention_few_kv(cudaStream_t stream, const struct few_params &p);

/* few_several.cu: several rows per sequence. takes: what depends on their number. */
bool attention_several_takes(const struct rope_store_args *a, const struct few_pass *few,
                             int32_t n_sms);
cudaError_t attention_several(cudaStream_t stream, const struct few_params &of,
                              const struct attention_launch *a, const struct few_pass *few,
                              bool norm, few_turn turn);

/* log2 of the number of blocks in a cluster. Clusters have more than two blocks only if all of them
 * together cover at most half of the device, because more are not faster. 0: not even two blocks
 * per unit fit, so each block works alone. */
static inline int few_log_cluster(int n_units, int head_dim, int n_sms)
{
    if (2 * n_units > n_sms) {
        return 0;
    }
    int log = 1;
    while (2 << log <= MAX_CLUSTER && 2 << log <= head_dim / 16 && (4 << log) * n_units <= n_sms) {
        log++;
    }
    return log;
}

/* The map of pages, in boxes of a chunk's keys or values. A row of a box has 64 elements, so parts
 * of 64 elements are a dimension. */
static inline cudaError_t few_map(CUtensorMap *map, const struct few_params &p)
{
    const uint64_t dim = (uint64_t)p.kv.head_dim_k;
    const uint64_t n_rows = (uint64_t)p.kv.n_pages * (uint64_t)p.page_rows;
    const cuuint64_t dims[3] = {64, n_rows, dim / 64}, strides[2] = {dim * 2, 128};
    const cuuint32_t box[3] = {64, CHUNK, (cuuint32_t)(dim / 64)};
    return tensor_map(map, p.kv.base, p.kv.dtype == DT_BF16, 3, dims, strides, box);
}

template <int DIM, few_way WAY> struct few_shape {
    static constexpr bool MANY = WAY == IN_TURN || WAY == IN_TURN_OF_SUMS;
    static constexpr bool SUMS = WAY == BY_BLOCK_OF_SUMS || WAY == IN_TURN_OF_SUMS;
    /* SLOTS: number of chunks of keys in flight per warp. BLOCKS: resident blocks per
     * multiprocessor. Four blocks of three warps divide 128 or 256 rows of 8 KV heads more evenly
     * than three blocks of four. */
    static constexpr int FEW_WARPS = WAY == BY_CLUSTER_OF_CODES ? 8 : 4;
    static constexpr int WARPS = MANY ? 3 : FEW_WARPS, SLOTS = MANY ? 2 : 3, BLOCKS = MANY ? 4 : 2;
    static constexpr int J = DIM / 32;     // vectors of a key per lane
    static constexpr int TILES = DIM / 16; // tiles per value
    static constexpr int LOG_TILES = DIM / 128 + 2;
    static constexpr int BOX = DIM / 64 * FEW_PART_BYTES;
    static constexpr int SLOT = 2 * BOX; // keys, then values

    /* The bytes of the warps' results: values and, per head, the maximum and the sum. */
    __host__ __device__ static int room_bytes(const struct few_params &p)
    {
        const int n_workers = WARPS << p.log_cluster, dims = DIM >> p.log_cluster;
        return (n_workers * (dims + 2) << p.log_heads) * (int)sizeof(float);
    }
    /* Shared memory: the slots, the barriers, the results, and the rows of partial sums of one
     * unit. */
    static int bytes(const struct few_params &p)
    {
        return WARPS * SLOTS * SLOT + BARRIER_BYTES + room_bytes(p) +
               (SUMS ? (p.group + 2) * DIM * 2 : 0);
    }
};

/* The same for several rows per sequence. TILES: tiles of 8 columns of a unit. MOST_SLOTS: chunks
 * in flight per warp; with heads of 256 there is no room for all slots of the last warp. */
template <int DIM> struct several_shape {
    static constexpr bool LARGE = DIM == 256;
    static constexpr int WARPS = LARGE ? 4 : 8, MOST_SLOTS = LARGE ? 3 : 2, SLOTS = LARGE ? 11 : 16;
    static constexpr int TILES = LARGE ? 1 : 2, COLUMNS = 8 * TILES;
    static constexpr int J = DIM / 32, LOG_TILES = DIM / 128 + 2;
    static constexpr int BOX = DIM / 64 * FEW_PART_BYTES, SLOT = 2 * BOX;
    static constexpr int THREADS = WARPS * 32 + 32; // the last warp loads
    static constexpr int LANES = WARPS * 2;         // of the warp that loads
    static constexpr int BARRIERS = 384;            // bytes

    __host__ __device__ static int room_bytes(int log_cluster)
    {
        return (WARPS << log_cluster) * ((DIM >> log_cluster) + 2) * COLUMNS * (int)sizeof(float);
    }
    /* The slots, the barriers, the results, and the tiles of the new rows. */
    static int bytes(int log_cluster)
    {
        return SLOTS * SLOT + BARRIERS + room_bytes(log_cluster) + (TILES + 2) * 8 * DIM * 2;
    }
};

#endif
