// SPDX-License-Identifier: Apache-2.0
/* Splitting of text before BPE: stages against recorded results of the `tokenizers`
 * library, hand-written splitters against PCRE2 running the same patterns, and character
 * classes against the library's. */
#include "engine/tokenizer/regex.h"

#include "engine/base/file.h"
#include "engine/base/json_scan.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/base/utf8.h"
#include "test/check.h"

/* ---- one Split stage over a text ---- */

/* Pieces as copies, since they point into scratch memory. */
struct pieces {
    char **v;
    size_t bytes[4096]; // of each
    size_t n, cap;
};

static void keep_piece(void *arg, const char *s, size_t n)
{
    struct pieces *p = arg;
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 64;
        p->v = xrealloc(p->v, p->cap * sizeof *p->v);
    }
    if (p->n == sizeof p->bytes / sizeof p->bytes[0]) {
        return;
    }
    char *copy = xmalloc(n + 1);
    memcpy(copy, s, n);
    copy[n] = '\0';
    p->bytes[p->n] = n;
    p->v[p->n++] = copy;
}

static void pieces_free(struct pieces *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->v[i]);
    }
    free(p->v);
    *p = (struct pieces){0};
}

static bool same(const struct pieces *a, const struct pieces *b)
{
    bool equal = a->n == b->n;
    for (size_t i = 0; equal && i < a->n; i++) {
        equal = a->bytes[i] == b->bytes[i] && memcmp(a->v[i], b->v[i], a->bytes[i]) == 0;
    }
    return equal;
}

/* Only the splitting stages, without the model. */
static void split(const struct tokenizer *tok, const char *s, size_t n, struct pieces *out)
{
    struct scratch *sc = scratch_take(tok);
    struct err err = {0};
    sc->on_piece = keep_piece;
    sc->on_piece_arg = out;
    sc->err = &err;
    enum status st = stages_run(tok, sc, s, n, true);
    if (st != OK) {
        CHECK_FAIL("%s", err.text);
    }
    scratch_free(sc);
}

/* A tokenizer that has nothing but these stages. */
static struct tokenizer *splitting_tokenizer(const struct json *stage, struct err *err)
{
    struct tokenizer *tok = xcalloc(1, sizeof *tok);
    arena_init(&tok->arena, 1 << 20);
    if (stages_load(stage, tok, err) != OK) {
        tokenizer_free(tok);
        return NULL;
    }
    return tok;
}

/* Reads ["a", "b"] whose '[' was just read. */
static void read_strings(struct json_scan *sc, struct pieces *out)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    while (json_scan_next(sc) == JSON_TOKEN_STRING) {
        buf_clear(&b);
        json_scan_unescape(sc, &b);
        keep_piece(out, or_empty(b.data), b.n_bytes);
    }
    buf_deinit(&b);
}

/* Reads [["a", "b"], ...] and compares each with what the input before it gives. */
static void check_expected(struct json_scan *sc, const struct tokenizer *tok, const char *name,
                           const struct pieces *inputs)
{
    json_scan_next(sc);
    size_t i = 0;
    while (json_scan_next(sc) == JSON_TOKEN_ARRAY && i < inputs->n) {
        struct pieces want = {0}, got = {0};
        read_strings(sc, &want);
        split(tok, inputs->v[i], inputs->bytes[i], &got);
        if (!same(&want, &got)) {
            CHECK_FAIL("%s: \"%s\" splits otherwise", name, inputs->v[i]);
        }
        pieces_free(&want);
        pieces_free(&got);
        i++;
    }
    CHECK_EQ(i, inputs->n);
}

/* {"name", "pattern", "behavior", "invert", "inputs", "expected", ...} in this order. A JSON tree
 * would not do: some inputs hold NUL. */
