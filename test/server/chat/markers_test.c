// SPDX-License-Identifier: Apache-2.0
/* Markers that are special tokens reach the parsers, although special tokens are not shown. */
#include "engine/base/optional.h"
#include "engine/grammar/grammar.h"
#include "server/chat/turn.h"
#include "test/server/chat/fold.h"

#include <stdlib.h>

/* A tokenizer in which each word is one token. Words that begin with '!' are special tokens,
 * without that sign. NULL-terminated. */
static struct tokenizer *tokenizer_of(const char *const *words)
{
    struct buf json;
    struct tokenizer *tok = NULL;
    struct err err = {""};
    buf_init(&json, 1 << 16);
    buf_puts(&json, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; words[i]; i++) {
        bool special = words[i][0] == '!';
        const char *text = words[i] + special;
        buf_printf(&json, "%s{\"id\":%d,\"content\":", i ? "," : "", i + 1);
        buf_put_json(&json, text, strlen(text));
        buf_printf(&json,
                   ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                   "\"normalized\":false,\"special\":%s}",
                   bool_word(special));
    }
    buf_puts(&json,
             "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
             "\"add_prefix_space\":false,\"use_regex\":false},\"decoder\":{\"type\":"
             "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"x\":0},\"merges\":[]}}");
    const struct tokenizer_files files = {.json = json.data, .json_bytes = json.n_bytes};
    if (tokenizer_load_memory(&files, &tok, &err) != OK) {
        CHECK_FAIL("%s", err.text);
    }
    buf_deinit(&json);
    return tok;
}

/* Feeds the sample token by token, as the engine generates them. */
static void check_words(const char *parser, enum reasoning_kind reasoning, const char *const *words,
                        const char *content, const char *thought, const char *calls)
{
    struct json *tools = tools_of(TOOLS);
    struct tokenizer *tok = tokenizer_of(words);
    struct output_options opt = {.tok = tok,
                                 .skip_special = true,
                                 .reasoning = reasoning,
                                 .parser = parser ? tool_parser_find(parser) : NULL,
                                 .tools = tools};
    struct fold f;
    struct output o;
    struct tool_sink sink = SINK;
    fold_init(&f);
    sink.arg = &f;
    if (tok) {
        output_init(&o, &opt, &sink);
        for (int i = 0; words[i]; i++) {
            const char *text = words[i] + (words[i][0] == '!');
            CHECK(output_token(&o, tokenizer_find(tok, text, strlen(text))));
        }
        output_finish(&o);
        output_deinit(&o);
    }
    CHECK_STR(f.content.data, content);
    CHECK_STR(f.reasoning.data, thought);
    CHECK_STR(f.calls.data, calls);
    fold_deinit(&f);
    tokenizer_free(tok);
    json_free(tools);
}

#define ATEM_CALL                                                                                  \
    "<atem:function_calls>\n<atem:invoke name=\"g\">\n</atem:invoke>\n</atem:function_calls>"
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Special tokens are hidden from content, but a parser must see those that are its
 * markers. End tokens of the turn, at the end of most rows, must not become text. */
