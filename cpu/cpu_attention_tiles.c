// SPDX-License-Identifier: Apache-2.0
/* The products of int8 and int4 codes (cpu_vec_words.h) with AMX's integer tiles. A register holds
 * 16 rows of 64 bytes; a product adds, for 16 rows and 16 columns, 64 products of bytes:
 *
 *     scores   rows: two digits of 8 bits, with signs, of each of 8 queries, 64 dims at a time;
 *              columns: 16 keys
 *     values   rows: four digits of 7 bits of each of 4 rows' probabilities, 64 tokens at a time;
 *              columns: 16 dims
 *
 * A register takes columns as [k / 4][16 columns][4], so codes are interleaved, but never
 * converted: one shuffle for 64 codes (int4: 128). These take less time than the codes' bytes take
 * to arrive from memory, which are prefetched between them. Sums are exact. Everything that is done
 * with them is shared with the vector code, which therefore gives the same bits. */
#if defined(__AMX_INT8__)

#include "cpu/cpu_attention_tiles.h"

#include "cpu/cpu_amx.h"
#include "cpu/cpu_vec_words.h"

/* STEP: k per product. TILE_SIZE: bytes of a register. */
enum { STEP = 64, TILE_SIZE = TILE_ROWS * TILE_BYTES };

/* Q_ROWS: queries per register; P_ROWS: rows of probabilities. */
enum { Q_ROWS = TILE_ROWS / 2, P_ROWS = TILE_ROWS / 4 };

enum { SIGN_BITS = 7, HALF = 1 << SIGN_BITS };

static void begin(void)
{
    static const uint8_t rows[TILE_REGISTERS] = {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS,
                                                 TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS};
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

enum { P_STEPS = (WORD_TOKENS + PANEL + STEP - 1) / STEP, P_BLOCKS = ATTN_TILE / P_ROWS };
enum { COLUMNS = 4 }; // panels of values at a time

/* GROUP: panels of keys that are multiplied together. */
enum { Q_STEPS = WORD_DIMS / STEP, Q_BLOCKS = ATTN_TILE / Q_ROWS, GROUP = 4, SLOTS = 2 };

struct tile_scores {
    const struct page_run *k;
    int32_t dim, steps, m, blocks;
    float *s;
    int64_t s_stride;
    float unit[ATTN_TILE], sum[ATTN_TILE];
    _Alignas(64) char queries[Q_BLOCKS][Q_STEPS][TILE_SIZE];
    _Alignas(64) char keys[SLOTS * GROUP][Q_STEPS][TILE_SIZE];
    _Alignas(64) int32_t sums[SLOTS][Q_BLOCKS][GROUP][TILE_ROWS][PANEL];
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
        char *to = j->queries[i / Q_ROWS][step] + i % Q_ROWS * TILE_BYTES;
        __m512i a = _mm512_loadu_si512(words), b = _mm512_loadu_si512(words + 32);
        __m512i low = low_bytes(a, b);
        a = _mm512_srai_epi16(_mm512_add_epi16(a, half), 8);
        b = _mm512_srai_epi16(_mm512_add_epi16(b, half), 8);
        _mm512_storeu_si512(to, _mm512_shuffle_epi8(low_bytes(a, b), order));
        _mm512_storeu_si512(to + Q_ROWS * TILE_BYTES, _mm512_shuffle_epi8(low, order));
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

/* Four rows of 16 bytes, transposed to 16 rows of four. */
VEC_INLINE __m512i turn_bytes(const char *from, int64_t stride)
{
    const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_set4_epi32(0x0F0B0703, 0x0E0A0602, 0x0D090501, 0x0C080400);
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const void *)from));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(from + stride)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(from + 2 * stride)), 2);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(from + 3 * stride)), 3);
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, x), bytes);
}

/* Interleaves the codes of 16 keys. Dims beyond the last are multiplied by 0; their bytes are in
 * the page, too, since scales follow. */
