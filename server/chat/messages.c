// SPDX-License-Identifier: Apache-2.0
/* Adapts the messages of a request to a template. What the template supports is determined once, by
 * rendering small conversations with it (probes), and stored as its traits. Each request is
 * converted accordingly. */
#include "server/chat/messages.h"

#include "server/chat/jinja/json.h"
#include "server/chat/tools/writing.h"

#include <stdio.h>
#include <string.h>

/* A member of a message, for reading or replacing; NULL if the value is not an object or lacks the
 * member. */
static struct jv *field(struct jrt *rt, struct jv object, const char *key)
{
    struct jentry *e = NULL;
    if (object.type == JV_DICT) {
        e = jd_find_text(rt, object.u.dict, key, strlen(key));
    }
    return e ? &e->value : NULL;
}

static bool field_is(struct jrt *rt, struct jv object, const char *key, const char *value)
{
    const struct jv *v = field(rt, object, key);
    return v && v->type == JV_STR && js_flat(rt, v->u.s) && js_is(v->u.s, value);
}

/* ---- provenance ---- */

/* Roles that the API defines may form markers ('<|' + role + '|>'); others are text of the
 * user. */
static bool is_known_role(const struct jstr *s)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (js_is(s, roles[i])) {
            return true;
        }
    }
    return false;
}

static bool trust(struct jrt *rt, struct jv *v)
{
    struct jstr *s = js_new(rt, v->u.s->s, v->u.s->n_bytes, PROV_TEMPLATE);
    v->u.s = s;
    return s != NULL;
}

/* Marks strings within a value as trusted, down to the depth of content and tool calls. */
static bool trust_all(struct jrt *rt, struct jv *v, int nest)
{
    if (nest > JINJA_MAX_NEST) {
        return jrt_limit(rt, "a value is nested too deeply");
    }
    if (v->type == JV_STR) {
        return trust(rt, v);
    }
    for (size_t i = 0; v->type == JV_LIST && i < v->u.list->n; i++) {
        if (!trust_all(rt, &v->u.list->items[i], nest + 1)) {
            return false;
        }
    }
    for (size_t i = 0; v->type == JV_DICT && i < v->u.dict->n; i++) {
        if (!trust_all(rt, &v->u.dict->e[i].value, nest + 1)) {
            return false;
        }
    }
    return true;
}

static bool trust_message(struct jrt *rt, struct jv message, bool trust_assistant)
{
    struct jv *role = field(rt, message, "role");
    if (role && role->type == JV_STR && is_known_role(role->u.s) && !trust(rt, role)) {
        return false;
    }
    return !trust_assistant || !field_is(rt, message, "role", "assistant") ||
           trust_all(rt, &message, 0);
}

/* Marks roles as the template's own text, and assistant messages if requested; everything else
 * keeps its provenance. */
bool chat_trust_roles(struct jrt *rt, struct jv messages, bool trust_assistant)
{
    for (size_t i = 0; messages.type == JV_LIST && i < messages.u.list->n; i++) {
        if (!trust_message(rt, messages.u.list->items[i], trust_assistant)) {
            return false;
        }
    }
    return rt->st == OK;
}

/* ---- content ---- */

/* Renames a part's type to the one templates know: input_text, output_text and refusal are text,
 * too. */
static bool name_part(struct jrt *rt, struct jv part)
{
    const struct jv *refusal = NULL;
    if (field_is(rt, part, "type", "refusal")) {
        refusal = field(rt, part, "refusal");
    }
    if (!refusal && !field_is(rt, part, "type", "input_text") &&
        !field_is(rt, part, "type", "output_text")) {
        return true;
    }
    struct jstr *kind = js_lit(rt, "text");
    return kind && (!refusal || jd_set_lit(rt, part.u.dict, "text", *refusal)) &&
           jd_set_lit(rt, part.u.dict, "type", jv_str(kind));
}

static bool name_parts(struct jrt *rt, struct jv content)
{
    for (size_t i = 0; i < content.u.list->n; i++) {
        if (!name_part(rt, content.u.list->items[i])) {
            return false;
        }
    }
    return true;
}

