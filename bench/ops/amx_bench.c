// SPDX-License-Identifier: Apache-2.0
/* The throughput of AMX with operands in the caches near a core. It multiplies 512 rows with bf16
 * weights in blocks of 32 rows and 32 outputs, in several forms that cpu/ could use. Other programs
 * may use the machine, so the forms alternate many times, and the best run of each counts. The same
 * instructions on registers alone serve as the limit.
 *
 *     amx_bench [THREADS [INPUTS [OUTPUTS]]]   outputs per thread: a multiple of 64
 *
 * Thread: each has its own weights, sums and results; all read the same rows. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#pragma GCC target("amx-tile,amx-bf16")

enum { ROWS = 512, BLOCK = 32, STEP = 32, TURNS = 100, MAX_THREADS = 64, GROUP = 8 };
enum { TILE_FLOATS = 256, BLOCK_FLOATS = 4 * TILE_FLOATS };
enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; // of arch_prctl

/* A matrix of rows in one of two layouts. Plain: each row is contiguous, and rows are an odd number
 * of cache lines apart. Tiled: tiles of 16 rows by 32 inputs, each stored as it is loaded. */
struct rows {
    const char *p;
    int64_t line, step, tile; // bytes from row to row of a tile, from tile to tile along the
                              // inputs, and from one group of 16 rows to the next
};

/* One way to run the product. */
struct form {
    const char *name;
    enum { REGISTERS, NEAREST, PRODUCT } kind;
    int32_t stretch; // all rows are processed for this many inputs before the next inputs; 0: all
    bool tiled, prefetches; // prefetches: the next weights, into the L2 cache
};

/* The first two forms show the limits of the instruction and of the L1 cache; the others are
 * complete products. */
static const struct form forms[] = {
    {"registers alone", REGISTERS, 0, false, false},
    {"operands in the nearest cache", NEAREST, 0, false, false},
    {"stretches of 256 inputs", PRODUCT, 256, false, false},
    {"stretches of 512", PRODUCT, 512, false, false},
    {"stretches of 1024", PRODUCT, 1024, false, false},
    {"all inputs at once", PRODUCT, 0, false, false},
    {"512, rows packed as tiles", PRODUCT, 512, true, false},
    {"512, weights prefetched", PRODUCT, 512, false, true},
};

enum { N_FORMS = sizeof forms / sizeof forms[0] };

/* Shared by the threads. Each has its own weights and sums, and its own columns of the results. */
static struct bench {
    int32_t n_threads, n_inputs, n_outputs;
    struct rows plain, tiled;
    uint16_t *weights[MAX_THREADS]; // [n_outputs / 32][inputs / 2][32][2]
    float *sums[MAX_THREADS];       // [GROUP][ROWS / 32][4][16][16]
    float *results;                 // [ROWS][n_threads * n_outputs]
    pthread_barrier_t barrier;
    double best[N_FORMS], off; // off: the largest error of any result
} b;

/* ---- one block ---------------------------------------------------------------------------- */

/* Configures eight tiles of 16 rows of 64 bytes, the largest possible size. */
static void configure(void)
{
    uint8_t c[64] = {1}; // the palette; row sizes from byte 16, row counts from byte 48
    for (int i = 0; i < 8; i++) {
        c[16 + 2 * i] = 64;
        c[48 + i] = 16;
    }
    __asm__ volatile("" : : "m"(c)); // GCC's intrinsic declares only 8 bytes of it as read
    _tile_loadconfig(c);
}

/* A step of 32 inputs for 32 rows and 32 outputs. It uses all eight tile registers: four for sums,
 * two for rows and two for weights. */
static inline void four_products(const char *a, const char *a2, int64_t line, const char *w)
{
    _tile_loadd(4, a, line);
    _tile_loadd(6, w, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + 64, 128);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a2, line);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* 32 rows times 32 outputs over n inputs. Unless k is 0, the sums so far are loaded first; the sums
 * are stored at the end. */
static void block(const struct rows *rows, int32_t row, int32_t k, int32_t n, const char *w,
                  const char *next, float *c)
{
    const char *a = rows->p + row / 16 * rows->tile + k / STEP * rows->step, *a2 = a + rows->tile;
    if (k == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, c, 64);
        _tile_loadd(1, c + TILE_FLOATS, 64);
        _tile_loadd(2, c + 2 * TILE_FLOATS, 64);
        _tile_loadd(3, c + 3 * TILE_FLOATS, 64);
    }
    for (int32_t i = 0; i < n; i += STEP, a += rows->step, a2 += rows->step, w += 2048) {
        for (int32_t line = 0; next && line < 256; line += 64) {
            __builtin_prefetch(next + i / STEP * 256 + line, 0, 2);
        }
        four_products(a, a2, rows->line, w);
    }
    _tile_stored(0, c, 64);
    _tile_stored(1, c + TILE_FLOATS, 64);
    _tile_stored(2, c + 2 * TILE_FLOATS, 64);
    _tile_stored(3, c + 3 * TILE_FLOATS, 64);
}

