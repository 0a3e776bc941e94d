// SPDX-License-Identifier: Apache-2.0
/* Formats of strings as regular expressions over the whole text. */
#include "engine/grammar/schema.h"

#include <string.h>

#define DAY31 "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
#define DAY30 "(0[469]|11)-(0[1-9]|[12][0-9]|30)"
#define DAY28 "02-(0[1-9]|1[0-9]|2[0-8])"
#define YEAR "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
#define LEAP_YEAR "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE "(" YEAR "-(" DAY31 "|" DAY30 "|" DAY28 ")|" LEAP_YEAR "-02-29)"
#define OFFSET "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?" OFFSET

#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(\\." LABEL ")*"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 OCTET "(\\." OCTET "){3}"
#define H "[0-9A-Fa-f]{1,4}"
#define LS32 "(" H ":" H "|" IPV4 ")"
#define IPV6                                                                                       \
    "((" H ":){6}" LS32 "|::(" H ":){5}" LS32 "|(" H ")?::(" H ":){4}" LS32 "|((" H ":){0,1}" H    \
    ")?::(" H ":){3}" LS32 "|((" H ":){0,2}" H ")?::(" H ":){2}" LS32 "|((" H ":){0,3}" H ")?::" H \
    ":" LS32 "|((" H ":){0,4}" H ")?::" LS32 "|((" H ":){0,5}" H ")?::" H "|((" H ":){0,6}" H      \
    ")?::)"

#define PCHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define AUTHORITY                                                                                  \
    "(([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?(\\[" IPV6                                  \
    "\\]|([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(:[0-9]*)?"
#define URI                                                                                        \
    "[A-Za-z][A-Za-z0-9+.-]*:(//" AUTHORITY "(/" PCHAR "*)*|/(" PCHAR "+(/" PCHAR "*)*)?|" PCHAR   \
    "+(/" PCHAR "*)*)?(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"

#define DURATION_TIME "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
#define DURATION_DATE "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", "P(" DURATION_DATE "(" DURATION_TIME ")?|" DURATION_TIME "|[0-9]+W)"},
    {"email", ATOM "(\\." ATOM ")*@" HOST},
    {"hostname", HOST},
    {"hostname", ".{1,253}"}, // the whole name, including the dots
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    {"uri", URI},
};

/* The nth pattern of a format; a text of the format must match all of them. NULL: there are no
 * more. Unknown formats have no patterns, because they are only annotations. */
const char *schema_format(const char *name, size_t n, uint32_t nth)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strlen(formats[i].name) == n && memcmp(formats[i].name, name, n) == 0 && nth-- == 0) {
            return formats[i].pattern;
        }
    }
    return NULL;
}
