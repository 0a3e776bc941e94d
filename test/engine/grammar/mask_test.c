// SPDX-License-Identifier: Apache-2.0
/* Masks compared with slow references that use no automata: random regular expressions with a
 * matcher of their trees, random context-free grammars with the sets of their short texts, over
 * random small vocabularies. A token is allowed if and only if the text with it can be
 * completed. */
#include "test/engine/grammar/random.h"
#include "test/engine/grammar/rows.h"

#include <string.h>

enum { N_TOKENS = 40, N_NODES = 40 };

/* ---- a small vocabulary over the letters a to c ---- */

static char token_text[N_TOKENS][8];

/* Single letters and longer tokens, so that a token may span several symbols. */
static struct grammar_vocab *random_vocab(uint32_t letters)
{
    struct grammar_token tokens[N_TOKENS + 1];
    const int32_t end = N_TOKENS;
    struct grammar_vocab *v;
    struct err err;
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        uint32_t n = i < letters ? 1 : 1 + draw(4);
        for (uint32_t k = 0; k < n; k++) {
            token_text[i][k] = (char)('a' + (i < letters ? i : draw(letters)));
        }
        token_text[i][n] = 0;
        tokens[i] = (struct grammar_token){token_text[i], n, false};
    }
    tokens[N_TOKENS] = (struct grammar_token){"", 0, false};
    CHECK_EQ(grammar_vocab_make(tokens, N_TOKENS + 1, &end, 1, &v, &err), OK);
    return v;
}

/* Compares the state after `text` with what `viable` and `accepted` say about longer texts. */
static void check_state(struct grammar *g, const char *text, bool (*viable)(const char *),
                        bool (*accepted)(const char *), const char *source)
{
    struct grammar_state s = grammar_start(g);
    uint32_t words[2] = {0};
    bool ok = grammar_advance(g, &s, text, strlen(text)) == OK;
    if (ok != viable(text)) {
        CHECK_FAIL("seed %d: %s: \"%s\" is%s the beginning of a text", (int)seed, source, text,
                   ok ? " not" : "");
        return;
    }
    if (!ok) {
        return;
    }
    CHECK_EQ(grammar_fold(g, text, strlen(text), &s), OK); // the search may have filled the tables
    CHECK_EQ(grammar_mask(g, s, words), OK);
    for (uint32_t i = 0; i <= N_TOKENS; i++) {
        char longer[64];
        bool allowed = words[i >> 5] >> (i & 31) & 1, alone;
        snprintf(longer, sizeof longer, "%s%s", text, i < N_TOKENS ? token_text[i] : "");
        bool right = i < N_TOKENS ? viable(longer) : accepted(text);
        CHECK_EQ(grammar_fold(g, text, strlen(text), &s), OK);
        CHECK_EQ(grammar_allows(g, s, (int32_t)i, &alone), OK);
        n_triples++;
        if (allowed != right || alone != right) {
            CHECK_FAIL("seed %d: %s: token \"%s\" after \"%s\" should%s be allowed", (int)seed,
                       source, i < N_TOKENS ? token_text[i] : "end", text, right ? "" : " not");
        }
    }
}

/* ---- regular expressions: a tree, and where its matches end ---- */

/* A regular expression as a tree, which a simple matcher can follow. */
struct node {
    enum { CLASS, SEQ, ALT, REP } kind;
    uint32_t letters; // CLASS: bits
    int child[3], n;
    uint32_t lo, hi; // REP; hi 99: no bound
} tree[N_NODES];
static int n_tree;
static const char *subject;
static size_t n_subject;
static bool open_end; // a match could go on after the end of the text

/* The set of positions at which a match from position i can end. */
static uint64_t ends(int at, size_t i)
{
    const struct node *p = &tree[at];
    uint64_t out = 0, now = 1ull << i;
    switch (p->kind) {
    case CLASS:
        open_end |= i == n_subject;
        if (i < n_subject && (p->letters >> (subject[i] - 'a') & 1)) {
            return 1ull << (i + 1);
        }
        return 0;
    case ALT:
        for (int k = 0; k < p->n; k++) {
            out |= ends(p->child[k], i);
        }
        return out;
    case SEQ:
    case REP: break;
    }
    uint32_t most = p->kind == SEQ ? (uint32_t)p->n : p->hi;
    for (uint32_t k = 0; now && k <= most; k++) {
        if (p->kind == SEQ ? k == most : k >= p->lo) {
            out |= now;
        }
        uint64_t next = 0;
        for (size_t j = 0; k < most && j <= n_subject; j++) {
            if (now >> j & 1) {
                next |= ends(p->child[p->kind == SEQ ? k : 0], j);
            }
        }
        if (p->kind == REP && p->hi == 99 && k > p->lo + n_subject + 1) {
            break;
        }
        now = next;
    }
    return out;
}