VEC_INLINE void pack_panel(const struct tile_scores *j, const char *head, int32_t token, char *to,
                           const enum stored kind)
{
    const struct kv_plane *plane = j->k->plane;
    const int64_t stride = plane->tokens * key_bytes(kind);
    const __m512i turns = by_turns(), low = _mm512_set1_epi8(15);
    const char *from = head + plane->at + token * key_bytes(kind);
    struct lines_ahead lines = page_lines(j->k->ahead, from);
    if (kind == STORED_U4) {
        for (int32_t d = 0; d < j->dim; d += 8, from += 4 * stride, to += 2 * TILE_BYTES) {
            __m512i x = turn_bytes(from, stride);
            prefetch_lines(j->k->ahead, &lines, 1);
            _mm512_storeu_si512(to, _mm512_and_si512(x, low));
            _mm512_storeu_si512(to + TILE_BYTES, _mm512_and_si512(_mm512_srli_epi16(x, 4), low));
        }
    } else {
        for (int32_t d = 0; d < j->dim; d += 4, from += 2 * stride, to += TILE_BYTES) {
            __m512i x = load_two(from, from + stride);
            prefetch_lines(j->k->ahead, &lines, 1);
            _mm512_storeu_si512(to, _mm512_permutexvar_epi16(turns, x));
        }
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
        pack_panel(j, j->k->pages[i / per_page], i % per_page * PANEL, panel_keys(j, i), kind);
    }
}

/* Multiplies whole groups, because a product takes longer than the time after which the next could
 * start. Panels after the last are multiplied, too, and not used. */
VEC_INLINE void multiply_group(struct tile_scores *j, int32_t first, const enum stored kind)
{
    const char *keys = panel_keys(j, first);
    const int32_t next = j->steps * TILE_SIZE;
    tiles_fence();
    for (int32_t b = 0; b < j->blocks; b++) {
        int32_t (*sums)[TILE_ROWS][PANEL] = j->sums[first / GROUP % SLOTS][b];
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int32_t step = 0; step < j->steps; step++) {
            const char *from = keys + step * TILE_SIZE;
            _tile_loadd(4, j->queries[b][step], TILE_BYTES);
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
    }
    tiles_fence();
}

VEC_INLINE void settle_group(const struct tile_scores *j, int32_t first, int32_t end,
                             const enum stored kind)
{
    const int32_t per_page = j->k->plane->tokens / PANEL;
    for (int32_t i = first; i < first + GROUP && i < end; i++) {
        float *s = j->s + i * PANEL;
        vf scale, zero;
        load_scales(j->k->plane, j->k->pages[i / per_page], i % per_page * PANEL, &scale, &zero,
                    kind);
        for (int32_t r = 0; r < j->m; r++, s += j->s_stride) {
            const int32_t *high = j->sums[i / GROUP % SLOTS][r / Q_ROWS][i % GROUP][r % Q_ROWS];
            vi sum = (vec_load_ints(high) << 8) + vec_load_ints(high + Q_ROWS * PANEL);
            vec_store(s, settle_score(sum, scale, zero, j->unit[r], j->sum[r], kind));
        }
    }
}

/* A group is packed while an earlier one is multiplied and the one before that is stored, because
 * what was just written cannot be loaded at once. */
VEC_INLINE void score_groups(struct tile_scores *j, const enum stored kind)
{
    const int32_t n = j->k->n_pages * (j->k->plane->tokens / PANEL);
    for (int32_t i = 0; i < n + 2 * GROUP; i += GROUP) {
        pack_group(j, i, n, kind);
        if (i >= GROUP && i - GROUP < n) {
            multiply_group(j, i - GROUP, kind);
        }
        if (i >= 2 * GROUP) {
            settle_group(j, i - 2 * GROUP, n, kind);
        }
    }
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
    j.blocks = (m + Q_ROWS - 1) / Q_ROWS;
    j.s = s;
    j.s_stride = s_stride;
    place_queries(&j, q, q_stride, k->plane->format == KV_INT4);
    begin();
    WITH_PAIRS(stored_of(k->plane), score_groups, &j);
    _tile_release();
}

