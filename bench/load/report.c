// SPDX-License-Identifier: Apache-2.0
/* Summarises a run, as a table and as JSON: percentiles of the time to the first token, of the time
 * between tokens and of the whole request; for conversations also by turn. */
#include "bench/load/report.h"
#include "engine/base/optional.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Interpolates between the two nearest ranks, like numpy's default. */
static double percentile(const float *sorted, size_t n, double p)
{
    const double at = p * (double)(n - 1);
    const size_t i = (size_t)at;
    const double low = (double)sorted[i], high = (double)sorted[i + 1 < n ? i + 1 : i];
    return low + (at - (double)i) * (high - low);
}

/* Sorts v in place. Percentiles of an empty list are 0. */
static struct summary summarise(float *v, size_t n)
{
    struct summary s = {.n = n};
    if (n == 0) {
        return s;
    }
    qsort(v, n, sizeof *v, compare);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)v[i];
    }
    s.mean = sum / (double)n;
    s.p50 = percentile(v, n, 0.5);
    s.p90 = percentile(v, n, 0.9);
    s.p99 = percentile(v, n, 0.99);
    s.max = (double)v[n - 1];
    return s;
}

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

/* Time per output token; -1 if undefined. It is measured to the end of the answer rather than to
 * the last event with text: an event may hold several tokens, and the last tokens may have no
 * text. */
static double tpot_of(const struct bench_record *rec)
{
    if (rec->output_tokens > 1 && rec->first > 0) {
        return ms(rec->end - rec->first) / (rec->output_tokens - 1);
    }
    return -1;
}

static bool is_good(const struct bench_options *o, const struct bench_record *rec)
{
    return rec->first > 0 &&
           (o->ttft_limit_ms <= 0 || ms(rec->first - rec->due) <= o->ttft_limit_ms) &&
           (o->tpot_limit_ms <= 0 || tpot_of(rec) <= o->tpot_limit_ms);
}

/* Summarises the answers in a range of turns. `room` has space for one number per record. */
static void make_range(const struct bench_results *r, struct turn_range *range, float *room)
{
    size_t n = 0;
    for (int64_t i = 0; i < r->n_records; i++) {
        const struct bench_record *rec = &r->records[i];
        const int64_t turn = i % r->n_turns + 1;
        if (turn < range->first || turn > range->last || rec->outcome != OUTCOME_OK) {
            continue;
        }
        range->prompt_tokens += greater(rec->prompt_tokens, 0);
        range->cached_tokens += greater(rec->cached_tokens, 0);
        if (rec->first > 0) {
            room[n++] = (float)ms(rec->first - rec->due);
        }
    }
    range->ttft = summarise(room, n);
}

/* Makes the ranges 1, 2, 3 to 4, 5 to 8 and so on, until the last turn with answers. */
static void make_ranges(const struct bench_results *r, struct bench_report *rep)
{
    float *room = xcalloc((size_t)r->n_records + 1, sizeof *room);
    for (int64_t first = 1, last = 1; r->n_turns > 1 && first <= r->n_turns; last *= 2) {
        struct turn_range *range = &rep->ranges[rep->n_ranges];
        *range = (struct turn_range){.first = first, .last = lesser(last, r->n_turns)};
        make_range(r, range, room);
        rep->n_ranges += range->ttft.n > 0;
        first = last + 1;
    }
    free(room);
}

/* Times include only successful answers; the number of requests includes all that were sent. */
void bench_report_make(const struct bench_options *o, struct bench_results *r,
                       struct bench_report *rep)
{
    *rep = (struct bench_report){.tokens_reported = true};
    float *v = xcalloc((size_t)r->n_records * 3 + 1, sizeof *v);
    float *ttft = v, *tpot = v + r->n_records, *e2e = v + 2 * r->n_records;
    size_t n_ttft = 0, n_tpot = 0, n_e2e = 0;
    for (int64_t i = 0; i < r->n_records; i++) {
        const struct bench_record *rec = &r->records[i];
        rep->outcomes[rec->outcome]++;
        rep->n_sent += rec->outcome != OUTCOME_NONE;
        if (rec->outcome != OUTCOME_OK) {
            continue;
        }
        e2e[n_e2e++] = (float)ms(rec->end - rec->due);
        if (rec->first > 0) {
            ttft[n_ttft++] = (float)ms(rec->first - rec->due);
        }
        if (tpot_of(rec) >= 0) {
            tpot[n_tpot++] = (float)tpot_of(rec);
        }
        rep->tokens_reported = rep->tokens_reported && rec->prompt_tokens >= 0;
        rep->prompt_tokens += greater(rec->prompt_tokens, 0);
        rep->cached_tokens += greater(rec->cached_tokens, 0);
        rep->output_tokens += rec->output_tokens;
        rep->n_good += is_good(o, rec);
    }
    rep->ttft = summarise(ttft, n_ttft);
    rep->tpot = summarise(tpot, n_tpot);
    rep->e2e = summarise(e2e, n_e2e);
    rep->itl = summarise(r->itl_ms, r->n_itl);
    free(v);
    make_ranges(r, rep);
}

