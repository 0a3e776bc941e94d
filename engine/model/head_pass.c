// SPDX-License-Identifier: Apache-2.0
/* The steps of a draft head's pass other than its layer, embedding and output head; and the steps
 * of a target's pass that feed its head. */
#include "engine/base/assert.h"
#include "engine/device/ops.h"
#include "engine/model/head.h"

static enum status norm_rows(struct model *m, struct tensor x, const struct weight *weight,
                             struct tensor out, int32_t n_rows)
{
    const struct model_config *c = m->config;
    struct norm_args a = {.x = x,
                          .out = out,
                          .weight = weight,
                          .n_rows = n_rows,
                          .width = c->hidden,
                          .kind = c->norm_kind,
                          .eps = c->norm_eps,
                          .weight_offset = c->norm_offset};
    return m->be->ops->norm(m->be, &a);
}

static enum status load(struct model *m, struct tensor x, int32_t n_rows)
{
    const struct model_config *c = m->config;
    struct hidden_args a = {
        .x = x, .n_rows = n_rows, .width = c->hidden, .first = c->head.index * c->hidden};
    return m->be->ops->hidden_load(m->be, &a);
}

static enum status store(const struct model *head, struct tensor x, int32_t n_rows, bool out_rows)
{
    const struct model_config *c = head->config;
    struct hidden_args a = {.x = x,
                            .n_rows = n_rows,
                            .width = c->hidden,
                            .first = c->head.index * c->hidden,
                            .out_rows = out_rows};
    return head->be->ops->hidden_store(head->be, &a);
}

/* Puts the head's input together: the token's embedding and the target's state, each normed, side
 * by side. */
enum status head_enter(struct model *m, int32_t n_rows, struct tensor *input)
{
    const struct model_config *c = m->config;
    struct tensor left = m->wide, right = m->wide;
    right.mem = dmem_at(right.mem, (size_t)c->hidden * dtype_bytes(right.dtype));
    TRY(norm_rows(m, m->x, m->draft.embed_norm, left, n_rows));
    if (c->head.kind == HEAD_EAGLE3) {
        TRY(load(m, m->x, n_rows));
        TRY(norm_rows(m, m->x, m->draft.hidden_norm, right, n_rows));
        *input = m->wide;
        if (c->head.norm_before_residual) {
            return norm_rows(m, m->x, m->draft.hidden_norm, m->x, n_rows);
        }
        return OK;
    }
    TRY(load(m, right, n_rows));
    TRY(norm_rows(m, right, m->draft.hidden_norm, right, n_rows));
    struct linear_args fc = {.weight = m->draft.fc, .x = m->wide, .y = m->x, .n_rows = n_rows};
    return m->be->ops->linear(m->be, &fc);
}

enum status head_leave(struct model *m, struct tensor x, struct tensor normed, int32_t n_out)
{
    if (m->drafter) { // the next head reads the states of all rows, which are stored already
        return OK;
    }
    return store(m, m->config->head.kind == HEAD_EAGLE3 ? x : normed, n_out, true);
}

/* The number of the target's layers that feed its head. A pass counts down from it. */
int32_t head_feeds(const struct model *target)
{
    const struct model *head = target->drafter;
    if (!head) {
        return 0;
    }
    if (head->config->head.kind == HEAD_EAGLE3) {
        return head->config->head.fed.n;
    }
    return 1;
}

int32_t head_row_width(const struct model *target)
{
    int32_t width = 0;
    for (const struct model *m = target->drafter; m; m = m->drafter) {
        width += m->config->hidden;
    }
    return width;
}

/* Called after each layer of the target. EAGLE-3 projects several states and adds up the
 * projections; the sum is complete after the last of these layers. */
enum status head_feed(struct model *target, int32_t layer, struct tensor x, int32_t n_rows,
                      bool *fed)
{
    const struct model *head = target->drafter;
    const struct hidden_layers *layers = &head->config->head.fed;
    *fed = false;
    for (int32_t i = 0; i < layers->n; i++) {
        if (layers->ids[i] != layer) {
            continue;
        }
        struct linear_args a = {.weight = head->draft.fed[i],
                                .x = x,
                                .y = head->fed,
                                .n_rows = n_rows,
                                .accumulate = i > 0};
        *fed = true;
        TRY(target->be->ops->linear(target->be, &a));
        if (i + 1 == layers->n) {
            return store(head, head->fed, n_rows, false);
        }
        return OK;
    }
    return OK;
}

enum status head_feed_normed(struct model *target, struct tensor normed, int32_t n_rows)
{
    return store(target->drafter, normed, n_rows, false);
}
