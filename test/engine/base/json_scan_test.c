// SPDX-License-Identifier: Apache-2.0
/* The JSON scanner and what is built on it: which texts are well formed (RFC 8259, plus
 * valid UTF-8), and the values and strings that come out. */
#include "engine/base/json_scan.h"

#include "engine/base/json.h"
#include "test/check.h"

/* The last token: JSON_TOKEN_END for a well-formed text, JSON_TOKEN_ERROR for the others. */
static enum json_token run(const char *s, int max_depth)
{
    struct json_scan sc;
    json_scan_init(&sc, s, strlen(s), max_depth);
    enum json_token t;
    do {
        t = json_scan_next(&sc);
    } while (t != JSON_TOKEN_END && t != JSON_TOKEN_ERROR);
    return t;
}

TEST(well_formed_texts_end)
{
    static const char *const good[] = {"1",
                                       " [ ] ",
                                       "{}",
                                       "[1,2.5e-3,-0,\"a\\u00e9\\n\"]",
                                       "{\"a\":{\"b\":[true,false,null]}}",
                                       "\"\xC3\xA9\""};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK_EQ(run(good[i], 8), JSON_TOKEN_END);
    }
}

/* One text for each rule of the grammar: commas, leading zeros, bare signs, control
 * characters and unknown escapes in strings, invalid UTF-8 (a stray byte, an overlong
 * form, a surrogate), and nesting one level deeper than allowed. */
TEST(broken_texts_are_refused)
{
    static const char *const bad[] = {"",
                                      "[",
                                      "[1,]",
                                      "{\"a\"}",
                                      "{\"a\":1,}",
                                      "01",
                                      "1.",
                                      "1e",
                                      "-",
                                      "+1",
                                      "nul",
                                      "[1 2]",
                                      "\"\n\"",
                                      "\"\\x\"",
                                      "\"\\u12g4\"",
                                      "\"abc",
                                      "{1:2}",
                                      "[1]x",
                                      "\"\xFF\"",
                                      "\"\xC0\x80\"",
                                      "\"\xED\xA0\x80\"",
                                      "[[[[[[[[[1]]]]]]]]]",
                                      "]",
                                      "{]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_EQ(run(bad[i], 8), JSON_TOKEN_ERROR);
    }
}

/* A reader that ignores a member must end at the next key, whatever is nested in the
 * value. */
TEST(skip_passes_over_whole_values)
{
    const char *s = "{\"a\":[1,{\"b\":2}],\"c\":3}";
    struct json_scan sc;
    json_scan_init(&sc, s, strlen(s), 8);
    CHECK_EQ(json_scan_next(&sc), JSON_TOKEN_OBJECT);
    CHECK_EQ(json_scan_next(&sc), JSON_TOKEN_KEY);
    CHECK(json_scan_is(&sc, "a"));
    CHECK(json_scan_skip(&sc));
    CHECK_EQ(json_scan_next(&sc), JSON_TOKEN_KEY);
    CHECK(json_scan_is(&sc, "c"));
    CHECK(json_scan_skip(&sc));
    CHECK_EQ(json_scan_next(&sc), JSON_TOKEN_OBJECT_END);
    CHECK_EQ(json_scan_next(&sc), JSON_TOKEN_END);
}

/* U+D83D U+DE00 is one character; a lone surrogate cannot be written in UTF-8 and becomes
 * U+FFFD, so that the result is always valid UTF-8. */
TEST(unescape_joins_surrogates_and_replaces_lone_ones)
{
    const char *s = "\"\\ud83d\\ude00 \\ud800x \\t\"";
    struct json_scan sc;
    json_scan_init(&sc, s, strlen(s), 8);
    CHECK_EQ(json_scan_next(&sc), JSON_TOKEN_STRING);
    struct buf b;
    buf_init(&b, 100);
    json_scan_unescape(&sc, &b);
    CHECK_STR(b.data, "\xF0\x9F\x98\x80 \xEF\xBF\xBDx \t");
    buf_deinit(&b);
}

/* Integers are exact to both ends of int64_t and are refused beyond them; a fraction or an
 * exponent is not an integer even if its value is whole. */
TEST(int64_keeps_its_extreme_values)
{
    static const struct {
        const char *s;
        bool fits;
        int64_t v;
    } rows[] = {{"9223372036854775807", true, INT64_MAX},
                {"-9223372036854775808", true, INT64_MIN},
                {"9223372036854775808", false, 0},
                {"-9223372036854775809", false, 0},
                {"1.0", false, 0},
                {"1e3", false, 0},
                {"0", true, 0},
                {"-7", true, -7}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct json_scan sc;
        json_scan_init(&sc, rows[i].s, strlen(rows[i].s), 8);
        CHECK_EQ(json_scan_next(&sc), JSON_TOKEN_NUMBER);
        int64_t v = 0;
        CHECK_EQ(json_scan_int64(&sc, &v), rows[i].fits);
        CHECK_EQ(v, rows[i].v);
    }
}

/* A C string would end at U+0000, so two different names could compare equal; and a short
 * body must not expand to an unlimited number of nodes. */
TEST(the_tree_refuses_hidden_nul_and_too_many_values)
{
    struct json *root;
    struct err err;
    const char *nul = "{\"a\":\"x\\u0000y\"}";
    CHECK_EQ(json_parse(nul, strlen(nul), NULL, &root, &err), ERR_UNSUPPORTED);
    const char *many = "[1,2,3,4,5]";
    struct json_limits limits = {.max_values = 4};
    CHECK_EQ(json_parse(many, strlen(many), &limits, &root, &err), ERR_LIMIT);
    CHECK_EQ(json_parse(many, strlen(many), NULL, &root, &err), OK);
    CHECK_EQ(json_count(root), 5);
    json_free(root);
}

/* Model output can end in the middle of a character. What we write into JSON must be valid
 * anyway: each broken sequence becomes one U+FFFD. */
TEST(json_strings_are_written_escaped_and_repaired)
{
    struct buf b;
    buf_init(&b, 100);
    buf_put_json(&b, "a\"\\\n\x01\xC3\xA9\xFF\xE2\x82z", 11);
    CHECK_STR(b.data, "\"a\\\"\\\\\\n\\u0001\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBDz\"");
    buf_deinit(&b);
}

/* NEL, U+2028 and U+2029 end lines in some readers (Python's str.splitlines, JavaScript),
 * which would cut an SSE event or a JSONL line in two. Their neighbours in code order stay
 * unescaped. */
TEST(a_json_string_is_one_line_for_every_reader)
{
    struct buf b;
    buf_init(&b, 100);
    const char *text = "\xC2\x85\xC2\x86\xE2\x80\xA7\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xAA\v\f";
    buf_put_json(&b, text, strlen(text));
    CHECK_STR(b.data, "\"\\u0085\xC2\x86\xE2\x80\xA7\\u2028\\u2029\xE2\x80\xAA\\u000b\\u000c\"");
    buf_deinit(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
