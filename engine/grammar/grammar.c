// SPDX-License-Identifier: Apache-2.0
/* The interface of grammars: compiling, states, masks, and what happens when tables are full. */
#include "engine/grammar/grammar.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/utf8.h"
#include "engine/grammar/masks.h"
#include "engine/grammar/object.h"
#include "engine/grammar/parsers.h"
#include "engine/grammar/vocab_split.h"

#include <stdlib.h>
#include <string.h>

/* A compiled grammar. Expressions up to `mark` are the result of compiling. Later expressions, and
 * all states, are made while the grammar is used, and may be dropped. */
struct grammar {
    struct exprs x;
    struct rules rules;
    struct automaton a;
    struct masks m;
    bool has_masks;
    struct grammar_limits limits;
    // End of the result of compiling, which is kept when the tables are cleared.
    struct exprs_mark mark;
    uint32_t start;
    uint32_t epoch;
    uint64_t compile_work, most_step_work;
};

/* ---- compiling ---- */

/* A limit of 0 means the default. Schemas consist mostly of names and punctuation, so they may be
 * larger than other sources. They may not nest as deeply, because nesting costs them more stack. */
static struct grammar_limits with_defaults(const struct grammar_limits *given,
                                           enum grammar_kind kind)
{
    struct grammar_limits l = {0};
    if (given) {
        l = *given;
    }
    bool json = grammar_is_json(kind);
    size_t text = json ? 1 << 20 : 256 << 10;
    int depth = json ? 128 : 200;
    if (!l.max_text_bytes) {
        l.max_text_bytes = text;
    }
    if (!l.max_depth) {
        l.max_depth = depth;
    }
    if (!l.max_repeat) {
        l.max_repeat = 1000000;
    }
    if (!l.max_nodes) {
        l.max_nodes = 100000;
    }
    if (!l.max_compile_work) {
        l.max_compile_work = 3000000;
    }
    if (!l.max_step_work) {
        l.max_step_work = 400000;
    }
    if (!l.max_items) {
        l.max_items = 2000;
    }
    if (!l.max_compile_bytes) {
        l.max_compile_bytes = 64 << 20;
    }
    if (!l.max_table_bytes) {
        l.max_table_bytes = 16 << 20;
    }
    if (!l.max_mask_bytes) {
        l.max_mask_bytes = 4 << 20;
    }
    return l;
}

static enum status parse_regex(struct compile *c, uint32_t *start)
{
    return regex_language(c->x, c->source->text, c->source->n_bytes, REGEX_UNICODE,
                          regex_limits_of(c->limits), start, c->err);
}

static grammar_parser *const parsers[GRAMMAR_N_KINDS] = {
    [GRAMMAR_SCHEMA] = schema_parse, [GRAMMAR_REGEX] = parse_regex, [GRAMMAR_GBNF] = gbnf_parse,
    [GRAMMAR_LARK] = lark_parse,     [GRAMMAR_TAGS] = tags_parse,
};

/* Checks that do not depend on the kind of grammar come first: size and UTF-8, which the parsers
 * rely on. */
static enum status parse(struct compile *c, uint32_t *start)
{
    const struct grammar_source *s = c->source;
    if ((unsigned)s->kind >= GRAMMAR_N_KINDS) {
        return err_set(c->err, ERR_INVALID, "unknown kind of grammar");
    }
    if (s->n_bytes > c->limits->max_text_bytes) {
        return err_set(c->err, ERR_LIMIT, "the %s has %zu bytes, more than the limit of %zu",
                       grammar_kind_names[s->kind], s->n_bytes, c->limits->max_text_bytes);
    }
    size_t bad = utf8_check(s->text, s->n_bytes);
    if (bad != s->n_bytes) {
        return err_set(c->err, ERR_INVALID, "the %s is not UTF-8 (byte %zu)",
                       grammar_kind_names[s->kind], bad);
    }
    TRY(parsers[s->kind](c, start));
    return rules_finish(c->x, c->rules, start, c->err);
}

