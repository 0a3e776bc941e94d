// SPDX-License-Identifier: Apache-2.0
/* JSON trees: cJSON, after a scan for what cJSON does not check. */
#include "engine/base/json.h"

#include "engine/base/file.h"
#include "engine/base/json_scan.h"
#include "engine/base/optional.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const cJSON *item(const struct json *node)
{
    return (const cJSON *)node;
}

/* cJSON does not say why it returned no tree, so its allocations are watched. True if one has
 * failed on this thread since the flag was cleared. */
static _Thread_local bool no_memory;

static void *watched_malloc(size_t n_bytes)
{
    void *p = malloc(n_bytes);
    no_memory = no_memory || !p;
    return p;
}

static void watch(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){watched_malloc, free});
}

/* Rejects what cJSON would silently truncate or accept: NUL, which ends its strings, and lone
 * surrogates. OK, or an error with the position. */
static enum status check_escapes(const struct json_scan *sc, struct err *err)
{
    const char *p = sc->text, *lone = json_scan_unpaired(sc);
    for (size_t i = 0; sc->escaped && i + 1 < sc->text_bytes; i++) {
        if (p[i] != '\\') {
            continue;
        }
        if (sc->text_bytes - i >= 6 && memcmp(p + i, "\\u0000", 6) == 0) {
            return err_set(err, ERR_UNSUPPORTED,
                           "a string contains the character U+0000, which is not supported, at "
                           "byte %zu",
                           (size_t)(p + i - sc->s));
        }
        i++; // the escaped character, which may be a backslash
    }
    if (lone) {
        return err_set(err, ERR_FORMAT, "an unpaired surrogate in a string at byte %zu",
                       (size_t)(lone - sc->s));
    }
    return OK;
}

/* Depth, number of values, UTF-8 and NULs are checked before cJSON allocates anything. */
static enum status pre_scan(const char *text, size_t n_bytes, const struct json_limits *limits,
                            struct err *err)
{
    int max_depth = limits && limits->max_depth ? limits->max_depth : 64;
    size_t max_values = limits && limits->max_values ? limits->max_values : 1000000;
    struct json_scan sc;
    json_scan_init(&sc, text, n_bytes, max_depth);
    for (size_t n = 0;; n++) {
        enum json_token t = json_scan_next(&sc);
        if (t == JSON_TOKEN_END) {
            return OK;
        }
        if (t == JSON_TOKEN_ERROR) {
            return json_scan_error(&sc, err);
        }
        if (t == JSON_TOKEN_KEY || t == JSON_TOKEN_STRING) {
            TRY(check_escapes(&sc, err));
        }
        if (n >= max_values) {
            return err_set(err, ERR_LIMIT, "more than %zu values", max_values);
        }
    }
}

/* A tree of untrusted text is bounded by `limits`. */
enum status json_parse(const char *text, size_t n_bytes, const struct json_limits *limits,
                       struct json **root, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    *root = NULL;
    pthread_once(&once, watch);
    TRY(pre_scan(text, n_bytes, limits, err));
    no_memory = false;
    cJSON *tree = cJSON_ParseWithLength(text, n_bytes);
    if (!tree && no_memory) {
        return err_set(err, ERR_NOMEM, "no memory for a tree of its values");
    }
    if (!tree) {
        return err_set(err, ERR_FORMAT, "not JSON");
    }
    *root = (struct json *)tree;
    return OK;
}

enum status json_parse_file(const char *path, size_t max_bytes, struct json **root, struct err *err)
{
    char *text;
    size_t n_bytes;
    TRY(file_read(path, max_bytes, &text, &n_bytes, err));
    enum status st = json_parse(text, n_bytes, NULL, root, err);
    free(text);
    if (st != OK) {
        return err_prefix(err, st, "%s", path);
    }
    return OK;
}

void json_free(struct json *root)
{
    cJSON_Delete((cJSON *)root);
}

enum json_type json_type(const struct json *node)
{
    const cJSON *c = item(node);
    if (!c || cJSON_IsNull(c)) {
        return JSON_NULL;
    }
    if (cJSON_IsBool(c)) {
        return JSON_BOOL;
    }
    if (cJSON_IsNumber(c)) {
        return JSON_NUMBER;
    }
    if (cJSON_IsString(c)) {
        return JSON_STRING;
    }
    return cJSON_IsArray(c) ? JSON_ARRAY : JSON_OBJECT;
}

