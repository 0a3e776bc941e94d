// SPDX-License-Identifier: Apache-2.0
/* /v1/completions: one object, or chunks. */
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "server/call/format.h"

#include <string.h>

/* The four lists of a logprobs object: tokens in `logprobs`; values, tops, offsets in `lists`. */
static void put_comma(struct buf *b)
{
    if (b->n_bytes > 0) {
        buf_putc(b, ',');
    }
}

static void put_top(struct buf *b, const struct call *c, int32_t token, float logprob)
{
    call_put_token_text(b, c, token);
    buf_putc(b, ':');
    call_put_logprob(b, logprob);
}

/* Adds a token to the parallel arrays of OpenAI's legacy API: tokens, log-probabilities,
 * alternatives, offsets. */
static void add_logprob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                        size_t offset)
{
    struct call *c = ch->call;
    int32_t n_top = c->request.n_top;
    put_comma(&ch->logprobs);
    call_put_token_text(&ch->logprobs, c, token);
    struct buf *values = &ch->lists[0], *tops = &ch->lists[1];
    put_comma(values);
    put_comma(tops);
    if (!lp) { // the very first token of a prompt has no probability
        buf_puts(values, "null");
        buf_puts(tops, "null");
    } else {
        call_put_logprob(values, lp->logprob);
        int32_t n = lesser(lp->n_top, n_top);
        buf_putc(tops, '{');
        put_top(tops, c, token, lp->logprob); // the token itself is always included, and first
        for (int32_t i = 0; i < n; i++) {
            if (lp->top_ids[i] != token) {
                buf_putc(tops, ',');
                put_top(tops, c, lp->top_ids[i], lp->top_logprobs[i]);
            }
        }
        buf_putc(tops, '}');
    }
    put_comma(&ch->lists[2]);
    buf_put_int(&ch->lists[2], (int64_t)offset);
}

static const struct request_prompt *prompt_of(const struct call_choice *ch)
{
    return &ch->call->request.prompts[ch->request - ch->call->requests];
}

/* Characters of the echoed prompt that its token i stands for. A text is echoed as it was given:
 * with the special tokens in it, but without those that the tokenizer added around it. */
static size_t prompt_characters(const struct call_choice *ch, int32_t i)
{
    const struct request *r = &ch->call->request;
    const struct request_prompt *p = prompt_of(ch);
    size_t n_before, n_behind, n = 0, n_characters = 0;
    if (!p->text) {
        return call_token_characters(ch->call, p->ids[i]);
    }
    tokenizer_n_around(r->output.tok, &n_before, &n_behind);
    if (r->add_special && (i < (int32_t)n_before || i >= p->n - (int32_t)n_behind)) {
        return 0;
    }
    if (!tokenizer_is_special(r->output.tok, p->ids[i])) {
        return call_token_characters(ch->call, p->ids[i]);
    }
    const char *name = tokenizer_token_text(r->output.tok, p->ids[i], &n);
    for (size_t k = 0; name && k < n; k++) {
        n_characters += ((unsigned char)name[k] & 0xC0) != 0x80;
    }
    return n_characters;
}

/* With echo the prompt's tokens come first. */
static void start(struct call_choice *ch)
{
    const struct engine_request *r = ch->request;
    if (!ch->call->request.echo || !ch->call->request.logprobs) {
        return;
    }
    for (int32_t i = 0; i < r->n_prompt; i++) {
        add_logprob(ch, r->prompt[i], i > 0 ? &r->prompt_logprobs[i] : NULL, ch->n_chars);
        ch->n_chars += prompt_characters(ch, i);
    }
}

/* The logprobs object; in a stream, with the tokens of this chunk. */
void call_put_list_logprobs(struct buf *b, struct call_choice *ch)
{
    static const char *const names[] = {"token_logprobs", "top_logprobs", "text_offset"};
    if (!ch->call->request.logprobs || (ch->call->request.stream && ch->logprobs.n_bytes == 0)) {
        buf_puts(b, "null");
        return;
    }
    buf_puts(b, "{\"tokens\":[");
    buf_move(b, &ch->logprobs);
    buf_putc(b, ']');
    for (int i = 0; i < 3; i++) {
        buf_printf(b, ",\"%s\":[", names[i]);
        buf_move(b, &ch->lists[i]);
        buf_putc(b, ']');
    }
    buf_putc(b, '}');
}

/* The prompt as text, for echo. */
static void put_echo(struct buf *text, const struct call_choice *ch)
{
    const struct request *r = &ch->call->request;
    const struct request_prompt *p = prompt_of(ch);
    if (p->text) {
        buf_put(text, p->text, p->text_bytes);
    } else if (r->output.tok) {
        tokenizer_decode(r->output.tok, p->ids, (size_t)p->n, r->output.skip_special, text);
    }
}

