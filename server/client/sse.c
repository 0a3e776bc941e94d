// SPDX-License-Identifier: Apache-2.0
#include "server/client/sse.h"

#include <string.h>

enum { MAX_LINE_BYTES = 1 << 20 };

void sse_init(struct sse *s, void (*on_data)(void *, const char *, size_t), void *arg)
{
    *s = (struct sse){.on_data = on_data, .arg = arg};
    buf_init(&s->line, MAX_LINE_BYTES);
}

void sse_deinit(struct sse *s)
{
    buf_deinit(&s->line);
}

void sse_reset(struct sse *s)
{
    buf_clear(&s->line);
}

static void take_line(struct sse *s, const char *p, size_t n)
{
    if (n < 5 || memcmp(p, "data:", 5) != 0) {
        return; // a comment, another field, or the empty line after an event
    }
    p += 5;
    n -= 5;
    if (n > 0 && *p == ' ') {
        p++;
        n--;
    }
    s->on_data(s->arg, p, n);
}

void sse_feed(struct sse *s, const char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        const char *nl = memchr(bytes, '\n', n_bytes);
        if (nl == NULL) {
            buf_put(&s->line, bytes, n_bytes);
            return;
        }
        const size_t n = (size_t)(nl - bytes);
        if (s->line.n_bytes > 0) {
            buf_put(&s->line, bytes, n);
            if (s->line.failed) {
                return; // stays failed: later events cannot be separated
            }
            take_line(s, s->line.data, s->line.n_bytes);
            buf_clear(&s->line);
        } else {
            take_line(s, bytes, n);
        }
        bytes = nl + 1;
        n_bytes -= n + 1;
    }
}
