// SPDX-License-Identifier: Apache-2.0
/* Numbers of JSON within bounds, and multiples of a number, as expressions over digits. */
#include "engine/grammar/number.h"

#include <string.h>

enum { MODULUS_MAX = 2000000000, BOUNDED_MODULUS_MAX = 10000, SCALE_MAX = 18 };

/* Keeps the tighter lower bound. An exclusive bound is tighter than an inclusive one of the same
 * value. */
void number_above(struct number_bounds *b, const struct decimal *v, bool excluded)
{
    int c = b->has_min ? decimal_compare(v, &b->min) : 1;
    if (c > 0 || (c == 0 && excluded)) {
        b->min = *v;
        b->min_excluded = excluded;
        b->has_min = true;
    }
}

void number_below(struct number_bounds *b, const struct decimal *v, bool excluded)
{
    int c = b->has_max ? decimal_compare(v, &b->max) : -1;
    if (c < 0 || (c == 0 && excluded)) {
        b->max = *v;
        b->max_excluded = excluded;
        b->has_max = true;
    }
}

static uint32_t digits(struct exprs *x, int lo, int hi)
{
    if (lo > hi) {
        return (uint32_t)EXPR_NONE;
    }
    return expr_byte_range(x, lo, hi);
}

static uint32_t any_digits(struct exprs *x, uint32_t lo, uint32_t hi)
{
    return expr_rep(x, digits(x, '0', '9'), lo, hi);
}

/* ---- whole numbers, by their digits ---- */

/* Numbers of n digits that are at least s or, if not `least`, at most s. */
static uint32_t compared(struct exprs *x, const char *s, int n, bool least)
{
    uint32_t e = EXPR_EMPTY;
    for (int i = n - 1; i >= 0; i--) {
        uint32_t same = expr_seq(x, digits(x, s[i], s[i]), e);
        uint32_t beyond;
        if (least) {
            beyond = digits(x, s[i] + 1, '9');
        } else {
            beyond = digits(x, '0', s[i] - 1);
        }
        uint32_t rest = any_digits(x, (uint32_t)(n - 1 - i), (uint32_t)(n - 1 - i));
        e = expr_alt2(x, same, expr_seq(x, beyond, rest));
    }
    return e;
}

/* Numbers of n digits from a to b. */
static uint32_t between(struct exprs *x, const char *a, const char *b, int n)
{
    int i = 0;
    while (i < n && a[i] == b[i]) {
        i++;
    }
    uint32_t e = EXPR_EMPTY;
    if (i < n) {
        uint32_t rest = any_digits(x, (uint32_t)(n - 1 - i), (uint32_t)(n - 1 - i));
        uint32_t branch[3] = {
            expr_seq(x, digits(x, a[i], a[i]), compared(x, a + i + 1, n - 1 - i, true)),
            expr_seq(x, digits(x, a[i] + 1, b[i] - 1), rest),
            expr_seq(x, digits(x, b[i], b[i]), compared(x, b + i + 1, n - 1 - i, false)),
        };
        e = expr_alt(x, branch, 3);
    }
    return expr_seq(x, expr_literal(x, a, (size_t)i), e);
}

/* Numbers that have more than n and at most m digits (EXPR_INF: any number), without leading
 * zeros. */
static uint32_t longer(struct exprs *x, uint32_t n, uint32_t m)
{
    if (n >= m) {
        return EXPR_NONE;
    }
    return expr_seq(x, digits(x, '1', '9'), any_digits(x, n, m == EXPR_INF ? EXPR_INF : m - 1));
}

/* Whole numbers from lo to hi, neither of which is negative. hi NULL: no upper bound. */
static uint32_t whole_range(struct exprs *x, const struct decimal *lo, const struct decimal *hi)
{
    int n = lo->n_whole;
    if (!hi) {
        return expr_alt2(x, compared(x, lo->whole, n, true), longer(x, (uint32_t)n, EXPR_INF));
    }
    if (decimal_compare(lo, hi) > 0) {
        return EXPR_NONE;
    }
    if (n == hi->n_whole) {
        return between(x, lo->whole, hi->whole, n);
    }
    char least[DECIMAL_MAX + 2];
    memset(least, '0', sizeof least);
    least[0] = '1';
    uint32_t branch[3] = {
        compared(x, lo->whole, n, true),
        longer(x, (uint32_t)n, (uint32_t)hi->n_whole - 1),
        between(x, least, hi->whole, hi->n_whole),
    };
    return expr_alt(x, branch, 3);
}

static const struct decimal zero = {.n_whole = 1, .whole = "0"}, one = {.n_whole = 1, .whole = "1"};

static struct decimal negated(struct decimal d)
{
    d.negative = !d.negative && (d.n_part > 0 || d.whole[0] != '0');
    return d;
}