TEST(markers_that_are_special_tokens)
{
    check_words("gemma4", REASONING_GEMMA4,
                WORDS("!<|channel>", "thought\n", "hm", "!<channel|>", "ok", "!<|tool_call>",
                      "call:f{s:", "!<|\"|>", "a", "!<|\"|>", "}", "!<tool_call|>", "!<turn|>"),
                "ok", "hm", "|f#:{\"s\": \"a\"}");
    check_words("kimi_k2", REASONING_THINK,
                WORDS("!<think>", "hm", "!</think>", "!<|tool_calls_section_begin|>",
                      "!<|tool_call_begin|>", "functions.f:0", "!<|tool_call_argument_begin|>",
                      "{}", "!<|tool_call_end|>", "!<|tool_calls_section_end|>", "!<|im_end|>"),
                "", "hm", "|f#functions.f:0:{}");
    check_words("deepseek_v31", REASONING_THINK,
                WORDS("ok", "!" CALLS_BEGIN, "!" CALL_BEGIN, "f", "!" SEPARATOR, "{\"n\":1}",
                      "!" CALL_END, "!" CALLS_END),
                "ok", "", "|f#:{\"n\":1}");
    check_words("deepseek_v32", REASONING_THINK,
                WORDS("<", "!" DSML, "tool_calls>\n<", "!" DSML, "invoke name=\"f\">\n</", "!" DSML,
                      "invoke>", "\n</", "!" DSML, "tool_calls>"),
                "", "", "|f#:{}");
    check_words("glm45", REASONING_THINK,
                WORDS("!<tool_call>", "f", "!<arg_key>", "n", "!</arg_key>", "!<arg_value>", "5",
                      "!</arg_value>", "!</tool_call>", "!<|observation|>"),
                "", "", "|f#:{\"n\": 5}");
    check_words(
        "minimax_m2", REASONING_THINK,
        WORDS("!<minimax:tool_call>", "<invoke name=\"g\">", "</invoke>", "!</minimax:tool_call>"),
        "", "", "|g#:{}");
    check_words("seed_oss", REASONING_SEED_OSS,
                WORDS("!<seed:think>", "hm", "!</seed:think>", "!<seed:tool_call>", "<function=g>",
                      "</function>", "!</seed:tool_call>"),
                "", "hm", "|g#:{}");
    check_words("cohere_command3", REASONING_COHERE,
                WORDS("!<|START_THINKING|>", "hm", "!<|END_THINKING|>", "!<|START_ACTION|>",
                      "[{\"tool_name\": \"g\", \"parameters\": {}}]", "!<|END_ACTION|>"),
                "", "hm", "|g#:{}");
    check_words("granite", REASONING_NONE,
                WORDS("!<|tool_call|>", "[{\"name\": \"g\", \"arguments\": {}}]"), "", "",
                "|g#:{}");
    check_words("internlm", REASONING_NONE,
                WORDS("!<|action_start|>", "!<|plugin|>", "{\"name\": \"g\"}", "!<|action_end|>"),
                "", "", "|g#:{}");
    check_words("apertus", REASONING_APERTUS,
                WORDS("!<|inner_prefix|>", "hm", "!<|tools_prefix|>", "[{\"g\": {}}]",
                      "!<|tools_suffix|>", "!<|assistant_end|>"),
                "", "hm", "|g#:{}");
    check_words("solar_open", REASONING_SOLAR_OPEN,
                WORDS("!<|think|>", "hm", "!<|end|>", "!<|begin|>", "assistant", "!<|content|>",
                      "Ok.", "!<|flush|>", "!<|tool_calls|>", "!<|tool_call:begin|>", "a1",
                      "!<|tool_call:name|>", "g", "!<|tool_call:args|>", "{}", "!<|tool_call:end|>",
                      "!<|calls|>"),
                "Ok.", "hm", "|g#a1:{}");
    check_words("step3", REASONING_THINK,
                WORDS("!<think>", "hm", "!</think>", "!" STEP("tool_calls_begin"),
                      "!" STEP("tool_call_begin"), "function", "!" STEP("tool_sep"),
                      "<steptml:invoke name=\"g\"></steptml:invoke>", "!" STEP("tool_call_end"),
                      "!" STEP("tool_calls_end"), "!<|im_end|>"),
                "", "hm", "|g#:{}");
    check_words("solar_open2", REASONING_SOLAR_OPEN2,
                WORDS("!<|think:start|>", "hm", "!<|think:end|>", "!<|tool_call:start|>", "g\n",
                      "!<|tool_call:end|>", "!<|im:end|>"),
                "", "hm", "|g#:{}");
    check_words("gigachat35", REASONING_THINK,
                WORDS("!<" GCML "tool_calls>", "<" GCML "invoke name=\"g\">", "</" GCML "invoke>",
                      "!</" GCML "tool_calls>"),
                "", "", "|g#:{}");
    check_words("muse", REASONING_MUSE,
                WORDS(" to=self", "!<|message|>", "hm", "!<|eom|>", "!<|start|>", "assistant",
                      " to=user", "!<|message|>", "Ok.", "!<|eom|>", "!<|start|>", "assistant",
                      " to=g", "!<|message|>", ATEM_CALL, "!<|eot|>"),
                "Ok.", "hm", "|g#:{}");
    check_words(NULL, REASONING_MUSE,
                WORDS(" to=self", "!<|message|>", "hm", "!<|eom|>", "!<|start|>", "assistant",
                      " to=user", "!<|message|>", "Ok.", "!<|eot|>"),
                "Ok.", "hm", "");
    check_words("inkling", REASONING_INKLING,
                WORDS("!<|content_thinking|>", "hm", "!<|end_message|>", "!<|message_model|>",
                      "!<|content_text|>", "Ok.", "!<|end_message|>", "!<|message_model|>", "g",
                      "!<|content_invoke_tool_json|>", "{\"name\":\"g\",\"args\":{}}",
                      "!<|end_message|>", "!<|content_model_end_sampling|>"),
                "Ok.", "hm", "|g#:{}");
    check_words("inkling", REASONING_INKLING,
                WORDS("!<|content_thinking|>", "hm", "!<|end_message|>", "!<|message_model|>", "g",
                      "!<|content_invoke_tool_json|>", "{\"name\":\"g\",\"args\":{}}",
                      "!<|end_message|>"),
                "", "hm", "|g#:{}");
    check_words(
        NULL, REASONING_INKLING,
        WORDS("!<|content_text|>", "Ok.", "!<|end_message|>", "!<|content_model_end_sampling|>"),
        "Ok.", "", "");
    check_words(NULL, REASONING_SOLAR_OPEN, // without tools
                WORDS("!<|think|>", "hm", "!<|end|>", "!<|begin|>", "assistant", "!<|content|>",
                      "Ok.", "!<|flush|>"),
                "Ok.", "hm", "");
    check_words(NULL, REASONING_KIMI_K3,
                WORDS("!<|open|>", "think", "!<|sep|>", "hm", "!<|close|>", "think", "!<|sep|>",
                      "!<|open|>", "response", "!<|sep|>", "Ok.", "!<|close|>", "response",
                      "!<|sep|>", "!<|close|>", "message", "!<|sep|>"),
                "Ok.", "hm", "");
    check_words("functiongemma", REASONING_NONE,
                WORDS("!<start_function_call>", "call:f{s:", "!<escape>", "a", "!<escape>", "}",
                      "!<end_function_call>", "!<start_function_response>"),
                "", "", "|f#:{\"s\": \"a\"}");
    check_words("gigachat3", REASONING_NONE, // markers of another model
                WORDS("!<|function_call|>", "{\"name\": \"g\"}", "!<|tool_call_begin|>"), "", "",
                "|g#:{}");
}

