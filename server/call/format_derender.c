// SPDX-License-Identifier: Apache-2.0
/* The answers of /derender: the ids pass through the same parsers and formats as those that the
 * engine generates. */
#include "engine/base/optional.h"
#include "server/call/derender.h"
#include "server/call/format.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- log-probabilities ------------------------------------------------------------------------
 */

/* The token's id, as a number or, from older servers, as "token_id:N"; -1: a text. */
static int32_t id_of(const struct call *c, const struct json *entry)
{
    static const char prefix[] = "token_id:";
    const char *token = json_get_string(entry, "token");
    const struct json *number = json_get(entry, "token_id");
    int64_t id = -1;
    if (number) {
        json_int64(number, &id);
    } else if (token && strncmp(token, prefix, sizeof prefix - 1) == 0) {
        const char *digits = token + sizeof prefix - 1;
        char *end = NULL;
        id = strtoll(digits, &end, 10);
        if (end == digits || *end != '\0') {
            id = -1;
        }
    }
    return id >= 0 && id < c->request.model->info->vocab ? (int32_t)id : -1;
}

static float value_of(const struct json *entry)
{
    return (float)json_number(json_get(entry, "logprob"), -9999.0);
}

/* A token of a chat's log-probabilities, without its braces. */
static void put_entry(struct buf *b, const struct call *c, const struct json *entry)
{
    const char *token = json_get_string(entry, "token");
    const int32_t id = id_of(c, entry);
    if (id >= 0) {
        call_put_token(b, c, id, value_of(entry));
        return;
    }
    buf_puts(b, "\"token\":");
    buf_put_json(b, or_empty(token), length_or_0(token));
    buf_puts(b, ",\"logprob\":");
    call_put_logprob(b, value_of(entry));
    buf_puts(b, ",\"bytes\":[");
    for (const char *p = token; p && *p; p++) {
        buf_printf(b, "%s%d", text_if(p > token, ","), (unsigned char)*p);
    }
    buf_putc(b, ']');
}

/* Candidates in the order of their ranks; those without a rank come last, in their own order. */
struct candidate {
    const struct json *entry;
    int64_t rank;
    size_t place;
};

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return (x->place > y->place) - (x->place < y->place);
}

/* Generate lists the token itself first; a chat lists only the likeliest. */
static size_t list_likeliest(struct call *c, const struct json *tops, struct candidate **list)
{
    const size_t n = json_count(tops);
    const int64_t most = c->request.derender->n_top;
    size_t i = 0;
    *list = arena_alloc(&c->request.arena, n + 1, sizeof **list);
    if (!*list) {
        return 0;
    }
    for (const struct json *t = json_first(tops); t; t = json_next(t), i++) {
        (*list)[i] = (struct candidate){.entry = t, .rank = INT64_MAX, .place = i};
        json_int64(json_get(t, "rank"), &(*list)[i].rank);
    }
    if (most < 0) {
        return n;
    }
    qsort(*list, n, sizeof **list, by_rank);
    return n < (size_t)most ? n : (size_t)most;
}

void derender_chat_logprobs(struct call_choice *ch)
{
    struct buf *b = &ch->logprobs;
    const struct json *content = derender_source(ch)->logprobs;
    for (const struct json *e = json_first(content); e; e = json_next(e)) {
        struct candidate *list;
        const size_t n = list_likeliest(ch->call, json_get(e, "top_logprobs"), &list);
        buf_puts(b, b->n_bytes ? ",{" : "{");
        put_entry(b, ch->call, e);
        buf_puts(b, ",\"top_logprobs\":[");
        for (size_t i = 0; i < n; i++) {
            buf_puts(b, i > 0 ? ",{" : "{");
            put_entry(b, ch->call, list[i].entry);
            buf_putc(b, '}');
        }
        buf_puts(b, "]}");
    }
}