static bool regex_accepts(const char *s)
{
    subject = s;
    n_subject = strlen(s);
    open_end = false;
    return ends(n_tree - 1, 0) >> n_subject & 1;
}

static bool regex_viable(const char *s)
{
    return regex_accepts(s) || open_end;
}

/* Adds a random tree of at most this depth; writes it as text. */
static int random_tree(int depth, char *out)
{
    struct node n = {.kind = depth == 0 || n_tree > N_NODES - 12 ? CLASS : draw(4)};
    char part[3][800];
    static const int fewest[] = {[CLASS] = 0, [SEQ] = 1, [ALT] = 1, [REP] = 1};
    n.n = fewest[n.kind] + (n.kind == SEQ || n.kind == ALT ? (int)draw(3) : 0);
    for (int k = 0; k < n.n; k++) {
        n.child[k] = random_tree(depth - 1, part[k]);
    }
    *out = 0;
    if (n.kind == CLASS) {
        n.letters = 1 + draw(7);
        sprintf(out, "[%s%s%s]", n.letters & 1 ? "a" : "", n.letters & 2 ? "b" : "",
                n.letters & 4 ? "c" : "");
    }
    for (int k = 0; k < n.n && n.kind != REP; k++) {
        sprintf(out + strlen(out), "%s(%s)", k > 0 && n.kind == ALT ? "|" : "", part[k]);
    }
    if (n.kind == REP) {
        // counts of a class may be large, since the matcher is fast there
        bool large = tree[n.child[0]].kind == CLASS && draw(2);
        n.lo = draw(large ? 14 : 3);
        n.hi = draw(2) ? 99 : n.lo + draw(large ? 20 : 4);
        if (n.hi == 99) {
            sprintf(out, "(%s){%u,}", part[0], n.lo);
        } else {
            sprintf(out, "(%s){%u,%u}", part[0], n.lo, n.hi);
        }
    }
    tree[n_tree] = n;
    return n_tree++;
}

/* A text that can be completed, made of allowed tokens. */
static void random_walk(struct grammar *g, char *text, size_t max)
{
    for (int steps = (int)draw(6); steps > 0; steps--) {
        const char *more = token_text[draw(N_TOKENS)];
        struct grammar_state s = grammar_start(g);
        size_t n = strlen(text);
        if (n + strlen(more) < max) {
            strcat(text, more);
            if (grammar_advance(g, &s, text, strlen(text)) != OK && draw(4) > 0) {
                text[n] = 0;
            }
        }
    }
}

/* For every prefix and token, the mask is compared with the matcher. */
TEST(regular_expressions_against_a_matcher_of_trees)
{
    const uint64_t from = first_seed();
    const int64_t before = n_triples;
    for (seed = from; seed < from + n_rounds(); seed++) {
        char source[4000];
        struct grammar *g;
        struct err err = {{0}};
        draws = 0;
        n_tree = 0;
        random_tree(3, source);
        struct grammar_vocab *v = random_vocab(3);
        struct grammar_source src = {
            .kind = GRAMMAR_REGEX, .text = source, .n_bytes = strlen(source)};
        enum status st = grammar_compile(&src, NULL, v, &g, &err);
        if (st != OK) {
            CHECK_FAIL("seed %d: %s: %s", (int)seed, source, err.text);
            grammar_vocab_free(v);
            continue;
        }
        for (int k = 0; k < 12; k++) {
            char text[40] = "";
            random_walk(g, text, 20);
            check_state(g, text, regex_viable, regex_accepts, source);
        }
        grammar_free(g);
        grammar_vocab_free(v);
    }
    tell("regular expression", before);
}

/* ---- context-free grammars: the set of all short texts of each rule ---- */

enum { N_RULES = 4, SHORT = 9, N_SHORT = (2 << SHORT) - 1 };

/* The rules of a random grammar. */
static struct {
    int n;
    struct {
        int n, symbol[3]; // 0, 1: a, b; else a rule, plus 2
    } alt[3];
} rules[N_RULES];
static bool language[N_RULES][N_SHORT], begins[N_SHORT];

