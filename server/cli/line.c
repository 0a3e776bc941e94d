// SPDX-License-Identifier: Apache-2.0
/* Reads lines: with editing if there are libedit and a terminal, otherwise without. */
#include "server/cli/line.h"

#ifndef SLUICE_LIBEDIT
struct line_reader *line_open_edited(const volatile sig_atomic_t *interrupt)
{
    (void)interrupt;
    return NULL;
}
#endif

struct line_reader *line_open(bool terminal, const volatile sig_atomic_t *interrupt)
{
    struct line_reader *r = terminal ? line_open_edited(interrupt) : NULL;
    if (r) {
        return r;
    }
    return line_open_plain(terminal, interrupt);
}

void line_close(struct line_reader *r)
{
    if (r) {
        r->close(r);
    }
}

enum line_result line_read(struct line_reader *r, const char *prompt, struct buf *out)
{
    buf_clear(out);
    buf_puts(out, ""); // allocates memory, so that an empty line is a valid string
    return r->read(r, prompt, out);
}

void line_remember(struct line_reader *r, const char *line)
{
    if (r->remember) {
        r->remember(r, line);
    }
}
