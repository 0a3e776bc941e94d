// SPDX-License-Identifier: Apache-2.0
/* Constraints on the answer: converts the members of several APIs to one grammar source. A schema's
 * text is taken from the body as written, since a tree loses the spelling of numbers and the order
 * of equal keys. */
#include "engine/base/optional.h"
#include "server/call/readers.h"
#include "server/call/slice.h"

#include <stdio.h>
#include <string.h>

/* ---- sources --------------------------------------------------------------------------------- */

/* A request may have one constraint. */
static bool constrain(struct request *r, const char *param, struct grammar_source source)
{
    if (r->constraint_param) {
        bool twice = strcmp(param, r->constraint_param) == 0;
        return call_error_set(&r->error, 400, "invalid_value", param,
                              "Invalid '%s': %s%s%s; a request may have one constraint.", param,
                              twice ? "it asks for two" : "'", twice ? "" : r->constraint_param,
                              twice ? "" : "' asks for one already");
    }
    if (!source.text) {
        return request_too_large(r);
    }
    r->constraint = source;
    r->constraint_param = param;
    return true;
}

/* `text` is a string of the body's tree, or a literal. */
static bool constrain_text(struct request *r, const char *param, enum grammar_kind kind,
                           const char *text)
{
    struct grammar_source source = {.kind = kind};
    source.text = body_text(&r->body, text, &source.n_bytes);
    return constrain(r, param, source);
}

static bool constrain_json(struct request *r, const char *param)
{
    return constrain_text(r, param, GRAMMAR_SCHEMA, "{\"type\":\"object\"}");
}

/* The value at `path` of the member `key`, as a schema or another grammar in JSON. */
static bool constrain_at(struct request *r, const char *param, enum grammar_kind kind,
                         const char *key, const char *path)
{
    const struct body_member *m = body_get(&r->body, key);
    struct slice v = slice_at((struct slice){m->start, m->n_bytes}, path);
    return constrain(r, param, (struct grammar_source){.kind = kind, .text = v.s, .n_bytes = v.n});
}

/* Converts a choice among texts to a regular expression. */
static bool constrain_choice(struct request *r, const char *param, const struct json *list)
{
    size_t room = 8;
    for (const struct json *i = json_first(list); i; i = json_next(i)) {
        if (!json_string(i)) {
            return body_wrong_type(&r->error, param, "an array of strings", i);
        }
        room += 2 * strlen(json_string(i)) + 1;
    }
    if (!json_is(list, JSON_ARRAY)) {
        return body_wrong_type(&r->error, param, "an array of strings", list);
    }
    if (json_count(list) == 0) {
        return call_error_empty(&r->error, param);
    }
    char *text = arena_alloc(&r->arena, room, 1), *at = text, before = '(';
    if (!text) {
        return request_too_large(r);
    }
    for (const struct json *i = json_first(list); i; i = json_next(i)) {
        *at++ = before;
        before = '|';
        for (const char *s = json_string(i); *s; s++) {
            if (strchr("\\^$.|?*+()[]{}", *s)) {
                *at++ = '\\';
            }
            *at++ = *s;
        }
    }
    *at++ = ')';
    *at = '\0';
    return constrain_text(r, param, GRAMMAR_REGEX, text);
}

static bool constrain_grammar(struct request *r, const char *param, const char *text)
{
    return constrain_text(r, param, strstr(text, "::=") ? GRAMMAR_GBNF : GRAMMAR_LARK, text);
}

/* ---- OpenAI's response_format and text.format -------------------------------------------------
 */

/* `format` is at `path` of the member `key`; its schema, if any, at `schema_path` of that
 * member. */
static bool read_format(struct request *r, const struct json *format, const char *param,
                        const char *key, const char *path, const struct json *schema,
                        const char *schema_path)
{
    const char *type = json_get_string(format, "type");
    if (strcmp(type, "text") == 0) {
        return true;
    }
    if (strcmp(type, "json_object") == 0) {
        return constrain_json(r, param);
    }
    if (strcmp(type, "structural_tag") == 0) {
        return constrain_at(r, param, GRAMMAR_TAGS, key, path);
    }
    if (strcmp(type, "json_schema") != 0) {
        return call_error_set(&r->error, 400, "unsupported_value", param,
                              "Unsupported value: '%s' of type '%.40s' is not supported by this "
                              "server; it may be 'text', 'json_object', 'json_schema' or "
                              "'structural_tag'.",
                              param, type);
    }
    if (json_type(schema) == JSON_NULL) {
        char place[64];
        snprintf(place, sizeof place, "%s.%sschema", param,
                 text_if(strcmp(param, "response_format") == 0, "json_schema."));
        return call_error_missing(&r->error, place);
    }
    return constrain_at(r, param, GRAMMAR_SCHEMA, key, schema_path);
}

