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

const struct tool_parser *output_reasoning_parser(enum reasoning_kind kind)
{
    return kinds[kind].parser;
}

void output_split_init(struct output *o)
{
    const struct output_options *opt = o->options;
    bool is_ours = opt->reasoning != REASONING_NONE && !kinds[opt->reasoning].parser;
    o->reasoning_state = !is_ours ? REST : opt->starts_in_reasoning ? OPENED : BEFORE;
    o->in_reasoning = o->reasoning_state == OPENED;
}

/* 1: the held text begins with word; 0: it may yet; -1: no. */
static int begins(const struct output *o, size_t at, const char *word, bool final)
{
    size_t n = strlen(word), held = o->split.n_bytes - at;
    if (held >= n) {
        return memcmp(o->split.data + at, word, n) == 0 ? 1 : -1;
    }
    return !final && memcmp(o->split.data + at, word, held) == 0 ? 0 : -1;
}

static size_t spaces(struct output *o)
{
    while (o->n_blank < o->split.n_bytes && is_space(o->split.data[o->n_blank])) {
        o->n_blank++;
    }
    return o->n_blank;
}

static void consume(struct output *o, size_t n_bytes)
{
    buf_consume(&o->split, n_bytes);
    o->n_blank = 0;
}

/* BEFORE and OPENED: white space, then perhaps the open marker. True: go on in a new state. */
static bool at_open(struct output *o, bool final)
{
    size_t skip = spaces(o);
    if (skip == o->split.n_bytes && !final) {
        return false;
    }
    const char *open = kinds[o->options->reasoning].open;
    int m = begins(o, skip, open, final);
    if (m == 0) {
        return false;
    }
    if (o->reasoning_state == OPENED) { // some models repeat the marker that the prompt has
        consume(o, skip + (m == 1 ? strlen(open) : 0));
        o->reasoning_state = m == 1 ? OPENED : INSIDE;
        return m != 1 || o->split.n_bytes > 0;
    }
    if (m == 1) {
        consume(o, skip + strlen(open));
        o->in_reasoning = true;
    }
    o->reasoning_state = m == 1 ? OPENED : REST;
    return true;
}

/* Reports reasoning up to the close marker; white space in front of that is dropped. */
static bool inside(struct output *o, bool final)
{
    const char *close = kinds[o->options->reasoning].close;
    size_t end = 0, i = o->n_blank;
    for (; i < o->split.n_bytes; i++) {
        int m = begins(o, i, close, final);
        if (m == 1) {
            o->sink.on_reasoning(o->sink.arg, o->split.data, end);
            consume(o, i + strlen(close));
            o->reasoning_state = CLOSED;
            o->in_reasoning = false;
            return true;
        }
        if (m == 0) {
            break;
        }
        end = is_space(o->split.data[i]) ? end : i + 1;
    }
    if (end > 0) {
        o->sink.on_reasoning(o->sink.arg, o->split.data, end);
        consume(o, end);
    }
    o->n_blank = i - end;
    return false;
}

void output_split(struct output *o, const char *text, size_t n_bytes, bool final)
{
    if (o->reasoning_state == REST) {
        output_content(o, text, n_bytes);
        return;
    }
    buf_put(&o->split, text, n_bytes);
    bool more = true;
    while (more) {
        more = false;
        if (o->reasoning_state == BEFORE || o->reasoning_state == OPENED) {
            more = at_open(o, final);
        } else if (o->reasoning_state == INSIDE) {
            more = inside(o, final);
        } else if (o->reasoning_state == CLOSED) {
            size_t skip = 0;
            while (skip < o->split.n_bytes &&
                   (o->split.data[skip] == '\n' || o->split.data[skip] == '\r')) {
                skip++;
            }
            buf_consume(&o->split, skip);
            o->reasoning_state = o->split.n_bytes > 0 ? REST : CLOSED;
        }
        if (o->reasoning_state == REST) {
            output_content(o, o->split.data ? o->split.data : "", o->split.n_bytes);
            buf_clear(&o->split);
            more = false;
        }
    }
}