/* Memory and work are limited, because sources come from requests. */
enum status grammar_compile(const struct grammar_source *source,
                            const struct grammar_limits *limits, const struct grammar_vocab *vocab,
                            struct grammar **out, struct err *err)
{
    struct grammar *g = xcalloc(1, sizeof *g);
    *out = NULL;
    g->limits = with_defaults(limits, source->kind);
    exprs_init(&g->x, g->limits.max_compile_bytes, g->limits.max_compile_work);
    struct compile c = {.x = &g->x,
                        .rules = &g->rules,
                        .source = source,
                        .limits = &g->limits,
                        .parsers = parsers,
                        .vocab = vocab,
                        .err = err};
    enum status st = parse(&c, &g->start);
    if (st != OK && g->x.failed) {
        st = err_set(err, ERR_LIMIT, "the %s is too large or too complex",
                     grammar_kind_names[source->kind]);
    }
    if (st != OK) {
        grammar_free(g);
        return st;
    }
    g->compile_work = g->x.work;
    g->x.n_classes = 0; // recompute the classes, because objects have added bytes of names
    exprs_classify(&g->x);
    g->x.classes_final = true;
    g->mark = exprs_mark(&g->x);
    g->x.max_bytes = exprs_bytes(&g->x) + g->limits.max_table_bytes;
    automaton_init(&g->a, &g->x, &g->rules, g->limits.max_items, g->limits.max_table_bytes);
    if (vocab) {
        masks_init(&g->m, vocab, &g->a, g->limits.max_mask_bytes);
        g->has_masks = true;
    }
    g->x.work = 0;
    g->epoch = 1;
    *out = g;
    return OK;
}

void grammar_free(struct grammar *g)
{
    if (!g) {
        return;
    }
    if (g->has_masks) {
        masks_deinit(&g->m);
    }
    if (g->a.x) {
        automaton_deinit(&g->a);
    }
    for (uint32_t i = 0; i < g->x.n_objects; i++) {
        object_free(g->x.objects[i]);
    }
    exprs_deinit(&g->x);
    rules_deinit(&g->rules);
    free(g);
}

/* ---- states ---- */

/* Drops everything that was made during use. States of the old epoch become invalid. */
static void empty_tables(struct grammar *g)
{
    if (g->has_masks) {
        masks_reset(&g->m);
    }
    automaton_reset(&g->a);
    exprs_reset(&g->x, g->mark);
    g->epoch++;
}

/* Called before any operation that may add to the tables. */
static void begin(struct grammar *g)
{
    g->most_step_work = greater(g->x.work, g->most_step_work);
    g->x.work = 0;
    g->x.max_work = g->limits.max_step_work;
    g->x.depth = 0;
    g->x.failed = false;
}

/* The status after a limit was exceeded. If the tables are full, they are cleared, and the caller
 * retries with a fold; too much work is an error of the text. */
static enum status over(struct grammar *g)
{
    bool work = g->x.work > g->x.max_work;
    bool full = exprs_bytes(&g->x) > g->x.max_bytes || automaton_bytes(&g->a) > g->a.max_bytes;
    g->x.failed = false;
    if (full) {
        empty_tables(g);
    }
    if (full && !work) {
        return ERR_BUSY;
    }
    return ERR_LIMIT;
}

static uint32_t start_state(struct grammar *g)
{
    struct item it = {g->start, STACK_ROOT};
    return automaton_state(&g->a, &it, 1);
}

/* May clear the tables, so a caller that holds states must compare epochs. */
struct grammar_state grammar_start(struct grammar *g)
{
    begin(g);
    uint32_t id = start_state(g);
    if (g->x.failed) { // the tables were full, and have room now
        over(g);
        begin(g);
        id = start_state(g);
    }
    return (struct grammar_state){id, g->epoch};
}

/* *id changes only if all bytes are allowed. */
static enum status advance(struct grammar *g, uint32_t *id, const char *bytes, size_t n)
{
    uint32_t to = *id;
    for (size_t i = 0; i < n && to != STATE_DEAD; i++) {
        to = automaton_step(&g->a, to, (uint8_t)bytes[i]);
    }
    if (g->x.failed) {
        return over(g);
    }
    if (to == STATE_DEAD) {
        return ERR_INVALID;
    }
    *id = to;
    return OK;
}

