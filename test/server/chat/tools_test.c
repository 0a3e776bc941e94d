// SPDX-License-Identifier: Apache-2.0
/* Each format of tool calls: how it is parsed, for all cuts of the text. */
#include "test/server/chat/fold.h"

/* Every test has the same parts: calls as the family writes them, text around them, values
 * that contain the format's own markers, calls cut off by max_tokens, and text that only
 * resembles a call and must come out unchanged. */
TEST(hermes_calls)
{
    PARSES("hermes", "plain <tool", "plain <tool", "");
    PARSES("hermes",
           "a\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"}\\\"<\"}}\n"
           "</tool_call>\n<tool_call>{\"arguments\":{},\"name\":\"g\"}</tool_call> b",
           "a b", "|f#:{\"s\": \"}\\\"<\"}|g#:{}");
    PARSES("hermes", "<tool_call>{\"name\": \"f\"}</tool_call>", "", "|f#:{}");
    PARSES("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call> b",
           " b", "|f#:{\"a\": 1}"); // its last brace is missing
    PARSES("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "", "|f#:{}");
    PARSES("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}</tool_call>",
           "", "|f#:{\"n\": 1}");
    PARSES("hermes", "a \n<tool_call>oops", "a \n<tool_call>oops", ""); // nothing is lost
    PARSES("hermes", "<tool_call>oops</tool_call> x", "<tool_call>oops</tool_call> x", "");
    PARSES("hermes", "<tool_call>{\"name\": \"f\"", "", "|f#:{}");
    PARSES("hermes", "<tool_call>{\"nam", "<tool_call>{\"nam", "");
    PARSES("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1", "", "|f#:{\"n\": 1");
    PARSES("hermes", "<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": 5}</tool_call>",
           "");
    PARSES("hermes",
           "<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"g\"}\n"
           "</tool_call>",
           "", "|f#:{}|g#:{}");
}

/* Llama writes bare JSON; only an object with a known tool's name is a call. */
TEST(llama3_calls)
{
    PARSES("llama3_json", "{\"name\": \"f\", \"parameters\": {\"n\": 1}}", "", "|f#:{\"n\": 1}");
    PARSES("llama3_json",
           "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", "
           "\"parameters\": {\"a\": [1, {}]}}",
           "", "|f#:{}|g#:{\"a\": [1, {}]}");
    PARSES("llama3_json", " {\"name\": \"other\", \"parameters\": {}} ",
           " {\"name\": \"other\", \"parameters\": {}} ", "");
    PARSES("llama3_json", "{\"parameters\": \"hello\", \"name\": \"Bob\"}",
           "{\"parameters\": \"hello\", \"name\": \"Bob\"}", "");
    PARSES("llama3_json", "{\"amount\": 12, \"name\": \"f\"}", "{\"amount\": 12, \"name\": \"f\"}",
           "");
    PARSES("llama3_json", "{\"type\": \"function\", \"name\": \"g\", \"parameters\": {\"x\": 1}}",
           "", "|g#:{\"x\": 1}");
    PARSES("llama3_json", "Hello {\"name\": \"f\", \"parameters\": {}}",
           "Hello {\"name\": \"f\", \"parameters\": {}}", "");
    PARSES("llama3_json", "  \n", "  \n", "");
    PARSES("llama3_json", "ok <|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "ok", "|f#:{}");
}

/* A list of such objects, bare or between one of several pairs of markers. */
TEST(xlam_calls)
{
    PARSES("xlam",
           "[{\"name\": \"f\", \"arguments\": {\"o\": {\"k\": [\"]\"]}}}, {\"name\": \"g\", "
           "\"arguments\": {}}]",
           "", "|f#:{\"o\": {\"k\": [\"]\"]}}|g#:{}");
    PARSES("xlam", "Ok.\n```json\n[\n {\"name\": \"g\", \"arguments\": {}}\n]\n``` b", "Ok. b",
           "|g#:{}");
    PARSES("xlam", "```\n[{\"arguments\": {\"n\": 1}, \"name\": \"f\"}]\n```", "",
           "|f#:{\"n\": 1}");
    PARSES("xlam", "<tool_call>[{\"name\": \"g\", \"arguments\": {}}]</tool_call>", "", "|g#:{}");
    PARSES("xlam", "a[TOOL_CALLS] [{\"name\": \"g\", \"arguments\": {}}]", "a", "|g#:{}");
    PARSES("xlam", " [{\"name\": \"other\", \"arguments\": {}}] ",
           " [{\"name\": \"other\", \"arguments\": {}}] ", "");
    PARSES("xlam", "[{\"name\": \"f\", \"arguments\": {\"n\": 1", "", "|f#:{\"n\": 1");
    PARSES("xlam", "[{\"name\": \"f\"}]", "[{\"name\": \"f\"}]", "");
    PARSES("xlam", "[{\"arguments\": {}, \"name\": \"other\"}]",
           "[{\"arguments\": {}, \"name\": \"other\"}]", "");
    PARSES("xlam", "[1, 2]", "[1, 2]", "");
    PARSES("xlam", "[]", "[]", "");
    PARSES("xlam", "```\n[x]\n``` ```python\ny```", "```\n[x]\n``` ```python\ny```", "");
    PARSES("xlam", "{\"name\": \"f\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {}}",
           "");
}

/* Three generations of the format: name[ARGS]{...}, a JSON array, and name{...}. */
TEST(mistral_calls)
{
    PARSES("mistral", "hi[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}", "hi",
           "|f#:{\"n\": 1}|g#abc:{}");
    PARSES("mistral",
           "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"s\": \"]\"}, \"id\": "
           "\"123456789\"}, {\"name\": \"g\", \"arguments\": {}}]",
           "", "|f#123456789:{\"s\": \"]\"}|g#:{}");
    PARSES("mistral", "[TOOL_CALLS]f{\"n\": {\"a\": \"\\\"}\"}}", "",
           "|f#:{\"n\": {\"a\": \"\\\"}\"}}");
    PARSES("mistral", "[TOOL_CALLS]?", "[TOOL_CALLS]?", "");
    PARSES("mistral", "[TOOL_", "[TOOL_", "");
    PARSES("mistral", "[TOOL_CALLS]f[ARGS]{\"n\": 1", "", "|f#:{\"n\": 1");
    PARSES("mistral", "[TOOL_CALLS]f[ARGS]", "", "|f#:{}");
}

/* Python literals become JSON: escapes, tuples, None, and numbers such as 007 that JSON
 * does not allow. */
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
    PARSES("pythonic", "[f(s=\"\\u00e9\\x41\\U0001F600\")]", "",
           "|f#:{\"s\": \"\xC3\xA9"
           "A\xF0\x9F\x98\x80\"}");
    PARSES("pythonic", "[f(n=1), g(", "", "|f#:{\"n\": 1}");
    PARSES("pythonic", "[f(s=\"\\UFFFFFFFF\")]", "[f(s=\"\\UFFFFFFFF\")]", "");
    PARSES("pythonic", "[f(s=\"\\x\x14\x11\")]", "[f(s=\"\\x\x14\x11\")]", "");
}

