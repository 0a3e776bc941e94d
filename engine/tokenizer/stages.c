// SPDX-License-Identifier: Apache-2.0
/* Pre-tokenizers. Each stage splits or rewrites what it gets from the previous stage and passes
 * each piece on immediately, so no list of pieces is ever built. The recursion is as deep as there
 * are stages. */
#include "engine/tokenizer/regex.h"

#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- reading ---- */

static struct stage *stage_add(struct tokenizer *tok, enum stage_kind kind)
{
    if (tok->n_stages == MAX_STAGES) {
        return NULL;
    }
    struct stage *st = &tok->stages[tok->n_stages++];
    *st = (struct stage){.kind = kind, .code_point = UINT32_MAX};
    return st;
}

static enum status too_many(struct err *err)
{
    return err_set(err, ERR_LIMIT, "more than %d pre-tokenizers", MAX_STAGES);
}

static enum status read_behavior(const struct json *node, enum behavior *out, struct err *err)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = json_get_string(node, "behavior");
    for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum behavior)i;
            return OK;
        }
    }
    return err_set(err, ERR_UNSUPPORTED, "unknown split behavior \"%s\"", or_empty(name));
}

static enum status load_class(struct tokenizer *tok, uint32_t flags, enum behavior behavior,
                              struct err *err)
{
    struct stage *st = stage_add(tok, STAGE_CLASS);
    if (!st) {
        return too_many(err);
    }
    st->flags = flags;
    st->behavior = behavior;
    return OK;
}

static enum status load_split(struct tokenizer *tok, const struct json *node, struct err *err)
{
    struct stage *st = stage_add(tok, STAGE_SPLIT);
    if (!st) {
        return too_many(err);
    }
    TRY(pattern_load(json_get(node, "pattern"), &st->pattern, err));
    st->invert = json_get_bool(node, "invert", false);
    return read_behavior(node, &st->behavior, err);
}

static enum status load_byte_level(struct tokenizer *tok, const struct json *node, struct err *err)
{
    if (json_get_bool(node, "add_prefix_space", true) && !stage_add(tok, STAGE_PREFIX_SPACE)) {
        return too_many(err);
    }
    if (json_get_bool(node, "use_regex", true)) {
        struct stage *st = stage_add(tok, STAGE_SPLIT);
        if (!st) {
            return too_many(err);
        }
        TRY(regex_compile(GPT2_PATTERN, &st->pattern.regex, err));
    }
    if (!stage_add(tok, STAGE_BYTE_MAP)) {
        return too_many(err);
    }
    return OK;
}

static enum status read_scheme(const struct json *node, enum prepend_scheme *out, struct err *err)
{
    const char *scheme = json_get_string(node, "prepend_scheme");
    if (!scheme) {
        scheme = "always";
    }
    if (strcmp(scheme, "always") == 0) {
        *out = PREPEND_ALWAYS;
    } else if (strcmp(scheme, "first") == 0) {
        *out = PREPEND_FIRST;
    } else if (strcmp(scheme, "never") == 0) {
        *out = PREPEND_NEVER;
    } else {
        return err_set(err, ERR_UNSUPPORTED, "unknown prepend_scheme \"%s\"", scheme);
    }
    if (!json_get_bool(node, "add_prefix_space", true)) {
        *out = PREPEND_NEVER;
    }
    return OK;
}

static enum status load_metaspace(struct tokenizer *tok, const struct json *node, struct err *err)
{
    const char *replacement = json_get_string(node, "replacement");
    size_t n = length_or_0(replacement);
    if (n == 0 || utf8_valid_length(replacement, n) != n) {
        return err_set(err, ERR_FORMAT, "Metaspace needs a replacement of one character");
    }
    struct stage *st = stage_add(tok, STAGE_METASPACE);
    if (!st) {
        return too_many(err);
    }
    memcpy(st->replacement, replacement, n);
    st->replacement_bytes = n;
    TRY(read_scheme(node, &st->scheme, err));
    if (!json_get_bool(node, "split", true)) {
        return OK;
    }
    st = stage_add(tok, STAGE_SPLIT);
    if (!st) {
        return too_many(err);
    }
    st->pattern.literal = xstrdup(replacement);
    st->pattern.literal_bytes = n;
    st->behavior = MERGED_WITH_NEXT;
    return OK;
}

