// SPDX-License-Identifier: Apache-2.0
#include "server/cli/run_batch.h"

#include "engine/base/clock.h"
#include "engine/base/minmax.h"

static double seconds_since(int64_t ns)
{
    double s = (double)(clock_now_ns() - ns) * 1e-9;
    return greater(s, 1e-3);
}

static double percent(int64_t part, int64_t whole)
{
    if (whole > 0) {
        return 100.0 * (double)part / (double)whole;
    }
    return 0;
}

void batch_report_progress(struct batch_report *r, const struct job *j, FILE *to)
{
    if (seconds_since(r->t_shown_ns) < 1) {
        return;
    }
    struct job_progress p;
    r->t_shown_ns = clock_now_ns();
    job_progress(j, &p);
    double s = seconds_since(r->t_start_ns);
    int32_t n_new = p.n_answered - p.n_before, n_left = p.n_lines - p.n_answered;
    fprintf(to, "\r%d of %d done, %d running, %.0f output tokens/s, %.0f %% of the prompts cached",
            p.n_answered, p.n_lines, p.n_running, (double)p.output_tokens / s,
            percent(p.cached_tokens, p.prompt_tokens));
    if (n_new > 0) {
        fprintf(to, ", %.0f s left", s / n_new * n_left);
    }
    fprintf(to, "\033[K");
    fflush(to);
}

void batch_report_end(const struct batch_report *r, const struct job *j, FILE *to)
{
    struct job_progress p;
    job_progress(j, &p);
    double s = seconds_since(r->t_start_ns);
    int32_t n_new = p.n_answered - p.n_before;
    fprintf(to, "requests               %12d\n", p.n_lines);
    fprintf(to, "  answered before      %12d\n", p.n_before);
    fprintf(to, "  answered now         %12d\n", n_new);
    fprintf(to, "  of these with errors %12d\n", p.n_failed);
    fprintf(to, "prompt tokens          %12lld\n", (long long)p.prompt_tokens);
    fprintf(to, "  computed             %12lld\n", (long long)(p.prompt_tokens - p.cached_tokens));
    fprintf(to, "  saved                %11.1f%%\n", percent(p.cached_tokens, p.prompt_tokens));
    fprintf(to, "  could be saved       %11.1f%%\n",
            percent(p.planned_tokens - p.planned_computed, p.planned_tokens));
    fprintf(to, "output tokens          %12lld\n", (long long)p.output_tokens);
    fprintf(to, "seconds                %12.2f\n", s);
    fprintf(to, "output tokens/s        %12.1f\n", (double)p.output_tokens / s);
    fprintf(to, "requests/s             %12.2f\n", n_new / s);
}
