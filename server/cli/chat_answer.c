// SPDX-License-Identifier: Apache-2.0
/* One answer while it arrives: server-sent events become text on the terminal, reasoning in another
 * colour, tool calls, and statistics at the end. */
#include "server/cli/chat_answer.h"

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/optional.h"
#include "engine/base/utf8.h"

#include <stdio.h>
#include <string.h>

#define DIM "\033[2m"
#define PLAIN "\033[0m"

enum { MAX_TEXT_BYTES = 64 << 20, MAX_RAW_BYTES = 1 << 20, AT_ONCE_MS = 50 };

static void on_data(void *arg, const char *data, size_t n_bytes);

void chat_answer_init(struct chat_answer *a, bool terminal)
{
    memset(a, 0, sizeof *a);
    a->terminal = terminal;
    a->begin_ns = clock_now_ns();
    a->at_line_begin = true;
    buf_init(&a->text, MAX_TEXT_BYTES);
    buf_init(&a->error, MAX_RAW_BYTES);
    buf_init(&a->raw, MAX_RAW_BYTES);
    sse_init(&a->lines, on_data, a);
}

void chat_answer_deinit(struct chat_answer *a)
{
    for (int i = 0; i < a->n_calls; i++) {
        buf_deinit(&a->calls[i].id);
        buf_deinit(&a->calls[i].name);
        buf_deinit(&a->calls[i].arguments);
    }
    buf_deinit(&a->text);
    buf_deinit(&a->error);
    buf_deinit(&a->raw);
    sse_deinit(&a->lines);
}

/* ---- showing ------------------------------------------------------------------------------------
 */

/* True for the C0, DEL and C1 controls, which a terminal would interpret. */
static bool is_control(uint32_t cp)
{
    return (cp < 0x20 && cp != '\n' && cp != '\t') || (cp >= 0x7F && cp < 0xA0);
}

/* Strips control characters for a terminal; a pipe gets the text unchanged. */
static void show(struct chat_answer *a, const char *s, size_t n)
{
    if (n > 0) {
        a->at_line_begin = s[n - 1] == '\n';
    }
    if (!a->terminal) {
        fwrite(s, 1, n, stdout);
        return;
    }
    while (n > 0) {
        uint32_t cp = 0;
        const size_t used = utf8_decode(s, n, &cp);
        if (used > 0 && !is_control(cp)) {
            fwrite(s, 1, used, stdout);
        }
        s += used > 0 ? used : 1;
        n -= used > 0 ? used : 1;
    }
}

static void end_line(struct chat_answer *a)
{
    if (!a->at_line_begin) {
        fputs("\n", stdout);
        a->at_line_begin = true;
    }
}

/* Shows text of a kind. On a terminal, reasoning is dimmed and ends with a line break; a pipe gets
 * only the answer. */
static void show_as(struct chat_answer *a, int kind, const char *s)
{
    if (!*s || (kind == SHOWN_REASONING && !a->terminal)) {
        return;
    }
    if (a->shown == SHOWN_REASONING && kind != SHOWN_REASONING) {
        fputs(PLAIN, stdout);
        end_line(a);
    } else if (kind == SHOWN_REASONING && a->shown != SHOWN_REASONING) {
        end_line(a);
        fputs(DIM, stdout);
    }
    a->shown = kind;
    show(a, s, strlen(s));
}

/* ---- events -------------------------------------------------------------------------------------
 */

/* Calls arrive in pieces, numbered by index; a new index must be the next one, so that a
 * server cannot make the list grow without limit. */
static struct chat_tool_call *call_at(struct chat_answer *a, int64_t index)
{
    if (index < 0 || index > a->n_calls || index >= CHAT_MAX_CALLS) {
        return NULL;
    }
    struct chat_tool_call *call = &a->calls[index];
    if (index == a->n_calls) {
        a->n_calls++;
        buf_init(&call->id, 1 << 16);
        buf_init(&call->name, 1 << 16);
        buf_init(&call->arguments, MAX_TEXT_BYTES);
    }
    return call;
}

static void put_string(struct buf *to, const struct json *object, const char *key)
{
    const char *s = json_get_string(object, key);
    if (s) {
        buf_puts(to, s);
    }
}

/* Each piece appends to the call's id, name or arguments. */
static void take_calls(struct chat_answer *a, const struct json *list)
{
    for (const struct json *j = json_first(list); j; j = json_next(j)) {
        struct chat_tool_call *call = call_at(a, json_get_int(j, "index", a->n_calls));
        const struct json *function = json_get(j, "function");
        if (call) {
            put_string(&call->id, j, "id");
            put_string(&call->name, function, "name");
            put_string(&call->arguments, function, "arguments");
        }
    }
}

/* Servers send reasoning under one of two names; both are shown. */
static void take_delta(struct chat_answer *a, const struct json *delta)
{
    const char *reasoning = json_get_string(delta, "reasoning");
    const char *text = json_get_string(delta, "content");
    const struct json *calls = json_get(delta, "tool_calls");
    if (!reasoning) {
        reasoning = json_get_string(delta, "reasoning_content");
    }
    if ((reasoning && *reasoning) || (text && *text) || json_count(calls) > 0) {
        a->last_ns = clock_now_ns();
        if (!a->first_ns) {
            a->first_ns = a->last_ns;
        }
        a->n_events++;
    }
    show_as(a, SHOWN_REASONING, or_empty(reasoning));
    if (text) {
        buf_puts(&a->text, text);
        show_as(a, SHOWN_TEXT, text);
    }
    if (json_is(calls, JSON_ARRAY)) {
        take_calls(a, calls);
    }
    fflush(stdout);
}

