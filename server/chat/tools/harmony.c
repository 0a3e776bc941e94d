// SPDX-License-Identifier: Apache-2.0
/* GPT-OSS (Harmony): messages of the form <|start|>HEAD<|message|>TEXT, ended by <|end|>,
 * <|return|> or <|call|>. A head has a role and, in any order, a channel (<|channel|>final), a
 * recipient (to=functions.NAME) and the type of the text (<|constrain|>json, or the bare word). The
 * prompt ends with <|start|>assistant, so the output begins inside a head. Text in channel
 * "analysis" is reasoning; text to a function is a call's arguments; all other text is content:
 * channel "final", text before a call, messages to tools that are not the client's, and text
 * outside messages. */
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { BEGIN, OUTSIDE, HEAD, CONTENT, REASONING, CALL, ARGUMENTS };

enum marker { START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALLED, N_MARKERS };
static const char *const markers[] = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
                                      "<|end|>",   "<|return|>",  "<|call|>",    NULL};

/* Arbitrary: the longest part is the recipient, and names have fewer than 256 bytes. */
enum { HEAD_MAX_BYTES = 512 };

static int marker(char c)
{
    int m = (unsigned char)c - TOOL_MARK;
    if (m >= 0 && m < N_MARKERS) {
        return m;
    }
    return -1;
}

static const char *text_of(const struct buf *b)
{
    return or_empty(b->data);
}

/* Emits text of the message kind in `state`; messages of one kind are separated by line breaks. */
static void put(struct tool_parse *p, const char *text, size_t n_bytes)
{
    bool reasoning = p->state == REASONING && p->sink.on_reasoning != p->sink.on_text;
    void (*report)(void *arg, const char *s, size_t n) =
        reasoning ? p->sink.on_reasoning : p->sink.on_text;
    bool *said = reasoning ? &p->has_reasoning : &p->has_text;
    if (n_bytes == 0) {
        return;
    }
    if (*said && p->fresh) {
        report(p->sink.arg, "\n", 1);
    }
    if (p->in_items) {
        p->has_text = p->has_reasoning = false;
    }
    *said = true;
    p->fresh = false;
    report(p->sink.arg, text, n_bytes);
}

/* ---- heads ------------------------------------------------------------------------------------
 */

/* A word of a head, with the marker that tells its meaning. */
struct word {
    const char *text;
    size_t n_bytes;
    int after; // index of the marker directly before it, or -1
};

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The next word of the head [s, end); *s moves past it. */
static bool next_word(const char **s, const char *end, struct word *w)
{
    for (w->after = -1; *s < end && (is_space(**s) || marker(**s) >= 0); (*s)++) {
        if (marker(**s) >= 0) {
            w->after = marker(**s);
        }
    }
    for (w->text = *s; *s < end && !is_space(**s) && marker(**s) < 0; (*s)++) {
    }
    w->n_bytes = (size_t)(*s - w->text);
    return w->n_bytes > 0;
}

/* True for a word of the format. cut: the text ends in this word, so the beginning of a known word
 * is enough. */
static bool is_known(const struct word *w, bool cut)
{
    static const char *const words[] = {"assistant", "analysis", "commentary",  "final",
                                        "json",      "code",     "to=assistant"};
    static const char recipient[] = "to=functions.";
    const size_t n_recipient = sizeof recipient - 1;
    size_t n = lesser(w->n_bytes, n_recipient);
    if (memcmp(w->text, recipient, n) == 0 && (cut || n == n_recipient)) {
        return true;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        n = strlen(words[i]);
        bool fits = w->n_bytes == n || (cut && w->n_bytes < n);
        if (fits && memcmp(w->text, words[i], w->n_bytes) == 0) {
            return true;
        }
    }
    return false;
}

/* [at, scan) looked like a head, but no message followed: it is content, unless it only consists of
 * the format's own words. `cut`: the last word may be incomplete. */
static bool give_up(struct tool_parse *p, bool cut)
{
    const char *s = p->held.data + p->at, *end = p->held.data + p->scan;
    bool framing = marker(*s) >= 0 && p->scan - p->at < HEAD_MAX_BYTES;
    struct word w;
    for (const char *at = s; framing && next_word(&at, end, &w);) {
        framing = is_known(&w, cut && at == end);
    }
    p->state = OUTSIDE;
    p->fresh = true;
    while (!framing && s < end) {
        const char *from = s;
        while (s < end && marker(*s) < 0) {
            s++;
        }
        put(p, from, (size_t)(s - from));
        s += s < end;
    }
    tool_commit(p);
    return true;
}

/* True if the recipient in `name` is one of the client's functions; `name` becomes the function's
 * name. */
static bool is_function(struct tool_parse *p)
{
    static const char prefix[] = "functions.";
    const size_t n = sizeof prefix - 1;
    if (!p->tools || p->name.failed || p->name.n_bytes == 0) {
        return false;
    }
    if (strncmp(p->name.data, prefix, n) != 0) {
        return tool_function(p->tools, p->name.data) != NULL;
    }
    buf_consume(&p->name, n);
    return p->name.n_bytes > 0;
}

/* [at, scan) is a head, and a message begins. Of several channels the last one counts. */
static bool open_message(struct tool_parse *p)
{
    const char *s = p->held.data + p->at, *end = p->held.data + p->scan;
    bool reasoning = false;
    struct word w;
    buf_clear(&p->name);
    while (next_word(&s, end, &w)) {
        if (w.after == CHANNEL) {
            reasoning = w.n_bytes == 8 && memcmp(w.text, "analysis", 8) == 0;
        } else if (w.n_bytes > 3 && memcmp(w.text, "to=", 3) == 0 &&
                   !(w.n_bytes == 12 && memcmp(w.text, "to=assistant", 12) == 0)) {
            buf_clear(&p->name);
            buf_put(&p->name, w.text + 3, w.n_bytes - 3);
        }
    }
    p->scan++; // <|message|>
    tool_commit(p);
    p->fresh = true;
    p->otherwise = reasoning ? REASONING : CONTENT;
    p->state = is_function(p) ? CALL : p->otherwise;
    return true;
}

