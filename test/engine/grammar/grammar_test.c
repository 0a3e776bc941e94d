// SPDX-License-Identifier: Apache-2.0
/* The language of each kind of grammar: texts that belong to it, texts that do not, and grammars
 * that are refused. */
#include "test/engine/grammar/rows.h"

#include <string.h>

/* yes and no: texts separated by '|' ('~' stands for '|' inside a text); NULL: none. Both NULL: the
 * grammar is refused, with `why` in the message. */
struct example {
    enum grammar_kind kind;
    const char *text, *yes, *no, *why;
};

/* Takes the next text of a list and says whether the language contains it. False: the list has
 * ended. */
static bool next_example(struct grammar *g, const char *list, size_t *at, bool *is, char *text)
{
    size_t n = 0;
    if (!list || *at > strlen(list)) {
        return false;
    }
    for (; list[*at] && list[*at] != '|'; (*at)++) {
        text[n++] = list[*at];
    }
    (*at)++;
    text[n] = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '~') {
            text[i] = '|';
        }
    }
    enum status st;
    *is = accepts(g, text, n, &st);
    CHECK(st == OK || st == ERR_INVALID);
    return true;
}

/* Each grammar with texts that belong to its language, texts that do not, or the error
 * that it gives. */
static void check_examples(const struct example *v, size_t n)
{
    static char text[4096];
    for (size_t i = 0; i < n; i++) {
        struct grammar_source source = {
            .kind = v[i].kind, .text = v[i].text, .n_bytes = strlen(v[i].text)};
        struct grammar *g;
        struct err err = {{0}};
        enum status st = grammar_compile(&source, NULL, NULL, &g, &err);
        bool is;
        if (v[i].why) {
            if (st == OK || !strstr(err.text, v[i].why)) {
                CHECK_FAIL("%s: should say \"%s\", says \"%s\"", v[i].text, v[i].why,
                           st == OK ? "ok" : err.text);
            }
            grammar_free(g);
            continue;
        }
        if (st != OK) {
            CHECK_FAIL("%s: %s", v[i].text, err.text);
            continue;
        }
        for (size_t at = 0; next_example(g, v[i].yes, &at, &is, text);) {
            if (!is) {
                CHECK_FAIL("%s refuses %s", v[i].text, text);
            }
        }
        for (size_t at = 0; next_example(g, v[i].no, &at, &is, text);) {
            if (is) {
                CHECK_FAIL("%s accepts %s", v[i].text, text);
            }
        }
        grammar_free(g);
    }
}
#define CHECK_EXAMPLES(list) check_examples(list, sizeof list / sizeof *list)

