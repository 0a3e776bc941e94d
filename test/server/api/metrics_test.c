// SPDX-License-Identifier: Apache-2.0
/* The text of /metrics: a line for each member of the enums whose names it has, and for each route,
 * method and status. */
#include "server/api/api.h"

#include "engine/engine.h"
#include "engine/info.h"
#include "test/check.h"

static int n_lines(const struct buf *text, const char *start)
{
    int n = 0;
    for (const char *p = text->data; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        n += strncmp(p, start, strlen(start)) == 0;
    }
    return n;
}

static void print(const struct metrics *m, const struct engine_stats *stats, struct buf *out)
{
    static const struct engine_info info = {.kv_cache_dtype = "bfloat16"};
    const struct call_counts counts = {0};
    const struct batches_counts batches = {0};
    const struct metrics_source s = {.model_name = "m",
                                     .version = "0",
                                     .stats = stats,
                                     .info = &info,
                                     .counts = &counts,
                                     .batches = &batches,
                                     .health = HEALTH_DRAINING};
    buf_init(out, 4 << 20);
    metrics_print(m, &s, out);
    buf_putc(out, '\0');
    CHECK(!out->failed);
}

TEST(every_name_is_there)
{
    struct metrics m = {0};
    const struct engine_stats stats = {0};
    struct buf text;
    print(&m, &stats, &text);
    CHECK_EQ(n_lines(&text, "sluice_rejected_total{"), N_REJECTS);
    CHECK_EQ(n_lines(&text, "vllm:admission_rejections_total{"), N_OVERLOADS);
    CHECK_EQ(n_lines(&text, "sluice_aborted_total{"), N_ABORTS);
    CHECK_EQ(n_lines(&text, "vllm:request_success_total{"), N_FINISH_REASONS - 1);
    CHECK_EQ(n_lines(&text, "sluice_engine_state{"), N_HEALTHS);
    CHECK_EQ(n_lines(&text, "sluice_batches{"), N_BATCH_STATUSES);
    CHECK(strstr(text.data, "state=\"draining\"} 1\n"));
    CHECK(!strstr(text.data, "(null)"));
    buf_deinit(&text);
    metrics_deinit(&m);
}

/* The text has the engine's buckets. The engine reports one step of the first size, two of the
 * second, and so on. */
TEST(the_buckets_of_step_sizes_are_the_engine_s)
{
    struct metrics m = {0};
    struct engine_stats stats = {0};
    struct buf text;
    for (int i = 0; i < N_STEP_SIZES; i++) {
        stats.step_sizes[i] = i + 1;
    }
    metrics_take_steps(&m, &stats);
    print(&m, &stats, &text);
    CHECK_EQ(n_lines(&text, "vllm:iteration_tokens_total_bucket{"), N_STEP_SIZES);
    for (int i = 0, n = 0; i < N_STEP_SIZES; i++) {
        char line[128], bound[32] = "+Inf";
        n += i + 1;
        if (engine_step_bound(i) > 0) {
            snprintf(bound, sizeof bound, "%d.0", engine_step_bound(i));
        }
        snprintf(line, sizeof line, "engine=\"0\",le=\"%s\"} %d\n", bound, n);
        if (!strstr(text.data, line)) {
            CHECK_FAIL("no bucket %s", line);
        }
    }
    buf_deinit(&text);
    metrics_deinit(&m);
}

/* However many routes, methods and statuses there are, none is left out; clients cannot add any. */
TEST(every_route_and_status_is_counted)
{
    static const int statuses[] = {200, 400, 401, 404, 429, 499, 503};
    struct metrics m = {0};
    struct buf text;
    int n_series = 0;
    for (int time = 0; time < 2; time++) {
        for (const struct http_route *r = api_routes; r->method; r++) {
            for (int i = 0; i < (int)(sizeof statuses / sizeof statuses[0]); i++, n_series++) {
                metrics_http(&m, &(struct http_record){
                                     .method = r->method, .route = r->path, .status = statuses[i]});
            }
        }
    }
    for (int i = 0; i < 3; i++) { // one series
        static const char *const unknown[] = {"BREW", "WHEN", "BREW"};
        metrics_http(&m, &(struct http_record){.method = unknown[i], .route = "/x", .status = 405});
    }
    print(&m, NULL, &text);
    CHECK_EQ(n_lines(&text, "http_requests_total{"), n_series / 2 + 1);
    CHECK(strstr(text.data, "{method=\"\",status=\"405\",handler=\"/x\"} 3\n"));
    CHECK(
        strstr(text.data, "{method=\"POST\",status=\"503\",handler=\"/v1/chat/completions\"} 2\n"));
    buf_deinit(&text);
    metrics_deinit(&m);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
