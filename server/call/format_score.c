// SPDX-License-Identifier: Apache-2.0
/* /v1/score and /v1/rerank: how similar texts are (server/call/scoring.h). */
#include "server/call/format.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Records the log probability of one answer; `extra` is the array of them, by choice. */
void call_note_answer(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                      size_t n_chars_before)
{
    struct call *c = ch->call;
    (void)token;
    (void)n_chars_before;
    if (!c->extra) {
        c->extra = xcalloc(c->n_choices, sizeof(float));
    }
    ((float *)c->extra)[ch->index] = lp->logprob;
}

/* P(yes), given that the answer is yes or no, or the difference of their log-probabilities. */
double call_judged(const struct call *c, size_t pair)
{
    const float *answers = c->extra;
    double lead = 0;
    if (answers) {
        lead = (double)answers[2 * pair] - (double)answers[2 * pair + 1];
    }
    if (c->request.activates) {
        return 1 / (1 + exp(-lead));
    }
    return lead;
}

/* A classifier's scores of one prompt. They are computed once, since the logits make place for
 * them. */
const float *call_class_scores(struct call *c, size_t prompt)
{
    const struct labels *labels = &c->request.model->scoring.labels;
    float *scores = c->requests[prompt].pooled;
    if (c->request.activates) {
        labels_score(labels, scores);
    }
    return scores;
}

/* 0 for a vector of zeros. */
static double cosine(const float *a, const float *b, size_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    if (aa > 0 && bb > 0) {
        return ab / sqrt(aa * bb);
    }
    return 0;
}

/* The score of a document: from a classifier or reranker that reads the pair, or the cosine of two
 * embeddings. A single query is compared with every document. */
static double score_of(struct call *c, size_t document)
{
    const struct request *r = &c->request;
    if (r->generates) {
        return call_judged(c, document);
    }
    if (r->model->scoring.labels.n > 0) {
        return (double)call_class_scores(c, document)[0];
    }
    size_t query = r->n_queries == 1 ? 0 : document;
    return cosine(c->requests[query].pooled, c->requests[r->n_queries + document].pooled,
                  (size_t)r->model->info->pooled_width);
}

static void put_score(struct buf *b, double score)
{
    buf_put_double(b, isfinite(score) ? score : 0);
}

static void put_usage(struct buf *b, const struct call *c)
{
    int64_t tokens = 0;
    for (size_t i = 0; i < c->n_requests; i++) {
        tokens += c->requests[i].n_prompt;
    }
    buf_puts(b, ",\"usage\":{\"prompt_tokens\":");
    buf_put_int(b, tokens);
    buf_puts(b, ",\"total_tokens\":");
    buf_put_int(b, tokens);
    buf_puts(b, ",\"completion_tokens\":0}");
}

void call_put_list_head(struct buf *b, const struct call *c)
{
    buf_puts(b, "{\"id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_puts(b, ",\"object\":\"list\",\"created\":");
    buf_put_int(b, c->created);
    buf_puts(b, ",\"model\":");
    buf_put_json(b, c->request.model_name, strlen(c->request.model_name));
}

static void end_score(struct call *c)
{
    struct buf b;
    buf_init(&b, (size_t)64 << 20);
    call_put_list_head(&b, c);
    buf_puts(&b, ",\"data\":[");
    for (size_t i = 0; i < c->request.n_documents; i++) {
        if (i) {
            buf_puts(&b, ",{\"index\":");
        } else {
            buf_puts(&b, "{\"index\":");
        }
        buf_put_int(&b, (int64_t)i);
        buf_puts(&b, ",\"object\":\"score\",\"score\":");
        put_score(&b, score_of(c, i));
        buf_putc(&b, '}');
    }
    buf_putc(&b, ']');
    put_usage(&b, c);
    buf_putc(&b, '}');
    call_whole(c, &b);
}

/* ---- labels ---------------------------------------------------------------------------------- */

/* The probability of the first label token, among the labels or among all tokens. */
static double label_score(const struct call *c, size_t item)
{
    size_t n = (size_t)c->request.n;
    const float *lp = c->extra ? (const float *)c->extra + item * n : NULL;
    double sum = 0;
    for (size_t i = 0; lp && i < n && c->request.activates; i++) {
        sum += exp((double)lp[i] - (double)lp[0]);
    }
    if (!lp) {
        return 0;
    }
    if (c->request.activates) {
        return 1 / sum;
    }
    return exp((double)lp[0]);
}

