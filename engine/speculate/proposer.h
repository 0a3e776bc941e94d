// SPDX-License-Identifier: Apache-2.0
/* Proposers guess the next tokens. Each is a file, and a row of the table in spec.c. A proposer
 * reads sequences and modifies none: its output is the proposals. It does not deal with the pool,
 * cache, order or plan; which blocks draft models may feed is decided before it is called.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SPECULATE_PROPOSER_H
#define SLUICE_ENGINE_SPECULATE_PROPOSER_H

#include "engine/schedule/sequence.h"
#include "engine/speculate/costs.h"
#include "engine/speculate/learnt.h"
#include "engine/speculate/options.h"

/* A decoding sequence, as proposers see it. */
struct spec_candidate {
    const struct sequence *seq;
    struct proposal *proposal; // without drafts when a proposer is called
    struct spec_trust *trust;
    bool ready;         // all its tokens are known and only the last one's row is missing
    int32_t most;       // maximum number of drafts
    int32_t depth;      // depth of drafts that is worth its cost, at most `most`; 0: none
    int32_t tree_depth; // maximum depth of a tree here; a chain may be longer
    int32_t lag; // tokens that draft models must be fed before they can draft for it; -1: not
                 // possible now, since another sequence is filling a block that both share
};

/* All candidates, in the total order. */
struct spec_view {
    int32_t n;
    struct spec_candidate *seqs; // [max_lanes]
    int32_t n_running, max_rows, max_len;
};

/* The passes that the drafts of one step need. */
enum spec_passes {
    SPEC_NO_PASSES,    // none: the host knows the drafts
    SPEC_CHAIN_PASSES, // of draft models, one after the other without a round trip to the host
    SPEC_LEVEL_PASSES, // such a chain, whose results the host reads; then one pass for each level
                       // of the trees, if it pays
};

/* The outcome of the drafts of one sequence. */
struct spec_trial {
    struct spec_trust *trust;
    const struct sequence *seq;
    const struct spec_tree *tree; // NULL: the drafts were a chain
    int32_t n_drafts;
    const int32_t *path; // [n_right], of a tree: the rows of the accepted path
    int32_t n_right;
    bool cut; // the text ended among the drafts, so later ones were not verified
};

struct spec {
    const struct proposer *proposer; // NULL: no speculation
    struct spec_options options;     // the settings: options.c
    struct spec_costs costs;         // costs of passes: costs.c
    struct spec_learnt learnt;       // statistics of drafts: learnt.c
    int32_t max_laws;                // distributions that a step's drafts keep at most; see struct
                                     // pass_draw
    int32_t *known;                  // [max_len], space for one sequence's tokens

    /* For the next step. */
    bool busy;  // too many sequences run: no proposals
    bool grows; // trees are grown by the host; else they are laid out before they are drafted
    float comb_seconds; // seconds of the step with combs, or an estimate if trees are grown
};

/* One row. Members that may be NULL say so. */
struct proposer {
    const char *name;          // the method in --speculative-config
    const char *const *others; // alternative names, terminated by NULL; or NULL
    bool trees;                // its drafts may be trees, so sequences need slots and steps need
                               // memory for them
    /* The row that replaces this one if the options describe trees. NULL: trees are not allowed. */
    const struct proposer *with_trees;
    /* Reads its own options, after the common ones. NULL: none. */
    enum status (*read)(struct spec_options *o, const struct json *j, struct err *err);
    /* open allocates memory for texts of up to max_len tokens; close frees it. NULL: none. */
    void (*open)(struct spec *sp, int32_t max_len);
    void (*close)(struct spec *sp);
    /* Fills the proposals of the sequences that are ready and have a depth. */
    void (*propose)(struct spec *sp, const struct spec_view *v);
    /* The passes that the step with these proposals needs. NULL: no passes. */
    enum spec_passes (*passes)(const struct spec *sp);
    /* Learns from verified drafts, which are counted already. */
    void (*observe)(struct spec *sp, const struct spec_trial *t);
};

extern const struct proposer proposer_ngram, proposer_draft_model, proposer_tree, proposer_mtp,
    proposer_eagle3;

/* ---- shared by several proposers */

/* propose_ngram.c: memory for lookups, and the lookup. It finds the latest earlier occurrence of
 * the longest possible suffix of the known tokens, and copies up to k tokens that follow it.
 * Returns their number. */
void ngram_open(struct spec *sp, int32_t max_len);
void ngram_close(struct spec *sp);
int32_t ngram_look_up(struct spec *sp, const struct sequence *seq, int32_t k, int32_t *drafts);

/* The same over n given tokens, for suffixes of min_n to max_n tokens. Linear time in n. */
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

/* The rows and laws of one step's draft models so far. */
struct draft_load {
    int32_t n_rows, n_laws;
};

/* Proposes n drafts, c->depth deep, which draft models will sample within the step, if they have
 * caught up and `load` leaves room. */
void draft_propose(const struct spec *sp, const struct spec_view *v, struct spec_candidate *c,
                   int32_t n, struct draft_load *load);
/* The number of distributions that one sequence's drafts keep. */
int32_t draft_laws(const struct spec_options *o, int32_t depth);

#endif
