// SPDX-License-Identifier: Apache-2.0
/* Measures the grammar library for scripts/bench_structured, which compares it with other libraries
 * in the same run. Without arguments it only refers to that script. With "TOKENIZER N_IDS", each
 * line of standard input is {"kind": "schema", "text": TEXT, "answers": [[ids], ...]}. Each line of
 * output has CPU times of the thread in us: for one compilation, for the masks and advances along
 * the answers, and for the masks of drafts in chains and trees. */
#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHAIN = 4, TREE_DEPTH = 4, TREE_WIDTH = 4, MAX_TIMES = 1 << 16 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

struct times {
    double *v;
    size_t n;
};

/* Drops times beyond MAX_TIMES: if the array grew, the measured memory would include it. */
static void put(struct times *t, double us)
{
    if (!t->v) {
        t->v = xcalloc(MAX_TIMES, sizeof *t->v);
    }
    if (t->n < MAX_TIMES) {
        t->v[t->n++] = us;
    }
}

static void print(const char *name, struct times *t)
{
    printf(", \"%s\": [", name);
    for (size_t i = 0; i < t->n; i++) {
        printf(i > 0 ? ", %.2f" : "%.2f", t->v[i]);
    }
    printf("]");
    free(t->v);
    *t = (struct times){0};
}

/* A grammar and its measured times. `again` is measured with the grammar's tables already filled,
 * as a second request finds them. */
struct subject {
    const struct grammar_source *source;
    const struct grammar_vocab *vocab;
    struct grammar *g;
    uint32_t *words;
    struct times fresh, seen, again, advance, chain, tree;
};

static bool allowed(const struct subject *s, int32_t id)
{
    return s->words[id / 32] >> (id % 32) & 1;
}

static size_t n_masks(const struct subject *s)
{
    struct grammar_stats stats;
    grammar_stats(s->g, &stats);
    return stats.n_masks;
}

static int32_t *ids_of(const struct json *list, size_t *n)
{
    int32_t *ids = xcalloc(json_count(list) + 1, sizeof *ids);
    *n = 0;
    for (const struct json *j = json_first(list); j; j = json_next(j)) {
        ids[(*n)++] = (int32_t)json_number(j, -1);
    }
    return ids;
}

/* Computes the mask and advances, for each token. In the first pass, the times of newly built masks
 * are recorded separately. */
static const char *follow(struct subject *s, const int32_t *ids, size_t n, bool first)
{
    struct grammar_state state = grammar_start(s->g);
    for (size_t i = 0; i <= n; i++) {
        size_t before = first ? n_masks(s) : 0;
        double begin = now_us();
        if (grammar_mask(s->g, state, s->words) != OK) {
            return "no mask";
        }
        double took = now_us() - begin;
        bool fresh = first && n_masks(s) > before;
        if (first) {
            put(fresh ? &s->fresh : &s->seen, took);
        } else {
            put(&s->again, took);
        }
        if (i == n) {
            if (grammar_may_end(s->g, state)) {
                return NULL;
            }
            return "the text may not end";
        }
        if (!allowed(s, ids[i])) {
            return "a token of a valid text is not allowed";
        }
        begin = now_us();
        if (grammar_advance_token(s->g, &state, ids[i]) != OK) {
            return "no advance";
        }
        put(&s->advance, now_us() - begin);
    }
    return NULL;
}

/* After each token, measures the masks of a chain: one for each of the next CHAIN drafts, and one
 * for the row after them. */
static void chains(struct subject *s, const int32_t *ids, size_t n)
{
    struct grammar_state state = grammar_start(s->g);
    for (size_t i = 0; i + CHAIN <= n; i++) {
        struct grammar_state at = state;
        double begin = now_us();
        for (size_t k = 0; k <= CHAIN; k++) {
            grammar_mask(s->g, at, s->words);
            if (k < CHAIN) {
                grammar_advance_token(s->g, &at, ids[i + k]);
            }
        }
        put(&s->chain, now_us() - begin);
        grammar_advance_token(s->g, &state, ids[i]);
    }
}

/* The same for a tree of drafts. Each of its TREE_DEPTH levels has the answer's token and the first
 * other allowed tokens. */
