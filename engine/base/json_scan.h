// SPDX-License-Identifier: Apache-2.0
/* A pull parser for JSON: one token at a time, no allocation, strict RFC 8259, UTF-8 checked,
 * bounded depth. It pre-scans every request, and reads large files (tokenizer.json) and long arrays
 * of ids for which a tree would be too expensive. Numbers keep their text, so 1 and 1.0 stay
 * distinct.
 * Thread: one owner. */
#ifndef SLUICE_BASE_JSON_SCAN_H
#define SLUICE_BASE_JSON_SCAN_H

#include "engine/base/buf.h"
#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum json_token {
    JSON_TOKEN_ERROR, // see json_scan_error
    JSON_TOKEN_END,   // the value is complete and only white space followed
    JSON_TOKEN_OBJECT,
    JSON_TOKEN_OBJECT_END,
    JSON_TOKEN_ARRAY,
    JSON_TOKEN_ARRAY_END,
    JSON_TOKEN_KEY,    // text: the raw key between the quotes, still escaped
    JSON_TOKEN_STRING, // text: the raw string, still escaped
    JSON_TOKEN_NUMBER, // text: the literal
    JSON_TOKEN_TRUE,
    JSON_TOKEN_FALSE,
    JSON_TOKEN_NULL,
};

enum { JSON_SCAN_MAX_DEPTH = 512 };

struct json_scan {
    const char *s;
    size_t n_bytes, at;
    const char *text; // of the last key, string or number; points into s
    size_t text_bytes;
    bool escaped; // the text has a backslash
    int depth, max_depth;
    const char *why; // set on error
    unsigned char state;
    uint64_t in_object[JSON_SCAN_MAX_DEPTH / 64];
};

/* max_depth at most JSON_SCAN_MAX_DEPTH. The text must outlive the scan. */
void json_scan_init(struct json_scan *sc, const char *s, size_t n_bytes, int max_depth);

enum json_token json_scan_next(struct json_scan *sc);

/* After OBJECT or ARRAY was returned, or before any value: skips one whole value. False on
 * error. */
bool json_scan_skip(struct json_scan *sc);

/* True if the last key or string equals `word`, which must not need escaping. */
bool json_scan_is(const struct json_scan *sc, const char *word);

/* The first \u escape of an unpaired surrogate in the last key or string, or NULL. */
const char *json_scan_unpaired(const struct json_scan *sc);
/* Appends the last key or string, unescaped, as UTF-8. A lone surrogate becomes U+FFFD. */
void json_scan_unescape(const struct json_scan *sc, struct buf *out);

/* The last number as int64; false if it has a fraction or exponent, or does not fit. */
bool json_scan_int64(const struct json_scan *sc, int64_t *v);
double json_scan_double(const struct json_scan *sc);

/* Writes "why at byte N" and returns ERR_FORMAT (ERR_LIMIT for depth). */
enum status json_scan_error(const struct json_scan *sc, struct err *err);

#endif
