// SPDX-License-Identifier: Apache-2.0
/* vLLM's /inference/v1/generate: continues from ids and returns ids, and if asked for also their
 * text, or the message that a chat would have returned. */
#include "engine/base/optional.h"
#include "server/call/format.h"
#include "server/call/packed.h"

#include <stdio.h>
#include <string.h>

/* ---- log-probabilities ------------------------------------------------------------------------
 */

/* The place of the token among the likeliest, from 1; 0: it is not among them. */
static int32_t rank_of(const struct token_logprobs *lp, int32_t token)
{
    for (int32_t i = 0; i < lp->n_top; i++) {
        if (lp->top_ids[i] == token) {
            return i + 1;
        }
    }
    return 0;
}

static void put_candidate(struct buf *b, const struct call *c, int32_t token, float logprob,
                          int32_t rank)
{
    if (c->request.output_mode == OUTPUT_TEXT) {
        call_put_token(b, c, token, logprob);
        return;
    }
    buf_printf(b, "\"token_id\":%d,\"logprob\":", token);
    call_put_logprob(b, logprob);
    if (rank > 0 && !c->request.params.logprob_ids) {
        buf_printf(b, ",\"rank\":%d", rank);
    } else {
        buf_puts(b, ",\"rank\":null");
    }
}

/* The token itself is the first candidate, as in vLLM, unless the request lists them. */
static void logprob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                    size_t n_chars_before)
{
    struct buf *b = &ch->logprobs;
    const int32_t rank = rank_of(lp, token);
    if (ch->call->request.output_mode == OUTPUT_DERENDER) {
        call_chat_logprob(ch, token, lp, n_chars_before);
        return;
    }
    buf_puts(b, b->n_bytes ? ",{" : "{");
    put_candidate(b, ch->call, token, lp->logprob, rank);
    buf_puts(b, ",\"top_logprobs\":[");
    const bool listed = ch->call->request.params.logprob_ids != NULL;
    const char *open = "{";
    if (!listed) {
        buf_puts(b, open);
        put_candidate(b, ch->call, token, lp->logprob, rank);
        buf_putc(b, '}');
        open = ",{";
    }
    for (int32_t i = 0; i < lp->n_top && i < ch->call->request.n_top; i++) {
        if (listed || lp->top_ids[i] != token) {
            buf_puts(b, open);
            put_candidate(b, ch->call, lp->top_ids[i], lp->top_logprobs[i], i + 1);
            buf_putc(b, '}');
            open = ",{";
        }
    }
    buf_puts(b, "]}");
}

/* ---- choices ----------------------------------------------------------------------------------
 */

static void put_output(struct buf *b, struct call_choice *ch)
{
    switch ((enum output_mode)ch->call->request.output_mode) {
    case OUTPUT_TOKENS: break;
    case OUTPUT_TEXT:
        buf_puts(b, ",\"text\":");
        buf_put_json(b, or_empty(ch->content.data), ch->content.n_bytes);
        break;
    case OUTPUT_DERENDER:
        buf_puts(b, ",\"message\":");
        call_put_message(b, ch);
        break;
    }
}

/* What is new since the last chunk. */
static void put_choice(struct buf *b, struct call_choice *ch)
{
    buf_puts(b, "{\"index\":");
    buf_put_int(b, ch->index);
    put_output(b, ch);
    buf_puts(b, ",\"logprobs\":");
    if (ch->call->request.logprobs) {
        buf_puts(b, "{\"content\":[");
        buf_move(b, &ch->logprobs);
        buf_puts(b, "]}");
    } else {
        buf_puts(b, "null");
    }
    buf_puts(b, ",\"finish_reason\":");
    if (ch->finish) {
        buf_printf(b, "\"%s\"", ch->finish);
        call_put_stop_reason(b, ch);
    } else {
        buf_puts(b, "null,\"stop_reason\":null");
    }
    call_put_token_ids(b, ch);
    buf_putc(b, '}');
}

/* The prompt's ids, once in an answer. */
static void put_prompt(struct buf *b, struct call *c)
{
    if (c->request.returns_prompt && !c->choices[0].sent_prompt_ids) {
        c->choices[0].sent_prompt_ids = true;
        buf_puts(b, ",\"prompt_token_ids\":");
        call_put_ids(b, c->requests[0].prompt, c->requests[0].n_prompt);
    } else if (!c->request.stream) {
        buf_puts(b, ",\"prompt_token_ids\":null");
    }
}

