// SPDX-License-Identifier: Apache-2.0
/* Python's numbers: bool, unbounded int, float; arithmetic, formatting and parsing.
 * Thread: one owner (of the runtime). */
#ifndef SLUICE_SERVER_CHAT_JINJA_NUM_H
#define SLUICE_SERVER_CHAT_JINJA_NUM_H

#include "server/chat/jinja/rt.h"

/* An integer beyond 64 bits: sign and magnitude, little-endian, in base 10^9, so that printing
 * needs no division. Values that fit 64 bits are always JV_INT. */
struct jbig {
    bool negative;
    int n;
    uint32_t digit[];
};

enum jop { JOP_ADD, JOP_SUB, JOP_MUL, JOP_DIV, JOP_FLOORDIV, JOP_MOD, JOP_POW };

/* Both operands are numbers (bool, int, big, float). */
bool jnum_binary(struct jrt *rt, enum jop op, struct jv a, struct jv b, struct jv *out);
bool jnum_negate(struct jrt *rt, struct jv v, struct jv *out);
bool jnum_abs(struct jrt *rt, struct jv v, struct jv *out);

/* -1, 0, 1, or 2 if they are unordered (NaN). */
int jnum_compare(struct jv a, struct jv b);

bool jnum_to_double(struct jrt *rt, struct jv v, double *f);     // OverflowError for a huge integer
bool jnum_from_double(struct jrt *rt, double f, struct jv *out); // towards zero; needs finite f

/* Parses decimal digits, with an optional sign before them. */
bool jnum_from_decimal(struct jrt *rt, const char *s, size_t n_bytes, struct jv *out);

/* Python's int(text, base). *ok is false if the text is not an integer. Returns false only if a
 * limit made the runtime fail. */
bool jnum_parse_int(struct jrt *rt, const char *s, size_t n_bytes, int64_t base, struct jv *out,
                    bool *ok);
/* Python's float(text). */
bool jnum_parse_float(const char *s, size_t n_bytes, double *f);

/* Python's repr of a float: at most 32 bytes with the NUL. */
void jnum_float_text(double f, char out[40]);
/* Python's str of an int; ValueError beyond 4,300 digits. */
bool jnum_int_text(struct jrt *rt, struct jv v, const char **s, size_t *n_bytes);

/* Parts of big.c; operands may be JV_BOOL, JV_INT or JV_BIG. */
bool jbig_add(struct jrt *rt, struct jv a, struct jv b, bool subtract, struct jv *out);
bool jbig_mul(struct jrt *rt, struct jv a, struct jv b, struct jv *out);
bool jbig_divmod(struct jrt *rt, struct jv a, struct jv b, struct jv *quotient, struct jv *rest);
int jbig_compare(struct jv a, struct jv b);
double jbig_double(const struct jbig *b);

#endif