/* XML without types: the tool's schema decides whether "5" is a number or a string. */
TEST(qwen3_coder_calls)
{
    PARSES("qwen3_coder",
           "x\n<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n"
           "<parameter=s>\n5\n</parameter>\n</function>\n</tool_call>",
           "x\n", "|f#:{\"n\": 5, \"s\": \"5\"}");
    PARSES("qwen3_coder",
           "<function=f><parameter=o>{\"a\": 1}</parameter><parameter=b>True"
           "</parameter><parameter=u>null</parameter></function>",
           "", "|f#:{\"o\": {\"a\": 1}, \"b\": true, \"u\": null}");
    PARSES("qwen3_coder",
           "<tool_call>\n<function=g>\n</function>\n</tool_call>\n<tool_call>\n"
           "<function=g>\n<parameter=x>\n1\n</parameter>\n</function>\n"
           "</tool_call>",
           "", "|g#:{}|g#:{\"x\": \"1\"}");
    PARSES("qwen3_coder", "<tool_call>\nnot a call", "<tool_call>\nnot a call", "");
    PARSES("qwen3_coder", "<function=f>\n<parameter=s>\nabc\n</parameter>\n<parameter=n>\n12", "",
           "|f#:{\"s\": \"abc\"}");
    PARSES("qwen3_coder", "a < b and a <function b", "a < b and a <function b", "");
}

TEST(seed_oss_calls)
{
    PARSES("seed_oss",
           "x\n<seed:tool_call>\n<function=f>\n<parameter=n>5</parameter>\n"
           "<parameter=s>a\nb</parameter>\n</function>\n</seed:tool_call>\n",
           "x", "|f#:{\"n\": 5, \"s\": \"a\\nb\"}");
    PARSES("seed_oss", "<seed:tool_call>no", "<seed:tool_call>no", "");
}

/* As above with attributes; an argument that is not closed is dropped, since it may be
 * incomplete. */