/* Formats of messages: reasoning may come again after an answer or a call, and so may answers. A
 * head within a call's arguments is data. */
TEST(reasoning_comes_again)
{
#define SAYS(kind, text) "<|content_" kind "|>" text "<|end_message|>"
#define THEN "<|message_model|>"
#define CALLS(args) "<|content_invoke_tool_json|>{\"name\":\"f\",\"args\":" args "}<|end_message|>"
#define TO(name, text) " to=" name "<|message|>" text
#define THEN_TO "<|eom|><|start|>assistant"
#define ATEM_S(text)                                                                               \
    TO("f", "<atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"s\">" text    \
            "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>")
    static const struct {
        const char *name, *text, *content, *reasoning, *calls;
    } cases[] = {
        {"inkling",
         SAYS("thinking", "hm") THEN SAYS("text", "yes") THEN SAYS("thinking", " so\n")
             THEN SAYS("text", ", no"),
         "yes, no", "hmso", ""},
        {"inkling", SAYS("thinking", "hm") THEN SAYS("thinking", ", so") THEN SAYS("text", "yes"),
         "yes", "hm, so", ""},
        {"inkling", SAYS("text", "a") THEN SAYS("text", "b") THEN, "ab", "", ""},
        {"inkling", SAYS("text", "a") THEN "<|content_thinking|>hm", "a", "hm", ""},
        {"inkling", SAYS("text", "a") THEN SAYS("thinking", "hm"), "a", "hm", ""},
        {"inkling",
         CALLS("{}") THEN SAYS("thinking", "hm")
             THEN CALLS("{\"s\":\"" THEN "<|content_thinking|>x\"}"),
         "", "hm", "|f#:{}|f#:{\"s\":\"" THEN "<|content_thinking|>x\"}"},
        {"muse",
         TO("self", "hm") THEN_TO TO("user", "yes") THEN_TO TO("self", " so")
             THEN_TO TO("user", ", no<|eot|>"),
         "yes, no", "hmso", ""},
        {"muse", TO("self", "hm") THEN_TO TO("self", ", so") THEN_TO TO("user", "yes<|eot|>"),
         "yes", "hm, so", ""},
        {"muse", TO("user", "yes") THEN_TO TO("self", "hm<|eom|>"), "yes", "hm", ""},
        {"muse",
         ATEM_S("<|start|>assistant to=self<|message|>x") THEN_TO TO("self", "hm")
             THEN_TO TO("user", "yes<|eot|>"),
         "yes", "hm", "|f#:{\"s\": \"<|start|>assistant to=self<|message|>x\"}"},
    };
    struct json *tools = tools_of(TOOLS);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int with = *cases[i].calls != '\0'; with < 2; with++) {
            struct output_options opt = {.tools = tools};
            struct fold f;
            REQUIRE(reasoning_find(cases[i].name, &opt.reasoning));
            opt.parser = with ? tool_parser_find(cases[i].name) : NULL;
            check_cuts(&opt, cases[i].text, &f);
            CHECK_STR(f.content.data, cases[i].content);
            CHECK_STR(f.reasoning.data, cases[i].reasoning);
            CHECK_STR(f.calls.data, cases[i].calls);
            fold_deinit(&f);
        }
    }
    json_free(tools);
}

