// SPDX-License-Identifier: Apache-2.0
/* Speculation keeps the target's distribution p: whether drafts are tested one by one or as
 * siblings of a tree, and whatever distribution q they are drawn from, the resulting tokens follow
 * p. Further draws are without replacement. Chi-squares are compared with their 0.9999 quantiles.
 */
#include "engine/base/minmax.h"
#include "test/device/op_sampler.h"

enum { KINDS = 12, AT_ONCE = 50, TREES = 10 };

/* Whether top-k or top-p excludes token kind i; `law`: the whole softmax. */
static bool is_out(const float *logits, const struct sampling_params *p, const double *law,
                   int32_t i)
{
    int32_t n_above = 0;
    double mass_above = 0.0;
    for (int32_t j = 0; j < KINDS; j++) {
        bool above = logits[j] > logits[i];
        n_above += above;
        mass_above += above ? law[j] : 0.0;
    }
    return (p->top_k > 0 && n_above >= p->top_k) || mass_above >= (double)p->top_p;
}

/* The distribution that the sampler's steps make of the softmax, in double precision. */
static void law_of(const float *logits, const struct sampling_params *p, double *law)
{
    double whole[KINDS], most = -INFINITY, sum = 0.0, kept = 0.0;
    for (int32_t i = 0; i < KINDS; i++) {
        most = greater((double)logits[i], most); // fmax breaks gcc 12 for Arm
    }
    for (int32_t i = 0; i < KINDS; i++) {
        whole[i] = exp(((double)logits[i] - most) / (double)p->temperature);
        sum += whole[i];
    }
    for (int32_t i = 0; i < KINDS; i++) {
        whole[i] /= sum;
    }
    for (int32_t i = 0; i < KINDS; i++) {
        law[i] = is_out(logits, p, whole, i) ? 0.0 : whole[i];
        kept += law[i];
    }
    for (int32_t i = 0; i < KINDS; i++) {
        law[i] /= kept;
    }
}

/* Draws AT_ONCE drafts from `q`, then tests them under `p`. Counts the resulting tokens and the
 * accepted drafts. */
static void judge_some(struct sampler *s, struct tensor q, struct tensor p, int32_t *counts,
                       int32_t *n_accepted)
{
    int32_t drafts[AT_ONCE];
    s->logits = q;
    for (int32_t j = 0; j < AT_ONCE; j++) {
        add_draw(s, (struct pass_draw){.pos = j,
                                       .n_prompt = 1,
                                       .tree_row = -1,
                                       .keep = true,
                                       .kind = DRAW_DRAFT,
                                       .noise = true,
                                       .law = 1 + j});
    }
    const struct draw_result *r = run_draws(s);
    for (int32_t j = 0; j < AT_ONCE; j++) {
        drafts[j] = r[j].token;
    }
    s->logits = p;
    for (int32_t j = 0; j < AT_ONCE; j++) {
        add_draw(s, (struct pass_draw){.pos = j, .n_prompt = 1, .tree_row = -1, .law = 1 + j});
    }
    r = run_draws(s);
    for (int32_t j = 0; j < AT_ONCE; j++) {
        counts[r[j].token]++;
        *n_accepted += r[j].token == drafts[j];
    }
}