static bool all_text_parts(struct jrt *rt, struct jv content)
{
    for (size_t i = 0; i < content.u.list->n; i++) {
        const struct jv *text = field(rt, content.u.list->items[i], "text");
        if (!text || text->type != JV_STR ||
            !field_is(rt, content.u.list->items[i], "type", "text")) {
            return false;
        }
    }
    return true;
}

/* Joins parts to one string. The newlines between them count as input. */
static bool flatten(struct jrt *rt, struct jv *content)
{
    if (!all_text_parts(rt, *content)) {
        return true; // images and similar parts: the template accepts or rejects them
    }
    struct jsb b;
    jsb_init(&b, rt);
    for (size_t i = 0; i < content->u.list->n; i++) {
        if (i > 0) {
            jsb_putc(&b, '\n', true);
        }
        jsb_put_str(&b, field(rt, content->u.list->items[i], "text")->u.s);
    }
    *content = jv_str(jsb_done(&b));
    return content->u.s != NULL;
}

/* A string becomes a list of one text part. */
static bool wrap(struct jrt *rt, struct jv *content)
{
    struct jdict *part = jd_new(rt);
    struct jlist *l = jlist_new(rt, 1);
    struct jstr *kind = js_lit(rt, "text");
    if (!part || !l || !kind || !jd_set_lit(rt, part, "type", jv_str(kind)) ||
        !jd_set_lit(rt, part, "text", *content)) {
        return false;
    }
    l->items[0] = jv_dict(part);
    *content = jv_list(l);
    return true;
}

/* Converts content to the form that the template prints: a string or parts, null or "". */
static bool shape_content(struct jrt *rt, struct jv message, const struct chat_traits *traits)
{
    struct jv *content = field(rt, message, "content");
    if (!content || content->type == JV_NONE) {
        if (!traits->null_is_empty) {
            return true;
        }
        struct jstr *empty = js_lit(rt, "");
        return empty && jd_set_lit(rt, message.u.dict, "content", jv_str(empty));
    }
    if (content->type == JV_LIST) {
        return name_parts(rt, *content) && (!traits->flatten_parts || flatten(rt, content));
    }
    if (content->type == JV_STR && traits->wrap_strings) {
        return wrap(rt, content);
    }
    return true;
}

/* ---- tool calls ---- */

static bool is_blank(const struct jstr *s)
{
    for (size_t i = 0; i < s->n_bytes; i++) {
        if (!strchr(" \t\r\n", s->s[i])) {
            return false;
        }
    }
    return true;
}

/* Converts arguments to the form that the template prints correctly: an object or JSON text. A text
 * that is not JSON stays unchanged, because a model may have written it. */
static bool shape_arguments(struct jrt *rt, struct jv *arguments, const struct chat_traits *traits)
{
    if (arguments->type == JV_STR && is_blank(arguments->u.s)) { // a call without parameters
        struct jdict *none = jd_new(rt);
        if (!none) {
            return false;
        }
        *arguments = jv_dict(none);
    }
    if (arguments->type == JV_STR && !traits->string_arguments) {
        struct jrt probe = *rt; // if the text is not JSON, the error stays in this copy
        struct jv object;
        const struct jstr *s = arguments->u.s;
        bool ok = jinja_from_json(&probe, s->s, s->n_bytes, s->prov, "arguments", &object);
        rt->arena = probe.arena;
        rt->steps_left = probe.steps_left;
        rt->steps_beyond = probe.steps_beyond;
        if (probe.st == ERR_LIMIT) {
            rt->st = probe.st;
            rt->err = probe.err;
            return false;
        }
        if (ok && object.type == JV_DICT) {
            *arguments = object;
        }
        return true;
    }
    if (arguments->type == JV_DICT && traits->string_arguments) {
        struct jjson_style style = {.comma = js_lit(rt, ", "), .colon = js_lit(rt, ": ")};
        struct jstr *s;
        if (rt->st != OK || !jinja_tojson(rt, *arguments, &style, &s)) {
            return false;
        }
        *arguments = jv_str(s);
    }
    return true;
}

/* Converts a custom tool's call, {"custom": {"name", "input"}}, to a function call with a single
 * text argument. */
