// SPDX-License-Identifier: Apache-2.0
/* From token ids to what a client sees, one sample at a time: text that is whole UTF-8, cut at stop
 * strings, split into reasoning, content and tool calls. What comes out of the sink, joined, does
 * not depend on how the tokens arrived; text that may still become a stop string or a marker is
 * held back.
 *
 *     ids -> detok -> stop strings -> reasoning -> tool parser -> sink
 *
 * Where reasoning is a part of the parser's form (harmony), the parser finds it, and is there also
 * when no calls are wanted.
 *
 * Thread: the loop; one owner per sample. */
#ifndef SLUICE_SERVER_CHAT_OUTPUT_H
#define SLUICE_SERVER_CHAT_OUTPUT_H

#include "engine/base/buf.h"
#include "engine/tokenizer/detok.h"
#include "server/chat/reasoning.h"
#include "server/chat/tools/parser.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What all samples of a request share. Borrowed by each output. */
struct output_options {
    const struct tokenizer *tok; // NULL: text is fed directly
    bool skip_special;
    const char *const *stop; // stop strings, none empty
    const size_t *stop_bytes;
    size_t n_stop;
    bool include_stop;
    int32_t min_tokens; // no stop string ends within the text of so many
    enum reasoning_kind reasoning;
    bool starts_in_reasoning;         // the prompt has opened it
    const struct tool_parser *parser; // NULL: calls are text
    const struct json *tools;
    bool in_items; // a run of one kind is shown alone: no line is begun for what another kind parts
};

struct output {
    const struct output_options *options;
    const struct tool_parser *parser; // the options', or the one that finds the reasoning; or NULL
    struct tool_sink sink;
    struct detok detok;
    struct buf text;   // of the last ids, that may still become a stop string
    size_t n_searched; // bytes of it within which none ends
    int32_t n_tokens;
    struct reasoning_split split;
    struct tool_parse parse;
    size_t n_bytes; // of text so far, before anything was cut
    int32_t n_reasoning_tokens;
    bool stopped;   // at a stop string
    int stop_index; // which
};

void output_init(struct output *o, const struct output_options *options,
                 const struct tool_sink *sink);
void output_deinit(struct output *o); // accepts a zeroed struct

/* False once a stop string was found: what follows is not wanted. */
bool output_token(struct output *o, int32_t id);
bool output_text(struct output *o, const char *text, size_t n_bytes);

/* The end: reports all that is held back. */
void output_finish(struct output *o);

#endif
