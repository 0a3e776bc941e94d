// SPDX-License-Identifier: Apache-2.0
/* From text to reasoning, content and calls: Harmony, reasoning, stop strings, and properties of
 * all parsers. */
#include "test/server/chat/fold.h"

#include <stdlib.h>
#include <time.h>

/* The expected result with and without tool calls. */
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

/* Harmony (GPT-OSS): every message has a header with role, channel and recipient. Macros
 * spell the marker tokens as text, which with_marks turns into their bytes. */
#define HARMONY(text, content, reasoning) check_harmony(text, content, reasoning, "", content)
#define ANALYSIS "<|channel|>analysis<|message|>"
#define FINAL "<|channel|>final<|message|>"
#define NEXT "<|end|><|start|>assistant"
#define CALL_F "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"

/* The analysis channel is reasoning, final is the answer, commentary is text before a
 * call. Messages of the same kind are joined by a line end. */
TEST(harmony_channels)
{
    HARMONY(ANALYSIS "hm\n" NEXT FINAL "Yes.\nNo.<|return|>", "Yes.\nNo.", "hm\n");
    HARMONY(FINAL "Yes", "Yes", "");
    HARMONY(ANALYSIS "one" NEXT "<|channel|>commentary<|message|>I look." NEXT ANALYSIS
                     "two" NEXT FINAL "three",
            "I look.\nthree", "one\ntwo");
    HARMONY("<|channel|>final <|constrain|>json<|message|>{\"a\": 1}<|return|>", "{\"a\": 1}", "");
    HARMONY("<|start|>assistant" FINAL "Yes" NEXT FINAL, "Yes", "");
    HARMONY("<|channel|>commentary to=assistant" ANALYSIS "hm", "", "hm");
    HARMONY(ANALYSIS "", "", "");
    HARMONY("", "", "");
    HARMONY(" \n", " \n", "");
    HARMONY("ld, goes on<|end|>", "ld, goes on", "");
    // spelled with other tokens, the markers are ordinary text
    struct output_options opt = {
        .reasoning = REASONING_HARMONY, .parser = tool_parser_find("harmony"), .tools = NULL};
    struct fold f;
    check_cuts(&opt,
               "\xf9"
               "final\xfaWrite <|end|><|start|>assistant" CALL_F "{}",
               &f);
    CHECK_STR(f.content.data, "Write <|end|><|start|>assistant" CALL_F "{}");
    fold_deinit(&f);
    opt.starts_in_reasoning = true;
    check_cuts(&opt,
               "hm\xfc\xf8"
               "assistant\xf9"
               "final\xfayes",
               &f);
    CHECK_STR(f.reasoning.data, "hm");
    CHECK_STR(f.content.data, "yes");
    fold_deinit(&f);
    opt = (struct output_options){.parser = tool_parser_find("harmony")}; // a format without
                                                                          // reasoning
    check_cuts(&opt,
               "\xf9"
               "analysis\xfahm\xfc\xf8"
               "assistant\xf9"
               "final\xfayes",
               &f);
    CHECK_STR(f.content.data, "hm\nyes");
    fold_deinit(&f);
}

/* A call has a recipient "functions.NAME", before or after the channel. The header may be
 * cut anywhere, and its arguments are JSON, complete or not. */
