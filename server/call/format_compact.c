// SPDX-License-Identifier: Apache-2.0
/* The answer of /v1/responses/compact: the user's messages and a summary of the conversation, which
 * together can be the input of a response in place of the conversation. The summary is plain text,
 * in the member that clients know (`encrypted_content`). */
#include "server/call/responses.h"

#include "engine/base/optional.h"

#include <string.h>

/* A parser that finds reasoning may also find calls, which are not part of a summary. */
static void call(struct call_choice *ch, const char *name, const char *id)
{
    (void)ch;
    (void)name;
    (void)id;
}

static void end(struct call *c)
{
    const struct request *r = &c->request;
    const struct buf *summary = &c->choices[0].content;
    char id[40];
    struct buf b;
    call_make_id(c, "cmp_", id);
    buf_init(&b, (size_t)1 << 30);
    buf_puts(&b, "{\"id\":");
    buf_put_json(&b, c->id, strlen(c->id));
    buf_puts(&b, ",\"object\":\"response.compaction\",\"created_at\":");
    buf_put_int(&b, c->created);
    buf_puts(&b, ",\"model\":");
    buf_put_json(&b, r->model_name, strlen(r->model_name));
    buf_puts(&b, ",\"output\":[");
    buf_put(&b, r->items, r->items_bytes);
    buf_puts(&b, text_if(r->items_bytes > 0, ","));
    buf_printf(&b, "{\"id\":\"%s\",\"type\":\"compaction\",\"encrypted_content\":", id);
    buf_put_json(&b, or_empty(summary->data), summary->n_bytes);
    buf_puts(&b, "}],\"usage\":");
    response_put_usage(&b, c);
    buf_putc(&b, '}');
    call_whole(c, &b);
}

const struct call_format call_compact_format = {.id_prefix = "resp_", .call = call, .end = end};
