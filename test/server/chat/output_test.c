#include "server/chat/output.h"

#include "engine/base/file.h"
#include "test/check.h"

#include <stdlib.h>
#include <time.h>

/* ---- a sample folded into one string ---------------------------------------------------------- */

struct fold {
    struct buf content, reasoning, calls, arguments;
    int n_calls;
};

static void on_text(void *arg, const char *s, size_t n)
{
    buf_put(&((struct fold *)arg)->content, s, n);
}

static void on_reasoning(void *arg, const char *s, size_t n)
{
    buf_put(&((struct fold *)arg)->reasoning, s, n);
}

static void on_call(void *arg, const char *name, const char *id)
{
    struct fold *f = arg;
    f->n_calls++;
    buf_printf(&f->calls, "|%s#%s:", name, id);
}

static void on_arguments(void *arg, const char *s, size_t n)
{
    buf_put(&((struct fold *)arg)->calls, s, n);
}

static const struct tool_sink SINK = {on_text, on_reasoning, on_call, on_arguments, NULL};

static void fold_init(struct fold *f)
{
    *f = (struct fold){.n_calls = 0};
    buf_init(&f->content, 1 << 20);
    buf_init(&f->reasoning, 1 << 20);
    buf_init(&f->calls, 1 << 20);
    buf_puts(&f->content, "");
    buf_puts(&f->reasoning, "");
    buf_puts(&f->calls, "");
}

static void fold_deinit(struct fold *f)
{
    buf_deinit(&f->content);
    buf_deinit(&f->reasoning);
    buf_deinit(&f->calls);
}

static uint64_t rng = 88172645463325252ULL;
static size_t below(size_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return n ? (size_t)(rng % n) : 0;
}

/* Text as an exact parser gets it: each of its markers is one byte. */
static char *with_marks(const struct tool_parser *parser, const char *text)
{
    char *out = malloc(strlen(text) + 1), *to = out;
    while (*text) {
        int found = -1;
        for (int i = 0; parser->exact && parser->markers[i]; i++) {
            found = strncmp(text, parser->markers[i], strlen(parser->markers[i])) == 0 ? i : found;
        }
        *to++ = found >= 0 ? (char)(TOOL_MARK + found) : *text;
        text += found >= 0 ? strlen(parser->markers[found]) : 1;
    }
    *to = '\0';
    return out;
}

/* Feeds the text in pieces: whole, one byte each, cut at `cut`, or random. */
static void run(const struct output_options *opt, const char *text, size_t n, size_t most,
                size_t cut, struct fold *f)
{
    fold_init(f);
    struct tool_sink sink = SINK;
    sink.arg = f;
    struct output o;
    output_init(&o, opt, &sink);
    for (size_t i = 0; i < n;) {
        size_t piece = cut ? (i < cut ? cut - i : n - i) : most == 1 ? 1 : 1 + below(most);
        piece = piece < n - i ? piece : n - i;
        char *copy = malloc(piece); // of the exact size, so that ASan sees an overrun
        memcpy(copy, text + i, piece);
        output_text(&o, copy, piece);
        free(copy);
        i += piece;
    }
    output_finish(&o);
    output_deinit(&o);
}

static bool same(const struct fold *a, const struct fold *b)
{
    return strcmp(a->content.data, b->content.data) == 0 &&
           strcmp(a->reasoning.data, b->reasoning.data) == 0 &&
           strcmp(a->calls.data, b->calls.data) == 0;
}

/* The result must not depend on the cuts; returns the folded result of the whole text. */
static void check_cuts(const struct output_options *opt, const char *text, struct fold *whole)
{
    size_t n = strlen(text);
    run(opt, text, n, n ? n : 1, n, whole);
    for (size_t i = 0; i < n + 20; i++) {
        struct fold f;
        run(opt, text, n, i < n ? n : i == n ? 1 : 7, i < n ? i : 0, &f);
        if (!same(&f, whole)) {
            CHECK_FAIL("cut %zu of \"%s\": [%s] [%s] [%s] instead of [%s] [%s] [%s]", i, text,
                       f.content.data, f.reasoning.data, f.calls.data, whole->content.data,
                       whole->reasoning.data, whole->calls.data);
            i = n + 20;
        }
        fold_deinit(&f);
    }
}