static void put_text(struct buf *b, const struct call *c, const struct json *entry)
{
    const char *token = json_get_string(entry, "token");
    const int32_t id = id_of(c, entry);
    if (id >= 0) {
        call_put_token_text(b, c, id);
    } else {
        buf_put_json(b, or_empty(token), length_or_0(token));
    }
}

static void put_pair(struct buf *b, const struct call *c, const struct json *entry)
{
    put_text(b, c, entry);
    buf_putc(b, ':');
    call_put_logprob(b, value_of(entry));
}

static void put_comma(struct buf *b)
{
    if (b->n_bytes > 0) {
        buf_putc(b, ',');
    }
}

/* The token itself, and the alternatives that the request asks for. */
static void put_tops(struct buf *b, const struct call *c, const struct json *entry)
{
    const int64_t most = c->request.derender->n_top;
    const int32_t id = id_of(c, entry);
    int64_t n = 0;
    buf_putc(b, '{');
    put_pair(b, c, entry);
    const struct json *tops = json_get(entry, "top_logprobs");
    for (const struct json *t = json_first(tops); t && (most < 0 || n < most); t = json_next(t)) {
        if (id < 0 || id_of(c, t) != id) {
            buf_putc(b, ',');
            put_pair(b, c, t);
            n++;
        }
    }
    buf_putc(b, '}');
}

void derender_list_logprobs(struct call_choice *ch, size_t offset)
{
    struct buf *values = &ch->lists[0], *tops = &ch->lists[1], *offsets = &ch->lists[2];
    const struct json *content = derender_source(ch)->logprobs;
    for (const struct json *e = json_first(content); e; e = json_next(e)) {
        const int32_t id = id_of(ch->call, e);
        put_comma(&ch->logprobs);
        put_text(&ch->logprobs, ch->call, e);
        put_comma(values);
        call_put_logprob(values, value_of(e));
        put_comma(tops);
        put_tops(tops, ch->call, e);
        put_comma(offsets);
        buf_put_int(offsets, (int64_t)offset);
        if (id >= 0) {
            offset += call_token_characters(ch->call, id);
        } else {
            offset += length_or_0(json_get_string(e, "token"));
        }
    }
}

/* ---- outputs ----------------------------------------------------------------------------------
 */

const struct derendered_choice *derender_source(const struct call_choice *ch)
{
    const struct derender *d = ch->call->request.derender;
    return &d->answers[ch->request - ch->call->requests].choices[ch->sample];
}