const char *json_type_name(enum json_type type)
{
    static const char *const names[] = {"null", "boolean", "number", "string", "array", "object"};
    return names[type];
}

bool json_is(const struct json *node, enum json_type type)
{
    return node && json_type(node) == type;
}

/* If a key is repeated, its last member wins, as in most parsers. */
const struct json *json_get(const struct json *object, const char *key)
{
    const struct json *found = NULL;
    if (json_is(object, JSON_OBJECT)) {
        for (const struct json *c = json_first(object); c; c = json_next(c)) {
            if (strcmp(json_key(c), key) == 0) {
                found = c;
            }
        }
    }
    return found;
}

/* `copy` becomes the last member of `object`, or is freed. NULL: out of memory. */
static bool add(struct json *object, const char *key, cJSON *copy)
{
    if (copy && cJSON_AddItemToObject((cJSON *)object, key, copy)) {
        return true;
    }
    cJSON_Delete(copy);
    return false;
}

/* Copies the members that are missing; leaves those that exist unchanged. */
bool json_add_missing(struct json *object, const struct json *from)
{
    bool good = true;
    for (const struct json *c = json_first(from); c && good; c = json_next(c)) {
        good = json_get(object, json_key(c)) ||
               add(object, json_key(c), cJSON_Duplicate(item(c), true));
    }
    return good;
}

void json_remove(struct json *object, const char *key)
{
    while (json_get(object, key)) {
        cJSON_DeleteItemFromObjectCaseSensitive((cJSON *)object, key);
    }
}

/* Replaces a member of the same name. */
bool json_put(struct json *object, const struct json *member)
{
    cJSON *copy = cJSON_Duplicate(item(member), true);
    json_remove(object, json_key(member));
    return add(object, json_key(member), copy);
}

/* Nothing happens if the object already has the new name. */
bool json_rename(struct json *object, const char *from, const char *to)
{
    const struct json *member = json_get(object, from);
    if (!member || json_get(object, to)) {
        return true;
    }
    cJSON *copy = cJSON_Duplicate(item(member), true);
    json_remove(object, from);
    return add(object, to, copy);
}

size_t json_count(const struct json *array_or_object)
{
    size_t n = 0;
    for (const struct json *c = json_first(array_or_object); c; c = json_next(c)) {
        n++;
    }
    return n;
}

const struct json *json_first(const struct json *array_or_object)
{
    const cJSON *c = item(array_or_object);
    if (c && (cJSON_IsArray(c) || cJSON_IsObject(c))) {
        return (const struct json *)c->child;
    }
    return NULL;
}

const struct json *json_next(const struct json *child)
{
    return (const struct json *)item(child)->next;
}

const char *json_key(const struct json *child)
{
    const char *key = item(child)->string;
    return or_empty(key);
}

const char *json_string(const struct json *node)
{
    if (node && cJSON_IsString(item(node))) {
        return item(node)->valuestring;
    }
    return NULL;
}

double json_number(const struct json *node, double otherwise)
{
    if (node && cJSON_IsNumber(item(node))) {
        return item(node)->valuedouble;
    }
    return otherwise;
}

bool json_bool(const struct json *node, bool otherwise)
{
    if (node && cJSON_IsBool(item(node))) {
        return cJSON_IsTrue(item(node)) != 0;
    }
    return otherwise;
}

/* Accepts only whole numbers that a double holds exactly, up to 2^53. */
bool json_int64(const struct json *node, int64_t *v)
{
    if (!json_is(node, JSON_NUMBER)) {
        return false;
    }
    double d = item(node)->valuedouble;
    if (!(fabs(d) <= 9007199254740992.0) || d != floor(d)) {
        return false;
    }
    *v = (int64_t)d;
    return true;
}

int64_t json_get_int(const struct json *object, const char *key, int64_t otherwise)
{
    int64_t v;
    if (json_int64(json_get(object, key), &v)) {
        return v;
    }
    return otherwise;
}

double json_get_number(const struct json *object, const char *key, double otherwise)
{
    return json_number(json_get(object, key), otherwise);
}

bool json_get_bool(const struct json *object, const char *key, bool otherwise)
{
    return json_bool(json_get(object, key), otherwise);
}

const char *json_get_string(const struct json *object, const char *key)
{
    return json_string(json_get(object, key));
}
