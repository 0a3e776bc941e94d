// SPDX-License-Identifier: Apache-2.0
/* The products of int8 and int4 codes (cpu_vec_words.h) with AMX's integer tiles. A register holds
 * 16 rows of 64 bytes; a product adds, for 16 rows and 16 columns, 64 products of bytes:
 *
 *     scores   rows: two digits of 8 bits, with signs, of each of up to 8 queries, 64 dims at a
 * time; columns: 16 keys values   rows: two digits, of 7 and 8 bits, of each of up to 8 rows'
 * words, 64 tokens at a time; columns: 16 dims
 *
 * A register takes columns as [k / 4][16 columns][4], so codes are interleaved, but never
 * converted: one shuffle for 64 codes (int4: 128). Shuffling takes less time than reading the codes
 * from memory, and prefetches are spread over it. Sums are exact, and the code that uses them is
 * shared with vector code, which therefore gives the same bits. */
#if defined(__AMX_INT8__)

#include "cpu/cpu_attention_tiles.h"

#include "cpu/cpu_amx.h"
#include "cpu/cpu_vec_words.h"

/* STEP: k per product. TILE_SIZE: bytes of a register. */
enum { STEP = 64, TILE_SIZE = TILE_ROWS * TILE_BYTES };

/* The maximum number of queries, or rows of probabilities, per register. */
enum { BLOCK = TILE_ROWS / 2 };

enum { HALF = 128 }; // of the weight of a query's high digit, for rounding

/* per_block: queries, or rows, per register. A product takes as long as its registers have rows. */
static void begin(int32_t per_block)
{
    const uint8_t n = (uint8_t)(2 * per_block);
    const uint8_t rows[TILE_REGISTERS] = {n, n, n, n, n, n, TILE_ROWS, TILE_ROWS};
    tiles_configure(rows);
}

/* c += a b, where the bytes of a have signs, and those of b if they are symmetric codes. */
#define MULTIPLY(c, a, b, kind)                                                                    \
    do {                                                                                           \
        if ((kind) == STORED_I8) {                                                                 \
            _tile_dpbssd(c, a, b);                                                                 \
        } else {                                                                                   \
            _tile_dpbsud(c, a, b);                                                                 \
        }                                                                                          \
    } while (0)

/* The same for a without signs. */
#define WEIGH(c, a, b, kind)                                                                       \
    do {                                                                                           \
        if ((kind) == STORED_I8) {                                                                 \
            _tile_dpbusd(c, a, b);                                                                 \
        } else {                                                                                   \
            _tile_dpbuud(c, a, b);                                                                 \
        }                                                                                          \
    } while (0)

VEC_INLINE int32_t steps_of(int32_t k)
{
    return (k + STEP - 1) / STEP;
}

/* The low bytes of 64 words. */
VEC_INLINE __m512i low_bytes(__m512i a, __m512i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)),
                              _mm512_cvtepi16_epi8(b), 1);
}

/* ---- scores -------------------------------------------------------------------------------- */

/* GROUP: panels of keys that are multiplied together. SCALE_LINES: lines of the scales of a panel
 * and of its values. */
enum {
    Q_STEPS = WORD_DIMS / STEP,
    Q_BLOCKS = ATTN_TILE / BLOCK,
    GROUP = 4,
    SLOTS = 2,
    SCALE_LINES = 2
};

struct tile_scores {
    const struct page_run *k;
    int32_t dim, steps, m, per_block, blocks;
    float *s;
    int64_t s_stride;
    float unit[ATTN_TILE], sum[ATTN_TILE];
    _Alignas(64) char queries[Q_BLOCKS][Q_STEPS][TILE_SIZE];
    _Alignas(64) char keys[SLOTS * GROUP][Q_STEPS][TILE_SIZE];
    _Alignas(64) int32_t sums[SLOTS][GROUP][TILE_ROWS][PANEL];
};

/* Splits the words of a query into digits. Packed keys of 4 bits have the even ones of 8 dims
 * before the odd ones. */