TEST(minimax_m2_calls)
{
    PARSES("minimax_m2",
           "ok\n\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">\n5 "
           "</parameter>\n<parameter name=\"n\">5</parameter>\n</invoke>\n<invoke "
           "name=\"g\">\n</invoke>\n</minimax:tool_call>\n",
           "ok", "|f#:{\"s\": \"\\n5 \", \"n\": 5}|g#:{}");
    PARSES("minimax_m2", "<invoke name=\"f\"><parameter name=\"b\">false</parameter></invoke>", "",
           "|f#:{\"b\": false}");
    PARSES("minimax_m2", "an <invoke name=\"x\"y>", "an <invoke name=\"x\"y>", "");
    PARSES("minimax_m2", "<minimax:tool_call><invoke name=\"f\"><parameter name=\"n\">5</para", "",
           "|f#:{}");
}

/* string="true" in the tag decides, not the schema. */
TEST(deepseek_v32_calls)
{
    PARSES("deepseek_v32",
           "Hm.\n\n<" DSML "function_calls>\n<" DSML "invoke name=\"f\">\n<" DSML "parameter "
           "name=\"s\" string=\"true\">5</" DSML "parameter>\n<" DSML "parameter name=\"x\" "
           "string=\"false\">[1, {}, \"\\u0000\"]</" DSML "parameter>\n</" DSML "invoke>\n<" DSML
           "invoke "
           "name=\"g\">\n</" DSML "invoke>\n</" DSML "function_calls>",
           "Hm.", "|f#:{\"s\": \"5\", \"x\": [1, {}, \"\\u0000\"]}|g#:{}");
    PARSES("deepseek_v4",
           "<" DSML "tool_calls>\n<" DSML "invoke name=\"f\">\n<" DSML "parameter name=\"x\" "
           "string=\"false\">[1, </" DSML "parameter>\n</" DSML "invoke>\n</" DSML "tool_calls>",
           "", "|f#:{\"x\": \"[1, \"}"); // not JSON
    PARSES("deepseek_v32", "<" DSML "function_calls>none", "<" DSML "function_calls>none", "");
}

TEST(gigachat35_calls)
{
    PARSES("gigachat35",
           "Hm.\n<" GCML "tool_calls>\n<" GCML "invoke name=\"f\">\n<" GCML "parameter "
           "name=\"s\" string=\"true\">5</" GCML "parameter>\n<" GCML "parameter name=\"n\" "
           "string=\"false\">5</" GCML "parameter>\n</" GCML "invoke>\n</" GCML "tool_calls>",
           "Hm.", "|f#:{\"s\": \"5\", \"n\": 5}");
    PARSES("gigachat35", "<" GCML "tool_calls>none", "<" GCML "tool_calls>none", "");
}

#define STEP_CALL(name, body)                                                                      \
    STEP("tool_call_begin")                                                                        \
    "function" STEP("tool_sep") "<steptml:invoke name=\"" name "\">" body                          \
                                "</steptml:invoke>" STEP("tool_call_end")
#define STEP_PARAMETER(name, value)                                                                \
    "<steptml:parameter name=\"" name "\">" value "</steptml:parameter>"

/* The words between the tokens are not always there, and values may contain '<'. */
TEST(step3_calls)
{
    PARSES("step3",
           "Ok.\n" STEP("tool_calls_begin")
               STEP_CALL("f", STEP_PARAMETER("n", "5") STEP_PARAMETER("s", "a < b\n"))
                   STEP_CALL("g", "") STEP("tool_calls_end"),
           "Ok.", "|f#:{\"n\": 5, \"s\": \"a < b\\n\"}|g#:{}");
    PARSES("step3",
           STEP("tool_calls_begin") "\n" STEP("tool_call_begin") "function" STEP(
               "tool_sep") "\n<steptml:invoke name=\"f\">\n" STEP_PARAMETER("b", "true")
               STEP_PARAMETER("o", "{\"k\": [1]}") "\n</steptml:invoke>" STEP(
                   "tool_call_end") "\n" STEP_CALL("g", "\n") "\n" STEP("tool_calls_end") " b",
           "b", "|f#:{\"b\": true, \"o\": {\"k\": [1]}}|g#:{}");
    PARSES("step3",
           STEP("tool_calls_begin")
               STEP("tool_call_begin") "<steptml:invoke name=\"g\"></steptml:invoke>" STEP(
                   "tool_call_end") STEP("tool_sep")
                   STEP("tool_call_begin") "<steptml:invoke name=\"f\">"
                                           "</steptml:invoke>" STEP("tool_call_end")
                                               STEP("tool_calls_end"),
           "", "|g#:{}|f#:{}");
    PARSES("step3", STEP("tool_calls_begin") STEP("tool_call_begin") "thought",
           STEP("tool_calls_begin") STEP("tool_call_begin") "thought", "");
    PARSES("step3",
           "<steptml:invoke name=\"f\">" STEP_PARAMETER("n", "1") "<steptml:parameter name=\"s\">x",
           "", "|f#:{\"n\": 1}");
    PARSES("step3", "a <steptml:invoke b", "a <steptml:invoke b", "");
}