static bool shape_custom(struct jrt *rt, struct jv call)
{
    const struct jv *custom = field(rt, call, "custom");
    const struct jv *name = custom ? field(rt, *custom, "name") : NULL;
    const struct jv *input = custom ? field(rt, *custom, "input") : NULL;
    if (!name || !input || field(rt, call, "function")) {
        return rt->st == OK;
    }
    struct jdict *function = jd_new(rt), *arguments = jd_new(rt);
    return function && arguments && jd_set_lit(rt, arguments, TOOL_TEXT_ARGUMENT, *input) &&
           jd_set_lit(rt, function, "name", *name) &&
           jd_set_lit(rt, function, "arguments", jv_dict(arguments)) &&
           jd_set_lit(rt, call.u.dict, "function", jv_dict(function));
}

static bool shape_calls(struct jrt *rt, struct jv message, const struct chat_traits *traits)
{
    const struct jv *calls = field(rt, message, "tool_calls");
    for (size_t i = 0; calls && calls->type == JV_LIST && i < calls->u.list->n; i++) {
        if (!shape_custom(rt, calls->u.list->items[i])) {
            return false;
        }
        const struct jv *function = field(rt, calls->u.list->items[i], "function");
        struct jv *arguments = function ? field(rt, *function, "arguments") : NULL;
        if (arguments && !shape_arguments(rt, arguments, traits)) {
            return false;
        }
    }
    return rt->st == OK;
}

/* The keys under which clients send an assistant's reasoning and templates look for it. */
static const char *const REASONING_KEYS[] = {"reasoning_content", "reasoning", "thinking"};
enum { N_REASONING_KEYS = sizeof REASONING_KEYS / sizeof REASONING_KEYS[0] };

static bool has_text(const struct jv *content)
{
    return content && ((content->type == JV_STR && content->u.s->n_bytes > 0) ||
                       (content->type == JV_LIST && content->u.list->n > 0));
}

/* Stores reasoning under the template's key as well as the client's. It may be null if a client
 * sends back a reply unchanged. */
static bool shape_reasoning(struct jrt *rt, struct jv message, const struct chat_traits *traits)
{
    const char *key = traits->reasoning_key;
    const struct jv *there = key ? field(rt, message, key) : NULL;
    if (!key || (there && there->type != JV_NONE) ||
        (traits->thought_or_text && has_text(field(rt, message, "content")) &&
         field(rt, message, "tool_calls"))) {
        return true;
    }
    for (size_t i = 0; i < N_REASONING_KEYS; i++) {
        const struct jv *reasoning = field(rt, message, REASONING_KEYS[i]);
        if (reasoning && reasoning->type == JV_STR) {
            return jd_set_lit(rt, message.u.dict, key, *reasoning);
        }
    }
    return true;
}

/* Calls that the template leaves out. The content is shaped once more, because there may have been
 * none before. */
static bool append_calls(struct jrt *rt, struct jv message, const struct chat_traits *traits)
{
    return !traits->calls ||
           (chat_write_calls(rt, message, traits->calls) && shape_content(rt, message, traits));
}

static bool shape_message(struct jrt *rt, struct jv message, const struct chat_traits *traits)
{
    if (message.type != JV_DICT) {
        return true;
    }
    if (traits->developer_is_system && field_is(rt, message, "role", "developer")) {
        struct jstr *system = js_lit(rt, "system");
        if (!system || !jd_set_lit(rt, message.u.dict, "role", jv_str(system))) {
            return false;
        }
    }
    return chat_shape_old_call(rt, message) && shape_reasoning(rt, message, traits) &&
           shape_content(rt, message, traits) && shape_calls(rt, message, traits) &&
           (!traits->short_ids || chat_shorten_ids(rt, message)) &&
           append_calls(rt, message, traits);
}

/* Changes messages in place, since they belong to this render. */
bool chat_shape(struct jrt *rt, struct jv messages, const struct chat_traits *traits,
                bool trust_assistant)
{
    for (size_t i = 0; messages.type == JV_LIST && i < messages.u.list->n; i++) {
        if (!shape_message(rt, messages.u.list->items[i], traits)) {
            return false;
        }
    }
    return chat_trust_roles(rt, messages, trust_assistant);
}

/* ---- probing ---- */

struct probe {
    const struct jinja_template *t;
    const struct chat_token *tokens;
    size_t n_tokens;
};

