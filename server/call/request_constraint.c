/* Constraints of the answer: the members of several APIs that ask for one, as one source of a
 * grammar. The text of a schema is taken from the body as it stands, since in a tree numbers and
 * the order of equal keys are lost. */
#include "server/call/readers.h"

#include "engine/base/json_scan.h"

#include <string.h>

/* ---- what is asked for ------------------------------------------------------------------------ */

/* A request has one constraint at most. */
static bool constrain(struct api_request *r, const char *param, struct grammar_source source)
{
    if (r->constraint_param) {
        return api_error_set(&r->error, 400, "invalid_value", param,
                             "Invalid '%s': '%s' is a constraint already; a request may have one.",
                             param, r->constraint_param);
    }
    if (!source.text) {
        return request_too_large(r);
    }
    r->constraint = source;
    r->constraint_param = param;
    return true;
}

static bool constrain_text(struct api_request *r, const char *param, enum grammar_kind kind,
                           const char *text)
{
    return constrain(r, param, (struct grammar_source){
        .kind = kind, .text = text, .n_bytes = strlen(text)});
}

static bool constrain_json(struct api_request *r, const char *param)
{
    return constrain_text(r, param, GRAMMAR_SCHEMA, "{\"type\":\"object\"}");
}

/* The text of the member at this path, whose keys are separated by '/', in a value's text. */
static struct grammar_source schema_at(const char *text, size_t n_bytes, const char *path)
{
    struct json_scan sc;
    struct grammar_source found = {.kind = GRAMMAR_SCHEMA, .text = text, .n_bytes = n_bytes};
    while (*path) {
        char key[32];
        size_t n = strcspn(path, "/");
        memcpy(key, path, n);
        key[n] = '\0';
        path += n + (path[n] == '/');
        const char *from = found.text;
        json_scan_init(&sc, from, found.n_bytes, JSON_SCAN_MAX_DEPTH);
        json_scan_next(&sc);
        while (json_scan_next(&sc) == JSON_TOKEN_KEY) { // of equal keys the last one counts
            bool is_it = json_scan_is(&sc, key);
            size_t begin = sc.at;
            json_scan_skip(&sc);
            if (is_it) {
                found.text = from + begin;
                found.n_bytes = sc.at - begin;
            }
        }
        while (found.n_bytes > 0 && strchr(": \t\r\n", found.text[0])) {
            found.text++;
            found.n_bytes--;
        }
    }
    return found;
}

/* A schema: the object at `path` of the member `key`. */
static bool constrain_schema(struct api_request *r, const char *key, const char *path,
                             const struct json *schema, const char *param)
{
    const struct body_member *m = body_get(&r->body, key);
    if (!json_is(schema, JSON_OBJECT)) {
        return body_wrong_type(&r->error, param, "an object", schema);
    }
    return constrain(r, param, schema_at(m->start, m->n_bytes, path));
}

/* One of some texts, as a regular expression. */
static bool constrain_choice(struct api_request *r, const char *param, const struct json *list)
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
        return api_empty(&r->error, param);
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

static bool constrain_grammar(struct api_request *r, const char *param, const char *text)
{
    return constrain_text(r, param, strstr(text, "::=") ? GRAMMAR_GBNF : GRAMMAR_LARK, text);
}

/* ---- OpenAI's response_format and text.format ------------------------------------------------- */

/* `format` lies at `path` of the member `key`; a schema in it at `schema_path` of that member. */
static bool read_format(struct api_request *r, const struct json *format, const char *param,
                        const char *key, const char *schema_path, const struct json *schema,
                        const char *schema_param)
{
    const char *type = json_get_string(format, "type");
    if (strcmp(type, "text") == 0) {
        return true;
    }
    if (strcmp(type, "json_object") == 0) {
        return constrain_json(r, param);
    }
    if (strcmp(type, "json_schema") != 0) {
        return api_error_set(&r->error, 400, "unsupported_value", param,
                             "Unsupported value: '%s' of type '%.40s' is not supported by this "
                             "server; it may be 'text', 'json_object' or 'json_schema'.", param,
                             type);
    }
    if (!schema) {
        return api_missing(&r->error, schema_param);
    }
    return constrain_schema(r, key, schema_path, schema, schema_param);
}

