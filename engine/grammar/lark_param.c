// SPDX-License-Identifier: Apache-2.0
/* Parameters of rules, an extension of Lark by llguidance: a 64-bit value, which conditions test
 * and calls change. */
#include "engine/grammar/lark_param.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

static enum status expect(struct lark_lex *l, const char *mark)
{
    if (lark_is(l, mark)) {
        return lark_next(l);
    }
    return lark_fail(l, "'%s' is expected here", mark);
}

static enum status number(struct lark_lex *l, uint64_t *v)
{
    char text[32] = {0}, *end;
    if (l->word.kind != LARK_NUMBER || l->word.n >= sizeof text) {
        return lark_fail(l, "a number is expected here");
    }
    memcpy(text, l->word.s, l->word.n);
    *v = strtoull(text, &end, 0);
    if (*end) {
        return lark_fail(l, "\"%s\" is not a number", text);
    }
    return lark_next(l);
}

static bool word_is(struct lark_word w, const char *name)
{
    return w.kind == LARK_RULE && w.n == strlen(name) && memcmp(w.s, name, w.n) == 0;
}

/* [from:to] means bits from `from` up to, but not including, `to`; `_` means all 64 bits. */
static enum status bit_range(struct lark_lex *l, uint64_t *mask, unsigned *shift)
{
    uint64_t from, to;
    if (word_is(l->word, "_")) {
        *mask = UINT64_MAX;
        *shift = 0;
        return lark_next(l);
    }
    TRY(expect(l, "["));
    TRY(number(l, &from));
    TRY(expect(l, ":"));
    TRY(number(l, &to));
    if (from >= to || to > 64) {
        return lark_fail(l, "a range of bits must not be empty or go beyond 64");
    }
    *shift = (unsigned)from;
    if (to - from == 64) {
        *mask = UINT64_MAX;
    } else {
        *mask = (((uint64_t)1 << (to - from)) - 1) << from;
    }
    return expect(l, "]");
}

/* The mask that has only bit k. */
static enum status bit(struct lark_lex *l, uint64_t *mask)
{
    uint64_t k = 0;
    *mask = 0;
    TRY(number(l, &k));
    if (k > 63) {
        return lark_fail(l, "the number of a bit must be below 64");
    }
    *mask = (uint64_t)1 << k;
    return OK;
}

/* incr and decr stop at the limits of the bit field instead of carrying into its neighbours. */
static enum status change(struct lark_lex *l, struct lark_word what, uint64_t value, uint64_t *to)
{
    uint64_t mask;
    unsigned shift;
    if (word_is(what, "set_bit") || word_is(what, "clear_bit")) {
        TRY(bit(l, &mask));
        *to = what.s[0] == 's' ? value | mask : value & ~mask;
        return OK;
    }
    if (word_is(what, "bit_and") || word_is(what, "bit_or")) {
        TRY(number(l, &mask));
        *to = what.n == strlen("bit_or") ? value | mask : value & mask;
        return OK;
    }
    if (!word_is(what, "incr") && !word_is(what, "decr")) {
        return lark_fail(l,
                         "unknown operation \"%.*s\" (known are set_bit, clear_bit, bit_and, "
                         "bit_or, incr and decr)",
                         (int)lesser(what.n, 40), what.s);
    }
    TRY(bit_range(l, &mask, &shift));
    uint64_t field = (value & mask) >> shift, most = mask >> shift;
    if (what.s[0] == 'i') {
        field += field < most; // saturates
    } else {
        field -= field > 0;
    }
    *to = (value & ~mask) | field << shift;
    return OK;
}

/* The value that a call passes on: a number, the rule's own value, or a changed one. */
enum status lark_parameter(struct lark_lex *l, bool has_value, uint64_t value, uint64_t *to)
{
    struct lark_word what = l->word;
    if (what.kind == LARK_NUMBER) {
        return number(l, to);
    }
    if (!has_value) {
        return lark_fail(l, "a rule without a parameter has none to pass on");
    }
    TRY(lark_next(l));
    if (word_is(what, "_")) {
        *to = value;
        return OK;
    }
    TRY(expect(l, "("));
    TRY(change(l, what, value, to));
    return expect(l, ")");
}

