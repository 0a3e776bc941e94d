// SPDX-License-Identifier: Apache-2.0
/* The body of a request: bounded JSON, read once, and typed access to its top-level members with
 * the API's error for each that is wrong. Long arrays of token ids are read without a tree; whole
 * numbers keep all 64 bits.
 * Thread: one owner; nothing shared. */
#ifndef SLUICE_SERVER_CALL_BODY_H
#define SLUICE_SERVER_CALL_BODY_H

#include "engine/base/arena.h"
#include "engine/base/json.h"
#include "server/call/error.h"

#include <stddef.h>
#include <stdint.h>

enum { BODY_MAX_MEMBERS = 256 };

struct body_member {
    const char *key;   // unescaped, in the arena
    const char *start; // of the value, in the body's text
    size_t n_bytes;
    const struct json *node; // NULL for an array of ids
    /* It has U+0000 in a string. In the tree that is the body's stand-in, for its strings end with
     * a NUL: who wants the true text reads it from `start`, or puts it back (body_put_nuls_back).
     * Only where readers do so; elsewhere a body with a U+0000 is refused. */
    bool has_nul;
};

/* A character that a text does not have, in the place of U+0000. */
struct stand_in {
    char utf8[4];    // "": none was needed
    char escaped[7]; // as JSON, "\\ufffe"
};

struct body {
    struct arena *arena;
    struct json *root;
    size_t n_members, cap;
    struct body_member *members; // [cap], in the arena
    struct stand_in nul;
    struct call_error *error;
};

/* `text` is changed (arrays of ids are blanked) and must live as long as the body. False: *error
 * is set. body_close in any case. */
bool body_open(struct body *b, char *text, size_t n_bytes, struct arena *arena,
               struct call_error *error);
void body_close(struct body *b); // accepts a zeroed struct

/* Members of the object `key` are members of the body, where it has none of that name. */
void body_lift(struct body *b, const char *key);

/* The last member of this name; NULL if absent or null. */
const struct body_member *body_get(const struct body *b, const char *key);
bool body_has(const struct body *b, const char *key);

/* Each returns true when the member is there and good, and then *v is set. When it is there and
 * wrong, the error is set. */
bool body_bool(struct body *b, const char *key, bool *v);
bool body_int(struct body *b, const char *key, int64_t min, int64_t max, int64_t *v);
bool body_real(struct body *b, const char *key, double min, double max, double *v);
bool body_string(struct body *b, const char *key, const char **v);
bool body_object(struct body *b, const char *key, const struct json **v);
bool body_array(struct body *b, const char *key, const struct json **v);
/* One of "a|b|c"; *index tells which. */
bool body_choice(struct body *b, const char *key, const char *choices, int *index);

/* For a text that came from elsewhere, and is read into trees beside the body's: hides its U+0000
 * in place, behind the body's stand-in. False: there is no character that both lack. */
bool body_hide_nuls(struct body *b, const char *body_text, size_t body_bytes, char *text,
                    size_t n_bytes);
/* JSON text that was made out of the trees gets its U+0000 back. */
void body_put_nuls_back(const struct body *b, struct buf *json);
/* The same of a plain string; the result is the string itself, or in the arena (NULL: too large).
 */
const char *body_text(const struct body *b, const char *string, size_t *n_bytes);

/* "Invalid type for 'x': expected a string, but got an object instead." */
bool body_wrong_type(struct call_error *e, const char *param, const char *expected,
                     const struct json *got);

/* Lists of ids, in the arena. */
struct id_list {
    const int32_t *ids;
    size_t n;
};

/* An array of ids >= 0, or an array of such arrays; false if the member is something else (no error
 * then) or has a bad item (error set). */
bool body_id_lists(struct body *b, const char *key, size_t max_lists, struct id_list **lists,
                   size_t *n_lists);

#endif
