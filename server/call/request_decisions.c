// SPDX-License-Identifier: Apache-2.0
/* The bodies of vLLM's /v1/systemone and /v1/decisions: questions become chats, and their labels
 * token ids (decisions.h). */
#include "engine/base/optional.h"
#include "engine/base/words.h"
#include "server/call/convert.h"
#include "server/call/decisions.h"
#include "server/call/readers.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool refuse(struct request *r, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static bool refuse(struct request *r, const char *param, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return call_error_set(&r->error, 400, "invalid_value", param, "Invalid '%s': %s.", param, text);
}

static struct decisions *decisions_of(struct request *r)
{
    if (!r->decisions) {
        r->decisions = arena_alloc(&r->arena, 1, sizeof *r->decisions);
        if (r->decisions) {
            *r->decisions = (struct decisions){.state = ""};
        }
    }
    return r->decisions;
}

/* Keeps text in the arena, and frees the buffer. NULL: the error is set. */
static const char *keep(struct request *r, struct buf *text, size_t *n_bytes)
{
    const char *copy =
        text->failed ? NULL : arena_strndup(&r->arena, or_empty(text->data), text->n_bytes);
    if (n_bytes) {
        *n_bytes = text->n_bytes;
    }
    buf_deinit(text);
    if (!copy) {
        request_too_large(r);
    }
    return copy;
}

/* ---- the state --------------------------------------------------------------------------------
 */

/* JSON as Python's json.dumps writes it, with spaces. */
static void put_spaced(struct buf *b, const struct json *node)
{
    const bool object = json_is(node, JSON_OBJECT);
    if (!object && !json_is(node, JSON_ARRAY)) {
        convert_node(b, node);
        return;
    }
    buf_puts(b, object ? "{" : "[");
    for (const struct json *c = json_first(node); c; c = json_next(c)) {
        buf_puts(b, c == json_first(node) ? "" : ", ");
        if (object) {
            convert_text(b, json_key(c));
            buf_puts(b, ": ");
        }
        put_spaced(b, c);
    }
    buf_puts(b, object ? "}" : "]");
}

bool read_decision_state(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "state");
    struct decisions *d = decisions_of(r);
    struct buf text;
    if (!m || !d) {
        return m ? request_too_large(r) : call_error_missing(&r->error, "state");
    }
    buf_init(&text, 64 << 20);
    if (json_string(m->node)) {
        buf_puts(&text, json_string(m->node));
    } else if (m->node) {
        put_spaced(&text, m->node);
        body_put_nuls_back(&r->body, &text);
    } else { // an array of numbers, of which there is no tree
        buf_put(&text, m->start, m->n_bytes);
    }
    d->state = keep(r, &text, &d->state_bytes);
    return d->state;
}

/* A part of a message: text, or JSON, which the model reads as text. */
static bool put_part(struct request *r, struct buf *text, const struct json *part)
{
    const char *type = json_get_string(part, "type");
    const struct json *data = json_get(part, "data");
    const int kind = type ? words_find("input_text|output_text|refusal|input_json", type) : -1;
    const char *words = json_get_string(part, kind == 2 ? "refusal" : "text");
    if (kind == 3 && (json_is(data, JSON_OBJECT) || json_is(data, JSON_ARRAY))) {
        put_spaced(text, data);
        return true;
    }
    if (kind < 0 || kind == 3 || !words) {
        return refuse(r, "input",
                      "this endpoint supports text input only, in parts of type input_text, "
                      "output_text, refusal (with 'refusal') and input_json (with 'data')");
    }
    buf_puts(text, words);
    return true;
}

static bool put_content(struct request *r, struct buf *text, const struct json *content)
{
    if (json_string(content)) {
        buf_puts(text, json_string(content));
        return true;
    }
    if (!json_is(content, JSON_ARRAY)) {
        return refuse(r, "input", "a message's content must be a string or an array of parts");
    }
    for (const struct json *p = json_first(content); p; p = json_next(p)) {
        buf_puts(text, p == json_first(content) ? "" : "\n");
        if (!put_part(r, text, p)) {
            return false;
        }
    }
    return true;
}