/* eq([0:2], 1) and similar. bit_count_eq compares the number of bits that are set. */
static enum status comparison(struct lark_lex *l, const char *name, bool counts, uint64_t value,
                              bool *holds)
{
    uint64_t mask, with;
    unsigned shift;
    TRY(bit_range(l, &mask, &shift));
    TRY(expect(l, ","));
    TRY(number(l, &with));
    uint64_t field = (value & mask) >> shift;
    if (counts) {
        field = (uint64_t)__builtin_popcountll(field);
    }
    bool less = field < with, same = field == with;
    switch (name[0]) {
    case 'e': *holds = same; break;
    case 'n': *holds = !same; break;
    case 'l': *holds = less || (name[1] == 'e' && same); break;
    default: *holds = !less && (name[1] == 'e' || !same); break;
    }
    return OK;
}

/* and(a, b), or(a, b), not(a) */
static enum status joined(struct lark_lex *l, const char *name, uint64_t value, bool *holds,
                          int depth)
{
    TRY(lark_condition(l, true, value, holds, depth + 1));
    if (name[0] == 'n') {
        *holds = !*holds;
    }
    while (name[0] != 'n' && lark_is(l, ",")) {
        bool other;
        TRY(lark_next(l));
        TRY(lark_condition(l, true, value, &other, depth + 1));
        *holds = name[0] == 'a' ? *holds && other : *holds || other;
    }
    return OK;
}

/* Conditions are decided while compiling, for each value with which a rule is called. `depth`
 * limits the recursion of and, or, not. */
enum status lark_condition(struct lark_lex *l, bool has_value, uint64_t value, bool *holds,
                           int depth)
{
    static const char *const compared[] = {"eq", "ne", "lt", "le", "gt", "ge"};
    static const char *const logical[] = {"and", "or", "not"};
    struct lark_word what = l->word;
    uint64_t mask;
    unsigned shift;
    if (!has_value || depth > 32) {
        return lark_fail(l, "%s",
                         has_value ? "conditions nest too deeply"
                                   : "%if in a rule without a parameter");
    }
    TRY(lark_next(l));
    if (word_is(what, "true") || word_is(what, "false")) {
        *holds = what.s[0] == 't';
        if (!lark_is(l, "(")) {
            return OK;
        }
        TRY(lark_next(l));
        return expect(l, ")");
    }
    TRY(expect(l, "("));
    if (word_is(what, "is_ones") || word_is(what, "is_zeros")) {
        TRY(bit_range(l, &mask, &shift));
        *holds = (value & mask) == (what.s[3] == 'o' ? mask : 0);
        return expect(l, ")");
    }
    if (word_is(what, "bit_set") || word_is(what, "bit_clear")) {
        TRY(bit(l, &mask));
        *holds = ((value & mask) != 0) == (what.s[4] == 's');
        return expect(l, ")");
    }
    static const char count[] = "bit_count_";
    size_t n_count = strlen(count);
    bool counts = what.n > n_count && memcmp(what.s, count, n_count) == 0;
    struct lark_word how = what;
    how.s += counts ? n_count : 0;
    how.n -= counts ? n_count : 0;
    for (size_t i = 0; i < sizeof compared / sizeof *compared; i++) {
        if (word_is(how, compared[i])) {
            TRY(comparison(l, compared[i], counts, value, holds));
            return expect(l, ")");
        }
    }
    for (size_t i = 0; i < sizeof logical / sizeof *logical; i++) {
        if (word_is(what, logical[i])) {
            TRY(joined(l, logical[i], value, holds, depth));
            return expect(l, ")");
        }
    }
    return lark_fail(l, "unknown condition \"%.*s\"", (int)lesser(what.n, 40), what.s);
}
