// SPDX-License-Identifier: Apache-2.0
/* The member kv_hints: vLLM's envelope of cache actions. The action kv.retain 1.x is supported: it
 * gives the priority of ranges of the request's tokens, and for how long it holds. Actions of other
 * types are meant for other servers, and are ignored. */
#include "engine/base/minmax.h"
#include "engine/schedule/request.h"
#include "server/call/readers.h"

#include <ctype.h>
#include <string.h>

/* The first three are vLLM's limits. MAX_KEPT_S is arbitrary; a missing or longer duration is set
 * to it, because a client that never returns must not occupy memory for days. */
enum { MAX_ACTIONS = 16, MAX_DIRECTIVES = 128, MAX_DURATION_S = 30 * 86400, MAX_KEPT_S = 3600 };

/* Directives of all actions go into one list. */
struct hints {
    struct request *r;
    struct cache_hint *list; // [MAX_DIRECTIVES]
    const char *scope;       // the scope of earlier actions; NULL: none
    int32_t n, n_actions;
};

static bool bad(struct hints *h, const char *what)
{
    return call_error_set(&h->r->error, 400, "invalid_value", "kv_hints", "Invalid 'kv_hints': %s.",
                          what);
}

static bool is_given(const struct json *object, const char *key)
{
    return json_get(object, key) && !json_is(json_get(object, key), JSON_NULL);
}

/* ---- a directive ---------------------------------------------------------------------------- */

/* An unknown member could mean anything, so the directive is refused. */
static bool knows_members(const struct json *d)
{
    static const char *const known[] = {"start", "end", "priority", "duration", "covers_output"};
    enum { N = sizeof known / sizeof known[0] };
    for (const struct json *m = json_first(d); m; m = json_next(m)) {
        size_t i = 0;
        while (i < N && strcmp(known[i], json_key(m)) != 0) {
            i++;
        }
        if (i == N) {
            return false;
        }
    }
    return true;
}

/* Reads a position that fits an int32_t. */
static bool read_position(const struct json *d, const char *key, int64_t least, int32_t *to)
{
    int64_t v;
    if (!json_int64(json_get(d, key), &v) || v < least) {
        return false;
    }
    *to = v < INT32_MAX ? (int32_t)v : INT32_MAX;
    return true;
}

/* Either a range of the prompt or the output. */
static bool read_range(struct hints *h, const struct json *d, struct cache_hint *hint)
{
    const struct json *covers = json_get(d, "covers_output");
    hint->end = INT32_MAX;
    if (covers && !json_is(covers, JSON_BOOL)) {
        return bad(h, "a directive's 'covers_output' has to be true or false");
    }
    if (json_bool(covers, false)) {
        hint->start = HINT_OUTPUT;
        return (!json_get(d, "start") && !json_get(d, "end")) ||
               bad(h, "a directive that 'covers_output' has no 'start' and no 'end'");
    }
    if (json_get(d, "start") && !read_position(d, "start", 0, &hint->start)) {
        return bad(h, "a directive's 'start' has to be an integer of at least 0");
    }
    if (is_given(d, "end") && !read_position(d, "end", (int64_t)hint->start + 1, &hint->end)) {
        return bad(h, "a directive's 'end' has to be null or an integer above its 'start'");
    }
    return true;
}

/* Durations are limited to an hour, whatever the client asks for. */
static bool read_duration(struct hints *h, const struct json *d, struct cache_hint *hint)
{
    double s = MAX_KEPT_S;
    if (is_given(d, "duration")) {
        s = json_number(json_get(d, "duration"), -1);
        if (!(s >= 0 && s <= MAX_DURATION_S)) {
            return bad(h, "a directive's 'duration' has to be null or seconds from 0 to 2592000");
        }
    }
    hint->duration_ns = (int64_t)(lesser(s, MAX_KEPT_S) * 1e9);
    return true;
}

