// SPDX-License-Identifier: Apache-2.0
/* Python's numbers: integers of any size (int64_t as long as they fit) and floats; their
 * arithmetic, comparison, parsing and formatting. */
#include "server/chat/jinja/num.h"
#include "engine/base/optional.h"

#include "engine/base/utf8.h"
#include "server/chat/jinja/unicode.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INT_DIGITS = 4300 }; // Python's own limit for integers as text

static bool is_float(struct jv v)
{
    return v.type == JV_FLOAT;
}

/* The value of a JV_BOOL or JV_INT; True is 1 in arithmetic. */
static int64_t small(struct jv v)
{
    return v.type == JV_BOOL ? v.u.b : v.u.i;
}

/* Fails, as in Python, if an integer is too large for a float. */
bool jnum_to_double(struct jrt *rt, struct jv v, double *f)
{
    if (v.type == JV_FLOAT) {
        *f = v.u.f;
    } else if (v.type == JV_BIG) {
        *f = jbig_double(v.u.big);
        if (isinf(*f)) {
            return jrt_fail(rt, "OverflowError", "int too large to convert to float");
        }
    } else {
        *f = (double)small(v);
    }
    return true;
}

/* Like int(f), which truncates. A double beyond 64 bits is an integer, and is converted exactly. */
bool jnum_from_double(struct jrt *rt, double f, struct jv *out)
{
    f = trunc(f);
    if (f >= -0x1p63 && f < 0x1p63) {
        *out = jv_int((int64_t)f);
        return true;
    }
    char text[400];
    int n = snprintf(text, sizeof text, "%.0f", f);
    return jnum_from_decimal(rt, text, (size_t)n, out);
}

static bool zero_division(struct jrt *rt, const char *what)
{
    return jrt_fail(rt, "ZeroDivisionError", "%s", what);
}

/* Python's modulo has the sign of the divisor, C's fmod that of the dividend; a zero takes
 * the divisor's sign as well. */
static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0 && (b < 0) != (m < 0)) {
        m += b;
    } else if (m == 0) {
        m = copysign(0.0, b);
    }
    return m;
}

/* Like CPython, rounds (a - mod) / b, which is nearly an integer. floor(a / b) would differ if the
 * quotient is just below an integer. */
static double float_floordiv(double a, double b)
{
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod != 0 && (b < 0) != (mod < 0)) {
        div -= 1.0;
    }
    if (div == 0) {
        return copysign(0.0, a / b);
    }
    double f = floor(div);
    return div - f > 0.5 ? f + 1.0 : f;
}

/* Fails where Python raises an error. A complex result, which is an error here, is a documented
 * difference. */
static bool float_pow(struct jrt *rt, double a, double b, struct jv *out)
{
    if (a == 0 && b < 0) {
        return zero_division(rt, "0.0 cannot be raised to a negative power");
    }
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b)) {
        return jrt_fail(rt, "TypeError", "complex numbers are not supported");
    }
    double p = pow(a, b);
    if (isinf(p) && isfinite(a) && isfinite(b)) {
        return jrt_fail(rt, "OverflowError", "(34, 'Numerical result out of range')");
    }
    *out = jv_float(p);
    return true;
}

/* Division and modulo follow Python: towards minus infinity, with errors for zero. */
static bool float_binary(struct jrt *rt, enum jop op, double a, double b, struct jv *out)
{
    switch (op) {
    case JOP_ADD: *out = jv_float(a + b); return true;
    case JOP_SUB: *out = jv_float(a - b); return true;
    case JOP_MUL: *out = jv_float(a * b); return true;
    case JOP_DIV:
        *out = jv_float(b != 0 ? a / b : 0);
        return b != 0 || zero_division(rt, "float division by zero");
    case JOP_FLOORDIV:
        *out = jv_float(b != 0 ? float_floordiv(a, b) : 0);
        return b != 0 || zero_division(rt, "float floor division by zero");
    case JOP_MOD:
        *out = jv_float(b != 0 ? float_mod(a, b) : 0);
        return b != 0 || zero_division(rt, "float modulo");
    case JOP_POW: return float_pow(rt, a, b, out);
    }
    return false;
}

/* Powers by repeated squaring. Multiplications cost steps and their results are limited in size, so
 * 7 ** 99999999 ends with an error. */
static bool int_pow(struct jrt *rt, struct jv a, struct jv b, struct jv *out)
{
    if (b.type == JV_BIG || small(b) < 0) {
        double x, y;
        return jnum_to_double(rt, a, &x) && jnum_to_double(rt, b, &y) && float_pow(rt, x, y, out);
    }
    struct jv result = jv_int(1), base = a;
    for (uint64_t e = (uint64_t)small(b); e > 0; e >>= 1) {
        if (!jrt_step(rt) || ((e & 1) && !jnum_binary(rt, JOP_MUL, result, base, &result)) ||
            (e > 1 && !jnum_binary(rt, JOP_MUL, base, base, &base))) {
            return false;
        }
    }
    *out = result;
    return true;
}