#define WORD "pr0be"
#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"tool_a\",\"description\":\"d\","             \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"pkey\":{\"type\":\"string\","           \
    "\"description\":\"d\"}},\"required\":[\"pkey\"]}}}]"
#define CALL_WITH_ID(id, content, arguments)                                                       \
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\"," content                      \
    "\"tool_calls\":[{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":"             \
    "\"tool_a\",\"arguments\":" arguments "}}]},{\"role\":\"tool\",\"tool_call_id\":"              \
    "\"" id "\",\"name\":\"tool_a\",\"content\":\"r\"}]"
#define CALL(content, arguments) CALL_WITH_ID("abcdefghi", content, arguments)

/* What a probe's output contains. */
enum {
    RENDERED = 1,
    HAS_WORD = 2,
    HAS_TYPE = 4,     // the part itself was printed instead of its text
    HAS_REPR_KEY = 8, // the arguments were printed in Python's notation
    HAS_JSON_KEY = 16,
    HAS_NONE = 32,
};

/* Renders one conversation and returns what its output contains, as bits. The probed word occurs in
 * no template; a probe that fails returns 0. */
static int look(const struct probe *p, const char *messages, const char *tools)
{
    static const struct {
        const char *text;
        int bit;
    } marks[] = {{WORD, HAS_WORD},          {"'type'", HAS_TYPE},        {"\"type\"", HAS_TYPE},
                 {"'pkey':", HAS_REPR_KEY}, {"\"pkey\":", HAS_JSON_KEY}, {"None", HAS_NONE},
                 {"null", HAS_NONE}};
    struct jrt rt;
    struct jv v, list;
    struct jstr *out;
    int seen = 0;
    if (jinja_begin(&rt, p->t, 0) &&
        jinja_from_json(&rt, messages, strlen(messages), PROV_INPUT, "messages", &v)) {
        for (size_t i = 0; i < p->n_tokens; i++) {
            struct jstr *text = js_lit(&rt, p->tokens[i].text);
            if (text) {
                jinja_set(&rt, p->tokens[i].name, strlen(p->tokens[i].name), jv_str(text));
            }
        }
        jinja_set(&rt, "messages", 8, v);
        list = jv_none();
        if (tools) {
            jinja_from_json(&rt, tools, strlen(tools), PROV_INPUT, "tools", &list);
        }
        jinja_set(&rt, "tools", 5, list);
        chat_set_llama_variables(&rt, 0, list); // the probed word is not in them
        jinja_set(&rt, "documents", 9, jv_none());
        jinja_set(&rt, "add_generation_prompt", 21, jv_bool(true));
        if (jinja_run(&rt, &out)) {
            seen = RENDERED;
            for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
                if (memmem(out->s, out->n_bytes, marks[i].text, strlen(marks[i].text))) {
                    seen |= marks[i].bit;
                }
            }
        }
    }
    jinja_end(&rt);
    return seen;
}

/* A template supports parts if it prints their text without their structure. */
static void probe_content(const struct probe *p, struct chat_traits *traits)
{
    int string = look(p, "[{\"role\":\"user\",\"content\":\"" WORD "\"}]", NULL);
    int parts = look(
        p, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" WORD "\"}]}]", NULL);
    bool takes_string = string & HAS_WORD;
    bool takes_parts = (parts & HAS_WORD) && !(parts & HAS_TYPE);
    traits->flatten_parts = !takes_parts;
    traits->wrap_strings = takes_parts && !takes_string;
}

