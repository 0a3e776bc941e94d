// SPDX-License-Identifier: Apache-2.0
/* Tenants: a key's limits, its buckets of requests and tokens per minute, and its share of the
 * cache. All on the loop's thread. */
#include "server/call/tenant.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- limits --------------------------------------------------------------------------------- */

/* The limits of a key for which the key file has none. */
struct tenant_limits tenant_limits_default(const struct config *c)
{
    return (struct tenant_limits){
        .min_priority = c->request_priority ? (int32_t)c->key_min_priority : 0,
        .max_priority = c->request_priority ? (int32_t)c->key_max_priority : 0,
        .requests_per_minute = c->key_requests_per_minute,
        .tokens_per_minute = c->key_tokens_per_minute,
        .concurrent = c->key_concurrent,
        .queue_share = c->key_queue_share,
        .cache_share = c->key_cache_share,
        .cache_salt_by_key = c->cache_salt_by_key,
    };
}

enum setting_type { SETTING_INT32, SETTING_INT64, SETTING_SHARE, SETTING_BOOL };

#define AT(member) offsetof(struct tenant_limits, member)

/* The settings are named like the options for all keys, without "key-". */
static const struct {
    const char *name;
    enum setting_type type;
    size_t offset;
} settings[] = {
    {"min-priority", SETTING_INT32, AT(min_priority)},
    {"max-priority", SETTING_INT32, AT(max_priority)},
    {"requests-per-minute", SETTING_INT64, AT(requests_per_minute)},
    {"tokens-per-minute", SETTING_INT64, AT(tokens_per_minute)},
    {"concurrent", SETTING_INT64, AT(concurrent)},
    {"queue-share", SETTING_SHARE, AT(queue_share)},
    {"cache-share", SETTING_SHARE, AT(cache_share)},
    {"cache-salt-by-key", SETTING_BOOL, AT(cache_salt_by_key)},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

/* Reads an integer with strtoll, checking all errors. */
static bool set_integer(void *to, enum setting_type type, const char *text)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno) {
        return false;
    }
    if (type == SETTING_INT32) {
        *(int32_t *)to = (int32_t)v;
        return v >= INT32_MIN && v <= INT32_MAX;
    }
    *(int64_t *)to = v;
    return v >= 0 && v <= INT64_C(1) << 50;
}

static bool set_share(double *to, const char *text)
{
    char *end;
    *to = strtod(text, &end);
    return end != text && !*end && *to >= 0 && *to <= 1;
}

static bool set_bool(bool *to, const char *text)
{
    *to = strcmp(text, "true") == 0;
    return *to || strcmp(text, "false") == 0;
}

/* Sets a value of the setting's type. */
static bool set_value(void *to, enum setting_type type, const char *text)
{
    switch (type) {
    case SETTING_SHARE: return set_share(to, text);
    case SETTING_BOOL: return set_bool(to, text);
    default: return set_integer(to, type, text);
    }
}

/* "name=value", as in the key file. */
enum status tenant_limits_set(struct tenant_limits *l, const char *setting, struct err *err)
{
    size_t n = strcspn(setting, "="), i = 0;
    while (i < N_SETTINGS &&
           (strlen(settings[i].name) != n || memcmp(settings[i].name, setting, n) != 0)) {
        i++;
    }
    if (i == N_SETTINGS) {
        return err_set(err, ERR_FORMAT, "unknown setting '%.*s'", (int)lesser(n, 30), setting);
    }
    void *to = (char *)l + settings[i].offset;
    const char *value = setting + n + (setting[n] == '=');
    static const char *const wanted[] = {
        [SETTING_INT32] = "a number in its range",
        [SETTING_INT64] = "a number in its range",
        [SETTING_SHARE] = "a share from 0 to 1",
        [SETTING_BOOL] = "true or false",
    };
    if (!set_value(to, settings[i].type, value)) {
        return err_set(err, ERR_FORMAT, "%s: '%.30s' is not %s", settings[i].name, value,
                       wanted[settings[i].type]);
    }
    return OK;
}

enum status tenant_limits_check(const struct tenant_limits *l, struct err *err)
{
    if (l->min_priority <= l->max_priority) {
        return OK;
    }
    return err_set(err, ERR_FORMAT, "a key's min-priority is above its max-priority");
}

/* ---- buckets -------------------------------------------------------------------------------- */

/* Refills the bucket for the time since the last call, up to the limit. */
static void fill(struct tenant_bucket *b, int64_t per_minute, int64_t now_ns)
{
    if (now_ns > b->filled_ns) {
        b->left += (double)(now_ns - b->filled_ns) / 60e9 * (double)per_minute;
        b->filled_ns = now_ns;
    }
    if (b->left > (double)per_minute) {
        b->left = (double)per_minute;
    }
}

static int64_t wait_ns(const struct tenant_bucket *b, int64_t per_minute, double wanted)
{
    if (wanted > b->left) {
        return (int64_t)((wanted - b->left) * 60e9 / (double)per_minute);
    }
    return 0;
}

/* For the headers that tell clients how much is left. */
static struct tenant_rate rate_of(struct tenant_bucket *b, int64_t per_minute, int64_t now_ns)
{
    struct tenant_rate r = {.limit = per_minute};
    if (per_minute > 0) {
        fill(b, per_minute, now_ns);
        r.remaining = b->left > 0 ? (int64_t)b->left : 0;
        r.reset_ns = wait_ns(b, per_minute, (double)per_minute);
    }
    return r;
}

struct tenant_rate tenant_request_rate(struct tenant *t, int64_t now_ns)
{
    return rate_of(&t->requests, t->limits.requests_per_minute, now_ns);
}