static void place_query(struct tile_scores *j, const int16_t *words, int32_t i, bool halves)
{
    static const uint8_t orders[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 2, 4, 6, 1, 3, 5, 7}};
    const __m512i half = _mm512_set1_epi16(HALF);
    uint64_t first;
    memcpy(&first, orders[halves], sizeof first);
    const int64_t second = (int64_t)(first + 0x0808080808080808u);
    const __m512i order = _mm512_set4_epi64(second, (int64_t)first, second, (int64_t)first);
    for (int32_t step = 0; step < j->steps; step++, words += STEP) {
        char *to = j->queries[i / BLOCK][step] + i % BLOCK * TILE_BYTES;
        __m512i a = _mm512_loadu_si512(words), b = _mm512_loadu_si512(words + 32);
        __m512i low = low_bytes(a, b);
        a = _mm512_srai_epi16(_mm512_add_epi16(a, half), 8);
        b = _mm512_srai_epi16(_mm512_add_epi16(b, half), 8);
        _mm512_storeu_si512(to, _mm512_shuffle_epi8(low_bytes(a, b), order));
        _mm512_storeu_si512(to + j->per_block * TILE_BYTES, _mm512_shuffle_epi8(low, order));
    }
}

static void place_queries(struct tile_scores *j, const float *q, int64_t q_stride, bool halves)
{
    struct word_queries one;
    memset(one.words[0], 0, sizeof one.words[0]);
    for (int32_t i = 0; i < j->m; i++) {
        round_query(q + i * q_stride, j->dim, &one, 0);
        j->unit[i] = one.unit[0];
        j->sum[i] = one.sum[0];
        place_query(j, one.words[0], i, halves);
    }
}

/* Two rows of 32 bytes, or four of 16. In pages of PANEL tokens they are adjacent. */
VEC_INLINE __m512i load_rows(const char *from, int64_t stride, const bool adjacent,
                             const enum stored kind)
{
    if (adjacent) {
        return _mm512_loadu_si512(from);
    }
    if (kind != STORED_U4) {
        return load_two(from, from + stride);
    }
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const void *)from));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(from + stride)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(from + 2 * stride)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(from + 3 * stride)), 3);
}

/* Transposes four rows of 16 bytes to 16 rows of four. */
VEC_INLINE __m512i turn_bytes(__m512i x)
{
    const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_set4_epi32(0x0F0B0703, 0x0E0A0602, 0x0D090501, 0x0C080400);
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, x), bytes);
}

/* Interleaves the codes of 16 keys. Dims beyond the last are multiplied by 0; their bytes are in
 * the page, too, since scales follow. The scales of keys and values are prefetched in addition to
 * one line for each line of codes. */
VEC_INLINE void pack_panel(const struct tile_scores *j, const char *head, int32_t token, char *to,
                           const bool adjacent, const enum stored kind)
{
    const struct kv_plane *plane = j->k->plane;
    const int64_t stride = plane->tokens * key_bytes(kind);
    const int64_t next = adjacent ? 64 : (kind == STORED_U4 ? 4 : 2) * stride;
    const __m512i turns = by_turns(), low = _mm512_set1_epi8(15);
    const char *from = head + plane->at + token * key_bytes(kind);
    struct lines_ahead lines = page_lines(j->k->ahead, from);
    prefetch_lines(j->k->ahead, &lines, SCALE_LINES);
    for (int32_t d = 0; d < j->dim; d += kind == STORED_U4 ? 8 : 4, from += next) {
        __m512i x = load_rows(from, stride, adjacent, kind);
        prefetch_lines(j->k->ahead, &lines, 1);
        if (kind == STORED_U4) {
            x = turn_bytes(x);
            _mm512_storeu_si512(to, _mm512_and_si512(x, low));
            to += TILE_BYTES;
            x = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
        } else {
            x = _mm512_permutexvar_epi16(turns, x);
        }
        _mm512_storeu_si512(to, x);
        to += TILE_BYTES;
    }
    leave_lines(j->k->ahead, &lines);
}

