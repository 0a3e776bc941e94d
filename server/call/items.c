// SPDX-License-Identifier: Apache-2.0
/* Items of conversations: checking them, and splitting a list into texts with ids, the form in
 * which they are stored. */
#include "server/call/items.h"
#include "engine/base/optional.h"

#include "engine/base/mem.h"
#include "engine/base/words.h"
#include "server/call/convert.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BYTES = 64 << 20 };

static const char kinds[] = "message|function_call|function_call_output|custom_tool_call|"
                            "custom_tool_call_output|reasoning|compaction";

static const char *kind_of(const struct json *item)
{
    const char *type = json_get_string(item, "type");
    return or_text(type, "message");
}

/* Checks a message's role and content; other kinds of items have rows below. */
static bool message_check(const struct json *item, const char *place, struct call_error *e)
{
    const char *role = json_get_string(item, "role");
    const struct json *content = json_get(item, "content");
    if (!role || words_find("user|assistant|system|developer", role) < 0) {
        return call_error_set(e, 400, "invalid_value", place,
                              "Invalid '%s': a message must have the role 'user', 'assistant', "
                              "'system' or 'developer'.",
                              place);
    }
    if (!json_is(content, JSON_STRING) && !json_is(content, JSON_ARRAY)) {
        return call_error_set(
            e, 400, "invalid_type", place,
            "Invalid '%s': the content of a message must be a string or an array.", place);
    }
    return true;
}

/* The first item that is invalid is named by its index. */
bool items_check(const struct json *array, const char *param, struct call_error *e)
{
    char place[64];
    size_t i = 0;
    for (const struct json *item = json_first(array); item; item = json_next(item), i++) {
        snprintf(place, sizeof place, "%s[%zu]", param, i);
        if (!json_is(item, JSON_OBJECT)) {
            return call_error_set(e, 400, "invalid_type", place,
                                  "Invalid '%s': expected an object.", place);
        }
        const char *kind = kind_of(item);
        enum json_type type = json_type(json_get(item, "type"));
        if (type != JSON_NULL && type != JSON_STRING) {
            return call_error_set(e, 400, "invalid_type", place,
                                  "Invalid '%s': expected a string as its 'type'.", place);
        }
        if (words_find(kinds, kind) < 0) {
            return call_error_set(e, 400, "unsupported_value", place,
                                  "Unsupported value: items of type '%.40s' are not supported by "
                                  "this server.",
                                  kind);
        }
        if (strcmp(kind, "message") == 0 && !message_check(item, place, e)) {
            return false;
        }
        if (strcmp(kind, "compaction") == 0 && !json_get_string(item, "encrypted_content")) {
            return call_error_set(e, 400, "invalid_value", place,
                                  "Invalid '%s': a compaction must have 'encrypted_content'.",
                                  place);
        }
    }
    return true;
}

/* Names an item: keeps the client's id if it fits and has no U+0000, otherwise makes one with the
 * prefix of the item's kind. */
static void name(char id[STORE_ITEM_ID_BYTES], const struct json *item, const struct stand_in *nul)
{
    static const char *const prefixes[] = {"msg_", "fc_", "fco_", "ctc_", "ctco_", "rs_", "cmp_"};
    const char *own = json_get_string(item, "id");
    int kind = words_find(kinds, kind_of(item));
    const bool has_nul = own && nul->utf8[0] && strstr(own, nul->utf8);
    if (own && *own && strlen(own) < STORE_ITEM_ID_BYTES && !has_nul) {
        snprintf(id, STORE_ITEM_ID_BYTES, "%s", own);
    } else {
        store_item_id(id, kind < 0 ? "item_" : prefixes[kind]);
    }
}

/* Writes an item in its long form, with all members that clients' types require. */
static bool put(struct stored_item *to, const struct json *item, const struct stand_in *nul)
{
    struct buf text;
    name(to->id, item, nul);
    buf_init(&to->text, MAX_BYTES);
    buf_puts(&to->text, "{\"id\":");
    convert_text(&to->text, to->id);
    if (!json_get(item, "status") && strcmp(kind_of(item), "reasoning") != 0) {
        buf_puts(&to->text, ",\"status\":\"completed\"");
    }
    buf_init(&text, MAX_BYTES);
    convert_item_but_id(&text, item);
    buf_putc(&to->text, ',');
    buf_put(&to->text, text.data + 1, text.n_bytes - 1); // without the opening brace
    to->text.failed |= text.failed;
    buf_deinit(&text);
    stand_in_put_back(nul, &to->text);
    return !to->text.failed;
}

bool items_take(const struct json *array, const struct stand_in *nul, struct stored_item **items,
                size_t *n)
{
    bool good = true;
    *items = xrealloc(*items, (*n + json_count(array) + 1) * sizeof **items);
    for (const struct json *item = json_first(array); good && item; item = json_next(item)) {
        good = put(&(*items)[(*n)++], item, nul);
    }
    return good;
}

/* The input and output of a response are kept as text without brackets. */
struct json *items_parse(const char *joined, size_t n_bytes, struct stand_in *nul)
{
    const struct json_limits limits = {.max_depth = 256};
    struct json *array = NULL;
    struct buf b;
    *nul = (struct stand_in){.utf8 = ""};
    buf_init(&b, (size_t)MAX_BYTES * 2);
    buf_putc(&b, '[');
    buf_put(&b, joined, n_bytes);
    buf_putc(&b, ']');
    bool good = !b.failed;
    if (good && stand_in_find_nul(b.data, b.n_bytes)) {
        good = stand_in_choose(nul, b.data, b.n_bytes);
        stand_in_hide(nul, b.data, b.n_bytes);
    }
    if (!good || json_parse(b.data, b.n_bytes, &limits, &array, NULL) != OK) {
        array = NULL;
    }
    buf_deinit(&b);
    return array;
}

bool items_take_text(const char *joined, size_t n_bytes, struct stored_item **items, size_t *n)
{
    struct stand_in nul;
    struct json *array = items_parse(joined, n_bytes, &nul);
    const bool good = array && items_take(array, &nul, items, n);
    json_free(array);
    return good;
}
