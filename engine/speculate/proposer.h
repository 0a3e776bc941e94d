// SPDX-License-Identifier: Apache-2.0
/* Proposers guess the next tokens. Each is a file and a row of the table in spec.c. A proposer
 * reads sequences but does not modify them; its output is the proposals. It knows nothing about the
 * pool, the cache, the order or the plan; which blocks draft models may feed is decided before it
 * is called.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SPECULATE_PROPOSER_H
#define SLUICE_ENGINE_SPECULATE_PROPOSER_H

#include "engine/schedule/sequence.h"
#include "engine/speculate/costs.h"
#include "engine/speculate/learnt.h"
#include "engine/speculate/options.h"

/* A decoding sequence, as a proposer sees it. */
struct spec_candidate {
    const struct sequence *seq;
    struct proposal *proposal; // has no drafts yet when a proposer is called
    struct spec_trust *trust;
    bool ready;         // all its tokens are known, and only the row of the last one is missing
    int32_t most;       // maximum number of drafts
    int32_t depth;      // depth of drafts that is worth its cost, at most `most`; 0: no drafts
    int32_t tree_depth; // maximum depth of a tree for this sequence; a chain may be longer
    int32_t lag; // number of tokens to feed to the draft models before they can draft for it; -1:
                 // impossible now, because another sequence is filling a block that both share
};

/* All candidates, in the total order. */
struct spec_view {
    int32_t n;
    struct spec_candidate *seqs; // [max_lanes]
    int32_t n_running, max_rows, max_len;
};

/* The passes that the drafts of one step need. */
enum spec_passes {
    SPEC_NO_PASSES,    // none, because the host knows the drafts
    SPEC_CHAIN_PASSES, // passes of draft models, one after the other, without a round trip to the
                       // host
    SPEC_LEVEL_PASSES, // such a chain, whose results the host reads; then, if it pays, one pass for
                       // each level of the trees
};

/* The outcome of the drafts of one sequence. */
struct spec_trial {
    struct spec_trust *trust;
    const struct sequence *seq;
    const struct spec_tree *tree; // NULL: the drafts were a chain
    int32_t n_drafts;
    const int32_t *path; // [n_right], for a tree: the rows of the accepted path
    int32_t n_right;
    bool cut; // the text ended among the drafts, so the later ones were not verified
};

struct spec {
    const struct proposer *proposer; // NULL: no speculation
    struct spec_options options;     // the settings: options.c
    struct spec_costs costs;         // costs of passes: costs.c
    struct spec_learnt learnt;       // statistics of drafts: learnt.c
    int32_t max_laws; // maximum number of distributions that a step keeps for its drafts; see
                      // struct pass_draw
    int32_t *known;   // [max_len], room for one sequence's tokens

    /* State of the next step. */
    bool busy;          // too many sequences are running, so there are no proposals
    bool grows;         // the host grows trees; otherwise they are laid out before they are drafted
    float comb_seconds; // seconds of the step with combs; an estimate if trees are grown
};

/* One row of the table. Members may be NULL only where stated. */
struct proposer {
    const char *name;          // the method in --speculative-config
    const char *const *others; // alternative names, the last one NULL; or NULL
    bool trees; // its drafts may be trees, so sequences need slots and steps need memory for trees
    /* The row that replaces this one if the options describe trees. NULL: trees are not allowed. */
    const struct proposer *with_trees;
    /* Reads the proposer's own options, after the common ones. NULL: it has none. */
    enum status (*read)(struct spec_options *o, const struct json *j, struct err *err);
    /* open allocates memory for texts of up to max_len tokens; close frees it. NULL: nothing to
     * do. */
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

/* propose_ngram.c. The lookup finds the latest earlier occurrence of the longest possible suffix of
 * the known tokens, copies up to k tokens that follow it, and returns their number. */
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

/* The rows and distributions (laws) used by the draft models of one step so far. */
struct draft_load {
    int32_t n_rows, n_laws;
};

/* Proposes n drafts, c->depth deep, that draft models will sample within the step, if the models
 * have caught up with the sequence and `load` leaves room. */
void draft_propose(const struct spec *sp, const struct spec_view *v, struct spec_candidate *c,
                   int32_t n, struct draft_load *load);
/* The number of distributions that one sequence's drafts keep. */
int32_t draft_laws(const struct spec_options *o, int32_t depth);

#endif
