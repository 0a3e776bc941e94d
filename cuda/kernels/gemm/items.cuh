// SPDX-License-Identifier: Apache-2.0
/* How a product is divided into items for the blocks of a persistent grid. An item is a band of a
 * weight's tile rows, a range of K, and a tile of rows of x. Bands and ranges are cut evenly. A
 * block takes every n-th item if there are n blocks. If K is cut, each range leaves partial sums in
 * fp32, which the op that reads the product adds up (device/sums.cuh).
 *
 * Nothing here depends on the format: a tile row is any number of features that are stored
 * together, and a chunk the inputs that are loaded together. Thread: any. */
#ifndef SLUICE_CUDA_GEMM_ITEMS_CUH
#define SLUICE_CUDA_GEMM_ITEMS_CUH

#include <stdint.h>

/* Divides n elements into n_parts parts: the first n_larger have size + 1, the others size. */
struct item_cut {
    int32_t n, n_parts, size, n_larger;
};

struct item_plan {
    struct item_cut bands, runs; // of the weight's tile rows, and of its chunks
    int32_t n_row_tiles, n_items;
};

/* The costs that plan_items compares. Bytes are those that one multiprocessor loads. */
struct item_costs {
    int32_t n_tiles, n_chunks, n_row_tiles;
    int32_t most_tiles;      // maximum number of tile rows in a band
    int32_t most_runs;       // 1: K must not be cut
    int32_t tile_bytes;      // bytes of a tile row's chunk
    int32_t x_bytes;         // bytes of a chunk of x, for one tile of rows
    int64_t sums_bytes;      // one copy of the partial sums, all rows and features
    int64_t most_sums_bytes; // room for all copies
    int32_t n_sms;
};

struct item {
    int32_t first_tile, end_tile;
    int32_t first_chunk, end_chunk;
    int32_t run, row_tile;
};

static inline struct item_cut item_cut_of(int32_t n, int32_t n_parts)
{
    return (struct item_cut){n, n_parts, n / n_parts, n % n_parts};
}

/* Where part i begins. */
static inline __host__ __device__ int32_t item_part(const struct item_cut &c, int32_t i)
{
    return i * c.size + (i < c.n_larger ? i : c.n_larger);
}

/* The size of the largest part. */
static inline int32_t item_most(const struct item_cut &c)
{
    return c.size + (c.n_larger > 0 ? 1 : 0);
}

/* Items with the same band follow each other, so that its weights are still in the L2 cache. */
static inline __host__ __device__ struct item item_at(const struct item_plan &p, int32_t which)
{
    struct item i;
    int32_t band = which;
    i.row_tile = 0;
    if (p.n_row_tiles > 1) {
        band = (int32_t)((uint32_t)which / (uint32_t)p.n_row_tiles);
        i.row_tile = which - band * p.n_row_tiles;
    }
    i.run = 0; // found by counting: there are few, and a division is slow
    while (band >= p.bands.n_parts) {
        band -= p.bands.n_parts;
        i.run++;
    }
    i.first_tile = item_part(p.bands, band);
    i.end_tile = item_part(p.bands, band + 1);
    i.first_chunk = item_part(p.runs, i.run);
    i.end_chunk = item_part(p.runs, i.run + 1);
    return i;
}

static inline int32_t items_up(int64_t a, int64_t b)
{
    return (int32_t)((a + b - 1) / b);
}

/* What the busiest multiprocessor loads: x comes from the L2 cache at a third of the price, and the
 * start and end of an item cost as much as ITEM_BYTES. Partial sums are written and read, and each
 * additional range costs its reader RUN_BYTES. */
static inline int64_t items_cost(const struct item_costs &c, int32_t n_bands, int32_t n_runs)
{
    enum { ITEM_BYTES = 16 << 10, RUN_BYTES = 4 << 10 };
    const int64_t n_items = (int64_t)n_bands * n_runs * c.n_row_tiles;
    const int64_t chunk = (int64_t)items_up(c.n_tiles, n_bands) * c.tile_bytes + c.x_bytes / 3;
    const int64_t sums = n_runs > 1 ? n_runs * (c.sums_bytes * 2 / c.n_sms + RUN_BYTES) : 0;
    return items_up(n_items, c.n_sms) * (items_up(c.n_chunks, n_runs) * chunk + ITEM_BYTES) + sums;
}

/* The bands and the cuts of K with the shortest schedule. */
static inline struct item_plan plan_items(const struct item_costs &c)
{
    int32_t best_bands = 1, best_runs = 1;
    int64_t best = INT64_MAX;
    for (int32_t runs = 1; runs <= c.most_runs && runs <= c.n_chunks; runs++) {
        if (runs > 1 && runs * c.sums_bytes > c.most_sums_bytes) {
            break;
        }
        for (int32_t tiles = 1; tiles <= c.most_tiles; tiles++) {
            const int32_t bands = items_up(c.n_tiles, tiles);
            const int64_t cost = items_cost(c, bands, runs);
            if (cost < best) {
                best = cost;
                best_bands = bands;
                best_runs = runs;
            }
        }
    }
    struct item_plan p;
    p.bands = item_cut_of(c.n_tiles, best_bands);
    p.runs = item_cut_of(c.n_chunks, best_runs);
    p.n_row_tiles = c.n_row_tiles;
    p.n_items = best_bands * best_runs * c.n_row_tiles;
    return p;
}

#endif
