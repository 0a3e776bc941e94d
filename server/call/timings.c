// SPDX-License-Identifier: Apache-2.0
/* llama.cpp's timings of a request. */
#include "server/call/format.h"

#include "engine/base/clock.h"

static void put_real(struct buf *b, const char *key, double v)
{
    buf_printf(b, ",\"%s\":", key);
    buf_put_double(b, v);
}

static double per_second(double n, double ms)
{
    return ms > 0 ? n * 1000 / ms : 0;
}

/* The timings of a prompt, up to the progress that was reported to the client. */
static double prompt_ms(const struct call_choice *ch)
{
    const struct engine_request *q = ch->request;
    if (ch->n_prefilled > q->n_cached) {
        return (double)(clock_now_ns() - q->t_scheduled_ns) * 1e-6;
    }
    return 0;
}

void call_put_progress(struct buf *b, const struct call_choice *ch)
{
    const struct engine_request *q = ch->request;
    buf_printf(b,
               ",\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d,\"time_ms\":%d}",
               q->n_prompt, q->n_cached, ch->n_prefilled, (int)prompt_ms(ch));
}

/* The timings of the whole request. The first token is computed with the prompt, so it does not
 * count as a step. */
void call_put_timings(struct buf *b, const struct call *c, const struct engine_request *q)
{
    int32_t n_predicted = 0;
    const struct call_choice *first = &c->choices[(size_t)(q - c->requests) * (size_t)c->request.n];
    for (int64_t i = 0; i < c->request.n; i++) {
        n_predicted += first[i].n_taken;
    }
    int64_t now = q->done ? q->t_done_ns : clock_now_ns();
    bool in_prompt = first->told_prompt && !first->started;
    bool begun = !in_prompt && q->t_first_token_ns > 0 && q->t_scheduled_ns > 0;
    double prompt = 0;
    if (begun) {
        prompt = (double)(q->t_first_token_ns - q->t_scheduled_ns) * 1e-6;
    }
    double predicted = begun ? (double)(now - q->t_first_token_ns) * 1e-6 : 0;
    if (in_prompt) {
        prompt = prompt_ms(first);
    }
    double n_prompt = (in_prompt ? first->n_prefilled : q->n_prompt) - q->n_cached;
    double n_steps = n_predicted > 1 ? n_predicted - 1 : 0;
    buf_printf(b, "{\"cache_n\":%d,\"prompt_n\":%d,\"predicted_n\":%d", q->n_cached, (int)n_prompt,
               n_predicted);
    put_real(b, "prompt_ms", prompt);
    put_real(b, "prompt_per_token_ms", n_prompt > 0 ? prompt / n_prompt : 0);
    put_real(b, "prompt_per_second", per_second(n_prompt, prompt));
    put_real(b, "predicted_ms", predicted);
    put_real(b, "predicted_per_token_ms", n_steps > 0 ? predicted / n_steps : 0);
    put_real(b, "predicted_per_second", per_second(n_steps, predicted));
    int32_t n_accepted = atomic_load(&q->n_accepted), n_drafts = atomic_load(&q->n_drafts);
    if (n_drafts > 0) {
        buf_printf(b, ",\"draft_n\":%d,\"draft_n_accepted\":%d", n_drafts, n_accepted);
    }
    buf_putc(b, '}');
}
