// SPDX-License-Identifier: Apache-2.0
/* U+0000 in JSON that becomes a tree, whose strings end at a NUL: another character, one that the
 * text does not contain, stands for it until the tree is written as text again.
 * Thread: any; nothing shared. */
#ifndef SLUICE_SERVER_CALL_STAND_IN_H
#define SLUICE_SERVER_CALL_STAND_IN_H

#include "engine/base/buf.h"

struct stand_in {
    char utf8[4];    // the character; "": none was needed
    char escaped[7]; // as JSON, "\\ufffe"
};

/* The first \u0000 of n bytes of JSON, not counting what follows an escaped backslash; or NULL. */
char *stand_in_find_nul(char *json, size_t n_bytes);
/* False: the text contains all of Unicode's noncharacters. */
bool stand_in_choose(struct stand_in *s, const char *json, size_t n_bytes);
bool stand_in_occurs(const struct stand_in *s, const char *json, size_t n_bytes);
/* Replaces every \u0000, in place. */
void stand_in_hide(const struct stand_in *s, char *json, size_t n_bytes);
/* Restores U+0000 in JSON text that was generated from the tree. */
void stand_in_put_back(const struct stand_in *s, struct buf *json);

#endif