/* The number of a text over a and b, when all are sorted by length. */
static size_t index_of(const char *s, size_t n)
{
    size_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        bits = bits * 2 + (size_t)(s[i] - 'a');
    }
    return ((size_t)1 << n) - 1 + bits;
}

/* The text with this number: the inverse of index_of. */
static void text_of(size_t index, char *s)
{
    size_t n = 0;
    while (((size_t)2 << n) - 1 <= index) {
        n++;
    }
    index -= ((size_t)1 << n) - 1;
    for (size_t i = 0; i < n; i++) {
        s[i] = (char)('a' + (index >> (n - 1 - i) & 1));
    }
    s[n] = 0;
}

/* Whether the symbols of an alternative from the k-th on derive the text. */
static bool derives(int rule, int alt, int k, const char *s, size_t n)
{
    if (k == rules[rule].alt[alt].n) {
        return n == 0;
    }
    int symbol = rules[rule].alt[alt].symbol[k];
    if (symbol < 2) {
        return n > 0 && s[0] == 'a' + symbol && derives(rule, alt, k + 1, s + 1, n - 1);
    }
    for (size_t m = 0; m <= n; m++) {
        if (language[symbol - 2][index_of(s, m)] && derives(rule, alt, k + 1, s + m, n - m)) {
            return true;
        }
    }
    return false;
}

/* The language of each rule up to a length, as a fixed point; and all beginnings of its
 * texts. */
static void find_languages(void)
{
    memset(language, 0, sizeof language);
    memset(begins, 0, sizeof begins);
    for (bool more = true; more;) {
        more = false;
        for (int r = 0; r < N_RULES; r++) {
            for (size_t i = 0; i < N_SHORT; i++) {
                char s[SHORT + 1];
                text_of(i, s);
                for (int a = 0; a < rules[r].n && !language[r][i]; a++) {
                    language[r][i] = derives(r, a, 0, s, strlen(s));
                    more |= language[r][i];
                }
            }
        }
    }
    for (size_t i = 0; i < N_SHORT; i++) {
        char s[SHORT + 1];
        text_of(i, s);
        for (size_t n = 0; language[0][i] && n <= strlen(s); n++) {
            begins[index_of(s, n)] = true;
        }
    }
}

/* Rules may be empty and recursive in any way. */
static void random_rules(char *out)
{
    static const char *const names[] = {"root", "x", "y", "z"}, *const letters[] = {"a", "b"};
    *out = 0;
    for (int r = 0; r < N_RULES; r++) {
        rules[r].n = 1 + (int)draw(3);
        sprintf(out + strlen(out), "%s ::= ", names[r]);
        for (int a = 0; a < rules[r].n; a++) {
            rules[r].alt[a].n = (int)draw(4);
            sprintf(out + strlen(out), "%s\"\"", a > 0 ? " | " : "");
            for (int k = 0; k < rules[r].alt[a].n; k++) {
                int symbol = draw(2) ? (int)draw(2) : 2 + (int)draw(N_RULES);
                rules[r].alt[a].symbol[k] = symbol;
                sprintf(out + strlen(out), symbol < 2 ? " \"%s\"" : " %s",
                        symbol < 2 ? letters[symbol] : names[symbol - 2]);
            }
        }
        strcat(out, "\n");
    }
}

static struct grammar *present;

static bool grammar_accepts_short(const char *s)
{
    return language[0][index_of(s, strlen(s))];
}

/* Whether the text can be completed. If no text in the list of short texts completes it, this
 * searches for a longer accepted text with the grammar itself, which is known to be right for all
 * short texts. */
static bool grammar_viable(const char *s)
{
    static struct grammar_state queue[4000];
    static size_t length[4000];
    if (begins[index_of(s, strlen(s))]) {
        return true;
    }
    size_t n = 0;
    queue[0] = grammar_start(present);
    length[0] = strlen(s);
    if (grammar_advance(present, &queue[0], s, strlen(s)) != OK) {
        return false;
    }
    n = 1;
    for (size_t i = 0; i < n; i++) {
        if (grammar_may_end(present, queue[i])) {
            return length[i] > SHORT; // a short one would be in the list: the grammar is wrong
        }
        if (n >= 3998) {
            return true; // too far to see
        }
        for (int c = 0; c < 2; c++) {
            queue[n] = queue[i];
            length[n] = length[i] + 1;
            enum status st = grammar_advance(present, &queue[n], c ? "b" : "a", 1);
            n += st == OK;
            if (st != OK && st != ERR_INVALID) {
                return true; // too far to see
            }
        }
    }
    return false;
}

