#include "engine/spec.h"

#include "engine/base/json.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    enum spec_method method;
} methods[] = {{"ngram", SPEC_NGRAM}, {"draft_model", SPEC_DRAFT}};

static enum status read_numbers(struct spec *sp, const struct json *j, struct err *err)
{
    int64_t k = json_get_int(j, "num_speculative_tokens", 4);
    int64_t max_n = json_get_int(j, "prompt_lookup_max", 5);
    int64_t min_n = json_get_int(j, "prompt_lookup_min", max_n < 2 ? max_n : 2);
    if (k < 1 || k > MAX_DRAFTS - 1) {
        return err_set(err, ERR_INVALID, "speculative-config: num_speculative_tokens must be from "
                       "1 to %d", MAX_DRAFTS - 1);
    }
    if (min_n < 1 || max_n < min_n || max_n > 32) {
        return err_set(err, ERR_INVALID, "speculative-config: prompt_lookup_min and _max must be "
                       "1 <= min <= max <= 32");
    }
    sp->k = (int32_t)k;
    sp->min_n = (int32_t)min_n;
    sp->max_n = (int32_t)max_n;
    sp->max_batch = (int32_t)json_get_int(j, "disable_by_batch_size", 32);
    sp->fixed = json_get_bool(j, "fixed", false);
    sp->draft_max_len = INT32_MAX;
    return OK;
}

static enum status read_config(struct spec *sp, const struct json *j, struct err *err)
{
    const char *method = json_get_string(j, "method"), *model = json_get_string(j, "model");
    method = method ? method : model ? "draft_model" : NULL;
    for (size_t i = 0; method && i < sizeof methods / sizeof methods[0]; i++) {
        if (strcmp(methods[i].name, method) == 0) {
            sp->method = methods[i].method;
        }
    }
    if (sp->method == SPEC_NONE) {
        return err_set(err, ERR_UNSUPPORTED, "speculative-config: the method '%s' is not one of "
                       "ngram, draft_model", method ? method : "(missing)");
    }
    if (sp->method == SPEC_DRAFT && (!model || strlen(model) >= sizeof sp->model)) {
        return err_set(err, ERR_INVALID, "speculative-config: 'model' must name the draft model's "
                       "folder");
    }
    if (sp->method == SPEC_DRAFT) {
        snprintf(sp->model, sizeof sp->model, "%s", model);
    }
    return read_numbers(sp, j, err);
}

enum status spec_init(struct spec *sp, const char *config, struct err *err)
{
    *sp = (struct spec){0};
    if (!config) {
        return OK;
    }
    struct json *j;
    enum status st = json_parse(config, strlen(config), NULL, &j, err);
    if (st != OK) {
        return err_prefix(err, st, "speculative-config");
    }
    st = read_config(sp, j, err);
    json_free(j);
    return st;
}

/* ---- n-gram lookup ------------------------------------------------------------------------ */

int32_t spec_ngram(const int32_t *known, int32_t n, int32_t min_n, int32_t max_n, int32_t k,
                   int32_t *drafts)
{
    int32_t best = 0, best_end = -1, last = n > 0 ? known[n - 1] : -1;
    for (int32_t end = n - 2; end >= 0 && best < max_n; end--) {
        if (known[end] != last) {
            continue;
        }
        int32_t length = 1;
        while (length < max_n && length <= end && known[end - length] == known[n - 1 - length]) {
            length++;
        }
        if (length > best) {
            best = length;
            best_end = end;
        }
    }
    if (best < min_n) {
        return 0;
    }
    int32_t count = n - 1 - best_end < k ? n - 1 - best_end : k;
    memcpy(drafts, known + best_end + 1, (size_t)count * sizeof *drafts);
    return count;
}

/* ---- how deep ----------------------------------------------------------------------------- */

/* Seconds of a pass of n rows, between the measured points. */
static float cost_at(const float *cost, int32_t n)
{
    int32_t i = 0;
    while (i + 1 < SPEC_COST_POINTS && (2 << i) <= n) {
        i++;
    }
    int32_t low = 1 << i;
    if (i + 1 == SPEC_COST_POINTS) {
        return cost[i] * (float)n / (float)low;
    }
    return cost[i] + (cost[i + 1] - cost[i]) * (float)(n - low) / (float)low;
}

int32_t spec_best_depth(const struct spec *sp, int32_t n, float acceptance, int32_t most)
{
    if (sp->fixed || sp->target_cost[0] <= 0.0f) {
        return most;
    }
    float best_rate = 1.0f / cost_at(sp->target_cost, n), tokens = 1.0f, power = 1.0f;
    int32_t best = 0;
    for (int32_t k = 1; k <= most; k++) {
        power *= acceptance;
        tokens += power;
        float time = cost_at(sp->target_cost, n * (k + 1));
        time += sp->method == SPEC_DRAFT ? (float)k * cost_at(sp->draft_cost, n) : 0.0f;
        if (tokens / time > best_rate) {
            best_rate = tokens / time;
            best = k;
        }
    }
    return best;
}

