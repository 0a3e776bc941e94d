// SPDX-License-Identifier: Apache-2.0
/* /v1/embeddings: the decoder's last hidden states, as their mean over the prompt or at its last
 * token (pooler-config), scaled to length 1 unless `normalize` is false. */
#include "server/call/format.h"
#include "server/call/packed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void put_floats(struct buf *b, const float *v, size_t n)
{
    char text[32];
    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s%.9g", i ? "," : "[", isfinite(v[i]) ? (double)v[i] : 0.0);
        buf_puts(b, text);
    }
    buf_putc(b, ']');
}

/* Computed in double, so that the length is 1 to f32's precision. */
static void normalise(float *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)v[i] * (double)v[i];
    }
    double scale = sum > 0 ? 1 / sqrt(sum) : 0;
    for (size_t i = 0; i < n; i++) {
        v[i] = (float)((double)v[i] * scale);
    }
}

size_t call_n_vectors(const struct call *c)
{
    return c->request.inputs ? c->request.n_inputs : c->n_requests;
}

/* The vector of an input: that of its only prompt, or the mean of its prompts' vectors, weighted by
 * their numbers of tokens. The mean replaces the first prompt's vector. */
static float *vector_of(struct call *c, size_t input)
{
    const struct request_input *in = c->request.inputs ? &c->request.inputs[input] : NULL;
    const size_t width = (size_t)c->request.model->info->pooled_width;
    if (!in || in->n == 1) {
        return c->requests[in ? in->first : input].pooled;
    }
    struct engine_request *first = &c->requests[in->first];
    double total = 0;
    for (size_t p = 0; p < in->n; p++) {
        total += first[p].n_prompt;
    }
    for (size_t i = 0; i < width; i++) {
        double sum = 0;
        for (size_t p = 0; p < in->n; p++) {
            sum += (double)first[p].pooled[i] * first[p].n_prompt;
        }
        first->pooled[i] = (float)(sum / total);
    }
    return first->pooled;
}

/* In base64, the vectors of all tokens are one text, as in vLLM. */
void call_put_vector(struct buf *b, struct call *c, size_t input)
{
    const struct request *r = &c->request;
    const bool each = r->pooling == POOL_TOKENS;
    const size_t width = (size_t)(each ? r->model->info->hidden : r->model->info->pooled_width);
    const size_t n = each ? (size_t)c->requests[input].n_prompt : 1;
    float *v = vector_of(c, input);
    for (size_t i = 0; r->normalize && i < n; i++) {
        normalise(v + i * width, width);
    }
    if (r->base64) {
        packed_put(b, v, n * width, r->embed_dtype, r->endianness);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (each) {
            buf_puts(b, i ? "," : "[");
        }
        put_floats(b, v + i * width, width);
    }
    buf_puts(b, each ? "]" : "");
}

/* The whole reply: all vectors in the order of the inputs, and the prompts' tokens as usage. */
static void write_list(struct call *c, struct buf *body)
{
    int64_t tokens = 0;
    buf_puts(body, "{\"id\":"); // id and created are vLLM's
    buf_put_json(body, c->id, strlen(c->id));
    buf_printf(body, ",\"object\":\"list\",\"created\":%lld,\"data\":[", (long long)c->created);
    for (size_t i = 0; i < c->n_requests; i++) {
        tokens += c->requests[i].n_prompt;
    }
    for (size_t i = 0; i < call_n_vectors(c); i++) {
        if (i) {
            buf_puts(body, ",");
        }
        buf_puts(body, "{\"object\":\"embedding\",\"index\":");
        buf_put_int(body, (int64_t)i);
        buf_puts(body, ",\"embedding\":");
        call_put_vector(body, c, i);
        buf_putc(body, '}');
    }
    buf_puts(body, "],\"model\":");
    buf_put_json(body, c->request.model_name, strlen(c->request.model_name));
    buf_puts(body, ",\"usage\":{\"prompt_tokens\":");
    buf_put_int(body, tokens);
    buf_puts(body, ",\"total_tokens\":");
    buf_put_int(body, tokens);
    buf_puts(body, "}}");
}

const struct call_format call_embedding_format = {.id_prefix = "embd-", .write = write_list};