/* Muse's <|eot|> ends an answer and the text: the grammar of a turn leaves it out. */
TEST(grammars_do_not_name_markers_that_end_the_text)
{
    static const char *const words[] = {"!<|start|>", "!<|message|>", "!<|eom|>", "!<|eot|>", NULL};
    enum { EOT = 4, N = EOT + 1 };
    struct grammar_token tokens[N] = {{"x", 1, false}};
    for (int i = 1; i < N; i++) {
        tokens[i] = (struct grammar_token){words[i - 1] + 1, strlen(words[i - 1]) - 1, true};
    }
    const int32_t end = EOT;
    struct grammar_vocab *vocab = NULL;
    struct err err = {""};
    CHECK_EQ(grammar_vocab_make(tokens, N, &end, 1, &vocab, &err), OK);
    struct tokenizer *tok = tokenizer_of(words);
    static const char answer[] = "{\"type\":\"regex\",\"pattern\":\"x+\"}";
    for (int knows = 0; knows < 2; knows++) {
        const struct turn t = {.reasoning = REASONING_MUSE,
                               .answer = answer,
                               .answer_bytes = strlen(answer),
                               .tok = tok,
                               .end_ids = &end,
                               .n_end_ids = knows};
        struct buf tags;
        struct grammar *g = NULL;
        buf_init(&tags, 1 << 16);
        turn_put(&tags, &t);
        const struct grammar_source source = {
            .kind = GRAMMAR_TAGS, .text = tags.data, .n_bytes = tags.n_bytes};
        const enum status st = grammar_compile(&source, NULL, vocab, &g, &err);
        CHECK_EQ(st == OK, knows == 1);
        grammar_free(g);
        buf_deinit(&tags);
    }
    tokenizer_free(tok);
    grammar_vocab_free(vocab);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