bool read_response_format(struct api_request *r)
{
    const struct json *format = NULL;
    if (!body_object(&r->body, "response_format", &format)) {
        return r->error.status == 0;
    }
    const char *type = json_get_string(format, "type");
    if (!type) {
        return api_missing(&r->error, "response_format.type");
    }
    const struct json *own = json_get(format, "schema"), *inner = json_get(format, "json_schema");
    if (own && strcmp(type, "json_object") == 0) { // llama.cpp's and others' way
        return constrain_schema(r, "response_format", "schema", own, "response_format.schema");
    }
    if (inner && !json_is(inner, JSON_OBJECT)) {
        return body_wrong_type(&r->error, "response_format.json_schema", "an object", inner);
    }
    return read_format(r, format, "response_format", "response_format", "json_schema/schema",
                       json_get(inner, "schema"), "response_format.json_schema.schema");
}

bool read_text_format(struct api_request *r)
{
    const struct json *text = NULL;
    body_object(&r->body, "text", &text);
    const struct json *format = json_get(text, "format");
    if (json_type(format) == JSON_NULL || r->error.status != 0) {
        return r->error.status == 0;
    }
    if (!json_get_string(format, "type")) {
        return json_is(format, JSON_OBJECT)
                   ? api_missing(&r->error, "text.format.type")
                   : body_wrong_type(&r->error, "text.format", "an object", format);
    }
    return read_format(r, format, "text.format", "text", "format/schema",
                       json_get(format, "schema"), "text.format.schema");
}

/* ---- vLLM's, llama.cpp's and SGLang's members -------------------------------------------------- */

/* A schema as an object, or as text. */
static bool read_schema(struct api_request *r, const char *key, const char *path,
                        const struct json *schema, const char *param)
{
    const char *text = json_string(schema);
    return text ? constrain_text(r, param, GRAMMAR_SCHEMA, text)
                : constrain_schema(r, key, path, schema, param);
}

bool read_structured_outputs(struct api_request *r)
{
    const struct json *o = NULL;
    if (!body_object(&r->body, "structured_outputs", &o)) {
        return r->error.status == 0;
    }
    const char *regex = json_get_string(o, "regex"), *grammar = json_get_string(o, "grammar");
    const struct json *json = json_get(o, "json"), *choice = json_get(o, "choice");
    if (json_type(json_get(o, "structural_tag")) != JSON_NULL) {
        return api_unsupported(&r->error, "structured_outputs.structural_tag");
    }
    bool good = json_type(json) == JSON_NULL ||
                read_schema(r, "structured_outputs", "json", json, "structured_outputs.json");
    good = good && (!regex || constrain_text(r, "structured_outputs.regex", GRAMMAR_REGEX, regex));
    good = good && (json_type(choice) == JSON_NULL ||
                    constrain_choice(r, "structured_outputs.choice", choice));
    good = good && (!grammar || constrain_grammar(r, "structured_outputs.grammar", grammar));
    good = good && (!json_get_bool(o, "json_object", false) ||
                    constrain_json(r, "structured_outputs.json_object"));
    if (good && !r->constraint_param && json_count(o) > 0) {
        return api_error_set(&r->error, 400, "invalid_value", "structured_outputs",
                             "Invalid 'structured_outputs': expected one of 'json', 'regex', "
                             "'choice', 'grammar' and 'json_object'.");
    }
    r->constraint.disable_any_whitespace = json_get_bool(o, "disable_any_whitespace", false);
    r->constraint.whitespace_pattern = json_get_string(o, "whitespace_pattern");
    return good;
}

