#include "bench/load/sse.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LINE_BYTES = 1 << 20 };

void sse_init(struct sse *s, void (*on_text)(void *), void *arg)
{
    memset(s, 0, sizeof *s);
    buf_init(&s->line, MAX_LINE_BYTES);
    s->on_text = on_text;
    s->arg = arg;
    sse_reset(s);
}

void sse_deinit(struct sse *s)
{
    buf_deinit(&s->line);
}

void sse_reset(struct sse *s)
{
    buf_clear(&s->line);
    s->n_events = s->n_text_events = 0;
    s->prompt_tokens = s->completion_tokens = s->cached_tokens = -1;
    s->done = s->error = false;
}

/* Where the value of the first `key` (with its quotes) begins; NULL if there is none. Inside a
 * JSON string every quote is escaped, so text that a model writes cannot look like a key. */
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
    return v != NULL && *v >= '0' && *v <= '9' ? strtoll(v, NULL, 10) : otherwise;
}

/* True if the string at v is not empty; its inside goes to `answer`. */
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

static bool has_text(const struct sse *s, const char *p, size_t n)
{
    const char *end = p + n;
    return take_string(VALUE_OF(p, n, "content"), end, s->answer) ||
           take_string(VALUE_OF(p, n, "text"), end, s->answer) ||
           take_string(VALUE_OF(p, n, "reasoning_content"), end, NULL) ||
           take_string(VALUE_OF(p, n, "reasoning"), end, NULL) ||
           take_string(VALUE_OF(p, n, "arguments"), end, NULL);
}

/* The data of one event; a character stands behind it (a line end), so numbers stop there. */
static void take_event(struct sse *s, const char *p, size_t n)
{
    if (n >= 6 && memcmp(p, "[DONE]", 6) == 0) {
        s->done = true;
        return;
    }
    s->n_events++;
    if (has_text(s, p, n)) {
        s->n_text_events++;
        s->on_text(s->arg);
        // An event with text may hold the running usage too; the last one counts.
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

static void take_line(struct sse *s, const char *p, size_t n)
{
    if (n < 5 || memcmp(p, "data:", 5) != 0) {
        return; // a comment, an event's name, or the blank line behind an event
    }
    p += 5;
    n -= 5;
    if (n > 0 && *p == ' ') {
        p++;
        n--;
    }
    take_event(s, p, n);
}

void sse_feed(struct sse *s, const char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        const char *nl = memchr(bytes, '\n', n_bytes);
        if (nl == NULL) {
            buf_put(&s->line, bytes, n_bytes);
            s->error = s->error || s->line.failed;
            return;
        }
        const size_t n = (size_t)(nl - bytes);
        if (s->line.n_bytes > 0) {
            buf_put(&s->line, bytes, n);
            take_line(s, s->line.data, s->line.n_bytes);
            buf_clear(&s->line);
        } else {
            take_line(s, bytes, n);
        }
        bytes = nl + 1;
        n_bytes -= n + 1;
    }
}
