// SPDX-License-Identifier: Apache-2.0
/* A model's chat template: from messages to the prompt's text, with the provenance of every byte. A
 * template is compiled once per model and renders like Jinja2 under `transformers`
 * (chat/README.md). It can access nothing but its inputs, and its running time, depth, memory and
 * output are bounded.
 *
 * Provenance: text from the request (contents, names, tool definitions, extra keys) is input; text
 * of the template and the model's own special tokens is not. Every string operation keeps the two
 * apart byte by byte. A role is not input if it is one of the words defined by the API ("system",
 * "user", ...): templates build control tokens from it ('<|' + role + '|>'), and the client can
 * only choose from a closed list. The content of assistant messages is input like any other,
 * because in a stateless API the client can send anything; `trust_assistant` overrides that.
 *
 * Thread: load and compile any; a loaded template is immutable and renders on any number of threads
 * at once. */
#ifndef SLUICE_SERVER_CHAT_TEMPLATE_H
#define SLUICE_SERVER_CHAT_TEMPLATE_H

#include "engine/base/status.h"
#include "engine/base/text_span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;

/* Templates that llama.cpp knows by name, for models without one of their own. */
#define CHAT_TEMPLATE_NAMES "chatml, command-r, gemma, llama2, llama3, phi3, phi4 or zephyr"
/* The text of the template with this name; NULL if there is none. */
const char *chat_template_named(const char *name);

/* Reads the folder's templates (chat_template.jinja and additional_chat_templates, otherwise
 * chat_template in chat_template.json or tokenizer_config.json, as a string or a named list) and
 * its special tokens. *out is NULL, with OK, if the folder has none. ERR_FORMAT with the line for a
 * template that does not compile. */
enum status chat_template_load(const char *model_dir, struct chat_template **out, struct err *err);

/* Compiles one template from memory; model_dir provides the special tokens and may be NULL. */
enum status chat_template_compile(const char *text, size_t n_bytes, const char *model_dir,
                                  struct chat_template **out, struct err *err);
void chat_template_free(struct chat_template *t); // accepts NULL

/* Limits the CPU time of everything that this thread compiles and renders until the next call of
 * this function: beyond the limit, compiling and rendering fail with ERR_LIMIT. 0: no limit. For
 * templates that clients send. */
void chat_template_set_cpu_ms(int64_t ms);

/* The source of all templates together, to search it for signs of tools and reasoning. */
const char *chat_template_text(const struct chat_template *t);

/* All JSON is borrowed for the call. */
struct chat_input {
    const char *messages_json; // the messages, a JSON array
    size_t messages_bytes;
    const char *tools_json; // an array; NULL: the template's `tools` is None
    size_t tools_bytes;
    const char *kwargs_json; // an object with more variables, which override special tokens; or
                             // NULL
    size_t kwargs_bytes;
    bool add_generation_prompt;
    bool continue_final_message; // drop what the template writes after the last message's text
    bool raw;                    // use variables as given, without reshaping
    bool trust_assistant; // treat content of the role assistant as the template's text: control
                          // tokens in it take effect
    int64_t local_us;     // for strftime_now: chat_clock_us(), or a fixed time
    bool llama_variables; // define date_string, datetime and functions, as in llama.cpp
};

/* The text, divided into spans of one provenance each (in order, none empty). */
struct chat_output {
    char *text; // NUL-terminated
    size_t n_bytes;
    struct text_span *spans; // point into text
    size_t n_spans;
};

/* Microseconds since 1970 of the local wall clock, read as if it were UTC. */
int64_t chat_clock_us(void);

/* ERR_INVALID: the template called raise_exception (the error is its message), or failed ("template
 * failed: ..."), or the JSON is invalid. ERR_LIMIT: too many steps, or too much depth, output or
 * memory. The caller deinits *out after OK; otherwise it is zeroed. */
enum status chat_template_render(const struct chat_template *t, const struct chat_input *in,
                                 struct chat_output *out, struct err *err);
void chat_output_deinit(struct chat_output *out); // accepts a zeroed struct

/* True if the template raises an exception for a system message after other messages, as Qwen 3.5's
 * does. */
bool chat_template_wants_system_first(const struct chat_template *t);

#endif
