// SPDX-License-Identifier: Apache-2.0
/* Fill-in-the-middle prompts: the tokens of the text before and after the gap, each after its
 * marker. The client's text counts as input, so that it cannot contain markers itself. */
#include "engine/base/optional.h"
#include "server/call/readers.h"

#include <string.h>

/* The prompt under construction. */
struct hole {
    struct request *r;
    struct ids ids;
    bool good;
};

static void put(struct hole *h, int32_t id)
{
    h->good = h->good && ids_put(&h->ids, id);
}

static void put_text(struct hole *h, const char *text, size_t n_bytes)
{
    struct text_span span = {text, n_bytes, true};
    struct tokenizer_flags flags = {.add_special = false, .parse_special = false};
    h->good = h->good && tokenizer_encode(h->r->model->tok, &span, 1, flags, &h->ids, NULL) == OK;
}

/* The tokens that the model expects at the start of a text. */
static void put_begin(struct hole *h)
{
    struct ids around;
    struct text_span span = {"", 0, false};
    struct tokenizer_flags flags = {.add_special = true, .parse_special = false};
    size_t n_before, n_behind;
    ids_init(&around, 64);
    tokenizer_n_around(h->r->model->tok, &n_before, &n_behind);
    if (h->r->add_special &&
        tokenizer_encode(h->r->model->tok, &span, 1, flags, &around, NULL) == OK) {
        for (size_t i = 0; i < n_before && i < around.n; i++) {
            put(h, around.v[i]);
        }
    }
    ids_deinit(&around);
}

/* Context files before the one with the gap. */
static void put_files(struct hole *h)
{
    const struct fim *f = &h->r->model->fim;
    static const char between[] = "\n\n--- snippet ---\n\n";
    if (h->r->n_files > 0 && f->repository >= 0) {
        put(h, f->repository);
        put_text(h, "myproject\n", 10);
    }
    for (size_t i = 0; i < h->r->n_files; i++) {
        const struct fim_file *file = &h->r->files[i];
        if (f->file >= 0) {
            put(h, f->file);
            put_text(h, file->name, strlen(file->name));
            put_text(h, "\n", 1);
        } else {
            put_text(h, between, sizeof between - 1);
        }
        put_text(h, file->text, file->n_bytes);
    }
    if (h->r->n_files > 0 && f->file >= 0) {
        put(h, f->file);
        put_text(h, "filename\n", 9);
    }
}

static void put_prefix(struct hole *h, const struct request_prompt *p)
{
    put(h, h->r->model->fim.prefix);
    put_text(h, or_empty(h->r->prefix), h->r->prefix_bytes);
    if (h->r->begun) { // the start of the answer follows the last marker
        return;
    }
    if (p->text) {
        put_text(h, p->text, p->text_bytes);
    }
    for (int32_t i = 0; i < p->n && !p->text; i++) {
        put(h, p->ids[i]);
    }
}

static void put_suffix(struct hole *h)
{
    put(h, h->r->model->fim.suffix);
    put_text(h, h->r->suffix, h->r->suffix_bytes);
}

/* Prefix first or suffix first: the order that the model family was trained with. */
static bool wrap(struct request *r, struct request_prompt *p)
{
    const struct fim *f = &r->model->fim;
    struct hole h = {.r = r, .good = true};
    ids_init(&h.ids, 16 << 20);
    put_begin(&h);
    put_files(&h);
    if (f->suffix_first) {
        put_suffix(&h);
        put_prefix(&h, p);
    } else {
        put_prefix(&h, p);
        put_suffix(&h);
        put(&h, f->middle);
    }
    if (r->begun && p->text) {
        put_text(&h, p->text, p->text_bytes);
    }
    int32_t *ids = h.good ? arena_alloc(&r->arena, h.ids.n + 1, sizeof ids[0]) : NULL;
    if (ids) {
        memcpy(ids, h.ids.v, h.ids.n * sizeof ids[0]);
        *p = (struct request_prompt){.ids = ids, .n = (int32_t)h.ids.n};
    }
    ids_deinit(&h.ids);
    return ids || request_too_large(r);
}

/* Tokens that end the middle part, in addition to the usual ones. */
static bool add_ends(struct request *r)
{
    const struct fim *f = &r->model->fim;
    struct sampling_params *p = &r->params;
    int32_t *ids = arena_alloc(&r->arena, (size_t)(p->n_stop_ids + f->n_ends) + 1, sizeof ids[0]);
    if (!ids) {
        return request_too_large(r);
    }
    for (int32_t i = 0; i < p->n_stop_ids; i++) {
        ids[i] = p->stop_ids[i];
    }
    for (int32_t i = 0; i < f->n_ends && p->n_stop_ids < MAX_STOP_IDS && !p->ignore_eos; i++) {
        ids[p->n_stop_ids++] = f->ends[i];
    }
    p->stop_ids = ids;
    return true;
}

/* Every prompt of the request gets the same suffix. */
bool request_fill_hole(struct request *r)
{
    if (!r->model->fim.there) {
        return call_error_set(&r->error, 400, "unsupported_value", "suffix",
                              "Unsupported value: this model's tokenizer has no fill-in-the-middle "
                              "tokens, so 'suffix' cannot be used.");
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        if (!wrap(r, &r->prompts[i])) {
            return false;
        }
    }
    return add_ends(r);
}

bool read_suffix(struct request *r)
{
    const char *suffix = NULL;
    if (body_string(&r->body, "suffix", &suffix) && *suffix) {
        r->suffix = body_text(&r->body, suffix, &r->suffix_bytes);
        return r->suffix || request_too_large(r);
    }
    return r->error.status == 0;
}
