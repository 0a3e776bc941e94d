// SPDX-License-Identifier: Apache-2.0
/* Exact decimal numbers, as digits before and after the point, for the bounds of numbers in
 * schemas. */
#include "engine/grammar/decimal.h"

#include <string.h>

/* Splits a literal into its digits, in sequence, and the position of the point. */
static bool split(const char *s, size_t n, char *digits, long *n_digits, long *point,
                  bool *negative)
{
    long exponent = 0, sign = 1;
    size_t i = 0;
    *negative = n > 0 && s[0] == '-';
    *n_digits = 0;
    *point = -1;
    for (i = *negative; i < n && (s[i] | 32) != 'e'; i++) {
        if (s[i] == '.') {
            *point = *n_digits;
        } else if (*n_digits > 0 || s[i] != '0' || *point >= 0) {
            if (*n_digits >= 2 * DECIMAL_MAX) {
                return false;
            }
            digits[(*n_digits)++] = s[i];
        }
    }
    if (*point < 0) {
        *point = *n_digits;
    }
    if (i < n) {
        i++;
        sign = i < n && s[i] == '-' ? -1 : 1;
        i += i < n && (s[i] == '-' || s[i] == '+');
        for (; i < n; i++) {
            if (exponent < 100000) {
                exponent = exponent * 10 + (s[i] - '0');
            }
        }
    }
    *point += sign * exponent;
    return true;
}

/* Returns false if the number has more than DECIMAL_MAX digits before or after the point. An
 * exponent moves the point. */
bool decimal_read(struct decimal *d, const char *s, size_t n)
{
    char digits[2 * DECIMAL_MAX + 1];
    long n_digits, point, first = 0;
    if (!split(s, n, digits, &n_digits, &point, &d->negative)) {
        return false;
    }
    while (n_digits > 0 && digits[n_digits - 1] == '0') {
        n_digits--;
    }
    while (first < n_digits && digits[first] == '0') {
        first++;
    }
    if (first == n_digits) {
        *d = (struct decimal){.n_whole = 1, .whole = "0"};
        return true;
    }
    if (point - first > DECIMAL_MAX || n_digits - point > DECIMAL_MAX) {
        return false;
    }
    d->n_whole = d->n_part = 0;
    for (long i = first; i < point; i++) {
        d->whole[d->n_whole++] = i < n_digits ? digits[i] : '0';
    }
    for (long i = point; i < n_digits; i++) {
        d->part[d->n_part++] = i < first ? '0' : digits[i];
    }
    if (d->n_whole == 0) {
        d->whole[d->n_whole++] = '0';
    }
    d->whole[d->n_whole] = d->part[d->n_part] = 0;
    return true;
}

/* Compares by sign, then by length, then by digits; whole parts have no leading zeros. */
int decimal_compare(const struct decimal *a, const struct decimal *b)
{
    if (a->negative != b->negative) {
        return a->negative ? -1 : 1;
    }
    int c;
    if (a->n_whole != b->n_whole) {
        c = a->n_whole - b->n_whole;
    } else {
        c = strcmp(a->whole, b->whole);
    }
    if (c == 0) {
        c = strcmp(a->part, b->part);
    }
    c = (c > 0) - (c < 0);
    return a->negative ? -c : c;
}

bool decimal_is_whole(const struct decimal *d)
{
    return d->n_part == 0;
}

/* Adds 1 to the whole part of the magnitude. */
void decimal_add_one(struct decimal *d)
{
    int i = d->n_whole - 1; // -1 if there are no digits, which means the number 0
    while (i >= 0 && d->whole[i] == '9') {
        d->whole[i--] = '0';
    }
    if (i >= 0) {
        d->whole[i]++;
        return;
    }
    memmove(d->whole + 1, d->whole, (size_t)d->n_whole + 1);
    d->whole[0] = '1';
    d->n_whole++;
}

/* Subtracts 1 from the whole part of the magnitude, which must not be 0. */
void decimal_take_one(struct decimal *d)
{
    int i = d->n_whole - 1;
    while (d->whole[i] == '0') {
        d->whole[i--] = '9';
    }
    d->whole[i]--;
    if (d->whole[0] == '0' && d->n_whole > 1) {
        memmove(d->whole, d->whole + 1, (size_t)d->n_whole);
        d->n_whole--;
    }
    d->negative = d->negative && d->whole[0] != '0';
}

/* Rounds to the next whole number, upwards or downwards. */
void decimal_round(struct decimal *d, bool up)
{
    bool had_part = d->n_part > 0;
    d->n_part = 0;
    d->part[0] = 0;
    if (had_part && up != d->negative) {
        decimal_add_one(d);
    }
    if (d->n_whole == 1 && d->whole[0] == '0') {
        d->negative = false;
    }
}
