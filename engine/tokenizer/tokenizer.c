// SPDX-License-Identifier: Apache-2.0
/* Encodes text: joins the spans, cuts out added tokens, and passes each stretch between them to the
 * stages. This is the top of engine/tokenizer/; nothing below calls back. */
#include "engine/tokenizer/regex.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- the joined text ---- */

/* One call's text, after its spans were joined. */
struct job {
    const struct tokenizer *tok;
    struct scratch *sc;
    struct tokenizer_flags flags;
    const char *s;
    size_t n;
    struct range *input; // the ranges of user input
    size_t n_input, cap_input, next_input;
};

/* Joins adjacent ranges, because pieces may cross their border. */
static void add_input(struct job *job, size_t start, size_t end)
{
    if (start == end) {
        return;
    }
    if (job->n_input > 0 && job->input[job->n_input - 1].end == start) {
        job->input[job->n_input - 1].end = end;
        return;
    }
    if (job->n_input == job->cap_input) {
        job->cap_input = job->cap_input ? 2 * job->cap_input : 16;
        job->input = xrealloc(job->input, job->cap_input * sizeof *job->input);
    }
    job->input[job->n_input++] = (struct range){start, end};
}

/* Replaces malformed bytes by U+FFFD. If the border of two spans splits a character, the character
 * belongs to both, so that no byte of user input goes unnoticed. */
static bool repair(struct job *job)
{
    struct buf fixed;
    buf_init(&fixed, TEXT_MAX);
    struct range *old = job->input;
    size_t n_old = job->n_input, k = 0;
    job->input = NULL;
    job->n_input = job->cap_input = 0;
    for (size_t i = 0; i < job->n;) {
        size_t good = utf8_valid_length(job->s + i, job->n - i);
        size_t width = good;
        if (!good) {
            width = utf8_maximal_subpart(job->s + i, job->n - i);
        }
        size_t start = fixed.n_bytes;
        buf_put(&fixed, good ? job->s + i : "\xEF\xBF\xBD", good ? good : 3);
        while (k < n_old && old[k].end <= i) {
            k++;
        }
        if (k < n_old && old[k].start < i + width) {
            add_input(job, start, fixed.n_bytes);
        }
        i += width;
    }
    free(old);
    buf_deinit(&job->sc->joined);
    job->sc->joined = fixed;
    job->s = or_empty(fixed.data);
    job->n = fixed.n_bytes;
    return !fixed.failed;
}

/* A single span is used where it lies. Ranges of user input are recorded, because added tokens are
 * not recognised in them. */
static enum status join(struct job *job, const struct text_span *spans, size_t n_spans)
{
    struct buf *joined = &job->sc->joined;
    job->s = "";
    if (n_spans == 1) {
        job->s = spans[0].n_bytes ? spans[0].text : "";
        job->n = spans[0].n_bytes;
        if (spans[0].is_input) {
            add_input(job, 0, job->n);
        }
    } else {
        buf_clear(joined);
        for (size_t i = 0; i < n_spans; i++) {
            size_t start = joined->n_bytes;
            if (spans[i].n_bytes > 0) {
                buf_put(joined, spans[i].text, spans[i].n_bytes);
            }
            if (spans[i].is_input) {
                add_input(job, start, joined->n_bytes);
            }
        }
        job->s = or_empty(joined->data);
        job->n = joined->n_bytes;
    }
    bool good = job->n < TEXT_MAX && (n_spans == 1 || !joined->failed);
    if (good && utf8_check(job->s, job->n) != job->n) {
        good = repair(job);
    }
    if (!good) {
        return err_set(job->sc->err, ERR_LIMIT, "the text is too long");
    }
    return OK;
}

/* ---- stretches ---- */

/* Maps the ranges of user input to the normalised text of a stretch. Each part is normalised
 * separately to learn its length. If the lengths do not add up to that of the whole, the whole
 * stretch counts as user input. */
