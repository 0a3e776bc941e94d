// SPDX-License-Identifier: Apache-2.0
/* Hand-written splitters for the patterns that nearly all models use. Each gives exactly the
 * matches of its pattern (a test compares them with PCRE2 on random text), but without
 * backtracking. For instance, white space is read only once, however the alternatives at the end of
 * a pattern divide it.
 *
 * A splitter returns the first match at or after `from`. */
#include "engine/tokenizer/regex.h"

#include <string.h>

/* The kinds of characters that these patterns distinguish. */
enum kind {
    OTHER,  // anything else: punctuation, symbols, marks, controls
    LETTER, // \p{L}
    NUMBER, // \p{N}
    SPACE,  // \s except \r and \n
    NEWLINE,
};

#define O OTHER
#define L LETTER
#define N NUMBER
#define S SPACE
#define R NEWLINE
static const uint8_t ascii_kind[128] = {
    O, O, O, O, O, O, O, O, O, S, R, S, S, R, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O};
#undef O
#undef L
#undef N
#undef S
#undef R

/* The kind of the character at s[i], and its width. `letters`: the property bits that count as a
 * letter. */
static inline enum kind kind_at(const char *s, size_t i, uint32_t letters, size_t *width)
{
    unsigned char c = (unsigned char)s[i];
    if (c < 0x80) {
        *width = 1;
        return (enum kind)ascii_kind[c];
    }
    uint32_t cp;
    *width = unicode_next(s + i, &cp);
    uint32_t flags = unicode_flags(cp);
    if (flags & letters) {
        return LETTER;
    }
    if (flags & U_N) {
        return NUMBER;
    }
    return flags & U_SPACE ? SPACE : OTHER;
}

/* The end of a run of one kind, as `+` matches it. */
static inline size_t run_of(enum kind kind, uint32_t letters, const char *s, size_t n, size_t i)
{
    while (i < n) {
        size_t width;
        if (kind_at(s, i, letters, &width) != kind) {
            break;
        }
        i += width;
    }
    return i;
}

/* The length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at s[i]; 0: no match. */
static size_t contraction(const char *s, size_t n, size_t i)
{
    if (n - i < 2 || s[i] != '\'') {
        return 0;
    }
    char a = (char)(s[i + 1] | 0x20);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') {
        return 2;
    }
    if (n - i < 3) {
        return 0;
    }
    if ((unsigned char)s[i + 1] == 0xC5 && (unsigned char)s[i + 2] == 0xBF) {
        return 3; // U+017F is a lower-case s
    }
    char b = (char)(s[i + 2] | 0x20);
    bool two = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return two ? 3 : 0;
}

/* Called at white space. Matches \s*[\r\n]+ | \s+(?!\S) | \s+; without `newlines` only the last
 * two. */
static size_t space_end(const char *s, size_t n, size_t i, bool newlines)
{
    size_t last = i, after_newline = 0, end = i;
    while (end < n) {
        size_t width;
        enum kind k = kind_at(s, end, U_L, &width);
        if (k != SPACE && k != NEWLINE) {
            break;
        }
        last = end;
        end += width;
        if (k == NEWLINE) {
            after_newline = end;
        }
    }
    if (newlines && after_newline > 0) {
        return after_newline;
    }
    if (end == n || last == i) {
        return end;
    }
    return last;
}

static inline size_t newlines_end(const char *s, size_t n, size_t i)
{
    while (i < n && (s[i] == '\n' || s[i] == '\r')) {
        i++;
    }
    return i;
}

/* The end of \p{N}{1,most}. */
static inline size_t numbers_end(const char *s, size_t n, size_t i, size_t most)
{
    for (size_t k = 0; k < most && i < n; k++) {
        size_t width;
        if (kind_at(s, i, U_L, &width) != NUMBER) {
            break;
        }
        i += width;
    }
    return i;
}

/* Llama 3, cl100k, Qwen and similar: contractions first; then a run of letters, with any one
 * character before it; then up to `most` digits; then punctuation with the newlines after it. */
static inline size_t cl100k_end(const char *s, size_t n, size_t i, uint32_t letters, size_t most)
{
    size_t width, width2;
    enum kind k = kind_at(s, i, letters, &width);
    if (k == LETTER) {
        return run_of(LETTER, letters, s, n, i + width);
    }
    if (k == NUMBER) {
        return numbers_end(s, n, i, most);
    }
    if (s[i] == '\'') {
        size_t c = contraction(s, n, i);
        if (c > 0) {
            return i + c;
        }
    }
    enum kind next = i + width < n ? kind_at(s, i + width, letters, &width2) : SPACE;
    if (k != NEWLINE && next == LETTER) {
        return run_of(LETTER, letters, s, n, i + width + width2);
    }
    if (k == OTHER || (s[i] == ' ' && next == OTHER && i + 1 < n)) {
        return newlines_end(s, n, run_of(OTHER, letters, s, n, i + width));
    }
    return space_end(s, n, i, true);
}

