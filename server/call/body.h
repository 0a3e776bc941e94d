// SPDX-License-Identifier: Apache-2.0
/* The body of a request: limited JSON, parsed once, and typed access to its top-level members, with
 * the API's error for invalid ones. Long arrays of token ids are parsed without a tree; integers
 * keep all 64 bits.
 * Thread: one owner; nothing shared. */
#ifndef SLUICE_SERVER_CALL_BODY_H
#define SLUICE_SERVER_CALL_BODY_H

#include "engine/base/arena.h"
#include "engine/base/json.h"
#include "server/call/error.h"
#include "server/call/stand_in.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BODY_MAX_MEMBERS = 256 };

struct body_member {
    const char *key;   // unescaped, in the arena
    const char *start; // where the value starts in the text of the body
    size_t n_bytes;
    const struct json *node; // the value's tree; NULL for an array of ids
    /* A string contains U+0000. The tree has the body's stand-in instead, because its strings are
     * NUL-terminated: the exact text can be read from `start`, or restored (body_put_nuls_back).
     * Readers do that for the members in which it is allowed (members_read). */
    bool has_nul;
};

struct body {
    struct arena *arena;
    struct json *root;
    size_t n_members, cap;
    struct body_member *members; // [cap], in the arena
    struct stand_in nul;
    struct call_error *error;
};

/* `text` is modified (arrays of ids are blanked) and must live as long as the body. False: *error
 * is set. Call body_close in any case. */
bool body_open(struct body *b, char *text, size_t n_bytes, struct arena *arena,
               struct call_error *error);
void body_close(struct body *b); // accepts a zeroed struct

/* Moves the members of the object `key` up into the body, except those whose names the body has
 * already. */
void body_lift(struct body *b, const char *key);

/* Renames the member `from` to `to`, unless the body already has a member of that name. */
void body_rename(struct body *b, const char *from, const char *to);

/* The last member of this name; NULL if absent or null. */
const struct body_member *body_get(const struct body *b, const char *key);
bool body_has(const struct body *b, const char *key);

/* Each sets *v and returns true if the member is present and valid. If it is invalid, the error is
 * set. */
bool body_bool(struct body *b, const char *key, bool *v);
bool body_int(struct body *b, const char *key, int64_t min, int64_t max, int64_t *v);
bool body_real(struct body *b, const char *key, double min, double max, double *v);
bool body_string(struct body *b, const char *key, const char **v);
bool body_object(struct body *b, const char *key, const struct json **v);
bool body_array(struct body *b, const char *key, const struct json **v);
/* One of "a|b|c"; *index is its position. */
bool body_choice(struct body *b, const char *key, const char *choices, int *index);

/* For a text from another source whose tree is used together with the body's: replaces U+0000 in
 * that text with the body's stand-in, in place. False: every possible stand-in occurs in one of the
 * two texts. */
bool body_hide_nuls(struct body *b, const char *body_text, size_t body_bytes, char *text,
                    size_t n_bytes);
/* Restores U+0000 in JSON text that was generated from the trees. */
void body_put_nuls_back(const struct body *b, struct buf *json);
/* The same for a plain string. Returns the string itself, or a copy in the arena; NULL: too
 * large. */
const char *body_text(const struct body *b, const char *string, size_t *n_bytes);
/* True if the string has the stand-in. False for NULL. */
bool body_text_has_nul(const struct body *b, const char *string);

/* "Invalid type for 'x': expected a string, but got an object instead." */
bool body_wrong_type(struct call_error *e, const char *param, const char *expected,
                     const struct json *got);

/* Lists of ids, in the arena. */
struct id_list {
    const int32_t *ids;
    size_t n;
};

/* The number just scanned, if it is whole: 5.0 and 5e0 count as 5. */
struct json_scan;
bool body_whole_id(const struct json_scan *sc, int64_t *id);

/* An array of ids >= 0, or an array of such arrays; false if the member has another type (without
 * an error) or an invalid item (error set). */
bool body_id_lists(struct body *b, const char *key, size_t max_lists, struct id_list **lists,
                   size_t *n_lists);

#endif
