// SPDX-License-Identifier: Apache-2.0
/* Calls of HTTP requests: the link between a call and its request, and the rate-limit headers. */
#include "server/api/api_call.h"

#include "engine/base/clock.h"
#include "server/api/log_request.h"
#include "server/call/tenant.h"

#include <stdio.h>
#include <stdlib.h>

/* Formats a duration as OpenAI does: "12ms", "1s", "6m0s". */
static void print_duration(char *to, size_t size, int64_t ns)
{
    int64_t ms = (ns + 999999) / 1000000, s = (ms + 999) / 1000;
    if (ms < 1000) {
        snprintf(to, size, "%lldms", (long long)ms);
    } else if (s < 60) {
        snprintf(to, size, "%llds", (long long)s);
    } else {
        snprintf(to, size, "%lldm%llds", (long long)(s / 60), (long long)(s % 60));
    }
}

/* Adds OpenAI's headers for limit, remaining and reset. Does nothing without a limit. */
static void put_rate(struct http_request *req, const char *of_what, struct tenant_rate rate)
{
    char name[48], text[32];
    if (rate.limit == 0) {
        return;
    }
    snprintf(name, sizeof name, "x-ratelimit-limit-%s", of_what);
    snprintf(text, sizeof text, "%lld", (long long)rate.limit);
    http_reply_header(req, name, text);
    snprintf(name, sizeof name, "x-ratelimit-remaining-%s", of_what);
    snprintf(text, sizeof text, "%lld", (long long)rate.remaining);
    http_reply_header(req, name, text);
    snprintf(name, sizeof name, "x-ratelimit-reset-%s", of_what);
    print_duration(text, sizeof text, rate.reset_ns);
    http_reply_header(req, name, text);
}

void api_call_put_rates(struct http_request *req, struct tenant *t)
{
    int64_t now_ns = clock_now_ns();
    put_rate(req, "requests", tenant_request_rate(t, now_ns));
    put_rate(req, "tokens", tenant_token_rate(t, now_ns));
}

/* Ends the link between call and request. Copies what the request's log line needs, since the call
 * may continue. */
struct http_request *api_call_take_request(struct call *c)
{
    struct http_request *req = api_call_of(c)->req;
    struct api_log *log = api_log(req);
    api_call_of(c)->req = NULL;
    log->call = c->record;
    if (c->record.n_prompt_tokens >= 0) {
        snprintf(log->model, sizeof log->model, "%s", c->request.model_name);
    }
    return req;
}

void api_call_over(struct call *c)
{
    tenant_leave(c->tenant);
    tenant_drop(c->tenant);
    free(api_call_of(c)->conversation);
    free(api_call_of(c));
}