/* The smallest whole number above `v`; or `v` itself, unless it is excluded or not whole. */
static struct decimal least_whole(struct decimal v, bool excluded)
{
    bool itself = decimal_is_whole(&v);
    decimal_round(&v, true);
    if (!itself || !excluded) {
        return v;
    }
    if (v.negative) {
        decimal_take_one(&v);
    } else {
        decimal_add_one(&v);
    }
    return v;
}

/* Integers. The positive and the negative range are built separately, because negative numbers are
 * in reverse order. */
uint32_t number_integer(struct exprs *x, const struct number_bounds *b)
{
    struct decimal lo = least_whole(b->min, b->min_excluded);
    struct decimal hi = negated(least_whole(negated(b->max), b->max_excluded));
    uint32_t positive = EXPR_NONE, negative = EXPR_NONE;
    if (!b->has_max || !hi.negative) {
        positive =
            whole_range(x, b->has_min && !lo.negative ? &lo : &zero, b->has_max ? &hi : NULL);
    }
    if (!b->has_min || lo.negative) {
        struct decimal from = b->has_max && hi.negative ? negated(hi) : one, to = negated(lo);
        negative = whole_range(x, &from, b->has_min ? &to : NULL);
    }
    return expr_alt2(x, positive, expr_seq(x, expr_byte(x, '-'), negative));
}

/* ---- numbers with a point ---- */

/* The fractions that may follow if the whole part equals the bound's, so that the number is at
 * least (or at most) the bound. */
static uint32_t part_compared(struct exprs *x, const struct decimal *bound, bool least,
                              bool excluded)
{
    uint32_t any = any_digits(x, 0, EXPR_INF), some = any_digits(x, 1, EXPR_INF);
    uint32_t nonzero = expr_seq3(x, any, digits(x, '1', '9'), any),
             zeros = expr_rep(x, expr_byte(x, '0'), 0, EXPR_INF);
    uint32_t point = expr_byte(x, '.'), end;
    if (bound->n_part == 0) {
        if (least) {
            if (excluded) {
                return expr_seq(x, point, nonzero);
            }
            return expr_optional(x, expr_seq(x, point, some));
        }
        uint32_t same = expr_rep(x, expr_byte(x, '0'), 1, EXPR_INF);
        if (excluded) {
            return (uint32_t)EXPR_NONE;
        }
        return expr_optional(x, expr_seq(x, point, same));
    }
    if (least) {
        end = excluded ? nonzero : any;
    } else {
        end = excluded ? (uint32_t)EXPR_NONE : zeros;
    }
    for (int i = bound->n_part - 1; i >= 0; i--) {
        char c = bound->part[i];
        uint32_t beyond = least ? digits(x, c + 1, '9') : digits(x, '0', c - 1);
        end = expr_alt2(x, expr_seq(x, digits(x, c, c), end), expr_seq(x, beyond, any));
        if (!least && i > 0) {
            end = expr_optional(x, end); // a prefix of the bound's digits is less than the bound
        }
    }
    end = expr_seq(x, point, end);
    if (least) {
        return end;
    }
    return expr_optional(x, end);
}

/* Non-negative numbers that are at least, or at most, a non-negative bound. */
static uint32_t magnitude(struct exprs *x, const struct decimal *bound, bool least, bool excluded)
{
    struct decimal whole = *bound, next;
    whole.n_part = 0;
    whole.part[0] = 0;
    next = whole;
    decimal_add_one(&next);
    uint32_t part = expr_optional(x, expr_seq(x, expr_byte(x, '.'), any_digits(x, 1, EXPR_INF)));
    uint32_t same = expr_seq(x, expr_literal(x, whole.whole, (size_t)whole.n_whole),
                             part_compared(x, bound, least, excluded));
    if (least) {
        return expr_alt2(x, same, expr_seq(x, whole_range(x, &next, NULL), part));
    }
    if (whole.whole[0] == '0') {
        return same;
    }
    struct decimal last = whole;
    decimal_take_one(&last);
    return expr_alt2(x, same, expr_seq(x, whole_range(x, &zero, &last), part));
}

/* Magnitudes between two bounds; NULL: no bound on that side. */
static uint32_t magnitudes(struct exprs *x, const struct decimal *lo, bool lo_excluded,
                           const struct decimal *hi, bool hi_excluded)
{
    uint32_t least = magnitude(x, lo ? lo : &zero, true, lo_excluded);
    if (!hi) {
        return least;
    }
    return expr_clean(x, expr_and2(x, least, magnitude(x, hi, false, hi_excluded)));
}

/* Without bounds, numbers may have any spelling that JSON allows, including exponents. With bounds,
 * they are plain decimals, because exponents would make a range an infinite union. */