/* Heads are printable ASCII of limited length; anything else is text that the model wrote. */
static bool head(struct tool_parse *p, bool final)
{
    for (; tool_n_held(p) > 0; p->scan++) {
        char c = *tool_held(p);
        int m = marker(c);
        if (m == MESSAGE) {
            return open_message(p);
        }
        bool good = m == CHANNEL || m == CONSTRAIN || (c >= ' ' && c <= '~') || is_space(c);
        if (!good || p->scan - p->at >= HEAD_MAX_BYTES) {
            return give_up(p, false);
        }
    }
    return final && p->scan > p->at && give_up(p, true);
}

/* ---- messages ---------------------------------------------------------------------------------
 */

/* Start of the output. It is inside a head, unless it continues an earlier text. */
static bool begin(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    enum tool_match m = tool_match(p, "to=", final);
    if (tool_n_held(p) == 0 || m == MATCH_MAYBE) {
        return false;
    }
    if (m == MATCH_YES) {
        p->state = HEAD;
    } else {
        p->state = marker(*tool_held(p)) >= 0 ? OUTSIDE : CONTENT;
    }
    p->scan = p->at;
    return true;
}

/* Between messages: markers without a message are dropped, text is content. */
static bool outside(struct tool_parse *p, bool final)
{
    static const char words[N_MARKERS][2] = {
        {(char)(TOOL_MARK + START)},   {(char)(TOOL_MARK + CHANNEL)},
        {(char)(TOOL_MARK + MESSAGE)}, {(char)(TOOL_MARK + CONSTRAIN)},
        {(char)(TOOL_MARK + END)},     {(char)(TOOL_MARK + RETURN)},
        {(char)(TOOL_MARK + CALLED)},
    };
    const char *const list[] = {words[START], words[CHANNEL], words[MESSAGE], words[CONSTRAIN],
                                words[END],   words[RETURN],  words[CALLED],  NULL};
    int which;
    if (!tool_find(p, list, true, final, &which)) {
        return false;
    }
    p->scan--; // a marker is a single byte, and belongs to the head that it begins
    tool_commit(p);
    if (which == MESSAGE) { // a message without a head
        return open_message(p);
    }
    p->scan++;
    if (which == START || which == CHANNEL) {
        p->state = HEAD;
    } else {
        tool_commit(p);
    }
    return true;
}

/* Passes on text up to a marker. */
static bool text(struct tool_parse *p)
{
    const char *s = tool_held(p);
    size_t n = 0, held = tool_n_held(p);
    while (n < held && marker(s[n]) < 0) {
        n++;
    }
    put(p, s, n);
    p->scan += n;
    tool_commit(p);
    if (n == held) {
        return false;
    }
    int m = marker(*tool_held(p));
    if (m != START && m != CHANNEL) { // these start the next message
        p->scan++;
        tool_commit(p);
    }
    if (m != MESSAGE && m != CONSTRAIN) { // these have no meaning inside a text
        p->state = OUTSIDE;
    }
    return true;
}

/* The arguments are an object, or empty. Other text is not a call. */
static bool call(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    tool_commit(p);
    bool none = tool_n_held(p) == 0;
    if (none && !final) {
        return false;
    }
    bool object = !none && *tool_held(p) == '{';
    if (!none && !object && marker(*tool_held(p)) < 0) {
        p->state = p->otherwise;
        return true;
    }
    tool_begin(p, p->name.data, "");
    if (p->in_items) {
        p->has_text = p->has_reasoning = false;
    }
    tool_object_begin(p);
    p->state = ARGUMENTS;
    if (!object) {
        tool_end(p);
        p->state = OUTSIDE;
    }
    return true;
}

/* Arguments end with their outermost bracket; text between that and the next marker is
 * content. */
static bool arguments(struct tool_parse *p)
{
    bool over = false;
    while (!over && tool_n_held(p) > 0) {
        over = marker(*tool_held(p)) >= 0;
        if (!over) {
            over = tool_closes(p, *tool_held(p));
            p->scan++;
        }
    }
    tool_arguments(p, text_of(&p->held) + p->at, p->scan - p->at);
    tool_commit(p);
    if (over) {
        tool_end(p);
        p->state = OUTSIDE;
    }
    return over;
}

static bool step(struct tool_parse *p, bool final)
{
    bool more = false;
    switch (p->state) {
    case BEGIN: more = begin(p, final); break;
    case OUTSIDE: more = outside(p, final); break;
    case HEAD: more = head(p, final); break;
    case CONTENT:
    case REASONING: more = text(p); break;
    case CALL: more = call(p, final); break;
    default: more = arguments(p); break;
    }
    p->in_reasoning = p->state == REASONING;
    return more;
}

static const struct tool_writing writing = {
    .call = "<|channel|>commentary to=functions.",
    .name_end = " <|constrain|>json<|message|>",
    .once = true,
};
const struct tool_parser tool_parser_harmony = {
    .name = "harmony",
    .step = step,
    .markers = markers,
    .exact = true,
    .writing = &writing,
    .reasoning = "\xf9"
                 "analysis"
                 "\xfa", // CHANNEL and MESSAGE
};