static void check_case(const char *line, size_t n)
{
    struct json_scan sc;
    struct buf stage, name;
    struct tokenizer *tok = NULL;
    struct pieces inputs = {0};
    struct err err = {0};
    buf_init(&stage, 1 << 20);
    buf_init(&name, 1000);
    json_scan_init(&sc, line, n, 8);
    json_scan_next(&sc);
    while (json_scan_next(&sc) == JSON_TOKEN_KEY) {
        if (json_scan_is(&sc, "name")) {
            json_scan_next(&sc);
            json_scan_unescape(&sc, &name);
        } else if (json_scan_is(&sc, "pattern")) {
            json_scan_next(&sc);
            buf_printf(&stage, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%.*s\"}",
                       (int)sc.text_bytes, sc.text);
        } else if (json_scan_is(&sc, "behavior")) {
            json_scan_next(&sc);
            buf_printf(&stage, ",\"behavior\":\"%.*s\"", (int)sc.text_bytes, sc.text);
        } else if (json_scan_is(&sc, "invert")) {
            bool invert = json_scan_next(&sc) == JSON_TOKEN_TRUE;
            struct json *root;
            buf_printf(&stage, ",\"invert\":%s}", bool_word(invert));
            REQUIRE(json_parse(stage.data, stage.n_bytes, NULL, &root, &err) == OK);
            tok = splitting_tokenizer(root, &err);
            json_free(root);
            if (!tok) {
                CHECK_FAIL("%s: %s", name.data, err.text);
                break;
            }
        } else if (json_scan_is(&sc, "inputs")) {
            json_scan_next(&sc);
            read_strings(&sc, &inputs);
        } else if (json_scan_is(&sc, "expected")) {
            check_expected(&sc, tok, name.data, &inputs);
        } else {
            json_scan_skip(&sc);
        }
    }
    tokenizer_free(tok);
    pieces_free(&inputs);
    buf_deinit(&stage);
    buf_deinit(&name);
}

/* At least 100 patterns with inputs; third parties' data, so the test is skipped without
 * it. */
TEST(splits_equal_those_of_the_library)
{
    const char *shared = check_shared();
    if (!shared) {
        SKIP("no shared data");
    }
    char path[4096], *data;
    size_t n;
    struct err err;
    snprintf(path, sizeof path, "%s/data/split_regex.jsonl", shared);
    REQUIRE(file_read(path, 64 << 20, &data, &n, &err) == OK);
    size_t cases = 0;
    for (char *line = data; *line;) {
        char *end = strchr(line, '\n');
        if (!end) {
            end = line + strlen(line);
        }
        check_case(line, (size_t)(end - line));
        cases++;
        line = *end ? end + 1 : end;
    }
    CHECK(cases >= 100);
    free(data);
}

/* ---- splitters written by hand against PCRE2 ---- */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 33);
}

/* Text that lets the alternatives of a pattern compete: few characters of each class, many
 * repeated. */
static size_t random_text(uint64_t *state, char *out, size_t cap)
{
    static const char *const parts[] = {" ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "\n ",
                                        "'",
                                        "'s",
                                        "'S",
                                        "'ll",
                                        "'Re",
                                        "'v",
                                        "'ve",
                                        "a",
                                        "b",
                                        "Ab",
                                        "ABC",
                                        "abc",
                                        "1",
                                        "12",
                                        "1234",
                                        ".",
                                        "!?",
                                        "/",
                                        "_",
                                        "-",
                                        "(",
                                        "\xC3\x89",
                                        "\xC3\xA9",
                                        "\xCC\x81",
                                        "\xE4\xB8\xAD",
                                        "\xE6\x96\x87",
                                        "\xE3\x81\x82",
                                        "\xE3\x80\x82",
                                        "\xC2\xA0",
                                        "\xE2\x80\x83",
                                        "\xC5\xBF",
                                        "\xC7\x85",
                                        "\xCA\xB0",
                                        "\xD9\xA3",
                                        "\xC2\xB2",
                                        "\xF0\x9F\x98\x80",
                                        "\xE2\x82\xAC",
                                        "\xE0\xA4\xBF",
                                        "\xE0\xA4\x95",
                                        "\x01",
                                        "\xEF\xBF\xBD",
                                        "\xE1\xA0\x8E"};
    size_t n = 0;
    while (n + 8 < cap) {
        const char *part = parts[next_random(state) % (sizeof parts / sizeof parts[0])];
        size_t k = strlen(part);
        if (next_random(state) % 200 == 0) {
            k = utf8_encode(next_random(state) % 0xD7FF + 1, out + n);
        } else {
            memcpy(out + n, part, k);
        }
        n += k;
        if (next_random(state) % 30 == 0) {
            break;
        }
    }
    return n;
}

/* All matches from left to right; the first difference prints the text as bytes, ready to
 * become a test. */
static void compare_once(const struct regex *re, struct scratch *sc, const char *s, size_t n,
                         const char *pattern)
{
    size_t from = 0, a, b, c, d;
    for (;;) {
        int by_hand = regex_find(re, sc, s, n, from, &a, &b);
        int by_pcre = regex_find_pcre(re, sc, s, n, from, &c, &d);
        if (by_hand != by_pcre || (by_pcre == 1 && (a != c || b != d))) {
            CHECK_FAIL("%.40s: at %zu by hand %d [%zu,%zu), by PCRE2 %d [%zu,%zu)", pattern, from,
                       by_hand, a, b, by_pcre, c, d);
            printf("  text: ");
            for (size_t i = 0; i < n; i++) {
                printf("\\x%02X", (unsigned char)s[i]);
            }
            printf("\n");
            return;
        }
        if (by_pcre != 1) {
            return;
        }
        from = d;
    }
}