/* OpenAI's response_format, with the types of other servers. */
bool read_response_format(struct request *r)
{
    const struct json *format = NULL;
    if (!body_object(&r->body, "response_format", &format)) {
        return r->error.status == 0;
    }
    const char *type = json_get_string(format, "type");
    if (!type) {
        return call_error_missing(&r->error, "response_format.type");
    }
    const struct json *own = json_get(format, "schema"), *inner = json_get(format, "json_schema");
    if (json_is(own, JSON_OBJECT) && strcmp(type, "json_object") == 0) { // llama.cpp's format
        return constrain_at(r, "response_format", GRAMMAR_SCHEMA, "response_format", "schema");
    }
    if (inner && !json_is(inner, JSON_OBJECT)) {
        return body_wrong_type(&r->error, "response_format.json_schema", "an object", inner);
    }
    return read_format(r, format, "response_format", "response_format", "",
                       json_get(inner, "schema"), "json_schema/schema");
}

/* The same for the Responses API, where it is nested differently. */
bool read_text_format(struct request *r)
{
    const struct json *text = NULL;
    body_object(&r->body, "text", &text);
    const struct json *format = json_get(text, "format");
    if (json_type(format) == JSON_NULL || r->error.status != 0) {
        return r->error.status == 0;
    }
    if (!json_get_string(format, "type")) {
        if (json_is(format, JSON_OBJECT)) {
            return call_error_missing(&r->error, "text.format.type");
        }
        return body_wrong_type(&r->error, "text.format", "an object", format);
    }
    return read_format(r, format, "text.format", "text", "format", json_get(format, "schema"),
                       "format/schema");
}

/* ---- Anthropic's and Ollama's ------------------------------------------------------------------
 */

bool request_read_output_format(struct request *r, const char *key, const char *path,
                                const struct json *format)
{
    const char *type = json_get_string(format, "type");
    char schema_path[32], place[48];
    snprintf(place, sizeof place, "%s%s%s", key, text_if(*path, "."), path);
    snprintf(schema_path, sizeof schema_path, "%s%sschema", path, text_if(*path, "/"));
    if (!type || strcmp(type, "json_schema") != 0) {
        return call_error_set(
            &r->error, 400, "unsupported_value", place,
            "Unsupported value: '%s' must have the type 'json_schema' and a 'schema'.", place);
    }
    if (json_type(json_get(format, "schema")) != JSON_NULL) {
        return constrain_at(r, key, GRAMMAR_SCHEMA, key, schema_path);
    }
    return call_error_missing(&r->error, place);
}

bool read_output_format(struct request *r)
{
    const struct json *format = NULL;
    if (body_object(&r->body, "output_format", &format)) {
        return request_read_output_format(r, "output_format", "", format);
    }
    return r->error.status == 0;
}

/* "json", or a schema; an empty string, false and an empty list mean no constraint. */
bool read_ollama_format(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "format");
    const char *word = m ? json_string(m->node) : "";
    bool nothing = m && ((json_is(m->node, JSON_BOOL) && !json_bool(m->node, true)) ||
                         (json_is(m->node, JSON_ARRAY) && json_count(m->node) == 0));
    if (!word && nothing) {
        return true;
    }
    if (!word) {
        if (json_is(m->node, JSON_OBJECT)) {
            return constrain_at(r, "format", GRAMMAR_SCHEMA, "format", "");
        }
        return body_wrong_type(&r->error, "format", "\"json\" or an object", m->node);
    }
    if (*word && strcmp(word, "json") != 0) {
        return call_error_set(&r->error, 400, "invalid_value", "format",
                              "Invalid value: '%.40s'. 'format' is 'json' or a JSON schema.", word);
    }
    if (*word) {
        return constrain_json(r, "format");
    }
    return true;
}