TEST(dots_calls)
{
    PARSES("dots",
           "Ok.\n<dots_function_call>\n<invoke name=\"f\">\n<parameter name=\"n\">5</parameter>\n"
           "<parameter name=\"s\">5</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n"
           "</dots_function_call>",
           "Ok.", "|f#:{\"n\": 5, \"s\": \"5\"}|g#:{}");
    PARSES("dots", "<dots_function_call>no", "<dots_function_call>no", "");
}

#define ATEM(name, body)                                                                           \
    "<atem:function_calls>\n<atem:invoke name=\"" name "\">\n" body "</atem:invoke>\n"             \
    "</atem:function_calls>"
#define ATEM_PARAMETER(name, value) "<atem:parameter name=\"" name "\">" value "</atem:parameter>\n"

/* The head of a message to a tool is no content. */
TEST(muse_calls)
{
    PARSES("muse",
           " to=f<|message|>" ATEM("f", ATEM_PARAMETER("n", "5") ATEM_PARAMETER(
                                            "s", " 5\n")) "<|eom|>"
                                                          "<|start|>assistant to=g<|message|>" ATEM(
                                                              "g", ""),
           "", "|f#:{\"n\": 5, \"s\": \" 5\\n\"}|g#:{}");
    PARSES("muse", "Ok." ATEM("g", "") " b", "Ok.b", "|g#:{}");
    PARSES("muse", "go to=it and <|message|>", "go to=it and <|message|>", "");
    PARSES("muse", " to=f<|message|>no", " to=f<|message|>no", "");
    PARSES("muse", " to=f<|mess", " to=f<|mess", "");
}

#define INKLING(name, json) name "<|content_invoke_tool_json|>" json "<|end_message|>"

TEST(inkling_calls)
{
    PARSES("inkling",
           INKLING("f", "{\"name\":\"f\",\"args\":{\"s\": \"}\"}}") "<|message_model|>" INKLING(
               "", "\n{\"args\":{},\"name\":\"g\"}\n"),
           "", "|f#:{\"s\": \"}\"}|g#:{}");
    PARSES("inkling",
           "<|content_text|>Ok.<|end_message|><|message_model|>" INKLING(
               "f", "{\"name\":\"f\"}") "<|message_model|><|content_text|>b",
           "Ok.b", "|f#:{}");
    PARSES("inkling", "Ok and so on", "Ok and so on", "");
    PARSES("inkling", "Ok", "Ok", "");
    PARSES("inkling", "f<|content_invoke_tool_json|>no", "f<|content_invoke_tool_json|>no", "");
    PARSES("inkling", "a <|message_model|>no", "a <|message_model|>no", "");
    PARSES("inkling", "f<|content_inv", "f<|content_inv", "");
}

#define SOLAR_ARGUMENT(name, value)                                                                \
    "<|tool_arg:start|>" name "<|tool_arg:value|>" value "<|tool_arg:end|>\n"

TEST(solar_open2_calls)
{
    PARSES("solar_open2",
           "Ok.<|tool_call:start|>f\n" SOLAR_ARGUMENT("n", "5") SOLAR_ARGUMENT("s", " 5\n")
               SOLAR_ARGUMENT("u", "null") "<|tool_call:end|>\n<|tool_call:start|>g\n"
                                           "<|tool_call:end|>",
           "Ok.", "|f#:{\"n\": 5, \"s\": \" 5\\n\", \"u\": null}|g#:{}");
    PARSES("solar_open2", "<|tool_call:start|>f\n<|tool_arg:start|>n<|tool_arg:value|>5", "",
           "|f#:{}");
    PARSES("solar_open2", "<|tool_call:start|>\nf", "<|tool_call:start|>\nf", "");
}

