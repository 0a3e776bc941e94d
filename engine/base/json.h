// SPDX-License-Identifier: Apache-2.0
/* A bounded tree of JSON values, for requests and small files: cJSON after a pre-scan (UTF-8, no
 * NUL, depth, number of values). Nodes live as long as the document. For large files, and where the
 * text of numbers matters, see json_scan.h.
 * Thread: one owner; any thread may read a document that no longer changes. */
#ifndef SLUICE_BASE_JSON_H
#define SLUICE_BASE_JSON_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json; // a node; the document is its root node

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_limits {
    int max_depth;     // 0 means 64
    size_t max_values; // 0 means 1,000,000
};

/* The caller frees *root with json_free. `limits` may be NULL. ERR_UNSUPPORTED: valid JSON that
 * contains U+0000 in a string. ERR_NOMEM: out of memory; the text may be valid. */
enum status json_parse(const char *text, size_t n_bytes, const struct json_limits *limits,
                       struct json **root, struct err *err);
enum status json_parse_file(const char *path, size_t max_bytes, struct json **root,
                            struct err *err);
void json_free(struct json *root); // accepts NULL

/* All readers accept NULL and nodes of another type, which they treat as absent. */
enum json_type json_type(const struct json *node); // JSON_NULL for NULL
const char *json_type_name(enum json_type type);
bool json_is(const struct json *node, enum json_type type);

/* Member of an object; NULL if absent. Keys are compared exactly; of equal keys the last one
 * wins. */
const struct json *json_get(const struct json *object, const char *key);

/* Copies each member of `from` whose key `object` lacks; a member that is null counts as present.
 * Call it before the document is shared. False: memory ran out, and members are missing. */
bool json_add_missing(struct json *object, const struct json *from);

/* json_put replaces the members of `object` that have the key of `member` by a copy of `member`;
 * json_remove removes all members with that key. Call them before the document is shared. False:
 * memory ran out. */
bool json_put(struct json *object, const struct json *member);
void json_remove(struct json *object, const char *key);
/* Gives the member `from` a new key, unless `object` already has a member with that key. */
bool json_rename(struct json *object, const char *from, const char *to);

size_t json_count(const struct json *array_or_object); // O(n)
const struct json *json_first(const struct json *array_or_object);
const struct json *json_next(const struct json *child);
const char *json_key(const struct json *child); // the key of an object's child

const char *json_string(const struct json *node); // NULL if not a string
double json_number(const struct json *node, double otherwise);
bool json_bool(const struct json *node, bool otherwise);

/* True if the node is a number with an integral value within +-2^53. */
bool json_int64(const struct json *node, int64_t *v);

/* Shorthands for json_get. A member of the wrong type counts as absent. */
int64_t json_get_int(const struct json *object, const char *key, int64_t otherwise);
double json_get_number(const struct json *object, const char *key, double otherwise);
bool json_get_bool(const struct json *object, const char *key, bool otherwise);
const char *json_get_string(const struct json *object, const char *key); // NULL if absent

#endif