static struct json *tools_of(const char *text)
{
    struct json *root;
    struct err err = {""};
    if (json_parse(text, strlen(text), NULL, &root, &err) != OK) {
        CHECK_FAIL("%s", err.text);
    }
    return root;
}

#define PARSES(kind, text, content_, calls_)                                                       \
    do {                                                                                           \
        struct json *tools = tools_of(TOOLS);                                                      \
        struct output_options opt = {.parser = tool_parser_find(kind), .tools = tools};            \
        struct fold f;                                                                             \
        check_cuts(&opt, text, &f);                                                                \
        CHECK_STR(f.content.data, content_);                                                       \
        CHECK_STR(f.calls.data, calls_);                                                           \
        fold_deinit(&f);                                                                           \
        json_free(tools);                                                                          \
    } while (0)

#define TOOLS                                                                                      \
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"n\":{\"type\":\"integer\"}," \
    "\"s\":{\"type\":\"string\"},\"o\":{\"type\":\"object\"},\"b\":{\"type\":\"boolean\"},"        \
    "\"u\":{\"type\":[\"string\",\"null\"]}}}}},{\"function\":{\"name\":\"g\"}}]"

TEST(hermes_calls)
{
    PARSES("hermes", "plain <tool", "plain <tool", "");
    PARSES("hermes", "a\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"}\\\"<\"}}\n"
                     "</tool_call>\n<tool_call>{\"arguments\":{},\"name\":\"g\"}</tool_call> b",
           "a b", "|f#:{\"s\": \"}\\\"<\"}|g#:{}");
    PARSES("hermes", "<tool_call>{\"name\": \"f\"}</tool_call>", "", "|f#:{}");
    PARSES("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call> b",
           " b", "|f#:{\"a\": 1}"); // its last brace is missing
    PARSES("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "", "|f#:{}");
    PARSES("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}</tool_call>",
           "", "|f#:{\"n\": 1}");
    PARSES("hermes", "<tool_call>oops</tool_call> x", "<tool_call>oops</tool_call> x", "");
    PARSES("hermes", "<tool_call>{\"name\": \"f\"", "", "|f#:{}");
    PARSES("hermes", "<tool_call>{\"nam", "<tool_call>{\"nam", "");
    PARSES("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1", "",
           "|f#:{\"n\": 1");
    PARSES("hermes", "<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": 5}</tool_call>",
           "");
    PARSES("hermes", "<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"g\"}\n"
                     "</tool_call>", "", "|f#:{}|g#:{}");
}