uint32_t number_any(struct exprs *x, const struct number_bounds *b)
{
    uint32_t minus = expr_byte(x, '-');
    if (!b->has_min && !b->has_max) {
        uint32_t whole = expr_alt2(x, expr_byte(x, '0'), longer(x, 0, EXPR_INF));
        uint32_t part = expr_seq(x, expr_byte(x, '.'), any_digits(x, 1, EXPR_INF));
        struct byte_set e = {0}, sign = {0};
        byte_set_add(&e, 'e');
        byte_set_add(&e, 'E');
        byte_set_add(&sign, '+');
        byte_set_add(&sign, '-');
        uint32_t power = expr_seq3(x, expr_bytes(x, &e), expr_optional(x, expr_bytes(x, &sign)),
                                   any_digits(x, 1, EXPR_INF));
        uint32_t rest = expr_seq3(x, whole, expr_optional(x, part), expr_optional(x, power));
        return expr_seq(x, expr_optional(x, minus), rest);
    }
    uint32_t positive = EXPR_NONE, negative = EXPR_NONE;
    if (!b->has_max || !b->max.negative) {
        bool has_lo = b->has_min && !b->min.negative;
        positive = magnitudes(x, has_lo ? &b->min : NULL, has_lo && b->min_excluded,
                              b->has_max ? &b->max : NULL, b->max_excluded);
    }
    if (!b->has_min || b->min.negative) {
        struct decimal from = negated(b->max), to = negated(b->min);
        bool has_lo = b->has_max && b->max.negative;
        negative = magnitudes(x, has_lo ? &from : &zero, has_lo ? b->max_excluded : true,
                              b->has_min ? &to : NULL, b->min_excluded);
    }
    return expr_alt2(x, positive, expr_seq(x, minus, negative));
}

/* ---- multiples ---- */

static uint32_t multiple_from(struct exprs *x, uint32_t modulus, uint32_t rest, bool point)
{
    uint8_t flags = rest == 0 ? XF_NULLABLE : 0;
    return expr_make(
        x, (struct expr){.kind = X_MULTIPLE, .flags = flags, .a = modulus, .b = rest, .c = point});
}

/* Whole multiples without bounds. After the first digit, any remainder can reach 0. */
static uint32_t whole_multiples(struct exprs *x, uint32_t modulus)
{
    uint32_t branch[10], n = 0;
    branch[n++] = EXPR_NONE;
    for (int d = '1'; d <= '9'; d++) {
        branch[n++] = expr_seq(x, expr_byte(x, (uint8_t)d),
                               multiple_from(x, modulus, (uint32_t)(d - '0') % modulus, false));
    }
    uint32_t e = expr_seq(x, expr_optional(x, expr_byte(x, '-')), expr_alt(x, branch, n));
    return expr_alt2(x, e, expr_byte(x, '0'));
}

/* The digits of `of` as a whole number, as if there were no point. */
static bool modulus_of(const struct decimal *of, uint64_t *modulus)
{
    *modulus = 0;
    if (of->n_whole + of->n_part > SCALE_MAX) {
        return false;
    }
    for (int i = 0; i < of->n_whole; i++) {
        *modulus = *modulus * 10 + (uint64_t)(of->whole[i] - '0');
    }
    for (int i = 0; i < of->n_part; i++) {
        *modulus = *modulus * 10 + (uint64_t)(of->part[i] - '0');
    }
    return *modulus > 0 && *modulus <= MODULUS_MAX;
}

/* `modulus` without the factors that it has in common with `power`. */
static uint64_t without_factor(uint64_t modulus, uint64_t power)
{
    uint64_t a = modulus, b = power;
    while (b) {
        uint64_t t = a % b;
        a = b;
        b = t;
    }
    return modulus / a;
}

/* Numbers whose digits are divisible by `of`, as an automaton whose states are remainders. False:
 * the modulus is too large. */
bool number_multiple(struct exprs *x, const struct number_bounds *b, const struct decimal *of,
                     bool whole, uint32_t *e)
{
    uint64_t modulus, power = 1;
    bool bounded = b->has_min || b->has_max;
    if (!modulus_of(of, &modulus) || (bounded && modulus > BOUNDED_MODULUS_MAX)) {
        return false;
    }
    x->has_digits = true;
    *e = EXPR_NONE;
    uint32_t number = expr_seq(x, expr_optional(x, expr_byte(x, '-')), any_digits(x, 1, EXPR_INF));
    uint32_t in_bounds = whole ? number_integer(x, b) : number_any(x, b);
    uint32_t sign = expr_optional(x, expr_byte(x, '-'));
    for (int j = of->n_part; j >= 0; j--, power *= 10) { // for j digits after the point
        uint32_t m = (uint32_t)without_factor(modulus, power);
        if (j == 0 && !bounded) {
            *e = expr_alt2(x, *e, whole_multiples(x, m));
        } else if (j == 0 || !whole) {
            uint32_t form = number;
            if (j > 0) {
                form = expr_seq3(x, number, expr_byte(x, '.'),
                                 any_digits(x, (uint32_t)j, (uint32_t)j));
            }
            uint32_t all[3] = {form, in_bounds, expr_seq(x, sign, multiple_from(x, m, 0, true))};
            *e = expr_alt2(x, *e, expr_clean(x, expr_and(x, all, 3)));
        }
    }
    return true;
}
