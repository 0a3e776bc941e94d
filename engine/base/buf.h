// SPDX-License-Identifier: Apache-2.0
/* A growable byte buffer with a maximum size, always NUL-terminated. An append that would exceed
 * the maximum (or runs out of memory) does nothing and sets `failed`, which stays set, so that a
 * run of appends needs one check at the end.
 * Thread: one owner. */
#ifndef SLUICE_BASE_BUF_H
#define SLUICE_BASE_BUF_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; // NULL until the first append
    size_t n_bytes, cap, max_bytes;
    bool failed;
};

void buf_init(struct buf *b, size_t max_bytes);
void buf_deinit(struct buf *b); // accepts a zeroed struct
void buf_clear(struct buf *b);  // keeps the memory; clears `failed`

/* The number of this thread's appends, to any buffer, that failed for lack of memory. If it has not
 * changed, everything appended meanwhile is complete. */
uint64_t buf_n_lost(void);

bool buf_reserve(struct buf *b, size_t more_bytes);
void buf_put(struct buf *b, const void *bytes, size_t n_bytes);
/* Appends the bytes of `from`, and clears it. If `from` has lost any, `b` has failed, too. */
void buf_move(struct buf *b, struct buf *from);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_put_int(struct buf *b, int64_t v);

/* A JSON string with its quotes. Invalid UTF-8 becomes U+FFFD. Control characters are escaped, and
 * so are characters that some readers treat as line ends (U+0085, U+2028, U+2029). Other text is
 * unchanged. */
void buf_put_json(struct buf *b, const char *s, size_t n_bytes);

/* A JSON number that parses to the same double (the shortest of %.15g to %.17g); null for NaN and
 * infinities. */
void buf_put_double(struct buf *b, double v);

/* Drops the first n bytes. */
void buf_consume(struct buf *b, size_t n_bytes);

#endif