/* Anchors, classes, repetition, case; and what is refused. */
TEST(regular_expressions)
{
    static const struct example list[] = {
        {GRAMMAR_REGEX, "a(b|c)*d", "ad|abcbd", NULL, NULL},
        {GRAMMAR_REGEX, "[a-c]{2,3}", "ab|abc", "a|abcd|ad", NULL},
        {GRAMMAR_REGEX, "(?i)Ab[^x]", "aBy|ABÿ", "abx|abX|b", NULL},
        {GRAMMAR_REGEX, "(?i)é[à-ÿ]σ\\x4b", "ÉÀςk|éÿΣ\u212a", "eÀσk|é×σk", NULL},
        {GRAMMAR_REGEX, "(?i)\\p{Lu}\\P{Lu}", "a1|É-", "aa|1a", NULL},
        {GRAMMAR_REGEX, "(?i)i", "i|I", "ı|İ", NULL},
        {GRAMMAR_REGEX, "[]a]+", "a]|]", "b", NULL},
        {GRAMMAR_REGEX, "[^]a]", "b|[", "]|a", NULL},
        {GRAMMAR_REGEX, "a[^]", "a]|ab", "a", NULL},
        {GRAMMAR_REGEX, "^(?:ja|nein)$", "ja|nein", "x|", NULL},
        {GRAMMAR_REGEX, "^a$|^bc$", "a|bc", "a~bc|abc", NULL},
        {GRAMMAR_REGEX, ".", "x|é|日", "\n|xy|", NULL},
        {GRAMMAR_REGEX, "(?s).\\d", "\n7|x٣", "x", NULL},
        {GRAMMAR_REGEX, "\\p{Lu}\\P{L}", "É1", "é1|ÉE", NULL},
        {GRAMMAR_REGEX, "x{0,1000000}", "|xxxx", "y", NULL},
        {GRAMMAR_REGEX, "(a?){3}b", "b|aaab", "aaaab", NULL},
        {GRAMMAR_REGEX, "(a*)*", "|aaa", "b", NULL},
        {GRAMMAR_REGEX, "\\x41\\u00e9\\u{1F600}", "Aé😀", "A", NULL},
        {GRAMMAR_REGEX, "(?=a)b", NULL, NULL, "lookahead"},
        {GRAMMAR_REGEX, "(?<!a)b", NULL, NULL, "lookbehind"},
        {GRAMMAR_REGEX, "(a)\\1", NULL, NULL, "backreference"},
        {GRAMMAR_REGEX, "\\bx", NULL, NULL, "word boundary"},
        {GRAMMAR_REGEX, "\\07", NULL, NULL, "octal"},
        {GRAMMAR_REGEX, "a++", NULL, NULL, "possessive"},
        {GRAMMAR_REGEX, "[b-a]", NULL, NULL, "backwards"},
        {GRAMMAR_REGEX, "(a", NULL, NULL, "unterminated"},
        {GRAMMAR_REGEX, "a{1000001}", NULL, NULL, "above 1000000"},
        {GRAMMAR_REGEX, "a$b", NULL, NULL, "matches nothing"},
    };
    CHECK_EXAMPLES(list);
}

/* llama.cpp's format, with its comments and escapes. */
TEST(gbnf)
{
    static const struct example list[] = {
        {GRAMMAR_GBNF, "root ::= \"a\" root \"b\" ~ \"\"", NULL, NULL, "cannot continue"},
        {GRAMMAR_GBNF, "root ::= l\nl ::= l \",\" x | x\nx ::= [0-9]+ # digits", "1|1,22", ",1|1,",
         NULL},
        {GRAMMAR_GBNF, "root ::= n root \"a\" | \"b\"\nn ::= \"x\"?", "b|xba|xxbaa", "a|xb", NULL},
        {GRAMMAR_GBNF, "root ::= a\na ::= b \"1\" | \"x\"\nb ::= a \"2\" | \"y\"", "x|y1|x21|y121",
         "x1|y", NULL},
        {GRAMMAR_GBNF, "root ::= s\ns ::= s s | \"a\" | \"\"", "|a|aaaa", "b", NULL},
        {GRAMMAR_GBNF, "root ::= \"(\" root? \")\"", "()|((()))", "(()|)", NULL},
        {GRAMMAR_GBNF, "root ::= [^a-c]{2} .", "xyz|日本a", "ayz|xy", NULL},
        {GRAMMAR_GBNF, "root ::= root \"a\"", NULL, NULL, "matches nothing"},
        {GRAMMAR_GBNF, "root ::= x", NULL, NULL, "\"x\" is not defined"},
        {GRAMMAR_GBNF, "root ::= \"a\"\nroot ::= \"b\"", NULL, NULL, "twice"},
        {GRAMMAR_GBNF, "root ::= \"\\ud800\"", NULL, NULL, "not a valid character"},
        {GRAMMAR_GBNF, "x ::= \"a\"", NULL, NULL, "no rule \"root\""},
    };
    CHECK_EXAMPLES(list);
}