/* Where the packed keys of a panel are. */
VEC_INLINE char *panel_keys(struct tile_scores *j, int32_t panel)
{
    return j->keys[0][0] + panel % (SLOTS * GROUP) * j->steps * TILE_SIZE;
}

VEC_INLINE void pack_group(struct tile_scores *j, int32_t first, int32_t end,
                           const enum stored kind)
{
    const int32_t per_page = j->k->plane->tokens / PANEL;
    for (int32_t i = first; i < first + GROUP && i < end; i++) {
        if (!j->k->is_near) {
            prefetch_tokens(j->k, i * PANEL + PREFETCH_KEYS, (i + 1) * PANEL + PREFETCH_KEYS);
        }
        const char *head = j->k->pages[i / per_page];
        if (per_page == 1) {
            pack_panel(j, head, 0, panel_keys(j, i), true, kind);
        } else {
            pack_panel(j, head, i % per_page * PANEL, panel_keys(j, i), false, kind);
        }
    }
}

/* Multiplies whole groups, because a product takes longer than the time after which the next could
 * start. Panels after the last are multiplied, too, and not used. */
VEC_INLINE void multiply_group(struct tile_scores *j, int32_t first, int32_t block,
                               int32_t (*sums)[TILE_ROWS][PANEL], const enum stored kind)
{
    const char *keys = panel_keys(j, first);
    const int32_t next = j->steps * TILE_SIZE;
    tiles_fence();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int32_t step = 0; step < j->steps; step++) {
        const char *from = keys + step * TILE_SIZE;
        _tile_loadd(4, j->queries[block][step], TILE_BYTES);
        _tile_loadd(6, from, TILE_BYTES);
        MULTIPLY(0, 4, 6, kind);
        _tile_loadd(7, from + next, TILE_BYTES);
        MULTIPLY(1, 4, 7, kind);
        _tile_loadd(6, from + 2 * next, TILE_BYTES);
        MULTIPLY(2, 4, 6, kind);
        _tile_loadd(7, from + 3 * next, TILE_BYTES);
        MULTIPLY(3, 4, 7, kind);
    }
    _tile_stored(0, sums[0], TILE_BYTES);
    _tile_stored(1, sums[1], TILE_BYTES);
    _tile_stored(2, sums[2], TILE_BYTES);
    _tile_stored(3, sums[3], TILE_BYTES);
    tiles_fence();
}

/* Stores the scores of up to GROUP panels and a block of queries. */
VEC_INLINE void settle_rows(const struct tile_scores *j, int32_t first, int32_t end, int32_t block,
                            const int32_t rows, int32_t (*sums)[TILE_ROWS][PANEL],
                            const enum stored kind)
{
    const struct page_run *k = j->k;
    const int32_t per_page = k->plane->tokens / PANEL;
    const float *unit = j->unit + block * BLOCK, *q_sum = j->sum + block * BLOCK;
    const int64_t stride = j->s_stride;
    float *to = j->s + block * BLOCK * stride + first * PANEL;
    for (int32_t i = first; i < first + GROUP && i < end; i++, sums++, to += PANEL) {
        int32_t (*high)[PANEL] = *sums, (*low)[PANEL] = high + j->per_block;
        vf scale, zero;
        load_scales(k->plane, k->pages[i / per_page], i % per_page * PANEL, &scale, &zero, kind);
        for (int32_t r = 0; r < rows; r++) {
            vi sum = (vec_load_ints(high[r]) << 8) + vec_load_ints(low[r]);
            vec_store(to + r * stride, settle_score(sum, scale, zero, unit[r], q_sum[r], kind));
        }
    }
}

