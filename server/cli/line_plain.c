// SPDX-License-Identifier: Apache-2.0
/* Lines as the terminal or a pipe provides them. */
#include "server/cli/line.h"

#include "engine/base/mem.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct plain {
    struct line_reader reader; // must be the first member
    bool terminal;
    size_t begin, end; // range of the buffer not returned yet
    char bytes[4096];
};

/* A signal that arrives between the check of the flag and poll would be missed, so waits are
 * short. */
bool line_await_input(const struct line_reader *r)
{
    enum { LOOK_MS = 100 };
    while (!*r->interrupt) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&p, 1, LOOK_MS) > 0) {
            return true;
        }
    }
    return false;
}

/* Reads more input. False at its end, and when interrupted. */
static bool fill(struct plain *p)
{
    ssize_t n;
    do {
        if (!line_await_input(&p->reader)) {
            return false;
        }
        n = read(STDIN_FILENO, p->bytes, sizeof p->bytes);
    } while (n < 0 && errno == EINTR);
    p->begin = 0;
    p->end = n > 0 ? (size_t)n : 0;
    return n > 0;
}

/* Reads up to a line end; the last line of a pipe may lack one. */
static enum line_result read_plain(struct line_reader *r, const char *prompt, struct buf *out)
{
    struct plain *p = (struct plain *)r;
    if (p->terminal) {
        fputs(prompt, stdout);
        fflush(stdout);
    }
    for (;;) {
        if (p->begin == p->end && !fill(p)) {
            if (*r->interrupt) {
                return LINE_INTERRUPTED_EMPTY; // the terminal has discarded the input
            }
            return out->n_bytes > 0 ? LINE_OK : LINE_END;
        }
        const char *from = p->bytes + p->begin, *nl = memchr(from, '\n', p->end - p->begin);
        const size_t n = nl ? (size_t)(nl - from) : p->end - p->begin;
        buf_put(out, from, n);
        p->begin += n + (nl != NULL);
        if (nl) {
            break;
        }
    }
    if (out->n_bytes > 0 && out->data[out->n_bytes - 1] == '\r') {
        out->data[--out->n_bytes] = '\0';
    }
    return LINE_OK;
}

static void close_plain(struct line_reader *r)
{
    free(r);
}

struct line_reader *line_open_plain(bool terminal, const volatile sig_atomic_t *interrupt)
{
    struct plain *p = xcalloc(1, sizeof *p);
    p->reader =
        (struct line_reader){.read = read_plain, .close = close_plain, .interrupt = interrupt};
    p->terminal = terminal;
    return &p->reader;
}
