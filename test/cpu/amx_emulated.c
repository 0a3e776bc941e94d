// SPDX-License-Identifier: Apache-2.0
/* The AMX kernels of cpu/, compiled with emulated tiles: tile registers in memory, and tile
 * instructions as functions of AVX-512. Sums of bf16 are in the order that the processor's manual
 * gives for TDPBF16PS. */
#include "test/cpu/amx_emulated.h"

#if defined(__AVX512BF16__)

#include "engine/base/assert.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

struct emulated_tile {
    _Alignas(64) uint8_t row[16][64];
};

static _Thread_local struct emulated_tile emulated_tiles[8];
static _Thread_local uint8_t emulated_rows[8];
static _Thread_local bool emulated_ready;

/* The configuration is the 64 bytes that LDTILECFG reads; all rows are 64 bytes here. */
static inline void emulated_config(const void *from)
{
    const uint8_t *c = from;
    ASSERT(c[0] == 1 && c[1] == 0);
    for (int i = 0; i < 8; i++) {
        ASSERT(c[48 + i] >= 1 && c[48 + i] <= 16 && c[16 + 2 * i] == 64 && c[17 + 2 * i] == 0);
        emulated_rows[i] = c[48 + i];
    }
    memset(emulated_tiles, 0, sizeof emulated_tiles);
    emulated_ready = true;
}

static inline void emulated_load(int t, const void *from, int64_t stride)
{
    ASSERT(emulated_ready);
    memset(&emulated_tiles[t], 0, sizeof emulated_tiles[t]);
    for (int i = 0; i < emulated_rows[t]; i++) {
        memcpy(emulated_tiles[t].row[i], (const char *)from + i * stride, 64);
    }
}

static inline void emulated_store(int t, void *to, int64_t stride)
{
    ASSERT(emulated_ready);
    for (int i = 0; i < emulated_rows[t]; i++) {
        memcpy((char *)to + i * stride, emulated_tiles[t].row[i], 64);
    }
}

static inline void emulated_zero(int t)
{
    ASSERT(emulated_ready);
    memset(&emulated_tiles[t], 0, sizeof emulated_tiles[t]);
}

/* For each row, the even and the odd members of the pairs of k are summed separately, by fused
 * multiply-adds in order; then c + (even + odd). Denormal inputs and results are zero. */
static inline void emulated_dpbf16ps(int c, int a, int b)
{
    ASSERT(emulated_ready && emulated_rows[a] == emulated_rows[c] && emulated_rows[b] == 16);
    const uint32_t mode = _mm_getcsr();
    _mm_setcsr((mode & ~0x6000u) | 0x8040u | 0x1F80u); // round to nearest, flush denormals, no
                                                       // exceptions
    for (int i = 0; i < emulated_rows[c]; i++) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < 16; k++) {
            uint32_t pair;
            memcpy(&pair, emulated_tiles[a].row[i] + 4 * k, sizeof pair);
            __m512i x = _mm512_set1_epi32((int32_t)pair);
            __m512i y = _mm512_load_si512(emulated_tiles[b].row[k]);
            const __m512i top = _mm512_set1_epi32((int32_t)0xFFFF0000);
            even = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(x, 16),
                                   (__m512)_mm512_slli_epi32(y, 16), even);
            odd = _mm512_fmadd_ps((__m512)_mm512_and_si512(x, top),
                                  (__m512)_mm512_and_si512(y, top), odd);
        }
        float *sum = (float *)(void *)emulated_tiles[c].row[i];
        _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_add_ps(even, odd)));
    }
    _mm_setcsr(mode);
}

/* Adds the products of bytes, which have signs if the flags say so. */
static inline void emulated_bytes(int c, int a, int b, bool a_signs, bool b_signs)
{
    ASSERT(emulated_ready && emulated_rows[a] == emulated_rows[c] && emulated_rows[b] == 16);
    for (int i = 0; i < emulated_rows[c]; i++) {
        for (int k = 0; k < 64; k++) {
            const uint8_t x = emulated_tiles[a].row[i][k];
            for (int n = 0; n < 16; n++) {
                const uint8_t y = emulated_tiles[b].row[k / 4][4 * n + k % 4];
                int32_t sum;
                memcpy(&sum, emulated_tiles[c].row[i] + 4 * n, sizeof sum);
                sum += (a_signs ? (int8_t)x : x) * (b_signs ? (int8_t)y : y);
                memcpy(emulated_tiles[c].row[i] + 4 * n, &sum, sizeof sum);
            }
        }
    }
}

static inline void emulated_release(void)
{
    emulated_ready = false;
}

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#undef _tile_release
#define _tile_loadconfig emulated_config
#define _tile_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_zero emulated_zero
#define _tile_dpbf16ps emulated_dpbf16ps
#define _tile_dpbssd(c, a, b) emulated_bytes(c, a, b, true, true)
#define _tile_dpbsud(c, a, b) emulated_bytes(c, a, b, true, false)
#define _tile_dpbusd(c, a, b) emulated_bytes(c, a, b, false, true)
#define _tile_dpbuud(c, a, b) emulated_bytes(c, a, b, false, false)
#define _tile_release emulated_release

/* Compiles the files as a compiler with AMX would. */
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
#define cpu_gemm_bf16_amx emulated_gemm
#define cpu_spin_amx emulated_spin
#define cpu_amx_blocks emulated_blocks
#define cpu_amx_unit emulated_unit
#define cpu_tiles_fit emulated_fit
#define cpu_tiles_scores emulated_scores
#define cpu_tiles_words emulated_words
#define configure configure_gemm
#include "cpu/cpu_gemm_amx.c"
#undef configure
#undef INLINE
#include "cpu/cpu_attention_amx.c"
#define begin begin_tiles
#include "cpu/cpu_attention_tiles.c"
#undef begin

/* Returns NULL if the processor cannot run the emulation either. */
const struct cpu_kernels *op_amx_emulated(void)
{
    static struct cpu_kernels table;
    if (!__builtin_cpu_supports("avx512bf16")) {
        return NULL;
    }
    table = cpu_kernels_avx512bf16;
    table.name = "AMX, emulated";
    table.gemm_bf16 = emulated_gemm;
    table.tiled = true;
    table.blocks = &emulated_blocks;
    table.pass_rows = 16;
    table.few_k = 256;
    table.unit = &emulated_unit;
    table.multiplies_codes = emulated_fit;
    table.scores = emulated_scores;
    table.words = &emulated_words;
    return &table;
}

#else

const struct cpu_kernels *op_amx_emulated(void)
{
    return NULL;
}

#endif
