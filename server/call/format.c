// SPDX-License-Identifier: Apache-2.0
/* Pieces of JSON that several endpoints share. */
#include "server/call/format.h"

#include "engine/base/clock.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/base/utf8.h"
#include "server/call/convert.h"
#include "server/call/derender.h"
#include "server/call/post_sampling.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Sums over a call's prompts. Tokens after a stop string are neither returned nor counted. */
struct call_usage call_usage_of(const struct call *c)
{
    struct call_usage u = {.recomputed = -1};
    for (size_t i = 0; i < c->n_requests; i++) {
        const struct engine_request *r = &c->requests[i];
        u.prompt += r->n_prompt;
        u.cached += r->n_cached;
        if (r->n_recomputed >= 0) {
            u.recomputed = greater(u.recomputed, 0) + r->n_recomputed;
        }
        u.accepted += r->n_accepted; // read it before n_drafts: see engine.h
        u.drafts += r->n_drafts;
    }
    for (size_t i = 0; i < c->n_choices; i++) {
        u.completion += c->choices[i].n_taken;
        u.reasoning += c->choices[i].output.n_reasoning_tokens;
    }
    if (u.accepted > u.completion) { // after a stop string nothing is returned or counted
        u.accepted = u.completion;
    }
    return u;
}

void call_put_recomputed(struct buf *b, const struct call_usage *u)
{
    if (u->recomputed >= 0) {
        buf_puts(b, ",\"recomputed_tokens\":");
        buf_put_int(b, u->recomputed);
    }
}

void call_put_usage(struct buf *b, const struct call *c)
{
    struct call_usage u = call_usage_of(c);
    buf_puts(b, ",\"usage\":{\"prompt_tokens\":");
    buf_put_int(b, u.prompt);
    buf_puts(b, ",\"completion_tokens\":");
    buf_put_int(b, u.completion);
    buf_puts(b, ",\"total_tokens\":");
    buf_put_int(b, u.prompt + u.completion);
    buf_puts(b, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    buf_put_int(b, u.cached);
    call_put_recomputed(b, &u);
    buf_puts(b, ",\"audio_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":");
    buf_put_int(b, u.reasoning);
    // Predictions are the drafts of speculative decoding.
    buf_puts(b, ",\"accepted_prediction_tokens\":");
    buf_put_int(b, u.accepted);
    buf_puts(b, ",\"rejected_prediction_tokens\":");
    buf_put_int(b, u.drafts - u.accepted);
    buf_puts(b, ",\"audio_tokens\":0}}");
}

/* JSON has no -inf, so the log-probability of an impossible token is written as -9999, as in
 * vLLM. */
void call_put_logprob(struct buf *b, float logprob)
{
    char text[32];
    if (!(logprob > -9999.0f)) {
        buf_puts(b, "-9999.0");
        return;
    }
    snprintf(text, sizeof text, "%.9g", (double)logprob);
    buf_puts(b, text);
    if (!strpbrk(text, ".e")) { // clients that tell floats from integers expect a float
        buf_puts(b, ".0");
    }
}

/* Characters of the token's own text, for offsets in the answer; special tokens that are
 * not shown have none. */
size_t call_token_characters(const struct call *c, int32_t token)
{
    const struct output_options *o = &c->request.output;
    size_t n = 0, n_characters = 0;
    if (!o->tok || (o->skip_special && tokenizer_is_special(o->tok, token))) {
        return 0;
    }
    const char *piece = tokenizer_piece(o->tok, token, &n);
    for (size_t i = 0; piece && i < n; i++) {
        n_characters += ((unsigned char)piece[i] & 0xC0) != 0x80;
    }
    return n_characters;
}

/* The bytes that a token stands for, or a special token's name. NULL if there is no tokenizer. */
static const char *token_text(const struct call *c, int32_t token, size_t *n)
{
    const struct tokenizer *tok = c->request.output.tok;
    const char *piece = tok ? tokenizer_piece(tok, token, n) : NULL;
    if (tok && (!piece || *n == 0) && tokenizer_is_special(tok, token)) {
        piece = tokenizer_token_text(tok, token, n);
    }
    return piece;
}

/* Writes a token's text. A part of a character is written as U+FFFD or, if `spelled`, as its
 * bytes. */
static void put_token_text(struct buf *b, const struct call *c, int32_t token, bool spelled)
{
    size_t n = 0;
    if (c->request.tokens_as_ids || !c->request.output.tok) {
        buf_printf(b, "\"token_id:%d\"", token);
        return;
    }
    const char *piece = token_text(c, token, &n);
    if (!piece || !spelled || utf8_check(piece, n) == n) {
        buf_put_json(b, or_empty(piece), piece ? n : 0);
        return;
    }
    buf_puts(b, "\"bytes:");
    for (size_t i = 0; i < n; i++) {
        buf_printf(b, "\\\\x%02x", (unsigned char)piece[i]);
    }
    buf_putc(b, '"');
}

void call_put_token_text(struct buf *b, const struct call *c, int32_t token)
{
    put_token_text(b, c, token, true);
}

/* Writes the token's bytes, since it may end within a character. */
static void put_token_bytes(struct buf *b, const struct call *c, int32_t token)
{
    size_t n = 0;
    const char *piece = token_text(c, token, &n);
    buf_puts(b, ",\"bytes\":[");
    for (size_t i = 0; piece && i < n; i++) {
        if (i) {
            buf_puts(b, ",");
        }
        buf_put_int(b, (unsigned char)piece[i]);
    }
    buf_putc(b, ']');
}

/* "token","logprob","bytes" of a chat entry, without its braces. */
void call_put_token(struct buf *b, const struct call *c, int32_t token, float logprob)
{
    buf_puts(b, "\"token\":");
    put_token_text(b, c, token, false);
    buf_puts(b, ",\"logprob\":");
    call_put_logprob(b, logprob);
    put_token_bytes(b, c, token);
}

/* OpenAI's log-probability of a token, with its alternatives. */
void call_chat_logprob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                       size_t n_chars_before)
{
    (void)n_chars_before;
    struct buf *b = &ch->logprobs;
    if (b->n_bytes) {
        buf_puts(b, ",{");
    } else {
        buf_puts(b, "{");
    }
    call_put_token(b, ch->call, token, lp->logprob);
    buf_puts(b, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < lp->n_top && i < ch->call->request.n_top; i++) {
        if (i) {
            buf_puts(b, ",{");
        } else {
            buf_puts(b, "{");
        }
        call_put_token(b, ch->call, lp->top_ids[i], lp->top_logprobs[i]);
        buf_putc(b, '}');
    }
    buf_puts(b, "]}");
}

static void put_native(struct buf *b, const struct call *c, int32_t token, float logprob)
{
    buf_printf(b, "{\"id\":%d,", token);
    call_put_token(b, c, token, logprob);
}

/* The same in llama.cpp's form. */
void call_native_logprob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp)
{
    struct buf *b = &ch->logprobs;
    if (b->n_bytes) {
        buf_puts(b, ",");
    }
    put_native(b, ch->call, token, lp->logprob);
    buf_puts(b, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < lp->n_top && i < ch->call->request.n_top; i++) {
        if (i) {
            buf_puts(b, ",");
        }
        put_native(b, ch->call, lp->top_ids[i], lp->top_logprobs[i]);
        buf_putc(b, '}');
    }
    buf_puts(b, "]}");
}