struct tenant_rate tenant_token_rate(struct tenant *t, int64_t now_ns)
{
    return rate_of(&t->tokens, t->limits.tokens_per_minute, now_ns);
}

/* ---- tenants -------------------------------------------------------------------------------- */

/* Random, so that no client can guess another one's cache. */
static void draw_salt(char *to, size_t size)
{
    uint64_t bits[2];
    // an old kernel: derive it from the process's key
    if (getrandom(bits, sizeof bits, 0) != sizeof bits) {
        static uint64_t count;
        bits[0] = hash_mix(hash_process_key() + ++count);
        bits[1] = hash_mix(hash_process_key() ^ bits[0]);
    }
    snprintf(to, size, "%016" PRIx64 "%016" PRIx64, bits[0], bits[1]);
}

/* The tenant's salt in front of the client's own, so that tenants never share a prefix. */
const char *tenant_cache_salt(const struct tenant *t, const char *asked, char **made)
{
    *made = NULL;
    if (!t || !t->limits.cache_salt_by_key) {
        return asked;
    }
    size_t n = sizeof t->salt + (length_or_0(asked));
    *made = xmalloc(n);
    snprintf(*made, n, "%s%s", t->salt, or_empty(asked));
    return *made;
}

/* Buckets are full at first. */
struct tenant *tenant_new(const struct tenant_limits *limits)
{
    static uint64_t last_id;
    struct tenant *t = xcalloc(1, sizeof *t);
    t->id = ++last_id;
    t->n_holders = 1;
    t->limits = *limits;
    draw_salt(t->salt, sizeof t->salt);
    t->requests.left = (double)limits->requests_per_minute;
    t->tokens.left = (double)limits->tokens_per_minute;
    return t;
}

struct tenant *tenant_hold(struct tenant *t)
{
    if (t) {
        t->n_holders++;
    }
    return t;
}

void tenant_drop(struct tenant *t)
{
    if (t && --t->n_holders == 0) {
        free(t);
    }
}

/* Changes the limits, and the contents of the buckets by the same amounts. */
void tenant_set_limits(struct tenant *t, const struct tenant_limits *l)
{
    t->requests.left += (double)(l->requests_per_minute - t->limits.requests_per_minute);
    t->tokens.left += (double)(l->tokens_per_minute - t->limits.tokens_per_minute);
    t->limits = *l;
}

/* OpenAI's wording; the type names the exceeded limit. */
static bool refuse(struct call_error *e, const char *type, int64_t after_ns, const char *what,
                   int64_t limit)
{
    e->type = type;
    e->retry_after_s = (int)ceil((double)after_ns * 1e-9);
    if (e->retry_after_s <= 0) {
        e->retry_after_s = 1;
    }
    return call_error_set(e, 429, "rate_limit_exceeded", NULL,
                          "Rate limit reached: this API key may have %" PRId64 " %s. Please try "
                          "again in %d s.",
                          limit, what, e->retry_after_s);
}

/* Counts a call, unless too many are running or have begun in this minute. */
bool tenant_enter(struct tenant *t, int64_t now_ns, struct call_error *e)
{
    const struct tenant_limits *l = &t->limits;
    if (l->concurrent > 0 && t->n_calls >= l->concurrent) {
        return refuse(e, "requests", 0, "requests at once", l->concurrent);
    }
    if (l->requests_per_minute > 0) {
        fill(&t->requests, l->requests_per_minute, now_ns);
        if (t->requests.left < 1) {
            return refuse(e, "requests", wait_ns(&t->requests, l->requests_per_minute, 1),
                          "requests a minute", l->requests_per_minute);
        }
        t->requests.left -= 1;
    }
    t->n_calls++;
    return true;
}

void tenant_leave(struct tenant *t)
{
    t->n_calls--;
}

/* Called when the prompt's length is known. */
bool tenant_admits(struct tenant *t, int64_t prompt_tokens, int64_t sequences, int64_t queued,
                   int64_t max_queued, int64_t now_ns, struct call_error *e)
{
    const struct tenant_limits *l = &t->limits;
    if (l->tokens_per_minute > 0) {
        fill(&t->tokens, l->tokens_per_minute, now_ns);
        // A prompt larger than the limit per minute is admitted if there is no debt.
        int64_t most = l->tokens_per_minute;
        double wanted = (double)lesser(prompt_tokens, most);
        if (t->tokens.left < wanted) {
            return refuse(e, "tokens", wait_ns(&t->tokens, most, wanted), "tokens a minute", most);
        }
    }
    int64_t share = (int64_t)(l->queue_share * (double)max_queued);
    if (l->queue_share < 1 && queued > 0 && t->n_waiting + sequences > share) {
        return refuse(e, "requests", 0, "places in the queue", share);
    }
    return true;
}

/* Clients that ask for no priority get the nearest one that the key allows. */
bool tenant_check_priority(const struct tenant *t, int32_t *priority, struct call_error *e)
{
    int32_t least = t->limits.min_priority, most = t->limits.max_priority;
    if (*priority >= least && *priority <= most) {
        return true;
    }
    if (*priority == 0) {
        *priority = least > 0 ? least : most;
        return true;
    }
    return call_error_set(e, 400, "invalid_value", "priority",
                          "Invalid 'priority': %d. It may be from %d to %d here.", *priority, least,
                          most);
}

void tenant_charge(struct tenant *t, int64_t n_tokens, int64_t now_ns)
{
    if (t->limits.tokens_per_minute > 0) {
        fill(&t->tokens, t->limits.tokens_per_minute, now_ns);
        t->tokens.left -= (double)n_tokens;
    }
}
