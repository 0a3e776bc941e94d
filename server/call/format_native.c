// SPDX-License-Identifier: Apache-2.0
/* llama.cpp's own answers: /completion and /infill, an object or events; /embedding;
 * /apply-template. */
#include "server/call/format.h"
#include "server/call/stand_in.h"

#include "engine/base/clock.h"
#include "engine/base/optional.h"

#include <stdio.h>
#include <string.h>

/* ---- pieces ---------------------------------------------------------------------------------- */

static void put_real(struct buf *b, const char *key, double v)
{
    buf_printf(b, ",\"%s\":", key);
    buf_put_double(b, v);
}

/* The bias of a token that may never be drawn is null. */
static void put_biases(struct buf *b, const struct sampling_params *p)
{
    for (int32_t i = 0; i < p->n_bias; i++) {
        buf_printf(b, "%s{\"token\":%d,\"bias\":", text_if(i, ","), p->bias[i].token);
        if (p->bias[i].bias > -100) {
            buf_put_double(b, (double)p->bias[i].bias);
        } else {
            buf_puts(b, "null");
        }
        buf_putc(b, '}');
    }
}

/* Writes the settings that were used. */
static void put_settings(struct buf *b, const struct call_choice *ch)
{
    const struct request *r = &ch->call->request;
    const struct sampling_params *p = &ch->request->params;
    buf_printf(b, "{\"n_predict\":%d,\"max_tokens\":%d,\"seed\":%llu,\"top_k\":%d,\"min_keep\":0",
               p->max_tokens, p->max_tokens, (unsigned long long)p->seed, p->top_k);
    put_real(b, "temperature", (double)p->temperature);
    put_real(b, "top_p", (double)p->top_p);
    put_real(b, "min_p", (double)p->min_p);
    put_real(b, "typical_p", 1);
    put_real(b, "repeat_penalty", (double)p->repetition_penalty);
    put_real(b, "presence_penalty", (double)p->presence_penalty);
    put_real(b, "frequency_penalty", (double)p->frequency_penalty);
    buf_printf(
        b,
        ",\"repeat_last_n\":-1,\"mirostat\":0,\"dry_multiplier\":0.0,\"xtc_probability\":0.0,"
        "\"dynatemp_range\":0.0,\"adaptive_target\":-1.0,\"adaptive_decay\":0.9,"
        "\"ignore_eos\":%s,\"stream\":%s,\"n_probs\":%d,"
        "\"post_sampling_probs\":%s,\"n_keep\":%lld,\"n_discard\":%lld,"
        "\"grammar\":\"\",\"samplers\":[],\"lora\":[],\"logit_bias\":[",
        bool_word(p->ignore_eos), bool_word(r->stream), r->n_top, bool_word(r->post_sampling),
        (long long)r->n_keep, (long long)r->n_discard);
    put_biases(b, p);
    buf_puts(b, "],\"stop\":[");
    for (size_t i = 0; i < r->output.n_stop; i++) {
        if (i) {
            buf_puts(b, ",");
        }
        buf_put_json(b, r->output.stop[i], r->output.stop_bytes[i]);
    }
    buf_puts(b, "]}");
}

/* The prompt as text, with its special tokens. */
static void put_prompt(struct buf *b, const struct call_choice *ch)
{
    const struct engine_request *q = ch->request;
    const struct tokenizer *tok = ch->call->request.model->tok;
    struct buf text;
    buf_init(&text, 256 << 20);
    if (tok) {
        tokenizer_decode(tok, q->prompt, (size_t)q->n_prompt, false, &text);
    }
    buf_put_json(b, or_empty(text.data), text.n_bytes);
    buf_deinit(&text);
}

/* llama.cpp's names for the reason. */
static const char *stop_type(const struct call_choice *ch)
{
    if (ch->output.stopped) {
        return "word";
    }
    if (strcmp(ch->finish, "length") == 0) {
        return "limit";
    }
    return "eos";
}

/* True if the context ended before the requested number of tokens. */
static bool is_cut(const struct call_choice *ch)
{
    const struct request *r = &ch->call->request;
    if (ch->shifted || r->prompt_cut) {
        return true;
    }
    bool all = r->has_max_tokens && ch->n_taken >= r->max_tokens;
    return strcmp(ch->finish, "length") == 0 && !all &&
           ch->request->n_prompt + ch->n_taken >= r->model->info->max_model_len;
}

static void put_probabilities(struct buf *b, struct call_choice *ch)
{
    if (ch->call->request.logprobs && ch->logprobs.n_bytes > 0) {
        buf_puts(b, ",\"completion_probabilities\":[");
        buf_move(b, &ch->logprobs);
        buf_putc(b, ']');
    }
}

