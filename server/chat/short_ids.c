// SPDX-License-Identifier: Apache-2.0
/* Ids of calls for templates that only accept nine letters and digits, as Mistral's do. Other
 * servers' ids, and our own, are longer: their last nine are kept. */
#include "server/chat/messages.h"

#include <string.h>

enum { N_SHORT = 9 };

static bool is_alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool shorten(struct jrt *rt, struct jv object, const char *key)
{
    struct jentry *e =
        object.type == JV_DICT ? jd_find_text(rt, object.u.dict, key, strlen(key)) : NULL;
    if (!e || e->value.type != JV_STR || !js_flat(rt, e->value.u.s)) {
        return rt->st == OK;
    }
    const struct jstr *s = e->value.u.s;
    char id[N_SHORT];
    size_t n = N_SHORT;
    for (size_t i = s->n_bytes; i > 0 && n > 0; i--) {
        if (is_alphanumeric(s->s[i - 1])) {
            id[--n] = s->s[i - 1];
        }
    }
    memset(id, '0', n);
    struct jsb b;
    jsb_init(&b, rt);
    for (size_t i = 0; i < N_SHORT; i++) {
        jsb_putc(&b, id[i], true);
    }
    struct jstr *all = jsb_done(&b);
    return all && jd_set_lit(rt, object.u.dict, key, jv_str(all));
}

bool chat_shorten_ids(struct jrt *rt, struct jv message)
{
    const struct jentry *e = jd_find_text(rt, message.u.dict, "tool_calls", 10);
    for (size_t i = 0; e && e->value.type == JV_LIST && i < e->value.u.list->n; i++) {
        if (!shorten(rt, e->value.u.list->items[i], "id")) {
            return false;
        }
    }
    return shorten(rt, message, "tool_call_id");
}