/* C truncates towards zero, Python floors. A divisor of -1 goes through big integers,
 * because INT64_MIN / -1 overflows. */
static bool int_divmod(struct jrt *rt, struct jv a, struct jv b, struct jv *q, struct jv *r)
{
    if (b.type != JV_BIG && small(b) == 0) {
        return zero_division(rt, "integer division or modulo by zero");
    }
    if (a.type == JV_BIG || b.type == JV_BIG || small(b) == -1) {
        return jbig_divmod(rt, a, b, q, r);
    }
    int64_t x = small(a), y = small(b), div = x / y, mod = x % y;
    if (mod != 0 && (mod < 0) != (y < 0)) {
        div--;
        mod += y;
    }
    *q = jv_int(div);
    *r = jv_int(mod);
    return true;
}

/* True division of integers gives a float; big operands are rounded before they are
 * divided. */
static bool int_truediv(struct jrt *rt, struct jv a, struct jv b, struct jv *out)
{
    if (b.type != JV_BIG && small(b) == 0) {
        return zero_division(rt, "division by zero");
    }
    double x, y;
    if (!jnum_to_double(rt, a, &x) || !jnum_to_double(rt, b, &y)) {
        return false;
    }
    *out = jv_float(x / y);
    return true;
}

/* All binary operators. A float operand makes the result a float; if int64_t overflows, big
 * integers are used. */
bool jnum_binary(struct jrt *rt, enum jop op, struct jv a, struct jv b, struct jv *out)
{
    if (is_float(a) || is_float(b)) {
        double x, y;
        return jnum_to_double(rt, a, &x) && jnum_to_double(rt, b, &y) &&
               float_binary(rt, op, x, y, out);
    }
    bool plain = a.type != JV_BIG && b.type != JV_BIG;
    int64_t v;
    struct jv unused;
    switch (op) {
    case JOP_ADD:
        if (plain && !__builtin_add_overflow(small(a), small(b), &v)) {
            *out = jv_int(v);
            return true;
        }
        return jbig_add(rt, a, b, false, out);
    case JOP_SUB:
        if (plain && !__builtin_sub_overflow(small(a), small(b), &v)) {
            *out = jv_int(v);
            return true;
        }
        return jbig_add(rt, a, b, true, out);
    case JOP_MUL:
        if (plain && !__builtin_mul_overflow(small(a), small(b), &v)) {
            *out = jv_int(v);
            return true;
        }
        return jbig_mul(rt, a, b, out);
    case JOP_DIV: return int_truediv(rt, a, b, out);
    case JOP_FLOORDIV: return int_divmod(rt, a, b, out, &unused);
    case JOP_MOD: return int_divmod(rt, a, b, &unused, out);
    case JOP_POW: return int_pow(rt, a, b, out);
    }
    return false;
}

/* Computes zero minus the number, so that the negation of INT64_MIN becomes a big integer. */
bool jnum_negate(struct jrt *rt, struct jv v, struct jv *out)
{
    if (v.type == JV_FLOAT) {
        *out = jv_float(-v.u.f);
        return true;
    }
    return jnum_binary(rt, JOP_SUB, jv_int(0), v, out);
}

bool jnum_abs(struct jrt *rt, struct jv v, struct jv *out)
{
    if (v.type == JV_FLOAT) {
        *out = jv_float(fabs(v.u.f));
        return true;
    }
    if (jnum_compare(v, jv_int(0)) < 0) {
        return jnum_negate(rt, v, out);
    }
    *out = v.type == JV_BOOL ? jv_int(v.u.b) : v;
    return true;
}

/* Compares int64_t with floats exactly, on machines where long double has 64 bits of mantissa. */
static long double long_double_of(struct jv v)
{
    if (is_float(v)) {
        return v.u.f;
    }
    if (v.type == JV_BIG) {
        return jbig_double(v.u.big);
    }
    return (long double)small(v);
}

/* -1, 0 or 1; 2 if an operand is NaN, which is neither less, equal nor greater. */
int jnum_compare(struct jv a, struct jv b)
{
    if (!is_float(a) && !is_float(b)) {
        if (a.type == JV_BIG || b.type == JV_BIG) {
            return jbig_compare(a, b);
        }
        int64_t x = small(a), y = small(b);
        return x < y ? -1 : x > y;
    }
    long double x, y; // 64 bits of mantissa: exact for int64 and double alike
    x = long_double_of(a);
    y = long_double_of(b);
    if (isnan(x) || isnan(y)) {
        return 2;
    }
    return x < y ? -1 : x > y;
}