static double per_second(int64_t n, const struct bench_results *r)
{
    return r->wall_s > 0 ? (double)n / r->wall_s : 0;
}

static void print_row(const char *name, const struct summary *s)
{
    if (s->n > 0) {
        printf("%-12s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, s->mean, s->p50, s->p90, s->p99,
               s->max);
    }
}

/* Comparing the first token's time in early and late turns shows how well the server reuses
 * prefixes. */
static void print_ranges(const struct bench_report *rep)
{
    printf("\n%-12s %10s %10s %10s %10s %10s %10s\n", "turns", "answers", "tokens", "cached %",
           "TTFT ms", "p90", "p99");
    for (int i = 0; i < rep->n_ranges; i++) {
        const struct turn_range *t = &rep->ranges[i];
        char turns[32];
        if (t->first == t->last) {
            snprintf(turns, sizeof turns, "%lld", (long long)t->first);
        } else {
            snprintf(turns, sizeof turns, "%lld to %lld", (long long)t->first, (long long)t->last);
        }
        const double n = (double)t->ttft.n, prompt = (double)t->prompt_tokens;
        printf("%-12s %10zu %10.0f %10.1f %10.2f %10.2f %10.2f\n", turns, t->ttft.n, prompt / n,
               prompt > 0 ? 100 * (double)t->cached_tokens / prompt : 0, t->ttft.p50, t->ttft.p90,
               t->ttft.p99);
    }
}

/* Prints the table, with the reason of the first failure. */
void bench_report_print(const struct bench_options *o, const struct bench_results *r,
                        const struct bench_report *rep)
{
    const int64_t ok = rep->outcomes[OUTCOME_OK];
    printf("%s: %lld requests in %.2f s, %lld answered, %lld failed, at most %lld at once\n\n",
           workload_names[o->workload], (long long)rep->n_sent, r->wall_s, (long long)ok,
           (long long)(rep->n_sent - ok), (long long)r->max_in_flight);
    printf("%-12s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99", "max");
    print_row("TTFT", &rep->ttft);
    print_row("ITL", &rep->itl);
    print_row("TPOT", &rep->tpot);
    print_row("E2E", &rep->e2e);
    printf("\nthroughput   %10.2f requests/s  %.1f output tokens/s  %.1f prompt tokens/s"
           "  %.0f events/s\n",
           per_second(ok, r), per_second(rep->output_tokens, r), per_second(rep->prompt_tokens, r),
           per_second(r->n_events, r));
    if (rep->cached_tokens > 0) {
        printf("cached       %10.1f %% of the prompt tokens\n",
               100 * (double)rep->cached_tokens / (double)rep->prompt_tokens);
    }
    if (rep->n_ranges > 0) {
        print_ranges(rep);
    }
    if (o->ttft_limit_ms > 0 || o->tpot_limit_ms > 0) {
        printf("goodput      %10.2f requests/s  (%lld of %lld within the limits)\n",
               per_second(rep->n_good, r), (long long)rep->n_good, (long long)rep->n_sent);
    }
    if (!rep->tokens_reported && ok > 0) {
        printf("Some answers had no usage; their events are counted as tokens.\n");
    }
    for (int k = OUTCOME_CONNECT; k < N_OUTCOMES; k++) {
        if (rep->outcomes[k] > 0) {
            printf("failed       %10lld %s\n", (long long)rep->outcomes[k], outcome_names[k]);
        }
    }
    if (r->example[0] != '\0') {
        printf("first answer with an error: %s\n", r->example);
    }
}

static void put_number(struct buf *b, const char *key, double v)
{
    buf_printf(b, "\"%s\":", key);
    buf_put_double(b, v);
    buf_putc(b, ',');
}

/* The comma after the last number is overwritten by the bracket. */
static void put_summary(struct buf *b, const char *key, const struct summary *s)
{
    buf_printf(b, "\"%s\":{\"count\":%zu,", key, s->n);
    put_number(b, "mean", s->mean);
    put_number(b, "p50", s->p50);
    put_number(b, "p90", s->p90);
    put_number(b, "p99", s->p99);
    put_number(b, "max", s->max);
    b->data[b->n_bytes - 1] = '}';
    buf_putc(b, ',');
}

/* The outcomes that have only a count. */
static void put_outcomes(struct buf *b, const struct bench_results *r,
                         const struct bench_report *rep)
{
    buf_puts(b, "\"errors\":{");
    const char *comma = "";
    for (int k = OUTCOME_CONNECT; k < N_OUTCOMES; k++) {
        if (rep->outcomes[k] > 0 && k != OUTCOME_HTTP) {
            buf_printf(b, "%s\"%s\":%lld", comma, outcome_names[k], (long long)rep->outcomes[k]);
            comma = ",";
        }
    }
    for (int status = 100; rep->outcomes[OUTCOME_HTTP] > 0 && status < 600; status++) {
        long long n = 0;
        for (int64_t i = 0; i < r->n_records; i++) {
            n += r->records[i].outcome == OUTCOME_HTTP && r->records[i].http_status == status;
        }
        if (n > 0) {
            buf_printf(b, "%s\"http_%d\":%lld", comma, status, n);
            comma = ",";
        }
    }
    buf_puts(b, "},\"error_example\":");
    buf_put_json(b, r->example, strlen(r->example));
}

