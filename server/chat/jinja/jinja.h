// SPDX-License-Identifier: Apache-2.0
/* Jinja2 as `transformers` configures it for chat templates: compile once, render many times.
 * server/chat/README.md lists what is supported and where it differs. Values and limits: value.h,
 * rt.h.
 * Thread: a compiled template is immutable; each render has its own runtime. */
#ifndef SLUICE_SERVER_CHAT_JINJA_JINJA_H
#define SLUICE_SERVER_CHAT_JINJA_JINJA_H

#include "server/chat/jinja/rt.h"

struct jinja_template;

/* ERR_FORMAT with "line N: ..." for source that Jinja2 does not compile. */
enum status jinja_compile(const char *source, size_t n_bytes, struct jinja_template **out,
                          struct err *err);
void jinja_free(struct jinja_template *t); // accepts NULL

/* True if the word occurs in the template outside comments. */
bool jinja_mentions(const struct jinja_template *t, const char *word);

/* To render: jinja_begin, set variables (allocated in rt's arena), jinja_run, read rt->st and
 * rt->err, end. */
bool jinja_begin(struct jrt *rt, const struct jinja_template *t, int64_t local_us);
bool jinja_set(struct jrt *rt, const char *name, size_t n_bytes, struct jv value);
bool jinja_run(struct jrt *rt, struct jstr **out); // *out is a flat string
void jinja_end(struct jrt *rt);

#endif