/* Drafts that the sequence may have in the next step, whatever they cost. */
static int32_t allowed(const struct spec *sp, const struct scheduler *s, const struct sequence *seq)
{
    int32_t k = sp->k, asked = seq->request->params.num_speculative_tokens;
    int32_t left = seq->max_tokens - sequence_generated(seq) - 1;
    int32_t longest = s->limits.max_len < sp->draft_max_len ? s->limits.max_len : sp->draft_max_len;
    int32_t room = longest - seq->n_known - 1;
    k = asked >= 0 && asked < k ? asked : k;
    k = left < k ? left : k;
    k = room < k ? room : k;
    return k > 0 ? k : 0;
}

/* The prompt and the output as one run of tokens, in the scheduler's room for it. */
static const int32_t *known_tokens(struct scheduler *s, const struct sequence *seq)
{
    memcpy(s->known, seq->request->prompt, (size_t)seq->n_prompt * sizeof *s->known);
    memcpy(s->known + seq->n_prompt, seq->output->tokens,
           (size_t)sequence_generated(seq) * sizeof *s->known);
    return s->known;
}

/* ---- proposals ---------------------------------------------------------------------------- */

enum { PAUSE = 32, LONG_LAG = 64 }; // tokens; chosen: a probe costs 3 % at worst

static void propose_ngram(struct spec *sp, struct scheduler *s, struct sequence *seq, int32_t k)
{
    seq->n_drafts = spec_ngram(known_tokens(s, seq), seq->n_known, sp->min_n, sp->max_n, k,
                               seq->drafts);
    seq->drafts_on_device = false;
    if (seq->n_drafts == 0) {
        seq->spec_pause = 2; // nothing to copy from here: look again soon
    }
}

/* Only a draft model that has nearly caught up can draft in the same step; `rows` is what the
 * step's first draft pass has to feed already. */
static int32_t propose_model(struct scheduler *s, struct sequence *seq, int32_t k, int32_t rows)
{
    int32_t lag = seq->n_known - seq->draft_computed;
    int32_t can = scheduler_draft_rows(s, seq, seq->n_known);
    lag = seq->n_known - seq->draft_computed;
    if (can < lag || lag > LONG_LAG || rows + lag > s->limits.max_rows) {
        return 0;
    }
    seq->n_drafts = k;
    seq->drafts_on_device = true;
    return lag;
}

void spec_propose(struct spec *sp, struct scheduler *s)
{
    if (sp->method == SPEC_NONE) {
        return;
    }
    bool busy = s->n_running > sp->max_batch;
    sp->drafts_now = sp->method == SPEC_DRAFT && !busy;
    int32_t rows = 0;
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        if (seq->state != SEQ_RUNNING || seq->n_computed < seq->n_prompt - 1) {
            continue;
        }
        seq->n_drafts = 0;
        int32_t k = busy || seq->spec_pause > 0 ? 0 : allowed(sp, s, seq);
        k = k > 0 ? spec_best_depth(sp, s->n_running, 1.0f - seq->spec_doubt, k) : 0;
        if (k == 0) { // look again after a while, if it was not worth it
            seq->spec_pause = seq->spec_pause > 0 ? seq->spec_pause - 1 : busy ? 0 : PAUSE;
            seq->spec_doubt *= seq->spec_pause == 1 ? 0.7f : 1.0f;
            seq->waits_for_token = false;
            continue;
        }
        seq->waits_for_token = true;
        if (seq->n_inflight > 0 || seq->n_computed != seq->n_known - 1) {
            continue;
        }
        if (sp->method == SPEC_NGRAM) {
            propose_ngram(sp, s, seq, k);
        } else {
            rows += propose_model(s, seq, k, rows);
        }
    }
}

void spec_observe(struct spec *sp, struct sequence *seq, int32_t n_drafts, int32_t n_accepted)
{
    sp->n_drafts++;
    sp->n_draft_tokens += n_drafts;
    sp->n_accepted += n_accepted;
    for (int32_t i = 0; i < n_accepted; i++) {
        sp->accepted_per_pos[i]++;
    }
    // Each accepted draft, and the first rejected one, is a trial of the acceptance.
    for (int32_t i = 0; i < n_drafts && i <= n_accepted; i++) {
        seq->spec_doubt += 0.1f * ((i < n_accepted ? 0.0f : 1.0f) - seq->spec_doubt);
    }
}
