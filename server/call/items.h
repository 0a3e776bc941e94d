// SPDX-License-Identifier: Apache-2.0
/* Items of responses as they are kept in conversations: one by one, each with an id.
 * Thread: any; nothing shared. */
#ifndef SLUICE_SERVER_CALL_ITEMS_H
#define SLUICE_SERVER_CALL_ITEMS_H

#include "engine/base/json.h"
#include "server/call/error.h"
#include "server/store/store.h"

/* False: *e says which is wrong. Items of other kinds could not be read by a response. */
bool items_check(const struct json *array, const char *param, struct call_error *e);

/* Appends the array's items in their long form. An item keeps its id if it has a short one. False:
 * there is no memory. */
bool items_take(const struct json *array, struct stored_item **items, size_t *n);
/* The same of JSON texts that are joined by commas; false also if they are no JSON. */
bool items_take_text(const char *joined, size_t n_bytes, struct stored_item **items, size_t *n);

#endif