/* Probabilities of the label tokens, of all tokens or among the labels. */
static void end_labels(struct call *c)
{
    struct buf b;
    int64_t tokens = 0;
    buf_init(&b, (size_t)64 << 20);
    call_put_list_head(&b, c);
    buf_puts(&b, ",\"data\":[");
    for (size_t i = 0; i < c->n_requests; i++) {
        if (i) {
            buf_puts(&b, ",{\"index\":");
        } else {
            buf_puts(&b, "{\"index\":");
        }
        buf_put_int(&b, (int64_t)i);
        buf_puts(&b, ",\"object\":\"score\",\"score\":");
        put_score(&b, label_score(c, i));
        buf_putc(&b, '}');
        tokens += c->requests[i].n_prompt;
    }
    buf_puts(&b, "],\"usage\":{\"prompt_tokens\":");
    buf_put_int(&b, tokens);
    buf_puts(&b, ",\"total_tokens\":");
    buf_put_int(&b, tokens + (int64_t)c->n_requests);
    buf_puts(&b, ",\"completion_tokens\":");
    buf_put_int(&b, (int64_t)c->n_requests); // as if each request had drawn one token
    buf_puts(&b, "}}");
    call_whole(c, &b);
}

const struct call_format call_labels_format = {
    .id_prefix = "generative-scoring-", .logprob = call_note_answer, .end = end_labels};

/* ---- ranks ----------------------------------------------------------------------------------- */

struct rank {
    size_t document;
    double score;
};

/* The best first; of equals the earlier one. */
static int compare(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    if (x->score != y->score) {
        return x->score < y->score ? 1 : -1;
    }
    return x->document < y->document ? -1 : 1;
}

/* Writes an entry as in vLLM and Cohere; in TEI's list the members have other names. */
static void put_rank(struct buf *b, const struct request *r, const struct rank *rank)
{
    const struct scored_text *t = &r->documents[rank->document];
    buf_puts(b, "{\"index\":");
    buf_put_int(b, (int64_t)rank->document);
    if (r->returns_documents) {
        if (r->bare_list) {
            buf_puts(b, ",\"text\":");
        } else {
            buf_puts(b, ",\"document\":{\"text\":");
        }
        buf_put_json(b, t->text, t->n_bytes);
        if (!r->bare_list) {
            buf_puts(b, "}");
        }
    }
    if (r->bare_list) {
        buf_puts(b, ",\"score\":");
    } else {
        buf_puts(b, ",\"relevance_score\":");
    }
    put_score(b, rank->score);
    buf_putc(b, '}');
}

/* The best documents first; equal scores keep their order. */
static void end_rerank(struct call *c)
{
    const struct request *r = &c->request;
    size_t n = r->n_documents, most = r->top_n > 0 && (size_t)r->top_n < n ? (size_t)r->top_n : n;
    struct rank *ranks = xcalloc(n, sizeof ranks[0]);
    for (size_t i = 0; i < n; i++) {
        ranks[i] = (struct rank){i, score_of(c, i)};
    }
    qsort(ranks, n, sizeof ranks[0], compare);
    struct buf b;
    buf_init(&b, (size_t)256 << 20);
    if (!r->bare_list) {
        call_put_list_head(&b, c);
        put_usage(&b, c);
        buf_puts(&b, ",\"results\":");
    }
    for (size_t i = 0; i < most; i++) {
        if (i) {
            buf_putc(&b, ',');
        } else {
            buf_putc(&b, '[');
        }
        put_rank(&b, r, &ranks[i]);
    }
    if (r->bare_list) {
        buf_puts(&b, "]");
    } else {
        buf_puts(&b, "]}");
    }
    free(ranks);
    call_whole(c, &b);
}

const struct call_format call_score_format = {
    .id_prefix = "score-", .logprob = call_note_answer, .end = end_score};
const struct call_format call_rerank_format = {
    .id_prefix = "rerank-", .logprob = call_note_answer, .end = end_rerank};