static enum status load_delimiter(struct tokenizer *tok, const struct json *node, struct err *err)
{
    const char *d = json_get_string(node, "delimiter");
    uint32_t cp;
    if (!d || utf8_decode(d, strlen(d), &cp) != strlen(d) || *d == '\0') {
        return err_set(err, ERR_FORMAT, "CharDelimiterSplit needs a delimiter of one character");
    }
    TRY(load_class(tok, 0, REMOVED, err));
    tok->stages[tok->n_stages - 1].code_point = cp;
    return OK;
}

static enum status load_fixed(struct tokenizer *tok, const struct json *node, struct err *err)
{
    int64_t length = json_get_int(node, "length", 5);
    struct stage *st = stage_add(tok, STAGE_FIXED);
    if (!st || length < 1) {
        return err_set(err, ERR_FORMAT, "FixedLength needs a length above 0");
    }
    st->length = (size_t)length;
    return OK;
}

/* A pre-tokenizer by its type's name in tokenizer.json; it becomes one stage or two. */
static enum status load_one(struct tokenizer *tok, const struct json *node, struct err *err)
{
    const char *type = json_get_string(node, "type");
    if (!type) {
        type = "";
    }
    if (strcmp(type, "Split") == 0) {
        return load_split(tok, node, err);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return load_byte_level(tok, node, err);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return load_metaspace(tok, node, err);
    }
    if (strcmp(type, "Digits") == 0) {
        bool single = json_get_bool(node, "individual_digits", false);
        return load_class(tok, U_NUMERIC, single ? ISOLATED : CONTIGUOUS, err);
    }
    if (strcmp(type, "Punctuation") == 0) {
        TRY(load_class(tok, U_BERT_PUNCT, ISOLATED, err));
        if (json_get(node, "behavior")) {
            return read_behavior(node, &tok->stages[tok->n_stages - 1].behavior, err);
        }
        return OK;
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        return load_class(tok, U_SPACE, REMOVED, err);
    }
    if (strcmp(type, "Whitespace") == 0) {
        if (!stage_add(tok, STAGE_WORDS)) {
            return too_many(err);
        }
        return OK;
    }
    if (strcmp(type, "BertPreTokenizer") == 0) {
        TRY(load_class(tok, U_SPACE, REMOVED, err));
        return load_class(tok, U_BERT_PUNCT, ISOLATED, err);
    }
    if (strcmp(type, "CharDelimiterSplit") == 0 || strcmp(type, "Delimiter") == 0) {
        return load_delimiter(tok, node, err);
    }
    if (strcmp(type, "FixedLength") == 0) {
        return load_fixed(tok, node, err);
    }
    return err_set(err, ERR_UNSUPPORTED, "the pre-tokenizer \"%s\" is not supported", type);
}

enum status stages_load(const struct json *node, struct tokenizer *tok, struct err *err)
{
    const struct json *list = json_get(node, "pretokenizers");
    const char *type = json_get_string(node, "type");
    if (!type || strcmp(type, "Sequence") != 0) {
        return load_one(tok, node, err);
    }
    for (const struct json *child = json_first(list); child; child = json_next(child)) {
        TRY(stages_load(child, tok, err)); // the JSON reader bounds the depth
    }
    return OK;
}

void stage_deinit(struct stage *st)
{
    pattern_deinit(&st->pattern);
}

/* ---- running ---- */

static enum status model_encode(const struct tokenizer *tok, struct scratch *sc, const char *s,
                                size_t n)
{
    switch (tok->model) {
    case MODEL_BPE: return bpe_encode(tok, sc, s, n);
    case MODEL_UNIGRAM: return unigram_encode(tok, sc, s, n);
    case MODEL_WORDPIECE:
    case MODEL_WORDLEVEL: break;
    }
    return wordpiece_encode(tok, sc, s, n);
}

static enum status run(const struct tokenizer *tok, struct scratch *sc, size_t k, const char *s,
                       size_t n, bool first);