/* llguidance's dialect of Lark. */
TEST(lark)
{
    static const struct example list[] = {
        {GRAMMAR_LARK, "start: a+\na: \"x\" | B\nB: /[0-9]+/\n", "x|1x22", "y|", NULL},
        {GRAMMAR_LARK, "start: \"a\"i [\"b\"] \"c\"~2..3\n", "Abcc|accc", "abc|acccc", NULL},
        {GRAMMAR_LARK, "%import common.INT\n%ignore \" \"\nstart: INT (\"+\" INT)*", "1|1 + 2+ 3 ",
         "1 +|+", NULL},
        {GRAMMAR_LARK, "start: \"a\"..\"c\"\n", "a|c", "d|ac", NULL},
        {GRAMMAR_LARK, "start: e\n?e: e \"+\" e -> sum\n | \"(\" e \")\"\n | \"x\"", "x|x+x+(x)",
         "x+|()", NULL},
        {GRAMMAR_LARK,
         "start: p::0\np::_ : \"!\" %if is_ones([0:2])\n | \"a\" p::set_bit(0) %if bit_clear(0)\n"
         " | \"b\" p::set_bit(1) %if bit_clear(1)",
         "ab!|ba!", "a!|aab!|abab!", NULL},
        {GRAMMAR_LARK,
         "start: p::0\np::_ : \"a\" p::incr(_) %if lt(_, 3)\n | q::_\nq::_ : \"b\" q::incr(_) "
         "%if lt(_, 3)\n | \"!\"",
         "!|aaa!|abb!|bbb!", "ba!|aaaa!|aabb!", NULL},
        {GRAMMAR_LARK,
         "start: p::0\np::_ : \"!\" %if bit_count_ge(_, 1)\n | \"a\" p::set_bit(0) %if "
         "and(bit_clear(0), "
         "bit_count_lt(_, 2))\n | \"b\" p::set_bit(1) %if bit_count_ne([1:2], 1)\n | \"c\" "
         "p::set_bit(2) %if and(bit_clear(2), bit_count_lt([0:3], 2))",
         "a!|ab!|cb!|acb!", "!|aa!|acc!|bb!|bac!", NULL},
        {GRAMMAR_LARK,
         "start: p::6\np::_ : \"x\" q::bit_and(3) %if true()\n | \"y\" q::bit_or(0x1)\nq::_ : "
         "\"2\" %if "
         "eq(_, 2)\n | \"7\" %if eq(_, 7)",
         "x2|y7", "x7|y2", NULL},
        {GRAMMAR_LARK, "start: p::0\np::_ : \"a\" %if bit_count_and(_, 1)", NULL, NULL,
         "unknown condition"},
        {GRAMMAR_LARK, "start: p::0\np::_ : \"a\" p::incr(_)", NULL, NULL, "too many rules"},
        {GRAMMAR_LARK, "start: A\nA: \"a\" A", NULL, NULL, "defined in terms of itself"},
        {GRAMMAR_LARK, "start: a\n", NULL, NULL, "\"a\" is not defined"},
        {GRAMMAR_LARK, "start: \"a\"\nx.2: \"b\"", NULL, NULL, "priorities"},
        {GRAMMAR_LARK, "%import other.X\nstart: X", NULL, NULL, "common"},
        {GRAMMAR_LARK, "start: /a", NULL, NULL, "unterminated"},
        {GRAMMAR_LARK, "root: \"a\"", NULL, NULL, "no rule \"start\""},
    };
    CHECK_EXAMPLES(list);
}

