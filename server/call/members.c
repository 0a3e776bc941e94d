// SPDX-License-Identifier: Apache-2.0
#include "server/call/members.h"

#include "server/call/members_rows.h"

#include <string.h>

static const struct member_rows *const tables[] = {&members_common, &members_chat, &members_input,
                                                   &members_foreign};

const struct member *member_at(size_t i)
{
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        if (i < tables[t]->n) {
            return &tables[t]->rows[i];
        }
        i -= tables[t]->n;
    }
    return NULL;
}

const struct member *member_find(const char *key, unsigned form)
{
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        if ((m->forms & form) && strcmp(m->key, key) == 0) {
            return m;
        }
    }
    return NULL;
}

int64_t member_min(const struct member *m, const struct config *config)
{
    return m->is_share && config->max_logprobs < 0 ? -1 : m->min;
}

/* An option of -1 is no limit. */
int64_t member_max(const struct member *m, const struct config *config)
{
    int64_t most = m->max;
    if (m->most > 0) {
        memcpy(&most, (const char *)config + m->most, sizeof most);
    }
    return most < 0 ? INT32_MAX : most;
}