TEST(harmony_calls)
{
    check_harmony(ANALYSIS "hm" NEXT CALL_F "{\"s\": \"}\\\"<\"}<|call|>", "", "hm",
                  "|f#:{\"s\": \"}\\\"<\"}", "{\"s\": \"}\\\"<\"}");
    check_harmony(" to=functions.f<|channel|>commentary json<|message|>{\"n\": 1}", "", "",
                  "|f#:{\"n\": 1}", "{\"n\": 1}");
    check_harmony("<|channel|>commentary<|message|>I look." NEXT " to=functions.f<|channel|>"
                  "commentary <|constrain|>json<|message|> {}\n<|call|>\n<|start|>assistant" CALL_F
                  "{\"o\": [{}]}<|call|>",
                  "I look.", "", "|f#:{}|f#:{\"o\": [{}]}", "I look.\n {}\n\n{\"o\": [{}]}");
    // the channel is ignored, and so is a name that the request does not have
    PARSES("harmony",
           "\xf9"
           "analysis to=functions.other\xfa{}",
           "", "|other#:{}");
    check_harmony("<|channel|>commentary to=g code<|message|>{}", "", "", "|g#:{}", "{}");
    // cut off, and without arguments
    check_harmony(CALL_F "{\"n\": 1", "", "", "|f#:{\"n\": 1", "{\"n\": 1");
    check_harmony(CALL_F "{\"n\": \"a" NEXT FINAL "x", "x", "", "|f#:{\"n\": \"a",
                  "{\"n\": \"a\nx");
    check_harmony(CALL_F, "", "", "|f#:{}", "");
    check_harmony(CALL_F "<|call|>", "", "", "|f#:{}", "");
    // anything else is text
    check_harmony(CALL_F "oops<|call|>", "oops", "", "", "oops");
    check_harmony(CALL_F "{} and <|call|> more", " and more", "", "|f#:{}", "{} and  more");
    HARMONY("<|channel|>commentary to=python code<|message|>print(1)<|call|>", "print(1)", "");
    HARMONY("<|channel|>analysis to=python code<|message|>print(1)<|call|>", "", "print(1)");
}

/* A model may drop or repeat markers. Text must come out once, never lost and never with
 * markers in it; headers and names are limited in length. */
TEST(harmony_that_is_malformed_is_content)
{
    HARMONY("Just text", "Just text", "");
    HARMONY("to=be or not", "to=be or not", "");
    HARMONY("<|message|>a<|message|>b<|constrain|>c", "abc", "");
    HARMONY("<|end|><|end|>\n<|return|>", "", "");
    HARMONY(ANALYSIS "hm" FINAL "yes", "yes", "hm");
    HARMONY(ANALYSIS "hm<|start|>assistant" FINAL "yes", "yes", "hm");
    HARMONY(ANALYSIS "hm<|end|>\n stray \n<|start|>assistant" FINAL "yes", "\n strayyes", "hm");
    // in heads without a message, markers are dropped and other words kept
    HARMONY(FINAL "a<|end|><|start|>assist", "a", "");
    HARMONY(FINAL "a<|end|><|start|>assistant<|channel|>commentary to=func", "a", "");
    HARMONY("<|start|>assistant<|start|>assistant<|channel|>final<|end|>x", "x", "");
    HARMONY("<|channel|>final Hello there<|end|>", "final Hello there", "");
    HARMONY("<|channel|>caf\xc3\xa9<|message|>x", "caf\xc3\xa9\nx", "");
    HARMONY("<|start|>user<|message|>x<|end|>", "x", "");
    char name[601], text[700], content[700];
    memset(name, 'x', 300); // more than the limit for names
    name[300] = '\0';
    snprintf(text, sizeof text, "<|channel|>commentary to=functions.%s<|message|>{}", name);
    HARMONY(text, "{}", "");
    memset(name, 'x', 600); // more than the limit for heads
    name[600] = '\0';
    snprintf(text, sizeof text, "<|channel|>commentary to=functions.%s<|message|>{}", name);
    snprintf(content, sizeof content, "commentary to=functions.%s\n{}", name);
    HARMONY(text, content, "");
}

/* `open`: the prompt ends inside reasoning. Line ends next to the markers
 * are not part of either text. */
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
    struct output_options shown = {.reasoning = REASONING_SHOWN, .starts_in_reasoning = true};
    struct fold f;
    check_cuts(&shown, "hm</think>yes", &f);
    CHECK_STR(f.content.data, "<think>hm</think>yes");
    CHECK_STR(f.reasoning.data, "");
    fold_deinit(&f);
    CHECK(reasoning_is_open(REASONING_THINK, "x<think>\n", 9));
    CHECK(!reasoning_is_open(REASONING_THINK, "<think></think>", 15));
    CHECK(!reasoning_is_open(REASONING_NONE, "<think>", 7));
}

