// SPDX-License-Identifier: Apache-2.0
#include "server/jobs/answer.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void answer_make_id(char id[ANSWER_ID_BYTES])
{
    unsigned char random[12];
    while (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
    }
    for (size_t i = 0; i < sizeof random; i++) {
        snprintf(id + 2 * i, 3, "%02x", random[i]);
    }
}

static void put_head(struct buf *out, const char *id, const char *custom_id)
{
    buf_printf(out, "{\"id\":\"batch_req_%s\",\"custom_id\":", id);
    buf_put_json(out, custom_id, strlen(custom_id));
}

void answer_put_body(struct buf *out, const char *id, const char *custom_id, const char *body,
                     size_t n_bytes)
{
    put_head(out, id, custom_id);
    buf_printf(out, ",\"response\":{\"status_code\":200,\"request_id\":\"%s\",\"body\":", id);
    buf_put(out, body, n_bytes);
    buf_puts(out, "},\"error\":null}");
}

void answer_put_refusal(struct buf *out, const char *id, const char *custom_id,
                        const struct call_error *e)
{
    put_head(out, id, custom_id);
    buf_printf(out, ",\"response\":{\"status_code\":%d,\"request_id\":\"%s\",\"body\":", e->status,
               id);
    // The errors of all endpoints that a batch may use have this form; openapi_test checks that.
    call_error_put(out, e, CALL_ERROR_OPENAI);
    buf_puts(out, "},\"error\":null}");
}

void answer_put_unmade(struct buf *out, const char *id, const char *custom_id, const char *code,
                       const char *message)
{
    put_head(out, id, custom_id);
    buf_printf(out, ",\"response\":null,\"error\":{\"code\":\"%s\",\"message\":", code);
    buf_put_json(out, message, strlen(message));
    buf_puts(out, "}}");
}