/* {"error": {"message": "..."}}, or the error as a string, as some servers send it. */
static bool take_error(struct chat_answer *a, const struct json *root)
{
    const struct json *error = json_get(root, "error");
    const char *message = json_string(error);
    if (!message) {
        message = json_get_string(error, "message");
    }
    if (message && a->error.n_bytes == 0) {
        buf_puts(&a->error, message);
    }
    return message != NULL;
}

/* Processes one event. If its data is not JSON, or is an error object, it is kept for the error
 * message at the end. */
static void on_data(void *arg, const char *data, size_t n_bytes)
{
    struct chat_answer *a = arg;
    struct json *root = NULL;
    if (n_bytes >= 6 && memcmp(data, "[DONE]", 6) == 0) {
        return;
    }
    if (json_parse(data, n_bytes, NULL, &root, NULL) == OK && !take_error(a, root)) {
        const struct json *choice = json_first(json_get(root, "choices"));
        const char *finish = json_get_string(choice, "finish_reason");
        a->n_tokens = json_get_int(json_get(root, "usage"), "completion_tokens", a->n_tokens);
        take_delta(a, json_get(choice, "delta"));
        if (finish) {
            snprintf(a->finish, sizeof a->finish, "%s", finish);
        }
    }
    json_free(root);
}

void chat_answer_feed(void *answer, const char *bytes, size_t n_bytes)
{
    struct chat_answer *a = answer;
    if (a->status == 200) {
        sse_feed(&a->lines, bytes, n_bytes);
    } else {
        buf_put(&a->raw, bytes, n_bytes);
    }
}

/* ---- the end ------------------------------------------------------------------------------------
 */

/* Stores the error message, if there was an error. */
static void settle_error(struct chat_answer *a)
{
    struct json *root = NULL;
    if (a->status != 200 && a->status != 0) {
        const char *raw = or_empty(a->raw.data);
        if (json_parse(raw, a->raw.n_bytes, NULL, &root, NULL) != OK || !take_error(a, root)) {
            buf_printf(&a->error, "the server answered with status %d", a->status);
        }
        json_free(root);
    } else if (a->lines.line.failed) {
        buf_puts(&a->error, "an event of the server's stream is too long");
    }
}

/* Shows the calls. They are not executed, but the user may type their results. */
static void show_calls(struct chat_answer *a)
{
    for (int i = 0; i < a->n_calls; i++) {
        const struct chat_tool_call *call = &a->calls[i];
        fputs("[tool call] ", stdout);
        show(a, or_empty(call->name.data), call->name.n_bytes);
        fputs(" ", stdout);
        show(a, or_empty(call->arguments.data), call->arguments.n_bytes);
        end_line(a);
    }
}

/* Tokens per second are measured from the first to the last token, without the time to the first
 * token. If everything arrived at once, they are measured over the whole time. */
static void show_figures(const struct chat_answer *a)
{
    const int64_t n = a->n_tokens > 0 ? a->n_tokens : a->n_events;
    const bool at_once = a->last_ns - a->first_ns < AT_ONCE_MS * 1000000;
    const int64_t from = at_once ? a->begin_ns : a->first_ns;
    printf(DIM "[%lld token%s, %.1f tokens/s, first after %.0f ms%s]" PLAIN "\n", (long long)n,
           n == 1 ? "" : "s", (double)(at_once ? n : n - 1) * 1e9 / (double)(a->last_ns - from),
           (double)(a->first_ns - a->begin_ns) * 1e-6,
           text_if(strcmp(a->finish, "length") == 0, ", cut at the token limit"));
}

/* Ends an unfinished line or colour on the terminal. Statistics are shown to people only. */
void chat_answer_end(struct chat_answer *a)
{
    if (a->shown == SHOWN_REASONING) {
        fputs(PLAIN, stdout);
    }
    end_line(a);
    settle_error(a);
    show_calls(a);
    if (a->terminal && a->first_ns) {
        show_figures(a);
    }
    fflush(stdout);
}

static void put_text(struct buf *out, const struct buf *text)
{
    buf_put_json(out, or_empty(text->data), text->n_bytes);
}

/* Appends the answer as a message of the next request; false if the answer is empty. */
bool chat_answer_put(const struct chat_answer *a, struct buf *message)
{
    if (a->text.n_bytes == 0 && a->n_calls == 0) {
        return false;
    }
    buf_puts(message, "{\"role\":\"assistant\",\"content\":");
    put_text(message, &a->text);
    for (int i = 0; i < a->n_calls; i++) {
        if (i) {
            buf_puts(message, ",");
        } else {
            buf_puts(message, ",\"tool_calls\":[");
        }
        buf_puts(message, "{\"id\":");
        put_text(message, &a->calls[i].id);
        buf_puts(message, ",\"type\":\"function\",\"function\":{\"name\":");
        put_text(message, &a->calls[i].name);
        buf_puts(message, ",\"arguments\":");
        put_text(message, &a->calls[i].arguments);
        buf_puts(message, "}}");
    }
    if (a->n_calls) {
        buf_puts(message, "]}");
    } else {
        buf_puts(message, "}");
    }
    return true;
}
