// SPDX-License-Identifier: Apache-2.0
/* From token ids to what a client sees, one sample at a time: valid UTF-8 text, cut at stop
 * strings, split into reasoning, content and tool calls. The concatenated output does not depend on
 * how the tokens arrived; text that may still become a stop string or a marker is held back.
 *
 *     ids -> detok -> stop strings -> reasoning -> tool parser -> sink
 *
 * If reasoning is part of the parser's format (harmony), the parser extracts it, and is used even
 * if no calls are wanted.
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

/* Options shared by all samples of a request, borrowed by each output. */
struct output_options {
    const struct tokenizer *tok; // NULL: the caller feeds text with output_text
    bool skip_special;
    const char *const *stop; // stop strings, none of them empty
    const size_t *stop_bytes;
    size_t n_stop;
    bool include_stop;
    int32_t min_tokens; // no stop string ends within the text of the first min_tokens
    enum reasoning_kind reasoning;
    bool starts_in_reasoning;         // the prompt ends inside reasoning
    const struct tool_parser *parser; // NULL: calls are passed through as text
    const struct json *tools;
    bool in_items; // reasoning, text and calls are reported item by item, keeping the line breaks
                   // between them
};

struct output {
    const struct output_options *options;
    const struct tool_parser *parser; // the options' parser, or the one that extracts reasoning; or
                                      // NULL
    struct tool_sink sink;
    struct detok detok;
    struct buf text;   // recent text that may still become a stop string
    size_t n_searched; // no stop string ends within this many bytes from its beginning
    int32_t n_tokens;
    struct reasoning_split split;
    struct tool_parse parse;
    size_t n_bytes; // length of the whole text so far, before stop strings cut it
    int32_t n_reasoning_tokens;
    bool cut;       // set by the caller before output_finish if the text does not end by itself
    bool stopped;   // a stop string was found
    int stop_index; // its index in options.stop
};

void output_init(struct output *o, const struct output_options *options,
                 const struct tool_sink *sink);
void output_deinit(struct output *o); // accepts a zeroed struct

/* False once a stop string was found: later tokens are not needed. */
bool output_token(struct output *o, int32_t id);
bool output_text(struct output *o, const char *text, size_t n_bytes);

/* At the end: reports everything held back. */
void output_finish(struct output *o);

#endif
