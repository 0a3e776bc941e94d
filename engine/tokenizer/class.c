// SPDX-License-Identifier: Apache-2.0
/* The members of character classes, as PCRE2 writes them in brackets. They follow the meaning that
 * Oniguruma gives to \w, \p{Lu} or [:punct:]. */
#include "engine/tokenizer/regex.h"

#include <stdio.h>
#include <string.h>

void class_put_range(struct buf *b, uint32_t from, uint32_t to)
{
    if (from == to) {
        buf_printf(b, "\\x{%X}", from);
    } else {
        buf_printf(b, "\\x{%X}-\\x{%X}", from, to);
    }
}

static bool block_is_uniform(uint32_t block)
{
    const uint8_t *kinds = unicode_kinds + unicode_block_of[block] * 128u;
    return memcmp(kinds, kinds + 1, 127) == 0;
}

/* Outside brackets, Oniguruma's \w includes the superscripts and fractions of Latin-1; inside
 * brackets it does not. */
static bool word_lacks(uint32_t cp)
{
    return cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || (cp >= 0xBC && cp <= 0xBE);
}

/* Writes the ranges of a class in PCRE2's notation. Blocks of 128 equal characters are skipped as a
 * whole, so that a class is built fast enough for loading. */
static void put_members(struct buf *b, uint32_t any, uint32_t all, bool in_brackets)
{
    uint32_t start = 0;
    bool inside = false;
    for (uint32_t cp = 0; cp <= 0x110000; cp++) {
        uint32_t flags = cp < 0x110000 ? unicode_flags(cp) : 0;
        bool member = (flags & any) != 0 && (flags & all) == all;
        member = member && !(in_brackets && word_lacks(cp));
        if (member == inside && cp % 128 == 0 && cp < 0x110000 && block_is_uniform(cp >> 7)) {
            cp += 127;
            continue;
        }
        if (member && !inside) {
            start = cp;
        } else if (!member && inside) {
            class_put_range(b, start, cp - 1);
        }
        inside = member;
    }
}

void class_put_flags(struct buf *b, uint32_t any, uint32_t all)
{
    put_members(b, any, all, false);
}

void class_put_word(struct buf *b, bool in_class)
{
    put_members(b, U_WORD, 0, in_class);
}

/* PCRE2's own property, which is fast, plus the characters that its Unicode version may not
 * know. */
void class_put_property(struct buf *b, const char *name, uint32_t bit)
{
    buf_printf(b, "\\p{%s}", name);
    class_put_flags(b, bit, U_NEW);
}

static const struct {
    const char *name; // lower case, without spaces, '_' and '-'
    const char *pcre; // NULL: write the ranges out
    uint32_t bit;
} properties[] = {
    {"l", "L", U_L},
    {"letter", "L", U_L},
    {"lu", "Lu", U_LU},
    {"uppercaseletter", "Lu", U_LU},
    {"ll", "Ll", U_LL},
    {"lowercaseletter", "Ll", U_LL},
    {"lt", "Lt", U_LT},
    {"titlecaseletter", "Lt", U_LT},
    {"lm", "Lm", U_LM},
    {"modifierletter", "Lm", U_LM},
    {"lo", "Lo", U_LO},
    {"otherletter", "Lo", U_LO},
    {"m", "M", U_M},
    {"mark", "M", U_M},
    {"mn", NULL, U_MN},
    {"nonspacingmark", NULL, U_MN},
    {"mc", NULL, U_MC},
    {"spacingmark", NULL, U_MC},
    {"n", "N", U_N},
    {"number", "N", U_N},
    {"nd", "Nd", U_DIGIT},
    {"decimalnumber", "Nd", U_DIGIT},
    {"digit", "Nd", U_DIGIT},
    {"no", "No", U_NO},
    {"othernumber", "No", U_NO},
    {"p", "P", U_P},
    {"punctuation", "P", U_P},
    {"punct", "P", U_P},
    {"s", "S", U_S},
    {"symbol", "S", U_S},
    {"so", "So", U_SO},
    {"othersymbol", "So", U_SO},
    {"sm", "Sm", U_SM},
    {"mathsymbol", "Sm", U_SM},
    {"cf", "Cf", U_CF},
    {"format", "Cf", U_CF},
    {"han", "sc:Han", U_HAN},
    {"space", NULL, U_SPACE},
    {"whitespace", NULL, U_SPACE},
    {"word", NULL, U_WORD},
    {"alpha", NULL, U_ALPHA},
    {"alphabetic", NULL, U_ALPHA},
    {"upper", NULL, U_UPPER},
    {"uppercase", NULL, U_UPPER},
    {"lower", NULL, U_LOWER},
    {"lowercase", NULL, U_LOWER},
    {"alnum", NULL, U_ALPHA | U_DIGIT},
};

/* Names for which [:name:] differs from \p{name}, and classes that are short enough to spell
 * out. */
static const struct {
    const char *name, *items;
    uint32_t bits; // used if items is NULL
} posix[] = {
    {"punct", NULL, U_PUNCT},    {"cntrl", "\\p{Cc}", 0},    {"xdigit", "0-9A-Fa-f", 0},
    {"ascii", "\\x00-\\x7F", 0}, {"blank", "\\t\\p{Zs}", 0},
};

static bool put_property_named(struct buf *b, const char *name)
{
    for (size_t i = 0; i < sizeof properties / sizeof properties[0]; i++) {
        if (strcmp(name, properties[i].name) == 0) {
            if (properties[i].pcre) {
                class_put_property(b, properties[i].pcre, properties[i].bit);
            } else {
                class_put_flags(b, properties[i].bit, 0);
            }
            return true;
        }
    }
    return false;
}

bool class_put_posix(struct buf *b, const char *name)
{
    if (strcmp(name, "word") == 0) {
        class_put_word(b, true);
        return true;
    }
    for (size_t i = 0; i < sizeof posix / sizeof posix[0]; i++) {
        if (strcmp(name, posix[i].name) == 0) {
            if (posix[i].items) {
                buf_puts(b, posix[i].items);
            } else {
                class_put_flags(b, posix[i].bits, 0);
            }
            return true;
        }
    }
    return put_property_named(b, name);
}

/* \p{name}; false if the name is unknown. */
bool class_put_named(struct buf *b, const char *name)
{
    // the property "word" precedes the POSIX class of that name
    return put_property_named(b, name) || class_put_posix(b, name);
}

/* In newer PCRE2 a bare script name includes script extensions; in Oniguruma it does not. */
bool class_is_script(const char *name)
{
    char pattern[80];
    snprintf(pattern, sizeof pattern, "\\p{sc:%s}", name);
    int code;
    PCRE2_SIZE at;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    pcre2_code_free(re);
    return re != NULL;
}