static void map_input(struct job *job, struct range stretch, size_t n_normalized,
                      struct job *mapped)
{
    size_t prepended = 0, at = 0, out = 0;
    for (size_t i = 0; i < job->tok->n_normalizers; i++) {
        if (job->tok->normalizers[i].kind == NORMALIZE_PREPEND) {
            prepended += job->tok->normalizers[i].text_bytes;
        }
    }
    struct scratch *other = scratch_take(job->tok);
    for (size_t k = job->next_input; at < stretch.end - stretch.start; k++) {
        struct range r =
            k < job->n_input ? job->input[k] : (struct range){stretch.end, stretch.end};
        size_t cuts[2] = {r.start, r.end};
        for (int half = 0; half < 2; half++) {
            size_t cut = greater(stretch.start, cuts[half]);
            cut = lesser(stretch.end, cut);
            const char *s = job->s + stretch.start + at;
            size_t n = cut - stretch.start - at, start = out;
            bool head, first = at == 0;
            if (n == 0) {
                continue;
            }
            if (!normalizer_apply(job->tok, other, &s, &n, &head)) {
                out = SIZE_MAX / 2;
            }
            out += n - (first || n < prepended ? 0 : prepended);
            at = cut - stretch.start;
            if (half == 1) {
                add_input(mapped, start, out);
            }
        }
    }
    scratch_give(job->tok, other);
    if (out != n_normalized) {
        mapped->n_input = 0;
        add_input(mapped, 0, n_normalized);
    }
}

/* Stretches come in order, so one pass over the ranges serves all of them. */
static bool touches_input(struct job *job, struct range r)
{
    while (job->next_input < job->n_input && job->input[job->next_input].end <= r.start) {
        job->next_input++;
    }
    return job->next_input < job->n_input && job->input[job->next_input].start < r.end;
}

/* Encodes normalised text, searching it for added tokens that match normalised text. */
static enum status encode_normalized(struct job *job, struct range stretch, const char *s, size_t n,
                                     bool first)
{
    struct job mapped = {0};
    if (job->sc->has_input) {
        map_input(job, stretch, n, &mapped);
    }
    struct added_search search = {.tok = job->tok,
                                  .trie = &job->tok->normalized_trie,
                                  .first_bytes = job->tok->normalized_first,
                                  .s = s,
                                  .n = n,
                                  .input = mapped.input,
                                  .n_input = mapped.n_input,
                                  .parse_special = job->flags.parse_special};
    struct range match;
    int32_t index;
    size_t at = 0;
    enum status st = OK;
    while (st == OK && added_search_next(&search, &match, &index)) {
        if (at < match.start) {
            st = stages_run(job->tok, job->sc, s + at, match.start - at, first && at == 0);
        }
        if (st == OK) {
            st = emit(job->sc, job->tok->added[index].id);
        }
        at = match.end;
    }
    if (st == OK && at < n) {
        st = stages_run(job->tok, job->sc, s + at, n - at, first && at == 0);
    }
    free(mapped.input);
    return st;
}

/* Encodes the text between two added tokens. `first` is true only at the beginning of the whole
 * text. */
static enum status encode_stretch(struct job *job, struct range stretch)
{
    const char *s = job->s + stretch.start;
    size_t n = stretch.end - stretch.start;
    bool dropped_head = false;
    job->sc->has_input = touches_input(job, stretch);
    if (!normalizer_apply(job->tok, job->sc, &s, &n, &dropped_head)) {
        return err_set(job->sc->err, ERR_LIMIT,
                       "the text is too long, or a pattern took too many steps on it");
    }
    bool first = stretch.start == 0 && !dropped_head;
    if (job->tok->has_normalized) {
        return encode_normalized(job, stretch, s, n, first);
    }
    return stages_run(job->tok, job->sc, s, n, first);
}

/* Added tokens that match raw text are cut out first; those marked as normalized come later. */
static enum status encode_text(struct job *job)
{
    struct added_search search = {.tok = job->tok,
                                  .trie = &job->tok->raw_trie,
                                  .first_bytes = job->tok->raw_first,
                                  .s = job->s,
                                  .n = job->n,
                                  .input = job->input,
                                  .n_input = job->n_input,
                                  .parse_special = job->flags.parse_special};
    struct range match;
    int32_t index;
    size_t at = 0;
    while (added_search_next(&search, &match, &index)) {
        if (at < match.start) {
            TRY(encode_stretch(job, (struct range){at, match.start}));
        }
        TRY(emit(job->sc, job->tok->added[index].id));
        at = match.end;
    }
    return at < job->n ? encode_stretch(job, (struct range){at, job->n}) : OK;
}