static bool read_whole_schema(struct api_request *r, const char *key)
{
    const struct body_member *m = body_get(&r->body, key);
    return !m || read_schema(r, key, "", m->node, key);
}

bool read_guided_json(struct api_request *r)
{
    return read_whole_schema(r, "guided_json");
}

bool read_json_schema(struct api_request *r)
{
    return read_whole_schema(r, "json_schema");
}

bool read_guided_choice(struct api_request *r)
{
    const struct body_member *m = body_get(&r->body, "guided_choice");
    return !m || constrain_choice(r, "guided_choice", m->node);
}

/* A member that is a text; an empty one asks for nothing. */
static bool read_source(struct api_request *r, const char *key, enum grammar_kind kind)
{
    const char *text = NULL;
    if (!body_string(&r->body, key, &text) || *text == '\0') {
        return r->error.status == 0;
    }
    return constrain_text(r, key, kind, text);
}

bool read_guided_regex(struct api_request *r)
{
    return read_source(r, "guided_regex", GRAMMAR_REGEX);
}

bool read_regex(struct api_request *r)
{
    return read_source(r, "regex", GRAMMAR_REGEX);
}

bool read_grammar(struct api_request *r)
{
    return read_source(r, "grammar", GRAMMAR_GBNF);
}

bool read_ebnf(struct api_request *r)
{
    return read_source(r, "ebnf", GRAMMAR_GBNF);
}

/* Ollama's: "json", or a schema. */
bool read_format_member(struct api_request *r)
{
    const struct body_member *m = body_get(&r->body, "format");
    const char *word = m ? json_string(m->node) : NULL;
    if (!m || (word && !*word)) {
        return true;
    }
    if (word && strcmp(word, "json") == 0) {
        return constrain_json(r, "format");
    }
    if (word) {
        return api_error_set(&r->error, 400, "invalid_value", "format",
                             "Invalid 'format': expected \"json\" or a JSON schema.");
    }
    return constrain_schema(r, "format", "", m->node, "format");
}

bool read_guided_grammar(struct api_request *r)
{
    const char *text = NULL;
    return body_string(&r->body, "guided_grammar", &text)
               ? constrain_grammar(r, "guided_grammar", text)
               : r->error.status == 0;
}

/* Where the constrained answer begins: behind the reasoning that the prompt has opened, or at once.
 * False: that cannot be told by one token. */
static bool find_answer(struct api_request *r)
{
    enum reasoning_kind kind = r->output.reasoning;
    const char *end = reasoning_end(kind);
    if (!r->output.starts_in_reasoning) {
        return end || kind == REASONING_NONE;
    }
    r->constraint_after = end;
    r->constraint_after_id = end ? tokenizer_find(r->model->tok, end, strlen(end)) : -1;
    return r->constraint_after_id >= 0;
}

/* ---- compiling -------------------------------------------------------------------------------- */

bool request_compile_constraint(struct api_request *r)
{
    const char *param = r->constraint_param;
    if (!param || !r->generates) {
        return true;
    }
    if (!r->model->tok) {
        return api_error_set(&r->error, 400, "unsupported_value", param,
                             "This model has no tokenizer: its answers cannot be constrained.");
    }
    if (!find_answer(r)) {
        return api_error_set(&r->error, 400, "unsupported_value", param,
                             "Unsupported value: '%s' cannot be kept here, since no single token "
                             "of this model ends its reasoning.", param);
    }
    struct err err = {""};
    enum status st = grammars_take(r->model->grammars, r->model->tok, r->model->info,
                                   &r->constraint, &r->grammar, &err);
    r->output.parser = NULL; // all of the text is the answer
    return st == OK || api_error_set(&r->error, 400,
                                     st == ERR_UNSUPPORTED ? "unsupported_value" : "invalid_value",
                                     param, "Invalid '%s': %s", param, err.text);
}