/* Converts nine digits at a time. */
bool jnum_from_decimal(struct jrt *rt, const char *s, size_t n_bytes, struct jv *out)
{
    bool negative = n_bytes > 0 && s[0] == '-';
    if (n_bytes > 0 && (s[0] == '-' || s[0] == '+')) {
        s++;
        n_bytes--;
    }
    struct jv v = jv_int(0);
    size_t i = 0;
    while (i < n_bytes) {
        int64_t part = 0, scale = 1;
        do {
            part = part * 10 + (s[i++] - '0');
            scale *= 10;
        } while (i < n_bytes && scale < 1000000000);
        if (!jnum_binary(rt, JOP_MUL, v, jv_int(scale), &v) ||
            !jnum_binary(rt, JOP_ADD, v, jv_int(part), &v)) {
            return false;
        }
    }
    *out = v;
    return !negative || jnum_negate(rt, v, out);
}

/* Trims white space like int() and float(), and converts all Unicode decimal digits to ASCII.
 * Returns the length, or SIZE_MAX if there is another non-ASCII character or the text is too
 * long. */
static size_t plain_text(const char *s, size_t n_bytes, char *out, size_t cap)
{
    size_t n = 0, i = 0, end = 0;
    while (i < n_bytes) {
        uint32_t cp;
        size_t k = utf8_decode(s + i, n_bytes - i, &cp);
        i += k > 0 ? k : 1;
        if (uni_is_space(cp)) {
            if (n == 0) {
                continue;
            }
            cp = ' ';
        } else {
            int digit = cp < 0x80 ? -1 : uni_decimal(cp);
            if (digit >= 0) {
                cp = (uint32_t)('0' + digit);
            }
            end = n + 1;
        }
        if (cp >= 0x80 || cp == 0 || n + 1 >= cap) {
            return SIZE_MAX;
        }
        out[n++] = (char)cp;
    }
    out[end] = '\0';
    return end;
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'Z') {
        return c - 'A' + 10;
    }
    return 99;
}

/* The base of a literal with a prefix such as 0x; 0 if it has none. */
static int prefix_base(const char *p)
{
    if (p[0] != '0') {
        return 0;
    }
    int c = tolower((unsigned char)p[1]);
    switch (c) {
    case 'x': return 16;
    case 'o': return 8;
    case 'b': return 2;
    default: return 0;
    }
}

/* As int(text, base): optional sign and prefix, single underscores between digits, and no
 * leading zeros if the base comes from the text. *ok false: not a number. Returns false only if the
 * runtime has failed. */
bool jnum_parse_int(struct jrt *rt, const char *s, size_t n_bytes, int64_t base, struct jv *out,
                    bool *ok)
{
    char text[MAX_INT_DIGITS + 100];
    *ok = false;
    if (base != 0 && (base < 2 || base > 36)) {
        return true;
    }
    size_t n = plain_text(s, n_bytes, text, sizeof text);
    if (n == SIZE_MAX || n == 0) {
        return true;
    }
    const char *p = text;
    bool negative = *p == '-';
    p += *p == '-' || *p == '+';
    int prefix = prefix_base(p);
    if (prefix > 0 && (base == 0 || base == prefix)) {
        base = prefix;
        p += 2;
        p += *p == '_';
    }
    bool auto_base = base == 0;
    if (auto_base) {
        base = 10;
    }
    struct jv v = jv_int(0);
    bool any = false, after_underscore = false, nonzero = false, leading_zero = *p == '0';
    for (; *p; p++) {
        if (*p == '_' && any && !after_underscore) {
            after_underscore = true;
            continue;
        }
        int d = digit_of(*p);
        if (d >= base) {
            return true;
        }
        any = true;
        after_underscore = false;
        nonzero |= d != 0;
        if (!jnum_binary(rt, JOP_MUL, v, jv_int(base), &v) ||
            !jnum_binary(rt, JOP_ADD, v, jv_int(d), &v)) {
            return false;
        }
    }
    if (!any || after_underscore || (auto_base && leading_zero && nonzero)) {
        return true;
    }
    *ok = true;
    *out = v;
    return !negative || jnum_negate(rt, v, out);
}

/* Copies digits, which may have single underscores between them. Returns the number of characters
 * read. */
static size_t float_digits(const char *p, char **to)
{
    size_t n = 0;
    for (;; n++) {
        if (isdigit((unsigned char)p[n])) {
            *(*to)++ = p[n];
        } else if (!(p[n] == '_' && n > 0 && isdigit((unsigned char)p[n - 1]) &&
                     isdigit((unsigned char)p[n + 1]))) {
            return n;
        }
    }
}

