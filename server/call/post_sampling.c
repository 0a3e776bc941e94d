// SPDX-License-Identifier: Apache-2.0
/* Probabilities after the samplers, computed from the logged alternatives, for settings where these
 * suffice. */
#include "server/call/post_sampling.h"

#include "engine/schedule/request.h"

#include <math.h>

static bool is_few(const struct sampling_params *p)
{
    return p->top_k > 0 && p->top_k <= MAX_TOP_LOGPROBS;
}

static bool is_greedy(const struct sampling_params *p)
{
    return p->temperature < MIN_TEMPERATURE;
}

/* The scores are the logits themselves, and no token is banned. */
static bool is_raw(const struct sampling_params *p)
{
    return p->repetition_penalty == 1.0f && p->frequency_penalty == 0.0f &&
           p->presence_penalty == 0.0f && p->n_bias == 0 && p->n_allowed == 0 &&
           p->n_bad_words == 0 && p->min_tokens == 0;
}

/* Refuses settings for which the distribution cannot be computed exactly from the alternatives. */
bool post_sampling_check(const struct sampling_params *p, bool constrained, struct call_error *e)
{
    bool known = is_greedy(p) || is_few(p) ||
                 (p->temperature == 1.0f && p->top_p == 1.0f && p->min_p == 0.0f);
    if (!known) {
        return call_error_set(
            e, 400, "unsupported_value", "post_sampling_probs",
            "Unsupported value: 'post_sampling_probs' needs 'top_k' of 1 to %d, "
            "or 'temperature' 0, or 'temperature' 1 with 'top_p' 1 and 'min_p' 0.",
            MAX_TOP_LOGPROBS);
    }
    if (constrained || !is_raw(p)) {
        return call_error_set(e, 400, "unsupported_value", "post_sampling_probs",
                              "Unsupported value: 'post_sampling_probs' cannot be combined with "
                              "penalties, biases, 'ignore_eos', 'min_tokens', banned tokens or "
                              "constraints.");
    }
    return true;
}

/* The number of leading weights whose sum reaches the share of the total. */
static int32_t cut_top_p(const double *weights, int32_t n, double share)
{
    double total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        total += weights[i];
    }
    for (int32_t i = 0; i < n; i++) {
        sum += weights[i];
        if (sum >= share * total) {
            return i + 1;
        }
    }
    return n;
}

/* Weights relative to the likeliest token's, narrowed by the samplers; returns their total. */
static double narrow(const struct sampling_params *p, const struct token_logprobs *lp,
                     struct post_sampling *out)
{
    double total = 0, *w = out->prob;
    out->n = lp->n_top < p->top_k ? lp->n_top : p->top_k;
    for (int32_t i = 0; i < out->n; i++) {
        w[i] = exp(((double)lp->top_logprobs[i] - (double)lp->top_logprobs[0]) /
                   (double)p->temperature);
    }
    if (p->top_p < 1.0f) {
        out->n = cut_top_p(w, out->n, (double)p->top_p);
    }
    while (out->n > 1 && w[out->n - 1] < (double)p->min_p) {
        out->n--;
    }
    for (int32_t i = 0; i < out->n; i++) {
        total += w[i];
    }
    return total;
}

/* The distribution that the sampler drew from, among the alternatives. */
void post_sampling_of(const struct sampling_params *p, const struct token_logprobs *lp,
                      int32_t token, struct post_sampling *out)
{
    double total = 1;
    out->drawn = 0;
    if (is_greedy(p)) {
        out->n = 1;
        out->prob[0] = 1;
        out->drawn = 1;
        return;
    }
    if (is_few(p)) {
        total = narrow(p, lp, out);
    } else {
        out->n = lp->n_top;
        out->drawn = exp((double)lp->logprob);
        for (int32_t i = 0; i < out->n; i++) {
            out->prob[i] = exp((double)lp->top_logprobs[i]);
        }
    }
    for (int32_t i = 0; i < out->n; i++) {
        out->prob[i] /= total;
        out->drawn = lp->top_ids[i] == token ? out->prob[i] : out->drawn;
    }
}