/* Numbers are the difficult part: ranges of integers and decimals become regular expressions. */
TEST(schemas_of_scalars)
{
    static const struct example list[] = {
        {GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"minimum\":-5,\"exclusiveMaximum\":120}",
         "-5|0|7|119", "-6|120|1.0|01|-0|1e1", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"number\",\"exclusiveMinimum\":0.25,\"maximum\":10.5}",
         "0.3|0.2501|10|10.5|10.50", "0.25|0.250|10.51|11|0|-1", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"number\",\"minimum\":-2.5,\"exclusiveMaximum\":-1}",
         "-2.5|-1.01|-2", "-1|-2.51|0|-1.0", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"number\"}", "0|-1.5|2e10|3E-2", "+1|.5|1.|00", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":10}", "14|70|707",
         "7|15|0", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.25}", "0.25|1.5|3|-0.75",
         "0.3|0.125", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":999983}", "0|999983|1999966",
         "999984|1", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         "\"ab\"|\"日本語\"|\"\\n\\u0001\"", "\"a\"|\"abcd\"|\"a\\n\\n\\n\"", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"maxLength\":1000000000}", "\"\"|\"abc\"", "abc",
         NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"b+\",\"maxLength\":3}",
         "\"b\"|\"abb\"", "\"abbb\"|\"aac\"", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^\\\"\\\\\\\\$\"}", "\"\\\"\\\\\"",
         "\"\\\\\\\"\"", NULL},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"minLength\":5,\"maxLength\":3}", NULL,
         NULL, "matches nothing"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^ax[a-z]x$\",\"maxLength\":3}", NULL,
         NULL, "matches nothing"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\"}", "\"\\u00e9\"|\"\\ud83d\\ude00\"",
         "\"\\ud83d\"|\"\\ude00\"|\"\t\"", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"",
         "\"2023-02-29\"|\"2024-13-01\"", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"format\":\"ipv6\"}",
         "\"::1\"|\"1:2:3:4:5:6:7:8\"|\"::ffff:1.2.3.4\"", "\"1::2::3\"|\"1:2\"", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"format\":\"no such\"}", "\"x\"", "x", NULL},
        {GRAMMAR_SCHEMA, "{\"enum\":[1,1.5,\"a\",null,{\"b\":[2]}],\"not\":{\"const\":\"a\"}}",
         "1|1.5|null|{\"b\": [2]}", "\"a\"|2|{}", NULL},
        {GRAMMAR_SCHEMA, "{\"type\":[\"boolean\",\"null\"],\"not\":{\"enum\":[false]}}",
         "true|null", "false|0", NULL},
    };
    CHECK_EXAMPLES(list);
}

/* Whether some text of the language begins like the text that led to the state. Every text that is
 * reached by bytes of `alphabet` and is not refused must have such a continuation. */
static bool completes(struct grammar *g, struct grammar_state s, const char *alphabet, char *text,
                      size_t n)
{
    bool can_end = grammar_may_end(g, s);
    for (const char *c = alphabet; *c && n < 24; c++) {
        struct grammar_state to = s;
        if (grammar_advance(g, &to, c, 1) == OK) {
            text[n] = *c;
            text[n + 1] = 0;
            can_end |= completes(g, to, alphabet, text, n + 1);
        }
    }
    text[n] = 0;
    if (!can_end) {
        CHECK_FAIL("%s cannot be completed", text);
    }
    return can_end;
}

/* A length and a pattern: a text is refused as soon as what the pattern still requires is too
 * long. */
TEST(what_a_pattern_requires_fits_the_length)
{
    static const char *const patterns[] = {"^([ab]{1,4}@)?[a-c]{3}$", "^(a|é)+@(é|bb)@?$",
                                           "^(a+(@|é)){2}(a@|bb{2,3})$"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char schema[200], text[32] = "";
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"pattern\":\"%s\",\"maxLength\":6}",
                 patterns[i]);
        struct grammar_source source = {
            .kind = GRAMMAR_SCHEMA, .text = schema, .n_bytes = strlen(schema)};
        struct grammar *g;
        struct err err = {{0}};
        REQUIRE(grammar_compile(&source, NULL, NULL, &g, &err) == OK);
        completes(g, grammar_start(g), "ab@\xc3\xa9\"", text, 0);
        grammar_free(g);
    }
}

