// SPDX-License-Identifier: Apache-2.0
/* Unicode properties and case, by search in the generated tables. */
#include "engine/tokenizer/unicode.h"

size_t unicode_space_prefix(const char *s, size_t n_bytes)
{
    size_t i = 0;
    while (i < n_bytes) {
        uint32_t cp;
        size_t n = unicode_next(s + i, &cp);
        if (!(unicode_flags(cp) & U_SPACE)) {
            break;
        }
        i += n;
    }
    return i;
}

size_t unicode_space_suffix(const char *s, size_t n_bytes)
{
    size_t end = n_bytes;
    while (end > 0) {
        uint32_t cp;
        size_t n = unicode_previous(s, end, &cp);
        if (!(unicode_flags(cp) & U_SPACE)) {
            break;
        }
        end -= n;
    }
    return n_bytes - end;
}

/* The full mapping, without rules that depend on the language or on neighbouring characters. */
size_t unicode_to_lower(uint32_t cp, uint32_t out[2])
{
    if (cp < 0x80) {
        out[0] = cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
        return 1;
    }
    if (cp == 0x130) {
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    size_t low = 0, high = unicode_n_lower;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (unicode_lower[mid][0] < cp) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    if (low < unicode_n_lower && unicode_lower[low][0] == cp) {
        out[0] = unicode_lower[low][1];
    } else {
        out[0] = cp;
    }
    return 1;
}

/* Bytes that print keep their value; the others are numbered in order from U+0100 on. */
static bool prints(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

/* GPT-2's alphabet: bytes that do not print become the characters from U+0100 on, in order. */
uint32_t unicode_byte_symbol(unsigned char byte)
{
    unsigned b = byte;
    if (prints(b)) {
        return b;
    }
    if (b <= 0x20) {
        return 0x100 + b;
    }
    return b == 0xAD ? 0x143 : 0x100 + 33 + (b - 0x7F);
}

int unicode_symbol_byte(uint32_t cp)
{
    if (cp < 0x100) {
        return prints(cp) ? (int)cp : -1;
    }
    if (cp <= 0x120) {
        return (int)(cp - 0x100);
    }
    if (cp <= 0x142) {
        return (int)(cp - 0x121 + 0x7F);
    }
    return cp == 0x143 ? 0xAD : -1;
}

/* Whether normalisation may change the character, or combine it with another one. */
bool unicode_has_forms(uint32_t cp)
{
    size_t low = 0, high = unicode_n_unformed;
    if (cp < unicode_unformed[0][0]) {
        return true;
    }
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (unicode_unformed[middle][1] < cp) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return (low == unicode_n_unformed || cp < unicode_unformed[low][0]) &&
           !(unicode_flags(cp) & U_NEW);
}
