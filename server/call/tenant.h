// SPDX-License-Identifier: Apache-2.0
/* | The holder of an API key: its limits, and their current use. Calls of the same tenant share its
 * limits; without keys, all calls belong to one tenant.
 *
 * Requests and tokens are counted by token buckets that hold a minute's limit and are refilled
 * continuously. A prompt's tokens are taken when its call is admitted. An answer's tokens are taken
 * when it has ended, since their number is not known earlier; they can leave a debt, which delays
 * the next requests.
 * Thread: that of the calls. */
#ifndef SLUICE_SERVER_CALL_TENANT_H
#define SLUICE_SERVER_CALL_TENANT_H

#include "engine/base/status.h"
#include "server/call/error.h"
#include "server/config/config.h"

#include <stdbool.h>
#include <stdint.h>

struct tenant_limits {
    int32_t min_priority, max_priority;
    int64_t requests_per_minute, tokens_per_minute; // 0: no limit
    int64_t concurrent;                             // concurrent calls; 0: no limit
    double queue_share; // share of --max-num-queued-reqs that calls without a first token may use
    double cache_share; // share of the KV blocks that cached blocks of its requests may occupy
    bool cache_salt_by_key; // the tenant's prompts are cached separately from others'
};

/* The options' limits, which apply to every key. */
struct tenant_limits tenant_limits_default(const struct config *config);
/* Applies a "name=value" setting from a key's line. */
enum status tenant_limits_set(struct tenant_limits *l, const char *setting, struct err *err);

/* Checks the limits once all are set. */
enum status tenant_limits_check(const struct tenant_limits *l, struct err *err);

struct tenant_bucket {
    double left; // what may still be used; below 0: a debt
    int64_t filled_ns;
};

struct tenant {
    uint64_t id; // unique in this process, and above 0
    struct tenant_limits limits;
    struct tenant_bucket requests, tokens;
    int64_t n_calls, n_waiting; // n_waiting: sequences of calls without a token yet
    int64_t n_holders;
    char salt[33]; // random, so that no client can guess it
};

struct tenant *tenant_new(const struct tenant_limits *limits); // with one reference
struct tenant *tenant_hold(struct tenant *t);                  // returns t; accepts NULL
void tenant_drop(struct tenant *t); // the last reference frees it; accepts NULL
/* Changes the limits. What has been used stays used. */
void tenant_set_limits(struct tenant *t, const struct tenant_limits *limits);

/* Called at the start of a call. False: the tenant is over a limit, and *e is a 429. After true,
 * tenant_leave must follow. */
bool tenant_enter(struct tenant *t, int64_t now_ns, struct call_error *e);
void tenant_leave(struct tenant *t);

/* Whether a call with these prompts may be submitted. The engine's queue has `queued` sequences,
 * and room for max_queued. Takes nothing from the buckets. */
bool tenant_admits(struct tenant *t, int64_t prompt_tokens, int64_t sequences, int64_t queued,
                   int64_t max_queued, int64_t now_ns, struct call_error *e);
/* Adjusts a request's priority: 0, which is also the default, becomes the nearest allowed value.
 * False: the priority is not allowed, and *e is set. */
bool tenant_check_priority(const struct tenant *t, int32_t *priority, struct call_error *e);
/* The salt under which a request's cached blocks are shared; NULL: none. `asked` is the request's
 * own cache_salt, or NULL. The caller frees *made, which is NULL if the salt is the request's
 * own. */
const char *tenant_cache_salt(const struct tenant *t, const char *asked, char **made);
void tenant_charge(struct tenant *t, int64_t n_tokens, int64_t now_ns);

/* For OpenAI's x-ratelimit headers. */
struct tenant_rate {
    int64_t limit, remaining; // limit 0: no limit
    int64_t reset_ns;         // until `remaining` is back at the limit
};
struct tenant_rate tenant_request_rate(struct tenant *t, int64_t now_ns);
struct tenant_rate tenant_token_rate(struct tenant *t, int64_t now_ns);

#endif