static void put_head(struct buf *b, const struct call *c)
{
    static const char *const modes[] = {"tokens", "text", "derender"};
    buf_puts(b, "{\"request_id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_printf(b, ",\"output_mode\":\"%s\"", modes[c->request.output_mode]);
    if (!c->request.stream) {
        buf_puts(b, ",\"model\":");
        buf_put_json(b, c->request.model_name, strlen(c->request.model_name));
        buf_puts(b, ",\"created\":");
        buf_put_int(b, c->created);
    }
    buf_puts(b, ",\"choices\":");
}

static void begin(struct call *c)
{
    put_head(&c->chunk_head, c);
}

/* Chunks share a buffer, since only one is made at a time. */
static void put_chunk(struct call_choice *ch)
{
    struct call *c = ch->call;
    struct buf *b = &c->server->scratch;
    buf_clear(b);
    buf_put(b, c->chunk_head.data, c->chunk_head.n_bytes);
    buf_putc(b, '[');
    put_choice(b, ch);
    buf_clear(&ch->content);
    buf_putc(b, ']');
    put_prompt(b, c);
    call_send_chunk(c, b);
}

static void pending(struct call_choice *ch)
{
    const bool text = ch->call->request.output_mode == OUTPUT_TEXT && ch->content.n_bytes > 0;
    if (!ch->finish && (ch->ids.n_bytes > 0 || text)) { // the last ids are sent with the last chunk
        put_chunk(ch);
    }
}

/* Calls are reported only in whole answers of chats, in the form of call_chat_format. */
static void begin_call(struct call_choice *ch, const char *name, const char *id)
{
    call_chat_format.call(ch, name, id);
}

static void end_call(struct call_choice *ch)
{
    call_chat_format.call_end(ch);
}

/* The scores of listed tokens: base64 of NumPy's file format, as in vLLM, with a row for each token
 * of the prompt. */
static void put_scores(struct buf *b, const struct call *c)
{
    const struct engine_request *q = &c->requests[0];
    const int32_t n = q->params.prompt_top_logprobs, n_rows = c->request.n_scored;
    const int32_t first = q->params.prompt_logprob_start + 1;
    char head[129];
    struct buf file;
    if (!q->params.prompt_logprob_ids) {
        buf_puts(b, ",\"prompt_token_id_logprobs\":null");
        return;
    }
    buf_init(&file, (size_t)1 << 30);
    snprintf(head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }",
             n_rows, n);
    buf_put(&file, "\x93NUMPY\x01\x00\x76\x00", 10);
    buf_printf(&file, "%-117s\n", head); // the whole head has 128 bytes
    for (int32_t i = 0; i < n_rows; i++) {
        for (int32_t k = 0; k < n; k++) {
            uint32_t bits;
            memcpy(&bits, &q->prompt_logprobs[first + i].top_logprobs[k], sizeof bits);
            const unsigned char bytes[4] = {(unsigned char)bits, (unsigned char)(bits >> 8),
                                            (unsigned char)(bits >> 16),
                                            (unsigned char)(bits >> 24)};
            buf_put(&file, bytes, sizeof bytes);
        }
    }
    buf_puts(b, ",\"prompt_token_id_logprobs\":");
    packed_put_bytes(b, (const unsigned char *)file.data, file.n_bytes);
    buf_deinit(&file);
}

/* Ends a stream with its usage, or sends the whole reply. */
static void end(struct call *c)
{
    if (c->request.stream) {
        call_send_usage(c, "[]");
        call_end_stream(c, true);
        return;
    }
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    put_head(&body, c);
    for (size_t i = 0; i < c->n_choices; i++) {
        if (i) {
            buf_putc(&body, ',');
        } else {
            buf_putc(&body, '[');
        }
        put_choice(&body, &c->choices[i]);
    }
    buf_putc(&body, ']');
    call_put_usage(&body, c);
    call_put_prompt_logprobs(&body, c, &c->requests[0]);
    put_scores(&body, c);
    put_prompt(&body, c);
    buf_puts(&body, ",\"kv_transfer_params\":null}");
    call_whole(c, &body);
}

const struct call_format call_token_format = {
    .id_prefix = "generate-tokens-",
    .begin = begin,
    .pending = pending,
    .call = begin_call,
    .call_end = end_call,
    .logprob = logprob,
    .finish = put_chunk,
    .end = end,
};