/* Required members, their order, additional ones, and items. */
TEST(schemas_of_arrays_and_objects)
{
    static const struct example list[] = {
        {GRAMMAR_SCHEMA,
         "{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":2}",
         "[true]|[ true , false ]", "[]|[true,true,true]|[true,]", NULL},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":"
         "\"integer\"}}",
         "[]|[null]|[null,1,2]", "[1]|[null,null]", NULL},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"array\",\"items\":{\"enum\":[1,2,3]},\"uniqueItems\":true,\"minItems\":2}",
         "[1,2]|[3,1,2]", "[1]|[1,1]|[1,2,1]", NULL},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"contains\":{\"const\":5}}",
         "[5]|[1,5,2]", "[]|[1]", NULL},
        {GRAMMAR_SCHEMA,
         "{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":"
         "\"null\"}},"
         "\"required\":[\"b\"],\"type\":\"object\"}",
         "{\"b\":null}|{\"a\":null,\"b\":null,\"c\":null}",
         "{}|{\"a\":null}|{\"b\":null,\"a\":null}|{\"b\":null,\"d\":1}", NULL},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":"
         "{\"type\":\"null\"}}",
         "{}|{\"a\":1,\"b\":null}|{\"ab\":null}", "{\"a\":null}|{\"b\":1}", NULL},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"const\":1},\"y$\":{\"type\":"
         "\"integer\"}},"
         "\"additionalProperties\":false}",
         "{\"x\":1}|{\"y\":5}|{\"xy\":1}", "{\"xy\":2}|{\"z\":1}", NULL},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-c]$\"},\"minProperties\":1,"
         "\"maxProperties\":2}",
         "{\"a\":1}|{\"a\":[],\"b\":{}}", "{}|{\"d\":1}|{\"a\":1,\"b\":1,\"c\":1}", NULL},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"object\",\"properties\":{\"a\":true,\"b\":true},\"dependentRequired\":"
         "{\"a\":[\"b\"]}}",
         "{}|{\"b\":1}|{\"a\":1,\"b\":2}", "{\"a\":1}", NULL},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"i\",\"s\"]},\"v\":true},"
         "\"required\":"
         "[\"k\",\"v\"],\"if\":{\"properties\":{\"k\":{\"const\":\"i\"}}},\"then\":{\"properties\":"
         "{\"v\":"
         "{\"type\":\"integer\"}}},\"else\":{\"properties\":{\"v\":{\"type\":\"string\"}}}}",
         "{\"k\":\"i\",\"v\":1}|{\"k\":\"s\",\"v\":\"x\"}",
         "{\"k\":\"i\",\"v\":\"x\"}|{\"k\":\"s\",\"v\":1}", NULL},
        {GRAMMAR_SCHEMA,
         "{\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}}},\"$ref\":\"#/"
         "$defs/t\"}",
         "[]|[[],[[]]]", "[1]|[[]", NULL},
        {GRAMMAR_SCHEMA,
         "{\"allOf\":[{\"type\":\"string\",\"minLength\":1},{\"anyOf\":[{\"maxLength\":1},{"
         "\"const\":\"abc\"}]}"
         "]}",
         "\"a\"|\"abc\"", "\"\"|\"ab\"", NULL},
        {GRAMMAR_SCHEMA, "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", "1|\"a\"",
         "null", NULL},
        {GRAMMAR_SCHEMA, "{\"anyOf\":[{\"$ref\":\"#\"},{\"const\":1}]}", "1", "2", NULL},
    };
    CHECK_EXAMPLES(list);
}

/* Host names have at most 253 characters, and at most 63 in each label. */
TEST(a_host_name_is_limited_in_all)
{
#define LABEL_63 "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabc"
#define THREE_LABELS LABEL_63 "." LABEL_63 "." LABEL_63 "."
    static const struct example list[] = {
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"format\":\"hostname\"}",
         "\"" THREE_LABELS "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghija\"|\"a\"",
         "\"" THREE_LABELS "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijab\"|\"\"",
         NULL},
    };
    CHECK_EXAMPLES(list);
}

/* "$anchor" and "$id" inside of data (an enum, for example) are not identifiers, and an anchor
 * belongs to the schema whose "$id" encloses it. If only the rules of URIs could tell which of two
 * schemas is meant, the reference is refused. */
