// SPDX-License-Identifier: Apache-2.0
/* Arrays of token ids, read without a tree. */
#include "server/call/body.h"

#include "engine/base/json_scan.h"
#include "engine/base/minmax.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct id_reader {
    struct body *b;
    const char *key;
    struct json_scan sc;
    int32_t *ids; // room for all ids of the member
    size_t n;
};

bool body_whole_id(const struct json_scan *sc, int64_t *id)
{
    if (json_scan_int64(sc, id)) {
        return true;
    }
    double v = json_scan_double(sc);
    bool good = v == floor(v) && fabs(v) < 9e15;
    *id = good ? (int64_t)v : 0;
    return good;
}

static bool read_ids(struct id_reader *r, struct id_list *list)
{
    list->ids = r->ids + r->n;
    for (;;) {
        enum json_token t = json_scan_next(&r->sc);
        int64_t id;
        if (t == JSON_TOKEN_ARRAY_END) {
            list->n = (size_t)(r->ids + r->n - list->ids);
            return true;
        }
        if (t != JSON_TOKEN_NUMBER || !body_whole_id(&r->sc, &id)) {
            return call_error_set(r->b->error, 400, "invalid_type", r->key,
                                  "Invalid type for '%s': expected an array of token ids "
                                  "(integers).",
                                  r->key);
        }
        if (id < 0 || id > INT32_MAX) {
            return call_error_set(r->b->error, 400, "invalid_value", r->key,
                                  "Invalid '%s': token id %" PRId64 " is out of vocabulary.",
                                  r->key, id);
        }
        r->ids[r->n++] = (int32_t)id;
    }
}

static void count_items(const struct body_member *m, size_t *n_ids, size_t *n_lists)
{
    *n_ids = *n_lists = 1;
    for (size_t i = 0; i < m->n_bytes; i++) {
        *n_ids += m->start[i] == ',';
        *n_lists += m->start[i] == '[';
    }
}

bool body_id_lists(struct body *b, const char *key, size_t max_lists, struct id_list **lists,
                   size_t *n_lists)
{
    const struct body_member *m = body_get(b, key);
    if (!m || m->node) {
        return false;
    }
    size_t n_ids, room;
    count_items(m, &n_ids, &room);
    room = lesser(room, max_lists + 1);
    struct id_reader r = {.b = b, .key = key};
    r.ids = arena_alloc(b->arena, n_ids, sizeof r.ids[0]);
    *lists = arena_alloc(b->arena, room, sizeof **lists);
    if (!r.ids || !*lists) {
        return call_error_set(b->error, 413, "request_too_large", key, "Request too large.");
    }
    const char *second = m->start + 1;
    while (strchr(" \t\r\n", *second)) {
        second++;
    }
    json_scan_init(&r.sc, m->start, m->n_bytes, 8);
    json_scan_next(&r.sc);
    *n_lists = 0;
    if (*second != '[') {
        *n_lists = 1;
        return read_ids(&r, *lists);
    }
    for (enum json_token t; (t = json_scan_next(&r.sc)) != JSON_TOKEN_ARRAY_END;) {
        if (t != JSON_TOKEN_ARRAY) {
            return call_error_set(b->error, 400, "invalid_type", key,
                                  "Invalid type for '%s': expected an array of arrays of token "
                                  "ids.",
                                  key);
        }
        if (*n_lists == max_lists) {
            return call_error_set(b->error, 400, "array_above_max_length", key,
                                  "Invalid '%s': array too long. Expected at most %zu items.", key,
                                  max_lists);
        }
        if (!read_ids(&r, &(*lists)[*n_lists])) {
            return false;
        }
        *n_lists += 1;
    }
    return true;
}
