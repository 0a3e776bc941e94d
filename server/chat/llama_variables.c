// SPDX-License-Identifier: Apache-2.0
/* Variables that llama.cpp defines for templates, which transformers does not: today's date, and
 * the tools as text. */
#include "server/chat/jinja/eval.h"
#include "server/chat/messages.h"

#include <string.h>
#include <time.h>

static bool set_date(struct jrt *rt, const char *name, const char *date)
{
    struct jsb b;
    jsb_init(&b, rt);
    jsb_puts(&b, date);
    struct jstr *s = jsb_done(&b);
    return s && jinja_set(rt, name, strlen(name), jv_str(s));
}

static bool set_dates(struct jrt *rt, int64_t local_us)
{
    const time_t at = (time_t)(local_us / 1000000);
    struct tm tm;
    char day_first[32], month_first[32];
    if (!gmtime_r(&at, &tm) || strftime(day_first, sizeof day_first, "%d %b %Y", &tm) == 0 ||
        strftime(month_first, sizeof month_first, "%b %d %Y", &tm) == 0) {
        return true; // as if the template were not told
    }
    return set_date(rt, "date_string", day_first) && set_date(rt, "datetime", month_first);
}

/* The tools in indented JSON; an empty text if there are none. */
static bool set_functions(struct jrt *rt, struct jv tools)
{
    struct jjson_style style = {
        .indent = js_lit(rt, "  "), .comma = js_lit(rt, ","), .colon = js_lit(rt, ": ")};
    const bool any = tools.type == JV_LIST && tools.u.list->n > 0;
    struct jstr *text = any ? NULL : js_lit(rt, "");
    if (rt->st != OK || (any && !jinja_tojson(rt, tools, &style, &text))) {
        return false;
    }
    return text && jinja_set(rt, "functions", strlen("functions"), jv_str(text));
}

bool chat_set_llama_variables(struct jrt *rt, int64_t local_us, struct jv tools)
{
    return set_dates(rt, local_us) && set_functions(rt, tools);
}
