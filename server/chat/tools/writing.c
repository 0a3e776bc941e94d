// SPDX-License-Identifier: Apache-2.0
#include "server/chat/tools/writing.h"
#include "engine/base/optional.h"

#include <string.h>

static const char *text_of(const char *text)
{
    return or_empty(text);
}

static void put_text(struct buf *out, const char *text)
{
    buf_put_json(out, text, strlen(text));
}

void tool_put_const(struct buf *out, const char *text)
{
    buf_puts(out, "{\"type\":\"const_string\",\"value\":");
    put_text(out, text);
    buf_putc(out, '}');
}

void tool_put_arguments(struct buf *out, const struct tool_writing *w,
                        const struct tool_to_write *tool)
{
    if (tool->text) {
        buf_puts(out,
                 "{\"type\":\"text_argument\",\"name\":\"" TOOL_TEXT_ARGUMENT "\",\"content\":");
        buf_puts(out, tool->text);
    } else {
        buf_puts(out, "{\"type\":\"json_schema\",\"only_object\":true,\"json_schema\":");
        if (tool->schema) {
            buf_put(out, tool->schema, tool->schema_bytes);
        } else {
            buf_puts(out, "{\"type\":\"object\"}");
        }
        buf_puts(out, tool->may_fail ? ",\"skip_names\":true" : "");
    }
    buf_puts(out, ",\"style\":");
    put_text(out, text_of(or_text(w->style, "json")));
    buf_putc(out, '}');
}

/* A tag whose "begin" is the text before the arguments, up to the first number in it. */
static void put_call(struct buf *out, const struct tool_writing *w,
                     const struct tool_to_write *tool)
{
    struct buf head;
    buf_init(&head, 1 << 16);
    if (w->head) {
        buf_puts(&head, w->head);
        buf_puts(&head, tool->name);
    }
    buf_puts(&head, w->call);
    buf_puts(&head, tool->name);
    buf_puts(&head, w->name_end);
    const char *at = head.data, *number = strstr(at, "%d");
    buf_puts(out, "{\"begin\":");
    buf_put_json(out, at, number ? (size_t)(number - at) : strlen(at));
    buf_puts(out, ",\"content\":");
    if (number) {
        buf_puts(out, "{\"type\":\"sequence\",\"elements\":[");
    }
    while (number) {
        at = number + 2;
        number = strstr(at, "%d");
        buf_puts(out, "{\"type\":\"regex\",\"pattern\":\"[0-9]{1,3}\"},"
                      "{\"type\":\"const_string\",\"value\":");
        buf_put_json(out, at, number ? (size_t)(number - at) : strlen(at));
        buf_puts(out, "},");
    }
    tool_put_arguments(out, w, tool);
    if (at != head.data) {
        buf_puts(out, "]}");
    }
    buf_puts(out, ",\"end\":");
    put_text(out, text_of(w->call_end));
    buf_putc(out, '}');
    buf_deinit(&head);
}

static void put_tags(struct buf *out, const struct tool_calls *c)
{
    buf_puts(out, "\"tags\":[");
    for (size_t i = 0; i < c->n_tools; i++) {
        if (i) {
            buf_puts(out, ",");
        }
        put_call(out, c->writing, &c->tools[i]);
    }
    buf_putc(out, ']');
}

static bool is_one(const struct tool_calls *c)
{
    return c->one || c->writing->once;
}

static void put_list(struct buf *out, const struct tool_calls *c)
{
    buf_puts(out, "{\"type\":\"tags_with_separator\",\"at_least_one\":true,\"stop_after_first\":");
    if (is_one(c)) {
        buf_puts(out, "true,\"separator\":");
    } else {
        buf_puts(out, "false,\"separator\":");
    }
    put_text(out, text_of(c->writing->between));
    buf_putc(out, ',');
    put_tags(out, c);
    buf_putc(out, '}');
}

void tool_put_calls(struct buf *out, const struct tool_calls *c)
{
    const struct tool_writing *w = c->writing;
    if (!w->open && !w->close) {
        put_list(out, c);
        return;
    }
    buf_puts(out, "{\"type\":\"tag\",\"begin\":");
    put_text(out, text_of(w->open));
    buf_puts(out, ",\"content\":");
    put_list(out, c);
    buf_puts(out, ",\"end\":");
    put_text(out, text_of(w->close));
    buf_putc(out, '}');
}

/* Writes the "excludes" of text, so that only a trigger can begin a call. */
static void put_bars(struct buf *out, const struct tool_writing *w)
{
    buf_puts(out, "\"excludes\":[");
    for (int i = 0; w->bars[i]; i++) {
        if (i) {
            buf_puts(out, ",");
        }
        put_text(out, w->bars[i]);
    }
    buf_putc(out, ']');
}

void tool_put_text_and_calls(struct buf *out, const struct tool_calls *c)
{
    const struct tool_writing *w = c->writing;
    if (!w->trigger) { // calls can only be at the start
        buf_puts(out, "{\"type\":\"or\",\"elements\":[");
        tool_put_calls(out, c);
        buf_puts(out, ",{\"type\":\"any_text\",\"starts_not\":");
        put_text(out, text_of(w->starts));
        buf_putc(out, ',');
        put_bars(out, w);
        buf_puts(out, "}]}");
        return;
    }
    buf_puts(out, "{\"type\":\"triggered_tags\",\"triggers\":[");
    put_text(out, w->trigger);
    buf_puts(out, "],");
    put_bars(out, w);
    if (is_one(c)) {
        buf_puts(out, ",\"stop_after_first\":true,");
    } else {
        buf_puts(out, ",");
    }
    if (w->open) {
        buf_puts(out, "\"tags\":[");
        tool_put_calls(out, c);
        buf_putc(out, ']');
    } else {
        put_tags(out, c);
    }
    buf_putc(out, '}');
}