#define COVERING(name, end_of)                                                                     \
    static int name(const char *s, size_t n, size_t from, size_t *start, size_t *end)              \
    {                                                                                              \
        if (from >= n) {                                                                           \
            return 0;                                                                              \
        }                                                                                          \
        *start = from;                                                                             \
        *end = end_of;                                                                             \
        return 1;                                                                                  \
    }

COVERING(split_llama3, cl100k_end(s, n, from, U_L, 3))
COVERING(split_qwen2, cl100k_end(s, n, from, U_L, 1))
COVERING(split_cl100k_numbers, cl100k_end(s, n, from, U_L, SIZE_MAX))
COVERING(split_qwen35, cl100k_end(s, n, from, U_L | U_M, 1))

/* GPT-2: lower-case contractions, then runs of one kind with an optional space before them. */
static inline size_t gpt2_end(const char *s, size_t n, size_t i)
{
    size_t width, width2;
    enum kind k = kind_at(s, i, U_L, &width);
    if (s[i] == '\'') {
        size_t c = contraction(s, n, i);
        bool lower = c > 0 && (s[i + 1] & 0x20) && (unsigned char)s[i + 1] < 0x80;
        if (lower && (c == 2 || (s[i + 2] & 0x20))) {
            return i + c;
        }
    }
    if (s[i] == ' ' && i + 1 < n) {
        enum kind next = kind_at(s, i + 1, U_L, &width2);
        if (next != SPACE && next != NEWLINE) {
            return run_of(next, U_L, s, n, i + 1 + width2);
        }
    }
    if (k == SPACE || k == NEWLINE) {
        return space_end(s, n, i, false);
    }
    return run_of(k, U_L, s, n, i + width);
}

COVERING(split_gpt2, gpt2_end(s, n, from))

/* ---- o200k and tekken: words by case ---- */

/* UPPER: may be in the first part of a word; LOWER: in the second part. */
enum { UPPER = 1, LOWER = 2 };

static inline unsigned case_at(const char *s, size_t i, size_t *width)
{
    unsigned char c = (unsigned char)s[i];
    if (c < 0x80) {
        *width = 1;
        if (c >= 'a' && c <= 'z') {
            return LOWER;
        }
        if (c >= 'A' && c <= 'Z') {
            return UPPER;
        }
        return 0;
    }
    uint32_t cp;
    *width = unicode_next(s + i, &cp);
    uint32_t flags = unicode_flags(cp);
    return (flags & (U_LU | U_LT | U_LM | U_LO | U_M) ? UPPER : 0) |
           (flags & (U_LL | U_LM | U_LO | U_M) ? LOWER : 0);
}

/* Matches [upper]*[lower]+ at i and returns its end, or 0. *upper_end: the end of the run of upper,
 * for the other alternative, [upper]+[lower]*. */
static inline size_t word_end(const char *s, size_t n, size_t i, size_t *upper_end)
{
    size_t width, both_end = 0;
    unsigned k = 0;
    while (i < n && ((k = case_at(s, i, &width)) & UPPER)) {
        i += width;
        if (k & LOWER) {
            both_end = i;
        }
    }
    *upper_end = i;
    if (i == n || !(k & LOWER)) {
        return both_end; // the first part must give back the characters that the second part needs
    }
    while (i < n && (case_at(s, i, &width) & LOWER)) {
        i += width;
    }
    return i;
}

static size_t o200k_word(const char *s, size_t n, size_t i, enum kind k, size_t width)
{
    size_t upper, upper_bare = i, end;
    bool prefix = k != LETTER && k != NUMBER && k != NEWLINE && i + width < n;
    if (prefix && (end = word_end(s, n, i + width, &upper)) > 0) {
        return end;
    }
    bool bare = k == LETTER || k == OTHER; // a mark has kind OTHER
    if (bare && (end = word_end(s, n, i, &upper_bare)) > 0) {
        return end;
    }
    if (prefix && upper > i + width) {
        return upper;
    }
    return upper_bare > i ? upper_bare : 0;
}

static inline size_t o200k_end(const char *s, size_t n, size_t i, size_t most, bool contractions)
{
    size_t width;
    enum kind k = kind_at(s, i, U_L, &width);
    if (k == NUMBER) {
        return numbers_end(s, n, i, most);
    }
    size_t end = k == NEWLINE ? 0 : o200k_word(s, n, i, k, width);
    if (end > 0) {
        if (contractions && end < n) {
            return end + contraction(s, n, end);
        }
        return end;
    }
    bool spaced = s[i] == ' ' && i + 1 < n && kind_at(s, i + 1, U_L, &width) == OTHER;
    if (k == OTHER || spaced) {
        end = run_of(OTHER, U_L, s, n, i + 1 * spaced);
        while (end < n && (s[end] == '\n' || s[end] == '\r' || s[end] == '/')) {
            end++;
        }
        return end;
    }
    return space_end(s, n, i, true);
}

COVERING(split_o200k, o200k_end(s, n, from, 3, true))
COVERING(split_tekken, o200k_end(s, n, from, 1, false))

/* ---- DeepSeek V3: three patterns, one after the other ---- */

