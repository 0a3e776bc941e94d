// SPDX-License-Identifier: Apache-2.0
/* Renders a template into a text that shows which characters came from the client. */
#ifndef SLUICE_TEST_SERVER_CHAT_RENDERED_H
#define SLUICE_TEST_SERVER_CHAT_RENDERED_H

#include "engine/base/optional.h"
#include "server/chat/template.h"
#include "test/check.h"

/* The prompt with input in [brackets], or an error as "!message". Valid until the next call. */
static char shown[1 << 16];

/* Spans of user input are marked, so that a test sees what is trusted. */
static const char *show(enum status st, const struct chat_output *out, const struct err *err)
{
    char *p = shown;
    if (st != OK) {
        snprintf(shown, sizeof shown, "!%s", err->text);
        return shown;
    }
    for (size_t i = 0; i < out->n_spans && p < shown + sizeof shown - 4096; i++) {
        const struct text_span *s = &out->spans[i];
        p += snprintf(p, 4000, s->is_input ? "[%.*s]" : "%.*s", (int)s->n_bytes, s->text);
    }
    *p = '\0';
    return shown;
}

/* Compiles and renders; an error becomes the text. */
static const char *render_in(const char *source, struct chat_input in)
{
    struct chat_template *t;
    struct chat_output out = {0};
    struct err err = {{0}};
    enum status st = chat_template_compile(source, strlen(source), NULL, &t, &err);
    if (st == OK) {
        if (in.messages_json) {
            in.messages_bytes = strlen(in.messages_json);
        } else {
            in.messages_bytes = 0;
        }
        in.tools_bytes = length_or_0(in.tools_json);
        in.kwargs_bytes = length_or_0(in.kwargs_json);
        st = chat_template_render(t, &in, &out, &err);
    }
    const char *text = show(st, &out, &err);
    chat_output_deinit(&out);
    chat_template_free(t);
    return text;
}

static const char *render(const char *source, const char *messages)
{
    return render_in(source, (struct chat_input){.messages_json = messages});
}

#define USER(content) "[{\"role\":\"user\",\"content\":" content "}]"

#endif