/* {"index","content","tokens","id_slot","stop","tokens_predicted","tokens_evaluated" */
static void put_head(struct buf *b, struct call_choice *ch, bool stop)
{
    const struct request *r = &ch->call->request;
    buf_puts(b, "{\"index\":");
    buf_put_int(b, (int64_t)(ch->request - ch->call->requests));
    buf_puts(b, ",\"content\":");
    buf_put_json(b, or_empty(ch->content.data), ch->content.n_bytes);
    buf_puts(b, ",\"tokens\":[");
    if (r->native_tokens || r->stream) {
        buf_put(b, ch->ids.data, ch->ids.n_bytes);
    }
    buf_printf(b, "],\"id_slot\":-1,\"stop\":%s,\"tokens_predicted\":%d,\"tokens_evaluated\":%d",
               bool_word(stop), ch->n_taken, ch->request->n_prompt);
    buf_clear(&ch->ids);
}

static bool has_line(const struct call_choice *ch)
{
    return ch->n_lines > 0;
}

/* All members of llama.cpp's last event; response_fields may select among them. */
void call_put_native(struct buf *b, struct call_choice *ch)
{
    const char *word = "";
    size_t word_bytes = 0;
    if (ch->output.stopped) {
        word = ch->output.options->stop[ch->output.stop_index];
        word_bytes = ch->output.options->stop_bytes[ch->output.stop_index];
    }
    struct call *c = ch->call;
    put_head(b, ch, true);
    buf_puts(b, ",\"model\":");
    buf_put_json(b, c->request.model_name, strlen(c->request.model_name));
    buf_puts(b, ",\"generation_settings\":");
    put_settings(b, ch);
    buf_puts(b, ",\"prompt\":");
    put_prompt(b, ch);
    buf_printf(b, ",\"has_new_line\":%s,\"truncated\":%s,\"stop_type\":\"%s\",\"stopping_word\":",
               bool_word(has_line(ch)), bool_word(is_cut(ch)), stop_type(ch));
    buf_put_json(b, word, word_bytes);
    buf_printf(b, ",\"tokens_cached\":%d,\"timings\":", ch->request->n_prompt + ch->n_taken);
    call_put_timings(b, c, ch->request);
    put_probabilities(b, ch);
    buf_putc(b, '}');
}

void call_put_verbose(struct buf *b, struct call *c)
{
    if (c->request.verbose && c->n_choices > 0) {
        buf_puts(b, ",\"__verbose\":");
        call_put_native(b, &c->choices[0]);
    }
}

/* ---- stream ---------------------------------------------------------------------------------- */

static void count_lines(struct call_choice *ch)
{
    bool line = ch->content.n_bytes > 0 && memchr(ch->content.data, '\n', ch->content.n_bytes);
    ch->n_lines += line;
}

/* Ends the object of an event, and sends it. */
static void send_event(struct call_choice *ch, struct buf *b)
{
    struct call *c = ch->call;
    if (c->request.timings) {
        buf_puts(b, ",\"timings\":");
        call_put_timings(b, c, ch->request);
    }
    buf_putc(b, '}');
    call_event(c, NULL, b);
}

/* An event for each piece of text; with probabilities, one for each token. */
static void pending(struct call_choice *ch)
{
    struct call *c = ch->call;
    struct buf *b = &c->server->scratch;
    if (!c->request.stream || (ch->content.n_bytes == 0 && ch->ids.n_bytes == 0)) {
        return;
    }
    buf_clear(b);
    put_head(b, ch, false);
    count_lines(ch);
    buf_clear(&ch->content);
    put_probabilities(b, ch);
    send_event(ch, b);
}

static void tell_prompt(struct call_choice *ch)
{
    struct buf *b = &ch->call->server->scratch;
    buf_clear(b);
    put_head(b, ch, false);
    call_put_progress(b, ch);
    send_event(ch, b);
}

static void call(struct call_choice *ch, const char *name, const char *id)
{
    (void)ch; // no parser runs here
    (void)name;
    (void)id;
}

static void logprob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                    size_t n_chars_before)
{
    (void)n_chars_before;
    if (ch->call->request.post_sampling) {
        call_native_prob(ch, token, lp);
    } else {
        call_native_logprob(ch, token, lp);
    }
}

