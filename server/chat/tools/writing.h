// SPDX-License-Identifier: Apache-2.0
/* How calls are written in a form: what a grammar has of it where calls are forced, or must fit
 * their tools' schemas. Each parser has one beside it, and reads what is written so. The grammars
 * are structural tags (engine/grammar/README.md), as JSON text.
 * Thread: any; the tables are constant. */
#ifndef SLUICE_SERVER_CHAT_TOOLS_WRITING_H
#define SLUICE_SERVER_CHAT_TOOLS_WRITING_H

#include "engine/base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* Texts may have the names of special tokens. "%d" in them is a number. */
struct tool_writing {
    const char *open, *between, *close; // around all calls, between two of them; NULL: nothing
    const char *call, *name_end;        // before a name; between a name and its arguments
    const char *call_end;               // behind the arguments
    const char *style;                  // of the arguments: engine/grammar/style.c
    const char *trigger; // text that begins calls; NULL: they stand at the begin alone
    const char *starts;  // then: what an output that is text must not begin like; else NULL
    const char *bars[3]; // what else text must not have, NULL-terminated: calls to the parser
    bool once;           // a call ends the turn
    bool by_schema;      // arguments can be written by a schema alone, not as any object
    /* Where the vocabulary does not have this token, another one holds. */
    const char *needs;
    const struct tool_writing *otherwise;
};

/* A tool: its parameters' schema, or the format (a structural tag) of its one text. */
struct tool_to_write {
    const char *name;
    const char *schema; // JSON text; NULL: any object
    size_t schema_bytes;
    const char *text; // of a custom tool; else NULL
};

struct tool_calls {
    const struct tool_writing *writing;
    const struct tool_to_write *tools;
    size_t n_tools;
    bool one; // no second call
};

/* The format of calls, one at least; and of text in which there may be some. */
void tool_put_calls(struct buf *out, const struct tool_calls *c);
void tool_put_text_and_calls(struct buf *out, const struct tool_calls *c);

/* A format that is a text, written as it is. */
void tool_put_const(struct buf *out, const char *text);

/* The name of a custom tool's one argument. */
#define TOOL_TEXT_ARGUMENT "input"

#endif
