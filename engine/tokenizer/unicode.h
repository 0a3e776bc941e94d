// SPDX-License-Identifier: Apache-2.0
/* How Hugging Face `tokenizers` classifies each code point (measured, see
 * scripts/tokenizer_tables.py), and iteration over valid UTF-8.
 * Thread: any. */
#ifndef SLUICE_ENGINE_TOKENIZER_UNICODE_H
#define SLUICE_ENGINE_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum unicode_bit {
    U_L = 1 << 0, // general categories, as the regexes see them
    U_LU = 1 << 1,
    U_LT = 1 << 2,
    U_LM = 1 << 3,
    U_LO = 1 << 4,
    U_LL = 1 << 5,
    U_M = 1 << 6,
    U_N = 1 << 7,
    U_P = 1 << 8,
    U_S = 1 << 9,
    U_SPACE = 1 << 10, // \s
    U_DIGIT = 1 << 11, // \d
    U_WORD = 1 << 12,  // \w in a pattern
    U_HAN = 1 << 13,
    U_PUNCT = 1 << 14,        // [[:punct:]]
    U_BERT_PUNCT = 1 << 15,   // the Punctuation pre-tokenizer
    U_NUMERIC = 1 << 16,      // the Digits pre-tokenizer
    U_RUST_WORD = 1 << 17,    // \w of single_word tokens and of the Whitespace pre-tokenizer
    U_MARK = 1 << 18,         // StripAccents drops it
    U_BERT_ACCENT = 1 << 19,  // BertNormalizer drops it
    U_BERT_CONTROL = 1 << 20, // BertNormalizer drops it, too
    U_NFC_UNSAFE = 1 << 21,   // NFC may change it or combine it with the character to its left
    U_NEW = 1 << 22,          // newer than Unicode 14
    U_ALPHA = 1 << 23,        // [[:alpha:]] and the like
    U_UPPER = 1 << 24,
    U_LOWER = 1 << 25,
    U_MN = 1 << 26, // further general categories
    U_MC = 1 << 27,
    U_NO = 1 << 28,
    U_SO = 1 << 29,
    U_SM = 1 << 30,
};
#define U_CF (1u << 31)

extern const uint32_t unicode_kind_flags[];
extern const uint16_t unicode_block_of[];
extern const uint8_t unicode_kinds[];
extern const uint32_t unicode_lower[][2];
extern const size_t unicode_n_lower;
extern const uint32_t unicode_unformed[][2];
extern const size_t unicode_n_unformed;

static inline uint32_t unicode_flags(uint32_t cp)
{
    return unicode_kind_flags[unicode_kinds[unicode_block_of[cp >> 7] * 128u + (cp & 127)]];
}

/* Reads one character of valid UTF-8. */
static inline size_t unicode_next(const char *s, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    if (p[0] < 0xE0) {
        *cp = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (p[0] < 0xF0) {
        *cp = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    *cp = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

/* The character that ends before s[at] (at > 0). */
static inline size_t unicode_previous(const char *s, size_t at, uint32_t *cp)
{
    size_t i = at - 1;
    while (i > 0 && ((unsigned char)s[i] & 0xC0) == 0x80) {
        i--;
    }
    unicode_next(s + i, cp);
    return at - i;
}

static inline size_t unicode_lead_length(unsigned char lead)
{
    if (lead < 0x80) {
        return 1;
    }
    if (lead < 0xE0) {
        return 2;
    }
    return lead < 0xF0 ? 3 : 4;
}

/* The length in bytes of the white space (\s) at the start, and at the end, of a valid text. */
size_t unicode_space_prefix(const char *s, size_t n_bytes);
size_t unicode_space_suffix(const char *s, size_t n_bytes);

/* False if the library's normalisation forms do not know the character. Such a character is
 * unchanged, combines with nothing, and is not reordered. */
bool unicode_has_forms(uint32_t cp);

/* Appends the lower case of cp (one or two code points) and returns how many. */
size_t unicode_to_lower(uint32_t cp, uint32_t out[2]);

/* The byte-level alphabet: every byte has a printable character below U+0144. */
uint32_t unicode_byte_symbol(unsigned char byte);
int unicode_symbol_byte(uint32_t cp); // -1 if it stands for no byte

#endif
