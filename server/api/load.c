// SPDX-License-Identifier: Apache-2.0
/* The engine's current load, and load reports in answers in the ORCA format of load balancers: the
 * header `endpoint-load-metrics`, for a request that has `endpoint-load-metrics-format: TEXT` or
 * `JSON`. Names as in vLLM. */
#include "engine/engine.h"
#include "server/api/api.h"

#include <stdio.h>
#include <strings.h>

void api_put_stats(struct api *a, struct engine_stats *s)
{
    *s = (struct engine_stats){.state = ENGINE_READY};
    if (a->ready) {
        engine_stats(a->calls.engine, s);
    }
}

double api_kv_usage(const struct engine_stats *s)
{
    return engine_stats_usage(s);
}

void orca_put_header(struct api *a, struct http_request *req)
{
    const char *format = http_header(req, "endpoint-load-metrics-format");
    bool text = format && strcasecmp(format, "text") == 0;
    if (!text && !(format && strcasecmp(format, "json") == 0)) {
        return;
    }
    struct engine_stats s;
    char line[256];
    api_put_stats(a, &s);
    snprintf(line, sizeof line,
             text ? "TEXT named_metrics.kv_cache_usage_perc=%.6g, "
                    "named_metrics.num_requests_waiting=%.1f, "
                    "named_metrics.num_requests_running=%.1f"
                  : "JSON {\"named_metrics\": {\"kv_cache_usage_perc\": %.6g, "
                    "\"num_requests_waiting\": %.1f, \"num_requests_running\": %.1f}}",
             api_kv_usage(&s), (double)engine_stats_queued(&s), (double)s.n_running);
    http_reply_header(req, "endpoint-load-metrics", line);
}