/* Handles the matches of a split. It holds a piece back while its end is uncertain. */
struct cutter {
    const struct tokenizer *tok;
    struct scratch *sc;
    size_t k; // index of the next stage
    const char *s;
    bool first;
    enum behavior behavior;
    bool has_held, held_match;
    size_t held_start, held_end;
};

static enum status hand_on(struct cutter *c, size_t start, size_t end)
{
    return run(c->tok, c->sc, c->k, c->s + start, end - start, c->first && start == 0);
}

static enum status cutter_flush(struct cutter *c)
{
    if (!c->has_held) {
        return OK;
    }
    c->has_held = false;
    return hand_on(c, c->held_start, c->held_end);
}

static bool extends_held(const struct cutter *c, bool match)
{
    switch (c->behavior) {
    case CONTIGUOUS: return match == c->held_match;
    case MERGED_WITH_PREVIOUS: return match && !c->held_match;
    default: // MERGED_WITH_NEXT
        return !match && c->held_match;
    }
}

static enum status cutter_put(struct cutter *c, size_t start, size_t end, bool match)
{
    if (c->behavior == ISOLATED) {
        return hand_on(c, start, end);
    }
    if (c->behavior == REMOVED) {
        if (!match) {
            return hand_on(c, start, end);
        }
        return OK;
    }
    if (c->has_held && extends_held(c, match)) {
        c->held_end = end;
        c->held_match = match;
        return OK;
    }
    TRY(cutter_flush(c));
    c->has_held = true;
    c->held_match = match;
    c->held_start = start;
    c->held_end = end;
    return OK;
}

/* A fast path for the usual last stage: a hand-written splitter whose pieces go to the model
 * directly. */
static enum status run_fast(struct cutter *c, splitter_fn *next, size_t n)
{
    size_t start, end, covered = 0;
    while (next(c->s, n, covered, &start, &end) > 0) {
        if (covered < start) {
            TRY(bpe_encode(c->tok, c->sc, c->s + covered, start - covered));
        }
        TRY(bpe_encode(c->tok, c->sc, c->s + start, end - start));
        covered = end;
    }
    if (covered < n) {
        return bpe_encode(c->tok, c->sc, c->s + covered, n - covered);
    }
    return OK;
}

/* The pieces are the matches and the text between them. If this is the last stage before BPE, and
 * the pattern has a hand-written splitter, the pieces go to BPE directly. */
static enum status run_split(struct cutter *c, const struct stage *st, size_t n)
{
    const struct tokenizer *tok = c->tok;
    if (st->pattern.regex && st->pattern.regex->splitter && c->behavior == ISOLATED &&
        c->k == tok->n_stages && tok->model == MODEL_BPE && !c->sc->on_piece) {
        return run_fast(c, st->pattern.regex->splitter, n);
    }
    struct pattern_walk w;
    pattern_walk_init(&w, &st->pattern, c->s, n);
    size_t start, end, covered = 0;
    int rc;
    while ((rc = pattern_walk_next(&w, c->sc, &start, &end)) > 0) {
        if (covered < start) {
            TRY(cutter_put(c, covered, start, st->invert));
        }
        TRY(cutter_put(c, start, end, !st->invert));
        covered = end;
    }
    if (rc < 0) {
        return err_set(c->sc->err, ERR_LIMIT, "a split pattern took too many steps on this text");
    }
    if (covered < n) {
        TRY(cutter_put(c, covered, n, st->invert));
    }
    return cutter_flush(c);
}

/* Splits at single characters of given kinds, such as digits or punctuation. */
static enum status run_class(struct cutter *c, const struct stage *st, size_t n)
{
    size_t covered = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t width = unicode_next(c->s + i, &cp);
        if ((unicode_flags(cp) & st->flags) || cp == st->code_point) {
            if (covered < i) {
                TRY(cutter_put(c, covered, i, false));
            }
            TRY(cutter_put(c, i, i + width, true));
            covered = i + width;
        }
        i += width;
    }
    if (covered < n) {
        TRY(cutter_put(c, covered, n, false));
    }
    return cutter_flush(c);
}

static uint32_t word_kind(uint32_t cp)
{
    return unicode_flags(cp) & (U_RUST_WORD | U_SPACE);
}