/* llama.cpp's form, which includes the token's bytes, because a token alone may not be valid
 * UTF-8. */
static void put_native_prob(struct buf *b, const struct call *c, int32_t token, double prob)
{
    buf_printf(b, "{\"id\":%d,\"token\":", token);
    put_token_text(b, c, token, false);
    buf_puts(b, ",\"prob\":");
    buf_put_double(b, prob);
    put_token_bytes(b, c, token);
}

/* After the samplers: tokens that could not have been drawn have the probability 0. */
void call_native_prob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp)
{
    struct buf *b = &ch->logprobs;
    struct post_sampling post;
    post_sampling_of(&ch->request->params, lp, token, &post);
    buf_puts(b, text_if(b->n_bytes, ","));
    put_native_prob(b, ch->call, token, post.drawn);
    buf_puts(b, ",\"top_probs\":[");
    for (int32_t i = 0; i < lp->n_top && i < ch->call->request.n_top; i++) {
        const double prob = i < post.n ? post_sampling_prob(&post, lp, i) : 0;
        buf_puts(b, text_if(i, ","));
        put_native_prob(b, ch->call, lp->top_ids[i], prob);
        buf_putc(b, '}');
    }
    buf_puts(b, "]}");
}

void call_put_transfer(struct buf *b, const struct call *c)
{
    const struct derender *d = c->request.derender;
    if (d && d->transfer) {
        buf_puts(b, ",\"kv_transfer_params\":");
        call_put_node(b, d->transfer);
    }
    if (d && d->metrics && d->n_answers == 1) {
        buf_puts(b, ",\"metrics\":");
        call_put_node(b, d->metrics);
    }
}

void call_put_node(struct buf *b, const struct json *node)
{
    convert_node(b, node);
}

void call_put_ids(struct buf *b, const int32_t *ids, int32_t n)
{
    buf_putc(b, '[');
    for (int32_t i = 0; i < n; i++) {
        if (i > 0) {
            buf_putc(b, ',');
        }
        buf_put_int(b, ids[i]);
    }
    buf_putc(b, ']');
}