/* The same splitter with other families' markers, some of which also enclose the answer. */
TEST(reasoning_has_markers_of_each_family)
{
    static const struct {
        const char *name, *text, *content, *reasoning;
    } cases[] = {
        {"seed_oss", "<seed:think>hm</seed:think>\nyes", "yes", "hm"},
        {"gemma4", "<|channel>thought\nhm\n<channel|>yes", "yes", "hm"},
        {"gemma4", "<|channel>thought<channel|>yes", "yes", ""},
        {"granite", "Here's my thought process: hm.\n\nHere is my response: yes", " yes", "hm."},
        {"granite", "Here is a thing", "Here is a thing", ""},
        {"hunyuan_a13b", "<think>\nhm\n</think>\n<answer>\nyes <b> no\n</answer>", "yes <b> no",
         "hm"},
        {"hunyuan_a13b", "<think>\n\n</think>\n<answer>\nyes\n", "yes\n", ""},
        {"hunyuan_a13b", "<answer>yes</answer>", "yes", ""},
        {"hunyuan_a13b", "<think>hm</think>no <answer>yes</answer>", "no <answer>yes</answer>",
         "hm"},
        {"ernie45", "<think>\nhm\n</think>\n\n<response>\nyes\n</response>\n", "yes", "hm"},
        {"ernie45", "<think>hm</think>yes </response>", "yes </response>", "hm"},
        {"cohere_command3",
         "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>yes<|END_RESPONSE|>", "yes", "hm"},
        {"cohere_command4", "<|START_TEXT|>yes<|END_TEXT|>", "yes", ""},
        {"minimax_m3", "<mm:think>hm</mm:think>yes", "yes", "hm"},
        {"minimax_m2_append_think", "<think>hm</think>yes", "<think>hm</think>yes", ""},
        {"functionary_v32", "all\nyes", "yes", ""},
        {"functionary_v32", "f\n{}", "f\n{}", ""}, // there are no tools
        {"apertus", "<|inner_prefix|>hm<|inner_suffix|>yes", "yes", "hm"},
        {"solar_open", "<|think|>hm<|end|><|begin|>assistant<|content|>yes<|end|>", "yes", "hm"},
        {"solar_open", "<|content|>yes<|flush|>", "yes", ""},
        {"solar_open", "<|think|>hm", "", "hm"},
        {"solar_open2", "<|think:start|>hm<|think:end|>yes", "yes", "hm"},
        {"muse", " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>yes<|eot|>",
         "yes", "hm"},
        {"muse", " to=user<|message|>yes", "yes", ""},
        {"inkling",
         "<|content_thinking|>hm<|end_message|><|message_model|><|content_text|>yes<|end_message|>",
         "yes", "hm"},
        {"apriel", "Here are my reasoning steps:\nhm [BEGIN\n[BEGIN FINAL RESPONSE]\nyes", "yes",
         "hm [BEGIN"},
        {"step3", "<think>\nhm\n</think>\nyes", "yes", "hm"},
        {"kimi_k3",
         "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>yes"
         "<|close|>response<|sep|><|close|>message<|sep|>",
         "yes", "hm"},
        {"mistral", "[THINK]hm[/THINK]yes", "yes", "hm"},
        {"qwen3", "<seed:think>hm</seed:think>", "<seed:think>hm</seed:think>", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct output_options opt = {.tok = NULL};
        struct fold f;
        REQUIRE(reasoning_find(cases[i].name, &opt.reasoning));
        check_cuts(&opt, cases[i].text, &f);
        CHECK_STR(f.content.data, cases[i].content);
        CHECK_STR(f.reasoning.data, cases[i].reasoning);
        fold_deinit(&f);
    }
    CHECK(reasoning_is_open(REASONING_GRANITE, "x Here's my thought process: ", 29));
    CHECK(reasoning_is_marker(REASONING_GEMMA4, "<|channel>"));
    CHECK(!reasoning_is_marker(REASONING_GEMMA4, "<think>"));
}

/* A model calls a tool without closing its reasoning. */
TEST(a_call_ends_reasoning)
{
    static const struct {
        const char *parser, *text, *calls;
    } cases[] = {
        {"kimi_k2", SECTION("<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}"), "|f#f:0:{}"},
        {"glm45", "<tool_call>g</tool_call>", "|g#:{}"},
        {"apertus", "<|tools_prefix|>[{\"g\": {}}]<|tools_suffix|>", "|g#:{}"},
        {"hy_v3", "<tool_calls>\n<tool_call>g<tool_sep>\n</tool_call>\n</tool_calls>", "|g#:{}"},
        {"qwen3_coder", "<tool_call>\n<function=g>\n</function>\n</tool_call>", "|g#:{}"},
        {"minimax_m2", "<minimax:tool_call>\n<invoke name=\"g\">\n</invoke>", "|g#:{}"},
        {"step3", STEP("tool_calls_begin") "<steptml:invoke name=\"g\"></steptml:invoke>",
         "|g#:{}"},
        {"solar_open2", "<|tool_call:start|>g\n<|tool_call:end|>", "|g#:{}"},
        {"hermes", "<tool_call>{\"name\": \"g\"}</tool_call>", ""}, // the reasoning may mention the
                                                                    // tool
    };
    struct json *tools = tools_of(TOOLS);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct output_options opt = {.reasoning = REASONING_THINK,
                                     .parser = tool_parser_find(cases[i].parser),
                                     .tools = tools};
        char text[300], untold[300];
        snprintf(text, sizeof text, "<think>hm <t\n%s", cases[i].text);
        snprintf(untold, sizeof untold, "hm <t\n%s", cases[i].text);
        struct fold f;
        check_cuts(&opt, text, &f);
        CHECK_STR(f.reasoning.data, *cases[i].calls ? "hm <t" : untold);
        CHECK_STR(f.calls.data, cases[i].calls);
        CHECK_STR(f.content.data, "");
        fold_deinit(&f);
    }
    json_free(tools);
}

