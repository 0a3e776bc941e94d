// SPDX-License-Identifier: Apache-2.0
/* Items of responses as stored in conversations: individually, each with an id.
 * Thread: any; nothing shared. */
#ifndef SLUICE_SERVER_CALL_ITEMS_H
#define SLUICE_SERVER_CALL_ITEMS_H

#include "engine/base/json.h"
#include "server/call/error.h"
#include "server/call/stand_in.h"
#include "server/store/store.h"

/* False: *e names the invalid one. Only types that a response can read as input are valid. */
bool items_check(const struct json *array, const char *param, struct call_error *e);

/* Appends the array's items in their long form. Items keep their id unless it is too long. `nul`
 * stands for U+0000 in the array. False: out of memory. */
bool items_take(const struct json *array, const struct stand_in *nul, struct stored_item **items,
                size_t *n);
/* The array of JSON texts separated by commas, with a stand-in for U+0000; NULL if they are not
 * JSON, or too large. The caller frees it. */
struct json *items_parse(const char *joined, size_t n_bytes, struct stand_in *nul);
/* items_take for JSON texts separated by commas; also returns false if they are not JSON. */
bool items_take_text(const char *joined, size_t n_bytes, struct stored_item **items, size_t *n);

#endif
