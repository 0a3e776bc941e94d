// SPDX-License-Identifier: Apache-2.0
/* Inputs of embeddings that are longer than the context (vLLM's enable_chunked_processing): each is
 * split into prompts of the context's length, whose vectors are averaged, weighted by their tokens
 * (format_embeddings.c). */
#include "server/call/readers.h"

#include "engine/base/minmax.h"

/* The maximum number of tokens in an input. */
int64_t request_input_limit(const struct request *r)
{
    const struct call_model *m = r->model;
    const bool vectors = r->kind == KIND_EMBEDDINGS || r->kind == KIND_POOLING ||
                         r->kind == KIND_NATIVE_EMBED || r->kind == KIND_OLLAMA_EMBED;
    if (!r->pools || !vectors || !m->splits_inputs || r->pooling == POOL_TOKENS ||
        r->truncate != 0) {
        return m->info->max_model_len;
    }
    return m->max_embed_tokens;
}

/* Inputs longer than the context become several prompts, whose vectors are joined in the answer. */
bool request_split_inputs(struct request *r, const char *key)
{
    const int64_t most = request_input_limit(r), context = r->model->info->max_model_len;
    size_t n = 0;
    if (most <= context) {
        return true;
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        if (r->prompts[i].n > most) {
            return call_error_context_exceeded(&r->error, key, most, r->prompts[i].n, 0);
        }
        n += (size_t)((r->prompts[i].n + context - 1) / context) + 1;
    }
    struct request_prompt *pieces = arena_alloc(&r->arena, n, sizeof *pieces);
    r->inputs = arena_alloc(&r->arena, r->n_prompts, sizeof *r->inputs);
    if (!pieces || !r->inputs) {
        return request_too_large(r);
    }
    n = 0;
    for (size_t i = 0; i < r->n_prompts; i++) {
        const struct request_prompt *p = &r->prompts[i];
        r->inputs[i] = (struct request_input){.first = n};
        for (int32_t at = 0; at < p->n || at == 0; at += (int32_t)context) {
            pieces[n] = *p;
            pieces[n].ids = p->ids + at;
            pieces[n].n = lesser(p->n - at, (int32_t)context);
            if (p->n > context) {
                pieces[n].text = NULL; // the text stands for more tokens than this piece has
            }
            n++;
            r->inputs[i].n++;
        }
    }
    r->n_inputs = r->n_prompts;
    r->prompts = pieces;
    r->n_prompts = n;
    return true;
}
