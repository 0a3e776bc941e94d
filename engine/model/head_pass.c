// SPDX-License-Identifier: Apache-2.0
/* The steps of a draft head's pass other than its layer, embedding and output head; and the steps
 * of a target's pass that feed its head. */
#include "engine/base/assert.h"
#include "engine/base/minmax.h"
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

static enum status enter_mtp(struct model *m, int32_t n_rows, struct tensor right)
{
    TRY(load(m, right, n_rows));
    TRY(norm_rows(m, right, m->draft.hidden_norm, right, n_rows));
    struct linear_args fc = {.weight = m->draft.fc, .x = m->wide, .y = m->x, .n_rows = n_rows};
    return m->be->ops->linear(m->be, &fc);
}

static enum status enter_eagle3(struct model *m, int32_t n_rows, struct tensor right,
                                struct tensor *input)
{
    TRY(load(m, m->x, n_rows));
    TRY(norm_rows(m, m->x, m->draft.hidden_norm, right, n_rows));
    *input = m->wide;
    if (m->config->head.norm_before_residual) {
        return norm_rows(m, m->x, m->draft.hidden_norm, m->x, n_rows);
    }
    return OK;
}

/* Puts the head's input together: the token's embedding and the target's state, each normed, side
 * by side. */
enum status head_enter(struct model *m, int32_t n_rows, struct tensor *input)
{
    const struct model_config *c = m->config;
    struct tensor left = m->wide, right = m->wide;
    right.mem = dmem_at(right.mem, (size_t)c->hidden * dtype_bytes(right.dtype));
    TRY(norm_rows(m, m->x, m->draft.embed_norm, left, n_rows));
    switch (c->head.kind) {
    case HEAD_MTP: return enter_mtp(m, n_rows, right);
    case HEAD_EAGLE3: return enter_eagle3(m, n_rows, right, input);
    case HEAD_NONE: break;
    }
    return ERR_INVALID; // load_head has refused it
}

enum status head_leave(struct model *m, struct tensor x, struct tensor normed, int32_t n_out)
{
    if (m->drafter) { // the next head reads the states of all rows, which are stored already
        return OK;
    }
    return store(m, m->config->head.state_is_normed ? normed : x, n_out, true);
}

/* The number of the target's layers that feed its head. A pass counts down from it. */
int32_t head_feeds(const struct model *target)
{
    const struct model *head = target->drafter;
    if (!head) {
        return 0;
    }
    return greater(head->config->head.fed.n, 1); // at least the state after the final norm
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
