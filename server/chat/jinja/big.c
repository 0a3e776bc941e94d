// SPDX-License-Identifier: Apache-2.0
/* Python integers beyond 64 bits, and conversion back when a result fits. */
#include "engine/base/minmax.h"
#include "server/chat/jinja/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Schoolbook arithmetic suffices: numbers in templates are small, and MAX_LIMBS bounds the cost of
 * others. */
enum { BASE = 1000000000, MAX_LIMBS = 1000, SMALL_LIMBS = 3 };

/* An operand of any integer type. d points to the limbs of a JV_BIG, or to `small`, which has those
 * of an int64_t; so do not copy the struct. */
struct limbs {
    bool negative;
    int n;
    const uint32_t *d;
    uint32_t small[SMALL_LIMBS];
};

/* Negates as unsigned, because the magnitude of INT64_MIN does not fit int64_t. */
static void load(struct jv v, struct limbs *l)
{
    if (v.type == JV_BIG) {
        *l = (struct limbs){v.u.big->negative, v.u.big->n, v.u.big->digit, {0}};
        return;
    }
    int64_t i = v.type == JV_BOOL ? v.u.b : v.u.i;
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    l->negative = i < 0;
    l->n = 0;
    for (; u > 0; u /= BASE) {
        l->small[l->n++] = (uint32_t)(u % BASE);
    }
    l->d = l->small;
}

/* A number with n limbs, which the arena has zeroed. */
static struct jbig *make(struct jrt *rt, int n)
{
    if (n > MAX_LIMBS) {
        jrt_limit(rt, "an integer is too long");
        return NULL;
    }
    struct jbig *b = jrt_alloc(rt, 1, sizeof *b + (size_t)n * sizeof b->digit[0]);
    if (b) {
        b->n = n;
    }
    return b;
}

/* Drops leading zeros. A number that fits 64 bits becomes a JV_INT. */
static struct jv settle(struct jbig *b)
{
    while (b->n > 0 && b->digit[b->n - 1] == 0) {
        b->n--;
    }
    if (b->n <= SMALL_LIMBS) {
        uint64_t u = 0;
        bool fits = true;
        for (int i = b->n; i-- > 0;) {
            fits = fits && !__builtin_mul_overflow(u, (uint64_t)BASE, &u) &&
                   !__builtin_add_overflow(u, (uint64_t)b->digit[i], &u);
        }
        if (fits && u <= (uint64_t)INT64_MAX + b->negative) {
            return jv_int(b->negative ? (int64_t)(0 - u) : (int64_t)u);
        }
    }
    return (struct jv){.type = JV_BIG, .u.big = b};
}

static int compare_magnitude(const struct limbs *a, const struct limbs *b)
{
    if (a->n != b->n) {
        return a->n < b->n ? -1 : 1;
    }
    for (int i = a->n; i-- > 0;) {
        if (a->d[i] != b->d[i]) {
            return a->d[i] < b->d[i] ? -1 : 1;
        }
    }
    return 0;
}

int jbig_compare(struct jv a, struct jv b)
{
    struct limbs x, y;
    load(a, &x);
    load(b, &y);
    if (x.negative != y.negative) {
        return x.negative ? -1 : 1;
    }
    int c = compare_magnitude(&x, &y);
    return x.negative ? -c : c;
}

/* Signed addition by magnitudes: equal signs add, different signs subtract the smaller
 * from the larger. */
bool jbig_add(struct jrt *rt, struct jv a, struct jv b, bool subtract, struct jv *out)
{
    struct limbs x, y;
    load(a, &x);
    load(b, &y);
    bool y_negative = y.negative != subtract;
    struct jbig *r = make(rt, greater(x.n, y.n) + 1);
    if (!r) {
        return false;
    }
    if (x.negative == y_negative) {
        uint32_t carry = 0;
        for (int i = 0; i < r->n; i++) {
            uint32_t sum = carry + (i < x.n ? x.d[i] : 0) + (i < y.n ? y.d[i] : 0);
            r->digit[i] = sum % BASE;
            carry = sum / BASE;
        }
        r->negative = x.negative;
    } else {
        bool x_larger = compare_magnitude(&x, &y) >= 0;
        const struct limbs *big = x_larger ? &x : &y, *small = x_larger ? &y : &x;
        int32_t borrow = 0;
        for (int i = 0; i < r->n; i++) {
            int32_t d = (int32_t)(i < big->n ? big->d[i] : 0) -
                        (int32_t)(i < small->n ? small->d[i] : 0) - borrow;
            borrow = d < 0;
            r->digit[i] = (uint32_t)(d < 0 ? d + BASE : d);
        }
        r->negative = x_larger ? x.negative : y_negative;
    }
    *out = settle(r);
    return true;
}

