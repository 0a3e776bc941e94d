#include "engine/spec.h"

#include "engine/base/json.h"

#include <string.h>

static const struct {
    const char *name;
    enum spec_method method;
} methods[] = {{"ngram", SPEC_NGRAM}};

static enum status read_config(struct spec *sp, const struct json *j, struct err *err)
{
    const char *method = json_get_string(j, "method");
    for (size_t i = 0; method && i < sizeof methods / sizeof methods[0]; i++) {
        if (strcmp(methods[i].name, method) == 0) {
            sp->method = methods[i].method;
        }
    }
    if (sp->method == SPEC_NONE) {
        return err_set(err, ERR_UNSUPPORTED, "speculative-config: the method '%s' is not known",
                       method ? method : "(missing)");
    }
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
    return OK;
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

/* Drafts that the sequence may have in the next step. */
static int32_t allowed(const struct spec *sp, const struct scheduler *s, const struct sequence *seq)
{
    int32_t k = sp->k, asked = seq->request->params.num_speculative_tokens;
    int32_t left = seq->max_tokens - sequence_generated(seq) - 1;
    int32_t room = s->limits.max_len - seq->n_known - 1;
    k = asked >= 0 && asked < k ? asked : k;
    k = left < k ? left : k;
    return room < k ? room : k;
}

/* The prompt and the output as one run of tokens; NULL-free fast path when nothing is generated. */
static const int32_t *known_tokens(struct spec *sp, struct scheduler *s,
                                   const struct sequence *seq)
{
    (void)sp;
    for (int32_t i = 0; i < seq->n_known; i++) {
        s->known[i] = sequence_token(seq, i);
    }
    return s->known;
}

void spec_propose(struct spec *sp, struct scheduler *s)
{
    if (sp->method == SPEC_NONE) {
        return;
    }
    bool busy = s->n_running > sp->max_batch;
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        if (seq->state != SEQ_RUNNING || seq->n_computed < seq->n_prompt - 1) {
            continue;
        }
        if (seq->spec_pause > 0 || busy) {
            seq->spec_pause -= seq->spec_pause > 0;
            seq->waits_for_token = false;
            continue;
        }
        seq->waits_for_token = allowed(sp, s, seq) > 0;
        if (seq->n_inflight == 0 && seq->waits_for_token &&
            seq->n_computed == seq->n_known - 1) {
            seq->n_drafts = spec_ngram(known_tokens(sp, s, seq), seq->n_known, sp->min_n,
                                       sp->max_n, allowed(sp, s, seq), seq->drafts);
            if (seq->n_drafts == 0) {
                seq->spec_pause = 2; // nothing to copy from here: look again soon
            }
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
    // A run of misses doubles the pause; one good guess ends it.
    if (n_accepted > 0) {
        seq->spec_misses = 0;
    } else {
        seq->spec_misses += seq->spec_misses < 6;
        seq->spec_pause = seq->spec_misses > 1 ? 1 << seq->spec_misses : 0;
    }
}
