// SPDX-License-Identifier: Apache-2.0
/* Structural tags: the language of each format, special tokens by name and in masks, and the styles
 * of arguments. */
#include "test/engine/grammar/rows.h"

#include "engine/base/buf.h"
#include "engine/grammar/vocab.h"

#include <string.h>

static struct grammar *compile(const char *text, const struct grammar_vocab *vocab, struct err *err)
{
    struct grammar_source source = {.kind = GRAMMAR_TAGS, .text = text, .n_bytes = strlen(text)};
    struct grammar *g = NULL;
    *err = (struct err){{0}};
    grammar_compile(&source, NULL, vocab, &g, err);
    return g;
}

/* yes and no: texts separated by '|'. */
static void check(const char *tags, const char *yes, const char *no)
{
    struct err err;
    struct grammar *g = compile(tags, NULL, &err);
    if (!g) {
        CHECK_FAIL("%s: %s", tags, err.text);
        return;
    }
    for (int wanted = 0; wanted < 2; wanted++) {
        for (const char *at = wanted ? yes : no; at;) {
            const char *end = strchr(at, '|');
            size_t n = end ? (size_t)(end - at) : strlen(at);
            enum status st;
            if (accepts(g, at, n, &st) != wanted) {
                CHECK_FAIL("%s %s %.*s", tags, wanted ? "refuses" : "accepts", (int)n, at);
            }
            at = end ? end + 1 : NULL;
        }
    }
    grammar_free(g);
}

/* Checks one text, which may contain '|'. Without its last byte it must be refused. */
static void check_one(const char *tags, const char *yes)
{
    struct err err;
    struct grammar *g = compile(tags, NULL, &err);
    enum status st;
    CHECK(g && accepts(g, yes, strlen(yes), &st));
    CHECK(g && !accepts(g, yes, strlen(yes) - 1, &st));
    grammar_free(g);
}

#define SCHEMA(s) "{\"type\":\"json_schema\",\"json_schema\":" s "}"
#define TEXT(s) "{\"type\":\"const_string\",\"value\":\"" s "\"}"
#define ANY "{\"type\":\"any_text\"}"