static bool read_directive(struct hints *h, const struct json *d)
{
    int64_t priority;
    if (!json_is(d, JSON_OBJECT) || !knows_members(d)) {
        return bad(
            h, "a directive must be an object with 'priority', 'duration' and either 'start' and "
               "'end' or 'covers_output'");
    }
    if (!json_int64(json_get(d, "priority"), &priority) || priority < 0 ||
        priority > MAX_HINT_PRIORITY) {
        return bad(h, "a directive's 'priority' has to be an integer from 0 to 100");
    }
    if (h->n == MAX_DIRECTIVES) {
        return bad(h, "there are more than 128 directives");
    }
    struct cache_hint *hint = &h->list[h->n++];
    *hint = (struct cache_hint){.priority = (int32_t)priority};
    return read_range(h, d, hint) && read_duration(h, d, hint);
}

/* ---- actions -------------------------------------------------------------------------------- */

/* True if priorities never increase towards the end of the prompt. A block can only be found after
 * those before it, so it must not outlive them. */
static bool never_rise(const struct hints *h)
{
    for (int32_t i = 0; i < h->n; i++) {
        for (int32_t k = 0; k < h->n; k++) {
            const struct cache_hint *a = &h->list[i], *b = &h->list[k];
            bool after;
            if (a->start == b->start) {
                after = i < k;
            } else {
                after = (uint32_t)a->start < (uint32_t)b->start;
            }
            if (after && a->priority < b->priority) { // as an unsigned number HINT_OUTPUT is the
                                                      // largest
                return false;
            }
        }
    }
    return true;
}

/* All actions of a request must have the same scope, which identifies the owner of the tokens; here
 * that is the key. */
static bool read_scope(struct hints *h, const struct json *payload)
{
    const char *scope = json_string(json_get(payload, "scope"));
    if (is_given(payload, "scope") && !scope) {
        return bad(h, "the 'scope' of kv.retain has to be a string or null");
    }
    bool same;
    if (h->scope && scope) {
        same = strcmp(h->scope, scope) == 0;
    } else {
        same = h->scope == scope;
    }
    if (h->n_actions > 1 && !same) {
        return bad(h, "all actions of kv.retain have to have the same 'scope'");
    }
    h->scope = scope;
    return true;
}

static bool read_retain(struct hints *h, const char *version, const struct json *payload)
{
    const struct json *directives = json_get(payload, "directives");
    if (version[0] != '1' || isdigit((unsigned char)version[1])) {
        return bad(h, "only version 1 of kv.retain is supported");
    }
    if (++h->n_actions > MAX_ACTIONS) {
        return bad(h, "there are more than 16 actions of kv.retain");
    }
    if (!json_is(directives, JSON_ARRAY)) {
        return bad(h, "the 'directives' of kv.retain have to be an array");
    }
    for (const struct json *d = json_first(directives); d; d = json_next(d)) {
        if (!read_directive(h, d)) {
            return false;
        }
    }
    return read_scope(h, payload);
}

static bool read_action(struct hints *h, const struct json *action)
{
    const char *type = json_get_string(action, "action_type");
    const char *version = json_get_string(action, "action_version");
    const struct json *payload = json_get(action, "payload");
    if (!json_get_string(action, "action_id") || !type || !version ||
        !json_is(payload, JSON_OBJECT)) {
        return bad(
            h, "an action must have the strings 'action_id', 'action_type' and 'action_version' "
               "and the object 'payload'");
    }
    return strcmp(type, "kv.retain") != 0 || read_retain(h, version, payload);
}

bool read_kv_hints(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "kv_hints");
    struct hints h = {.r = r};
    if (!m) {
        return true;
    }
    const struct json *actions = json_get(m->node, "actions");
    if (!json_is(m->node, JSON_OBJECT)) {
        return body_wrong_type(&r->error, "kv_hints", "an object", m->node);
    }
    if (!json_first(m->node)) {
        return true; // an envelope without hints
    }
    if (!json_get_string(m->node, "protocol_version") || !json_get_string(m->node, "message_id") ||
        !json_is(actions, JSON_ARRAY)) {
        return bad(&h, "it must have the strings 'protocol_version' and 'message_id' and the array "
                       "'actions'");
    }
    h.list = arena_alloc(&r->arena, MAX_DIRECTIVES, sizeof h.list[0]);
    if (!h.list) {
        return request_too_large(r);
    }
    for (const struct json *a = json_first(actions); a; a = json_next(a)) {
        if (!read_action(&h, a)) {
            return false;
        }
    }
    r->hints = h.list;
    r->n_hints = h.n;
    return never_rise(&h) ||
           bad(&h, "the priorities of directives must not increase with the position");
}
