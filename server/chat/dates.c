// SPDX-License-Identifier: Apache-2.0
/* Variables of a template that tell today's date, for templates that cannot ask strftime_now. */
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

bool chat_set_dates(struct jrt *rt, int64_t local_us)
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