/* Each kind of format alone: texts in its language, and texts just outside. */
TEST(formats)
{
    check(TEXT("ab"), "ab", "a|abc|");
    check(ANY, "|x\n<é>", NULL);
    check("{\"type\":\"any_text\",\"excludes\":[\"ab\",\"c\"]}", "|a|xba", "xab|c");
    check("{\"type\":\"any_text\",\"max_chars\":2}", "|é|éx", "xyz");
    check("{\"type\":\"any_text\",\"any_bytes\":true,\"excludes\":[\"ab\"]}",
          "|é|\xe6|\xe6\x97 x|\xa0|a\xe6\x62", "ab|\xe6\x61\x62|\xf5");
    check("{\"type\":\"optional\",\"content\":{\"type\":\"any_text\",\"any_bytes\":true}}",
          "|x|\xe6", "\xf5");
    check("{\"type\":\"regex\",\"pattern\":\"[a-c]+\"}", "a|abc", "|d");
    check("{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"(\\\" root? \\\")\\\"\"}", "()|(())",
          "(");
    check("{\"type\":\"grammar\",\"grammar\":\"start: /a+/ \\\"b\\\"\"}", "ab|aab", "a");
    check("{\"type\":\"sequence\",\"elements\":[" TEXT("a") "," SCHEMA("{\"type\":\"null\"}") "]}",
          "anull", "null|a");
    check("{\"type\":\"or\",\"elements\":[" TEXT("a") "," TEXT("b") "]}", "a|b", "ab|");
    check("{\"type\":\"optional\",\"content\":" TEXT("a") "}", "|a", "aa");
    check("{\"type\":\"star\",\"content\":" TEXT("ab") "}", "|ab|abab", "a");
    check("{\"type\":\"plus\",\"content\":" TEXT("ab") "}", "ab|abab", "|a");
    check("{\"type\":\"repeat\",\"min\":2,\"max\":3,\"content\":" TEXT("a") "}", "aa|aaa",
          "a|aaaa");
    check("{\"type\":\"repeat\",\"min\":1,\"max\":-1,\"content\":" TEXT("a") "}", "a|aaaa", "");
}

#define TAG(begin, content, end)                                                                   \
    "{\"type\":\"tag\",\"begin\":\"" begin "\",\"content\":" content ",\"end\":" end "}"

/* Tags, alternatives of ends, separators, and triggered tags: free text in which a trigger
 * obliges the model to complete one of the tags. Prefixes of a trigger remain plain text. */
TEST(tags)
{
    const char *think = TAG("<t>", ANY, "\"</t>\"");
    check(think, "<t></t>|<t>a</b></t>", "<t>|<t></t>x|<t></t></t>");
    check(TAG("<t>", ANY, "[\"</t>\",\"!\"]"), "<t></t>|<t>a!", "<t>!</t>");
    const char *list =
        "{\"type\":\"tags_with_separator\",\"separator\":\", \",\"at_least_one\":true,"
        "\"tags\":[" TAG("a", SCHEMA("{\"type\":\"integer\"}"), "\"\"") "]}";
    check(list, "a1|a1, a22", "|a1,a2|a1, ");
#define CALLS(more)                                                                                \
    "{\"type\":\"triggered_tags\",\"triggers\":[\"<f=\"],\"tags\":[" TAG(                          \
        "<f=g>", SCHEMA("{\"type\":\"integer\"}"),                                                 \
        "\"</f>\"") "," TAG("<f=h>", SCHEMA("{\"type\":\"null\"}"), "\"</f>\"") "]" more "}"
    check(CALLS(""), "|hi|<f|x<f=g>1</f>y<f=h>null</f>|<f=g>1</f><f=g>2</f>",
          "<f=|<f=x>|<f=g>null</f>");
    check(CALLS(",\"at_least_one\":true"), "<f=g>1</f>|<f=g>1</f> and <f=h>null</f>.",
          "|x<f=g>1</f>");
    check(CALLS(",\"stop_after_first\":true"), "|a|a<f=g>1</f>",
          "<f=g>1</f> |<f=g>1</f><f=g>1</f>");
    check(CALLS(",\"excludes\":[\"no\"]"), "n|<f=g>1</f>n", "no");
    check("{\"type\":\"dispatch\",\"rules\":[[\"<n>\"," SCHEMA("{\"type\":\"integer\"}") "]]}",
          "|a<n>1<n>2b", "<n>x");
    check("{\"structures\":[{\"begin\":\"<f>\",\"schema\":{\"type\":\"null\"},\"end\":\"</f>\"}],"
          "\"triggers\":[\"<f>\"]}",
          "x|a<f>null</f>b", "<f>1</f>");
}

/* Arguments in the syntax of a model family instead of JSON. */
#define STYLED(style, schema)                                                                      \
    "{\"type\":\"json_schema\",\"style\":\"" style "\",\"json_schema\":" schema "}"
#define OBJECT(required)                                                                           \
    "{\"type\":\"object\",\"$defs\":{\"P\":{\"type\":\"object\",\"properties\":{\"q\":{\"type\":"  \
    "\"boolean\"}},\"required\":[\"q\"]}},\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{"     \
    "\"type\":\"integer\"},\"p\":{\"$ref\":\"#/$defs/P\"}},\"required\":[" required "]}"

/* Strings are written raw in XML styles, so they must not contain the closing tag; other values are
 * JSON. Types decide: an enum of strings is written without quotes, "python" spells True. */
TEST(styles)
{
    check(STYLED("json", OBJECT("\"s\"")), "{\"s\": \"\"}|{\"s\":\"a\",\"p\":{\"q\":true}}", "{}");
#define Q(k, v) "<parameter=" k ">\n" v "\n</parameter>\n"
    check(STYLED("qwen_xml", OBJECT("\"s\"")),
          Q("s", "") "|" Q("s", "a\"<\n") Q("n", "5") Q("p", "{\"q\": true}"),
          "|" Q("n", "5") "|" Q("s", "</parameter>") "|" Q("s", "") Q("p", "x"));
    check(STYLED("qwen_xml", OBJECT("")), "|" Q("n", "-1"), Q("n", "x"));
    check(STYLED("qwen_xml", "{\"type\":\"object\"}"), "|" Q("any", "thing"), Q("", "x"));
    check(STYLED("qwen_xml", "{\"properties\":{\"e\":{\"enum\":[\"a\",\"b\"]},\"u\":{\"anyOf\":[{"
                             "\"type\":\"string\",\"maxLength\":2},{\"type\":\"null\"}]}}}"),
          Q("e", "a") "|" Q("u", "xy") "|" Q("u", "null"), Q("e", "\"a\"") "|" Q("u", "xyz"));
    check(STYLED("glm_xml", OBJECT("\"s\"")), "<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n",
          "<arg_key>n</arg_key>\n");
    check_one(STYLED("kimi_k3_xml", OBJECT("\"n\"")),
              "<|open|>argument key=\"n\" type=\"number\"<|sep|>5<|close|>argument<|sep|>");
    check_one(STYLED("gemma4", OBJECT("\"s\"")), "{s:<|\"|>a \"b\"\n<|\"|>,n:5,p:{q:true}}");
#define P(k, t, v)                                                                                 \
    "<\xEF\xBD\x9C"                                                                                \
    "DSML\xEF\xBD\x9Cparameter name=\"" k "\" string=\"" t "\">" v "</\xEF\xBD\x9C"                \
    "DSML\xEF\xBD\x9Cparameter>\n"
    check(STYLED("deepseek_xml", OBJECT("\"s\"")), P("s", "true", "5") P("n", "false", "5"),
          P("s", "false", "5") "|" P("n", "true", "5"));
    check(STYLED("python", OBJECT("\"s\"")), "s=\"a\"|s=\"a\", n=5, p={\"q\": True}",
          "|s='a'|s=\"a\", p={\"q\": true}");
    check(STYLED("minimax_xml", OBJECT("\"n\"")), "<parameter name=\"n\">7</parameter>\n", "7");
    check(STYLED("minicpm_xml", OBJECT("\"n\"")), "<param name=\"n\">7</param>", "7");
    check(STYLED("seed_xml", OBJECT("\"n\"")), "<parameter=n>7</parameter>\n", "7");
}

TEST(text_arguments)
{
#define IN(style, content)                                                                         \
    "{\"type\":\"text_argument\",\"name\":\"input\",\"style\":\"" style "\",\"content\":" content  \
    "}"
    const char *nested =
        IN("json", "{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"\\\\\\\"\\\" root "
                   "\\\"\\\\n\\\" | [^x]\"}");
    check(nested, "{\"input\": \"y\"}|{\"input\": \"\\\"\\\"é\\n\\n\"}|{\"input\": \"\\\\\"}",
          "{\"input\": \"x\"}|{\"input\": \"\\\"y\"}|{\"input\": \"\"\"}");
    check(IN("json", "{\"type\":\"regex\",\"pattern\":\"\\\"{2}\"}"), "{\"input\": \"\\\"\\\"\"}",
          "{\"input\": \"\\\"\"}");
    check(IN("qwen_xml", "{\"type\":\"regex\",\"pattern\":\"a\\\"\"}"), Q("input", "a\""), "a");
    check(IN("python", "{\"type\":\"regex\",\"pattern\":\"a\\\"\"}"), "input=\"a\\\"\"", "a");
}

/* Grammars of every kind keep their language when they are a part of a larger grammar. */
TEST(every_kind_can_be_a_part)
{
    static const struct {
        const char *text, *yes, *no;
    } rows[GRAMMAR_N_KINDS] = {
        [GRAMMAR_SCHEMA] = {"{\"enum\":[1,22]}", "<1>|<22>", "<2>|<>"},
        [GRAMMAR_REGEX] = {"^a\"+$", "<a\">|<a\"\">", "<a>|<b>"},
        [GRAMMAR_GBNF] = {"root ::= \"x\" root | \"y\"", "<y>|<xxy>", "<x>|<yy>"},
        [GRAMMAR_LARK] = {"start: \"x\"~2", "<xx>", "<x>|<xxx>"},
        [GRAMMAR_TAGS] = {TEXT("t"), "<t>", "<>|<tt>"},
    };
    for (int k = 0; k < GRAMMAR_N_KINDS; k++) {
        struct grammar_source part = {(enum grammar_kind)k, rows[k].text, strlen(rows[k].text),
                                      .disable_any_whitespace = true};
        struct buf b;
        buf_init(&b, 1 << 16);
        buf_puts(&b, "{\"type\":\"sequence\",\"elements\":[" TEXT("<") ",");
        grammar_put_tag(&part, &b);
        buf_puts(&b, "," TEXT(">") "]}");
        check(b.data, rows[k].yes, rows[k].no);
        // as a rule, after the rules of another grammar
        buf_clear(&b);
        buf_puts(&b, "{\"definitions\":{\"part\":");
        grammar_put_tag(&part, &b);
        buf_puts(&b, "},\"format\":{\"type\":\"sequence\",\"elements\":["
                     "{\"type\":\"grammar\",\"grammar\":\"root ::= a\\na ::= \\\"<\\\"\"},"
                     "{\"type\":\"defined\",\"name\":\"part\"}," TEXT(">") "]}}");
        check(b.data, rows[k].yes, rows[k].no);
        buf_deinit(&b);
    }
}

TEST(refusals)
{
    static const char *const rows[][2] = {
        {"[]", "must have a \"type\""},
        {"{\"type\":\"any\"}", "no format of type \"any\""},
        {"{\"type\":\"any_text\",\"max_tokens\":3}", "\"max_tokens\" is not supported"},
        {"{\"type\":\"sequence\",\"elements\":[" ANY ",{\"type\":\"tag\"}]}",
         "#/elements/1: a tag needs"},
        {SCHEMA("{\"properties\":{\"x\":{\"type\":\"objekt\"}}}"), "#/json_schema/properties/x"},
        {"{\"type\":\"regex\",\"pattern\":\"(?=a)\"}", "#/pattern: "},
        {"{\"type\":\"grammar\",\"grammar\":\"root ::= x\"}", "\"x\" is not defined"},
        {"{\"type\":\"grammar\",\"syntax\":\"peg\",\"grammar\":\"x\"}", "no such \"syntax\""},
        {"{\"type\":\"grammar\",\"syntax\":\"tags\",\"grammar\":\"x\"}", "no such \"syntax\""},
        {CALLS("") + 0, NULL},
        {"{\"type\":\"triggered_tags\",\"triggers\":[\"<\"],\"tags\":[" TAG("[", ANY, "\"]\"") "]}",
         "begins with none of the triggers"},
        {"{\"type\":\"token\",\"token\":3}", "a token of this id"},
        {STYLED("yaml", "{}"), "no such \"style\""},
        {"{\"type\":\"or\",\"elements\":[]}", "matches nothing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err;
        struct grammar *g = compile(rows[i][0], NULL, &err);
        bool good = rows[i][1] ? !g && strstr(err.text, rows[i][1]) : g != NULL;
        if (!good) {
            CHECK_FAIL("%s: %s", rows[i][0], g ? "compiles" : err.text);
        }
        grammar_free(g);
    }
}

/* ---- special tokens ---------------------------------------------------------------------------
 */

/* A vocabulary of seven tokens; the last is an invalid byte, which no text may contain. */
enum { A, B, LESS, OPEN, CLOSE, END, HIGH, N_IDS };

static struct grammar_vocab *special_vocab(void)
{
    static const struct grammar_token tokens[N_IDS] = {
        [A] = {"a", 1, false},        [B] = {"b", 1, false},          [LESS] = {"<", 1, false},
        [OPEN] = {"<open>", 6, true}, [CLOSE] = {"<close>", 7, true}, [END] = {"<end>", 5, true},
        [HIGH] = {"\xff", 1, false}};
    const int32_t end = END;
    struct grammar_vocab *v;
    struct err err;
    CHECK_EQ(grammar_vocab_make(tokens, N_IDS, &end, 1, &v, &err), OK);
    return v;
}

/* The mask after these tokens. */
static uint32_t mask_after(struct grammar *g, const int32_t *ids, size_t n)
{
    struct grammar_state s;
    uint32_t words[1] = {0};
    CHECK_EQ(grammar_fold_tokens(g, ids, n, &s), OK);
    CHECK_EQ(grammar_mask(g, s, words), OK);
    return words[0];
}

#define BIT(id) (1u << (id))

/* A special token named in a format is that token only: neither its spelling in ordinary tokens nor
 * the token as plain text is allowed. The end token must not be named, since it ends the answer. */
TEST(special_tokens_by_name)
{
    struct grammar_vocab *v = special_vocab();
    struct err err;
    struct grammar *g = compile(TAG("a<open>", ANY, "\"<close>\""), v, &err);
    static const int32_t ids[] = {A, OPEN, B, CLOSE};
    CHECK_EQ(mask_after(g, ids, 0), BIT(A));
    CHECK_EQ(mask_after(g, ids, 1), BIT(OPEN)); // the special token, but not its spelling
    CHECK_EQ(mask_after(g, ids, 2), BIT(A) | BIT(B) | BIT(LESS) | BIT(CLOSE));
    CHECK_EQ(mask_after(g, ids, 4), BIT(END));
    size_t n;
    CHECK(!grammar_token_bytes(v, OPEN, &n) && n == 0); // the special token has no text
    char forced[8];
    grammar_free(g);
    g = compile("{\"type\":\"token\",\"token\":4}", v, &err);
    CHECK_EQ(mask_after(g, NULL, 0), BIT(CLOSE));
    CHECK_EQ(grammar_forced(g, grammar_start(g), forced, sizeof forced), 5);
    grammar_free(g);
    g = compile("{\"type\":\"any_tokens\",\"exclude_tokens\":[\"<close>\"]}", v, &err);
    CHECK_EQ(mask_after(g, NULL, 0), BIT(A) | BIT(B) | BIT(LESS) | BIT(OPEN) | BIT(END));
    CHECK_EQ(mask_after(g, ids, 3), BIT(A) | BIT(B) | BIT(LESS) | BIT(OPEN) | BIT(END));
    grammar_free(g);
    g = compile(TEXT("<end>"), v, &err);
    CHECK(!g && strstr(err.text, "ends the text"));
    g = compile("{\"type\":\"any_tokens\",\"typ\\u0000\":[4]}", v, &err); // as long as "type"
    CHECK(!g && strstr(err.text, "not supported here"));
    g = compile("{\"type\":\"any_tokens\",\"\":[4]}", v, &err);
    CHECK(!g && strstr(err.text, "not supported here"));
    g = compile(ANY, v, &err);
    CHECK_EQ(mask_after(g, NULL, 0), BIT(A) | BIT(B) | BIT(LESS) | BIT(END));
    grammar_free(g);
    grammar_vocab_free(v);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
