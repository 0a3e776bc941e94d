// SPDX-License-Identifier: Apache-2.0
#include "server/call/post_sampling.h"

#include "engine/base/minmax.h"
#include "engine/schedule/request.h"

#include <math.h>

static bool is_greedy(const struct sampling_params *p)
{
    return p->temperature < MIN_TEMPERATURE;
}

/* Probabilities are relative to all tokens that are left before top-p, so these are needed. */
int32_t post_sampling_needs(const struct sampling_params *p, int32_t vocab)
{
    if (is_greedy(p)) {
        return 1;
    }
    return p->top_k > 0 ? lesser(p->top_k, vocab) : vocab;
}

static double weight(const struct post_sampling *s, const struct token_logprobs *lp, int32_t i)
{
    return exp(((double)lp->top_logprobs[i] - (double)lp->top_logprobs[0]) / s->temperature);
}

static double total_of(const struct post_sampling *s, const struct token_logprobs *lp, int32_t n)
{
    double total = 0;
    for (int32_t i = 0; i < n; i++) {
        total += weight(s, lp, i);
    }
    return total;
}

/* The leading tokens whose weights reach this share of the total. */
static int32_t cut_top_p(const struct post_sampling *s, const struct token_logprobs *lp,
                         double share)
{
    double sum = 0, total = total_of(s, lp, s->n);
    for (int32_t i = 0; i < s->n; i++) {
        sum += weight(s, lp, i);
        if (sum >= share * total) {
            return i + 1;
        }
    }
    return s->n;
}

double post_sampling_prob(const struct post_sampling *s, const struct token_logprobs *lp, int32_t i)
{
    return s->temperature > 0 ? weight(s, lp, i) / s->total : 1;
}

void post_sampling_of(const struct sampling_params *p, const struct token_logprobs *lp,
                      int32_t token, struct post_sampling *out)
{
    *out = (struct post_sampling){.n = 1, .total = 1, .drawn = 1};
    if (is_greedy(p)) {
        return;
    }
    out->temperature = (double)p->temperature;
    out->n = lesser(lp->n_top, p->top_k > 0 ? p->top_k : lp->n_top);
    if (p->top_p < 1.0f) {
        out->n = cut_top_p(out, lp, (double)p->top_p);
    }
    while (out->n > 1 && (weight(out, lp, out->n - 1) < (double)p->min_p ||
                          isinf(lp->top_logprobs[out->n - 1]))) { // banned
        out->n--;
    }
    out->total = total_of(out, lp, out->n);
    out->drawn = 0;
    for (int32_t i = 0; i < out->n; i++) {
        if (lp->top_ids[i] == token) {
            out->drawn = post_sampling_prob(out, lp, i);
        }
    }
}