/* Keeps words and runs of punctuation, and drops the white space between them. */
static enum status run_words(struct cutter *c, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t start = i;
        i += unicode_next(c->s + i, &cp);
        uint32_t kind = word_kind(cp);
        while (i < n) {
            size_t width = unicode_next(c->s + i, &cp);
            if (word_kind(cp) != kind) {
                break;
            }
            i += width;
        }
        if (kind != U_SPACE) {
            TRY(hand_on(c, start, i));
        }
    }
    return OK;
}

/* Splits into pieces of a fixed number of characters. */
static enum status run_fixed(struct cutter *c, const struct stage *st, size_t n)
{
    size_t start = 0, count = 0;
    for (size_t i = 0; i < n;) {
        i += unicode_lead_length((unsigned char)c->s[i]);
        if (++count == st->length || i == n) {
            TRY(hand_on(c, start, i));
            start = i;
            count = 0;
        }
    }
    return OK;
}

static void map_bytes(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++) {
        char utf8[4];
        buf_put(out, utf8, utf8_encode(unicode_byte_symbol((unsigned char)s[i]), utf8));
    }
}

/* Metaspace: replaces spaces, and prepends a replacement unless the text begins with one
 * already. */
static void map_spaces(const struct stage *st, const char *s, size_t n, bool first, struct buf *out)
{
    bool begins =
        (n >= st->replacement_bytes && memcmp(s, st->replacement, st->replacement_bytes) == 0) ||
        s[0] == ' ';
    if (!begins && (st->scheme == PREPEND_ALWAYS || (st->scheme == PREPEND_FIRST && first))) {
        buf_put(out, st->replacement, st->replacement_bytes);
    }
    for (size_t i = 0; i < n;) {
        const char *space = memchr(s + i, ' ', n - i);
        size_t plain = space ? (size_t)(space - s) - i : n - i;
        buf_put(out, s + i, plain);
        i += plain;
        if (space) {
            buf_put(out, st->replacement, st->replacement_bytes);
            i++;
        }
    }
}

/* Rewriting stages pass their whole text on. */
static enum status run_rewrite(const struct tokenizer *tok, struct scratch *sc, size_t k,
                               const char *s, size_t n, bool first)
{
    const struct stage *st = &tok->stages[k];
    struct buf *out = &sc->stage[k];
    buf_clear(out);
    if (st->kind == STAGE_BYTE_MAP) {
        map_bytes(s, n, out);
    } else if (st->kind == STAGE_METASPACE) {
        map_spaces(st, s, n, first, out);
    } else if (s[0] == ' ') {
        return run(tok, sc, k + 1, s, n, first);
    } else {
        buf_putc(out, ' ');
        buf_put(out, s, n);
    }
    if (out->failed) {
        return err_set(sc->err, ERR_LIMIT, "the text is too long");
    }
    return run(tok, sc, k + 1, out->data, out->n_bytes, first);
}

/* Runs stage k. Each stage passes its pieces to the next one, and the last stage to the model. */
static enum status run(const struct tokenizer *tok, struct scratch *sc, size_t k, const char *s,
                       size_t n, bool first)
{
    if (n == 0) {
        return OK;
    }
    if (k == tok->n_stages) {
        if (!sc->on_piece) {
            return model_encode(tok, sc, s, n);
        }
        sc->on_piece(sc->on_piece_arg, s, n);
        return OK;
    }
    const struct stage *st = &tok->stages[k];
    struct cutter c = {
        .tok = tok, .sc = sc, .k = k + 1, .s = s, .first = first, .behavior = st->behavior};
    switch (st->kind) {
    case STAGE_SPLIT: return run_split(&c, st, n);
    case STAGE_CLASS: return run_class(&c, st, n);
    case STAGE_WORDS: return run_words(&c, n);
    case STAGE_FIXED: return run_fixed(&c, st, n);
    case STAGE_PREFIX_SPACE:
    case STAGE_BYTE_MAP:
    case STAGE_METASPACE: break;
    }
    return run_rewrite(tok, sc, k, s, n, first);
}

enum status stages_run(const struct tokenizer *tok, struct scratch *sc, const char *s, size_t n,
                       bool first)
{
    return run(tok, sc, 0, s, n, first);
}
