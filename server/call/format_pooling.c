// SPDX-License-Identifier: Apache-2.0
/* Answers of vLLM's /classify and /pooling, and of Cohere's /v2/embed. */
#include "server/call/format.h"

#include <string.h>

static int64_t count_tokens(const struct call *c)
{
    int64_t n = 0;
    for (size_t i = 0; i < c->n_requests; i++) {
        n += c->requests[i].n_prompt;
    }
    return n;
}

/* ---- vLLM's -------------------------------------------------------------------------------------
 */

/* [0.1,0.9] */
static void put_scores(struct buf *b, const float *scores, int32_t n)
{
    buf_putc(b, '[');
    for (int32_t i = 0; i < n; i++) {
        buf_puts(b, i ? "," : "");
        buf_put_double(b, (double)scores[i]);
    }
    buf_putc(b, ']');
}

/* A model that answers yes or no has one class, with P(yes) as its probability. */
static void put_class(struct buf *b, struct call *c, size_t prompt)
{
    const struct labels *labels = &c->request.model->scoring.labels;
    if (labels->n > 0) {
        const float *scores = call_class_scores(c, prompt);
        const char *name = labels->names[labels_best(labels, scores)];
        buf_puts(b, ",\"label\":");
        buf_put_json(b, name, strlen(name));
        buf_puts(b, ",\"probs\":");
        put_scores(b, scores, labels->n);
        buf_puts(b, ",\"num_classes\":");
        buf_put_int(b, labels->n);
        return;
    }
    buf_puts(b, ",\"label\":\"LABEL_0\",\"probs\":[");
    buf_put_double(b, call_judged(c, prompt));
    buf_puts(b, "],\"num_classes\":1");
}

/* A vector, or the score of a classifier. */
static void put_pool(struct buf *b, struct call *c, size_t prompt)
{
    const int32_t n_labels = c->request.model->scoring.labels.n;
    buf_puts(b, ",\"object\":\"pooling\",\"data\":");
    if (n_labels > 0) {
        put_scores(b, call_class_scores(c, prompt), n_labels);
        return;
    }
    if (c->request.pools) {
        call_put_vector(b, c, prompt);
        return;
    }
    buf_putc(b, '[');
    buf_put_double(b, call_judged(c, prompt));
    buf_putc(b, ']');
}

static void put_list(struct buf *b, struct call *c,
                     void (*put)(struct buf *b, struct call *c, size_t prompt))
{
    call_put_list_head(b, c);
    buf_puts(b, ",\"data\":[");
    for (size_t i = 0; i < call_n_vectors(c); i++) {
        if (i) {
            buf_puts(b, ",{\"index\":");
        } else {
            buf_puts(b, "{\"index\":");
        }
        buf_put_int(b, (int64_t)i);
        put(b, c, i);
        buf_putc(b, '}');
    }
    buf_puts(b, "],\"usage\":{\"prompt_tokens\":");
    buf_put_int(b, count_tokens(c));
    buf_puts(b, ",\"total_tokens\":");
    buf_put_int(b, count_tokens(c));
    buf_puts(b, ",\"completion_tokens\":0}}");
}

static void write_classes(struct call *c, struct buf *body)
{
    put_list(body, c, put_class);
}

static void write_pools(struct call *c, struct buf *body)
{
    put_list(body, c, put_pool);
}

const struct call_format call_classify_format = {
    .id_prefix = "classify-", .logprob = call_note_answer, .write = write_classes};
const struct call_format call_pooling_format = {
    .id_prefix = "pool-", .logprob = call_note_answer, .write = write_pools};

/* ---- Cohere's -----------------------------------------------------------------------------------
 */

/* One bit per number: 1 unless the number is negative. The first bit of a byte is the highest. */
static void put_bits(struct buf *b, const float *v, size_t n, int offset)
{
    for (size_t i = 0; i < n; i += 8) {
        int byte = 0;
        for (size_t k = 0; k < 8; k++) {
            byte = 2 * byte + (v[i + k] >= 0);
        }
        if (i) {
            buf_puts(b, ",");
        } else {
            buf_puts(b, "[");
        }
        buf_put_int(b, byte - offset);
    }
    buf_putc(b, ']');
}

static void put_vector(struct buf *b, struct call *c, size_t prompt, enum vector_type type)
{
    const float *v = c->requests[prompt].pooled;
    size_t n = (size_t)c->request.model->info->pooled_width;
    if (type == VECTOR_BINARY || type == VECTOR_UBINARY) {
        put_bits(b, v, n, type == VECTOR_BINARY ? 128 : 0);
        return;
    }
    c->request.base64 = type == VECTOR_BASE64;
    call_put_vector(b, c, prompt);
    if (prompt + 1 == c->n_requests) {
        c->request.normalize = false; // all vectors are normalized now, in place
    }
}

/* Each type that was asked for, in Cohere's order; types are a bit set. */
static void put_vectors(struct buf *b, struct call *c)
{
    static const char *const names[N_VECTOR_TYPES] = {"float", "binary", "ubinary", "base64"};
    bool first = true;
    buf_putc(b, '{');
    for (int type = 0; type < N_VECTOR_TYPES; type++) {
        if (!(c->request.vector_types & 1u << type)) {
            continue;
        }
        buf_printf(b, "%s\"%s\":[", first ? "" : ",", names[type]);
        for (size_t i = 0; i < c->n_requests; i++) {
            if (i) {
                buf_puts(b, ",");
            }
            put_vector(b, c, i, (enum vector_type)type);
        }
        buf_putc(b, ']');
        first = false;
    }
    buf_putc(b, '}');
}

static void write_cohere(struct call *c, struct buf *b)
{
    buf_puts(b, "{\"id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_puts(b, ",\"embeddings\":");
    put_vectors(b, c);
    buf_puts(b, ",\"texts\":");
    buf_puts(b, c->request.repeated);
    buf_puts(b,
             ",\"meta\":{\"api_version\":{\"version\":\"2\"},\"billed_units\":{\"input_tokens\":");
    buf_put_int(b, count_tokens(c));
    buf_puts(b, ",\"image_tokens\":0}},\"response_type\":\"embeddings_by_type\"}");
}

const struct call_format call_cohere_format = {.id_prefix = "embd-", .write = write_cohere};
