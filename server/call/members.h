// SPDX-License-Identifier: Apache-2.0
/* The members of request bodies: tables (members_*.c) of what each is called, how its value looks,
 * which endpoints read it and what becomes of it. The readers of all endpoints run over it, and the
 * document of /openapi.json is made from it.
 * Thread: any; the table is constant. */
#ifndef SLUICE_SERVER_CALL_MEMBERS_H
#define SLUICE_SERVER_CALL_MEMBERS_H

#include "server/call/request.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum member_type {
    MEMBER_ANY,
    MEMBER_BOOL,
    MEMBER_INT,
    MEMBER_REAL,
    MEMBER_STRING,
    MEMBER_CHOICE, // a string out of a list
    MEMBER_OBJECT,
    MEMBER_ARRAY,
    MEMBER_STRINGS, // a string, or an array of strings
    MEMBER_IDS,     // an array of token ids
    MEMBER_PROMPTS, // a string, strings, token ids, or lists of token ids
};

enum member_use {
    MEMBER_READ,
    MEMBER_IGNORED, // it changes no answer here; its value is checked all the same
    MEMBER_REFUSED, // unless its value asks for nothing
};

struct member {
    const char *key;
    const char *about; // one line for people
    unsigned forms;    // the request forms that know it (request.h)
    enum member_type type;
    enum member_use use;
    bool required;
    bool unlisted;          // not in /openapi.json: what is taken is more than a schema can say
    bool may_be_empty;      // MEMBER_PROMPTS and MEMBER_IDS: empty texts and lists are good
    bool mixes;             // MEMBER_PROMPTS: a list may have texts and ids
    bool is_dimension;      // MEMBER_INT: the model's is the only good value
    bool is_within;         // MEMBER_INT: the model's context is the most
    const char *instead_of; // the required member that it stands for; NULL: none

    /* What values it may have. */
    int64_t min, max;    // MEMBER_INT, both inclusive
    size_t most;         // > 0: max is this int64_t of struct config; of an array: its items
    double low, high;    // MEMBER_REAL, both inclusive
    const char *choices; // "a|b|c"
    const char *off;     // MEMBER_REFUSED: the values that ask for nothing, as "false|0|[]"
    const char *why;     // and a sentence of what to do instead; NULL: none
    const char *schema;  // members of a JSON schema that say more, with ' for the quotation mark

    /* Where a plain value goes: a field of struct request. An integer or a real is as wide as
     * the field; a choice is its word, or in a narrow field its place in the list. */
    size_t offset, size;              // size 0: it is checked and not kept
    size_t flag;                      // > 0: a bool that is set to whether the member is there
    bool (*check)(struct request *r); // after a value was kept; NULL: nothing more to check

    /* Not a plain value: */
    bool (*read)(struct request *r); // reads it, and is called when it is absent, too
    const char *with;                // or: read along with the member of this name
};

/* In the order in which they are read: of several errors, the first is reported. A key may have
 * several rows, of different forms. NULL after the last. */
const struct member *member_at(size_t i);

/* The row of a key that this form reads; NULL if there is none. */
const struct member *member_find(const char *key, unsigned form);

/* The largest value of an integer, or the longest array. */
int64_t member_max(const struct member *m, const struct config *config);

/* Reads all members of the body that r->form knows. What no endpoint knows is counted, or refused
 * (--strict-parameters); what only others know is passed over. False: r->error is set. */
bool members_read(struct request *r);

#endif