enum status grammar_advance(struct grammar *g, struct grammar_state *state, const char *bytes,
                            size_t n_bytes)
{
    if (state->epoch != g->epoch) {
        return ERR_BUSY;
    }
    begin(g);
    return advance(g, &state->id, bytes, n_bytes);
}

/* Tries twice: if the tables fill up on the way, the second try begins with empty tables. If those
 * do not suffice either, the text is too complex. */
enum status grammar_fold(struct grammar *g, const char *bytes, size_t n_bytes,
                         struct grammar_state *state)
{
    enum status st = ERR_LIMIT;
    for (int tries = 0; tries < 2; tries++) {
        struct grammar_state s = grammar_start(g);
        size_t at = 0;
        do { // in pieces, each with a separate limit of work
            size_t n = lesser(n_bytes - at, 64);
            begin(g);
            st = advance(g, &s.id, bytes + at, n);
            at += n;
        } while (st == OK && at < n_bytes);
        if (st != ERR_BUSY) {
            if (st == OK) {
                *state = s;
            }
            return st;
        }
    }
    return ERR_LIMIT;
}

static bool token_of(const struct grammar *g, int32_t id, const char **bytes, size_t *n)
{
    const struct grammar_vocab *v = g->m.vocab;
    if (!g->has_masks || id < 0 || id >= v->n_ids || v->text_n[id] == 0) {
        return false;
    }
    *bytes = v->text + v->text_at[id];
    *n = v->text_n[id];
    return true;
}

/* Special tokens without text in this vocabulary are never allowed. */
enum status grammar_advance_token(struct grammar *g, struct grammar_state *state, int32_t id)
{
    const char *bytes;
    size_t n;
    if (token_of(g, id, &bytes, &n)) {
        return grammar_advance(g, state, bytes, n);
    }
    return ERR_INVALID;
}

/* Like grammar_fold, but for tokens. The bytes of special tokens are their marks. */
enum status grammar_fold_tokens(struct grammar *g, const int32_t *ids, size_t n_ids,
                                struct grammar_state *state)
{
    for (int tries = 0; tries < 2; tries++) {
        struct grammar_state s = grammar_start(g);
        enum status st = OK;
        for (size_t i = 0; st == OK && i < n_ids; i++) {
            st = grammar_advance_token(g, &s, ids[i]);
        }
        if (st != ERR_BUSY) {
            if (st == OK) {
                *state = s;
            }
            return st;
        }
    }
    return ERR_LIMIT;
}

const struct grammar_vocab *grammar_vocabulary(const struct grammar *g)
{
    return g->has_masks ? g->m.vocab : NULL;
}

const char *grammar_token_bytes(const struct grammar_vocab *v, int32_t id, size_t *n_bytes)
{
    bool known = id >= 0 && id < v->n_ids && v->text_n[id] > 0 &&
                 (uint8_t)v->text[v->text_at[id]] != VOCAB_MARK;
    *n_bytes = known ? v->text_n[id] : 0;
    return known ? v->text + v->text_at[id] : NULL;
}

void grammar_mask_text(const struct grammar_vocab *v, uint32_t *words)
{
    memset(words, 0xff, v->n_words * sizeof *words);
    for (size_t i = 0; i < v->n_end_ids; i++) {
        words[v->end_ids[i] / 32] &= ~(1u << (v->end_ids[i] % 32));
    }
}

/* End ids are not text. They are allowed where the text may end. */
bool grammar_is_end(const struct grammar *g, int32_t id)
{
    const struct grammar_vocab *v = grammar_vocabulary(g);
    for (size_t i = 0; v && i < v->n_end_ids; i++) {
        if (v->end_ids[i] == id) {
            return true;
        }
    }
    return false;
}

bool grammar_may_end(struct grammar *g, struct grammar_state state)
{
    return state.epoch == g->epoch && automaton_may_end(&g->a, state.id);
}

