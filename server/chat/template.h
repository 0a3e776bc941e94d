// SPDX-License-Identifier: Apache-2.0
/* A model's chat template: from messages to the prompt's text, with the provenance of every byte.
 * A template is compiled once per model and renders as Jinja2 does under `transformers`
 * (templates.md). It reaches nothing but its inputs, and its time, depth, memory and
 * output are bounded.
 *
 * Provenance: text from the request (contents, names, tool definitions, extra keys) is input; text
 * of the template and the model's own special tokens is not. Each string operation keeps the two
 * apart byte by byte. A role is not input when it is one of the words that the API defines
 * ("system", "user", ...): templates build control tokens from it ('<|' + role + '|>'), and the
 * client picks it from a closed list. The content of assistant messages is input like any other,
 * because in a stateless API it is whatever the client sent; `trust_assistant` says otherwise.
 *
 * Thread: load and compile any; a loaded template is immutable and renders on any number of
 * threads at once. */
#ifndef SLUICE_SERVER_CHAT_TEMPLATE_H
#define SLUICE_SERVER_CHAT_TEMPLATE_H

#include "engine/base/status.h"
#include "engine/base/text_span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;

/* Reads the folder's templates (chat_template.jinja and additional_chat_templates, else
 * chat_template in chat_template.json or tokenizer_config.json, alone or as a named list) and its
 * special tokens. *out is NULL, with OK, when the folder has none. ERR_FORMAT with the line for a
 * template that does not compile. */
enum status chat_template_load(const char *model_dir, struct chat_template **out, struct err *err);

/* One template from memory; model_dir gives the special tokens and may be NULL. */
enum status chat_template_compile(const char *text, size_t n_bytes, const char *model_dir,
                                  struct chat_template **out, struct err *err);
void chat_template_free(struct chat_template *t); // accepts NULL

/* The text that was compiled, of all of them: to look for the signs of tools and reasoning in. */
const char *chat_template_text(const struct chat_template *t);

/* All JSON is borrowed for the call. */
struct chat_input {
    const char *messages_json; // an array
    size_t messages_bytes;
    const char *tools_json; // an array, or NULL: the template sees None
    size_t tools_bytes;
    const char *kwargs_json; // an object with further variables, or NULL; wins over special tokens
    size_t kwargs_bytes;
    bool add_generation_prompt;
    bool continue_final_message; // cut off what the template writes behind the last message
    bool raw;                    // variables as given: chat_request is not asked to shape them
    bool trust_assistant;        // control tokens are recognised in content of role assistant
    int64_t local_us;            // what strftime_now prints: chat_clock_us(), or a fixed time
};

/* The text, and the same text in stretches of one provenance (in order, none empty). */
struct chat_output {
    char *text; // NUL behind it
    size_t n_bytes;
    struct text_span *spans; // point into text
    size_t n_spans;
};

/* Microseconds since 1970 as the wall clock shows them here (local time read as if it were UTC). */
int64_t chat_clock_us(void);

/* ERR_INVALID: raise_exception (its message, nothing added), "template failed: ..." for other
 * errors of the template, or a sentence about the JSON. ERR_LIMIT: steps, depth, output or memory.
 * *out is the caller's to deinit after OK; zeroed otherwise. */
enum status chat_template_render(const struct chat_template *t, const struct chat_input *in,
                                 struct chat_output *out, struct err *err);
void chat_output_deinit(struct chat_output *out); // accepts a zeroed struct

#endif
