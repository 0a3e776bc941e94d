// SPDX-License-Identifier: Apache-2.0
/* How calls are written in a format: used to build grammars where calls are forced, or must match
 * their tools' schemas. Each parser has one, and can parse calls that are written in this way. The
 * grammars are structural tags (engine/grammar/README.md), as JSON text.
 * Thread: any; the tables are constant. */
#ifndef SLUICE_SERVER_CHAT_TOOLS_WRITING_H
#define SLUICE_SERVER_CHAT_TOOLS_WRITING_H

#include "engine/base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* Texts may contain names of special tokens; "%d" stands for a number. */
struct tool_writing {
    const char *open, *between, *close; // before all calls, between two calls, after all; NULL:
                                        // nothing
    const char *head; // before a name that comes before `call` as well; NULL: it does not
    const char *call, *name_end; // before a name; between a name and its arguments
    const char *call_end;        // after the arguments
    const char *style;           // how arguments are written: a style of engine/grammar/style.c
    const char *trigger;         // text that begins calls; NULL: calls only occur at the start
    const char *starts;  // if trigger is NULL: a pattern with which plain text must not begin
    const char *bars[5]; // more strings that text must not contain, because the parser would take
                         // them for calls
    bool once;           // the turn ends after one call
    bool by_schema;      // arguments need a schema; an arbitrary object cannot be written
    /* Around calls that follow text in the history, instead of open and close; NULL: those. */
    const char *open_after, *close_after;
    /* If the vocabulary lacks this token, another way of writing calls is used. */
    const char *needs;
    const struct tool_writing *otherwise;
};

/* A tool: its parameters' schema, or the format (a structural tag) of its single text. */
struct tool_to_write {
    const char *name;
    const char *schema; // JSON text; NULL: any object
    size_t schema_bytes;
    bool may_fail;    // parameters whose names the format cannot write are left out
    const char *text; // a custom tool's format, or NULL
};

struct tool_calls {
    const struct tool_writing *writing;
    const struct tool_to_write *tools;
    size_t n_tools;
    bool one; // only one call
};

/* The format of at least one call, and the format of text that may contain calls. */
void tool_put_calls(struct buf *out, const struct tool_calls *c);
void tool_put_text_and_calls(struct buf *out, const struct tool_calls *c);

/* The format of a call's arguments. */
void tool_put_arguments(struct buf *out, const struct tool_writing *w,
                        const struct tool_to_write *tool);

/* A format that matches exactly this text. */
void tool_put_const(struct buf *out, const char *text);

/* The name of a custom tool's only argument. */
#define TOOL_TEXT_ARGUMENT "input"

#endif
