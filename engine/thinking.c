// SPDX-License-Identifier: Apache-2.0
#include "engine/thinking.h"

#include <string.h>

/* Reasoning has n tokens so far. If that is the limit, its end is forced from here on. */
static void enter(const struct thinking_limit *l, struct thinking *t, int32_t n)
{
    t->phase = n >= l->most ? THINKING_ENDING : THINKING_INSIDE;
    t->n = t->phase == THINKING_ENDING ? 0 : n;
}

struct thinking thinking_start(const struct thinking_limit *l)
{
    struct thinking t = {.phase = THINKING_BEFORE};
    if (l->opened) {
        enter(l, &t, 0);
    }
    return t;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Looks for the channel's marker, whose first token occurs in it only once. */
static void open_channel(const struct thinking_limit *l, struct thinking *t, int32_t token)
{
    const struct token_marker *m = &l->channel;
    if (token == m->ids[t->n_channel]) {
        t->n_channel++;
    } else {
        t->n_channel = token == m->ids[0];
    }
    if (t->n_channel == m->n) {
        t->n_channel = 0;
        enter(l, t, t->n_spent);
    }
}

/* The reasoning has ended, after n_spent tokens. */
static void leave(const struct thinking_limit *l, struct thinking *t, int32_t n_spent)
{
    t->phase = l->channel.n > 0 ? THINKING_BEFORE : THINKING_OVER;
    t->n_spent = n_spent;
}

/* Looks for a marker that opens reasoning. Only white space may come before it in the answer. */
static void open(const struct thinking_limit *l, struct thinking *t, int32_t token)
{
    size_t n_bytes = 0;
    const char *bytes = grammar_token_bytes(l->vocab, token, &n_bytes);
    bool may_open = false;
    for (int32_t k = 0; k < l->n_opens; k++) {
        const struct text_marker *m = &l->opens[k];
        size_t *n = &t->n_opened[k], length = strlen(m->text), i = 0;
        while (*n == 0 && i < n_bytes && is_space(bytes[i])) {
            i++;
        }
        bool dead = *n == SIZE_MAX || (n_bytes == 0 && token != m->id);
        for (; !dead && i < n_bytes && *n < length; i++) {
            dead = bytes[i] != m->text[*n];
            *n += !dead;
        }
        if (!dead && (token == m->id || *n == length)) {
            enter(l, t, 0);
            return;
        }
        *n = dead ? SIZE_MAX : *n;
        may_open |= !dead;
    }
    if (!may_open) {
        t->phase = THINKING_OVER;
    }
}

static bool closes(const struct thinking_limit *l, struct thinking *t, int32_t token)
{
    bool closed = false;
    for (int32_t k = 0; k < l->n_closes; k++) {
        closed |= marker_search(&l->closes[k], l->vocab, &t->n_closed[k], token) != MARKER_NONE;
    }
    return closed;
}

static const struct token_marker *end_of(const struct thinking_limit *l, const struct thinking *t)
{
    return t->n_ends > 0 ? &l->last_end : &l->end;
}

void thinking_take(const struct thinking_limit *l, struct thinking *t, int32_t token)
{
    t->n_seen++;
    switch (t->phase) {
    case THINKING_BEFORE:
        if (l->channel.n > 0) {
            open_channel(l, t, token);
        } else {
            open(l, t, token);
        }
        break;
    case THINKING_INSIDE:
        if (closes(l, t, token)) {
            leave(l, t, t->n);
        } else {
            enter(l, t, t->n + 1);
        }
        break;
    case THINKING_ENDING:
        if (token != end_of(l, t)->ids[t->n] || ++t->n == end_of(l, t)->n) {
            leave(l, t, l->most);
            t->n_ends++;
        }
        break;
    default: break;
    }
}

int32_t thinking_forced(const struct thinking_limit *l, const struct thinking *t)
{
    return t->phase == THINKING_ENDING ? end_of(l, t)->ids[t->n] : -1;
}

bool thinking_is_free(const struct thinking_limit *l, const struct thinking *t, int32_t n)
{
    switch (t->phase) {
    case THINKING_BEFORE: return n - (l->channel.n - t->n_channel) <= l->most - t->n_spent;
    case THINKING_INSIDE: return n <= l->most - t->n;
    case THINKING_ENDING: return false;
    default: return true;
    }
}