TEST(llama3_calls)
{
    PARSES("llama3_json", "{\"name\": \"f\", \"parameters\": {\"n\": 1}}", "", "|f#:{\"n\": 1}");
    PARSES("llama3_json", "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", "
                          "\"parameters\": {\"a\": [1, {}]}}", "", "|f#:{}|g#:{\"a\": [1, {}]}");
    PARSES("llama3_json", " {\"name\": \"other\", \"parameters\": {}} ",
           " {\"name\": \"other\", \"parameters\": {}} ", "");
    PARSES("llama3_json", "{\"amount\": 12, \"name\": \"f\"}", "{\"amount\": 12, \"name\": \"f\"}",
           "");
    PARSES("llama3_json", "{\"type\": \"function\", \"name\": \"g\", \"parameters\": {\"x\": 1}}",
           "", "|g#:{\"x\": 1}");
    PARSES("llama3_json", "Hello {\"name\": \"f\", \"parameters\": {}}",
           "Hello {\"name\": \"f\", \"parameters\": {}}", "");
    PARSES("llama3_json", "  \n", "  \n", "");
    PARSES("llama3_json", "ok <|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "ok", "|f#:{}");
}

TEST(mistral_calls)
{
    PARSES("mistral", "hi[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}", "hi",
           "|f#:{\"n\": 1}|g#abc:{}");
    PARSES("mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"s\": \"]\"}, \"id\": "
                      "\"123456789\"}, {\"name\": \"g\", \"arguments\": {}}]", "",
           "|f#123456789:{\"s\": \"]\"}|g#:{}");
    PARSES("mistral", "[TOOL_CALLS]f{\"n\": {\"a\": \"\\\"}\"}}", "",
           "|f#:{\"n\": {\"a\": \"\\\"}\"}}");
    PARSES("mistral", "[TOOL_CALLS]?", "[TOOL_CALLS]?", "");
    PARSES("mistral", "[TOOL_", "[TOOL_", "");
    PARSES("mistral", "[TOOL_CALLS]f[ARGS]{\"n\": 1", "", "|f#:{\"n\": 1");
    PARSES("mistral", "[TOOL_CALLS]f[ARGS]", "", "|f#:{}");
}

TEST(pythonic_calls)
{
    PARSES("pythonic", "[f(n=-1, s='a\\'b\\n', o={'k': [True, None, 1.5e3], \"z\": ()}), g()]", "",
           "|f#:{\"n\": -1, \"s\": \"a'b\\n\", \"o\": {\"k\": [true, null, 1.5e3], \"z\": []}}"
           "|g#:{}");
    PARSES("pythonic", "[link](http://x) and more", "[link](http://x) and more", "");
    PARSES("pythonic", "[1, 2, 3]", "[1, 2, 3]", "");
    PARSES("pythonic", "Sure.\n<|tool_call_start|>[f(n=007)]<|tool_call_end|>", "Sure.",
           "|f#:{\"n\": 7}");
    PARSES("pythonic", "[f(n=oops)]", "[f(n=oops)]", "");
    PARSES("pythonic", "[f(s=\"\\u00e9\\x41\\U0001F600\")]", "", "|f#:{\"s\": \"\xC3\xA9"
                                                                 "A\xF0\x9F\x98\x80\"}");
    PARSES("pythonic", "[f(n=1), g(", "", "|f#:{\"n\": 1}");
    PARSES("pythonic", "[f(s=\"\\UFFFFFFFF\")]", "[f(s=\"\\UFFFFFFFF\")]", "");
    PARSES("pythonic", "[f(s=\"\\x\x14\x11\")]", "[f(s=\"\\x\x14\x11\")]", "");
}

TEST(qwen3_coder_calls)
{
    PARSES("qwen3_coder", "x\n<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n"
                          "<parameter=s>\n5\n</parameter>\n</function>\n</tool_call>", "x\n",
           "|f#:{\"n\": 5, \"s\": \"5\"}");
    PARSES("qwen3_coder", "<function=f><parameter=o>{\"a\": 1}</parameter><parameter=b>True"
                          "</parameter><parameter=u>null</parameter></function>", "",
           "|f#:{\"o\": {\"a\": 1}, \"b\": true, \"u\": null}");
    PARSES("qwen3_coder", "<tool_call>\n<function=g>\n</function>\n</tool_call>\n<tool_call>\n"
                          "<function=g>\n<parameter=x>\n1\n</parameter>\n</function>\n"
                          "</tool_call>", "", "|g#:{}|g#:{\"x\": \"1\"}");
    PARSES("qwen3_coder", "<tool_call>\nnot a call", "<tool_call>\nnot a call", "");
    PARSES("qwen3_coder", "<function=f>\n<parameter=s>\nabc\n</parameter>\n<parameter=n>\n12", "",
           "|f#:{\"s\": \"abc\"}");
    PARSES("qwen3_coder", "a < b and a <function b", "a < b and a <function b", "");
}

/* Calls are wanted, and not; what they come to then. */
static void check_harmony(const char *spelled, const char *content, const char *reasoning,
                          const char *calls, const char *content_alone)
{
    struct json *tools = tools_of(TOOLS);
    char *text = with_marks(tool_parser_find("harmony"), spelled);
    struct output_options opt = {.reasoning = REASONING_HARMONY, .tools = tools};
    struct fold f;
    for (int wanted = 0; wanted < 2; wanted++) {
        opt.parser = wanted ? tool_parser_find("harmony") : NULL;
        check_cuts(&opt, text, &f);
        CHECK_STR(f.content.data, wanted ? content : content_alone);
        CHECK_STR(f.reasoning.data, reasoning);
        CHECK_STR(f.calls.data, wanted ? calls : "");
        fold_deinit(&f);
    }
    free(text);
    json_free(tools);
}

#define HARMONY(text, content, reasoning) check_harmony(text, content, reasoning, "", content)
#define ANALYSIS "<|channel|>analysis<|message|>"
#define FINAL "<|channel|>final<|message|>"
#define NEXT "<|end|><|start|>assistant"
#define CALL_F "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"

TEST(harmony_channels)
{
    HARMONY(ANALYSIS "hm\n" NEXT FINAL "Yes.\nNo.<|return|>", "Yes.\nNo.", "hm\n");
    HARMONY(FINAL "Yes", "Yes", "");
    HARMONY(ANALYSIS "one" NEXT "<|channel|>commentary<|message|>I look." NEXT ANALYSIS "two" NEXT
            FINAL "three", "I look.\nthree", "one\ntwo");
    HARMONY("<|channel|>final <|constrain|>json<|message|>{\"a\": 1}<|return|>", "{\"a\": 1}", "");
    HARMONY("<|start|>assistant" FINAL "Yes" NEXT FINAL, "Yes", "");
    HARMONY("<|channel|>commentary to=assistant" ANALYSIS "hm", "", "hm");
    HARMONY(ANALYSIS "", "", "");
    HARMONY("", "", "");
    HARMONY(" \n", " \n", "");
    HARMONY("ld, goes on<|end|>", "ld, goes on", "");
    // the markers' letters in other tokens are the model's own words
    struct output_options opt = {.reasoning = REASONING_HARMONY,
                                 .parser = tool_parser_find("harmony"), .tools = NULL};
    struct fold f;
    check_cuts(&opt, "\xf9" "final\xfaWrite <|end|><|start|>assistant" CALL_F "{}", &f);
    CHECK_STR(f.content.data, "Write <|end|><|start|>assistant" CALL_F "{}");
    fold_deinit(&f);
    opt.starts_in_reasoning = true;
    check_cuts(&opt, "hm\xfc\xf8" "assistant\xf9" "final\xfayes", &f);
    CHECK_STR(f.reasoning.data, "hm");
    CHECK_STR(f.content.data, "yes");
    fold_deinit(&f);
    opt = (struct output_options){.parser = tool_parser_find("harmony")}; // of a form without it
    check_cuts(&opt, "\xf9" "analysis\xfahm\xfc\xf8" "assistant\xf9" "final\xfayes", &f);
    CHECK_STR(f.content.data, "hm\nyes");
    fold_deinit(&f);
}

TEST(harmony_calls)
{
    check_harmony(ANALYSIS "hm" NEXT CALL_F "{\"s\": \"}\\\"<\"}<|call|>", "", "hm",
                  "|f#:{\"s\": \"}\\\"<\"}", "{\"s\": \"}\\\"<\"}");
    check_harmony(" to=functions.f<|channel|>commentary json<|message|>{\"n\": 1}", "", "",
                  "|f#:{\"n\": 1}", "{\"n\": 1}");
    check_harmony("<|channel|>commentary<|message|>I look." NEXT " to=functions.f<|channel|>"
                  "commentary <|constrain|>json<|message|> {}\n<|call|>\n<|start|>assistant" CALL_F
                  "{\"o\": [{}]}<|call|>", "I look.", "", "|f#:{}|f#:{\"o\": [{}]}",
                  "I look.\n {}\n\n{\"o\": [{}]}");
    // the channel does not matter, nor does a name that the request has not
    PARSES("harmony", "\xf9" "analysis to=functions.other\xfa{}", "", "|other#:{}");
    check_harmony("<|channel|>commentary to=g code<|message|>{}", "", "", "|g#:{}", "{}");
    // cut off, and without arguments
    check_harmony(CALL_F "{\"n\": 1", "", "", "|f#:{\"n\": 1", "{\"n\": 1");
    check_harmony(CALL_F "{\"n\": \"a" NEXT FINAL "x", "x", "", "|f#:{\"n\": \"a",
                  "{\"n\": \"a\nx");
    check_harmony(CALL_F, "", "", "|f#:{}", "");
    check_harmony(CALL_F "<|call|>", "", "", "|f#:{}", "");
    // what is no call is text
    check_harmony(CALL_F "oops<|call|>", "oops", "", "", "oops");
    check_harmony(CALL_F "{} and <|call|> more", " and more", "", "|f#:{}", "{} and  more");
    HARMONY("<|channel|>commentary to=python code<|message|>print(1)<|call|>", "print(1)", "");
    HARMONY("<|channel|>analysis to=python code<|message|>print(1)<|call|>", "", "print(1)");
}

TEST(harmony_that_is_malformed_is_content)
{
    HARMONY("Just text", "Just text", "");
    HARMONY("to=be or not", "to=be or not", "");
    HARMONY("<|message|>a<|message|>b<|constrain|>c", "abc", "");
    HARMONY("<|end|><|end|>\n<|return|>", "", "");
    HARMONY(ANALYSIS "hm" FINAL "yes", "yes", "hm");
    HARMONY(ANALYSIS "hm<|start|>assistant" FINAL "yes", "yes", "hm");
    HARMONY(ANALYSIS "hm<|end|>\n stray \n<|start|>assistant" FINAL "yes", "\n strayyes", "hm");
    // heads without a message: their own words are dropped, others are not
    HARMONY(FINAL "a<|end|><|start|>assist", "a", "");
    HARMONY(FINAL "a<|end|><|start|>assistant<|channel|>commentary to=func", "a", "");
    HARMONY("<|start|>assistant<|start|>assistant<|channel|>final<|end|>x", "x", "");
    HARMONY("<|channel|>final Hello there<|end|>", "final Hello there", "");
    HARMONY("<|channel|>caf\xc3\xa9<|message|>x", "caf\xc3\xa9\nx", "");
    HARMONY("<|start|>user<|message|>x<|end|>", "x", "");
    char name[601], text[700], content[700];
    memset(name, 'x', 300); // longer than names are
    name[300] = '\0';
    snprintf(text, sizeof text, "<|channel|>commentary to=functions.%s<|message|>{}", name);
    HARMONY(text, "{}", "");
    memset(name, 'x', 600); // and than heads
    name[600] = '\0';
    snprintf(text, sizeof text, "<|channel|>commentary to=functions.%s<|message|>{}", name);
    snprintf(content, sizeof content, "commentary to=functions.%s\n{}", name);
    HARMONY(text, content, "");
}

TEST(reasoning_is_split_off)
{
    static const struct {
        bool open;
        const char *text, *content, *reasoning;
    } cases[] = {
        {false, "<think>\nhm\n\n</think>\n\nyes", "yes", "hm"},
        {false, "no <think> here", "no <think> here", ""},
        {false, " \n<think>a</think>b</think>", "b</think>", "a"},
        {true, "hm\n</think>yes", "yes", "hm"},
        {true, "<think>\nhm</think>\n  yes", "  yes", "hm"},
        {true, "</think>\n\nyes", "yes", ""},
        {true, "never ends </thi", "", "never ends </thi"},
        {false, "<thin", "<thin", ""},
        {false, "", "", ""},
        {true, "\n", "", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct output_options opt = {.reasoning = REASONING_THINK,
                                     .starts_in_reasoning = cases[i].open};
        struct fold f;
        check_cuts(&opt, cases[i].text, &f);
        CHECK_STR(f.content.data, cases[i].content);
        CHECK_STR(f.reasoning.data, cases[i].reasoning);
        fold_deinit(&f);
    }
    CHECK(reasoning_is_open(REASONING_THINK, "x<think>\n", 9));
    CHECK(!reasoning_is_open(REASONING_THINK, "<think></think>", 15));
    CHECK(!reasoning_is_open(REASONING_NONE, "<think>", 7));
}

TEST(stop_strings_cut_and_never_leak)
{
    const char *stop[] = {"END", "\n\n", "NDX"};
    const size_t stop_bytes[] = {3, 2, 3};
    struct output_options opt = {.stop = stop, .stop_bytes = stop_bytes, .n_stop = 3};
    struct fold f;
    check_cuts(&opt, "abcENDXdef\n\n", &f);
    CHECK_STR(f.content.data, "abc");
    fold_deinit(&f);
    check_cuts(&opt, "abcEN\nDx", &f);
    CHECK_STR(f.content.data, "abcEN\nDx");
    fold_deinit(&f);
    check_cuts(&opt, "EEND", &f);
    CHECK_STR(f.content.data, "E");
    fold_deinit(&f);
    opt.include_stop = true;
    check_cuts(&opt, "a\n\nb", &f);
    CHECK_STR(f.content.data, "a\n\n");
    fold_deinit(&f);
}

/* What is held because nothing but a marker may follow must not be looked at with every token. */
TEST(long_white_space_costs_each_token_the_same)
{
    enum { N = 100000 };
    static const char *const kinds[] = {"hermes", "llama3_json", "mistral", "pythonic",
                                        "qwen3_coder", "harmony", NULL};
    struct json *tools = tools_of(TOOLS);
    char *text = malloc(N + 16);
    struct fold f;
    clock_t start = clock();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct output_options opt = {.parser = kinds[i] ? tool_parser_find(kinds[i]) : NULL,
                                     .tools = tools};
        for (size_t n_word = 0; n_word < 2; n_word++) { // alone, and behind a word
            for (int k = 0; k < 2; k++) {
                opt.reasoning = k ? REASONING_THINK : REASONING_NONE;
                opt.starts_in_reasoning = k;
                memcpy(text, "x", n_word);
                memset(text + n_word, '\n', N);
                strcpy(text + n_word + N, k ? "</think>y" : "y");
                run(&opt, text, strlen(text), 1, 0, &f);
                CHECK_EQ(f.content.n_bytes, k ? 1 : n_word + N + 1);
                CHECK_EQ(f.reasoning.n_bytes, k ? n_word : 0);
                fold_deinit(&f);
            }
        }
    }
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 5); // it was minutes
    free(text);
    json_free(tools);
}