/* ---- a thread's product ------------------------------------------------------------------- */

static const char *weights_of(int32_t thread, int32_t tile, int32_t k)
{
    return (const char *)(b.weights[thread] + ((int64_t)tile * b.n_inputs + k) * BLOCK);
}

/* Copies sums from the layout of tiles to that of rows. */
static void store(const float *c, int32_t row, float *y)
{
    int64_t width = (int64_t)b.n_threads * b.n_outputs;
    for (int32_t i = 0; i < BLOCK; i++) {
        const float *from = c + i / 16 * 2 * TILE_FLOATS + i % 16 * 16;
        memcpy(y + (row + i) * width, from, 64);
        memcpy(y + (row + i) * width + 16, from + TILE_FLOATS, 64);
    }
}

/* The weights of a group of tiles stay in the L2 cache while all rows are processed, one stretch of
 * inputs after the other. */
static void product(const struct form *f, int32_t thread)
{
    const struct rows *rows = f->tiled ? &b.tiled : &b.plain;
    int32_t n_tiles = b.n_outputs / BLOCK, stretch = f->stretch > 0 ? f->stretch : b.n_inputs;
    for (int32_t first = 0; first < n_tiles; first += GROUP) {
        for (int32_t k = 0; k < b.n_inputs; k += stretch) {
            int32_t n = lesser(b.n_inputs - k, stretch);
            for (int32_t tile = first; tile < first + GROUP && tile < n_tiles; tile++) {
                for (int32_t row = 0; row < ROWS; row += BLOCK) {
                    float *c = b.sums[thread] + ((tile - first) * ROWS + row) * (int64_t)BLOCK;
                    const char *next = NULL;
                    if (f->prefetches && tile + 1 < n_tiles) {
                        next = weights_of(thread, tile + 1, k) + row / BLOCK * (n / STEP) * 256;
                    }
                    block(rows, row, k, n, weights_of(thread, tile, k), next, c);
                    if (k + n == b.n_inputs) {
                        store(c, row, b.results + (int64_t)thread * b.n_outputs + tile * BLOCK);
                    }
                }
            }
        }
    }
}

