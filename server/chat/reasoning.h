/* Splits text into reasoning and the rest. Part of output.
 * Thread: the owner of the output. */
#ifndef SLUICE_SERVER_CHAT_REASONING_H
#define SLUICE_SERVER_CHAT_REASONING_H

#include "server/chat/output.h"

/* The parser that finds this reasoning, because it is a part of its form; NULL: output_split does. */
const struct tool_parser *output_reasoning_parser(enum reasoning_kind kind);

void output_split_init(struct output *o);
void output_split(struct output *o, const char *text, size_t n_bytes, bool final);

/* Text that is no reasoning: goes to the tool parser or the sink. */
void output_content(struct output *o, const char *text, size_t n_bytes);

#endif