/* TREES trees, each a root whose children are drawn from q and then tried under p. */
static void try_siblings(struct sampler *s, struct tensor q, struct tensor p, int32_t n_kids,
                         int32_t *counts, int32_t *n_accepted)
{
    int32_t kids[TREES][MAX_SIBLINGS];
    s->logits = q;
    for (int32_t j = 0; j < TREES; j++) {
        add_draw(s, (struct pass_draw){.pos = j,
                                       .n_prompt = 1,
                                       .tree_row = -1,
                                       .kind = DRAW_DRAFT,
                                       .noise = true,
                                       .law = 1 + j,
                                       .more = n_kids - 1});
    }
    const struct draw_result *r = run_draws(s);
    for (int32_t j = 0; j < TREES; j++) {
        kids[j][0] = r[j].token;
        memcpy(kids[j] + 1, r[j].top_ids, (size_t)(n_kids - 1) * sizeof **kids);
    }
    s->logits = p;
    struct op_pass plain = s->pass;
    for (int32_t j = 0; j < TREES; j++) { // one tree per pass: a root at position j, and its
                                          // children
        memset(&s->pass, 0, sizeof s->pass);
        op_add_seq(&s->pass, 0, j, 1 + n_kids);
        s->pass.pass.seqs = s->pass.seqs;
        s->pass.seqs[0].tree = true;
        s->pass.pass.tree_mask = s->pass.mask;
        for (int32_t i = 0; i <= n_kids; i++) {
            s->pass.rows[i].pos = j + (i > 0);
            s->pass.rows[i].token = i > 0 ? kids[j][i - 1] : 0;
            s->pass.mask[i * TREE_MASK_WORDS] = 1u | 1u << i;
            s->pass.mask[i * TREE_MASK_WORDS + 1] = 0;
        }
        add_draw(s, (struct pass_draw){.pos = j, .n_prompt = 1, .tree_row = 0, .law = 1 + j});
        int32_t token = run_draws(s)[0].token, accepted = 0;
        for (int32_t i = 0; i < n_kids; i++) {
            accepted = accepted || token == kids[j][i];
        }
        counts[token]++;
        *n_accepted += accepted;
    }
    s->pass = plain;
}

/* A target and a draft model: their sampling parameters, the similarity of their logits, and the
 * number of siblings tried (0: one draft after another). */
struct law_case {
    float temperature, top_p, likeness;
    int32_t top_k, n_kids;
};

/* Draws `n` times with consecutive seeds and compares the results with p. *overlap: the sum of
 * min(p, q), which is the highest possible rate of acceptance. Returns the number of accepted
 * drafts. */
static int32_t judge_case(const char *backend, const struct law_case *c, int32_t n, uint64_t seed,
                          double *overlap)
{
    static const double quantile[] = {0.0,  15.2, 18.5, 21.2, 23.6, 25.8,
                                      27.9, 29.9, 31.9, 33.8, 35.6, 37.4};
    float logits[KINDS], draft[KINDS];
    double p_law[KINDS], q_law[KINDS], chi = 0.0;
    int32_t counts[KINDS] = {0}, n_accepted = 0, freedom = -1, step = c->n_kids ? TREES : AT_ONCE;
    for (int32_t i = 0; i < KINDS; i++) {
        float other = op_normal() * 1.5f;
        logits[i] = op_normal() * 1.5f;
        draft[i] = c->likeness * logits[i] + (1.0f - c->likeness) * other;
    }
    struct sampler s;
    open_sampler(&s, backend, logits, KINDS);
    struct tensor target = s.logits, proposer = op_tensor(&s.rig, draft, 1, KINDS, KINDS + 3);
    struct sampling_params p = sampling_params_default();
    p.temperature = c->temperature;
    p.top_p = c->top_p;
    p.top_k = c->top_k;
    law_of(logits, &p, p_law);
    law_of(draft, &p, q_law);
    for (int32_t i = 0; i < n; i += step) {
        p.seed = seed + (uint64_t)i;
        s.rig.ops->step_begin(s.rig.be, 0);
        s.rig.in_step = true;
        s.rig.ops->lane_params(s.rig.be, 0, &p);
        if (c->n_kids) {
            try_siblings(&s, proposer, target, c->n_kids, counts, &n_accepted);
        } else {
            judge_some(&s, proposer, target, counts, &n_accepted);
        }
    }
    *overlap = 0.0;
    for (int32_t i = 0; i < KINDS; i++) {
        double e = n * p_law[i];
        if (e > 0.0) {
            chi += (counts[i] - e) * (counts[i] - e) / e;
        } else {
            chi += counts[i] * 1e9;
        }
        freedom += e > 0.0;
        *overlap += fmin(p_law[i], q_law[i]);
    }
    if (!(chi < quantile[freedom])) {
        CHECK_FAIL("likeness %g, %d siblings: chi-square %g with %d degrees of freedom",
                   (double)c->likeness, c->n_kids, chi, freedom);
    }
    op_close(&s.rig);
    return n_accepted;
}

