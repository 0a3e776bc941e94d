// SPDX-License-Identifier: Apache-2.0
/* Arguments that a format writes as bare text, one per parameter: the tool's schema decides whether
 * a value is a string or JSON. */
#include "engine/base/json_scan.h"
#include "engine/base/optional.h"
#include "server/chat/tools/parser.h"

#include <string.h>
#include <strings.h>

enum { VALUE_MAX_BYTES = 64 << 20, VALUE_MAX_DEPTH = 64 };

enum { REFS_MAX = 8, PART_MAX = 256 };

/* The member named by a component of a JSON pointer, where ~0 and ~1 stand for '~' and '/'. */
static const struct json *part(const struct json *v, const char *s, size_t n)
{
    char key[PART_MAX];
    size_t length = 0;
    for (size_t i = 0; i < n && length < sizeof key - 1; i++) {
        bool escaped = s[i] == '~' && i + 1 < n;
        char c = s[i];
        if (escaped) {
            c = s[++i] == '1' ? '/' : '~';
        }
        key[length++] = c;
    }
    key[length] = '\0';
    return json_get(v, key);
}

/* Follows "$ref" within the tool's own schema, a limited number of times, since references
 * may form a circle. */
const struct json *tool_resolve(const struct json *root, const struct json *schema)
{
    for (int i = 0; i < REFS_MAX; i++) {
        const char *ref = json_get_string(schema, "$ref");
        if (!ref || ref[0] != '#') {
            break;
        }
        const struct json *to = root;
        for (ref++; to && *ref == '/'; ref += strcspn(ref, "/")) {
            ref++;
            to = part(to, ref, strcspn(ref, "/"));
        }
        schema = to;
    }
    return schema;
}

/* True if an enum's first value or a constant has this type. Null may be any value of an enum:
 * beside strings it is the only one that is not written as one of them. */
static bool has_value(const struct json *schema, const char *type, bool *known)
{
    const bool anywhere = strcmp(type, "null") == 0;
    const struct json *one = json_first(json_get(schema, "enum"));
    bool has = false;
    if (!one) {
        one = json_get(schema, "const");
        *known |= one != NULL;
        return one && strcmp(json_type_name(json_type(one)), type) == 0;
    }
    *known = true;
    do {
        has = strcmp(json_type_name(json_type(one)), type) == 0;
        one = json_next(one);
    } while (anywhere && !has && one);
    return has;
}

/* True if the schema allows a value of this type. *known: it says something about types. Grammars
 * follow the same rules when such a value is generated (engine/grammar/schema_style.c). */
static bool allows(const struct json *root, const struct json *schema, const char *type, int depth,
                   bool *known)
{
    schema = tool_resolve(root, schema);
    const struct json *t = json_get(schema, "type");
    if (json_string(t)) {
        *known = true;
        return strcmp(json_string(t), type) == 0;
    }
    for (const struct json *one = json_first(t); one; one = json_next(one)) {
        *known = true;
        if (json_string(one) && strcmp(json_string(one), type) == 0) {
            return true;
        }
    }
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    for (size_t i = 0; i < 3 && depth < 8; i++) {
        const struct json *list = json_get(schema, lists[i]);
        for (const struct json *one = json_first(list); one; one = json_next(one)) {
            if (allows(root, one, type, depth + 1, known)) {
                return true;
            }
        }
    }
    return !t && has_value(schema, type, known);
}

/* Without a tree, whose strings could not contain U+0000. */
static bool is_json(const char *s, size_t n)
{
    struct json_scan sc;
    enum json_token t;
    json_scan_init(&sc, s, n, VALUE_MAX_DEPTH);
    do {
        t = json_scan_next(&sc);
        if ((t == JSON_TOKEN_STRING || t == JSON_TOKEN_KEY) && json_scan_unpaired(&sc)) {
            return false;
        }
    } while (t != JSON_TOKEN_END && t != JSON_TOKEN_ERROR);
    return t == JSON_TOKEN_END;
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] != ' ' && s[i] != '\n' && s[i] != '\t' && s[i] != '\r') {
            return false;
        }
    }
    return true;
}

static bool is_word(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && strncasecmp(s, word, n) == 0;
}

/* Models write Python's lists, dicts and None where their template shows such values. Other
 * literals stay strings. */
