// SPDX-License-Identifier: Apache-2.0
/* What happens when a model's results are not numbers: the request fails, and the log names the
 * layer at which this began. To find it, the row is computed again a few times, each time with the
 * hidden states of one layer as output. Those passes have no other rows and write what was written
 * before, to slots of the failed request; no other request has a part in them. */
#include "engine/cluster/step_run.h"
#include "engine/engine_state.h"

#include "engine/base/log.h"

#include <stdio.h>

/* Whether the row can be computed again after the step: all it reads must still be there, and
 * before the row. In a tree it reads the rows of its path, which lie in consecutive slots only if
 * slots are positions. A recurrent layer's state must not have advanced to another row or block,
 * and the row's window not have passed. */
static bool is_repeatable(const struct engine *e, const struct sequence *seq,
                          const struct pass_row *row)
{
    const int32_t block = e->states.block;
    if (e->config.bidirectional || seq->state != SEQ_RUNNING || seq->lane != row->lane ||
        row->slot_pos != row->pos) {
        return false;
    }
    if (!holdings_sees(&e->scheduler.holdings, seq, row->pos)) {
        return false;
    }
    return block == 0 || (seq->n_computed == row->pos + 1 && seq->n_computed % block != 0);
}

enum { CAREFUL_TURNS = 10000 }; // chosen: seconds to minutes

void engine_fail_broken(struct engine *e, struct sequence *seq, const struct planned_step *ps,
                        int32_t out_row)
{
    const struct pass *pass = &ps->step.pass;
    const char *text = seq->request->pool == POOL_NONE ? "the model's logits are not numbers"
                                                       : "the model's hidden states are not "
                                                         "numbers";
    struct broken_row *b = &e->broken;
    const struct pass_row *row = &pass->rows[pass->out_rows[out_row]];
    const bool repeatable = is_repeatable(e, seq, row);
    e->n_corrupted++;
    if (!b->waits && !b->named && (repeatable || !b->told)) {
        b->waits = true;
        b->repeatable = repeatable;
        b->careful_turns = repeatable || e->states.block == 0 ? 0 : CAREFUL_TURNS;
        b->row = *row;
        b->adapter = seq->request->adapter;
    }
    scheduler_doubt(&e->scheduler, seq->request);
    requests_fail(e, seq->request, ERR_NAN, text);
}

bool engine_is_finite(const float *x, int32_t n)
{
    float sum = 0.0f; // of zeros, unless there is NaN or infinity
    for (int32_t i = 0; i < n; i++) {
        sum += x[i] * 0.0f;
    }
    return sum == 0.0f;
}

/* ---- the layer ---------------------------------------------------------------------------- */

enum { AFTER_ALL_LAYERS = -1 };

struct repeat {
    const struct engine *e;
    const struct step *step;
    struct pass_results results; // of rank 0
};

static enum status repeat_on_rank(struct rank *r, void *arg)
{
    struct repeat *job = arg;
    struct pass_results own;
    TRY(step_execute(job->step, r, job->e->n_vocab_used));
    return r->be->ops->step_wait(r->be, job->step->slot, r->local == 0 ? &job->results : &own, 1);
}

/* What was not a number when the row was computed again. */
struct found {
    bool hidden, logits;
};

/* Computes the row again. The hidden states are those after `layer`; with AFTER_ALL_LAYERS those
 * after the final norm, and the logits are computed, too. */
static enum status repeat_row(struct engine *e, int32_t layer, struct found *out)
{
    const struct pass_row *row = &e->broken.row;
    const bool all = layer == AFTER_ALL_LAYERS, logits = all && !e->info.headless;
    const int32_t first = 0;
    const struct pass_seq seq = {
        .lane = row->lane, .n_rows = 1, .n_past = row->pos, .adapter = e->broken.adapter};
    const struct pass_pool pool = {.lane = row->lane, .n_out = 1, .start = true, .finish = true};
    struct pass_draw draw = {.lane = row->lane,
                             .pos = row->pos,
                             .n_prompt = row->pos + 1,
                             .kind = DRAW_DRAFT,
                             .tree_row = -1};
    const struct tree_moves none = {0};
    const struct step step = {.slot = e->next_slot,
                              .moves = &none,
                              .vocab = e->config.vocab,
                              .want = {.logits = logits, .pooled = true},
                              .pass = {.n_rows = 1,
                                       .rows = row,
                                       .n_seqs = 1,
                                       .seqs = &seq,
                                       .n_out = 1,
                                       .out_rows = &first,
                                       .n_draws = logits,
                                       .draws = &draw,
                                       .n_pool = 1,
                                       .pool = &pool,
                                       .hidden = {.n = !all, .ids = {all ? 0 : layer}}}};
    struct repeat job = {.e = e, .step = &step};
    enum status st = engine_send_step(e, &step, NULL);
    if (st == OK) {
        st = ranks_run(&e->ranks, repeat_on_rank, &job);
    }
    e->next_slot = (e->next_slot + 1) % N_STEPS;
    if (st != OK) {
        engine_fail(e, st, "the device failed");
        return st;
    }
    out->hidden = !engine_is_finite(job.results.pooled, e->info.hidden);
    out->logits = logits && job.results.draws[0].broken;
    return OK;
}

/* The first layer whose output is not numbers; the number of layers if there is none. Once the
 * residual stream contains NaN or infinity, it does so after every later layer, too, so a binary
 * search finds the layer. */
static enum status first_broken_layer(struct engine *e, int32_t *layer)
{
    int32_t low = 0, high = e->config.n_layers;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        struct found found;
        TRY(repeat_row(e, middle, &found));
        if (found.hidden) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    *layer = low;
    return OK;
}

/* Writes where it began, to complete the sentence "it begins ...". */
static enum status find_place(struct engine *e, char *out, size_t size)
{
    const int32_t n = e->config.n_layers;
    int32_t layer;
    struct found found;
    TRY(first_broken_layer(e, &layer));
    e->broken.layer = layer;
    if (layer < n) {
        const char *or_before = layer == 0 ? ", or in the embedding before it" : "";
        snprintf(out, size, "this begins in layer %d (of 0 to %d)%s", layer, n - 1, or_before);
        return OK;
    }
    TRY(repeat_row(e, AFTER_ALL_LAYERS, &found));
    if (found.hidden) {
        snprintf(out, size, "this begins after the last layer, in the final norm");
    } else if (found.logits) {
        snprintf(out, size, "this begins after the last layer, in the output head");
    } else {
        snprintf(out, size,
                 "computed again, the same row is right in all %d layers, so a device "
                 "may be at fault",
                 n);
    }
    return OK;
}

void engine_explain_broken(struct engine *e)
{
    char place[160] = "the layer at which this begins could not be determined";
    struct broken_row *b = &e->broken;
    b->careful_turns -= b->careful_turns > 0;
    if (!b->waits) {
        return;
    }
    b->waits = false;
    b->told = true; // once, since every step may repeat it
    if (e->failed == OK && b->repeatable) {
        b->named = find_place(e, place, sizeof place) == OK;
    }
    log_error(
        "%s: the model's results hold NaN or infinities, or its logits nothing but -infinity: "
        "%s. Usually weights are broken, or activations too large for the dtype. Such "
        "requests fail; --check-weights full checks every weight",
        e->model_dir, place);
}
