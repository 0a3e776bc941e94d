// SPDX-License-Identifier: Apache-2.0
/* UTF-8 as Unicode defines it: shortest forms only, no surrogates, nothing above U+10FFFF.
 * Thread: any. */
#ifndef SLUICE_BASE_UTF8_H
#define SLUICE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the valid character at s (1 to 4), or 0 if it is malformed or truncated. */
size_t utf8_valid_length(const char *s, size_t n_bytes);

/* Number of bytes of a malformed sequence that one U+FFFD replaces (at least 1): the longest prefix
 * of a valid character, as in the WHATWG decoder and Python's errors="replace". */
size_t utf8_maximal_subpart(const char *s, size_t n_bytes);

/* True if the n bytes at s are a proper prefix of some valid character. */
bool utf8_is_incomplete(const char *s, size_t n_bytes);

/* Decodes the valid character at s into *cp and returns its length; 0 if malformed. */
size_t utf8_decode(const char *s, size_t n_bytes, uint32_t *cp);

/* Writes cp (must be a scalar value) and returns its length. */
size_t utf8_encode(uint32_t cp, char out[4]);

/* Offset of the first malformed byte, or n_bytes if there is none. */
size_t utf8_check(const char *s, size_t n_bytes);

#endif
