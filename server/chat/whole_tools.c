// SPDX-License-Identifier: Apache-2.0
/* Tools without members that clients may leave out, for templates that fail without them: GPT-OSS's
 * adds a description to a text. */
#include "server/chat/messages.h"

#include "server/chat/jinja/json.h"

#include <string.h>

static bool has(struct jrt *rt, const struct jdict *object, const char *key)
{
    const struct jentry *e = jd_find_text(rt, object, key, strlen(key));
    return e && e->value.type != JV_NONE;
}

static bool complete(struct jrt *rt, struct jdict *function)
{
    static const char none[] = "{\"type\":\"object\",\"properties\":{}}";
    struct jv parameters;
    struct jstr *empty = js_lit(rt, "");
    if (!empty || (!has(rt, function, "description") &&
                   !jd_set_lit(rt, function, "description", jv_str(empty)))) {
        return false;
    }
    return has(rt, function, "parameters") ||
           (jinja_from_json(rt, none, sizeof none - 1, PROV_TEMPLATE, "tools", &parameters) &&
            jd_set_lit(rt, function, "parameters", parameters));
}

bool chat_complete_tools(struct jrt *rt, struct jv tools)
{
    for (size_t i = 0; tools.type == JV_LIST && i < tools.u.list->n; i++) {
        const struct jv tool = tools.u.list->items[i];
        struct jentry *e = NULL;
        if (tool.type == JV_DICT) {
            e = jd_find_text(rt, tool.u.dict, "function", 8);
        }
        if (e && e->value.type == JV_DICT && !complete(rt, e->value.u.dict)) {
            return false;
        }
    }
    return rt->st == OK;
}