/* Later turns have longer prompts, so turns are reported in ranges. */
static void put_ranges(struct buf *b, const struct bench_report *rep)
{
    buf_puts(b, "\"turns\":[");
    for (int i = 0; i < rep->n_ranges; i++) {
        const struct turn_range *t = &rep->ranges[i];
        buf_printf(b, "%s{\"first\":%lld,\"last\":%lld,", text_if(i > 0, ","), (long long)t->first,
                   (long long)t->last);
        buf_printf(b, "\"prompt_tokens\":%lld,\"cached_tokens\":%lld,", (long long)t->prompt_tokens,
                   (long long)t->cached_tokens);
        put_summary(b, "ttft_ms", &t->ttft);
        b->data[b->n_bytes - 1] = '}';
    }
    buf_puts(b, "],");
}

/* Every request, for plots and for comparing two runs request by request. */
static void put_requests(struct buf *b, const struct bench_results *r)
{
    buf_puts(b, ",\n\"requests\":[");
    const char *comma = "\n";
    for (int64_t i = 0; i < r->n_records; i++) {
        const struct bench_record *rec = &r->records[i];
        if (rec->outcome == OUTCOME_NONE) {
            continue;
        }
        buf_printf(b, "%s{\"index\":%lld,\"outcome\":\"%s\",\"status\":%d,", comma, (long long)i,
                   outcome_names[rec->outcome], rec->http_status);
        put_number(b, "due_ms", ms(rec->due));
        if (rec->first > 0) {
            put_number(b, "ttft_ms", ms(rec->first - rec->due));
        }
        if (tpot_of(rec) >= 0) {
            put_number(b, "tpot_ms", tpot_of(rec));
        }
        put_number(b, "e2e_ms", ms(rec->end - rec->due));
        buf_printf(b,
                   "\"prompt_tokens\":%d,\"cached_tokens\":%d,\"output_tokens\":%d,"
                   "\"events\":%d}",
                   rec->prompt_tokens, rec->cached_tokens, rec->output_tokens, rec->n_events);
        comma = ",\n";
    }
    buf_puts(b, "\n]}\n");
}

/* The output contains the options, so that a result describes itself. */
enum status bench_report_json(const struct bench_options *o, const char *model,
                              const struct bench_results *r, const struct bench_report *rep,
                              struct err *err)
{
    struct buf b;
    buf_init(&b, (size_t)4 << 30);
    buf_puts(&b, "{\"url\":");
    buf_put_json(&b, o->url, strlen(o->url));
    buf_puts(&b, ",\"model\":");
    buf_put_json(&b, model, strlen(model));
    buf_printf(&b, ",\"workload\":\"%s\",\"concurrency\":%lld,\"seed\":%lld,",
               workload_names[o->workload], (long long)o->concurrency, (long long)o->seed);
    put_number(&b, "rate", o->rate);
    put_number(&b, "duration_s", r->wall_s);
    buf_printf(&b,
               "\"sent\":%lld,\"completed\":%lld,\"failed\":%lld,\"max_in_flight\":%lld,"
               "\"reconnects\":%lld,\"events\":%lld,\"prompt_tokens\":%lld,"
               "\"cached_tokens\":%lld,\"output_tokens\":%lld,\"within_limits\":%lld,",
               (long long)rep->n_sent, (long long)rep->outcomes[OUTCOME_OK],
               (long long)(rep->n_sent - rep->outcomes[OUTCOME_OK]), (long long)r->max_in_flight,
               (long long)r->n_reconnects, (long long)r->n_events, (long long)rep->prompt_tokens,
               (long long)rep->cached_tokens, (long long)rep->output_tokens,
               (long long)rep->n_good);
    put_number(&b, "requests_per_s", per_second(rep->outcomes[OUTCOME_OK], r));
    put_number(&b, "output_tokens_per_s", per_second(rep->output_tokens, r));
    put_number(&b, "prompt_tokens_per_s", per_second(rep->prompt_tokens, r));
    put_number(&b, "events_per_s", per_second(r->n_events, r));
    put_number(&b, "goodput_per_s", per_second(rep->n_good, r));
    put_summary(&b, "ttft_ms", &rep->ttft);
    put_summary(&b, "itl_ms", &rep->itl);
    put_summary(&b, "tpot_ms", &rep->tpot);
    put_summary(&b, "e2e_ms", &rep->e2e);
    put_ranges(&b, rep);
    put_outcomes(&b, r, rep);
    put_requests(&b, r);
    FILE *f = fopen(o->json_path, "w");
    bool good = f != NULL && !b.failed && fwrite(b.data, 1, b.n_bytes, f) == b.n_bytes;
    good = (f == NULL || fclose(f) == 0) && good;
    buf_deinit(&b);
    if (!good) {
        return err_set(err, ERR_IO, "%s: %s", o->json_path, strerror(errno));
    }
    return OK;
}
