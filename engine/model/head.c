// SPDX-License-Identifier: Apache-2.0
/* Loads a draft head: its norms, fc, its vocabulary, and the embedding and output head, which it
 * may share with its target. */
#include "engine/model/head.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/model/part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char first_layer[] = "model.layers.0.";

static enum status load_norm(struct loader *l, const char *base, const struct weight **out)
{
    return part_vector(l, base, ".weight", l->c->hidden, out);
}

/* ---- the embedding and the output head ---------------------------------------------------- */

/* True if the module's own copy of one of the target's matrices is identical to it. */
static bool is_copy(const struct loader *l, const char *own, const char *targets)
{
    char a[NAME_BYTES], b[NAME_BYTES];
    snprintf(a, sizeof a, "%s.weight", own);
    snprintf(b, sizeof b, "%s.weight", targets);
    const struct checkpoint_tensor *x = part_raw(l, a), *y = part_raw(l, b);
    return !x || (y && x->n_bytes == y->n_bytes && memcmp(x->data, y->data, x->n_bytes) == 0);
}

/* The output projection of a head with its own vocabulary is not sharded. */
static enum status own_head(struct loader *l, const char *base, int64_t n_rows)
{
    struct stack head = {.pieces = {{base, n_rows, 0, n_rows}},
                         .n = 1,
                         .n_in = l->c->hidden,
                         .n_cols = l->c->hidden};
    l->m->shard.head_sharded = false;
    return part_linear(l, &head, l->options->dtype, &l->m->head);
}

/* Uses the target's output head, in the form in which this rank holds it. */
static enum status share_head(struct loader *l)
{
    const struct model *target = l->options->target;
    l->m->head = target->head;
    l->m->shard.head_sharded = target->shard.head_sharded;
    l->m->shard.vocab = target->shard.vocab;
    return OK;
}

/* Many checkpoints repeat the target's embedding and output head in the module. Such copies are
 * recognised and not loaded a second time. If drafts are quantised, the head is loaded again for
 * them: with a large vocabulary, reading it takes most of a module's time. */
static enum status load_module_ends(struct loader *l, const char *embed, const char *head)
{
    const struct tensor_names *names = l->c->names;
    if (is_copy(l, embed, names->embed)) {
        l->m->embed = l->options->target->embed;
    } else {
        TRY(part_table(l, embed, l->c->vocab, l->c->hidden, &l->m->embed));
    }
    const char *targets;
    if (part_exists(l, names->head)) {
        targets = names->head;
    } else {
        targets = names->embed;
    }
    bool own = part_exists(l, head) && !is_copy(l, head, targets);
    if (own) {
        return own_head(l, head, l->c->vocab);
    }
    if (l->requantise.kind != REQUANTISE_NOT) {
        return part_head(l, targets, false);
    }
    return share_head(l);
}

/* ---- MTP ---------------------------------------------------------------------------------- */

/* The names of a module's tensors. Qwen's modules are outside the layers; in other checkpoints a
 * module is one more layer after the last. */
struct module_names {
    const char *fc, *embed_norm, *hidden_norm, *norm, *embed, *head;
};

/* Two layouts are in use: the module is under "mtp.", or is one more layer after the model's. */
static enum status load_mtp(struct loader *l)
{
    static const struct module_names outside = {
        // all modules share the tensors that are not in their layers
        "mtp.fc",   "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden",
        "mtp.norm", "mtp.embed_tokens",          "mtp.shared_head.head"};
    static const struct module_names after_last = {
        "model.layers.0.eh_proj",      "model.layers.0.enorm",
        "model.layers.0.hnorm",        "model.layers.0.shared_head.norm",
        "model.layers.0.embed_tokens", "model.layers.0.shared_head.head",
    };
    const struct module_names *n = &outside;
    snprintf(l->layer_name, sizeof l->layer_name, "mtp.layers.%d.", l->c->head.index);
    if (l->options->checkpoint && !part_exists(l, n->fc)) {
        n = &after_last;
        snprintf(l->layer_name, sizeof l->layer_name, "model.layers.%d.", l->c->head.module);
        if (!part_exists(l, n->fc)) {
            return err_set(l->err, ERR_INVALID,
                           "speculative-config: the checkpoint has no multi-token prediction "
                           "module: there is neither mtp.fc.weight nor %seh_proj.weight in %s",
                           l->layer_name, checkpoint_where(l->options->checkpoint));
        }
    }
    const int64_t hidden = l->c->hidden;
    struct stack fc = {
        .pieces = {{n->fc, hidden, 0, hidden}}, .n = 1, .n_in = 2 * hidden, .n_cols = 2 * hidden};
    TRY(load_norm(l, n->embed_norm, &l->m->draft.embed_norm));
    TRY(load_norm(l, n->hidden_norm, &l->m->draft.hidden_norm));
    TRY(load_norm(l, n->norm, &l->m->final_norm));
    TRY(part_linear(l, &fc, l->options->dtype, &l->m->draft.fc));
    return load_module_ends(l, n->embed, n->head);
}

/* ---- EAGLE-3 ------------------------------------------------------------------------------ */

static enum status bad_map(const struct loader *l, const char *name, const char *what)
{
    return err_set(l->err, ERR_FORMAT, "%s: tensor %s %s", checkpoint_where(l->options->checkpoint),
                   name, what);
}

