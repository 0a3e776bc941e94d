// SPDX-License-Identifier: Apache-2.0
/* The language of each kind of grammar, and the contract of grammar.h. */
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
        {GRAMMAR_REGEX, "(a", NULL, NULL, "no end"},
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
        {GRAMMAR_GBNF, "root ::= \"\\ud800\"", NULL, NULL, "no character"},
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
         "not known"},
        {GRAMMAR_LARK, "start: p::0\np::_ : \"a\" p::incr(_)", NULL, NULL, "too many rules"},
        {GRAMMAR_LARK, "start: A\nA: \"a\" A", NULL, NULL, "defined by itself"},
        {GRAMMAR_LARK, "start: a\n", NULL, NULL, "\"a\" is not defined"},
        {GRAMMAR_LARK, "start: \"a\"\nx.2: \"b\"", NULL, NULL, "priorities"},
        {GRAMMAR_LARK, "%import other.X\nstart: X", NULL, NULL, "common"},
        {GRAMMAR_LARK, "start: /a", NULL, NULL, "no end"},
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

/* Host names have at most 253 characters, 63 in each label. */
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

/* "$anchor" and "$id" inside of data (an enum, for example) are no identifiers, and an anchor
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
        {GRAMMAR_SCHEMA, "{\"$ref\":\"#/$defs/a\"}", NULL, NULL, "leads to no schema"},
        {GRAMMAR_SCHEMA, "{\"$ref\":\"#\"}", NULL, NULL, "leads to itself"},
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
        {GRAMMAR_SCHEMA, "[]", NULL, NULL, "a schema is an object"},
        {GRAMMAR_SCHEMA, "{", NULL, NULL, "not JSON"},
        {GRAMMAR_SCHEMA, "false", NULL, NULL, "matches nothing"},
    };
    CHECK_EXAMPLES(list);
}

/* ---- the contract ---- */

static struct grammar *compile(struct grammar_source source, const struct grammar_limits *limits,
                               const struct grammar_vocab *v)
{
    struct grammar *g;
    struct err err = {{0}};
    source.n_bytes = strlen(source.text);
    if (grammar_compile(&source, limits, v, &g, &err) != OK) {
        CHECK_FAIL("%s: %s", source.text, err.text);
    }
    return g;
}

static bool accepts_text(struct grammar *g, const char *s)
{
    enum status st;
    return accepts(g, s, strlen(s), &st);
}

/* Unbounded white space would let a model write blanks for ever. */
TEST(white_space_is_bounded_and_can_be_chosen)
{
    const char *schema = "{\"type\":\"array\",\"items\":{\"type\":\"null\"}}";
    char text[64] = "[";
    struct grammar *g = compile((struct grammar_source){.text = schema}, NULL, NULL);
    memset(text + 1, ' ', 24);
    strcpy(text + 25, "]");
    CHECK(accepts_text(g, text));
    strcpy(text + 25, " ]");
    CHECK(!accepts_text(g, text) && !accepts_text(g, " []") && !accepts_text(g, "[] "));
    grammar_free(g);
    g = compile((struct grammar_source){.text = schema, .disable_any_whitespace = true}, NULL,
                NULL);
    CHECK(accepts_text(g, "[null,null]") && !accepts_text(g, "[null, null]"));
    grammar_free(g);
    g = compile((struct grammar_source){.text = schema, .whitespace_pattern = "[ \\n]?"}, NULL,
                NULL);
    CHECK(accepts_text(g, "[null, null]") && !accepts_text(g, "[null,  null]"));
    grammar_free(g);
    struct grammar_source bad = {
        .text = schema, .n_bytes = strlen(schema), .whitespace_pattern = "x?"};
    struct err err;
    CHECK_EQ(grammar_compile(&bad, NULL, NULL, &g, &err), ERR_INVALID);
    CHECK(g == NULL);
}

/* Without additionalProperties objects are closed, unless open ones are asked for. */
TEST(objects_are_closed_or_open)
{
    const char *schema = "{\"type\":\"object\",\"properties\":{\"a\":true}}";
    struct grammar *g = compile((struct grammar_source){.text = schema}, NULL, NULL);
    CHECK(!accepts_text(g, "{\"b\":1}"));
    grammar_free(g);
    g = compile((struct grammar_source){.text = schema, .open_objects = true}, NULL, NULL);
    CHECK(accepts_text(g, "{\"b\":1}") && accepts_text(g, "{\"a\":1,\"b\":1}"));
    grammar_free(g);
}

/* Two tokens with the same text, a special one, and two that end a text. */
static struct grammar_vocab *small_vocab(void)
{
    // Id 9 and 10 end a text; 8 is special and has no bytes; 5 and 6 are the same.
    static const struct grammar_token tokens[] = {
        {"{", 1, false}, {"\"a\"", 3, false}, {":", 1, false},   {"1", 1, false},  {"}", 1, false},
        {"x", 1, false}, {"x", 1, false},     {"\":", 2, false}, {NULL, 0, false}, {"}", 1, false},
        {"", 0, false},  {"\xc3", 1, false},  {"\xa9", 1, false}};
    const int32_t ends[] = {9, 10};
    struct grammar_vocab *v;
    struct err err;
    CHECK_EQ(grammar_vocab_make(tokens, 13, ends, 2, &v, &err), OK);
    return v;
}