/* Random text made of marker pieces: whatever comes out must not depend on the cuts. */
TEST(random_mixtures_do_not_depend_on_cuts)
{
    static const char *const words[] = {
        "<tool_call>", "</tool_call>", "{\"name\": \"f\"", ", \"arguments\": ", "{\"n\": 1}", "}",
        "<function=f>", "<parameter=n>", "</parameter>", "</function>", "[TOOL_CALLS]", "[ARGS]",
        "f(n=1", ")", "]", "[", ",", " ", "\n", "<think>", "</think>", "abc", "<", "\"", "\\",
        "<|python_tag|>", "{\"name\": \"f\", \"parameters\": {}}", ";", "<|tool_call_start|>",
        "<|tool_call_end|>", "g()", "'", "STOP", "ST", "null", "[CALL_ID]", "<tool_",
        "\xf8", "\xf8" "assistant", "\xf9" "analysis", "\xf9" "final", "\xf9" "commentary", "\xfa",
        " to=functions.f", "to=", "\xfb" "json", "\xfc", "\xfd", "\xfe", "\xff", "\xfa" "{}",
    };
    static const char *const kinds[] = {"hermes", "llama3_json", "mistral", "pythonic",
                                        "qwen3_coder", "harmony"};
    const char *stop[] = {"STOP"};
    const size_t stop_bytes[] = {4};
    struct json *tools = tools_of(TOOLS);
    for (int round = 0; round < 6000; round++) {
        char text[512] = "";
        size_t n_words = sizeof words / sizeof words[0], kind = below(7);
        size_t from = kind == 5 && below(2) ? n_words - 14 : 0; // harmony's own
        for (size_t i = 0, n = 1 + below(10); i < n; i++) {
            strcat(text, words[from + below(n_words - from)]);
        }
        enum reasoning_kind reasoning = kind > 4 && below(2) ? REASONING_HARMONY : REASONING_THINK;
        struct output_options opt = {
            .parser = kind < 6 ? tool_parser_find(kinds[kind]) : NULL,
            .tools = tools,
            .reasoning = below(2) ? reasoning : REASONING_NONE,
            .starts_in_reasoning = below(2) != 0,
            .stop = stop,
            .stop_bytes = stop_bytes,
            .n_stop = below(2),
        };
        struct fold whole, f;
        size_t n = strlen(text);
        run(&opt, text, n, n, n, &whole);
        for (int k = 0; k < 4; k++) {
            run(&opt, text, n, k == 0 ? 1 : 1 + below(9), k == 1 ? 1 + below(n - 1) : 0, &f);
            if (!same(&f, &whole)) {
                CHECK_FAIL("%s: \"%s\": [%s] [%s] [%s] instead of [%s] [%s] [%s]",
                           opt.parser ? opt.parser->name : "none", text, f.content.data, f.reasoning.data, f.calls.data,
                           whole.content.data, whole.reasoning.data, whole.calls.data);
            }
            fold_deinit(&f);
        }
        fold_deinit(&whole);
    }
    json_free(tools);
}