static void finish(struct call_choice *ch)
{
    pending(ch);
    struct buf b;
    buf_init(&b, 256 << 20);
    call_put_native(&b, ch);
    call_event(ch->call, NULL, &b);
    buf_deinit(&b);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Writes only the members in response_fields, where "a/b" is the member b of the object a. */
static void put_fields(struct buf *b, const struct call *c, const struct buf *object)
{
    struct json *root = NULL;
    bool first = true;
    json_parse(object->data, object->n_bytes, NULL, &root, NULL);
    for (const struct json *f = json_first(c->request.fields); f; f = json_next(f)) {
        const char *name = json_string(f), *slash = strchr(name, '/');
        char outer[64];
        snprintf(outer, sizeof outer, "%.*s", (int)(slash ? slash - name : 63), name);
        const struct json *v = json_get(root, slash ? outer : name);
        if (v && slash) {
            v = json_get(v, slash + 1);
        }
        if (v) {
            if (first) {
                buf_putc(b, '{');
            } else {
                buf_putc(b, ',');
            }
            buf_put_json(b, name, strlen(name));
            buf_putc(b, ':');
            call_put_node(b, v);
            first = false;
        }
    }
    if (first) {
        buf_puts(b, "{}");
    } else {
        buf_puts(b, "}");
    }
    json_free(root);
}

static void put_answer(struct buf *b, struct call_choice *ch)
{
    count_lines(ch);
    if (!ch->call->request.fields) {
        call_put_native(b, ch);
        return;
    }
    struct buf object, fields;
    struct stand_in nul = {.utf8 = ""};
    buf_init(&object, (size_t)512 << 20);
    buf_init(&fields, (size_t)512 << 20);
    call_put_native(&object, ch);
    char *found = stand_in_find_nul(object.data, object.n_bytes);
    if (found && stand_in_choose(&nul, object.data, object.n_bytes)) {
        stand_in_hide(&nul, object.data, object.n_bytes);
    }
    put_fields(&fields, ch->call, &object);
    stand_in_put_back(&nul, &fields);
    buf_put(b, fields.data, fields.n_bytes);
    buf_deinit(&object);
    buf_deinit(&fields);
}

/* Ends the answer; several prompts give an array. */
static void end(struct call *c)
{
    if (c->request.stream) {
        call_end_stream(c, false);
        return;
    }
    bool list = c->n_choices > 1 || c->request.bare_list;
    struct buf b;
    buf_init(&b, (size_t)1 << 30);
    for (size_t i = 0; i < c->n_choices; i++) {
        const char *open = text_if(list, "[");
        if (i) {
            buf_puts(&b, ",");
        } else {
            buf_puts(&b, open);
        }
        put_answer(&b, &c->choices[i]);
    }
    if (list) {
        buf_puts(&b, "]");
    }
    call_whole(c, &b);
}

const struct call_format call_native_format = {
    .id_prefix = "cmpl-",
    .prompt = tell_prompt,
    .pending = pending,
    .in_order = true, // with probabilities, each token has an event of its own
    .call = call,
    .logprob = logprob,
    .finish = finish,
    .end = end,
};

/* ---- embeddings and templates ---------------------------------------------------------------- */

/* A list of vectors for each input: a single vector, or one per token; the latter are not
 * normalized, as in llama.cpp. */
static void write_embedding(struct call *c, struct buf *b)
{
    const bool listed = c->request.pooling == POOL_TOKENS;
    c->request.normalize &= !listed;
    for (size_t i = 0; i < call_n_vectors(c); i++) {
        if (i) {
            buf_puts(b, ",{\"index\":");
        } else {
            buf_puts(b, "[{\"index\":");
        }
        buf_put_int(b, (int64_t)i);
        buf_puts(b, listed ? ",\"embedding\":" : ",\"embedding\":[");
        call_put_vector(b, c, i);
        buf_puts(b, listed ? "}" : "]}");
    }
    buf_putc(b, ']');
}

const struct call_format call_native_embed_format = {.id_prefix = "embd-",
                                                     .write = write_embedding};

/* Replies with the prompt, without the token that /completion adds in front of a text. */
static void reply_prompt(struct call *c)
{
    const struct request *r = &c->request;
    const struct tokenizer *tok = r->model->tok;
    const char *text = r->prompts[0].text, *bos = NULL;
    size_t n_bytes = r->prompts[0].text_bytes, n_bos = 0, n_before, n_behind;
    tokenizer_n_around(tok, &n_before, &n_behind);
    if (n_before > 0 && tokenizer_bos(tok) >= 0) {
        bos = tokenizer_token_text(tok, tokenizer_bos(tok), &n_bos);
    }
    if (bos && n_bos <= n_bytes && memcmp(text, bos, n_bos) == 0) {
        text += n_bos;
        n_bytes -= n_bos;
    }
    struct buf b;
    buf_init(&b, (size_t)1 << 30);
    buf_puts(&b, "{\"prompt\":");
    buf_put_json(&b, text, n_bytes);
    buf_putc(&b, '}');
    call_whole(c, &b);
}

const struct call_format call_apply_format = {.id_prefix = "tok-", .reply = reply_prompt};
