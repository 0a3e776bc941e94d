// SPDX-License-Identifier: Apache-2.0
/* Finds the relevant members of streamed events by searching for their keys. A JSON parser would
 * cost the client more than some servers need to write the event. */
#include "bench/load/events.h"

#include <stdlib.h>
#include <string.h>

/* Start of the value of the first `key` (given with its quotes); NULL if there is none. Quotes
 * inside JSON strings are escaped, so generated text cannot look like a key. */
static const char *value_of(const char *p, size_t n_bytes, const char *key, size_t n_key)
{
    const char *end = p + n_bytes;
    while ((p = memmem(p, (size_t)(end - p), key, n_key)) != NULL) {
        p += n_key;
        const char *v = p;
        while (v < end && *v == ' ') {
            v++;
        }
        if (v < end && *v == ':') {
            do {
                v++;
            } while (v < end && *v == ' ');
            return v < end ? v : NULL;
        }
    }
    return NULL;
}

#define VALUE_OF(p, n, key) value_of(p, n, "\"" key "\"", sizeof key + 1)

static int64_t number_at(const char *v, int64_t otherwise)
{
    if (v != NULL && *v >= '0' && *v <= '9') {
        return strtoll(v, NULL, 10);
    }
    return otherwise;
}

/* Returns true if the string at v is not empty, and appends its contents to `answer`. */
static bool take_string(const char *v, const char *end, struct buf *answer)
{
    if (v == NULL || *v != '"' || v + 1 >= end || v[1] == '"') {
        return false;
    }
    if (answer != NULL) {
        const char *q = ++v;
        while (q < end && *q != '"') {
            q += *q == '\\' ? 2 : 1;
        }
        if (q < end) {
            buf_put(answer, v, (size_t)(q - v));
        }
    }
    return true;
}

/* Any of the members in which servers send text, reasoning or arguments counts as text. */
static bool has_text(const struct events *s, const char *p, size_t n)
{
    const char *end = p + n;
    return take_string(VALUE_OF(p, n, "content"), end, s->answer) ||
           take_string(VALUE_OF(p, n, "text"), end, s->answer) ||
           take_string(VALUE_OF(p, n, "reasoning_content"), end, NULL) ||
           take_string(VALUE_OF(p, n, "reasoning"), end, NULL) ||
           take_string(VALUE_OF(p, n, "arguments"), end, NULL);
}

/* Handles the data of one event. The data ends with a line end, so parsing a number stops there. */
static void take_event(void *arg, const char *p, size_t n)
{
    struct events *s = arg;
    if (n >= 6 && memcmp(p, "[DONE]", 6) == 0) {
        s->done = true;
        return;
    }
    s->n_events++;
    if (has_text(s, p, n)) {
        s->n_text_events++;
        s->on_text(s->arg);
        // An event with text may also have the usage so far; the last one counts.
    }
    const char *usage = VALUE_OF(p, n, "usage");
    if (usage != NULL && *usage == '{') {
        const size_t left = n - (size_t)(usage - p);
        s->prompt_tokens = number_at(VALUE_OF(usage, left, "prompt_tokens"), s->prompt_tokens);
        s->completion_tokens =
            number_at(VALUE_OF(usage, left, "completion_tokens"), s->completion_tokens);
        s->cached_tokens = number_at(VALUE_OF(usage, left, "cached_tokens"), s->cached_tokens);
    }
    const char *error = VALUE_OF(p, n, "error");
    s->error = s->error || (error != NULL && (*error == '{' || *error == '"'));
}

void events_init(struct events *s, void (*on_text)(void *), void *arg)
{
    *s = (struct events){.on_text = on_text, .arg = arg};
    sse_init(&s->lines, take_event, s);
    events_reset(s);
}

void events_deinit(struct events *s)
{
    sse_deinit(&s->lines);
}

void events_reset(struct events *s)
{
    sse_reset(&s->lines);
    s->n_events = s->n_text_events = 0;
    s->prompt_tokens = s->completion_tokens = s->cached_tokens = -1;
    s->done = s->error = false;
}

void events_feed(struct events *s, const char *bytes, size_t n_bytes)
{
    sse_feed(&s->lines, bytes, n_bytes);
    s->error = s->error || s->lines.line.failed;
}