VEC_INLINE void settle_group(const struct tile_scores *j, int32_t first, int32_t end, int32_t block,
                             int32_t (*sums)[TILE_ROWS][PANEL], const enum stored kind)
{
    if ((block + 1) * BLOCK <= j->m) {
        settle_rows(j, first, end, block, BLOCK, sums, kind);
    } else {
        settle_rows(j, first, end, block, j->m - block * BLOCK, sums, kind);
    }
}

/* A group is packed before an earlier one is multiplied, and sums are stored after those of the
 * next block have been multiplied, because what was just written cannot be loaded at once. */
VEC_INLINE void score_groups(struct tile_scores *j, const enum stored kind)
{
    const int32_t n = j->k->n_pages * (j->k->plane->tokens / PANEL);
    int32_t last = -GROUP, last_block = 0, slot = 0;
    for (int32_t i = 0; i < n + GROUP; i += GROUP) {
        pack_group(j, i, n, kind);
        for (int32_t b = 0; i >= GROUP && b < j->blocks; b++, slot = 1 - slot) {
            multiply_group(j, i - GROUP, b, j->sums[slot], kind);
            if (last >= 0) {
                settle_group(j, last, n, last_block, j->sums[1 - slot], kind);
            }
            last = i - GROUP;
            last_block = b;
        }
    }
    settle_group(j, last, n, last_block, j->sums[1 - slot], kind);
}

static bool in_tiles(const struct kv_plane *p, int32_t dim)
{
    return scores_in_words(p, dim) && p->tokens % PANEL == 0;
}

bool cpu_tiles_fit(const struct kv_pages *p)
{
    return in_tiles(&p->k, p->k.width) && !p->geometry.v_in_k;
}

void cpu_tiles_scores(const float *q, int64_t q_stride, int32_t m, const struct page_run *k,
                      int32_t dim, float *s, int64_t s_stride)
{
    struct tile_scores j;
    if (!in_tiles(k->plane, dim)) {
        cpu_kernels_avx512bf16.scores(q, q_stride, m, k, dim, s, s_stride);
        return;
    }
    j.k = k;
    j.dim = dim;
    j.steps = steps_of(dim);
    j.m = m;
    j.per_block = lesser(m, BLOCK);
    j.blocks = (m + BLOCK - 1) / BLOCK;
    j.s = s;
    j.s_stride = s_stride;
    place_queries(&j, q, q_stride, k->plane->format == KV_INT4);
    begin(j.per_block);
    WITH_PAIRS(stored_of(k->plane), score_groups, &j);
    _tile_release();
}

/* ---- values -------------------------------------------------------------------------------- */

/* COLUMNS: panels of values at a time. */
enum { P_STEPS = (WORD_TOKENS + PANEL + STEP - 1) / STEP, P_BLOCKS = ATTN_TILE / BLOCK };
enum { COLUMNS = 4 };

struct tile_values {
    const struct page_run *v;
    int32_t base, steps, m, per_block;
    float *acc;
    float zero[ATTN_TILE];
    int16_t zeros[(P_STEPS + 1) * STEP];
    _Alignas(64) char digits[P_BLOCKS][P_STEPS][TILE_SIZE];
    _Alignas(64) char values[P_STEPS * COLUMNS * TILE_SIZE]; // [steps][panels][TILE_SIZE]
    bool is_packed;
    _Alignas(64) int32_t sums[COLUMNS][TILE_ROWS][PANEL];
};

/* Splits the words of row i into digits. Packing changes the order of tokens: see pack_step. */
static void place_row(struct tile_values *j, const int16_t *words, int32_t i)
{
    const __m512i low = _mm512_set1_epi16(255);
    const int32_t n = j->v->end - j->base;
    for (int32_t t = 0; t < n; t += STEP) {
        char *to = j->digits[i / BLOCK][t / STEP] + i % BLOCK * TILE_BYTES;
        const uint64_t kept = n - t < STEP ? (UINT64_C(1) << (n - t)) - 1 : UINT64_MAX;
        __m512i a = _mm512_maskz_loadu_epi16((__mmask32)kept, words + t);
        __m512i b = _mm512_maskz_loadu_epi16((__mmask32)(kept >> 32), words + t + 32);
        _mm512_storeu_si512(to,
                            _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8)));
        _mm512_storeu_si512(
            to + j->per_block * TILE_BYTES,
            _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low)));
    }
    j->zero[i] = 0.0f;
    if (kv_format_has_zero(j->v->plane->format)) {
        j->zero[i] = weigh_zeros(words, j->zeros, n, j->v->plane->format);
    }
}

