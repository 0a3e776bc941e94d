// SPDX-License-Identifier: Apache-2.0
/* Values of a JSON text as written, because a tree loses the spelling of numbers and the order of
 * equal keys.
 * Thread: any. */
#ifndef SLUICE_SERVER_CALL_SLICE_H
#define SLUICE_SERVER_CALL_SLICE_H

#include "engine/base/json_scan.h"

struct slice {
    const char *s; // NULL: absent
    size_t n;
};

/* The value at a path of keys, separated by '/'; of equal keys the last one counts. */
struct slice slice_at(struct slice value, const char *path);

/* Iterates over the items of an array. */
struct slice_items {
    struct json_scan scan;
    struct slice array;
};
void slice_items(struct slice_items *it, struct slice array);
struct slice slice_next(struct slice_items *it);

#endif
