// SPDX-License-Identifier: Apache-2.0
/* Stacks the matrices of modules into one weight, with their biases and adapters. */
#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/model/part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Number of segments into which the sums of a row-sharded product are divided, over all ranks
 * together. */
enum { TP_SEGMENTS = 4 };

/* The number of elements in the tensor that become n. */
static int64_t before_room(const struct head_room *h, int64_t n)
{
    return h->to > 0 ? n / h->to * h->from : n;
}

static struct head_room rows_of(const struct stack *s, int32_t piece)
{
    return piece == 2 ? s->values : (struct head_room){0};
}

/* A copy of the part with wider heads, along its rows or its columns. The caller frees *made. */
static struct weight_part with_room(const struct weight_part *p, const struct head_room *h,
                                    bool along_rows, float **made)
{
    const int64_t wider = (along_rows ? p->n_rows : p->n_cols) / h->from * h->to;
    const int64_t rows = along_rows ? wider : p->n_rows, cols = along_rows ? p->n_cols : wider;
    if (weight_part_is_dummy(p)) {
        return weight_part_plain(NULL, DT_F32, rows, cols, cols);
    }
    *made = xcalloc((size_t)(rows * cols), sizeof **made);
    for (int64_t r = 0; r < p->n_rows; r++) {
        const int64_t to = along_rows ? r / h->from * h->to + r % h->from : r;
        const int64_t run = along_rows ? cols : h->from, step = along_rows ? cols : h->to;
        for (int64_t i = 0; i * run < p->n_cols; i++) {
            weight_part_read(p, r, i * run, run, *made + to * cols + i * step);
        }
    }
    return weight_part_plain(*made, DT_F32, rows, cols, cols);
}

/* Concatenates all pieces' biases into one fp32 vector, which the caller frees. Pieces without one
 * get zeros. */
static enum status join_biases(struct loader *l, const struct stack *s, const struct piece *pieces,
                               int64_t n_out, float *joined)
{
    int64_t at = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const struct piece *p = &pieces[i];
        struct weight_part bias;
        char name[NAME_BYTES];
        if (i >= s->n - s->n_unbiased) {
            memset(joined + at, 0, (size_t)p->n * sizeof *joined);
            at += p->n;
            continue;
        }
        const struct head_room room = rows_of(s, i);
        const int64_t n_all = before_room(&room, p->total_rows);
        float *wide = NULL;
        snprintf(name, sizeof name, "%s.bias", p->base);
        TRY(part_of(l, name, &n_all, 1, &bias));
        part_dummy_vector(l, &bias, false);
        if (room.to > 0) {
            bias = with_room(&bias, &room, false, &wide);
        }
        bias = weight_part_slice(bias, 0, 1, p->first, p->n);
        for (int64_t j = 0; j < bias.n_cols; j++) {
            joined[at++] = weight_part_get(&bias, 0, j);
        }
        free(wide);
    }
    ASSERT(at == n_out);
    return OK;
}

/* The matrix of a module, [n_out][n_in]. Quantised modules are stored so whatever the model's plain
 * matrices are. */
static enum status read_matrix(struct loader *l, const char *base, int64_t n_out, int64_t n_in,
                               bool turned, struct weight_part *out)
{
    bool found;
    char name[NAME_BYTES];
    if (!turned) {
        return part_matrix(l, base, n_out, n_in, out);
    }
    TRY(part_quantised_experts(l, base, 1, n_out, n_in, out, &found));
    if (!found) {
        snprintf(name, sizeof name, "%.240s.weight", base);
        TRY(part_of(l, name, (int64_t[]){n_in, n_out}, 2, out));
        *out = weight_part_transpose(*out);
    }
    return OK;
}

/* The pieces of one weight, such as q, k and v, are cut by rows. If several pieces come from one
 * tensor, it is read once. *made is memory of the only one with room for wider heads. */
static enum status join_pieces(struct loader *l, const struct stack *s, const struct piece *pieces,
                               struct weight_part *parts, float **made)
{
    const int64_t n_in = before_room(&s->cols, s->n_in);
    struct weight_part whole;
    for (int32_t i = 0; i < s->n; i++) {
        const struct piece *p = &pieces[i];
        if (i == 0 || strcmp(p->base, pieces[i - 1].base) != 0) {
            const struct head_room rows = rows_of(s, i);
            TRY(read_matrix(l, p->base, before_room(&rows, p->total_rows), n_in, s->turned,
                            &whole));
            if (rows.to > 0) {
                const struct input_rule inputs = whole.inputs;
                whole = with_room(&whole, &rows, true, made);
                whole.inputs = inputs;
            } else if (s->cols.to > 0) {
                whole = with_room(&whole, &s->cols, false, made);
            }
            if (!s->stays_plain) {
                part_requantise(l, &whole);
            }
        }
        parts[i] = weight_part_slice(whole, p->first, p->n, s->first_col, s->n_cols);
        parts[i].runs = s->runs;
    }
    return OK;
}

/* The pieces become one weight, so that one product computes all of them. */
enum status part_linear(struct loader *l, const struct stack *s, enum dtype dtype,
                        const struct weight **out)
{
    const struct piece *pieces = s->list ? s->list : s->pieces;
    struct weight_part *parts = xcalloc((size_t)s->n, sizeof *parts), bias;
    int64_t n_out = 0;
    for (int32_t i = 0; i < s->n; i++) {
        n_out += pieces[i].n;
    }
    float *joined = s->bias ? xmalloc((size_t)n_out * sizeof *joined) : NULL, *made = NULL;
    enum status st = join_pieces(l, s, pieces, parts, &made);
    if (st == OK && s->bias) {
        st = join_biases(l, s, pieces, n_out, joined);
        bias = weight_part_plain(joined, DT_F32, 1, n_out, n_out);
    }
    struct weight_desc d = {.name = pieces[0].base,
                            .kind = WEIGHT_LINEAR,
                            .dtype = dtype,
                            .n_out = n_out,
                            .n_in = s->n_cols,
                            .n_experts = 1,
                            .n_parts = s->n,
                            .parts = parts,
                            .bias = s->bias ? &bias : NULL,
                            .k_segments = s->k_segments ? s->k_segments : 1};
    if (st == OK) {
        st = part_open(l, &d, out);
    }
    if (st == OK) {
        st = load_adapters(l, s, pieces, n_out, *out);
    }
    requantise_clear(&l->requantise);
    free(parts);
    free(joined);
    free(made);
    return st;
}

/* K is divided into equal segments: the largest number, up to TP_SEGMENTS, that divides the units
 * of all ranks. The cuts, and hence the sums, are then the same for any number of ranks. */
int32_t part_segments(const struct loader *l, int64_t units_of_rank)
{
    int32_t n_ranks = l->m->shard.n_ranks, n = TP_SEGMENTS;
    while (n > 1 && units_of_rank * n_ranks % n) {
        n /= 2;
    }
    return n > n_ranks ? n / n_ranks : 1;
}

enum status part_head(struct loader *l, const char *base, bool stays_plain)
{
    const struct model_shard *s = &l->m->shard;
    const int64_t first = s->head_sharded ? (int64_t)s->rank * s->vocab : 0;
    struct stack head = {.pieces = {{base, l->c->vocab, first, s->vocab}},
                         .n = 1,
                         .n_in = l->c->hidden,
                         .n_cols = l->c->hidden,
                         .bias = l->c->head_bias,
                         .stays_plain = stays_plain};
    return part_linear(l, &head, l->options->dtype, &l->m->head);
}