/* The rate of acceptance must also be the highest possible one. */
OP_TEST(judged_drafts_follow_the_targets_law)
{
    const int32_t N = check_nightly() ? 30000 : 15000;
    static const struct law_case cases[] = {{1.0f, 1.0f, 0.5f, 0, 0},
                                            {0.7f, 1.0f, 0.0f, 0, 0},
                                            {1.5f, 1.0f, 0.9f, 4, 0},
                                            {1.0f, 0.8f, 0.3f, 0, 0},
                                            {1.0f, 1.0f, 1.0f, 0, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        double accept;
        int32_t n_accepted = judge_case(backend, &cases[c], N, 0, &accept);
        CHECK_NEAR(n_accepted / (double)N, accept, 4.0 * sqrt(accept * (1.0 - accept) / N) + 1e-9);
    }
}

/* More siblings are accepted more often. */
OP_TEST(siblings_tried_in_turn_keep_the_targets_law)
{
    const int32_t N = check_nightly() ? 20000 : 10000;
    static const struct law_case cases[] = {{1.0f, 1.0f, 0.5f, 0, 2}, {0.7f, 1.0f, 0.0f, 0, 4},
                                            {1.5f, 1.0f, 0.8f, 4, 6}, {1.0f, 0.8f, 0.3f, 0, 3},
                                            {1.0f, 1.0f, 1.0f, 0, 2}, {1.0f, 1.0f, 0.0f, 0, 12}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        double one;
        int32_t n_accepted = judge_case(backend, &cases[c], N, 5, &one);
        CHECK(n_accepted >= N * (one - 0.02)); // what a single draft gives
        CHECK(cases[c].likeness < 1.0f || n_accepted == N);
        CHECK(cases[c].likeness == 1.0f || cases[c].top_k > 0 || n_accepted > N * (one + 0.1));
    }
}

/* A draw without replacement gives each ordered pair with its exact probability. */
OP_TEST(further_draws_are_without_replacement)
{
    enum { N = 40000, FEW = 5 };
    const float logits[FEW] = {1.0f, 0.3f, -0.5f, 0.8f, -2.0f};
    struct sampler s;
    double share[FEW], sum = 0.0, chi = 0.0;
    int32_t counts[FEW][FEW] = {{0}};
    open_sampler(&s, backend, logits, FEW);
    struct sampling_params p = sampling_params_default();
    for (int32_t i = 0; i < FEW; i++) {
        sum += share[i] = exp((double)logits[i]);
    }
    for (int32_t i = 0; i < N; i += AT_ONCE) {
        p.seed = 77u + (uint64_t)i;
        s.rig.ops->step_begin(s.rig.be, 0);
        s.rig.in_step = true;
        s.rig.ops->lane_params(s.rig.be, 0, &p);
        for (int32_t j = 0; j < AT_ONCE; j++) {
            add_draw(&s, (struct pass_draw){.pos = j,
                                            .n_prompt = 1,
                                            .tree_row = -1,
                                            .noise = true,
                                            .kind = DRAW_DRAFT,
                                            .more = FEW});
        }
        const struct draw_result *r = run_draws(&s);
        for (int32_t j = 0; j < AT_ONCE; j++) {
            int32_t seen = 1 << r[j].token;
            CHECK_EQ(r[j].n_top, FEW);
            for (int32_t k = 0; k < FEW - 1; k++) {
                seen |= 1 << r[j].top_ids[k];
            }
            CHECK_EQ(seen, (1 << FEW) - 1);
            CHECK_EQ(r[j].top_ids[FEW - 1], r[j].token); // all ids are used up
            counts[r[j].token][r[j].top_ids[0]]++;
        }
    }
    for (int32_t a = 0; a < FEW; a++) {
        for (int32_t b = 0; b < FEW; b++) {
            double e = N * share[a] / sum * share[b] / (sum - share[a]);
            if (a == b) {
                chi += counts[a][b] * 1e9;
            } else {
                chi += (counts[a][b] - e) * (counts[a][b] - e) / e;
            }
        }
    }
    CHECK(chi < 50.8); // 19 degrees of freedom, 0.9999
    op_close(&s.rig);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