/* ---- recorded outputs ------------------------------------------------------------------------- */

static const char *parser_of(const char *template, const char *input)
{
    static const struct {
        const char *template, *parser;
    } rows[] = {
        {"Qwen3.5", "qwen3_coder"},   {"Qwen3-Coder", "qwen3_coder"}, {"Nemotron-3", "qwen3_coder"},
        {"StepFun", "qwen3_coder"},   {"Hermes", "hermes"},           {"granite-4.1", "hermes"},
        {"Reka", "hermes"},           {"QwQ", "hermes"},              {"Distill-Qwen", "hermes"},
        {"istral", "mistral"},        {"Llama-3", "llama3_json"},     {"LFM2", "pythonic"},
        {"gpt-oss", "harmony"},
    };
    for (size_t i = 0; template && i < sizeof rows / sizeof rows[0]; i++) {
        if (strstr(template, rows[i].template)) {
            return rows[i].parser;
        }
    }
    return !template && strstr(input, "tool_call_start") ? "pythonic" : NULL;
}

static bool equal_json(const struct json *a, const struct json *b)
{
    if (json_type(a) != json_type(b)) {
        return false;
    }
    switch (json_type(a)) {
    case JSON_STRING: return strcmp(json_string(a), json_string(b)) == 0;
    case JSON_NUMBER: return json_number(a, 0) == json_number(b, 0);
    case JSON_BOOL: return json_bool(a, false) == json_bool(b, false);
    case JSON_NULL: return true;
    default: break;
    }
    if (json_count(a) != json_count(b)) {
        return false;
    }
    const struct json *y = json_first(b);
    for (const struct json *x = json_first(a); x; x = json_next(x), y = json_next(y)) {
        const struct json *other = json_is(a, JSON_OBJECT) ? json_get(b, json_key(x)) : y;
        if (!other || !equal_json(x, other)) {
            return false;
        }
    }
    return true;
}

