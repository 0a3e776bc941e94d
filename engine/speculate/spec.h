/* Speculation: proposers guess the tokens that come next, the ordinary forward pass computes all
 * the guesses' rows at once, and the ordinary sampler draws at each of them. A guess stands while
 * it equals what was drawn, so the text is the same whatever is proposed. A proposer never touches
 * pool, cache or plan: it fills sequence.drafts, or leaves that to the draft model's passes of the
 * same step. A tree's nodes live in spec_tree.h; sequence.n_drafts then counts nodes.
 *
 * A sequence that speculates is not planned while its last token is still in flight, since the
 * proposer needs it; with speculation paused it runs two steps deep like any other.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPECULATE_SPEC_H
#define SLUICE_ENGINE_SPECULATE_SPEC_H

#include "engine/model/model.h"
#include "engine/schedule/scheduler.h"

enum spec_method { SPEC_NONE, SPEC_NGRAM, SPEC_DRAFT, SPEC_TREE };

/* How drafts are judged. SYNTHETIC accepts by a coin, whatever was drawn: it makes up text, and is
 * for measuring speed with made-up weights. */
enum spec_rejection { REJECT_MATCH, REJECT_PROBABILISTIC, REJECT_SYNTHETIC };

enum { SPEC_COST_POINTS = 8 }; // times of 1, 2, 4, ... 128 rows
#define SPEC_START_DOUBT 0.3f  // chosen: drafts are tried at first

struct spec {
    enum spec_method method;
    int32_t n_models;
    char models[MAX_DRAFT_MODELS][4096]; // folders of the draft models
    int32_t k;            // drafts per step at most; of a tree: its depth
    int32_t min_n, max_n; // lengths of the suffix that n-gram lookup matches
    int32_t max_batch;    // more running sequences than this and nothing is proposed
    int32_t draft_max_len;
    int32_t draft_ranks;  // 1: every rank has the whole draft models; else all share them
    bool drafts_now;      // the draft model follows the plan that comes: it has to see what it will
                          // continue; set by spec_propose
    bool grows_now;       // trees: the host grows this step's level by level; else they are laid out
                          // before they are drafted: combs, and chains, which are bare combs
    bool fixed;           // always k: for tests and experiments
    enum spec_rejection rejection;
    float synthetic_rate; // probability that a draft is accepted
    bool no_bonus;        // synthetic runs only: nothing is drawn behind the last draft
    int32_t n_laws, max_laws; // kept by this step's drafts so far, at most; see struct pass_draw
    float target_cost[SPEC_COST_POINTS], draft_cost[SPEC_COST_POINTS]; // seconds; 0: not measured
    float look_cost; // of the host's reading a pass's draws before the next is submitted
    float tell_cost; // of a pass whose draws tell the likeliest ids too

    /* Trees. With n_expansion each node of depth d has expansion[d] children; else the `width` best
     * nodes of a level have children, and the `budget` best of all nodes of a step are verified. */
    int32_t n_expansion, expansion[MAX_DRAFTS];
    int32_t width, budget;
    bool lookup; // n-gram lookup feeds the tree too
    float lookup_logp; // log of the share of its first tokens that were right
    float tree_said[MAX_DRAFTS], tree_right[MAX_DRAFTS]; // by depth: expected and right nodes
    float rescue[MAX_SIBLINGS]; // where a spine ends: how often the sibling of this rank is right
    float grow_gain;    // there: tokens of a grown tree beyond a comb's
    float grow_seconds; // of a step with grown trees beyond one with combs
    float plan_seconds; // this step's with combs, or what it would have been

    float doubt; // running share of rejected drafts, of all sequences: where new ones begin
    int64_t n_drafts, n_draft_tokens, n_accepted;
    int64_t accepted_per_pos[MAX_DRAFTS];
    int32_t *known; // [max_len], room for a sequence's tokens
};

/* config: JSON in vLLM's shape, or NULL for none (spec_config.c). */
enum status spec_init(struct spec *sp, const char *config, struct err *err);

/* Once the longest text is known; and the end of it. */
void spec_open(struct spec *sp, int32_t max_len);
void spec_close(struct spec *sp);

/* Laws that a step may keep at most. */
int32_t spec_max_laws(const struct spec *sp, int32_t max_lanes);

/* Whether a draft for the place behind the last known token stands, given what was drawn there. */
bool spec_stands(const struct spec *sp, const struct sequence *seq, int32_t draft, int32_t drawn);

/* Before each plan: fills the drafts of the sequences that are ready for it. */
void spec_propose(struct spec *sp, struct scheduler *s);

/* After a verified step: what is counted, and what is learnt of the next ones, from the first n
 * drafts of a chain or a spine of which so many were right. */
void spec_count(struct spec *sp, int32_t n_drafts, int32_t n_accepted);
void spec_learn(struct spec *sp, struct sequence *seq, int32_t n, int32_t right);

/* Seconds of a pass of n rows, between the measured points. */
float spec_cost(const float *cost, int32_t n);

/* Drafts of a plan of n sequences at most: what buffers are sized for. */
int32_t spec_max_drafts(const struct spec *sp, int32_t n_sequences);

/* The prompt and the output as one run of tokens, in room for it. */
const int32_t *spec_known_tokens(struct spec *sp, const struct sequence *seq);

/* The tokens after the latest earlier occurrence of the longest suffix of min_n to max_n tokens;
 * returns how many (0 to k). known: n tokens. Time linear in n. */
int32_t spec_ngram(const int32_t *known, int32_t n, int32_t min_n, int32_t max_n, int32_t k,
                   int32_t *drafts);

#endif