static enum status emit_all(struct scratch *sc, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        TRY(emit(sc, ids[i]));
    }
    return OK;
}

static enum status encode_job(struct job *job, const struct text_span *spans, size_t n_spans)
{
    TRY(join(job, spans, n_spans));
    if (job->flags.add_special) {
        TRY(emit_all(job->sc, job->tok->prefix, job->tok->n_prefix));
    }
    TRY(encode_text(job));
    if (job->flags.add_special) {
        return emit_all(job->sc, job->tok->suffix, job->tok->n_suffix);
    }
    return OK;
}

/* A scratch belongs to one call at a time, so calls from several threads need no lock. */
enum status tokenizer_encode(const struct tokenizer *tok, const struct text_span *spans,
                             size_t n_spans, struct tokenizer_flags flags, struct ids *out,
                             struct err *err)
{
    struct job job = {.tok = tok, .sc = scratch_take(tok), .flags = flags};
    job.sc->out = out;
    job.sc->err = err;
    enum status st = encode_job(&job, spans, n_spans);
    free(job.input);
    scratch_give(tok, job.sc);
    return st;
}

/* Appends ids, and counts them. */
static enum status put_part(const struct pair_ends *pair, int part, struct ids *out, size_t *n,
                            struct err *err)
{
    for (size_t i = 0; i < pair->n[part]; i++) {
        if (!ids_put(out, pair->ids[part][i])) {
            return err_set(err, ERR_LIMIT, "the text is too long");
        }
    }
    *n = pair->n[part];
    return OK;
}

enum status tokenizer_encode_pair(const struct tokenizer *tok, const struct text_span texts[2],
                                  bool parse_special, struct ids *out, struct tokenizer_pair *parts,
                                  struct err *err)
{
    const struct pair_ends *pair = &tok->pair;
    const struct tokenizer_flags flags = {.add_special = false, .parse_special = parse_special};
    const size_t start = out->n;
    *parts = (struct tokenizer_pair){0};
    if (pair->unsupported) {
        return err_set(err, ERR_UNSUPPORTED, "the tokenizer's template for pairs is not supported");
    }
    TRY(put_part(pair, 0, out, &parts->before, err));
    TRY(tokenizer_encode(tok, &texts[0], 1, flags, out, err));
    parts->first = out->n - start - parts->before;
    TRY(put_part(pair, 1, out, &parts->between, err));
    const size_t second = out->n;
    parts->type_at =
        pair->type_at < 0 ? 0 : second - start - parts->between + (size_t)pair->type_at;
    TRY(tokenizer_encode(tok, &texts[1], 1, flags, out, err));
    parts->second = out->n - second;
    TRY(put_part(pair, 2, out, &parts->after, err));
    if (parts->type_at == out->n - start) { // nothing has the other type
        parts->type_at = 0;
    }
    return OK;
}

void tokenizer_free(struct tokenizer *tok)
{
    if (!tok) {
        return;
    }
    for (size_t i = 0; i < sizeof tok->scratches / sizeof tok->scratches[0]; i++) {
        scratch_free(tok->scratches[i]);
    }
    for (size_t i = 0; i < MAX_STAGES; i++) {
        normalizer_deinit(&tok->normalizers[i]);
        stage_deinit(&tok->stages[i]);
        decoder_deinit(&tok->decoders[i]);
    }
    for (size_t i = 0; i < tok->n_added; i++) {
        free(tok->added[i].text);
        free(tok->added[i].normalized_text);
    }
    free(tok->added);
    free(tok->added_of);
    string_table_deinit(&tok->by_text);
    string_table_deinit(&tok->by_key);
    string_table_deinit(&tok->added_table);
    strings_deinit(&tok->texts);
    strings_deinit(&tok->keys);
    strings_deinit(&tok->pieces);
    strings_deinit(&tok->added_texts);
    trie_deinit(&tok->raw_trie);
    trie_deinit(&tok->normalized_trie);
    trie_deinit(&tok->unigram.trie);
    free(tok->unigram.score);
    bpe_deinit(&tok->bpe);
    arena_deinit(&tok->arena);
    free(tok);
}