/* The same comparison as for regular expressions, with sets of texts in place of the matcher. */
TEST(context_free_grammars_against_the_sets_of_their_short_texts)
{
    const uint64_t from = first_seed();
    const int64_t before = n_triples;
    uint64_t empty = 0;
    for (seed = from; seed < from + n_rounds(); seed++) {
        char source[2000];
        struct err err = {{0}};
        draws = 0;
        random_rules(source);
        find_languages();
        struct grammar_vocab *v = random_vocab(2);
        struct grammar_source src = {
            .kind = GRAMMAR_GBNF, .text = source, .n_bytes = strlen(source)};
        if (grammar_compile(&src, NULL, v, &present, &err) != OK) {
            if (begins[0]) {
                CHECK_FAIL("seed %d: %s%s", (int)seed, source, err.text);
            }
            empty++;
            grammar_vocab_free(v);
            continue;
        }
        for (size_t i = 0; i < N_SHORT; i++) {
            char s[SHORT + 1];
            enum status st;
            text_of(i, s);
            if (accepts(present, s, strlen(s), &st) != language[0][i]) {
                CHECK_FAIL("seed %d: %s%s \"%s\"", (int)seed, source,
                           language[0][i] ? "refuses" : "accepts", s);
                break;
            }
        }
        for (int k = 0; k < 8; k++) {
            char text[40] = "";
            random_walk(present, text, 5);
            check_state(present, text, grammar_viable, grammar_accepts_short, source);
        }
        grammar_free(present);
        grammar_vocab_free(v);
    }
    CHECK(empty < n_rounds() / 2);
    tell("grammar", before);
}

/* ---- liveness ---- */

/* A text written from allowed bytes can always be completed. */
static void check_ends(const char *source)
{
    static struct grammar_state queue[20000];
    struct grammar_source src = {.kind = GRAMMAR_SCHEMA, .text = source, .n_bytes = strlen(source)};
    struct grammar *g;
    struct err err = {{0}};
    if (grammar_compile(&src, NULL, NULL, &g, &err) != OK) {
        CHECK_FAIL("%s: %s", source, err.text);
        return;
    }
    for (int walk = 0; walk < 10; walk++) {
        struct grammar_state s = grammar_start(g);
        for (int steps = 0, tries = 0; steps < 60 && tries < 4000; tries++) {
            char byte = (char)(draw(3) ? " \n{}[]\",:0123456789abcxyzt"[draw(26)] : (int)draw(256));
            steps += byte != 0 && grammar_advance(g, &s, &byte, 1) == OK;
        }
        size_t n = 1, i = 0;
        queue[0] = s;
        for (; i < n && n < 19000 && !grammar_may_end(g, queue[i]); i++) {
            for (int b = 1; b < 256 && n < 19990; b++) {
                char byte = (char)b;
                queue[n] = queue[i];
                if (grammar_advance(g, &queue[n], &byte, 1) == OK &&
                    queue[n].id != queue[n - 1].id) {
                    n++;
                }
            }
        }
        if (i == n) {
            CHECK_FAIL("%s: a text that has no end", source);
        }
    }
    grammar_free(g);
}

/* Otherwise a model could write itself into a dead end. */
TEST(every_text_along_allowed_bytes_can_end)
{
    seed = 7;
    draws = 0;
    check_ends("{\"type\":\"string\",\"pattern\":\"^a[b-d]*$\",\"minLength\":3,\"maxLength\":5}");
    check_ends("{\"type\":\"string\",\"format\":\"date-time\"}");
    check_ends("{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":100,\"maximum\":900}");
    check_ends("{\"type\":\"number\",\"minimum\":0.5,\"exclusiveMaximum\":0.75}");
    check_ends(
        "{\"type\":\"object\",\"properties\":{\"ab\":{\"enum\":[1,22]},\"ac\":{\"type\":\"string\","
        "\"maxLength\":2}},"
        "\"required\":[\"ac\"],\"additionalProperties\":{\"type\":\"null\"},\"maxProperties\":3}");
    check_ends("{\"type\":\"object\",\"patternProperties\":{\"^a..$\":{\"const\":1}},"
               "\"additionalProperties\":false}");
    check_ends("{\"type\":\"array\",\"items\":{\"type\":\"array\",\"maxItems\":1},\"minItems\":1,"
               "\"maxItems\":2}");
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