/* ---- values -------------------------------------------------------------------------------- */

struct tile_values {
    const struct page_run *v;
    int32_t base, steps, m;
    bool has_zeros;
    float *acc;
    float unit[ATTN_TILE], zero[ATTN_TILE];
    int16_t zeros[P_STEPS][STEP];
    _Alignas(64) char digits[P_BLOCKS][P_STEPS][TILE_SIZE];
    _Alignas(64) char values[P_STEPS * COLUMNS * TILE_SIZE]; // [steps][panels][TILE_SIZE]
    bool is_packed;
    _Alignas(64) int32_t sums[COLUMNS][TILE_ROWS][PANEL];
};

/* PANEL probabilities, from the token `t` of the run on; those of tokens outside it are 0. */
VEC_INLINE __m512 weights_at(const float *p, const struct page_run *v, int32_t t)
{
    if (__builtin_expect(t >= v->first && t + PANEL <= v->end, 1)) {
        return _mm512_loadu_ps(p + t);
    }
    const int32_t before = lesser(greater(v->first - t, 0), PANEL);
    const int32_t after = lesser(greater(t + PANEL - v->end, 0), PANEL);
    const uint32_t lanes = (0xFFFFu << before & 0xFFFFu) & 0xFFFFu >> after;
    return _mm512_maskz_loadu_ps((__mmask16)lanes, p + t);
}

/* The largest probability of a row; NaN if one of them is NaN. */
static float largest_weight(const struct tile_values *j, const float *p)
{
    vi most[4] = {{0}};
    float all[4 * VEC];
    for (int32_t t = j->base; t < j->v->end; t += STEP) {
        for (int i = 0; i < 4; i++) {
            most[i] = vec_max_int(most[i], (vi)weights_at(p, j->v, t + i * VEC) & INT32_MAX);
        }
    }
    memcpy(all, most, sizeof all);
    return largest_of(all, 4 * VEC);
}

/* The words of 4 vectors of integers, shifted down, in the order of vpackusdw. */
#define PACKED_WORDS(a, b, shift)                                                                  \
    _mm512_packus_epi32(_mm512_srai_epi32(a, shift), _mm512_srai_epi32(b, shift))

/* The two digits of words. */
VEC_INLINE void put_digits(char *to, __m512i a, __m512i b)
{
    const __m512i low = _mm512_set1_epi16(HALF - 1);
    _mm512_storeu_si512(
        to, _mm512_packus_epi16(_mm512_srli_epi16(a, SIGN_BITS), _mm512_srli_epi16(b, SIGN_BITS)));
    _mm512_storeu_si512(to + P_ROWS * TILE_BYTES,
                        _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low)));
}

/* Rounds a step of probabilities, and adds their products with the tokens' zeros. Packing changes
 * the order of tokens: see pack_step. */
VEC_INLINE void place_step(const struct tile_values *j, const float *p, int32_t step, float factor,
                           char *to, vi *high_zero, vi *low_zero)
{
    const __m512i low = _mm512_set1_epi32(LOW_ONE - 1);
    const int16_t *zeros = j->zeros[step];
    __m512i x[4];
    for (int i = 0; i < 4; i++) {
        const int32_t t = j->base + step * STEP + i * PANEL;
        x[i] = _mm512_cvtps_epi32(_mm512_mul_ps(weights_at(p, j->v, t), _mm512_set1_ps(factor)));
    }
    __m512i high_a = PACKED_WORDS(x[0], x[1], LOW_BITS);
    __m512i high_b = PACKED_WORDS(x[2], x[3], LOW_BITS);
    __m512i low_a = _mm512_packus_epi32(_mm512_and_si512(x[0], low), _mm512_and_si512(x[1], low));
    __m512i low_b = _mm512_packus_epi32(_mm512_and_si512(x[2], low), _mm512_and_si512(x[3], low));
    put_digits(to, high_a, high_b);
    put_digits(to + 2 * P_ROWS * TILE_BYTES, low_a, low_b);
    if (j->has_zeros) {
        vi a = vec_load_ints(zeros), b = vec_load_ints(zeros + 2 * VEC);
        *high_zero = vec_dot_words(vec_dot_words(*high_zero, a, (vi)high_a), b, (vi)high_b);
        *low_zero = vec_dot_words(vec_dot_words(*low_zero, a, (vi)low_a), b, (vi)low_b);
    }
}