/* vLLM's extension: the stop string or the stop token that ended the sample. */
void call_put_stop_reason(struct buf *b, const struct call_choice *ch)
{
    const struct output *o = &ch->output;
    buf_puts(b, ",\"stop_reason\":");
    if (ch->stop_given) {
        call_put_node(b, ch->stop_given);
    } else if (o->stopped) {
        buf_put_json(b, o->options->stop[o->stop_index], o->options->stop_bytes[o->stop_index]);
    } else if (ch->stop_id >= 0) {
        buf_put_int(b, ch->stop_id);
    } else {
        buf_puts(b, "null");
    }
}

/* Writes the beginning of an answer, which all chunks of a stream share. */
void call_put_head(struct buf *b, const struct call *c, const char *object)
{
    buf_puts(b, "{\"id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_printf(b, ",\"object\":\"%s\",\"created\":", object);
    buf_put_int(b, c->created);
    buf_puts(b, ",\"model\":");
    buf_put_json(b, c->request.model_name, strlen(c->request.model_name));
    buf_printf(b, ",\"system_fingerprint\":\"%s\",\"choices\":", c->request.model->fingerprint);
}

/* The ids that the client asked for; in a stream, the ids of this chunk. */
void call_put_token_ids(struct buf *b, struct call_choice *ch)
{
    if (ch->call->request.return_token_ids) {
        buf_puts(b, ",\"token_ids\":[");
        buf_move(b, &ch->ids);
        buf_putc(b, ']');
    } else if (!ch->call->request.stream) {
        buf_puts(b, ",\"token_ids\":null");
    }
}

/* Unless ids were requested, the member is null in a whole answer and absent in a stream, as in
 * vLLM. */
void call_put_prompt_ids(struct buf *b, const struct call *c, const struct engine_request *r)
{
    const struct derender *d = c->request.derender;
    const struct json *given = d ? d->answers[r - c->requests].prompt_ids : NULL;
    if (c->request.return_token_ids && given) {
        buf_puts(b, ",\"prompt_token_ids\":");
        call_put_node(b, given);
    } else if (c->request.return_token_ids && !d) {
        buf_puts(b, ",\"prompt_token_ids\":");
        call_put_ids(b, r->prompt, r->n_prompt);
    } else if (!c->request.stream) {
        buf_puts(b, ",\"prompt_token_ids\":null");
    }
}

void call_put_asked_timings(struct buf *b, const struct call *c)
{
    if (c->request.timings && c->n_requests > 0 && !c->untimed) {
        buf_puts(b, ",\"timings\":");
        call_put_timings(b, c, &c->requests[0]);
    }
}

void call_event(struct call *c, const char *name, const struct buf *json)
{
    c->cut |= json->failed;
    if (!json->failed) {
        c->sink->event(c, name, json->data, json->n_bytes);
    }
}

/* The error of an answer with a part missing: memory ran out, or a buffer has reached its limit. */
static void part_missing(struct call *c, struct call_error *e)
{
    if (buf_n_lost() != c->server->n_lost) {
        call_error_no_memory(e);
    } else {
        call_error_answer_too_large(e);
    }
    c->record.error = e->code;
    c->record.finish = "error";
}

/* Sends a whole answer, unless a part of it is missing. */
void call_whole(struct call *c, struct buf *json)
{
    struct call_error e = {0};
    if (buf_n_lost() == c->server->n_lost && !json->failed) {
        c->sink->whole(c, json);
        return;
    }
    buf_deinit(json);
    part_missing(c, &e);
    c->sink->error(c, &e);
}

/* The same for streams: once events were sent, an error is an event. */
void call_end_stream(struct call *c, bool done)
{
    struct call_error e = {0};
    if (buf_n_lost() == c->server->n_lost && !c->cut) {
        c->sink->end(c, done);
        return;
    }
    part_missing(c, &e);
    if (c->format->error) {
        c->format->error(c, &e);
        c->sink->end(c, false);
    } else {
        c->sink->error(c, &e);
    }
}

/* Sends a chunk: head, choices and, if the client wants it in each chunk, usage. */
void call_send_chunk(struct call *c, struct buf *b)
{
    if (c->request.continuous_usage) {
        call_put_usage(b, c);
    } else if (c->request.include_usage) {
        buf_puts(b, ",\"usage\":null");
    }
    call_put_asked_timings(b, c);
    buf_putc(b, '}');
    call_event(c, NULL, b);
}

/* As in vLLM, an unknown value is null in a whole answer, and absent in a stream. */
static void put_known(struct buf *b, const struct call *c, const char *key, bool known,
                      double value)
{
    if (!known && c->request.stream) {
        return;
    }
    if (b->data[b->n_bytes - 1] != '{') {
        buf_putc(b, ',');
    }
    buf_printf(b, "\"%s\":", key);
    if (known) {
        buf_printf(b, "%.3f", value);
    } else {
        buf_puts(b, "null");
    }
}

