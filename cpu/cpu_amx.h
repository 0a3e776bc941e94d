// SPDX-License-Identifier: Apache-2.0
/* Set-up of the AMX tile registers. A register's rows are 64 bytes wide; only the number of rows
 * varies. Compiled only where AMX exists.
 * Thread: any; tile registers belong to the thread. */
#ifndef SLUICE_CPU_AMX_H
#define SLUICE_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { TILE_REGISTERS = 8, TILE_ROWS = 16, TILE_BYTES = 64 };

/* The operand of the LDTILECFG instruction. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* rows: number of rows of each register, 1 to 16. */
static inline void tiles_configure(const uint8_t rows[TILE_REGISTERS])
{
    struct tile_config c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < TILE_REGISTERS; i++) {
        c.row_bytes[i] = TILE_BYTES;
        c.rows[i] = rows[i];
    }
    /* GCC's intrinsic declares that it reads only 8 bytes, so the compiler could drop the stores to
     * the others. */
    __asm__ volatile("" : : "m"(c));
    _tile_loadconfig(&c);
}

/* To be called between stores and tile loads of the same memory, and between tile stores and loads:
 * GCC's intrinsics do not declare what memory they read or write. */
static inline void tiles_fence(void)
{
    __asm__ volatile("" : : : "memory");
}

/* Indices that interleave the words of two halves: (0, 16), (1, 17) ... */
static inline __m512i by_turns(void)
{
    const __m512i pairs = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_or_si512(pairs,
                           _mm512_slli_epi32(_mm512_add_epi32(pairs, _mm512_set1_epi32(16)), 16));
}

/* The 32 bytes at a, then those at b. */
static inline __m512i load_two(const void *a, const void *b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(a)), _mm256_loadu_si256(b),
                              1);
}

#endif