static bool put_literal(const struct json *root, const struct json *schema, const char *s, size_t n,
                        struct buf *out)
{
    bool known, good;
    struct buf json;
    const size_t blank = strspn(s, " \t\r\n");
    if (blank < n && strchr("[({", s[blank])) {
        good =
            allows(root, schema, "array", 0, &known) || allows(root, schema, "object", 0, &known);
    } else {
        good = is_word(s, n, "none") && allows(root, schema, "null", 0, &known);
    }
    if (!good) {
        return false;
    }
    buf_init(&json, VALUE_MAX_BYTES);
    good = tool_literal(s, n, &json);
    if (good) {
        buf_put(out, json.data, json.n_bytes);
    }
    buf_deinit(&json);
    return good;
}

/* If the schema has no type, the value stays a string, as it was written. */
void tool_put_value(const struct json *root, const struct json *schema, const char *s, size_t n,
                    struct buf *out)
{
    bool known = false;
    bool text = allows(root, schema, "string", 0, &known);
    if (is_word(s, n, "null") && allows(root, schema, "null", 0, &known)) {
        buf_puts(out, "null");
    } else if (text || !known) {
        buf_put_json(out, s, n);
    } else if (is_json(s, n)) {
        buf_put(out, s, n);
    } else if (is_blank(s, n) && allows(root, schema, "array", 0, &known)) {
        buf_puts(out, "[]");
    } else if (is_blank(s, n) && allows(root, schema, "object", 0, &known)) {
        buf_puts(out, "{}");
    } else if (allows(root, schema, "boolean", 0, &known) &&
               (is_word(s, n, "true") || is_word(s, n, "false"))) { // or Python's True
        if (n == 4) {
            buf_puts(out, "true");
        } else {
            buf_puts(out, "false");
        }
    } else if (!put_literal(root, schema, s, n, out)) {
        buf_put_json(out, s, n);
    }
}

const struct json *tool_root(const struct tool_parse *p)
{
    return json_get(tool_function(p->tools, or_empty(p->name.data)), "parameters");
}

/* What a schema says about a parameter; in it, or in one of its parts. */
typedef const struct json *of_parameter(const struct json *schema, const char *name);

static const struct json *listed(const struct json *schema, const char *name)
{
    return json_get(json_get(schema, "properties"), name);
}

/* About a name that is not listed. Patterns are not compared: if there are several, the first
 * counts. */
static const struct json *unlisted(const struct json *schema, const char *name)
{
    const struct json *others = json_get(schema, "additionalProperties");
    (void)name;
    return json_is(others, JSON_OBJECT) ? others
                                        : json_first(json_get(schema, "patternProperties"));
}

static const struct json *find(const struct json *root, const struct json *schema, const char *name,
                               of_parameter *says, int depth)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    schema = tool_resolve(root, schema);
    const struct json *found = says(schema, name);
    for (size_t i = 0; !found && i < 3 && depth < 8; i++) {
        const struct json *one = json_first(json_get(schema, lists[i]));
        for (; !found && one; one = json_next(one)) {
            found = find(root, one, name, says, depth + 1);
        }
    }
    return found;
}

const struct json *tool_schema(const struct tool_parse *p)
{
    const struct json *root = tool_root(p);
    const char *name = or_empty(p->id.data);
    const struct json *found = find(root, root, name, listed, 0);
    return found ? found : find(root, root, name, unlisted, 0);
}

void tool_parameter(struct tool_parse *p, const char *text, size_t n_bytes, enum tool_value type)
{
    struct buf json;
    buf_init(&json, VALUE_MAX_BYTES);
    if (p->n_parameters == 0) {
        buf_puts(&json, "{");
    } else {
        buf_puts(&json, ", ");
    }
    buf_put_json(&json, or_empty(p->id.data), p->id.n_bytes);
    buf_puts(&json, ": ");
    if (type == TOOL_VALUE_BY_SCHEMA) {
        tool_put_value(tool_root(p), tool_schema(p), text, n_bytes, &json);
    } else if (type == TOOL_VALUE_JSON && is_json(text, n_bytes)) {
        buf_put(&json, text, n_bytes);
    } else {
        buf_put_json(&json, text, n_bytes);
    }
    tool_arguments(p, json.data, json.n_bytes);
    buf_deinit(&json);
}

void tool_end_parameters(struct tool_parse *p)
{
    if (p->n_parameters > 0) {
        tool_arguments(p, "}", 1);
    }
    tool_end(p);
}

bool tool_abandon_parameters(struct tool_parse *p, int state)
{
    if (p->in_call) {
        tool_end_parameters(p);
    } else {
        tool_give_up(p);
    }
    p->state = state;
    return true;
}

bool tool_cut_parameters(struct tool_parse *p, int state)
{
    p->scan = p->held.n_bytes;
    if (p->in_call) {
        tool_commit(p);
    }
    return tool_abandon_parameters(p, state);
}
