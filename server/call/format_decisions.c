// SPDX-License-Identifier: Apache-2.0
/* Answers of vLLM's /v1/systemone and /v1/decisions, from the probabilities of labels
 * (decisions.h). */
#include "server/call/format.h"

#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "server/call/decisions.h"

#include <math.h>
#include <string.h>

/* What the model predicts at the place of an answer; `extra` is the array of them, by choice. */
struct reading {
    int32_t token;            // the likeliest token
    float logprobs[N_LABELS]; // of the request's labels
};

struct answer {
    double probs[MAX_OPTIONS]; // among the labels of the question
    double mass;               // the labels' probability among all tokens
    int best;
    bool is_label; // the likeliest token is a label
};

static void note_reading(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                         size_t n_chars_before)
{
    struct call *c = ch->call;
    (void)n_chars_before;
    if (!c->extra) {
        c->extra = xcalloc(c->n_choices, sizeof(struct reading));
    }
    struct reading *r = (struct reading *)c->extra + ch->index;
    r->token = token;
    for (int32_t i = 0; i < lp->n_top && i < N_LABELS; i++) {
        r->logprobs[i] = lp->top_logprobs[i];
    }
}

static struct answer answer_of(const struct call *c, size_t i)
{
    const struct decisions *d = c->request.decisions;
    const struct question *q = &d->questions[i];
    const struct reading *r = c->extra ? (const struct reading *)c->extra + i : NULL;
    struct answer a = {.mass = 0};
    for (int k = 0; r && k < q->n_options; k++) {
        const int32_t place = d->place[q->first_label + k];
        a.probs[k] = exp((double)r->logprobs[place]);
        a.mass += a.probs[k];
        a.is_label |= d->ids[place] == r->token;
        if (a.probs[k] > a.probs[a.best]) {
            a.best = k;
        }
    }
    for (int k = 0; k < q->n_options; k++) { // labels without any probability are equally likely
        a.probs[k] = a.mass > 0 ? a.probs[k] / a.mass : 1.0 / q->n_options;
    }
    return a;
}

/* The expected level. */
static double score_of(const struct question *q, const struct answer *a)
{
    double score = 0;
    for (int k = 0; k < q->n_options; k++) {
        score += k * a->probs[k];
    }
    return score;
}

static void put_number(struct buf *b, const char *key, double value)
{
    buf_printf(b, ",\"%s\":", key);
    buf_put_double(b, value);
}

static void put_text(struct buf *b, const char *text)
{
    buf_put_json(b, text, strlen(text));
}

static int64_t prompt_tokens(const struct call *c)
{
    int64_t n = 0;
    for (size_t i = 0; i < c->n_requests; i++) {
        n += c->requests[i].n_prompt;
    }
    return n;
}

/* ---- systemone --------------------------------------------------------------------------------
 */

/* The names of levels are their numbers. */
static void put_name(struct buf *b, const struct question *q, int k)
{
    if (q->type == QUESTION_SCORE) {
        buf_printf(b, "\"%d\"", k);
    } else {
        put_text(b, q->options[k].name);
    }
}

static void put_legend(struct buf *b, const struct question *q)
{
    for (int k = 0; k < q->n_options; k++) {
        buf_printf(b, "%s\"%d\":", k > 0 ? "," : ",\"legend\":{", k);
        put_text(b, q->options[k].name);
    }
    buf_putc(b, '}');
}

/* An answer in SystemOne's form. The confidence is the best option's share of the whole
 * vocabulary's probability. */
static void put_answer(struct buf *b, const struct question *q, const struct answer *a)
{
    static const char *const types[] = {
        [QUESTION_CHOICE] = "choice", [QUESTION_NOUL] = "noul", [QUESTION_SCORE] = "score"};
    buf_printf(b, "{\"type\":\"%s\"", types[q->type]);
    if (q->type == QUESTION_CHOICE) {
        buf_puts(b, ",\"choice\":");
        put_text(b, q->options[a->best].name);
    } else if (q->type == QUESTION_NOUL) {
        put_number(b, "noul", a->probs[0]);
    } else {
        put_number(b, "score", score_of(q, a));
        put_legend(b, q);
    }
    buf_puts(b, ",\"probabilities\":{");
    for (int k = 0; k < q->n_options; k++) {
        buf_puts(b, text_if(k > 0, ","));
        put_name(b, q, k);
        buf_putc(b, ':');
        buf_put_double(b, a->probs[k]);
    }
    buf_putc(b, '}');
    put_number(b, "confidence", a->probs[a->best] * a->mass);
    buf_putc(b, '}');
}