static int split_numbers3(const char *s, size_t n, size_t from, size_t *start, size_t *end)
{
    for (size_t i = from; i < n;) {
        size_t width;
        if (kind_at(s, i, U_L, &width) == NUMBER) {
            *start = i;
            *end = numbers_end(s, n, i, 3);
            return 1;
        }
        i += width;
    }
    return 0;
}

static inline bool is_cjk(const char *s, size_t i)
{
    uint32_t cp;
    if ((unsigned char)s[i] < 0xE3) {
        return false;
    }
    unicode_next(s + i, &cp);
    return (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF);
}

static int split_cjk(const char *s, size_t n, size_t from, size_t *start, size_t *end)
{
    size_t i = from;
    while (i < n && !is_cjk(s, i)) {
        i += unicode_lead_length((unsigned char)s[i]);
    }
    *start = i;
    while (i < n && is_cjk(s, i)) {
        i += 3;
    }
    *end = i;
    return i > *start;
}

static bool is_ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_ascii_punctuation(char c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

static uint32_t flags_at(const char *s, size_t i, size_t *width)
{
    uint32_t cp;
    *width = unicode_next(s + i, &cp);
    return unicode_flags(cp);
}

static size_t flags_run(uint32_t bits, const char *s, size_t n, size_t i)
{
    size_t width;
    while (i < n && (flags_at(s, i, &width) & bits)) {
        i += width;
    }
    return i;
}

/* The end of the match at i, or 0. */
static size_t deepseek3_end(const char *s, size_t n, size_t i)
{
    size_t width, width2 = 0;
    if (is_ascii_punctuation(s[i]) && i + 1 < n && is_ascii_letter(s[i + 1])) {
        size_t end = i + 2;
        while (end < n && is_ascii_letter(s[end])) {
            end++;
        }
        return end;
    }
    uint32_t flags = flags_at(s, i, &width);
    if (flags & (U_L | U_M)) {
        return flags_run(U_L | U_M, s, n, i + width);
    }
    uint32_t next = i + width < n ? flags_at(s, i + width, &width2) : 0;
    bool newline = s[i] == '\n' || s[i] == '\r';
    if (!newline && !(flags & (U_P | U_S)) && (next & (U_L | U_M))) {
        return flags_run(U_L | U_M, s, n, i + width + width2);
    }
    if ((flags & (U_P | U_S)) || (s[i] == ' ' && (next & (U_P | U_S)))) {
        return newlines_end(s, n, flags_run(U_P | U_S, s, n, i + width));
    }
    if (flags & U_SPACE) {
        return space_end(s, n, i, true);
    }
    return 0;
}

static int split_deepseek3(const char *s, size_t n, size_t from, size_t *start, size_t *end)
{
    for (size_t i = from; i < n; i += unicode_lead_length((unsigned char)s[i])) {
        size_t e = deepseek3_end(s, n, i);
        if (e > 0) {
            *start = i;
            *end = e;
            return 1;
        }
    }
    return 0;
}

/* ---- which pattern is which ---- */

#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K(letters, most, other)                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?" letters "+|\\p{N}" most "| ?" other      \
    "+[\\r\\n]*" TAIL
#define UPPERS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWERS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(suffix, most)                                                                        \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPERS "*" LOWERS "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPERS         \
    "+" LOWERS "*" suffix "|\\p{N}" most "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL

static const struct {
    const char *pattern;
    splitter_fn *splitter;
} known[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     split_gpt2},
    {CL100K("\\p{L}", "{1,3}", "[^\\s\\p{L}\\p{N}]"), split_llama3},
    {CL100K("\\p{L}", "", "[^\\s\\p{L}\\p{N}]"), split_qwen2},
    {CL100K("\\p{L}", "+", "[^\\s\\p{L}\\p{N}]"), split_cl100k_numbers},
    {CL100K("[\\p{L}\\p{M}]", "", "[^\\s\\p{L}\\p{M}\\p{N}]"), split_qwen35},
    {O200K("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}"), split_o200k},
    {O200K("", ""), split_tekken},
    {"\\p{N}{1,3}", split_numbers3},
    {"[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+", split_cjk},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" TAIL,
     split_deepseek3},
};

/* In files, newlines in a pattern are written either as escapes or literally. */
static bool same_pattern(const char *a, const char *known_pattern)
{
    for (; *a; a++) {
        const char *escape = NULL;
        if (*a == '\n') {
            escape = "\\n";
        } else if (*a == '\r') {
            escape = "\\r";
        }
        if (escape && strncmp(known_pattern, escape, 2) == 0) {
            known_pattern += 2;
        } else if (*a == *known_pattern) {
            known_pattern++;
        } else {
            return false;
        }
    }
    return *known_pattern == '\0';
}

splitter_fn *splitter_of(const char *pattern)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (same_pattern(pattern, known[i].pattern)) {
            return known[i].splitter;
        }
    }
    return NULL;
}

const char *splitter_pattern(size_t i)
{
    if (i < sizeof known / sizeof known[0]) {
        return known[i].pattern;
    }
    return NULL;
}