/* Computes the mask in both ways that the interface has; they must agree. */
static uint32_t mask_of(struct grammar *g, struct grammar_state s)
{
    uint32_t words[1] = {0};
    CHECK_EQ(grammar_mask(g, s, words), OK);
    for (int32_t id = 0; id < 13; id++) {
        bool allowed;
        CHECK_EQ(grammar_allows(g, s, id, &allowed), OK);
        CHECK_EQ(allowed, words[0] >> id & 1);
    }
    return words[0];
}

/* Masks allow tokens that end within a character, and end tokens only where the text may end. */
TEST(masks_tokens_and_ends)
{
    struct grammar_vocab *v = small_vocab();
    struct grammar *g =
        compile((struct grammar_source){.kind = GRAMMAR_REGEX, .text = "xé|x\\}?"}, NULL, v);
    struct grammar_state s = grammar_start(g), before = s;
    CHECK_EQ(mask_of(g, s), 1 << 5 | 1 << 6);
    CHECK_EQ(grammar_advance_token(g, &s, 0), ERR_INVALID);
    CHECK(s.id == before.id);
    CHECK_EQ(grammar_advance_token(g, &s, 6), OK);
    CHECK(grammar_may_end(g, s));
    CHECK_EQ(mask_of(g, s), 1 << 4 | 1 << 9 | 1 << 10 | 1 << 11); // id 9 ends the text: its '}'
                                                                  // does not count
    CHECK_EQ(grammar_advance_token(g, &s, 11), OK);               // half a character
    CHECK(!grammar_may_end(g, s));
    CHECK_EQ(mask_of(g, s), 1 << 12);
    CHECK_EQ(grammar_advance_token(g, &s, 12), OK);
    CHECK_EQ(mask_of(g, s), 1 << 9 | 1 << 10);
    CHECK_EQ(grammar_advance_token(g, &s, 8), ERR_INVALID);
    CHECK_EQ(grammar_advance_token(g, &s, 13), ERR_INVALID);
    grammar_free(g);
    grammar_vocab_free(v);
}

/* Forced text can be written without the model, up to the first choice. */
TEST(forced_text_ends_where_there_is_a_choice)
{
    struct grammar *g = compile(
        (struct grammar_source){.kind = GRAMMAR_REGEX, .text = "begin(ning)? [ab]"}, NULL, NULL);
    char text[32];
    struct grammar_state s = grammar_start(g);
    CHECK_EQ(grammar_forced(g, s, text, sizeof text), 5);
    CHECK_MEM(text, "begin", 5);
    CHECK_EQ(grammar_forced(g, s, text, 3), 3);
    CHECK_EQ(grammar_advance(g, &s, "beginn", 6), OK);
    CHECK_EQ(grammar_forced(g, s, text, sizeof text), 4);
    CHECK_MEM(text, "ing ", 4);
    grammar_free(g);
}

/* Forced text after other text, tokenised as in the middle of a text. */
static void check_split(const char *model, const char *before, const char *forced)
{
    struct tokenizer *tok;
    struct grammar_vocab *v;
    struct err err;
    REQUIRE(tokenizer_load(model, &tok, &err) == OK);
    REQUIRE(grammar_vocab_open(tok, tokenizer_vocab_size(tok), NULL, 0, &v, &err) == OK);
    char source[200];
    snprintf(source, sizeof source, "%s%s", before, forced);
    struct grammar *g =
        compile((struct grammar_source){.kind = GRAMMAR_REGEX, .text = source}, NULL, v);
    struct grammar_state s = grammar_start(g);
    REQUIRE(grammar_advance(g, &s, before, strlen(before)) == OK);
    struct ids want;
    struct text_span span = {source, strlen(source), true};
    ids_init(&want, 200);
    REQUIRE(tokenizer_encode(tok, &span, 1, (struct tokenizer_flags){0}, &want, &err) == OK);
    int32_t ids[64];
    size_t n = grammar_forced_tokens(g, s, 4, ids, 64);
    CHECK(n > 0 && n < want.n);
    for (size_t i = 0; i < n && n <= want.n; i++) {
        CHECK_EQ(ids[i], want.v[want.n - n + i]);
    }
    CHECK_EQ(grammar_forced_tokens(g, s, 4, ids, 2), 2);
    CHECK_EQ(grammar_forced_tokens(g, s, 100, ids, 64), 0);
    ids_deinit(&want);
    grammar_free(g);
    grammar_vocab_free(v);
    tokenizer_free(tok);
}

