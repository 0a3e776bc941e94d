#include "server/chat/reasoning.h"

#include <string.h>

enum state {
    BEFORE, // nothing but white space yet: the open marker may come
    OPENED, // inside, nothing but white space yet
    INSIDE,
    CLOSED, // newlines behind the close marker are dropped
    REST,
};

/* In the order in which a template is searched for them. */
static const struct {
    const char *name, *open, *close;
    const struct tool_parser *parser; // finds it, as it is a part of that form
} kinds[] = {
    [REASONING_NONE] = {.name = "none"},
    [REASONING_HARMONY] = {.name = "harmony",
                           .open = "<|channel|>analysis<|message|>",
                           .parser = &tool_parser_harmony},
    [REASONING_THINK] = {.name = "think", .open = "<think>", .close = "</think>"},
    [REASONING_MISTRAL] = {.name = "mistral", .open = "[THINK]", .close = "[/THINK]"},
};

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool reasoning_find(const char *name, enum reasoning_kind *kind)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            *kind = (enum reasoning_kind)i;
            return true;
        }
    }
    return false;
}

enum reasoning_kind reasoning_for_template(const char *chat_template)
{
    for (int k = REASONING_NONE + 1; chat_template && k <= REASONING_MISTRAL; k++) {
        if (strstr(chat_template, kinds[k].open) ||
            (kinds[k].close && strstr(chat_template, kinds[k].close))) {
            return (enum reasoning_kind)k;
        }
    }
    return REASONING_NONE;
}

bool reasoning_is_open(enum reasoning_kind kind, const char *prompt, size_t n_bytes)
{
    if (kind == REASONING_NONE) {
        return false;
    }
    while (n_bytes > 0 && is_space(prompt[n_bytes - 1])) {
        n_bytes--;
    }
    size_t n = strlen(kinds[kind].open);
    return n_bytes >= n && memcmp(prompt + n_bytes - n, kinds[kind].open, n) == 0;
}

const struct tool_parser *reasoning_parser(enum reasoning_kind kind)
{
    return kinds[kind].parser;
}

bool reasoning_is_marker(enum reasoning_kind kind, const char *text)
{
    // the markers of one kind are text to the other, but models of both print them whole
    static const char *const markers[] = {"<think>", "</think>", "[THINK]", "[/THINK]"};
    for (size_t i = 0; kind != REASONING_NONE && i < sizeof markers / sizeof markers[0]; i++) {
        if (strcmp(markers[i], text) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- the split ---- */

enum { HELD_MAX_BYTES = 16 << 20 }; // chosen: a run of white space, or what may be a marker

void reasoning_split_init(struct reasoning_split *r, enum reasoning_kind kind, bool opened,
                          struct tool_sink sink)
{
    *r = (struct reasoning_split){.kind = kind, .state = REST, .sink = sink};
    buf_init(&r->held, HELD_MAX_BYTES);
    if (kind != REASONING_NONE && !kinds[kind].parser) {
        r->state = opened ? OPENED : BEFORE;
    }
    r->is_inside = r->state == OPENED;
}

void reasoning_split_deinit(struct reasoning_split *r)
{
    buf_deinit(&r->held);
}

static void put_rest(struct reasoning_split *r, const char *text, size_t n_bytes)
{
    if (n_bytes > 0) {
        r->sink.on_text(r->sink.arg, text, n_bytes);
    }
}

/* 1: the held text begins with word; 0: it may yet; -1: no. */
static int begins(const struct reasoning_split *r, size_t at, const char *word, bool final)
{
    size_t n = strlen(word), held = r->held.n_bytes - at;
    if (held >= n) {
        return memcmp(r->held.data + at, word, n) == 0 ? 1 : -1;
    }
    return !final && memcmp(r->held.data + at, word, held) == 0 ? 0 : -1;
}

static size_t spaces(struct reasoning_split *r)
{
    while (r->n_blank < r->held.n_bytes && is_space(r->held.data[r->n_blank])) {
        r->n_blank++;
    }
    return r->n_blank;
}

static void consume(struct reasoning_split *r, size_t n_bytes)
{
    buf_consume(&r->held, n_bytes);
    r->n_blank = 0;
}

/* BEFORE and OPENED: white space, then perhaps the open marker. True: go on in a new state. */
static bool at_open(struct reasoning_split *r, bool final)
{
    size_t skip = spaces(r);
    if (skip == r->held.n_bytes && !final) {
        return false;
    }
    const char *open = kinds[r->kind].open;
    int m = begins(r, skip, open, final);
    if (m == 0) {
        return false;
    }
    if (r->state == OPENED) { // some models repeat the marker that the prompt has
        consume(r, skip + (m == 1 ? strlen(open) : 0));
        r->state = m == 1 ? OPENED : INSIDE;
        return m != 1 || r->held.n_bytes > 0;
    }
    if (m == 1) {
        consume(r, skip + strlen(open));
        r->is_inside = true;
    }
    r->state = m == 1 ? OPENED : REST;
    return true;
}

/* Reports reasoning up to the close marker; white space in front of that is dropped. */
static bool inside(struct reasoning_split *r, bool final)
{
    const char *close = kinds[r->kind].close;
    size_t end = 0, i = r->n_blank;
    for (; i < r->held.n_bytes; i++) {
        int m = begins(r, i, close, final);
        if (m == 1) {
            r->sink.on_reasoning(r->sink.arg, r->held.data, end);
            consume(r, i + strlen(close));
            r->state = CLOSED;
            r->is_inside = false;
            return true;
        }
        if (m == 0) {
            break;
        }
        end = is_space(r->held.data[i]) ? end : i + 1;
    }
    if (end > 0) {
        r->sink.on_reasoning(r->sink.arg, r->held.data, end);
        consume(r, end);
    }
    r->n_blank = i - end;
    return false;
}

void reasoning_split_text(struct reasoning_split *r, const char *text, size_t n_bytes, bool final)
{
    if (r->state == REST) {
        put_rest(r, text, n_bytes);
        return;
    }
    buf_put(&r->held, text, n_bytes);
    bool more = true;
    while (more) {
        more = false;
        if (r->state == BEFORE || r->state == OPENED) {
            more = at_open(r, final);
        } else if (r->state == INSIDE) {
            more = inside(r, final);
        } else if (r->state == CLOSED) {
            size_t skip = 0;
            while (skip < r->held.n_bytes &&
                   (r->held.data[skip] == '\n' || r->held.data[skip] == '\r')) {
                skip++;
            }
            buf_consume(&r->held, skip);
            r->state = r->held.n_bytes > 0 ? REST : CLOSED;
        }
        if (r->state == REST) {
            put_rest(r, r->held.data, r->held.n_bytes);
            buf_clear(&r->held);
            more = false;
        }
    }
}