/* One bit for each id. On any error all bits are 0, so that nothing is allowed by mistake. */
enum status grammar_mask(struct grammar *g, struct grammar_state state, uint32_t *words)
{
    if (!g->has_masks) {
        return ERR_UNSUPPORTED;
    }
    const struct grammar_vocab *v = g->m.vocab;
    if (state.epoch != g->epoch) {
        memset(words, 0, v->n_words * 4);
        return ERR_BUSY;
    }
    begin(g);
    masks_get(&g->m, state.id, words);
    if (g->x.failed) {
        memset(words, 0, v->n_words * 4);
        return over(g);
    }
    for (size_t i = 0; i < v->n_end_ids && automaton_may_end(&g->a, state.id); i++) {
        words[v->end_ids[i] >> 5] |= 1u << (v->end_ids[i] & 31);
    }
    return OK;
}

/* Checks a single token without computing the mask, by stepping through the automaton byte by
 * byte. */
enum status grammar_allows(struct grammar *g, struct grammar_state state, int32_t id, bool *allowed)
{
    *allowed = false;
    if (!g->has_masks) {
        return ERR_UNSUPPORTED;
    }
    if (state.epoch != g->epoch) {
        return ERR_BUSY;
    }
    if (grammar_is_end(g, id)) {
        *allowed = grammar_may_end(g, state);
        return OK;
    }
    enum status st = grammar_advance_token(g, &state, id);
    *allowed = st == OK;
    return st == ERR_INVALID ? OK : st;
}

/* The byte of a class that has only one; otherwise -1. */
static int only_member(const struct exprs *x, int c)
{
    int first = x->class_byte[c];
    for (int b = 0; b < 256; b++) {
        if (x->class_of[b] == c && b != first) {
            return -1;
        }
    }
    return first;
}

/* The byte that must follow if there is only one; otherwise -1. */
static int only_byte(struct grammar *g, uint32_t id)
{
    int only = -1;
    for (int c = 0; c < g->x.n_classes; c++) {
        if (automaton_step(&g->a, id, g->x.class_byte[c]) != STATE_DEAD) {
            if (only >= 0) {
                return -1;
            }
            only = c;
        }
    }
    if (only >= 0) {
        return only_member(&g->x, only);
    }
    return -1;
}

/* The bytes that must follow, up to a choice or a possible end. */
size_t grammar_forced(struct grammar *g, struct grammar_state state, char *bytes, size_t max)
{
    size_t n = 0;
    if (state.epoch != g->epoch) {
        return 0;
    }
    begin(g);
    while (n < max && !automaton_may_end(&g->a, state.id)) {
        int b = only_byte(g, state.id);
        if (b < 0 || g->x.failed) {
            break;
        }
        bytes[n++] = (char)b;
        state.id = automaton_step(&g->a, state.id, (uint8_t)b);
    }
    if (g->x.failed) {
        over(g);
        n = 0;
    }
    return n;
}

/* Forced text as tokens, if there is enough of it for drafts to be worth it. */
size_t grammar_forced_tokens(struct grammar *g, struct grammar_state state, size_t min_bytes,
                             int32_t *ids, size_t max)
{
    enum { MOST = 256 };
    char bytes[MOST];
    size_t n = grammar_forced(g, state, bytes, MOST);
    if (n >= min_bytes && g->has_masks) {
        return vocab_split(g->m.vocab, bytes, n, ids, max);
    }
    return 0;
}

void grammar_stats(const struct grammar *g, struct grammar_stats *stats)
{
    *stats = (struct grammar_stats){
        .compile_work = g->compile_work,
        .most_step_work = greater(g->x.work, g->most_step_work),
        .bytes =
            exprs_bytes(&g->x) + automaton_bytes(&g->a) + (g->has_masks ? masks_bytes(&g->m) : 0),
        .n_states = g->a.kernels.n,
        .n_expressions = g->x.n,
        .n_rules = g->rules.n,
        .n_masks = g->has_masks ? g->m.n : 0,
    };
}