TEST(references_by_name_lead_to_the_schema_that_is_meant)
{
    static const struct example list[] = {
        {GRAMMAR_SCHEMA,
         "{\"$defs\":{\"e\":{\"enum\":[{\"$anchor\":\"a\",\"type\":\"null\"}]},\"s\":{\"$anchor\":"
         "\"a\","
         "\"type\":\"string\"}},\"$ref\":\"#a\"}",
         "\"x\"", "null", NULL},
        {GRAMMAR_SCHEMA,
         "{\"$defs\":{\"e\":{\"const\":{\"$id\":\"a.json\",\"type\":\"null\"}},\"s\":{\"$id\":"
         "\"a.json\",\"type\":\"string\"}},\"$ref\":\"a.json\"}",
         "\"x\"", "null", NULL},
        {GRAMMAR_SCHEMA,
         "{\"$defs\":{\"const\":{\"$anchor\":\"a\",\"type\":\"string\"}},\"$ref\":\"#a\"}", "\"x\"",
         "1", NULL},
        {GRAMMAR_SCHEMA,
         "{\"$id\":\"http://x/y\",\"$defs\":{\"A\":{\"$id\":\"one\",\"allOf\":[{\"$id\":\"two\","
         "\"$anchor\":\"a\",\"type\":\"number\"},{\"$anchor\":\"a\",\"type\":\"string\"}]}},\"$"
         "ref\":"
         "\"one#a\"}",
         "\"x\"", "1", NULL},
        {GRAMMAR_SCHEMA,
         "{\"$id\":\"http://x/y/\",\"$defs\":{\"p\":{\"$id\":\"http://x/z/p\",\"type\":\"string\"},"
         "\"q\":{\"$id\":\"p\",\"type\":\"number\"}},\"$ref\":\"p\"}",
         NULL, NULL, "one of several schemas"},
    };
    CHECK_EXAMPLES(list);
}

/* A client must find the mistake, so the path in the schema is in the message. */
TEST(schemas_that_are_refused_say_where_and_why)
{
    static const struct example list[] = {
        {GRAMMAR_SCHEMA, "{\"properties\":{\"a\":{\"type\":\"strng\"}}}", NULL, NULL,
         "#/properties/a: \"type\""},
        {GRAMMAR_SCHEMA, "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", NULL, NULL,
         "#: \"oneOf\""},
        {GRAMMAR_SCHEMA, "{\"items\":{\"type\":\"array\",\"uniqueItems\":true}}", NULL, NULL,
         "#/items: \"uniqueItems\""},
        {GRAMMAR_SCHEMA, "{\"$ref\":\"http://x/y\"}", NULL, NULL, "none is ever fetched"},
        {GRAMMAR_SCHEMA, "{\"$ref\":\"#/$defs/a\"}", NULL, NULL, "does not refer to a schema"},
        {GRAMMAR_SCHEMA, "{\"$ref\":\"#\"}", NULL, NULL, "refers to itself"},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", NULL,
         NULL, "matches nothing"},
        {GRAMMAR_SCHEMA, "{\"not\":{\"pattern\":\"a\"}}", NULL, NULL, "\"not\""},
        {GRAMMAR_SCHEMA, "{\"pattern\":\"(?=a)\"}", NULL, NULL, "#: \"pattern\": lookahead"},
        {GRAMMAR_SCHEMA, "{\"$dynamicRef\":\"#a\"}", NULL, NULL, "$dynamicRef"},
        {GRAMMAR_SCHEMA, "{\"minLength\":-1}", NULL, NULL, "\"minLength\""},
        {GRAMMAR_SCHEMA,
         "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"properties\":{\"a\":{"
         "\"dependencies\":{\"b\":[\"c\"]}}}}",
         NULL, NULL, "#/properties/a: the draft that \"$schema\" names has no keyword"},
        {GRAMMAR_SCHEMA,
         "{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"dependentRequired\":{\"b\":["
         "\"c\"]}}",
         NULL, NULL, "\"dependentRequired\""},
        {GRAMMAR_SCHEMA, "[]", NULL, NULL, "a schema must be an object"},
        {GRAMMAR_SCHEMA, "{", NULL, NULL, "not JSON"},
        {GRAMMAR_SCHEMA, "false", NULL, NULL, "matches nothing"},
    };
    CHECK_EXAMPLES(list);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