/* A stop string cuts text, even across the boundary of tokens, and nothing of it may have
 * been sent before it was complete: a possible beginning is held. */
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

/* Held text, after which only a marker may follow, must not be scanned again for each token: white
 * space, and what may be a name. */
TEST(long_runs_cost_each_token_the_same)
{
    enum { N = 100000 };
    struct json *tools = tools_of(TOOLS);
    char *text = malloc(N + 16);
    struct fold f;
    clock_t start = clock();
    const char *name;
    for (size_t i = 0; (name = tool_parser_name(i)); i++) {
        struct output_options opt = {.parser = tool_parser_find(name), .tools = tools};
        if (strcmp(opt.parser->name, name) != 0) {
            continue; // an alias of another parser
        }
        for (int k = 0; k < 8; k++) {
            const size_t n_word = k & 1; // alone, and after a word
            const bool thinks = k & 2, named = k & 4;
            opt.reasoning = thinks ? REASONING_THINK : REASONING_NONE;
            opt.starts_in_reasoning = thinks;
            memcpy(text, "x", n_word);
            memset(text + n_word, named ? 'a' : '\n', N);
            strcpy(text + n_word + N, thinks ? "</think>y" : "y");
            run(&opt, text, strlen(text), 1, 0, &f);
            CHECK_EQ(f.content.n_bytes, thinks ? 1 : n_word + N + 1);
            CHECK_EQ(f.reasoning.n_bytes, thinks ? n_word + (named ? N : 0) : 0);
            fold_deinit(&f);
        }
    }
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 5); // without that it took minutes
    free(text);
    json_free(tools);
}