/* Null in an enum of strings is null, as grammars of calls write it. */
TEST(null_beside_other_values)
{
    static const char with_enum[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":"
                                    "{\"n\":{\"enum\":[\"a\",\"b\",null]}"
                                    ",\"s\":{\"anyOf\":[{\"const\":\"a\"},{\"const\":null}]},\"o\":"
                                    "{\"enum\":[\"a\",\"b\"]}}}}}]";
    static const char text[] =
        "<function=f><parameter=n>null</parameter><parameter=s>null</parameter><parameter=o>null"
        "</parameter></function>";
    struct json *tools = tools_of(with_enum);
    struct output_options opt = {.parser = &tool_parser_qwen3_coder, .tools = tools};
    struct fold f;
    check_cuts(&opt, text, &f);
    CHECK_STR(f.calls.data, "|f#:{\"n\": null, \"s\": null, \"o\": \"null\"}");
    fold_deinit(&f);
    json_free(tools);
}

/* Templates that write an object with Python's str() teach their models to do the same. */
TEST(values_written_as_in_python)
{
    PARSES(
        "minicpm5",
        "<function name=\"f\"><param name=\"o\">{'a': ['x', None], 'b': True}</param></function>",
        "", "|f#:{\"o\": {\"a\": [\"x\", null], \"b\": true}}");
    PARSES(
        "minicpm5",
        "<function name=\"f\"><param name=\"o\">{'a': [00_1, 0_2, -0_5, 0_0]}</param></function>",
        "", "|f#:{\"o\": {\"a\": [1, 2, -5, 0]}}");
    PARSES("qwen3_coder",
           "<tool_call><function=f><parameter=o>{'a': 1</parameter><parameter=s>['x']</parameter>"
           "</function></tool_call>",
           "", "|f#:{\"o\": \"{'a': 1\", \"s\": \"['x']\"}");
}

/* CDATA may contain closing tags. */
TEST(minicpm5_calls)
{
    PARSES("minicpm5",
           "a\n<function name=\"f\"><param name=\"s\"><![CDATA[<b> </param>]]></param>"
           "<param name=\"n\">7</param></function>\n<function name=\"g\"></function>",
           "a", "|f#:{\"s\": \"<b> </param>\", \"n\": 7}|g#:{}");
    PARSES("minicpm5", "<function name=\"f\"><param name=\"s\"><![CDATA[x</param></function>", "",
           "|f#:{}"); // never closed
}

#define ARGUMENT(head, value) "<|open|>argument " head "<|sep|>" value "<|close|>argument<|sep|>"

TEST(kimi_k3_calls)
{
    PARSES("kimi_k3",
           "Ok.<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>" ARGUMENT(
               "key=\"s\" type=\"string\"", "a<|close|>\n")
               ARGUMENT("key=\"o\" type=\"object\"",
                        "{\"k\": 1}") "<|close|>call<|sep|><|open|>call tool=\"g\" "
                                      "index=\"2\"<|sep|><|close|>call<|sep|>"
                                      "<|close|>tools<|sep|><|close|>message<|sep|>",
           "Ok.", "|f#:{\"s\": \"a<|close|>\\n\", \"o\": {\"k\": 1}}|g#:{}");
    PARSES("kimi_k3", "<|open|>call tool=\"f\" ind", "", "|f#:{}");
    PARSES("kimi_k3", "<|open|>tools<|sep|>none", "<|open|>tools<|sep|>none", "");
}

#define M3 "]<]minimax[>["
#define M3_ELEMENT(name, value) M3 "<" name ">" value M3 "</" name ">"
#define M3_CALL(name, body) M3 "<invoke name=\"" name "\">" body M3 "</invoke>\n"

/* Elements are nested like JSON. Every tag has a separator before it, so values may contain '<'. */
TEST(minimax_m3_calls)
{
    PARSES("minimax_m3",
           "Ok.\n" M3 "<tool_call>\n" M3_CALL(
               "f", M3_ELEMENT("n", "5") M3_ELEMENT("s", " 5\n") M3_ELEMENT(
                        "x", M3_ELEMENT("item", "a") M3_ELEMENT("item", M3_ELEMENT("k", "v") "\n"))
                        M3_ELEMENT("o", "")) M3_CALL("g", "") M3 "</tool_call>",
           "Ok.",
           "|f#:{\"n\": 5, \"s\": \" 5\\n\", \"x\": [\"a\", {\"k\": \"v\"}], \"o\": {}}|g#:{}");
    PARSES("minimax_m3",
           M3 "<tool_call>" M3 "<invoke name=\"f\">" M3_ELEMENT("n", "1") M3 "<s>a" M3 "</", "",
           "|f#:{\"n\": 1}");
    PARSES("minimax_m3", M3 "<tool_call>none", M3 "<tool_call>none", "");
    PARSES("minimax_m3", M3 "<tool_call>" M3_CALL("f", M3 "<s>a" M3 "</n>"),
           M3 "<s>a" M3 "</n>" M3 "</invoke>\n", "|f#:{}"); // does not match
    PARSES("minimax_m3", M3 "<tool_call>" M3_CALL("f", M3 "<s>a" M3 ">/s>") " b",
           M3 "<s>a" M3 ">/s>" M3 "</invoke>\n b", "|f#:{}"); // no tag
}

TEST(glm_calls)
{
    PARSES("glm45",
           "Sure.\n<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n"
           "<arg_key>s</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
           "Sure.", "|f#:{\"n\": 5, \"s\": \"5\"}");
    PARSES("glm47",
           "<tool_call>f<arg_key>o</arg_key><arg_value>{\"a\": \"</\"}</arg_value></tool_call>"
           "<tool_call>g</tool_call> end",
           " end", "|f#:{\"o\": {\"a\": \"</\"}}|g#:{}");
    PARSES("ling3", "<tool_call>\nf\n</tool_call>", "", "|f#:{}");
    PARSES("glm45", "<tool_call>not a call</tool_call>", "<tool_call>not a call</tool_call>", "");
    PARSES("glm45", "<tool_call>{\"name\": 1}", "<tool_call>{\"name\": 1}", "");
    PARSES("glm45",
           "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value><arg_key>n</arg_key>"
           "<arg_value>1",
           "", "|f#:{\"s\": \"a\"}");
    PARSES("glm45", "<tool_call>f", "<tool_call>f", "");
}

/* Hy 3 has a separator after the name, and one pair of markers around all calls. */
TEST(hy_v3_calls)
{
    PARSES("hy_v3",
           "Sure.\n<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>n</arg_key>\n"
           "<arg_value>5</arg_value>\n<arg_key>s</arg_key>\n<arg_value> 5\n</arg_value>\n"
           "</tool_call>\n<tool_call>g<tool_sep>\n</tool_call>\n</tool_calls>",
           "Sure.", "|f#:{\"n\": 5, \"s\": \" 5\\n\"}|g#:{}");
    PARSES("hy_v3", "<tool_call>g<tool_sep></tool_call></tool_calls> end", " end", "|g#:{}");
    PARSES("hy_v3", "<tool_calls><tool_call>g<tool_sep></tool_call>\n end", "\n end", "|g#:{}");
    PARSES("hy_v3", "<tool_call>g</tool_call>", "<tool_call>g</tool_call>", "");
    PARSES("hy_v3", "<tool_calls>\nnone", "<tool_calls>\nnone", "");
    PARSES("hy_v3", "<tool_calls>", "<tool_calls>", "");
    PARSES("hy_v3",
           "<tool_calls><tool_call>f<tool_sep><arg_key>s</arg_key><arg_value>a</arg_value>"
           "<arg_key>n</arg_key><arg_value>1",
           "", "|f#:{\"s\": \"a\"}");
}

/* The id is part of the format and must be returned unchanged ("functions.f:0"). */
TEST(kimi_k2_calls)
{
    PARSES("kimi_k2",
           "Ok.\n" SECTION("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\": "
                           "\"}<|\"}<|tool_call_end|><|tool_call_begin|> g:12 "
                           "<|tool_call_argument_begin|> {} <|tool_call_end|>") "\n",
           "Ok.", "|f#functions.f:0:{\"s\": \"}<|\"}|g#g:12:{}");
    PARSES("kimi_k2", "<|tool_call_begin|>f<|tool_call_argument_begin|>{\"n\": 1", "",
           "|f#:{\"n\": 1");
    PARSES("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", "",
           "|f#functions.f:0:{}");
    PARSES("kimi_k2", SECTION("none"), SECTION("none"), "");
    PARSES("kimi_k2", "<|tool_call_begin|>f{}", "<|tool_call_begin|>f{}", "");
}

TEST(deepseek_v3_and_v31_calls)
{
    PARSES("deepseek_v31",
           "Ok." CALLS_BEGIN CALL_BEGIN "f" SEPARATOR "{\"n\": 1}" CALL_END CALL_BEGIN "g" SEPARATOR
           "{}" CALL_END CALLS_END,
           "Ok.", "|f#:{\"n\": 1}|g#:{}");
    PARSES("deepseek_v3",
           CALLS_BEGIN CALL_BEGIN "function" SEPARATOR "f\n```json\n{\"s\": \"```\"}\n```" CALL_END
                                  "\n" CALL_BEGIN "function" SEPARATOR
                                  "g\n```json\n{}\n```" CALL_END CALLS_END "```c\n```",
           "```c\n```", "|f#:{\"s\": \"```\"}|g#:{}");
    PARSES("deepseek_v3", CALL_BEGIN "function" SEPARATOR "f\nno",
           CALL_BEGIN "function" SEPARATOR "f\nno", "");
}

TEST(gemma4_calls)
{
    PARSES("gemma4",
           "Hi\n<|tool_call>call:f{s:<|\"|>a \"b\"\n{<|\"|>,n:-3.5e1,b:true,u:null,o:{k:[1,{},"
           "[],<|\"|><|\"|>]}}<tool_call|><|tool_call>call:g{}<tool_call|>",
           "Hi",
           "|f#:{\"s\": \"a \\\"b\\\"\\n{\", \"n\": -3.5e1, \"b\": true, \"u\": null, \"o\": "
           "{\"k\": [1, "
           "{}, [], \"\"]}}|g#:{}");
    PARSES("gemma4", "<|tool_call>call:f{<|\"|>a b<|\"|> : word one , x : [ 1 , 2 ] }<tool_call|>",
           "", "|f#:{\"a b\": \"word one\", \"x\": [1, 2]}");
    PARSES("gemma4", "<|tool_call>call:f{s:<|\"|>never", "", "|f#:{\"s\": ");
    PARSES("gemma4", "<|tool_call>call me", "<|tool_call>call me", "");
    PARSES("gemma4", "<|tool_call>call:f{a}b", "a}b", "|f#:{");
}

TEST(lists_of_objects)
{
    PARSES("hunyuan_a13b",
           "Ok <tool_calls>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": "
           "\"g\", \"arguments\": {}}]</tool_calls>",
           "Ok", "|f#:{\"n\": 1}|g#:{}");
    PARSES("jamba", "<tool_calls>[\n\t{\"name\": \"g\", \"arguments\": {}}\n]</tool_calls> x", " x",
           "|g#:{}");
    PARSES("hunyuan_a13b", "<tool_calls>[1]</tool_calls>", "<tool_calls>[1]</tool_calls>", "");
    PARSES("granite", "<|tool_call|>[{\"name\": \"g\", \"arguments\": {}}]", "", "|g#:{}");
    PARSES("granite", "<tool_call> [{\"name\": \"f\", \"arguments\": {\"s\": \"]\"}}] more",
           " more", "|f#:{\"s\": \"]\"}");
    PARSES("ernie45", "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>\n",
           "", "|f#:{\"n\": 1}");
    PARSES("cohere_command3",
           "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", "
           "\"parameters\": {\"n\": 1}}\n]<|END_ACTION|>",
           "", "|f#0:{\"n\": 1}");
    PARSES("phi4_mini_json", "functools[{\"name\": \"g\", \"arguments\": {}}]", "", "|g#:{}");
    PARSES("phi4_mini_json", "import functools\nfunctools.wraps",
           "import functools\nfunctools.wraps", "");
    PARSES("internlm",
           "a<|action_start|><|plugin|>\n{\"name\": \"g\", \"parameters\": {}}"
           "<|action_end|>\n",
           "a", "|g#:{}");
    PARSES("gigachat3",
           "a<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"g\", \"arguments\": "
           "{}}",
           "a", "|g#:{}");
    PARSES("longcat", "<longcat_tool_call>{\"name\": \"g\"}</longcat_tool_call>", "", "|g#:{}");
    PARSES("nemotron_json", "<TOOLCALL>[{\"name\": \"g\", \"arguments\": {}}]</TOOLCALL>\n", "",
           "|g#:{}");
}

/* The only key of an object is the tool's name. */
TEST(apertus_calls)
{
    PARSES("apertus",
           "Ok. <|tools_prefix|>[{\"f\": {\"n\": 1, \"o\": {\"k\": [\"}]\"]}}}, {\"g\": {}}]"
           "<|tools_suffix|>",
           "Ok.", "|f#:{\"n\": 1, \"o\": {\"k\": [\"}]\"]}}|g#:{}");
    PARSES("apertus", "<|tools_prefix|>[{\"g\": null}]<|tools_suffix|> b", " b", "|g#:{}");
    PARSES("apertus", "<|tools_prefix|>{\"name\": {\"arguments\": 1}, \"x\": 2}", "",
           "|name#:{\"arguments\": 1}");
    PARSES("apertus", "<|tools_prefix|>[{\"f\": {\"n\": 1", "", "|f#:{\"n\": 1");
    PARSES("apertus", "<|tools_prefix|>[{\"\": {}}]", "<|tools_prefix|>[{\"\": {}}]", "");
    PARSES("apertus", "a <|tools_prefix|>[1]", "a <|tools_prefix|>[1]", "");
    PARSES("apertus", "<|tools_prefix|>[{\"f\"", "<|tools_prefix|>[{\"f\"", "");
}

TEST(granite_20b_fc_calls)
{
    PARSES("granite-20b-fc",
           "<function_call> {\"name\": \"f\", \"arguments\": {\"n\": 1}}\n<function_call>"
           "{\"name\": \"g\", \"arguments\": {}} b",
           " b", "|f#:{\"n\": 1}|g#:{}");
    PARSES("granite-20b-fc", "a <function_call> b", "a <function_call> b", "");
}

/* The id is the model's own, and may be missing. */
TEST(solar_open_calls)
{
    PARSES("solar_open",
           "<|tool_calls|><|tool_call:begin|>a1b2<|tool_call:name|>f<|tool_call:args|>{\"s\": "
           "\"<|\"}<|tool_call:end|><|tool_call:begin|><|tool_call:name|>g<|tool_call:args|>{}"
           "<|tool_call:end|><|calls|>",
           "", "|f#a1b2:{\"s\": \"<|\"}|g#:{}");
    PARSES("solar_open",
           "Ok.<|begin|>assistant<|tool_calls|><|tool_call:begin|>x<|tool_call:name|>g"
           "<|tool_call:args|>{}<|tool_call:end|><|calls|> b",
           "Ok. b", "|g#x:{}");
    PARSES("solar_open", "<|tool_call:begin|>x<|tool_call:name|>f<|tool_call:args|>{\"n\": 1", "",
           "|f#x:{\"n\": 1");
    PARSES("solar_open", "<|tool_calls|>none", "<|tool_calls|>none", "");
    PARSES("solar_open", "<|tool_call:begin|>x y", "<|tool_call:begin|>x y", "");
    PARSES("solar_open", "<|begin|>assistant", "<|begin|>assistant", "");
}

TEST(functionary_v31_calls)
{
    PARSES("functionary_v31",
           "Ok.\n<function=f>{\"n\": 1, \"s\": \"</function>\"}</function><function=g>{}"
           "</function> b",
           "Ok. b", "|f#:{\"n\": 1, \"s\": \"</function>\"}|g#:{}");
    PARSES("functionary_v31", "<function=g>", "", "|g#:{}");
    PARSES("functionary_v31", "a <function=f b", "a <function=f b", "");
    PARSES("functionary_v31", "a <function=", "a <function=", "");
}

/* The prompt ends with the first ">>>". */
TEST(functionary_v32_calls)
{
    PARSES("functionary_v32", "f\n{\"n\": 1, \"s\": \">>>g\"}>>>g\n{}", "",
           "|f#:{\"n\": 1, \"s\": \">>>g\"}|g#:{}");
    PARSES("functionary_v32", "all\nOk.\n>>>g\n{}\n", "Ok.", "|g#:{}");
    PARSES("functionary_v32", "all\n>>> x = 1\n>>>other\n{}", ">>> x = 1\n>>>other\n{}", "");
    PARSES("functionary_v32", "f\nprint(1)", "f\nprint(1)", "");
    PARSES("functionary_v32", "Hello, all\nf\n{}", "Hello, all\nf\n{}", "");
    PARSES("functionary_v32", "{\"a\": 1}", "{\"a\": 1}", "");
    PARSES("functionary_v32", "f\n{\"n\": 1", "", "|f#:{\"n\": 1");
    PARSES("functionary_v32", "f\n", "f\n", "");
    PARSES("functionary_v32", "al", "al", "");
}

TEST(functiongemma_calls)
{
    PARSES("functiongemma",
           "<start_function_call>call:f{s:<escape>a \"b\"<escape>,n:-3,o:{k:[1,<escape><escape>]}}"
           "<end_function_call><start_function_call>call:g{}<end_function_call>",
           "", "|f#:{\"s\": \"a \\\"b\\\"\", \"n\": -3, \"o\": {\"k\": [1, \"\"]}}|g#:{}");
    PARSES("functiongemma", "<start_function_call>call me", "<start_function_call>call me", "");
}

TEST(olmo3_calls)
{
    PARSES("olmo3",
           "Ok\n<function_calls>\nf(n=1, s=\"a\\n)\", b=true)\ng(x=null)\n</function_calls>\n",
           "Ok", "|f#:{\"n\": 1, \"s\": \"a\\n)\", \"b\": true}|g#:{\"x\": null}");
    PARSES("olmo3", "[f(n=1)]", "[f(n=1)]", "");
    PARSES("olmo3", "<function_calls>none</function_calls>",
           "<function_calls>none</function_calls>", "");
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
