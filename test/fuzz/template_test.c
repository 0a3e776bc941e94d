// SPDX-License-Identifier: Apache-2.0
/* Broken and random templates with random variables. `make test` replays test/corpus/template; with
 * clang this is a fuzzer (scripts/fuzz template). The input is a template, a NUL byte, and the
 * variables as a JSON object. */
#include "engine/base/assert.h"
#include "server/chat/template.h"
#include "test/fuzz/fuzz.h"

/* For every template spans must cover the text, in order, and none may be empty. */
static void check_output(const struct chat_output *out)
{
    size_t at = 0;
    for (size_t i = 0; i < out->n_spans; i++) {
        ASSERT(out->spans[i].text == out->text + at && out->spans[i].n_bytes > 0);
        at += out->spans[i].n_bytes;
    }
    ASSERT(at == out->n_bytes);
}

/* Compiled, and rendered if that succeeds; limits of the renderer end loops. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    const char *text = (const char *)data;
    const char *end = n_bytes > 0 ? memchr(text, '\0', n_bytes) : NULL;
    size_t n_template = end ? (size_t)(end - text) : n_bytes;
    struct chat_template *t;
    struct err err;
    if (chat_template_compile(text, n_template, NULL, &t, &err) != OK) {
        return 0;
    }
    struct chat_input in = {.raw = true, .local_us = 1749990896000000};
    struct chat_output out;
    if (end) {
        in.kwargs_json = end + 1;
        in.kwargs_bytes = n_bytes - n_template - 1;
    }
    if (chat_template_render(t, &in, &out, &err) == OK) {
        check_output(&out);
    }
    chat_output_deinit(&out);
    chat_template_free(t);
    return 0;
}

FUZZ_MAIN("template")