/* The items that a conversation may have besides messages, and the member with their text. */
static const struct {
    const char *type, *text;
    bool is_call; // or the output of one
} call_items[] = {
    {"function_call", "arguments", true},
    {"custom_tool_call", "input", true},
    {"function_call_output", "output", false},
    {"custom_tool_call_output", "output", false},
};

static bool put_call(struct request *r, struct buf *text, const struct json *item, size_t kind)
{
    const char *name = json_get_string(item, "name");
    if (!json_get_string(item, "call_id") || (call_items[kind].is_call && !name)) {
        return refuse(r, "input",
                      "a call must have 'call_id' and 'name', and its output 'call_id'");
    }
    if (call_items[kind].is_call) {
        buf_printf(text, "call of %s: ", name);
    } else {
        buf_puts(text, "result: ");
    }
    return put_content(r, text, json_get(item, call_items[kind].text));
}

/* Appends an item as text. In a conversation its role comes first. */
static bool put_item(struct request *r, struct buf *text, const struct json *item, bool headed)
{
    const char *role = json_get_string(item, "role");
    const char *type = or_text(json_get_string(item, "type"), "message");
    for (size_t i = 0; i < sizeof call_items / sizeof call_items[0]; i++) {
        if (strcmp(type, call_items[i].type) == 0) {
            return put_call(r, text, item, i);
        }
    }
    if (strcmp(type, "message") != 0 || !role ||
        words_find("user|assistant|system|developer", role) < 0) {
        return refuse(r, "input",
                      "expected messages with the role user, assistant, system or developer, "
                      "calls and their outputs");
    }
    buf_printf(text, "%s%s", text_if(headed, role), text_if(headed, ": "));
    return put_content(r, text, json_get(item, "content"));
}

/* True if items need heads: something besides messages of the user is among them. */
static bool is_conversation(const struct json *items)
{
    for (const struct json *item = json_first(items); item; item = json_next(item)) {
        const char *role = json_get_string(item, "role");
        if (!role || strcmp(role, "user") != 0) {
            return true;
        }
    }
    return false;
}

bool read_decision_input(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "input");
    struct decisions *d = decisions_of(r);
    struct buf text;
    bool good = true;
    if (!m || !d) {
        return m ? request_too_large(r) : call_error_missing(&r->error, "input");
    }
    if (!json_string(m->node) && !json_is(m->node, JSON_ARRAY)) {
        return body_wrong_type(&r->error, "input", "a string or an array of messages", m->node);
    }
    buf_init(&text, 64 << 20);
    if (json_string(m->node)) {
        buf_puts(&text, json_string(m->node));
    }
    const struct json *first = json_is(m->node, JSON_ARRAY) ? json_first(m->node) : NULL;
    const bool headed = is_conversation(first ? m->node : NULL);
    for (const struct json *item = first; good && item; item = json_next(item)) {
        buf_puts(&text, item == first ? "" : "\n\n");
        good = put_item(r, &text, item, headed);
    }
    d->state = keep(r, &text, &d->state_bytes);
    return good && d->state;
}

bool read_decision_instructions(struct request *r)
{
    struct decisions *d = decisions_of(r);
    if (!d) {
        return request_too_large(r);
    }
    body_string(&r->body, "instructions", &d->instructions);
    return r->error.status == 0;
}

/* ---- the questions ----------------------------------------------------------------------------
 */

/* The text of a name or description: strings unchanged, other values as JSON. */
static const char *text_of(struct request *r, const struct json *node)
{
    struct buf text;
    if (json_string(node)) {
        return json_string(node);
    }
    buf_init(&text, 1 << 20);
    convert_node(&text, node);
    return keep(r, &text, NULL);
}