static bool matches(const struct fold *f, const struct json *expected)
{
    if (strcmp(f->content.data, json_get_string(expected, "content")) != 0 ||
        strcmp(f->reasoning.data, json_get_string(expected, "reasoning_content")) != 0) {
        return false;
    }
    const char *at = f->calls.data;
    const struct json *call = json_first(json_get(expected, "tool_calls"));
    for (; call; call = json_next(call)) {
        char head[300];
        const char *arguments = json_get_string(call, "arguments");
        snprintf(head, sizeof head, "|%s#%s:", json_get_string(call, "name"),
                 json_get_string(call, "id"));
        if (strncmp(at, head, strlen(head)) != 0) {
            return false;
        }
        at += strlen(head);
        const char *end = strstr(at, "}|");
        size_t n = end ? (size_t)(end + 1 - at) : strlen(at);
        struct json *ours = NULL, *theirs = NULL;
        json_parse(at, n, NULL, &ours, NULL);
        json_parse(arguments, strlen(arguments), NULL, &theirs, NULL);
        bool good = ours && theirs ? equal_json(ours, theirs)
                                   : !ours && !theirs; // cut off in both
        json_free(ours);
        json_free(theirs);
        if (!good) {
            return false;
        }
        at += n;
    }
    return *at == '\0';
}