/* Costs steps for x.n * y.n operations, charged before the work is done. */
bool jbig_mul(struct jrt *rt, struct jv a, struct jv b, struct jv *out)
{
    struct limbs x, y;
    load(a, &x);
    load(b, &y);
    struct jbig *r = make(rt, x.n + y.n);
    if (!r || !jrt_charge(rt, (size_t)x.n * (size_t)y.n / 64)) {
        return false;
    }
    for (int i = 0; i < x.n; i++) {
        uint64_t carry = 0;
        for (int j = 0; j < y.n || carry > 0; j++) {
            uint64_t t = r->digit[i + j] + carry + (j < y.n ? (uint64_t)x.d[i] * y.d[j] : 0);
            r->digit[i + j] = (uint32_t)(t % BASE);
            carry = t / BASE;
        }
    }
    r->negative = x.negative != y.negative;
    *out = settle(r);
    return true;
}

static int compare_limbs(const uint32_t *a, const uint32_t *b, int n)
{
    for (int i = n; i-- > 0;) {
        if (a[i] != b[i]) {
            return a[i] < b[i] ? -1 : 1;
        }
    }
    return 0;
}

static void subtract_limbs(uint32_t *a, const uint32_t *b, int n)
{
    int32_t borrow = 0;
    for (int i = 0; i < n; i++) {
        int32_t d = (int32_t)a[i] - (int32_t)b[i] - borrow;
        borrow = d < 0;
        a[i] = (uint32_t)(d < 0 ? d + BASE : d);
    }
}

/* The value of n limbs as a double. With four limbs, as passed here, the quotient's error stays
 * below 1. */
static double leading(const uint32_t *d, int n)
{
    double f = 0;
    for (int i = n; i-- > 0;) {
        f = f * BASE + d[i];
    }
    return f;
}

/* The largest q with q * y <= r; r becomes the remainder. y has as many limbs as r (the top ones
 * may be zero); `product` is scratch of that size. The estimate from the four leading limbs is off
 * by at most one, which the two loops correct. */
static uint32_t divide_step(uint32_t *r, const uint32_t *y, uint32_t *product, int n)
{
    int skip = n > 4 ? n - 4 : 0;
    double guess = leading(r + skip, n - skip) / leading(y + skip, n - skip);
    uint32_t q = guess >= BASE ? BASE - 1 : (uint32_t)guess;
    uint64_t carry = 0;
    for (int i = 0; i < n; i++) {
        carry += (uint64_t)y[i] * q;
        product[i] = (uint32_t)(carry % BASE);
        carry /= BASE;
    }
    for (; carry > 0 || compare_limbs(product, r, n) > 0; q--) {
        carry = 0; // if the estimate was one too large, the product may have one limb more:
                   // subtracting y removes it
        subtract_limbs(product, y, n);
    }
    subtract_limbs(r, product, n);
    for (; compare_limbs(r, y, n) >= 0; q++) {
        subtract_limbs(r, y, n);
    }
    return q;
}

/* Long division limb by limb, converted from truncated to floored division: if there is a remainder
 * and the signs differ, the quotient is one less, and the remainder gets the divisor's sign. */
bool jbig_divmod(struct jrt *rt, struct jv a, struct jv b, struct jv *quotient, struct jv *rest)
{
    struct limbs x, y;
    load(a, &x);
    load(b, &y);
    int n = y.n + 1;
    struct jbig *q = make(rt, x.n), *r = make(rt, n), *wide_y = make(rt, n), *t = make(rt, n);
    if (!q || !r || !wide_y || !t || !jrt_charge(rt, (size_t)x.n * (size_t)y.n / 64)) {
        return false;
    }
    memcpy(wide_y->digit, y.d, (size_t)y.n * sizeof y.d[0]);
    for (int i = x.n; i-- > 0;) {
        memmove(r->digit + 1, r->digit, (size_t)(n - 1) * sizeof r->digit[0]);
        r->digit[0] = x.d[i];
        q->digit[i] = divide_step(r->digit, wide_y->digit, t->digit, n);
    }
    r->negative = x.negative;
    q->negative = x.negative != y.negative;
    *quotient = settle(q);
    *rest = settle(r);
    bool rest_is_zero = rest->type == JV_INT && rest->u.i == 0;
    if (!rest_is_zero && x.negative != y.negative) { // floor, as Python does
        return jbig_add(rt, *quotient, jv_int(1), true, quotient) &&
               jbig_add(rt, *rest, b, false, rest);
    }
    return true;
}

/* Converts through text, so that strtod rounds only once. */
double jbig_double(const struct jbig *b)
{
    char text[MAX_LIMBS * 9 + 16];
    char *p = text;
    *p++ = b->negative ? '-' : '+';
    p += snprintf(p, 12, "%u", b->digit[b->n - 1]);
    for (int i = b->n - 1; i-- > 0;) {
        p += snprintf(p, 12, "%09u", b->digit[i]);
    }
    return strtod(text, NULL);
}
