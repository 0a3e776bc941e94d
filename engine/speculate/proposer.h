// SPDX-License-Identifier: Apache-2.0
/* Proposers: who guesses the tokens that come next. Each is a row of the table in spec.c, and a
 * file. A proposer sees sequences, and changes none of them: it fills in what it proposes. Pool,
 * cache, order and plan are not its business; which blocks draft models may feed is settled before
 * it is asked.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SPECULATE_PROPOSER_H
#define SLUICE_ENGINE_SPECULATE_PROPOSER_H

#include "engine/schedule/sequence.h"
#include "engine/speculate/costs.h"
#include "engine/speculate/learnt.h"
#include "engine/speculate/options.h"

/* A sequence that decodes, as proposers see it. */
struct spec_candidate {
    const struct sequence *seq;
    struct proposal *proposal; // without drafts when a proposer is asked
    struct spec_trust *trust;
    bool ready;         // all its tokens are known and it lacks the rows of the last one alone
    int32_t most;       // drafts that it may have
    int32_t depth;      // of them, one behind the other, that are worth having; 0: none
    int32_t tree_depth; // levels that a tree may have here; a chain may be longer
    int32_t lag; // tokens that draft models must be fed before they can draft for it; -1: they
                 // cannot now, since another sequence is filling a block that both have
};

/* All of them, in the total order. */
struct spec_view {
    int32_t n;
    struct spec_candidate *seqs; // [max_lanes]
    int32_t n_running, max_rows, max_len;
};

/* The passes that drafts of one step need. */
enum spec_passes {
    SPEC_NO_PASSES,    // none: the host knows the drafts
    SPEC_CHAIN_PASSES, // draft models', one behind the other without the host's looking in between
    SPEC_LEVEL_PASSES, // such a chain, looked at; then one for each level of the trees, if it pays
};

/* What became of the drafts of one sequence. */
struct spec_trial {
    struct spec_trust *trust;
    const struct sequence *seq;
    const struct spec_tree *tree; // NULL: the drafts were a chain
    int32_t n_drafts;
    const int32_t *path; // [n_right], of a tree: the rows that were right
    int32_t n_right;
    bool cut; // the text ended there: what lies behind was not judged
};

struct spec {
    const struct proposer *proposer; // NULL: no speculation
    struct spec_options options;     // what was asked: options.c
    struct spec_costs costs;         // what passes take: costs.c
    struct spec_learnt learnt;       // what drafts were worth: learnt.c
    int32_t max_laws;                // kept by a step's drafts at most; see struct pass_draw
    int32_t *known;                  // [max_len], room for one sequence's tokens

    /* Of the step that comes. */
    bool busy;  // too many run: nothing is proposed
    bool grows; // trees are grown by the host; else they are laid out before they are drafted
    float comb_seconds; // of the step with combs, or what it would have taken
};

/* One row. A member that may be NULL says so. */
struct proposer {
    const char *name;          // the method in --speculative-config
    const char *const *others; // further names of it, up to NULL; or NULL
    bool trees;                // its drafts may be trees: sequences need slots, steps room for them
    /* The row instead of this one, where the options shape trees. NULL: they may not. */
    const struct proposer *with_trees;
    /* Reads the options that are its own, the common ones being read. NULL: none. */
    enum status (*read)(struct spec_options *o, const struct json *j, struct err *err);
    /* Takes what memory it needs for texts of up to max_len tokens; gives it back. NULL: none. */
    void (*open)(struct spec *sp, int32_t max_len);
    void (*close)(struct spec *sp);
    /* Fills the proposals of those that are ready and have a depth. */
    void (*propose)(struct spec *sp, const struct spec_view *v);
    /* What the step that was proposed for needs. NULL: no passes. */
    enum spec_passes (*passes)(const struct spec *sp);
    /* Learns from drafts that were judged; they are counted already. */
    void (*observe)(struct spec *sp, const struct spec_trial *t);
};

extern const struct proposer proposer_ngram, proposer_draft_model, proposer_tree, proposer_mtp,
    proposer_eagle3;

/* ---- what several of them share */

/* propose_ngram.c: room for lookups; the tokens after the latest earlier occurrence of the longest
 * suffix of the known tokens, at most k of them: how many. */
void ngram_open(struct spec *sp, int32_t max_len);
void ngram_close(struct spec *sp);
int32_t ngram_look_up(struct spec *sp, const struct sequence *seq, int32_t k, int32_t *drafts);

/* The same over n tokens, of suffixes of min_n to max_n tokens. Time linear in n. */
int32_t ngram_find(const int32_t *known, int32_t n, int32_t min_n, int32_t max_n, int32_t k,
                   int32_t *drafts);

/* propose_draft.c: chains. */
void chain_propose(struct spec *sp, const struct spec_view *v);
enum spec_passes chain_passes(const struct spec *sp);
void chain_observe(struct spec *sp, const struct spec_trial *t);

/* propose_tree.c: trees. */
void tree_propose(struct spec *sp, const struct spec_view *v);
enum spec_passes tree_passes(const struct spec *sp);
void tree_observe(struct spec *sp, const struct spec_trial *t);

/* What the draft models of one step have to hold so far. */
struct draft_load {
    int32_t n_rows, n_laws;
};

/* n drafts, c->depth deep, that draft models draw in the step itself, if they can. */
void draft_propose(const struct spec *sp, const struct spec_view *v, struct spec_candidate *c,
                   int32_t n, struct draft_load *load);
/* Laws that one sequence's drafts keep. */
int32_t draft_laws(const struct spec_options *o, int32_t depth);

#endif
