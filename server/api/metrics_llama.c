// SPDX-License-Identifier: Apache-2.0
/* The same figures under llama.cpp's names, without labels, as its dashboards read them. */
#include "engine/engine.h"
#include "server/api/metrics.h"

static double per(double n, double of)
{
    return of > 0 ? n / of : 0;
}

void metrics_print_llama(const struct metrics *m, const struct metrics_source *s, struct buf *out)
{
    const struct engine_stats *e = s->stats;
    // prompt tokens computed, that is, not found in the cache
    double prompt = (double)(e->step_tokens - e->generated_tokens - e->prefix_hits);
    double generated = (double)e->generated_tokens, steps = (double)e->n_steps;
    double prompt_s = m->hist[MEASURE_PREFILL].sum, decode_s = m->hist[MEASURE_DECODE].sum;
    const struct {
        const char *name, *type, *help;
        double v;
    } rows[] = {
        {"prompt_tokens_total", "counter", "Prompt tokens computed.", prompt},
        {"prompt_tokens_cached_total", "counter", "Prompt tokens from the cache.",
         (double)e->prefix_hits},
        {"prompt_seconds_total", "counter", "Time spent on prompts.", prompt_s},
        {"tokens_predicted_total", "counter", "Tokens generated.", generated},
        {"tokens_predicted_seconds_total", "counter", "Time spent on generated tokens.", decode_s},
        {"n_decode_total", "counter", "Steps of the engine.", steps},
        {"n_tokens_max", "counter",
         "The largest number of tokens so far in a prompt and its answer.",
         (double)s->counts->longest_context},
        {"spec_decode_num_drafts_total", "counter", "Drafts.", (double)e->spec_drafts},
        {"spec_decode_num_draft_tokens_total", "counter", "Draft tokens.",
         (double)e->spec_draft_tokens},
        {"spec_decode_num_accepted_tokens_total", "counter", "Accepted draft tokens.",
         (double)e->spec_accepted_tokens},
        {"prompt_tokens_seconds", "gauge", "Prompt tokens per second of one request.",
         per(prompt, prompt_s)},
        {"predicted_tokens_seconds", "gauge", "Generated tokens per second of one request.",
         per(generated, decode_s)},
        {"requests_processing", "gauge", "Running sequences.", e->n_running},
        {"requests_deferred", "gauge", "Waiting sequences.", engine_stats_queued(e)},
        {"n_busy_slots_per_decode", "gauge", "Average number of sequences in a step.",
         per((double)e->step_seqs, steps)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *name = rows[i].name;
        buf_printf(out, "# HELP llamacpp:%s %s\n# TYPE llamacpp:%s %s\nllamacpp:%s ", name,
                   rows[i].help, name, rows[i].type, name);
        buf_put_double(out, rows[i].v);
        buf_putc(out, '\n');
    }
}