/* Otherwise the model would see tokens that it has never seen after this text. */
TEST(forced_text_is_split_as_the_tokenizer_splits)
{
    static const char *const models[] = {"models/demo", "test/golden/llama-3",
                                         "test/golden/llama-2", "test/golden/gemma"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        check_split(models[i], "\"", "name\": \"the other\"");
        check_split(models[i], ":\"", "été\", and name");
    }
}

/* Cutting a text differently must lead to the same state, since tokens cut it anywhere. */
TEST(a_state_is_a_function_of_the_bytes)
{
    const char *text = "{\"k\": [{\"k\": [\"xyz\", 1.5e3]}]}";
    struct grammar *g =
        compile((struct grammar_source){.text = "{\"type\":\"object\"}"}, NULL, NULL);
    struct grammar_state whole = grammar_start(g), piece = whole;
    CHECK_EQ(grammar_advance(g, &whole, text, strlen(text)), OK);
    for (size_t i = 0; i < strlen(text); i++) {
        CHECK_EQ(grammar_advance(g, &piece, text + i, 1), OK);
    }
    CHECK(whole.id == piece.id && grammar_may_end(g, whole));
    grammar_free(g);
}

/* Tables of states are limited; when one is emptied, old states must be noticed and made
 * anew. */
TEST(full_tables_are_emptied_and_states_become_stale)
{
    struct grammar_limits limits = {.max_table_bytes = 60000};
    struct grammar *g = compile((struct grammar_source){.text = "{}"}, &limits, NULL);
    struct grammar_state s = grammar_start(g), first = s;
    char text[2000];
    enum status st = OK;
    memset(text, '[', sizeof text);
    size_t n = 0;
    while (n < sizeof text && (st = grammar_advance(g, &s, text + n, 1)) == OK) {
        n++;
    }
    CHECK_EQ(st, ERR_BUSY); // every bracket is a state of its own
    CHECK(n > 10);
    CHECK_EQ(grammar_advance(g, &first, "1", 1), ERR_BUSY); // the state is stale
    CHECK(!grammar_may_end(g, first));
    CHECK_EQ(grammar_fold(g, "[[1", 3, &s), OK); // the same text has a new state
    CHECK_EQ(grammar_advance(g, &s, "]]", 2), OK);
    CHECK(grammar_may_end(g, s));
    CHECK_EQ(grammar_fold(g, text, sizeof text, &s),
             ERR_LIMIT); // no table of this size can hold the state
    CHECK_EQ(grammar_fold(g, "x", 1, &s), ERR_INVALID);
    grammar_free(g);
}

/* One row for each limit. */
TEST(limits_are_enforced)
{
    static const struct {
        struct grammar_limits limits;
        enum grammar_kind kind;
        const char *text;
    } rows[] = {
        {{.max_text_bytes = 3}, GRAMMAR_REGEX, "abcd"},
        {{.max_depth = 2}, GRAMMAR_REGEX, "(((a)))"},
        {{.max_depth = 2}, GRAMMAR_GBNF, "root ::= (((\"a\")))"},
        {{.max_depth = 2}, GRAMMAR_LARK, "start: (((\"a\")))"},
        {{.max_depth = 2}, GRAMMAR_SCHEMA, "{\"items\":{\"items\":{\"items\":{}}}}"},
        {{.max_repeat = 5}, GRAMMAR_REGEX, "a{6}"},
        {{.max_nodes = 4}, GRAMMAR_SCHEMA, "{\"enum\":[1,2,3,4]}"},
        {{.max_compile_work = 100}, GRAMMAR_SCHEMA, "{\"type\":\"object\"}"},
        {{.max_compile_bytes = 1000}, GRAMMAR_SCHEMA, "{\"type\":\"object\"}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct grammar_source source = {
            .kind = rows[i].kind, .text = rows[i].text, .n_bytes = strlen(rows[i].text)};
        struct grammar *g;
        struct err err = {{0}};
        enum status st = grammar_compile(&source, &rows[i].limits, NULL, &g, &err);
        if (st != ERR_LIMIT || err.text[0] == 0) {
            CHECK_FAIL("%s: %s, %s", rows[i].text, status_name(st), err.text);
        }
        grammar_free(g);
    }
}

/* A text with unbounded ambiguity must get an error, before it uses up the server's memory. */
TEST(too_many_ways_to_read_a_text_are_an_error_of_that_text)
{
    struct grammar_limits limits = {.max_step_work = 20000};
    struct grammar *g = compile(
        (struct grammar_source){.kind = GRAMMAR_REGEX, .text = "(a{1,500}){1,500}"}, &limits, NULL);
    struct grammar_state s = grammar_start(g);
    char text[400];
    memset(text, 'a', sizeof text);
    CHECK_EQ(grammar_advance(g, &s, text, sizeof text), ERR_LIMIT);
    CHECK_EQ(grammar_advance(g, &s, "a", 1), OK); // the grammar is still usable
    grammar_free(g);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
