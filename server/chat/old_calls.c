// SPDX-License-Identifier: Apache-2.0
/* OpenAI's older form of calls: an assistant's `function_call`, and its result as a message of the
 * role `function`. Templates only know `tool_calls` and the role `tool`. */
#include "server/chat/messages.h"

#include <string.h>

/* Some templates require ids of nine characters. A message has one call at most, and its result
 * follows, so one id is enough. */
static const char id[] = "call00000";

static const struct jv *member(struct jrt *rt, struct jv object, const char *key)
{
    const struct jentry *e = jd_find_text(rt, object.u.dict, key, strlen(key));
    return e ? &e->value : NULL;
}

static bool set_text(struct jrt *rt, struct jdict *object, const char *key, const char *text)
{
    struct jstr *s = js_lit(rt, text);
    return s && jd_set_lit(rt, object, key, jv_str(s));
}

/* function_call becomes a list with one call. */
static bool shape_call(struct jrt *rt, struct jv message, struct jv function)
{
    struct jdict *call = jd_new(rt);
    struct jlist *calls = jlist_new(rt, 1);
    if (!call || !calls) {
        return false;
    }
    calls->items[0] = jv_dict(call);
    return set_text(rt, call, "id", id) && set_text(rt, call, "type", "function") &&
           jd_set_lit(rt, call, "function", function) &&
           jd_set_lit(rt, message.u.dict, "tool_calls", jv_list(calls));
}

bool chat_shape_old_call(struct jrt *rt, struct jv message)
{
    const struct jv *call = member(rt, message, "function_call");
    if (call && call->type == JV_DICT) {
        const struct jv *calls = member(rt, message, "tool_calls");
        if (!calls || calls->type != JV_LIST) {
            return shape_call(rt, message, *call);
        }
    }
    const struct jv *role = member(rt, message, "role");
    if (role && role->type == JV_STR && js_flat(rt, role->u.s) && js_is(role->u.s, "function")) {
        return set_text(rt, message.u.dict, "role", "tool") &&
               set_text(rt, message.u.dict, "tool_call_id", id);
    }
    return rt->st == OK;
}