static int replay(const struct json *line)
{
    const char *input = json_get_string(line, "input");
    const char *template = json_get_string(line, "template");
    const struct json *opt = json_get(line, "options");
    const char *format = json_get_string(opt, "reasoning_format");
    const char *parser = parser_of(template, input);
    /* Left out: forms that are not ours, a prefix that the message carries over from the
     * prompt, and JSON extraction of structured outputs. */
    bool carried = json_get_bool(opt, "has_prior_messages", false) &&
                   !json_get_bool(opt, "add_generation_prompt", true);
    if ((!parser && template) || carried || strstr(input, "```json") ||
        strncmp(input, "\"42\"", 4) == 0 || strstr(input, "\xef\xbd\x9c") ||
        (format && strcmp(format, "none") == 0)) {
        return 0;
    }
    bool think = parser && format;
    bool mistral = parser && strcmp(parser, "mistral") == 0;
    bool harmony = parser && strcmp(parser, "harmony") == 0;
    bool open = think && !mistral && strstr(input, "</think>") &&
                strncmp(input, "<think>", 7) != 0;
    if (parser && strcmp(parser, "pythonic") == 0 && strncmp(input, "<think>", 7) == 0) {
        think = true;
    }
    struct output_options options = {
        .parser = parser ? tool_parser_find(parser) : NULL,
        .tools = json_get(opt, "tools"),
        .reasoning = !think    ? REASONING_NONE
                     : harmony ? REASONING_HARMONY
                     : mistral ? REASONING_MISTRAL
                               : REASONING_THINK,
        .starts_in_reasoning = open,
    };
    struct fold f;
    char *text = parser ? with_marks(options.parser, input) : strdup(input);
    check_cuts(&options, text, &f);
    free(text);
    int good = matches(&f, json_get(line, "expected"));
    if (!good && strcmp(json_get_string(line, "id"), "chat029") == 0) {
        good = 1; // there the marker stays in the reasoning: a quirk we do not share
    }
    if (!good && harmony && json_count(json_get(opt, "tools")) == 0 &&
        strcmp(f.reasoning.data, "I will execute python to say hello") == 0) {
        good = 1; // there what is sent to built-in tools is lost; here it is content
    }
    if (!good) {
        CHECK_FAIL("%s: [%s] [%s] [%s]", json_get_string(line, "id"), f.content.data,
                   f.reasoning.data, f.calls.data);
    }
    fold_deinit(&f);
    return 1;
}

TEST(recorded_outputs_parse_as_expected)
{
    const char *shared = check_shared();
    if (!shared) {
        SKIP("no shared data");
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/data/chat_output_parse.jsonl", shared);
    char *text;
    size_t n_bytes;
    REQUIRE(file_read(path, 1 << 24, &text, &n_bytes, NULL) == OK);
    int n = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        struct json *root;
        if (json_parse(line, strlen(line), NULL, &root, NULL) == OK) {
            n += replay(root);
            json_free(root);
        }
    }
    printf("%d recorded outputs\n", n);
    CHECK(n >= 60);
    free(text);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
