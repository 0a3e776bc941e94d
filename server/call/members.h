// SPDX-License-Identifier: Apache-2.0
/* The members of request bodies: tables (members_*.c) with each member's name, type and range, the
 * endpoints that accept it, and how it is stored. All endpoints read their bodies by these tables,
 * and /openapi.json is generated from them.
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
    MEMBER_IGNORED, // the member does not change the answer; its value is checked
    MEMBER_REFUSED, // refused, unless its value is one of `off`, which request nothing
};

struct member {
    const char *key;
    const char *about; // one line for people
    unsigned forms;    // the forms of requests that have it (request.h)
    enum member_type type;
    enum member_use use;
    bool required;
    bool unlisted;          // not in /openapi.json: a schema cannot describe all accepted values,
                            // or no client needs to know the member
    bool may_be_empty;      // MEMBER_PROMPTS and MEMBER_IDS: empty texts and lists are valid
    bool empty_if_added;    // MEMBER_PROMPTS: empty texts are valid if the tokenizer adds a token
    bool mixes;             // MEMBER_PROMPTS: a list may mix texts and ids
    bool is_dimension;      // MEMBER_INT: only the length of the model's vectors is valid
    bool is_within;         // MEMBER_INT: at most the model's context
    bool has_ids;           // MEMBER_OBJECT: its keys are token ids
    bool is_share;          // MEMBER_INT: up to the vocabulary's size; -1: all of it, if allowed
    bool may_be_false;      // MEMBER_INT: false counts as absent
    const char *instead_of; // the required member that this one can replace; NULL: none
    bool is_rival;          // instead_of: a body must not have both
    bool limits_reasoning;  // refused for models whose reasoning cannot be told from answers

    /* The values that the member may have. */
    int64_t min, max;    // MEMBER_INT, both inclusive
    size_t most;         // if > 0: offset in struct config of the maximum length of an array
    double low, high;    // MEMBER_REAL, both inclusive
    const char *choices; // "a|b|c"
    const char *off;     // MEMBER_REFUSED: values that request nothing, as "false|0|[]"
    const char *why;     // MEMBER_REFUSED: a sentence on what to do instead; NULL: none
    const char *schema;  // more members of the JSON schema, with ' for the quotation mark

    /* Where a plain value goes: a field of struct request. An integer or a real is stored with the
     * width of the field; a choice is stored as a string, or in a narrow field as its index in the
     * list. */
    size_t offset, size; // size 0: checked, but not stored
    size_t flag;         // if > 0: offset of a bool that tells whether the member is present
    bool (*check)(struct request *r); // called after the value was stored; may be NULL

    /* Not a plain value: */
    bool (*read)(struct request *r); // reads the member; also called if it is absent
    const char *with; // otherwise: the member is read together with the one of this name
};

/* The row at this index; NULL after the last. Members are read in this order, and of several errors
 * the first is reported. A key may have several rows, for different forms. */
const struct member *member_at(size_t i);

/* The row of a key that this form reads; NULL if there is none. */
const struct member *member_find(const char *key, unsigned form);

/* member_min: the smallest value of an integer. member_max: its largest value, or the maximum
 * length of an array. */
int64_t member_min(const struct member *m, const struct config *config);
int64_t member_max(const struct member *m, const struct config *config);

/* Reads all members of the body that r->form knows. Members that no endpoint knows are counted, or
 * refused with --strict-parameters; members that only other endpoints know are ignored. False:
 * r->error is set. */
bool members_read(struct request *r);

#endif
