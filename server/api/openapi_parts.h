// SPDX-License-Identifier: Apache-2.0
/* The parts of /openapi.json: how its JSON is written, and its schemas.
 * Thread: any. */
#ifndef SLUICE_SERVER_API_OPENAPI_PARTS_H
#define SLUICE_SERVER_API_OPENAPI_PARTS_H

#include "server/api/api.h"

#include <string.h>

static inline void put_text(struct buf *b, const char *text)
{
    buf_put_json(b, text, strlen(text));
}

/* Writes JSON that is given with ' for the quotation mark. */
static inline void put_json(struct buf *b, const char *text)
{
    for (; *text; text++) {
        if (*text == '\'') {
            buf_putc(b, '"');
        } else {
            buf_putc(b, *text);
        }
    }
}

/* Writes ,"key": in an object that already has members. */
static inline void put_key(struct buf *b, const char *key)
{
    buf_printf(b, ",\"%s\":", key);
}

static inline void put_bound(struct buf *b, const char *key, int64_t v)
{
    put_key(b, key);
    buf_put_int(b, v);
}

/* Writes the rules that relate members of a body of this form, as the member allOf of its
 * schema. */
struct member;
void openapi_put_rules(struct buf *b, unsigned form);
/* True if the body may have another member in place of this required one. */
bool openapi_may_be_another(const struct member *required, unsigned form);

/* The members of "components": how to authenticate, errors, and the bodies of requests. */
void openapi_put_components(struct buf *b, const struct openapi_facts *facts);

/* The forms of requests (request.h) that have a schema. */
unsigned openapi_forms(void);

#endif