/* d2t[i] is the offset from the head's id i to the target's id. */
static enum status read_ids(struct loader *l, const struct checkpoint_tensor *t, int32_t *ids)
{
    const int32_t n = l->c->head.n_ids;
    bool *seen = xcalloc((size_t)l->c->vocab, sizeof *seen);
    enum status st = OK;
    for (int32_t i = 0; i < n && st == OK; i++) {
        int64_t offset;
        memcpy(&offset, t->data + (size_t)i * sizeof offset, sizeof offset);
        if (offset < -i || offset >= l->c->vocab - i) {
            st = bad_map(l, "d2t", "maps to an id outside the vocabulary");
        } else if (seen[i + offset]) {
            st = bad_map(l, "d2t", "maps two ids to the same id");
        } else {
            ids[i] = (int32_t)(i + offset);
            seen[ids[i]] = true;
        }
    }
    free(seen);
    return st;
}

/* t2d says for each target id whether the head knows it. */
static enum status check_t2d(struct loader *l, const int32_t *ids)
{
    const struct checkpoint_tensor *t = part_raw(l, "t2d");
    if (!t) {
        return OK;
    }
    if (strcmp(t->dtype_name, "BOOL") != 0 || t->n_dims != 1 || t->dims[0] != l->c->vocab) {
        return bad_map(l, "t2d", "does not have one BOOL for each id of the vocabulary");
    }
    int32_t known = 0, named = 0;
    for (int32_t id = 0; id < l->c->vocab; id++) {
        known += t->data[id] != 0;
    }
    for (int32_t i = 0; i < l->c->head.n_ids; i++) {
        named += t->data[ids[i]] != 0;
    }
    if (known == l->c->head.n_ids && named == known) {
        return OK;
    }
    return bad_map(l, "t2d", "does not mark exactly the ids that d2t maps to");
}

/* The map from the head's ids to the model's. For dummy weights (no checkpoint) it is the
 * identity. */
static enum status load_ids(struct loader *l)
{
    const int32_t n = l->c->head.n_ids;
    const struct checkpoint_tensor *t = part_raw(l, "d2t");
    if (n == l->c->vocab && !t) {
        return OK;
    }
    int32_t *ids = l->m->draft.ids = xcalloc((size_t)n, sizeof *ids);
    if (!l->options->checkpoint) {
        for (int32_t i = 0; i < n; i++) {
            ids[i] = i;
        }
        return OK;
    }
    if (!t) {
        return bad_map(l, "d2t", "is missing: it maps draft_vocab_size ids to the model's");
    }
    if (strcmp(t->dtype_name, "I64") != 0 || t->n_dims != 1 || t->dims[0] != n) {
        return bad_map(l, "d2t", "does not have one I64 for each of draft_vocab_size ids");
    }
    TRY(read_ids(l, t, ids));
    return check_t2d(l, ids);
}

/* Splits fc by target layer: each part is applied during the target's pass, right after its
 * layer. */
static enum status load_fed(struct loader *l)
{
    const struct head_config *h = &l->c->head;
    const struct checkpoint_tensor *t = part_raw(l, "fc.weight");
    const int64_t n_in = (int64_t)h->fed.n * h->target_hidden;
    if (t && t->n_dims == 2 && t->dims[1] != n_in) {
        return err_set(
            l->err, ERR_INVALID,
            "%s: tensor fc.weight has %lld inputs, but %d layers of this model, of hidden "
            "size %d, give %lld: the head was made for another model",
            t->file, (long long)t->dims[1], h->fed.n, h->target_hidden, (long long)n_in);
    }
    for (int32_t i = 0; i < h->fed.n; i++) {
        struct stack part = {.pieces = {{"fc", l->c->hidden, 0, l->c->hidden}},
                             .n = 1,
                             .n_in = n_in,
                             .first_col = (int64_t)i * h->target_hidden,
                             .n_cols = h->target_hidden};
        TRY(part_linear(l, &part, l->options->dtype, &l->m->draft.fed[i]));
    }
    return OK;
}

/* An EAGLE-3 head without an embedding or output head uses the target's, which requires the same
 * hidden size. */
static enum status load_eagle3_ends(struct loader *l)
{
    const struct model_config *c = l->c;
    const struct model *target = l->options->target;
    const bool own_embed = part_exists(l, c->names->embed);
    const bool own = part_exists(l, c->names->head) || c->head.n_ids != c->vocab;
    if ((!own_embed || !own) && c->hidden != target->config->hidden) {
        return err_set(l->err, ERR_INVALID,
                       "speculative-config: the head's hidden size is %d, the model's %d, so it "
                       "needs an embedding and an lm_head of its own",
                       c->hidden, target->config->hidden);
    }
    if (own_embed) {
        TRY(part_table(l, c->names->embed, c->vocab, c->hidden, &l->m->embed));
    } else {
        l->m->embed = target->embed;
    }
    if (own) {
        return own_head(l, c->names->head, c->head.n_ids);
    }
    return share_head(l);
}

/* EAGLE-3 checkpoints use one of two names for their only layer. */
static enum status load_eagle3(struct loader *l)
{
    snprintf(l->layer_name, sizeof l->layer_name, "midlayer.");
    if (l->options->checkpoint && !part_exists(l, "model.layers.0.hidden_norm")) {
        snprintf(l->layer_name, sizeof l->layer_name, "layers.0.");
    }
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%shidden_norm", first_layer);
    TRY(load_norm(l, name, &l->m->draft.hidden_norm));
    snprintf(name, sizeof name, "%s%s", first_layer, l->c->names->attn_norm);
    TRY(load_norm(l, name, &l->m->draft.embed_norm));
    TRY(load_norm(l, l->c->names->final_norm, &l->m->final_norm));
    TRY(load_fed(l));
    TRY(load_ids(l));
    return load_eagle3_ends(l);
}

enum status load_head(struct loader *l)
{
    switch (l->c->head.kind) {
    case HEAD_MTP: return load_mtp(l);
    case HEAD_EAGLE3: return load_eagle3(l);
    case HEAD_NONE: break;
    }
    return err_set(l->err, ERR_INVALID, "there is no draft head of kind %d", (int)l->c->head.kind);
}
