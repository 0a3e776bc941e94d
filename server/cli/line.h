// SPDX-License-Identifier: Apache-2.0
/* Lines that a person types, or that come through a pipe. On a terminal they can be edited and
 * called back where libedit was there at build time (line_edited.c), else as the terminal itself
 * does (line_plain.c). Thread: one owner; line_read blocks. */
#ifndef SLUICE_SERVER_CLI_LINE_H
#define SLUICE_SERVER_CLI_LINE_H

#include "engine/base/buf.h"

#include <signal.h>
#include <stdbool.h>

struct line_reader;

enum line_result {
    LINE_OK,
    LINE_END,               // of the input
    LINE_INTERRUPTED,       // *interrupt was set, with something typed or in a way that cannot tell
    LINE_INTERRUPTED_EMPTY, // the same with nothing typed
};

/* `terminal`: a person reads and types, so prompts are shown. *interrupt (a signal handler sets it)
 * ends a line_read soon. */
struct line_reader *line_open(bool terminal, const volatile sig_atomic_t *interrupt);
void line_close(struct line_reader *r); // accepts NULL

/* One line without its end into `out`, which is cleared first; `failed` there if it was too long.
 */
enum line_result line_read(struct line_reader *r, const char *prompt, struct buf *out);

/* Keeps it for the arrow keys. */
void line_remember(struct line_reader *r, const char *line);

/* ---- for the readers ----------------------------------------------------------------------------
 */

struct line_reader {
    enum line_result (*read)(struct line_reader *r, const char *prompt, struct buf *out);
    void (*remember)(struct line_reader *r, const char *line); // NULL: nothing is kept
    void (*close)(struct line_reader *r);
    const volatile sig_atomic_t *interrupt;
};

/* Waits until a byte of standard input (or its end) can be read; false when interrupted. */
bool line_await_input(const struct line_reader *r);

struct line_reader *line_open_plain(bool terminal, const volatile sig_atomic_t *interrupt);
struct line_reader *line_open_edited(const volatile sig_atomic_t *interrupt); // NULL: cannot

#endif