/* A choice of a whole reply or of an event. Prompt tokens come once per choice; the prompt's
 * log-probabilities only in whole replies. */
static void put_choice(struct buf *b, struct call_choice *ch, const char *text, size_t n_bytes)
{
    const struct request *r = &ch->call->request;
    buf_puts(b, "{\"index\":");
    buf_put_int(b, ch->index);
    buf_puts(b, ",\"text\":");
    buf_put_json(b, or_empty(text), n_bytes);
    buf_puts(b, ",\"logprobs\":");
    call_put_list_logprobs(b, ch);
    buf_puts(b, ",\"finish_reason\":");
    if (ch->finish) {
        buf_printf(b, "\"%s\"", ch->finish);
        call_put_stop_reason(b, ch);
    } else {
        buf_puts(b, "null");
    }
    call_put_token_ids(b, ch);
    if (!ch->sent_prompt_ids) {
        ch->sent_prompt_ids = true;
        call_put_prompt_ids(b, ch->call, ch->request);
    }
    if (!r->stream) {
        call_put_prompt_logprobs(b, ch->call, ch->request);
    }
    buf_putc(b, '}');
}

/* ---- stream -----------------------------------------------------------------------------------
 */

static void begin(struct call *c)
{
    call_put_head(&c->chunk_head, c, "text_completion");
    buf_putc(&c->chunk_head, '[');
}

static void put_chunk(struct call_choice *ch)
{
    struct call *c = ch->call;
    struct buf *b = &c->server->scratch;
    buf_clear(b);
    buf_put(b, c->chunk_head.data, c->chunk_head.n_bytes);
    put_choice(b, ch, ch->content.data, ch->content.n_bytes);
    buf_clear(&ch->content);
    buf_putc(b, ']');
    if (ch->finish && ch->index == 0) {
        call_put_verbose(b, c);
    }
    call_send_chunk(c, b);
}

/* return_progress: how far the prompt has been computed, in chunks without text. */
static void tell_prompt(struct call_choice *ch)
{
    struct buf *b = &ch->call->server->scratch;
    buf_clear(b);
    buf_put(b, ch->call->chunk_head.data, ch->call->chunk_head.n_bytes);
    buf_puts(b, "{\"index\":");
    buf_put_int(b, ch->index);
    buf_puts(b, ",\"text\":\"\",\"logprobs\":null,\"finish_reason\":null}]");
    call_put_progress(b, ch);
    call_send_chunk(ch->call, b);
}

/* The prompt's text precedes the first text of a stream. */
static void echo_text(struct call_choice *ch)
{
    if (ch->call->request.echo && !ch->sent_prompt_text) {
        struct buf all;
        ch->sent_prompt_text = true;
        buf_init(&all, ch->content.max_bytes);
        put_echo(&all, ch);
        buf_put(&all, ch->content.data, ch->content.n_bytes);
        buf_deinit(&ch->content);
        ch->content = all;
    }
}

static void pending(struct call_choice *ch)
{
    echo_text(ch);
    if (!ch->finish &&
        (ch->content.n_bytes > 0 || ch->ids.n_bytes > 0)) { // otherwise it is sent with the end
        put_chunk(ch);
    }
}

static void finish(struct call_choice *ch)
{
    echo_text(ch);
    put_chunk(ch);
}

/* With echo the prompt's text comes first. */
static void end(struct call *c)
{
    if (c->request.stream) {
        call_send_usage(c, "]");
        call_end_stream(c, true);
        return;
    }
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    call_put_head(&body, c, "text_completion");
    for (size_t i = 0; i < c->n_choices; i++) {
        struct call_choice *ch = &c->choices[i];
        echo_text(ch);
        if (i) {
            buf_putc(&body, ',');
        } else {
            buf_putc(&body, '[');
        }
        put_choice(&body, ch, ch->content.data, ch->content.n_bytes);
    }
    buf_putc(&body, ']');
    call_put_usage(&body, c);
    call_put_asked_timings(&body, c);
    call_put_metrics(&body, c);
    call_put_verbose(&body, c);
    call_put_transfer(&body, c);
    buf_putc(&body, '}');
    call_whole(c, &body);
}

static void no_call(struct call_choice *ch, const char *name, const char *id)
{
    (void)ch; // no parser runs here
    (void)name;
    (void)id;
}

const struct call_format call_completion_format = {
    .id_prefix = "cmpl-",
    .begin = begin,
    .prompt = tell_prompt,
    .start = start,
    .pending = pending,
    .call = no_call,
    .logprob = add_logprob,
    .finish = finish,
    .end = end,
};