/* The whole reply: the answers, then how sure the model was of each of them. */
static void end_systemone(struct call *c)
{
    const struct decisions *d = c->request.decisions;
    struct buf b;
    buf_init(&b, (size_t)64 << 20);
    buf_puts(&b, "{\"id\":");
    put_text(&b, c->id);
    buf_printf(&b, ",\"object\":\"structured_decision\",\"created\":%lld,\"model\":",
               (long long)c->created);
    put_text(&b, c->request.model_name);
    for (size_t i = 0; i < d->n_questions; i++) {
        const struct answer a = answer_of(c, i);
        buf_puts(&b, i > 0 ? "," : ",\"answers\":{");
        put_text(&b, json_key(d->questions[i].spec));
        buf_putc(&b, ':');
        put_answer(&b, &d->questions[i], &a);
    }
    buf_printf(&b, "},\"usage\":{\"input_tokens\":%lld,\"output_tokens\":%zu}",
               (long long)prompt_tokens(c), c->n_requests);
    for (size_t i = 0; i < d->n_questions; i++) {
        const struct answer a = answer_of(c, i);
        buf_puts(&b, i > 0 ? "," : ",\"diagnostics\":{");
        put_text(&b, json_key(d->questions[i].spec));
        buf_puts(&b, ":{\"label_mass\":");
        buf_put_double(&b, a.mass);
        buf_printf(&b, ",\"argmax_is_label\":%s}", bool_word(a.is_label));
    }
    buf_puts(&b, "},\"joint\":null}");
    body_put_nuls_back(&c->request.body, &b);
    call_whole(c, &b);
}

/* ---- decisions --------------------------------------------------------------------------------
 */

static void put_probabilities(struct buf *b, const struct question *q, const struct answer *a)
{
    for (int k = 0; k < q->n_options; k++) {
        buf_puts(b, k > 0 ? ",{\"value\":" : ",\"probabilities\":[{\"value\":");
        if (q->type == QUESTION_SCORE) {
            buf_printf(b, "%d,\"label\":", k);
        }
        call_put_node(b, q->options[k].value);
        put_number(b, "probability", a->probs[k]);
        buf_putc(b, '}');
    }
    buf_putc(b, ']');
}

/* An answer in the listed form, which names its question. A predicate has one probability, that
 * of true. */
static void put_listed(struct buf *b, const struct question *q, const struct answer *a)
{
    static const char *const types[] = {[QUESTION_CHOICE] = "choice",
                                        [QUESTION_PREDICATE] = "predicate",
                                        [QUESTION_SCORE] = "score"};
    const char *name = json_get_string(q->spec, "name");
    buf_printf(b, "{\"type\":\"%s\",\"name\":", types[q->type]);
    if (name) {
        put_text(b, name);
    } else {
        buf_puts(b, "null");
    }
    if (q->type == QUESTION_PREDICATE) { // its options are false and true
        put_number(b, "probability", a->probs[1]);
        buf_putc(b, '}');
        return;
    }
    if (q->type == QUESTION_CHOICE) {
        buf_puts(b, ",\"choice\":");
        call_put_node(b, q->options[a->best].value);
    } else {
        put_number(b, "score", score_of(q, a));
    }
    put_probabilities(b, q, a);
    put_number(b, "confidence", a->probs[a->best] * a->mass);
    buf_putc(b, '}');
}

static void end_decisions(struct call *c)
{
    const struct decisions *d = c->request.decisions;
    const long long n_in = prompt_tokens(c), n_out = (long long)c->n_requests;
    long long n_cached = 0;
    struct buf b;
    buf_init(&b, (size_t)64 << 20);
    buf_puts(&b, "{\"model\":");
    put_text(&b, c->request.model_name);
    for (size_t i = 0; i < d->n_questions; i++) {
        const struct answer a = answer_of(c, i);
        buf_puts(&b, i > 0 ? "," : ",\"answers\":[");
        put_listed(&b, &d->questions[i], &a);
        n_cached += c->requests[i].n_cached;
    }
    buf_printf(&b,
               "],\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":"
               "%lld,\"cache_write_tokens\":0},\"output_tokens\":%lld,\"output_tokens_details\":"
               "{\"reasoning_tokens\":0},\"total_tokens\":%lld}}",
               n_in, n_cached, n_out, n_in + n_out);
    body_put_nuls_back(&c->request.body, &b);
    call_whole(c, &b);
}

const struct call_format call_systemone_format = {
    .id_prefix = "decision-", .logprob = note_reading, .end = end_systemone};
const struct call_format call_decisions_format = {
    .id_prefix = "decision-", .logprob = note_reading, .end = end_decisions};
