// SPDX-License-Identifier: Apache-2.0
/* Draft models: a smaller model with the same vocabulary samples a chain of drafts, in passes of
 * the same step that verifies them. The host chooses only their number. */
#include "engine/base/minmax.h"
#include "engine/speculate/proposer.h"

enum { LONG_LAG = 64 }; // tokens; chosen: feeding them takes no longer than a few passes

int32_t draft_laws(const struct spec_options *o, int32_t depth)
{
    int32_t nodes = 1, level = 1; // number of nodes that get children; nodes of the current level
    for (int32_t d = 0; o->n_expansion > 0 && d + 1 < depth; d++) {
        level *= o->expansion[d];
        level = lesser(level, MAX_TREE_NODES);
        nodes += level;
    }
    if (o->n_expansion <= 0) {
        nodes = depth;
    }
    return lesser(nodes, MAX_TREE_NODES);
}

/* A draft model can draft only in a step whose first draft pass feeds all the rows that it lacks,
 * so it must have nearly caught up. */
void draft_propose(const struct spec *sp, const struct spec_view *v, struct spec_candidate *c,
                   int32_t n, struct draft_load *load)
{
    int32_t n_rows = c->lag + spec_feeding_passes(&sp->options) - 1; // rows of the largest pass
    if (c->lag < 0 || c->lag > LONG_LAG || load->n_rows + n_rows > v->max_rows) {
        return;
    }
    bool noise = c->seq->request->params.temperature > 0.0f;
    bool with_laws = sp->options.rejection == REJECT_PROBABILISTIC && noise;
    int32_t n_laws = with_laws ? draft_laws(&sp->options, c->depth) : 0;
    if (load->n_laws + n_laws > sp->max_laws) {
        return;
    }
    c->proposal->n_drafts = n;
    c->proposal->depth = c->depth;
    c->proposal->on_device = true;
    c->proposal->law = with_laws ? 1 + load->n_laws : 0;
    load->n_laws += n_laws;
    load->n_rows += n_rows;
}

void chain_observe(struct spec *sp, const struct spec_trial *t)
{
    spec_learn(&sp->learnt, t->trust, t->cut ? t->n_right : t->n_drafts, t->n_right);
}

static enum status read_model(struct spec_options *o, const struct json *j, struct err *err)
{
    return spec_options_read_models(o, j, 1, err);
}

void chain_propose(struct spec *sp, const struct spec_view *v)
{
    struct draft_load load = {0};
    for (int32_t i = 0; i < v->n; i++) {
        struct spec_candidate *c = &v->seqs[i];
        if (c->ready && c->depth > 0) {
            draft_propose(sp, v, c, c->depth, &load);
        }
    }
}

enum spec_passes chain_passes(const struct spec *sp)
{
    (void)sp;
    return SPEC_CHAIN_PASSES;
}

const struct proposer proposer_draft_model = {.name = "draft_model",
                                              .read = read_model,
                                              .propose = chain_propose,
                                              .passes = chain_passes,
                                              .observe = chain_observe};