/* Rounds the probabilities of row i as round_weights does. */
static void place_row(struct tile_values *j, const float *p, int32_t i)
{
    enum { ZERO_STEPS = ZERO_TOKENS / STEP }; // the sums of so many steps fit into 32 bits
    const float largest = largest_weight(j, p);
    const float factor = largest > 0.0f ? WORD_MOST / largest : 0.0f;
    int64_t zero = 0;
    for (int32_t from = 0; from < j->steps; from += ZERO_STEPS) {
        vi high = {0}, low = {0};
        for (int32_t step = from; step < j->steps && step < from + ZERO_STEPS; step++) {
            char *to = j->digits[i / P_ROWS][step] + i % P_ROWS * TILE_BYTES;
            place_step(j, p, step, factor, to, &high, &low);
        }
        zero += vec_sum_int(high) * LOW_ONE + vec_sum_int(low);
    }
    j->unit[i] = largest / WORD_MOST;
    j->zero[i] = (float)zero * kv_zero_step(j->v->plane->format);
}

/* Reads the zeros in steps, as words in the order of the packed probabilities. */
static void place_zeros(struct tile_values *j)
{
    const struct kv_plane *plane = j->v->plane;
    const int32_t shift = 32 - KV_ZERO_BITS;
    for (int32_t at = 0; at < j->steps * STEP; at += 2 * PANEL) {
        __m512i x[2];
        for (int i = 0; i < 2; i++) {
            const int32_t t = j->base + at + i * PANEL;
            const int32_t page = lesser(t / plane->tokens, j->v->n_pages - 1);
            const char *scales = j->v->pages[page] + plane->scales_at;
            x[i] = (__m512i)(vec_load_ints(scales + t % plane->tokens * 4) << shift >> shift);
        }
        _mm512_storeu_si512(j->zeros[0] + at, _mm512_packs_epi32(x[0], x[1]));
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

/* Interleaves the codes of a step. Row 4 i + k has the tokens 4 i to 4 i + 3 of the step's panel k,
 * which is the order of packed probabilities. Tokens after the last are multiplied by 0, so any
 * page will do for them. */
VEC_INLINE void pack_step(struct tile_values *j, int32_t step, int32_t column, const int panels,
                          const enum stored kind)
{
    const struct kv_plane *plane = j->v->plane;
    const int64_t row_bytes = value_row(plane, kind);
    const int lines_per_row = kind == STORED_U4 ? (panels + 1) / 2 : panels;
    char *to = j->values + step * panels * TILE_SIZE;
    struct lines_ahead lines = page_lines(j->v->ahead, to);
    for (int32_t t = j->base + step * STEP, end = t + STEP; t < end; t += PANEL) {
        const int32_t page = lesser(t / plane->tokens, j->v->n_pages - 1);
        const char *from =
            row_of(plane, j->v->pages[page], t % plane->tokens, kind) + value_at(column, kind);
        for (int32_t i = 0; i < 4; i++, from += 2 * row_bytes) {
            pack_tokens(from, from + row_bytes, to + i * 4 * TILE_BYTES, panels, kind);
            prefetch_lines(j->v->ahead, &lines, lines_per_row);
        }
        to += TILE_BYTES;
    }
    leave_lines(j->v->ahead, &lines);
}

VEC_INLINE void settle_block(const struct tile_values *j, int32_t (*sums)[TILE_ROWS][PANEL],
                             int32_t row, int32_t column, const int panels, const enum stored kind)
{
    for (int32_t i = 0; i < P_ROWS && row + i < j->m; i++) {
        float *acc = j->acc + (int64_t)(row + i) * j->v->plane->width + column;
        for (int v = 0; v < panels; v++) {
            const int32_t *digit = sums[v][i];
            vi high = (vec_load_ints(digit) << SIGN_BITS) + vec_load_ints(digit + P_ROWS * PANEL);
            digit += 2 * P_ROWS * PANEL;
            vi low = (vec_load_ints(digit) << SIGN_BITS) + vec_load_ints(digit + P_ROWS * PANEL);
            settle_values(high, low, j->zero[row + i], j->unit[row + i], acc + v * VEC, kind);
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
        MULTIPLY(0, 4, 6, kind);
        if (panels > 1) {
            _tile_loadd(7, b + TILE_SIZE, TILE_BYTES);
            MULTIPLY(1, 4, 7, kind);
        }
        if (blocks > 1) {
            _tile_loadd(5, j->digits[block + 1][step], TILE_BYTES);
            MULTIPLY(2, 5, 6, kind);
            MULTIPLY(3, 5, 7, kind);
        } else if (panels > 2) {
            _tile_loadd(6, b + 2 * TILE_SIZE, TILE_BYTES);
            MULTIPLY(2, 4, 6, kind);
            _tile_loadd(7, b + 3 * TILE_SIZE, TILE_BYTES);
            MULTIPLY(3, 4, 7, kind);
        }
    }
    _tile_stored(0, j->sums[0], TILE_BYTES);
    _tile_stored(1, j->sums[1], TILE_BYTES);
    _tile_stored(2, j->sums[2], TILE_BYTES);
    _tile_stored(3, j->sums[3], TILE_BYTES);
    tiles_fence();
    j->is_packed = true;
    for (int32_t i = 0; i < blocks; i++) {
        settle_block(j, j->sums + i * panels, (block + i) * P_ROWS, column, panels, kind);
    }
}

/* All rows, for `panels` panels of columns from number `panel` on. */
VEC_INLINE void weigh_columns(struct tile_values *j, int32_t panel, const int panels,
                              const enum stored kind)
{
    const int32_t n = (j->m + P_ROWS - 1) / P_ROWS;
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
    for (; panel + COLUMNS <= n && j->m <= P_ROWS; panel += COLUMNS) {
        weigh_columns(j, panel, COLUMNS, kind);
    }
    for (; panel + 2 <= n; panel += 2) {
        weigh_columns(j, panel, 2, kind);
    }
    if (panel < n) {
        weigh_columns(j, panel, 1, kind);
    }
}

void cpu_tiles_weigh(const float *p, int64_t p_stride, int32_t m, const struct page_run *v,
                     float *acc)
{
    struct tile_values j;
    if (!in_tiles(v->plane, 1)) {
        cpu_kernels_avx512bf16.weigh(p, p_stride, m, v, acc);
        return;
    }
    j.v = v;
    j.base = v->first / PANEL * PANEL;
    j.steps = steps_of(v->end - j.base);
    j.m = m;
    j.acc = acc;
    j.has_zeros = kv_format_has_zero(v->plane->format);
    if (j.has_zeros) {
        place_zeros(&j);
    }
    for (int32_t i = 0; i < m; i++) {
        place_row(&j, p + i * p_stride, i);
    }
    begin();
    WITH_PAIRS(stored_of(v->plane), weigh_panels, &j);
    _tile_release();
}

#else
typedef int cpu_attention_tiles_unused; // not for this machine
#endif