/* Interleaves the codes of 4 tokens in `panels` panels of columns. */
VEC_INLINE void pack_tokens(const char *a, const char *b, char *to, const int panels,
                            const enum stored kind)
{
    const __m512i turns = by_turns(), low = _mm512_set1_epi8(15);
    for (int v = 0; v < panels; v += kind == STORED_U4 ? 2 : 1, a += 32, b += 32) {
        __m512i x = _mm512_permutexvar_epi16(turns, load_two(a, b));
        if (kind == STORED_U4) {
            _mm512_storeu_si512(to + v * TILE_SIZE, _mm512_and_si512(x, low));
            x = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
        }
        if (kind != STORED_U4 || v + 1 < panels) {
            const int at = kind == STORED_U4 ? v + 1 : v;
            _mm512_storeu_si512(to + at * TILE_SIZE, x);
        }
    }
}

/* Interleaves the codes of a step, four tokens per row, in the order of packed digits: of every 16
 * tokens, 8 follow the 8 that are 32 tokens before them. Tokens after the last are multiplied by 0,
 * so any page will do for them. */
VEC_INLINE void pack_step(struct tile_values *j, int32_t step, int32_t column, const int panels,
                          const enum stored kind)
{
    const struct kv_plane *plane = j->v->plane;
    const int64_t row_bytes = value_row(plane, kind);
    const int lines_per_row = kind == STORED_U4 ? (panels + 1) / 2 : panels;
    char *to = j->values + step * panels * TILE_SIZE;
    struct lines_ahead lines = page_lines(j->v->ahead, to);
    int32_t row = 0;
    for (int32_t t = j->base + step * STEP, end = t + STEP; t < end; t += PANEL) {
        const int32_t page = lesser(t / plane->tokens, j->v->n_pages - 1);
        const char *from =
            row_of(plane, j->v->pages[page], t % plane->tokens, kind) + value_at(column, kind);
        for (int32_t i = 0; i < 4; i++, from += 2 * row_bytes) {
            const int32_t at = (row + i / 2 * 4 + i % 2) * TILE_BYTES;
            pack_tokens(from, from + row_bytes, to + at, panels, kind);
            prefetch_lines(j->v->ahead, &lines, lines_per_row);
        }
        row = row < 8 ? row + 8 : 2; // 0, 8, 2, 10
    }
    leave_lines(j->v->ahead, &lines);
}

VEC_INLINE void settle_block(const struct tile_values *j, int32_t (*sums)[TILE_ROWS][PANEL],
                             int32_t row, int32_t column, const int panels, const enum stored kind)
{
    for (int32_t i = 0; i < BLOCK && row + i < j->m; i++) {
        float *acc = j->acc + (int64_t)(row + i) * j->v->plane->width + column;
        for (int v = 0; v < panels; v++) {
            const int32_t *digit = sums[v][i];
            vu high = (vu)vec_load_ints(digit),
               low = (vu)vec_load_ints(digit + j->per_block * PANEL);
            settle_values((vi)((high << 8) + low), j->zero[row + i], acc + v * VEC, kind);
        }
    }
}

/* The sums of one block of rows and `panels` panels of columns, or of two blocks and two panels,
 * which load fewer operands. The first blocks pack the codes that all use, a step before they
 * multiply them. */