/* Parses "nan", "inf" and "infinity". */
static bool parse_special(const char *p, double *f)
{
    static const struct {
        const char *name;
        double value;
    } names[] = {{"inf", INFINITY}, {"infinity", INFINITY}, {"nan", NAN}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcasecmp(p, names[i].name) == 0) {
            *f = names[i].value;
            return true;
        }
    }
    return false;
}

/* Like float(text), including underscores, "inf" and "nan" in upper and lower case. */
bool jnum_parse_float(const char *s, size_t n_bytes, double *f)
{
    char text[1100], clean[1100]; // longer texts count as invalid
    size_t n = plain_text(s, n_bytes, text, sizeof text);
    if (n == SIZE_MAX || n == 0) {
        return false;
    }
    const char *p = text;
    char *to = clean;
    bool negative = *p == '-';
    p += *p == '-' || *p == '+';
    if (parse_special(p, f)) {
        if (negative) {
            *f = -*f;
        }
        return true;
    }
    size_t whole = float_digits(p, &to);
    p += whole;
    size_t part = 0;
    if (*p == '.') {
        *to++ = *p++;
        part = float_digits(p, &to);
        p += part;
    }
    if (whole + part == 0) {
        return false;
    }
    if (*p == 'e' || *p == 'E') {
        *to++ = *p++;
        if (*p == '-' || *p == '+') {
            *to++ = *p++;
        }
        size_t exponent = float_digits(p, &to);
        if (exponent == 0) {
            return false;
        }
        p += exponent;
    }
    *to = '\0';
    if (*p) {
        return false;
    }
    *f = strtod(clean, NULL);
    if (negative) {
        *f = -*f;
    }
    return true;
}

/* Writes the fewest digits that parse back to f. */
static void shortest(double f, char text[40])
{
    for (int digits = fabs(f) < 1e-290 ? 1 : 15; digits <= 17; digits++) {
        snprintf(text, 40, "%.*e", digits - 1, f);
        if (strtod(text, NULL) == f) {
            return;
        }
    }
}

/* repr() of a float: the shortest digits, in exponential form below 1e-4 and from 1e16 on,
 * and always with a point or an exponent, so that it is not read as an integer. */
void jnum_float_text(double f, char out[40])
{
    if (isnan(f) || isinf(f)) {
        const char *infinity = f < 0 ? "-inf" : "inf";
        snprintf(out, 40, "%s", isnan(f) ? "nan" : infinity);
        return;
    }
    char text[40];
    shortest(f, text);
    char *e = strchr(text, 'e');
    int exponent = atoi(e + 1);
    char *p = text;
    char digits[24];
    int n = 0;
    char *to = out;
    if (*p == '-') {
        *to++ = *p++;
    }
    for (; p < e; p++) {
        if (*p != '.') {
            digits[n++] = *p;
        }
    }
    while (n > 1 && digits[n - 1] == '0') {
        n--;
    }
    if (exponent < -4 || exponent >= 16) {
        *to++ = digits[0];
        if (n > 1) {
            *to++ = '.';
            memcpy(to, digits + 1, (size_t)n - 1);
            to += n - 1;
        }
        snprintf(to, 14, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        *to++ = '0';
        *to++ = '.';
        for (int i = -1; i > exponent; i--) {
            *to++ = '0';
        }
        memcpy(to, digits, (size_t)n);
        to[n] = '\0';
        return;
    }
    for (int i = 0; i <= exponent || i < n; i++) {
        if (i == exponent + 1) {
            *to++ = '.';
        }
        *to++ = i < n ? digits[i] : '0';
    }
    if (n <= exponent + 1) {
        *to++ = '.';
        *to++ = '0';
    }
    *to = '\0';
}

/* A big integer is stored in base 10^9: each limb is nine digits, except the leading one. */
bool jnum_int_text(struct jrt *rt, struct jv v, const char **s, size_t *n_bytes)
{
    size_t cap = v.type == JV_BIG ? (size_t)v.u.big->n * 9 + 16 : 24;
    char *text = jrt_alloc(rt, cap, 1);
    if (!text) {
        return false;
    }
    *s = text;
    if (v.type != JV_BIG) {
        *n_bytes = (size_t)snprintf(text, cap, "%lld", (long long)small(v));
        return true;
    }
    const struct jbig *b = v.u.big;
    size_t n = (size_t)snprintf(text, cap, "%s%u", text_if(b->negative, "-"), b->digit[b->n - 1]);
    for (int i = b->n - 1; i-- > 0;) {
        n += (size_t)snprintf(text + n, cap - n, "%09u", b->digit[i]);
    }
    *n_bytes = n;
    if (n - b->negative > MAX_INT_DIGITS) {
        return jrt_fail(rt, "ValueError",
                        "Exceeds the limit (%d digits) for integer string "
                        "conversion",
                        MAX_INT_DIGITS);
    }
    return true;
}