/* The same for a value that is reported when it is complete. */
TEST(long_values_cost_each_token_the_same)
{
    enum { N = 1000000 };
    static const struct {
        const char *parser, *before, *behind, *calls;
    } cases[] = {
        {"qwen3_coder", "<function=f><parameter=s>", "</parameter></function>", "|f#:{\"s\": \""},
        {"minicpm5", "<function name=\"f\"><param name=\"s\"><![CDATA[", "]]></param></function>",
         "|f#:{\"s\": \""},
        {"glm45", "<tool_call>f<arg_key>s</arg_key><arg_value>", "</arg_value></tool_call>",
         "|f#:{\"s\": \""},
        {"gemma4", "<|tool_call>call:f{s:<|\"|>", "<|\"|>}<tool_call|>", "|f#:{\"s\": \""},
        {"minimax_m3", "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>",
         "]<]minimax[>[</s>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>", "|f#:{\"s\": \""},
        {"pythonic", "[f(s='", "')]", "|f#:{\"s\": \""},
        {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"", "\"}}</tool_call>",
         "|f#:{\"s\": \""},
        {"kimi_k2", "<|tool_call_begin|>f<|tool_call_argument_begin|>{\"s\": \"", "\"}",
         "|f#:{\"s\": \""},
    };
    struct json *tools = tools_of(TOOLS);
    char *text = malloc(N + 200);
    struct fold f;
    clock_t start = clock();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct output_options opt = {.parser = tool_parser_find(cases[i].parser), .tools = tools};
        size_t n = strlen(cases[i].before), n_calls = strlen(cases[i].calls);
        memcpy(text, cases[i].before, n);
        memset(text + n, '<', N); // each may begin a marker
        strcpy(text + n + N, cases[i].behind);
        run(&opt, text, strlen(text), 1, 0, &f);
        CHECK_EQ(f.calls.n_bytes, n_calls + N + 2);
        CHECK(strncmp(f.calls.data, cases[i].calls, n_calls) == 0);
        CHECK_STR(f.content.data, "");
        fold_deinit(&f);
    }
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 5); // without that it took minutes
    free(text);
    json_free(tools);
}

