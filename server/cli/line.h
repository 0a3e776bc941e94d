// SPDX-License-Identifier: Apache-2.0
/* Reads lines typed by a person or from a pipe. On a terminal they can be edited and recalled if
 * libedit was available at build time (line_edited.c); otherwise the terminal's own editing applies
 * (line_plain.c).
 * Thread: one owner; line_read blocks. */
#ifndef SLUICE_SERVER_CLI_LINE_H
#define SLUICE_SERVER_CLI_LINE_H

#include "engine/base/buf.h"

#include <signal.h>
#include <stdbool.h>

struct line_reader;

enum line_result {
    LINE_OK,
    LINE_END,               // end of the input
    LINE_INTERRUPTED,       // *interrupt was set; the user may have typed something
    LINE_INTERRUPTED_EMPTY, // *interrupt was set, and the user had typed nothing
};

/* `terminal`: a person reads and types, so prompts are shown. *interrupt, set by a signal handler,
 * ends a line_read soon. */
struct line_reader *line_open(bool terminal, const volatile sig_atomic_t *interrupt);
void line_close(struct line_reader *r); // accepts NULL

/* Reads one line without its end into `out`, which is cleared first; out->failed if it was too
 * long. */
enum line_result line_read(struct line_reader *r, const char *prompt, struct buf *out);

/* Adds a line to the history. */
void line_remember(struct line_reader *r, const char *line);

/* ---- for the readers ----------------------------------------------------------------------------
 */

struct line_reader {
    enum line_result (*read)(struct line_reader *r, const char *prompt, struct buf *out);
    void (*remember)(struct line_reader *r, const char *line); // NULL: there is no history
    void (*close)(struct line_reader *r);
    const volatile sig_atomic_t *interrupt;
};

/* Waits until standard input is readable or ends; false when interrupted. */
bool line_await_input(const struct line_reader *r);

struct line_reader *line_open_plain(bool terminal, const volatile sig_atomic_t *interrupt);
struct line_reader *line_open_edited(const volatile sig_atomic_t *interrupt); // NULL: unavailable

#endif