/* The popular patterns have splitters in C. 20,000 random texts for each pattern compare them with
 * the pattern itself; a pattern that gets a splitter is included by being in the table. */
TEST(splitters_written_by_hand_equal_their_patterns)
{
    uint64_t state = 12345;
    struct tokenizer *tok = xcalloc(1, sizeof *tok);
    struct scratch *sc = scratch_take(tok);
    size_t i = 0;
    for (; splitter_pattern(i); i++) {
        struct regex *re;
        struct err err = {0};
        REQUIRE(regex_compile_pcre(splitter_pattern(i), &re, &err) == OK);
        re->splitter = splitter_of(splitter_pattern(i));
        REQUIRE(re->splitter != NULL);
        for (int k = 0; k < 20000; k++) {
            char text[200];
            compare_once(re, sc, text, random_text(&state, text, sizeof text), splitter_pattern(i));
        }
        regex_free(re);
    }
    CHECK(i >= 10);
    scratch_free(sc);
    tokenizer_free(tok);
}

/* ---- classes ---- */

static bool listed(const struct json *ranges, uint32_t cp)
{
    for (const struct json *r = json_first(ranges); r; r = json_next(r)) {
        double low = json_number(json_first(r), -1);
        if (cp >= low && cp <= json_number(json_next(json_first(r)), -1)) {
            return true;
        }
    }
    return false;
}

/* Checks both implementations of a class: our tables, and the text of the class as PCRE2 reads
 * it. */
static void check_class(const char *name, const struct json *ranges)
{
    struct regex *re;
    struct err err = {0};
    struct tokenizer *tok = xcalloc(1, sizeof *tok);
    struct scratch *sc = scratch_take(tok);
    if (regex_compile(name, &re, &err) != OK) {
        CHECK_FAIL("%s: %s", name, err.text);
        return;
    }
    size_t wrong = 0;
    const struct json *r = json_first(ranges);
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (cp == 0xD800) {
            cp = 0xE000;
        }
        while (r && json_number(json_next(json_first(r)), -1) < cp) {
            r = json_next(r);
        }
        bool member = r && json_number(json_first(r), -1) <= cp;
        char s[5] = "";
        size_t start, end, n = utf8_encode(cp, s);
        bool found = regex_find(re, sc, s, n, 0, &start, &end) == 1;
        if (found != member && wrong++ < 3) {
            CHECK_FAIL("%s: U+%04X is%s a member", name, cp, member ? "" : " not");
        }
    }
    CHECK_EQ(wrong, 0);
    regex_free(re);
    scratch_free(sc);
    tokenizer_free(tok);
}

/* Every code point, surrogates excepted: our version of Unicode may differ from that of the
 * library, and then texts in new scripts would be split differently. */
TEST(classes_hold_what_the_library_has_in_them)
{
    const char *shared = check_shared();
    if (!shared) {
        SKIP("no shared data");
    }
    char path[4096];
    struct json *root;
    struct err err;
    snprintf(path, sizeof path, "%s/data/unicode_classes.json", shared);
    REQUIRE(json_parse_file(path, 64 << 20, &root, &err) == OK);
    const struct json *classes = json_get(root, "classes");
    CHECK(json_count(classes) >= 15);
    for (const struct json *c = json_first(classes); c; c = json_next(c)) {
        check_class(json_key(c), c);
    }
    const struct json *letters = json_get(classes, "\\p{L}");
    for (uint32_t cp = 0; cp < 0x3000; cp++) {
        CHECK_EQ((unicode_flags(cp) & U_L) != 0, listed(letters, cp));
    }
    json_free(root);
}

/* The text is searched in sections; the literal may lie across any border. */
TEST(a_literal_is_found_at_any_position)
{
    enum { FIRST = 4070, LAST = 8210, REST = 100 };
    static char text[LAST + REST];
    char literal[] = "\xE2\x96\x81";
    struct pattern p = {.literal = literal, .literal_bytes = 3};
    for (size_t at = FIRST; at < LAST; at += at == 4110 ? 4060 : 1) {
        memset(text, '\x96', sizeof text);
        memcpy(text + at, p.literal, p.literal_bytes);
        struct pattern_walk w;
        pattern_walk_init(&w, &p, text, sizeof text);
        size_t start = 0, end = 0;
        CHECK_EQ(pattern_walk_next(&w, NULL, &start, &end), 1);
        CHECK_EQ(start, at);
        CHECK_EQ(end, at + 3);
        CHECK_EQ(pattern_walk_next(&w, NULL, &start, &end), 0);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
