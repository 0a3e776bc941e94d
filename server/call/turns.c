// SPDX-License-Identifier: Apache-2.0
/* Writes the messages that turns are converted to. */
#include "server/call/turns.h"

#include "engine/base/optional.h"
#include "server/call/convert.h"

#include <stdio.h>
#include <string.h>

const char *const turn_role_names[] = {"user", "assistant", "system"};

const char *turns_where_turn(struct turns *t, const char *field)
{
    snprintf(t->place, sizeof t->place, "messages[%zu]%s%s", t->turn, text_if(*field, "."), field);
    return t->place;
}

const char *turns_where(struct turns *t, const char *field)
{
    snprintf(t->place, sizeof t->place, "messages[%zu].content[%zu]%s%s", t->turn, t->block,
             text_if(*field, "."), field);
    return t->place;
}

void turns_open_message(struct turns *t, const char *role)
{
    if (t->out.n_bytes > 0) {
        buf_puts(&t->out, ",");
    }
    buf_printf(&t->out, "{\"role\":\"%s\",\"content\":", role);
}

static void put_assistant(struct turns *t)
{
    turns_open_message(t, "assistant");
    if (t->text.n_bytes == 0 && t->calls.n_bytes > 0) {
        buf_puts(&t->out, "null");
    } else {
        buf_put_json(&t->out, or_empty(t->text.data), t->text.n_bytes);
    }
    if (t->reasoning.n_bytes > 0) {
        buf_puts(&t->out, ",\"reasoning_content\":");
        buf_put_json(&t->out, t->reasoning.data, t->reasoning.n_bytes);
    }
    if (t->calls.n_bytes > 0) {
        buf_puts(&t->out, ",\"tool_calls\":[");
        buf_put(&t->out, t->calls.data, t->calls.n_bytes);
        buf_putc(&t->out, ']');
    }
    buf_putc(&t->out, '}');
}

/* A single part is written as a plain string, which every template accepts. */
static void put_parts(struct turns *t)
{
    turns_open_message(t, turn_role_names[t->role]);
    if (t->n_parts <= 1) {
        convert_text(&t->out, or_empty(t->only));
    } else {
        buf_putc(&t->out, '[');
        buf_put(&t->out, t->parts.data, t->parts.n_bytes);
        buf_putc(&t->out, ']');
    }
    buf_putc(&t->out, '}');
}

void turns_flush(struct turns *t)
{
    if (t->role == ROLE_ASSISTANT) {
        put_assistant(t);
    } else if (t->role != ROLE_NONE) {
        put_parts(t);
    }
    t->role = ROLE_NONE;
    buf_clear(&t->parts);
    buf_clear(&t->text);
    buf_clear(&t->reasoning);
    buf_clear(&t->calls);
    t->n_parts = 0;
    t->only = NULL;
}

void turns_become(struct turns *t, enum turn_role role)
{
    if (t->role != role) {
        turns_flush(t);
        t->role = role;
    }
}

static bool begins_with_any(const char *line, const struct string_list *prefixes)
{
    for (size_t i = 0; i < prefixes->n; i++) {
        if (strncmp(line, prefixes->items[i], strlen(prefixes->items[i])) == 0) {
            return true;
        }
    }
    return false;
}

void turns_put_stripped(struct request *r, struct buf *out, const char *text)
{
    size_t before = out->n_bytes;
    while (*text) {
        size_t n = strcspn(text, "\n");
        n += text[n] == '\n';
        if (begins_with_any(text, &r->model->config->strip_prompt_lines)) {
            r->n_stripped_lines++;
        } else {
            if (out->n_bytes == before && before > 0) {
                buf_putc(out, '\n'); // separates blocks
            }
            buf_put(out, text, n);
        }
        text += n;
    }
}

static void add_text(struct turns *t, enum turn_role role, const char *text)
{
    turns_become(t, role);
    if (role == ROLE_ASSISTANT) { // texts of the assistant are not separated by line breaks
        buf_puts(&t->text, text);
        return;
    }
    if (t->n_parts == 0) {
        t->only = text;
    }
    if (t->n_parts++) {
        buf_puts(&t->parts, ",");
    }
    buf_puts(&t->parts, "{\"type\":\"text\",\"text\":");
    convert_text(&t->parts, text);
    buf_putc(&t->parts, '}');
}

/* The same for a turn in the middle of the conversation; a part that becomes empty is left out. */
static bool add_system_text(struct turns *t, const char *text)
{
    struct request *r = t->r;
    struct buf kept;
    if (r->model->system_first) {
        turns_put_stripped(r, &t->system, text);
        return true;
    }
    int before = r->n_stripped_lines;
    buf_init(&kept, TURNS_MAX_BYTES);
    turns_put_stripped(r, &kept, text);
    if (r->n_stripped_lines > before) {
        text = arena_strndup(&r->arena, or_empty(kept.data), kept.n_bytes);
    }
    bool empty = r->n_stripped_lines > before && kept.n_bytes == 0;
    buf_deinit(&kept);
    if (text && !empty) {
        add_text(t, ROLE_SYSTEM, text);
    }
    return text || request_too_large(r);
}

bool turns_put_text(struct turns *t, enum turn_role role, const char *text)
{
    if (role == ROLE_SYSTEM) {
        return add_system_text(t, text);
    }
    add_text(t, role, text);
    return true;
}