static void trees(struct subject *s, const int32_t *ids, size_t n)
{
    struct grammar_state state = grammar_start(s->g);
    for (size_t i = 0; i + TREE_DEPTH <= n; i++) {
        struct grammar_state at = state;
        int32_t beside[TREE_DEPTH][TREE_WIDTH];
        int32_t n_beside[TREE_DEPTH] = {0};
        for (size_t d = 0; d < TREE_DEPTH; d++) {
            grammar_mask(s->g, at, s->words);
            int32_t n_ids = (int32_t)(grammar_mask_words(s->vocab) * 32);
            for (int32_t id = 0; id < n_ids && n_beside[d] < TREE_WIDTH - 1; id++) {
                if (allowed(s, id) && id != ids[i + d] && !grammar_is_end(s->g, id)) {
                    beside[d][n_beside[d]++] = id;
                }
            }
            grammar_advance_token(s->g, &at, ids[i + d]);
        }
        at = state;
        double begin = now_us();
        for (size_t d = 0; d < TREE_DEPTH; d++) {
            grammar_mask(s->g, at, s->words);
            for (int32_t k = 0; k < n_beside[d]; k++) {
                struct grammar_state to = at;
                grammar_advance_token(s->g, &to, beside[d][k]);
                grammar_mask(s->g, to, s->words);
            }
            grammar_advance_token(s->g, &at, ids[i + d]);
        }
        grammar_mask(s->g, at, s->words);
        put(&s->tree, now_us() - begin);
        grammar_advance_token(s->g, &state, ids[i]);
    }
}

static enum status compile(struct subject *s, double *took, struct err *err)
{
    double begin = now_us();
    enum status st = grammar_compile(s->source, NULL, s->vocab, &s->g, err);
    *took = now_us() - begin;
    return st;
}

/* The tables are reset before the drafts, so that they are in the same state as for the first
 * answer. */
static const char *measure(struct subject *s, const struct json *answers)
{
    const char *failed = NULL;
    struct err err;
    double unused;
    for (int pass = 0; pass < 2 && !failed; pass++) {
        for (const struct json *a = json_first(answers); a && !failed; a = json_next(a)) {
            size_t n;
            int32_t *ids = ids_of(a, &n);
            failed = follow(s, ids, n, pass == 0);
            free(ids);
        }
    }
    struct grammar_stats stats;
    grammar_stats(s->g, &stats);
    printf(", \"bytes\": %zu, \"masks\": %zu", stats.bytes, stats.n_masks);
    void (*const drafts[])(struct subject *, const int32_t *, size_t) = {chains, trees};
    for (size_t k = 0; k < 2 && !failed; k++) {
        grammar_free(s->g);
        if (compile(s, &unused, &err) != OK) {
            return "compiled once only";
        }
        for (const struct json *a = json_first(answers); a; a = json_next(a)) {
            size_t n;
            int32_t *ids = ids_of(a, &n);
            drafts[k](s, ids, n);
            free(ids);
        }
    }
    return failed;
}

/* If a grammar does not compile, prints an error line, since libraries are also compared by what
 * they support. */
static void run_line(const char *line, size_t n_bytes, const struct grammar_vocab *vocab)
{
    struct json_limits limits = {200, 10000000};
    struct json *j = NULL;
    struct err err = {""};
    if (json_parse(line, n_bytes, &limits, &j, &err) != OK) {
        printf("{\"error\": \"not JSON\"}\n");
        return;
    }
    const char *text = json_get_string(j, "text"), *kind = json_get_string(j, "kind");
    struct grammar_source source = {.text = or_empty(text), .n_bytes = text ? strlen(text) : 0};
    while (kind && source.kind < GRAMMAR_N_KINDS - 1 &&
           strcmp(grammar_kind_names[source.kind], kind) != 0) {
        source.kind++;
    }
    struct subject s = {.source = &source,
                        .vocab = vocab,
                        .words = xcalloc(grammar_mask_words(vocab) + 1, sizeof(uint32_t))};
    double took;
    if (compile(&s, &took, &err) != OK) {
        printf("{\"error\": \"refused\", \"compile_us\": %.1f}\n", took);
    } else {
        printf("{\"compile_us\": %.1f", took);
        const char *failed = measure(&s, json_get(j, "answers"));
        print("fresh_us", &s.fresh);
        print("seen_us", &s.seen);
        print("again_us", &s.again);
        print("advance_us", &s.advance);
        print("chain_us", &s.chain);
        print("tree_us", &s.tree);
        if (failed) {
            printf(", \"error\": \"%s\"", failed);
        }
        printf("}\n");
        grammar_free(s.g);
    }
    fflush(stdout);
    free(s.words);
    json_free(j);
}

/* The number of ids is an argument because models have more rows than their tokenizer has
 * tokens. */
int main(int argc, char **argv)
{
    if (argc != 3) {
        printf("grammars: scripts/bench_structured runs this and compares it with others\n");
        return 0;
    }
    struct tokenizer *tok;
    struct grammar_vocab *vocab;
    struct err err = {""};
    double begin = now_us();
    int32_t n_ids = (int32_t)atoi(argv[2]), end = n_ids - 1;
    if (tokenizer_load(argv[1], &tok, &err) != OK ||
        grammar_vocab_open(tok, n_ids, &end, 1, &vocab, &err) != OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    fprintf(stderr, "vocabulary and tokenizer: %.0f ms\n", (now_us() - begin) * 1e-3);
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        run_line(line, (size_t)n, vocab);
    }
    free(line);
    grammar_vocab_free(vocab);
    tokenizer_free(tok);
    return 0;
}
