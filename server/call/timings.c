// SPDX-License-Identifier: Apache-2.0
/* How long a request took, as llama.cpp's clients read it. */
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

/* Of the whole request. The first token comes with the prompt, so that it is no step of its own. */
void call_put_timings(struct buf *b, const struct call *c, const struct engine_request *q)
{
    int32_t n_predicted = 0;
    for (size_t i = 0; i < c->n_choices; i++) {
        n_predicted += c->choices[i].request == q ? c->choices[i].n_taken : 0;
    }
    int64_t now = q->done ? q->t_done_ns : clock_now_ns();
    bool begun = q->t_first_token_ns > 0 && q->t_scheduled_ns > 0;
    double prompt = begun ? (double)(q->t_first_token_ns - q->t_scheduled_ns) * 1e-6 : 0;
    double predicted = begun ? (double)(now - q->t_first_token_ns) * 1e-6 : 0;
    double n_prompt = q->n_prompt - q->n_cached, n_steps = n_predicted > 1 ? n_predicted - 1 : 0;
    buf_printf(b, "{\"cache_n\":%d,\"prompt_n\":%d,\"predicted_n\":%d", q->n_cached,
               q->n_prompt - q->n_cached, n_predicted);
    put_real(b, "prompt_ms", prompt);
    put_real(b, "prompt_per_token_ms", n_prompt > 0 ? prompt / n_prompt : 0);
    put_real(b, "prompt_per_second", per_second(n_prompt, prompt));
    put_real(b, "predicted_ms", predicted);
    put_real(b, "predicted_per_token_ms", n_steps > 0 ? predicted / n_steps : 0);
    put_real(b, "predicted_per_second", per_second(n_steps, predicted));
    buf_putc(b, '}');
}