void call_put_metrics(struct buf *b, const struct call *c)
{
    const struct engine_request *r = &c->requests[0];
    if (!c->server->config->enable_per_request_metrics || c->n_choices != 1) {
        return;
    }
    const int64_t begun = r->t_scheduled_ns, first = r->t_first_token_ns;
    // If a stop string ended the answer, the engine's request may still be running.
    const int64_t last = r->done ? r->t_done_ns : clock_now_ns();
    const int32_t n = c->choices[0].n_taken;
    const double generation = (double)(last - first) * 1e-6, all = (double)(last - begun) * 1e-6;
    buf_puts(b, ",\"metrics\":{");
    put_known(b, c, "time_to_first_token_ms", begun > 0 && first > 0,
              (double)(first - begun) * 1e-6);
    put_known(b, c, "generation_time_ms", first > 0, generation);
    put_known(b, c, "queue_time_ms", begun > 0, (double)(begun - r->t_submit_ns) * 1e-6);
    put_known(b, c, "mean_itl_ms", first > 0 && n > 1, generation / greater(n - 1, 1));
    put_known(b, c, "tokens_per_second", begun > 0 && all > 0, n / all * 1e3);
    buf_putc(b, '}');
}

/* The last chunk has no choices. */
void call_send_usage(struct call *c, const char *tail)
{
    struct buf *b = &c->server->scratch;
    if (c->request.include_usage || c->request.continuous_usage) {
        buf_clear(b);
        buf_put(b, c->chunk_head.data, c->chunk_head.n_bytes);
        buf_puts(b, tail);
        call_put_usage(b, c);
        call_put_asked_timings(b, c);
        call_put_metrics(b, c);
        buf_putc(b, '}');
        call_event(c, NULL, b);
    }
}

/* vLLM's form: {"ID":{"logprob":...,"rank":...,"decoded_token":...}}. rank 0: not known. */
static void put_ranked(struct buf *b, const struct call *c, int32_t token, float logprob,
                       int32_t rank, bool first)
{
    buf_printf(b, "%s\"%d\":{\"logprob\":", first ? "" : ",", token);
    call_put_logprob(b, logprob);
    if (rank > 0) {
        buf_printf(b, ",\"rank\":%d", rank);
    }
    buf_puts(b, ",\"decoded_token\":");
    put_token_text(b, c, token, false);
    buf_putc(b, '}');
}

/* The first token of a prompt has no predecessor, hence null. */
void call_put_prompt_logprobs(struct buf *b, const struct call *c, const struct engine_request *r)
{
    const struct derender *d = c->request.derender;
    if (d && d->prompt_logprobs) {
        buf_puts(b, ",\"prompt_logprobs\":");
        call_put_node(b, d->prompt_logprobs);
        return;
    }
    if (d || !body_has(&c->request.body, "prompt_logprobs")) {
        buf_puts(b, ",\"prompt_logprobs\":null");
        return;
    }
    buf_puts(b, ",\"prompt_logprobs\":[null");
    for (int32_t i = 1; i < r->n_prompt; i++) {
        const struct token_logprobs *lp = &r->prompt_logprobs[i];
        bool seen = false;
        buf_puts(b, ",{");
        const int32_t n =
            r->params.prompt_logprob_ids ? 0 : lp->n_top; // those are not the likeliest
        for (int32_t k = 0; k < n; k++) {
            put_ranked(b, c, lp->top_ids[k], lp->top_logprobs[k], k + 1, k == 0);
            seen = seen || lp->top_ids[k] == r->prompt[i];
        }
        if (!seen) {
            put_ranked(b, c, r->prompt[i], lp->logprob, 0, n == 0);
        }
        buf_putc(b, '}');
    }
    buf_putc(b, ']');
}

/* Makes the id of a tool call from a counter and the random seed; it only has to be unique. It
 * ends with 16 hexadecimal digits, as vLLM's ids do. */
void call_make_id(struct call *c, const char *prefix, char out[40])
{
    static const char digits[] = "0123456789abcdef";
    /* Different in every call of the process, and between processes: the seed is random. */
    uint64_t x = c->request.seed ^ (uint64_t)c->created << 20, y = ++c->next_id;
    size_t n = strlen(prefix);
    memcpy(out, prefix, n);
    for (size_t i = 0; i < 16; i++) {
        x = (x ^ (x >> 29) ^ y) * 0xbf58476d1ce4e5b9ULL + 0x94d049bb133111ebULL;
        out[n + i] = digits[x >> 60];
    }
    out[n + 16] = '\0';
}