/* Arguments must be text if the template prints an object as Python's repr, or not at all. */
static void probe_arguments(const struct probe *p, struct chat_traits *traits)
{
    int object = look(p, CALL("\"content\":\"\",", "{\"pkey\":\"" WORD "\"}"), NULL);
    int text = look(p, CALL("\"content\":\"\",", "\"{\\\"pkey\\\": \\\"" WORD "\\\"}\""), NULL);
    if (!(object & HAS_WORD) && !(text & HAS_WORD)) { // some templates print calls only if there
                                                      // are tools
        object = look(p, CALL("\"content\":\"\",", "{\"pkey\":\"" WORD "\"}"), TOOLS);
        text = look(p, CALL("\"content\":\"\",", "\"{\\\"pkey\\\": \\\"" WORD "\\\"}\""), TOOLS);
    }
    const int without = object;          // many templates fail on null
    if (!((object | text) & HAS_WORD)) { // others only beside null, in the place of content
        object = look(p, CALL("\"content\":null,", "{\"pkey\":\"" WORD "\"}"), TOOLS);
        text = look(p, CALL("\"content\":null,", "\"{\\\"pkey\\\": \\\"" WORD "\\\"}\""), TOOLS);
    }
    traits->leaves_calls_out = ((object | without) & RENDERED) && !((object | text) & HAS_WORD);
    bool only_text = !(object & HAS_WORD) && (text & HAS_WORD);
    bool text_is_json = (object & HAS_REPR_KEY) && !(text & HAS_REPR_KEY) && (text & HAS_JSON_KEY);
    traits->string_arguments = only_text || text_is_json;
}

/* True for templates that fail on null content or print "None" or "null" for it. */
static void probe_null(const struct probe *p, struct chat_traits *traits)
{
    bool as_text = traits->string_arguments;
    int null = look(
        p, as_text ? CALL("\"content\":null,", "\"{}\"") : CALL("\"content\":null,", "{}"), NULL);
    int empty = look(
        p, as_text ? CALL("\"content\":\"\",", "\"{}\"") : CALL("\"content\":\"\",", "{}"), NULL);
    traits->null_is_empty =
        (empty & RENDERED) && (!(null & RENDERED) || ((null & HAS_NONE) && !(empty & HAS_NONE)));
}

/* Some templates only accept ids that Mistral's models could have written. */
static void probe_ids(const struct probe *p, struct chat_traits *traits)
{
    static const char *const good[] = {CALL("\"content\":\"\",", "{}"),
                                       CALL("\"content\":\"\",", "\"{}\"")};
    static const char *const bad[] = {CALL_WITH_ID("c_1", "\"content\":\"\",", "{}"),
                                      CALL_WITH_ID("c_1", "\"content\":\"\",", "\"{}\"")};
    const bool as_text = traits->string_arguments;
    traits->short_ids = look(p, good[as_text], NULL) && !look(p, bad[as_text], NULL);
}

static void probe_developer(const struct probe *p, struct chat_traits *traits)
{
    int developer = look(p,
                         "[{\"role\":\"developer\",\"content\":\"" WORD
                         "\"},{\"role\":\"user\",\"content\":\"q\"}]",
                         NULL);
    int system = look(
        p, "[{\"role\":\"system\",\"content\":\"" WORD "\"},{\"role\":\"user\",\"content\":\"q\"}]",
        NULL);
    traits->developer_is_system = !(developer & HAS_WORD) && (system & HAS_WORD);
}

static int look_for_thought(const struct probe *p, const struct chat_traits *traits,
                            const char *key, const char *content)
{
    char messages[512];
    snprintf(messages, sizeof messages, CALL("\"%s\":\"" WORD "\",\"content\":\"%s\",", "%s"), key,
             content, traits->string_arguments ? "\"{}\"" : "{}");
    return look(p, messages, NULL);
}

/* Finds the template's key for reasoning by what it prints. If it prints reasoning only when
 * thinking is requested, the key is found by its name in the template's text. */
static void probe_reasoning(const struct probe *p, struct chat_traits *traits)
{
    for (size_t i = 0; i < N_REASONING_KEYS; i++) {
        const char *key = REASONING_KEYS[i];
        if (look_for_thought(p, traits, key, "") & HAS_WORD) {
            traits->reasoning_key = key;
            traits->thought_or_text = !(look_for_thought(p, traits, key, "c") & RENDERED);
            return;
        }
    }
    if (jinja_mentions(p->t, REASONING_KEYS[0])) {
        traits->reasoning_key = REASONING_KEYS[0];
    }
}

void chat_traits_probe(const struct jinja_template *t, const struct chat_token *tokens,
                       size_t n_tokens, struct chat_traits *traits)
{
    const struct probe p = {t, tokens, n_tokens};
    *traits = (struct chat_traits){0};
    probe_content(&p, traits);
    probe_arguments(&p, traits);
    probe_null(&p, traits);
    probe_ids(&p, traits);
    probe_developer(&p, traits);
    probe_reasoning(&p, traits);
}
