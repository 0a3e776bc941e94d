// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/text.h"

#include <stdio.h>

/* Positions within an escape, which are the b of an X_TEXT. */
enum {
    T_PLAIN,
    T_ESCAPE,     // after a backslash
    T_U0,         // after \u, and then after each of its digits
    T_U1_00,      // "0"
    T_U2_00,      // "00"
    T_U3_0,       // "000"
    T_U3_1,       // "001"
    T_ANY_1,      // from here on only in unconstrained text: after one digit
    T_ANY_1_D,    // after the digit d
    T_ANY_2,      // after two digits
    T_ANY_2_HIGH, // after d8 to db
    T_ANY_3,
    T_ANY_3_HIGH,
    T_LOW_ESCAPE, // after a high surrogate
    T_LOW_U,
    T_LOW_0,
    T_LOW_1,
    T_LOW_2,
    T_LOW_3,
};

static const char short_escapes[][2] = {
    {'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
    {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'},
};
enum { N_SHORT = sizeof short_escapes / sizeof *short_escapes };

/* Adds the bytes that escapes distinguish. */
static void add_distinguished(struct byte_set *set)
{
    static const char all[] = "\"\\/bfnrtu0123456789abcdefABCDEF";
    for (size_t i = 0; i < sizeof all - 1; i++) {
        byte_set_add(set, (uint8_t)all[i]);
    }
    for (unsigned b = 0; b < 0x20; b++) {
        byte_set_add(set, b);
    }
}

/* Once per grammar, marks the bytes that have a meaning inside a string as different from
 * others. */
static uint32_t make(struct exprs *x, uint32_t a, uint32_t where)
{
    if (a == EXPR_NONE) {
        return EXPR_NONE;
    }
    if (!x->has_text) {
        x->has_text = true;
        add_distinguished(&x->own_class);
    }
    uint8_t flags = (uint8_t)(XF_TEXT | (x->v[a].flags & XF_DOUBT));
    return expr_make(x, (struct expr){.kind = X_TEXT, .flags = flags, .a = a, .b = where});
}

uint32_t text_make(struct exprs *x, uint32_t a)
{
    return make(x, a, T_PLAIN);
}

uint32_t text_alike(struct exprs *x, uint32_t e, uint32_t a)
{
    return make(x, a, x->v[e].b);
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        return (c | 32) - 'a' + 10;
    }
    return -1;
}

/* The derivative after a backslash. */
static uint32_t derive_escape(struct exprs *x, uint32_t a, uint8_t byte)
{
    if (byte == 'u') {
        return make(x, a, T_U0);
    }
    for (size_t i = 0; i < N_SHORT; i++) {
        if (short_escapes[i][0] == (char)byte) {
            return make(x, expr_derive(x, a, (uint8_t)short_escapes[i][1]), T_PLAIN);
        }
    }
    return EXPR_NONE;
}

/* The next position in \u in unconstrained text; -1 if the digit is not allowed. */
static int next_any(uint32_t where, int digit)
{
    switch (where) {
    case T_U0: return digit == 0xd ? T_ANY_1_D : T_ANY_1;
    case T_ANY_1: return T_ANY_2;
    case T_ANY_1_D:
        if (digit >= 0xc) {
            return -1; // a low surrogate without a high one
        }
        return digit >= 8 ? T_ANY_2_HIGH : T_ANY_2;
    case T_ANY_2: return T_ANY_3;
    case T_ANY_2_HIGH: return T_ANY_3_HIGH;
    case T_ANY_3: return T_PLAIN;
    case T_ANY_3_HIGH: return T_LOW_ESCAPE;
    case T_LOW_0: return digit == 0xd ? T_LOW_1 : -1;
    case T_LOW_1: return digit >= 0xc ? T_LOW_2 : -1;
    case T_LOW_2: return T_LOW_3;
    case T_LOW_3: return T_PLAIN;
    default: return -1;
    }
}

/* \uXXXX in a free string, where only surrogates must be followed digit by digit. */
static uint32_t derive_any(struct exprs *x, uint32_t a, uint32_t where, uint8_t byte)
{
    if (where == T_LOW_ESCAPE || where == T_LOW_U) {
        uint8_t want = where == T_LOW_ESCAPE ? '\\' : 'u';
        if (byte == want) {
            return make(x, a, where + 1);
        }
        return (uint32_t)EXPR_NONE;
    }
    int digit = hex_digit(byte), next = digit < 0 ? -1 : next_any(where, digit);
    if (next < 0) {
        return (uint32_t)EXPR_NONE;
    }
    return make(x, a, (uint32_t)next);
}

/* \u00XX, which stands for a control character. */
static uint32_t derive_control(struct exprs *x, uint32_t a, uint32_t where, uint8_t byte)
{
    int digit = hex_digit(byte);
    switch (where) {
    case T_U0: return digit == 0 ? make(x, a, T_U1_00) : (uint32_t)EXPR_NONE;
    case T_U1_00: return digit == 0 ? make(x, a, T_U2_00) : (uint32_t)EXPR_NONE;
    case T_U2_00:
        if (digit != 0 && digit != 1) {
            return EXPR_NONE;
        }
        return make(x, a, digit == 0 ? T_U3_0 : T_U3_1);
    default:
        if (digit < 0) {
            return EXPR_NONE;
        }
        return make(x, expr_derive(x, a, (uint8_t)((where == T_U3_1 ? 16 : 0) + digit)), T_PLAIN);
    }
}

/* Whether an escape that has begun can be completed. */
static bool can_end(struct exprs *x, uint32_t a, uint32_t where)
{
    if (a == x->any_text || where == T_PLAIN) {
        return true;
    }
    int from = where == T_U3_1 ? 16 : 0, to = where == T_U3_0 ? 16 : 32;
    for (int c = from; c < to; c++) {
        if (expr_derive(x, a, (uint8_t)c) != EXPR_NONE) {
            return true;
        }
    }
    return where == T_ESCAPE &&
           (expr_derive(x, a, '"') != EXPR_NONE || expr_derive(x, a, '\\') != EXPR_NONE ||
            expr_derive(x, a, '/') != EXPR_NONE);
}

/* Consumes one byte inside the string. A quote ends the string if the content may end, a backslash
 * begins an escape, and control characters are not allowed. */
uint32_t text_derive(struct exprs *x, uint32_t e, uint8_t byte)
{
    uint32_t a = x->v[e].a, where = x->v[e].b, to;
    if (where == T_ESCAPE) {
        to = derive_escape(x, a, byte);
    } else if (where != T_PLAIN) {
        if (a == x->any_text) {
            to = derive_any(x, a, where, byte);
        } else {
            to = derive_control(x, a, where, byte);
        }
    } else if (byte == '"') {
        if (expr_is(x, a, XF_NULLABLE)) {
            return EXPR_EMPTY;
        }
        return EXPR_NONE;
    } else if (byte == '\\') {
        to = make(x, a, T_ESCAPE);
    } else {
        if (byte < 0x20) {
            to = (uint32_t)EXPR_NONE;
        } else {
            to = make(x, expr_derive(x, a, byte), T_PLAIN);
        }
    }
    if (to != EXPR_NONE && !can_end(x, x->v[to].a, x->v[to].b)) {
        return (uint32_t)EXPR_NONE;
    }
    return to;
}

/* The bytes that a text may begin with: those of its content, the quote and the backslash. */
void text_first(struct exprs *x, uint32_t e, const struct byte_set *inside, struct byte_set *out)
{
    if (x->v[e].b != T_PLAIN) {
        add_distinguished(out);
        return;
    }
    out->w[0] |= inside->w[0] & ~(uint64_t)UINT32_MAX; // control characters must be escaped
    for (int i = 1; i < 4; i++) {
        out->w[i] |= inside->w[i];
    }
    byte_set_add(out, '"');
    byte_set_add(out, '\\');
}

uint32_t text_clean(struct exprs *x, uint32_t e)
{
    uint32_t where = x->v[e].b;
    return make(x, expr_clean(x, x->v[e].a), where);
}

/* The text with this project's choice of escapes, which are short where JSON has a short form. */
uint32_t text_literal(struct exprs *x, const char *s, size_t n)
{
    uint32_t e = EXPR_EMPTY;
    while (n > 0) {
        uint8_t c = (uint8_t)s[--n];
        char out[8] = {(char)c, 0};
        for (size_t i = 0; i < N_SHORT; i++) {
            if (c != '/' && short_escapes[i][1] == (char)c) {
                snprintf(out, sizeof out, "\\%c", short_escapes[i][0]);
            }
        }
        if (c < 0x20 && out[0] != '\\') {
            snprintf(out, sizeof out, "\\u%04x", c);
        }
        size_t len = c == 0 ? 6 : 0;
        while (c != 0 && out[len]) {
            len++;
        }
        e = expr_seq(x, expr_literal(x, out, len), e);
    }
    return e;
}
