// SPDX-License-Identifier: Apache-2.0
/* The adapters that requests may name. Each has a place, as in engine_request: from 1 on. A request
 * that names an adapter takes its place until it ends, and a place is given to another adapter only
 * when no request has it; so an adapter that is removed still answers its last requests.
 * Thread: any. */
#ifndef SLUICE_SERVER_CALL_ADAPTERS_H
#define SLUICE_SERVER_CALL_ADAPTERS_H

#include "server/config/config.h"

struct call_adapters;

/* Those of the options have the first places. */
struct call_adapters *call_adapters_open(const struct config *config);
void call_adapters_close(struct call_adapters *a); // accepts NULL

/* The place of the adapter of this name, which the caller has then taken; 0: there is none. *its:
 * the adapter's own name, valid until call_adapters_close. */
int32_t call_adapters_take(struct call_adapters *a, const char *name, const char **its);
void call_adapters_give(struct call_adapters *a, int32_t place); // 0: has no effect

struct call_adapter {
    const char *name, *dir; // valid until call_adapters_close
    int32_t place;
    int32_t n_users; // requests that have taken its place
};
/* Lists the adapters that can be named, in the order in which they were loaded. */
int32_t call_adapters_list(struct call_adapters *a, struct call_adapter out[MAX_ADAPTERS]);
int32_t call_adapters_places(const struct call_adapters *a);

/* To load an adapter: reserves a free place (0: there is none), which is then published, or given
 * up. What had the published name before is removed. */
int32_t call_adapters_reserve(struct call_adapters *a);
void call_adapters_publish(struct call_adapters *a, int32_t place, const char *name,
                           const char *dir);
void call_adapters_give_up(struct call_adapters *a, int32_t place);
bool call_adapters_remove(struct call_adapters *a, const char *name); // false: there is none

#endif