/* ---- vLLM's, llama.cpp's and SGLang's members --------------------------------------------------
 */

/* Reads a schema that is given as JSON or as a string that contains JSON. */
static bool read_json(struct request *r, const char *key, const char *path, const struct json *v,
                      enum grammar_kind kind)
{
    const char *text = json_string(v);
    if (text) {
        return constrain_text(r, key, kind, text);
    }
    return constrain_at(r, key, kind, key, path);
}

/* vLLM's structured_outputs: exactly one of its members. */
bool read_structured_outputs(struct request *r)
{
    static const char key[] = "structured_outputs";
    const struct json *o = NULL;
    if (!body_object(&r->body, key, &o)) {
        return r->error.status == 0;
    }
    const char *regex = json_get_string(o, "regex"), *grammar = json_get_string(o, "grammar");
    const struct json *json = json_get(o, "json"), *choice = json_get(o, "choice");
    const struct json *tag = json_get(o, "structural_tag");
    bool good = json_type(json) == JSON_NULL || read_json(r, key, "json", json, GRAMMAR_SCHEMA);
    good = good && (!regex || constrain_text(r, key, GRAMMAR_REGEX, regex));
    good = good && (json_type(choice) == JSON_NULL || constrain_choice(r, key, choice));
    good = good && (!grammar || constrain_grammar(r, key, grammar));
    good = good && (!json_get_bool(o, "json_object", false) || constrain_json(r, key));
    good = good &&
           (json_type(tag) == JSON_NULL || read_json(r, key, "structural_tag", tag, GRAMMAR_TAGS));
    if (good && !r->constraint_param && json_count(o) > 0) {
        return call_error_set(&r->error, 400, "invalid_value", key,
                              "Invalid 'structured_outputs': expected one of 'json', 'regex', "
                              "'choice', 'grammar', 'json_object' and 'structural_tag'.");
    }
    r->constraint.disable_any_whitespace = json_get_bool(o, "disable_any_whitespace", false);
    r->constraint.whitespace_pattern = json_get_string(o, "whitespace_pattern");
    return good;
}

static bool read_whole(struct request *r, const char *key, enum grammar_kind kind)
{
    const struct body_member *m = body_get(&r->body, key);
    return !m || read_json(r, key, "", m->node, kind);
}

bool read_guided_json(struct request *r)
{
    return read_whole(r, "guided_json", GRAMMAR_SCHEMA);
}

bool read_json_schema(struct request *r)
{
    return read_whole(r, "json_schema", GRAMMAR_SCHEMA);
}

bool read_structural_tag(struct request *r)
{
    return read_whole(r, "structural_tag", GRAMMAR_TAGS);
}

/* Reads guided_whitespace_pattern, which applies to the schema in another member and has no effect
 * without one. */
bool read_guided_space(struct request *r)
{
    const char *pattern = NULL;
    if (body_string(&r->body, "guided_whitespace_pattern", &pattern)) {
        r->constraint.whitespace_pattern = pattern;
    }
    return r->error.status == 0;
}

bool read_guided_choice(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "guided_choice");
    return !m || constrain_choice(r, "guided_choice", m->node);
}

/* A string member; an empty one means no constraint. */
static bool read_source(struct request *r, const char *key, enum grammar_kind kind)
{
    const char *text = NULL;
    if (!body_string(&r->body, key, &text) || *text == '\0') {
        return r->error.status == 0;
    }
    return constrain_text(r, key, kind, text);
}

bool read_guided_regex(struct request *r)
{
    return read_source(r, "guided_regex", GRAMMAR_REGEX);
}

bool read_regex(struct request *r)
{
    return read_source(r, "regex", GRAMMAR_REGEX);
}

bool read_grammar(struct request *r)
{
    return read_source(r, "grammar", GRAMMAR_GBNF);
}

bool read_ebnf(struct request *r)
{
    return read_source(r, "ebnf", GRAMMAR_GBNF);
}

bool read_guided_grammar(struct request *r)
{
    const char *text = NULL;
    if (body_string(&r->body, "guided_grammar", &text)) {
        return constrain_grammar(r, "guided_grammar", text);
    }
    return r->error.status == 0;
}
