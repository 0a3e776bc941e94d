// SPDX-License-Identifier: Apache-2.0
/* Access to the tables of unicode_table.c: two levels, so that equal blocks of code points
 * share their records. */
#include "server/chat/jinja/unicode.h"

#include "server/chat/jinja/unicode_table.h"

static const struct uni_record *record(uint32_t cp)
{
    if (cp >= 0x110000) {
        cp = 0;
    }
    return &uni_records[uni_pages[uni_top[cp / UNI_PAGE]][cp % UNI_PAGE]];
}

unsigned uni_class(uint32_t cp)
{
    return record(cp)->bits;
}

bool uni_is_space(uint32_t cp)
{
    return record(cp)->bits & UNI_SPACE;
}

int uni_decimal(uint32_t cp)
{
    return record(cp)->decimal;
}

/* Most mappings are a difference; the others index sequences of up to three characters. */
int uni_map(uint32_t cp, enum uni_case how, uint32_t out[3])
{
    int32_t m = record(cp)->map[how];
    if (m < UNI_EXTRA) {
        out[0] = (uint32_t)((int32_t)cp + m);
        return 1;
    }
    int n = 0;
    while (n < 3 && uni_extra[m - UNI_EXTRA][n]) {
        out[n] = uni_extra[m - UNI_EXTRA][n];
        n++;
    }
    return n;
}