/* `REGISTERS` runs only the multiplications, `NEAREST` uses operands that stay in the L1 cache. */
static void run_form(const struct form *f, int32_t thread)
{
    int64_t n = (int64_t)ROWS / BLOCK * (b.n_outputs / BLOCK) * (b.n_inputs / STEP);
    if (f->kind == PRODUCT) {
        product(f, thread);
    }
    for (int64_t i = 0; f->kind == REGISTERS && i < n; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    for (int64_t i = 0; f->kind == NEAREST && i < n; i++) { // 4 steps of 4 KiB
        const char *a = b.tiled.p + i % 4 * 2048;
        four_products(a, a + 1024, 64, weights_of(thread, 0, 0) + i % 4 * 2048);
    }
}

/* ---- inputs, and a check of the results --------------------------------------------------- */

static uint16_t number(uint32_t *seed, float unit)
{
    *seed = *seed * 1664525u + 1013904223u;
    float x = (float)((int)(*seed >> 16 & 255) - 128) * unit; // exact in bf16
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float value(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Compares 40 elements with a naive sum, which is enough to notice a wrong layout. */
static void check_results(void)
{
    int64_t width = (int64_t)b.n_threads * b.n_outputs;
    for (int32_t i = 0; i < 40; i++) {
        int32_t row = i * 37 % ROWS, out = i * 61 % b.n_outputs;
        const uint16_t *w = b.weights[0] + (int64_t)(out / BLOCK) * BLOCK * b.n_inputs;
        double sum = 0.0;
        for (int32_t k = 0; k < b.n_inputs; k++) {
            const uint16_t *x =
                (const void *)(b.plain.p + row / 16 * b.plain.tile + row % 16 * b.plain.line);
            sum += (double)value(x[k]) * (double)value(w[k / 2 * 64 + out % BLOCK * 2 + k % 2]);
        }
        double off = fabs(sum - (double)b.results[row * width + out]);
        if (off > b.off) {
            b.off = off;
        }
    }
    memset(b.results, 0, (size_t)(ROWS * width) * sizeof *b.results);
}

/* Aligned to 2 MB, so that the system can use pages of that size. */
static void *take(size_t n_bytes)
{
    void *p = aligned_alloc(1 << 21, (n_bytes + (1 << 21) - 1) >> 21 << 21);
    if (!p) {
        printf("amx_bench: out of memory\n");
        exit(1);
    }
    memset(p, 0, n_bytes);
    return p;
}

/* Fills both layouts of the rows with the same numbers. Lines of the plain one are padded by 64
 * bytes, to avoid conflicts in the cache. */
static void make_numbers(void)
{
    uint32_t seed = 1;
    int64_t k_bytes = (int64_t)b.n_inputs * 2;
    b.plain = (struct rows){NULL, k_bytes + 64, 64, 16 * (k_bytes + 64)};
    b.tiled = (struct rows){NULL, 64, 1024, 16 * k_bytes};
    char *plain = take((size_t)(ROWS * b.plain.line)), *tiled = take((size_t)(ROWS * k_bytes));
    for (int32_t row = 0; row < ROWS; row++) {
        for (int32_t k = 0; k < b.n_inputs; k++) {
            uint16_t x = number(&seed, 1.0f / 64.0f);
            memcpy(plain + row * b.plain.line + k * 2, &x, 2);
            memcpy(tiled + row / 16 * b.tiled.tile + k / STEP * b.tiled.step + row % 16 * 64 +
                       k % STEP * 2,
                   &x, 2);
        }
    }
    b.plain.p = plain;
    b.tiled.p = tiled;
    for (int32_t t = 0; t < b.n_threads; t++) {
        int64_t n = (int64_t)b.n_outputs * b.n_inputs;
        b.weights[t] = take((size_t)n * 2);
        b.sums[t] = take((size_t)GROUP * ROWS * BLOCK * sizeof(float));
        for (int64_t i = 0; i < n; i++) {
            b.weights[t][i] = number(&seed, 1.0f / 1024.0f);
        }
    }
    b.results = take((size_t)ROWS * (size_t)b.n_threads * (size_t)b.n_outputs * sizeof(float));
}

/* ---- turns -------------------------------------------------------------------------------- */

/* Forms alternate, so that a disturbance does not affect only one of them. */
static void *run_thread(void *arg)
{
    int32_t thread = (int32_t)(intptr_t)arg;
    configure();
    for (int32_t turn = 0; turn < TURNS; turn++) {
        for (int32_t i = 0; i < N_FORMS; i++) {
            pthread_barrier_wait(&b.barrier);
            int64_t start = clock_now_ns();
            run_form(&forms[i], thread);
            pthread_barrier_wait(&b.barrier);
            if (thread == 0) {
                double s = (double)(clock_now_ns() - start) * 1e-9;
                if (turn == 0 || s < b.best[i]) {
                    b.best[i] = s;
                }
            }
            if (thread == 0 && turn == 0 && forms[i].kind == PRODUCT) {
                check_results();
            }
        }
    }
    _tile_release();
    return NULL;
}

static bool has_amx(void)
{
    unsigned a, c, d, e;
    return __get_cpuid_count(7, 0, &a, &c, &d, &e) && (e >> 22 & 1) && (e >> 24 & 1) &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static int32_t argument(int argc, char **argv, int i, int32_t low, int32_t high, int32_t unit)
{
    static const int32_t usual[] = {1, 2048, 512};
    int32_t n = argc > i ? atoi(argv[i]) : usual[i - 1];
    if (n < low || n > high || n % unit != 0) {
        printf("amx_bench: '%s' is not a number from %d to %d in steps of %d\n", argv[i], low, high,
               unit);
        exit(1);
    }
    return n;
}

int main(int argc, char **argv)
{
    b.n_threads = argument(argc, argv, 1, 1, MAX_THREADS, 1);
    b.n_inputs = argument(argc, argv, 2, 256, 65536, 256);
    b.n_outputs = argument(argc, argv, 3, 64, 65536, 64);
    if (!has_amx()) {
        printf("amx_bench: skipped, this processor has no AMX\n");
        return 0;
    }
    make_numbers();
    pthread_barrier_init(&b.barrier, NULL, (unsigned)b.n_threads);
    pthread_t threads[MAX_THREADS];
    for (int32_t i = 0; i < b.n_threads; i++) {
        if (pthread_create(&threads[i], NULL, run_thread, (void *)(intptr_t)i) != 0) {
            printf("amx_bench: a thread could not be started\n");
            return 1;
        }
    }
    for (int32_t i = 0; i < b.n_threads; i++) {
        pthread_join(threads[i], NULL);
    }
    double flops = 2.0 * ROWS * b.n_inputs * b.n_outputs * b.n_threads;
    printf("%d threads, %d rows, %d inputs, %d outputs each; the best of %d turns\n", b.n_threads,
           ROWS, b.n_inputs, b.n_outputs, TURNS);
    for (int32_t i = 0; i < N_FORMS; i++) {
        printf("%-32s %8.0f GFLOP/s %6.2f of the first\n", forms[i].name, flops / b.best[i] * 1e-9,
               b.best[0] / b.best[i]);
    }
    printf("results: largest error %.1e\n", b.off);
    return b.off < 1e-3 ? 0 : 1;
}

#else

int main(void)
{
    printf("amx_bench: skipped, not an x86-64 processor\n");
    return 0;
}

#endif
