// SPDX-License-Identifier: Apache-2.0
/* One holder of an API key: what he may ask for, and what he has asked. Calls of the same tenant
 * share its limits; where there are no keys, all calls have one tenant.
 *
 * Requests and tokens are counted by buckets that hold what a minute allows and fill up evenly. A
 * prompt's tokens are taken when its call is admitted, an answer's when it has ended: what was not
 * known before is a debt that the next requests wait for.
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
    int64_t concurrent;                             // calls at once; 0: no limit
    double queue_share;     // of --max-num-queued-reqs, for what waits for its first token
    double cache_share;     // of the KV blocks, for what its requests leave in the prefix cache
    bool cache_salt_by_key; // its prompts are cached for itself alone
};

/* What the options say of every key. */
struct tenant_limits tenant_limits_default(const struct config *config);
/* "name=value" of a key's row. */
enum status tenant_limits_set(struct tenant_limits *l, const char *setting, struct err *err);

/* When all are set. */
enum status tenant_limits_check(const struct tenant_limits *l, struct err *err);

struct tenant_bucket {
    double left; // below 0: a debt
    int64_t filled_ns;
};

struct tenant {
    uint64_t id; // of no other in this process, and above 0
    struct tenant_limits limits;
    struct tenant_bucket requests, tokens;
    int64_t n_calls, n_waiting; // n_waiting: sequences of calls without a token yet
    int64_t n_holders;
    char salt[33]; // drawn at random, so that no request can say it
};

struct tenant *tenant_new(const struct tenant_limits *limits); // with one holder
struct tenant *tenant_hold(struct tenant *t);                  // returns t; accepts NULL
void tenant_drop(struct tenant *t); // the last one frees it; accepts NULL
/* Other limits from now on. What is used up stays used up. */
void tenant_set_limits(struct tenant *t, const struct tenant_limits *limits);

/* A call begins. False: it may not, and *e is a 429; else tenant_leave must follow. */
bool tenant_enter(struct tenant *t, int64_t now_ns, struct call_error *e);
void tenant_leave(struct tenant *t);

/* Whether a call with such prompts may go to the engine, where `queued` sequences wait already, of
 * max_queued. It takes nothing. */
bool tenant_admits(struct tenant *t, int64_t prompt_tokens, int64_t sequences, int64_t queued,
                   int64_t max_queued, int64_t now_ns, struct call_error *e);
/* The priority that a request gets: 0, which is also that of one that says none, goes to the
 * nearest that is allowed. False: *e is set. */
bool tenant_check_priority(const struct tenant *t, int32_t *priority, struct call_error *e);
/* What a request's cached blocks are shared under, given its own cache_salt or NULL; NULL: nothing.
 * *made is the caller's to free, and NULL if the salt is the request's own. */
const char *tenant_cache_salt(const struct tenant *t, const char *asked, char **made);
void tenant_charge(struct tenant *t, int64_t n_tokens, int64_t now_ns);

/* For OpenAI's x-ratelimit headers. */
struct tenant_rate {
    int64_t limit, remaining; // limit 0: there is none
    int64_t reset_ns;         // until all of it is there again
};
struct tenant_rate tenant_request_rate(struct tenant *t, int64_t now_ns);
struct tenant_rate tenant_token_rate(struct tenant *t, int64_t now_ns);

#endif
