/* Splits a model's text into reasoning, which stands at its beginning between two markers, and the
 * rest. Fed in pieces of any size; what it reports, joined, does not depend on how it was cut.
 * Thread: one owner per split; the table of kinds is constant. */
#ifndef SLUICE_SERVER_CHAT_REASONING_H
#define SLUICE_SERVER_CHAT_REASONING_H

#include "server/chat/tools/parser.h"

enum reasoning_kind { REASONING_NONE, REASONING_HARMONY, REASONING_THINK, REASONING_MISTRAL };

/* By its name in the configuration; false if there is none. */
bool reasoning_find(const char *name, enum reasoning_kind *kind);

/* Which reasoning a model with this chat template has; `template` may be NULL. */
enum reasoning_kind reasoning_for_template(const char *chat_template);

/* True if the prompt ends inside an opened reasoning block. */
bool reasoning_is_open(enum reasoning_kind kind, const char *prompt, size_t n_bytes);

/* The parser that finds this reasoning, because it is a part of its form; NULL: a split does. */
const struct tool_parser *reasoning_parser(enum reasoning_kind kind);

/* True for a marker of the kind: shown to the split even where special tokens are skipped. */
bool reasoning_is_marker(enum reasoning_kind kind, const char *text);

struct reasoning_split {
    enum reasoning_kind kind;
    struct tool_sink sink; // on_reasoning, and on_text for the rest; neither is called for nothing
    struct buf held;       // not yet known to be reasoning or not
    size_t n_blank;        // of it, from its begin: white space that was looked at
    int state;
    bool is_inside; // what came last was reasoning
};

/* `opened`: the prompt has the open marker. */
void reasoning_split_init(struct reasoning_split *r, enum reasoning_kind kind, bool opened,
                          struct tool_sink sink);
void reasoning_split_deinit(struct reasoning_split *r); // accepts a zeroed struct
void reasoning_split_text(struct reasoning_split *r, const char *text, size_t n_bytes, bool final);

#endif