/* Random text made of marker pieces: whatever comes out must not depend on the cuts. */
TEST(random_mixtures_do_not_depend_on_cuts)
{
    static const char *const words[] = {
        "<tool_call>",
        "</tool_call>",
        "{\"name\": \"f\"",
        ", \"arguments\": ",
        "{\"n\": 1}",
        "}",
        "<function=f>",
        "<parameter=n>",
        "</parameter>",
        "</function>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "f(n=1",
        ")",
        "]",
        "[",
        ",",
        " ",
        "\n",
        "<think>",
        "</think>",
        "abc",
        "<",
        "\"",
        "\\",
        "<|python_tag|>",
        "{\"name\": \"f\", \"parameters\": {}}",
        ";",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "g()",
        "'",
        "STOP",
        "ST",
        "null",
        "[CALL_ID]",
        "<tool_",
        "g",
        ":",
        "\n\n",
        "<invoke name=\"f\">",
        "<parameter name=\"n\">",
        "\">",
        "</invoke>",
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        "<seed:tool_call>",
        "</seed:tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "n",
        "<|tool_call_begin|>",
        "functions.f:0",
        "```json",
        "```",
        "<|tool_call_argument_begin|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        CALLS_BEGIN,
        CALLS_END,
        CALL_BEGIN,
        CALL_END,
        SEPARATOR,
        "function",
        "<" DSML "tool_calls>",
        "<" DSML "invoke name=\"g\">",
        "<" DSML "parameter name=\"n\" string=\"false\">",
        "</" DSML "parameter>",
        "</" DSML "invoke>",
        "<|tool_call>call:f{",
        "<|tool_call>",
        "call:",
        "<|\"|>",
        "n:",
        "{",
        "<tool_call|>",
        "<|channel>thought",
        "<channel|>",
        "<seed:think>",
        "</seed:think>",
        "<answer>",
        "</answer>",
        "Here is my thought process:",
        "<tool_calls>",
        "</tool_calls>",
        "<|tool_call|>",
        "functools",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        "<function_calls>",
        "</function_calls>",
        "f(n=2)",
        "<function name=\"f\">",
        "</param>",
        "<|open|>call tool=\"f\"",
        "<|sep|>",
        "]<]minimax[>[<tool_call>",
        "]<]minimax[>[<invoke name=\"f\">",
        "]<]minimax[>[</invoke>",
        "]<]minimax[>[<n>",
        "]<]minimax[>[</n>",
        "]<]minimax[>[<item>",
        "]<]minimax[>[</item>",
        "<|open|>argument key=\"n\" type=\"number\"<|sep|>",
        "<|close|>argument<|sep|>",
        "<|close|>call<|sep|>",
        "<|close|>message<|sep|>",
        "<param name=\"n\">",
        STEP("tool_calls_begin"),
        STEP("tool_call_begin"),
        STEP("tool_sep"),
        STEP("tool_call_end"),
        "<steptml:invoke name=\"f\">",
        "</steptml:invoke>",
        "<steptml:parameter name=\"n\">",
        "</steptml:parameter>",
        "<" GCML "invoke name=\"g\">",
        "</" GCML "invoke>",
        "<dots_function_call>",
        "<|message_model|>",
        "<|content_invoke_tool_json|>",
        "<|content_text|>",
        "<|content_thinking|>",
        "<|end_message|>",
        "{\"name\": \"f\", \"args\": {}}",
        " to=",
        "<|message|>",
        "<|eom|>",
        "<|start|>assistant to=",
        "<atem:function_calls>",
        "<atem:invoke name=\"f\">",
        "<atem:parameter name=\"n\">",
        "</atem:parameter>",
        "</atem:invoke>",
        "<|tool_call:start|>",
        "f\n",
        "<|tool_arg:start|>",
        "<|tool_arg:value|>",
        "<|tool_arg:end|>",
        "<|tool_call:end|>",
        "<![CDATA[",
        "]]>",
        "<|message_sep|>\n\nfunction call<|role_sep|>",
        "\xf8",
        "\xf8"
        "assistant",
        "\xf9"
        "analysis",
        "\xf9"
        "final",
        "\xf9"
        "commentary",
        "\xfa",
        " to=functions.f",
        "to=",
        "\xfb"
        "json",
        "\xfc",
        "\xfd",
        "\xfe",
        "\xff",
        "\xfa"
        "{}",
    };
    const char *stop[] = {"STOP"};
    const size_t stop_bytes[] = {4};
    struct json *tools = tools_of(TOOLS);
    size_t n_names = 0, n_kinds = REASONING_THINK + 1;
    while (tool_parser_name(n_names)) {
        n_names++;
    }
    for (int round = 0; round < 30000; round++) {
        char text[1024] = "";
        size_t n_words = sizeof words / sizeof words[0], kind = below(n_names + 1);
        const char *name = tool_parser_name(kind); // NULL: without a parser
        bool harmony = name && tool_parser_find(name)->exact;
        size_t from = harmony && below(2) ? n_words - 14 : 0; // only Harmony words
        for (size_t i = 0, n = 1 + below(10); i < n; i++) {
            strcat(text, words[from + below(n_words - from)]);
        }
        enum reasoning_kind reasoning = (enum reasoning_kind)below(n_kinds);
        if (reasoning == REASONING_HARMONY && name && !harmony) {
            reasoning = REASONING_THINK;
        }
        struct output_options opt = {
            .parser = name ? tool_parser_find(name) : NULL,
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
                           opt.parser ? opt.parser->name : "none", text, f.content.data,
                           f.reasoning.data, f.calls.data, whole.content.data, whole.reasoning.data,
                           whole.calls.data);
            }
            fold_deinit(&f);
        }
        fold_deinit(&whole);
    }
    json_free(tools);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