static bool add_option(struct request *r, struct question *q, int most, const char *name,
                       const struct json *description, const struct json *value)
{
    if (q->n_options == most) {
        return refuse(r, "questions", "at most %d options for a question of this type", most);
    }
    for (int i = 0; name && i < q->n_options; i++) {
        if (strcmp(q->options[i].name, name) == 0) {
            return refuse(r, "questions", "two options are named '%.60s'", name);
        }
    }
    const bool has_description = json_type(description) != JSON_NULL;
    const char *text = has_description ? text_of(r, description) : NULL;
    q->options[q->n_options++] = (struct question_option){name, text, value};
    return name && (text || !has_description);
}

static bool has_only(struct request *r, const struct json *object, const char *const *keys)
{
    for (const struct json *c = json_first(object); c; c = json_next(c)) {
        const char *const *key = keys;
        while (*key && strcmp(*key, json_key(c)) != 0) {
            key++;
        }
        if (!*key) {
            return refuse(r, "questions", "unknown field(s) '%.60s'", json_key(c));
        }
    }
    return true;
}

/* An object from the name of an option to its description. */
static bool read_choice(struct request *r, struct question *q, const struct json *criteria)
{
    bool good = true;
    if (!json_is(criteria, JSON_OBJECT) || json_count(criteria) == 0) {
        return refuse(r, "questions",
                      "the criteria of a choice must map names of options to a description or "
                      "null");
    }
    for (const struct json *c = json_first(criteria); good && c; c = json_next(c)) {
        good = add_option(r, q, MAX_OPTIONS, json_key(c), c, NULL);
    }
    return good;
}

/* What true and false mean, if the body says so. */
static bool read_noul(struct request *r, struct question *q, const struct json *criteria)
{
    static const char *const keys[] = {"true", "false", NULL};
    if (json_type(criteria) != JSON_NULL && !json_is(criteria, JSON_OBJECT)) {
        return refuse(r, "questions",
                      "the criteria of a noul must be an object with true and false");
    }
    q->first_label = LABEL_YES;
    return has_only(r, criteria, keys) &&
           add_option(r, q, 2, "yes", json_get(criteria, "true"), NULL) &&
           add_option(r, q, 2, "no", json_get(criteria, "false"), NULL);
}

static bool read_levels(struct request *r, struct question *q, const struct json *criteria)
{
    bool good = true;
    if (!json_is(criteria, JSON_ARRAY) || json_count(criteria) < 2) {
        return refuse(r, "questions", "the criteria of a score must be an ordered list of levels");
    }
    q->first_label = LABEL_0;
    for (const struct json *c = json_first(criteria); good && c; c = json_next(c)) {
        good = add_option(r, q, MAX_LEVELS, text_of(r, c), NULL, NULL);
    }
    return good;
}

/* A question of /v1/systemone. */
static bool read_question(struct request *r, struct question *q)
{
    static const char *const keys[] = {"type", "instructions", "criteria", NULL};
    const struct json *criteria = json_get(q->spec, "criteria");
    const struct json *instructions = json_get(q->spec, "instructions");
    const char *type = json_get_string(q->spec, "type");
    if (!json_is(q->spec, JSON_OBJECT) || !type) {
        return refuse(r, "questions", "a question must be an object with a type");
    }
    if (!*json_key(q->spec)) {
        return refuse(r, "questions", "the id of a question must not be empty");
    }
    q->instructions = json_type(instructions) == JSON_NULL ? "" : text_of(r, instructions);
    if (!has_only(r, q->spec, keys) || !q->instructions) {
        return false;
    }
    if (strcmp(type, "choice") == 0) {
        return read_choice(r, q, criteria);
    }
    if (strcmp(type, "noul") == 0) {
        q->type = QUESTION_NOUL;
        return read_noul(r, q, criteria);
    }
    if (strcmp(type, "score") == 0) {
        q->type = QUESTION_SCORE;
        return read_levels(r, q, criteria);
    }
    return refuse(r, "questions",
                  "unknown question type '%.40s'; supported: choice, noul and score", type);
}