static bool has_id(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* True if the last id ended the answer, and so is not part of the text. If the other server does
 * not say what ended the answer, the stop tokens decide: the request's, or, without a request, the
 * model's. */
static bool ends_with_stop(const struct request *r, const struct derendered_choice *from)
{
    const struct sampling_params *p = &r->params;
    const int32_t last = from->n > 0 ? from->ids[from->n - 1] : -1;
    int64_t stop;
    if (last < 0 || !from->finish || strcmp(from->finish, "stop") != 0) {
        return false;
    }
    if (from->stop) {
        return json_int64(from->stop, &stop) && stop == last;
    }
    const struct engine_info *info = r->model->info;
    return r->derender->of ? has_id(p->stop_ids, p->n_stop_ids, last)
                           : has_id(info->eos, info->n_eos, last);
}

/* The text is cut at the stop string that ended it; if the server does not say which one that was,
 * at the first of the request's stop strings that occurs. */
static bool set_stop_strings(struct call *c, struct call_choice *ch)
{
    const struct derendered_choice *from = derender_source(ch);
    struct output_options *own = arena_alloc(&c->request.arena, 1, sizeof *own);
    if (!own) {
        return false;
    }
    *own = c->request.output;
    if (!from->finish || strcmp(from->finish, "stop") != 0 || from->stop) {
        own->n_stop = 0;
    }
    const char *given = json_string(from->stop);
    if (given && *given) {
        const char **stop = arena_alloc(&c->request.arena, 1, sizeof *stop);
        size_t *n_bytes = arena_alloc(&c->request.arena, 1, sizeof *n_bytes);
        if (!stop || !n_bytes) {
            return false;
        }
        *stop = given;
        *n_bytes = strlen(given);
        own->stop = stop;
        own->stop_bytes = n_bytes;
        own->n_stop = 1;
    }
    ch->output.options = own;
    ch->stop_given = from->stop;
    return true;
}

static bool open_answer(struct call *c, const struct derendered *a, struct engine_output *out)
{
    struct engine_request *q = &c->requests[c->n_requests++];
    q->n_prompt = (int32_t)a->n_prompt;
    q->n_recomputed = -1;
    q->params = c->request.params;
    q->params.n_stop_ids = 0;
    q->n = (int32_t)a->n_choices;
    q->outputs = out;
    for (size_t k = 0; k < a->n_choices; k++) {
        struct derendered_choice *from = &a->choices[k];
        struct call_choice *ch = &c->choices[c->n_choices];
        out[k].tokens = from->ids;
        out[k].stop_id = -1;
        call_choice_init(ch, c, c->request.derender->streams ? from->index : (int32_t)c->n_choices,
                         q, (int32_t)k);
        c->n_choices++;
        if (!set_stop_strings(c, ch)) {
            return false;
        }
    }
    return true;
}

bool derender_open(struct call *c)
{
    const struct derender *d = c->request.derender;
    size_t n_choices = 0;
    if (d->id) {
        snprintf(c->id, sizeof c->id, "%s", d->id);
    }
    for (size_t i = 0; i < d->n_answers; i++) {
        n_choices += d->answers[i].n_choices;
    }
    struct engine_output *out = mem_try_calloc(n_choices + 1, sizeof *out);
    c->memory = out;
    c->requests = mem_try_calloc(d->n_answers, sizeof *c->requests);
    c->choices = mem_try_calloc(n_choices + 1, sizeof *c->choices);
    bool good = out && c->requests && c->choices;
    for (size_t i = 0; good && i < d->n_answers; i++) {
        good = open_answer(c, &d->answers[i], out);
        out += d->answers[i].n_choices;
    }
    return good;
}

void derender_take(struct call_choice *ch, int32_t n, bool ends)
{
    const struct derendered_choice *from = derender_source(ch);
    struct engine_output *out = &ch->request->outputs[ch->sample];
    const bool is_short = from->finish && strcmp(from->finish, "length") == 0;
    ch->request->params.n_stop_ids = 0;
    if (ends && ends_with_stop(&ch->call->request, from)) {
        ch->request->params.stop_ids = from->ids + from->n - 1;
        ch->request->params.n_stop_ids = 1;
    }
    atomic_store(&out->n_tokens, n);
    if (ends) {
        atomic_store(&out->finish, is_short ? FINISH_LENGTH : FINISH_STOP);
    }
    call_choice_progress(ch, clock_now_ns());
    if (ends && from->finish && ch->n_calls == 0) {
        ch->finish = from->finish; // "abort" and others, too
    }
}

/* ---- whole answers ----------------------------------------------------------------------------
 */

static void reply_whole(struct call *c, const struct call_format *format, bool chat)
{
    c->format = format;
    if (!derender_open(c)) {
        struct call_error e = {0};
        call_error_no_memory(&e);
        c->sink->error(c, &e);
        return;
    }
    for (size_t i = 0; i < c->n_choices; i++) {
        struct call_choice *ch = &c->choices[i];
        derender_take(ch, derender_source(ch)->n, true);
        if (chat) {
            derender_chat_logprobs(ch);
        } else {
            derender_list_logprobs(ch, 0);
        }
    }
    format->end(c);
}

void derender_chat_whole(struct call *c)
{
    reply_whole(c, &call_chat_format, true);
}

void derender_text_whole(struct call *c)
{
    reply_whole(c, &call_completion_format, false);
}
