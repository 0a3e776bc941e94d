// SPDX-License-Identifier: Apache-2.0
/* The answer lines of `sluice generate --json`: ids, text, log-probabilities, pooled
 * states, and usage. */
#include "server/cli/generate_line.h"
#include "engine/base/optional.h"

#include <math.h>
#include <string.h>

enum { MAX_LINE_BYTES = 1 << 30 };

/* Broken weights can produce infinity or NaN, which JSON lacks; the API's minimum replaces them. */
static void put_logprob(struct buf *out, float v)
{
    buf_printf(out, "%.9g", v > -9999.0f ? (double)v : -9999.0);
}

/* [[id, log-probability], ...], best first. */
static void put_top(struct buf *out, const struct token_logprobs *l)
{
    buf_putc(out, '[');
    for (int32_t i = 0; i < l->n_top; i++) {
        buf_printf(out, "%s[%d, ", text_if(i, ", "), l->top_ids[i]);
        put_logprob(out, l->top_logprobs[i]);
        buf_putc(out, ']');
    }
    buf_putc(out, ']');
}

/* Writes n log-probabilities and, with `tops`, n lists of alternatives; entries before `first` are
 * null. */
static void put_logprobs(struct buf *out, const char *key, const char *top_key,
                         const struct token_logprobs *l, int32_t first, int32_t n, bool tops)
{
    buf_printf(out, "\"%s\": [", key);
    for (int32_t i = 0; i < n; i++) {
        if (i) {
            buf_puts(out, ", ");
        }
        if (i < first) {
            buf_puts(out, "null");
        } else {
            put_logprob(out, l[i].logprob);
        }
    }
    buf_puts(out, "], ");
    if (!tops) {
        return;
    }
    buf_printf(out, "\"%s\": [", top_key);
    for (int32_t i = 0; i < n; i++) {
        if (i) {
            buf_puts(out, ", ");
        }
        if (i < first) {
            buf_puts(out, "null");
        } else {
            put_top(out, &l[i]);
        }
    }
    buf_puts(out, "], ");
}

/* Writes a sample: the engine's ids, and the detokenizer's text. */
static void put_output(struct buf *out, struct call_choice *ch)
{
    const struct call *c = ch->call;
    const struct engine_output *o = &ch->request->outputs[ch->sample];
    if (ch->sample) {
        buf_puts(out, ", {\"token_ids\": [");
    } else {
        buf_puts(out, "{\"token_ids\": [");
    }
    for (int32_t i = 0; i < ch->n_taken; i++) {
        buf_printf(out, "%s%d", text_if(i, ", "), o->tokens[i]);
    }
    buf_puts(out, "], ");
    if (c->request.params.logprobs) {
        put_logprobs(out, "logprobs", "top_logprobs", o->logprobs, 0, ch->n_taken, true);
    }
    if (c->request.output.tok) {
        buf_puts(out, "\"text\": ");
        buf_put_json(out, or_empty(ch->content.data), ch->content.n_bytes);
        buf_puts(out, ", ");
    }
    buf_printf(out, "\"finish_reason\": \"%s\"}", ch->finish);
}

static void put_embedding(struct buf *out, const float *v, int32_t n)
{
    buf_puts(out, "\"embedding\": [");
    for (int32_t i = 0; i < n; i++) {
        buf_printf(out, "%s%.9g", text_if(i, ", "), isfinite(v[i]) ? (double)v[i] : 0.0);
    }
    buf_puts(out, "], ");
}

/* Statistics for tests: cached and recomputed tokens, drafts, preemptions. */
static void put_usage(struct buf *out, const struct call *c)
{
    const struct engine_request *r = &c->requests[0];
    int32_t n_generated = 0;
    for (size_t i = 0; i < c->n_choices; i++) {
        n_generated += c->choices[i].n_taken;
    }
    /* After a stop string the engine still owns the request until it is done. */
    int32_t n_preemptions = r->done ? r->n_preemptions : 0;
    buf_printf(out,
               "\"usage\": {\"prompt_tokens\": %d, \"completion_tokens\": %d, "
               "\"cached_tokens\": %d, \"preemptions\": %d, \"draft_tokens\": %d, "
               "\"accepted_draft_tokens\": %d",
               r->n_prompt, n_generated, r->n_cached, n_preemptions, r->n_drafts, r->n_accepted);
    if (r->n_recomputed >= 0) {
        buf_printf(out, ", \"recomputed_tokens\": %d", r->n_recomputed);
    }
    buf_puts(out, "}}\n");
}

/* The whole line is written at the end; only text for a person is streamed. */
static void end(struct call *c)
{
    const struct engine_request *r = &c->requests[0];
    struct buf out;
    if (c->request.stream) {
        c->sink->end(c, false);
        return;
    }
    buf_init(&out, MAX_LINE_BYTES);
    buf_putc(&out, '{');
    if (r->params.prompt_logprobs) {
        put_logprobs(&out, "prompt_logprobs", "prompt_top_logprobs", r->prompt_logprobs, 1,
                     r->n_prompt, r->params.prompt_top_logprobs > 0);
    }
    if (c->request.pools) {
        put_embedding(&out, r->pooled, c->request.model->info->pooled_width);
    } else {
        buf_puts(&out, "\"outputs\": [");
        for (size_t i = 0; i < c->n_choices; i++) {
            put_output(&out, &c->choices[i]);
        }
        buf_puts(&out, "], ");
    }
    put_usage(&out, c);
    c->sink->whole(c, &out);
}

/* For output to a person: writes the text as it is generated. */
static void pending(struct call_choice *ch)
{
    ch->call->sink->event(ch->call, NULL, ch->content.data, ch->content.n_bytes);
    buf_clear(&ch->content);
}

static void finish(struct call_choice *ch)
{
    (void)ch; // nothing to do: the text has been written
}

const struct call_format generate_line_format = {
    .id_prefix = "",
    .pending = pending,
    .finish = finish,
    .end = end,
};

void generate_line_put_error(struct buf *out, const char *text)
{
    buf_puts(out, "{\"error\": ");
    buf_put_json(out, text, strlen(text));
    buf_puts(out, "}\n");
}