/* The options of a choice or a score of /v1/decisions, in the array `list`. */
static bool read_listed(struct request *r, struct question *q, const char *list, const char *name,
                        int most)
{
    const char *const keys[] = {name, "description", NULL};
    const struct json *options = json_get(q->spec, list);
    bool good = true;
    if (!json_is(options, JSON_ARRAY) || json_count(options) < 2) {
        return refuse(r, "questions", "'%s' must be an array of at least two objects", list);
    }
    for (const struct json *o = json_first(options); good && o; o = json_next(o)) {
        const struct json *value = json_get(o, name), *description = json_get(o, "description");
        const bool is_level = q->type == QUESTION_SCORE;
        struct buf text;
        if (!json_string(value) && (is_level || !json_is(value, JSON_BOOL))) {
            return refuse(r, "questions", "each of '%s' must be an object with '%s'", list, name);
        }
        if (json_string(description) && !*json_string(description)) {
            description = NULL;
        }
        buf_init(&text, 1 << 20); // a choice is written as JSON, so that true is not "true"
        if (is_level) {
            buf_puts(&text, json_string(value));
        } else {
            convert_node(&text, value);
        }
        good = has_only(r, o, keys) &&
               add_option(r, q, most, keep(r, &text, NULL), description, value);
    }
    return good;
}

/* A question of /v1/decisions. */
static bool read_listed_question(struct request *r, struct question *q)
{
    static const char *const predicate[] = {"type", "instructions", "name", NULL};
    static const char *const choice[] = {"type", "instructions", "name", "choices", NULL};
    static const char *const score[] = {"type", "instructions", "name", "levels", NULL};
    const char *type = json_get_string(q->spec, "type");
    const struct json *name = json_get(q->spec, "name");
    q->instructions = json_get_string(q->spec, "instructions");
    if (!type || !q->instructions || (name && !json_string(name))) {
        return refuse(r, "questions",
                      "a question must be an object with a type and instructions; a name is a "
                      "string");
    }
    if (strcmp(type, "predicate") == 0) {
        q->type = QUESTION_PREDICATE;
        return has_only(r, q->spec, predicate) && add_option(r, q, 2, "false", NULL, NULL) &&
               add_option(r, q, 2, "true", NULL, NULL);
    }
    if (strcmp(type, "choice") == 0) {
        return has_only(r, q->spec, choice) && read_listed(r, q, "choices", "value", MAX_OPTIONS);
    }
    if (strcmp(type, "score") == 0) {
        q->type = QUESTION_SCORE;
        return has_only(r, q->spec, score) && read_listed(r, q, "levels", "label", MAX_LEVELS);
    }
    return refuse(r, "questions",
                  "unknown question type '%.40s'; supported: predicate, choice and score", type);
}

bool read_questions(struct request *r)
{
    struct decisions *d = decisions_of(r);
    const bool listed = r->kind == KIND_DECISIONS;
    const struct json *all = NULL;
    if (!(listed ? body_array(&r->body, "questions", &all)
                 : body_object(&r->body, "questions", &all))) {
        return r->error.status == 0 && call_error_missing(&r->error, "questions");
    }
    const size_t n = json_count(all);
    if (n == 0 || n > MAX_QUESTIONS) {
        return refuse(r, "questions", "expected at least one question and at most %d",
                      MAX_QUESTIONS);
    }
    struct question *questions = arena_alloc(&r->arena, n, sizeof *questions);
    if (!d || !questions) {
        return request_too_large(r);
    }
    d->questions = questions;
    for (const struct json *spec = json_first(all); spec; spec = json_next(spec)) {
        struct question *q = &questions[d->n_questions++];
        *q = (struct question){.spec = spec, .first_label = LABEL_A};
        if (!(listed ? read_listed_question(r, q) : read_question(r, q))) {
            return r->error.status == 0 && request_too_large(r);
        }
    }
    return true;
}