VEC_INLINE void weigh_block_of(struct tile_values *j, int32_t block, int32_t column,
                               const int blocks, const int panels, const enum stored kind)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (!j->is_packed) {
        pack_step(j, 0, column, panels, kind);
    }
    for (int32_t step = 0; step < j->steps; step++) {
        const char *b = j->values + step * panels * TILE_SIZE;
        if (!j->is_packed && step + 1 < j->steps) {
            pack_step(j, step + 1, column, panels, kind);
        }
        tiles_fence();
        _tile_loadd(4, j->digits[block][step], TILE_BYTES);
        _tile_loadd(6, b, TILE_BYTES);
        WEIGH(0, 4, 6, kind);
        if (panels > 1) {
            _tile_loadd(7, b + TILE_SIZE, TILE_BYTES);
            WEIGH(1, 4, 7, kind);
        }
        if (blocks > 1) {
            _tile_loadd(5, j->digits[block + 1][step], TILE_BYTES);
            WEIGH(2, 5, 6, kind);
            WEIGH(3, 5, 7, kind);
        } else if (panels > 2) {
            _tile_loadd(6, b + 2 * TILE_SIZE, TILE_BYTES);
            WEIGH(2, 4, 6, kind);
            _tile_loadd(7, b + 3 * TILE_SIZE, TILE_BYTES);
            WEIGH(3, 4, 7, kind);
        }
    }
    _tile_stored(0, j->sums[0], TILE_BYTES);
    _tile_stored(1, j->sums[1], TILE_BYTES);
    _tile_stored(2, j->sums[2], TILE_BYTES);
    _tile_stored(3, j->sums[3], TILE_BYTES);
    tiles_fence();
    j->is_packed = true;
    for (int32_t i = 0; i < blocks; i++) {
        settle_block(j, j->sums + i * panels, (block + i) * BLOCK, column, panels, kind);
    }
}

/* All rows, for `panels` panels of columns from number `panel` on. */
VEC_INLINE void weigh_columns(struct tile_values *j, int32_t panel, const int panels,
                              const enum stored kind)
{
    const int32_t n = (j->m + BLOCK - 1) / BLOCK;
    int32_t b = 0;
    j->is_packed = false;
    for (; panels == 2 && b + 2 <= n; b += 2) {
        weigh_block_of(j, b, panel * PANEL, 2, 2, kind);
    }
    for (; b < n; b++) {
        weigh_block_of(j, b, panel * PANEL, 1, panels, kind);
    }
}

VEC_INLINE void weigh_panels(struct tile_values *j, const enum stored kind)
{
    const int32_t n = j->v->plane->width / PANEL;
    int32_t panel = 0;
    for (; panel + COLUMNS <= n && j->m <= BLOCK; panel += COLUMNS) {
        weigh_columns(j, panel, COLUMNS, kind);
    }
    for (; panel + 2 <= n; panel += 2) {
        weigh_columns(j, panel, 2, kind);
    }
    if (panel < n) {
        weigh_columns(j, panel, 1, kind);
    }
}

static void weigh_codes(const int16_t *p, int64_t stride, int32_t m, const struct page_run *v,
                        float *acc)
{
    struct tile_values j;
    if (!in_tiles(v->plane, 1)) {
        weigh_word_values(p, stride, m, v, acc);
        return;
    }
    j.v = v;
    j.base = v->first / PANEL * PANEL;
    j.steps = steps_of(v->end - j.base);
    j.m = m;
    j.per_block = lesser(m, BLOCK);
    j.acc = acc;
    if (kv_format_has_zero(v->plane->format)) {
        load_zero_words(v, j.base, j.zeros);
    }
    for (int32_t i = 0; i < m; i++) {
        place_row(&j, p + j.base + i * stride, i);
    }
    begin(j.per_block);
    WITH_PAIRS(stored_of(v->plane), weigh_panels, &j);
    _tile_release();
}

const struct word_kernels cpu_tiles_words = {
    .fit = values_in_words,
    .scales = value_scales,
    .soften = soften_words,
    .sum = sum_words,
    .weigh = weigh_codes,
};

#else
typedef int cpu_attention_tiles_unused; // not for this machine
#endif
