// SPDX-License-Identifier: Apache-2.0
#include "server/call/stand_in.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

char *stand_in_find_nul(char *json, size_t n_bytes)
{
    char *const end = json + n_bytes;
    for (char *p = json; p < end && (p = memchr(p, '\\', (size_t)(end - p))) != NULL; p += 2) {
        if (end - p >= 6 && memcmp(p, "\\u0000", 6) == 0) {
            return p;
        }
    }
    return NULL;
}

/* Tries U+FFFE, U+FFFF and U+FDD0 to U+FDEF. These are noncharacters, so a text is unlikely to
 * contain all of them. */
bool stand_in_choose(struct stand_in *s, const char *json, size_t n_bytes)
{
    enum { N_TAIL = 2, N_ALL = N_TAIL + 32 };
    for (unsigned i = 0; i < N_ALL; i++) {
        unsigned cp = i < N_TAIL ? 0xfffe + i : 0xfdd0 + i - N_TAIL;
        struct stand_in one = {.utf8 = {(char)(0xe0 | cp >> 12), (char)(0x80 | (cp >> 6 & 63)),
                                        (char)(0x80 | (cp & 63))}};
        snprintf(one.escaped, sizeof one.escaped, "\\u%04x", cp);
        if (!stand_in_occurs(&one, json, n_bytes)) {
            *s = one;
            return true;
        }
    }
    return false;
}

bool stand_in_occurs(const struct stand_in *s, const char *json, size_t n_bytes)
{
    const char *const end = json + n_bytes;
    for (const char *p = json; (p = memmem(p, (size_t)(end - p), "\\u", 2)) != NULL; p += 2) {
        if (end - p >= 6 && strncasecmp(p, s->escaped, 6) == 0) {
            return true;
        }
    }
    return memmem(json, n_bytes, s->utf8, 3) != NULL;
}

void stand_in_hide(const struct stand_in *s, char *json, size_t n_bytes)
{
    char *const end = json + n_bytes;
    for (char *at = json; (at = stand_in_find_nul(at, (size_t)(end - at))) != NULL;) {
        memcpy(at, s->escaped, 6);
    }
}

void stand_in_put_back(const struct stand_in *s, struct buf *json)
{
    const char *from = json->data, *end = from + json->n_bytes, *at;
    if (!s->utf8[0] || json->failed || json->n_bytes == 0) {
        return;
    }
    struct buf out;
    buf_init(&out, json->max_bytes);
    while ((at = memmem(from, (size_t)(end - from), s->utf8, 3)) != NULL) {
        buf_put(&out, from, (size_t)(at - from));
        buf_puts(&out, "\\u0000");
        from = at + 3;
    }
    buf_put(&out, from, (size_t)(end - from));
    buf_deinit(json);
    *json = out;
}
