// SPDX-License-Identifier: Apache-2.0
/* The output parsers: three bytes select the parser, the reasoning and the options, and the rest is
 * the text of a model. The result must not depend on how the text was cut, and calls must be
 * well-formed. */
#include "server/chat/output.h"

#include "engine/base/assert.h"
#include "engine/base/minmax.h"
#include "test/fuzz/fuzz.h"

static const char tools_text[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"n\":{\"type\":\"integer\"},"
    "\"o\":{\"type\":\"object\"},\"b\":{\"type\":[\"boolean\",\"null\"]},\"s\":{\"anyOf\":[{"
    "\"type\":\"string\"},{\"type\":\"null\"}]}}}}},{\"function\":{\"name\":\"g\"}}]";

/* All calls of the sink, as text that can be compared. */
struct result {
    struct buf text;
    bool in_call;
    char last;
};

/* Adjacent pieces of one kind are joined, so that only the content counts. */
static void put(struct result *r, char kind, const char *s, size_t n)
{
    if (r->last != kind || kind == 'C') {
        buf_putc(&r->text, '\n');
        buf_putc(&r->text, kind);
    }
    r->last = kind;
    buf_put(&r->text, s, n);
}

static void on_text(void *arg, const char *s, size_t n)
{
    put(arg, 'T', s, n);
}

static void on_reasoning(void *arg, const char *s, size_t n)
{
    put(arg, 'R', s, n);
}

static void on_call(void *arg, const char *name, const char *id)
{
    ASSERT(name && name[0] && id);
    ((struct result *)arg)->in_call = true;
    put(arg, 'C', name, strlen(name));
}

static void on_arguments(void *arg, const char *s, size_t n)
{
    ASSERT(((struct result *)arg)->in_call && n > 0);
    put(arg, 'A', s, n);
}

/* `piece` is the number of bytes per call. */
static void parse(const struct output_options *opt, const char *s, size_t n, size_t piece,
                  struct result *r)
{
    struct tool_sink sink = {on_text, on_reasoning, on_call, on_arguments, r};
    struct output o;
    *r = (struct result){.in_call = false};
    buf_init(&r->text, 1 << 20);
    output_init(&o, opt, &sink);
    for (size_t i = 0; i < n; i += piece) {
        output_text(&o, s + i, lesser(piece, n - i));
    }
    output_finish(&o);
    output_deinit(&o);
}

/* Whole, byte by byte and in other pieces: the results must be equal. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {
        // 'a' and so on. New names are added at the end, so that existing inputs keep their
        // meaning.
        "hermes",          "llama3_json",
        "mistral",         "pythonic",
        "qwen3_coder",     "harmony",
        "seed_oss",        "minimax_m2",
        "deepseek_v32",    "minicpm5",
        "glm45",           "kimi_k2",
        "deepseek_v31",    "deepseek_v3",
        "gemma4",          "hunyuan_a13b",
        "granite",         "cohere_command3",
        "internlm",        "gigachat3",
        "olmo3",           "phi4_mini_json",
        "kimi_k3",         "minimax_m3",
        "hy_v3",           "apertus",
        "solar_open",      "functionary_v31",
        "functiongemma",   "xlam",
        "functionary_v32", "step3",
        "gigachat35",      "dots",
        "solar_open2",     "muse",
        "inkling",
    };
    enum { N_NAMES = sizeof names / sizeof names[0], N_KINDS = REASONING_THINK + 1 };
    static const char *const stop[] = {"</s>", "END"};
    static const size_t stop_bytes[] = {4, 3};
    struct json *tools;
    if (size < 3 || json_parse(tools_text, sizeof tools_text - 1, NULL, &tools, NULL) != OK) {
        return 0;
    }
    struct output_options opt = {
        .parser = tool_parser_find(names[(uint8_t)(data[0] - 'a') % N_NAMES]),
        .tools = tools,
        .reasoning = (enum reasoning_kind)((uint8_t)(data[1] - '0') % N_KINDS),
        .starts_in_reasoning = (data[2] & 1) != 0,
        .stop = stop,
        .stop_bytes = stop_bytes,
        .n_stop = data[2] & 2 ? 2 : 0,
    };
    struct result whole, cut;
    const char *text = (const char *)data + 3;
    size -= 3;
    parse(&opt, text, size, size + 1, &whole);
    for (size_t piece = 1; piece < 4; piece++) {
        parse(&opt, text, size, piece, &cut);
        ASSERT(cut.text.n_bytes == whole.text.n_bytes);
        ASSERT(whole.text.n_bytes == 0 ||
               memcmp(cut.text.data, whole.text.data, whole.text.n_bytes) == 0);
        buf_deinit(&cut.text);
    }
    buf_deinit(&whole.text);
    json_free(tools);
    return 0;
}

#ifndef LIBFUZZER
/* The first three bytes of each seed choose the parser and options. */
static const char *const seeds[] = {
    "a02<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": [1, {}]}}\n</tool_call> b END",
    "b00{\"name\": \"g\", \"parameters\": {\"x\": \"\\u00e9\\\"\"}}; {\"name\": \"f\", "
    "\"parameters\": {}}",
    "c70[THINK]hm[/THINK][TOOL_CALLS]f[CALL_ID]ab12[ARGS]{\"n\": 1}[TOOL_CALLS][{\"name\": "
    "\"g\", "
    "\"arguments\": \"{}\", \"id\": \"x\"}]",
    "d00[f(n=-1.5e3, s='a\\x41\\'', o={'k': [True, None, (1,)]}), g()]",
    "dC3hm</think><|tool_call_start|>[[f(n=1)]",
    "e00<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n<parameter=b>\ntrue\n"
    "</parameter>\n</function>\n</tool_call>",
    "dC0<think>\nhm\n</think>\n\n<|tool_call_start|>[f(n=1)]<|tool_call_end|>",
    "bC2The <think>end</think></s>\n<|python_tag|>{\"name\"",
    "f10\xf9"
    "analysis\xfahm\xfc\xf8"
    "assistant\xf9"
    "commentary to=functions.f \xfb"
    "json\xfa{\"n\": "
    "[1, \"}\"]}\xfe\xf8"
    "assistant\xf9"
    "final\xfayes\xfd",
    "f10 to=functions.g\xf9"
    "commentary\xfa{}\xfe stray \xf9"
    "commentary\xfaI look.\xfc",
    "f11hm\xfc\xf8"
    "assistant to=python\xf9"
    "analysis code\xfaprint(1)\xfe",
    "g30<seed:think>hm</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=n>5</"
    "parameter>\n"
    "</function>\n</seed:tool_call>",
    "hC1hm<minimax:tool_call>\n<invoke name=\"f\">\n<parameter "
    "name=\"n\">5</parameter>\n</invoke>"
    "\n</minimax:tool_call>",
    "i00<\xEF\xBD\x9C"
    "DSML\xEF\xBD\x9Ctool_calls>\n<\xEF\xBD\x9C"
    "DSML\xEF\xBD\x9Cinvoke name=\"f\">"
    "\n<\xEF\xBD\x9C"
    "DSML\xEF\xBD\x9Cparameter name=\"n\" string=\"false\">5</\xEF\xBD\x9C"
    "DSML"
    "\xEF\xBD\x9Cparameter>\n</\xEF\xBD\x9C"
    "DSML\xEF\xBD\x9Cinvoke>",
    "j00<function name=\"f\"><param name=\"s\"><![CDATA[<b> </param>]]></param></function>",
    "kC1hm</think>\n<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
    "lC0<think>hm<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    "<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_end|><|tool_calls_section_end|>",
    "m00<\xEF\xBD\x9Ctool\xE2\x96\x81"
    "call\xE2\x96\x81"
    "begin\xEF\xBD\x9C>f<\xEF\xBD\x9Ctool\xE2\x96"
    "\x81sep\xEF\xBD\x9C>{\"n\": 1}",
    "n00<\xEF\xBD\x9Ctool\xE2\x96\x81"
    "call\xE2\x96\x81"
    "begin\xEF\xBD\x9C>function<\xEF\xBD\x9Ctool"
    "\xE2\x96\x81sep\xEF\xBD\x9C>f\n```json\n{\"n\": 1}\n```",
    "o20<|channel>thought\nhm<channel|><|tool_call>call:f{s:<|\"|>a\"<|\"|>,o:{k:[1,{},<|\"|>x<"
    "|\"|>]},"
    "b:true}<tool_call|>",
    "p@0<think>\nhm\n</think>\n<answer>\nyes\n</answer><tool_calls>[{\"name\": \"f\", "
    "\"arguments\": "
    "{\"n\": 1}}, {\"name\": \"g\"}]</tool_calls>",
    "q80Here is my thought process: hm. Here is my response: <|tool_call|>[{\"name\": \"g\"}]",
    "r50<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[{\"tool_call_id\": \"0\", "
    "\"tool_name\": "
    "\"f\", \"parameters\": {}}]<|END_ACTION|><|START_RESPONSE|>yes<|END_RESPONSE|>",
    "sA0<|action_start|><|plugin|>{\"name\": \"g\", \"parameters\": {}}<|action_end|>",
    "t00<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"g\", \"arguments\": {}}",
    "u00<function_calls>\nf(n=1)\ng()\n</function_calls>",
    "w60<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" "
    "index=\"1\"<|sep|><|open|>argument key=\"n\" "
    "type=\"number\"<|sep|>1<|close|>argument<|sep|>"
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
    "x40<mm:think>hm</mm:think>]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke "
    "name=\"f\">]<]minimax[>["
    "<o>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[</o>]<]minimax[>[</invoke>\n"
    "]<]minimax[>[</tool_call>",
    "v00functools[{\"name\": \"g\", \"arguments\": {}}]",
    "z90<|inner_prefix|>hm<|tools_prefix|>[{\"f\": {\"n\": 1}}, {\"g\": {}}]<|tools_suffix|>",
    "{;0<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:"
    "name|>"
    "f<|tool_call:args|>{\"n\": 1}<|tool_call:end|><|calls|>",
    "|00<function=f>{\"n\": 1}</function>\n<function=g>{}</function>",
    "~00Ok.\n```json\n[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\"}]\n``` b",
    "\x7f"
    ":0all\nOk.\n>>>f\n{\"n\": 1}>>>g\n{}",
    "\x80\x43\x30<think>hm</"
    "think>\n<\xEF\xBD\x9Ctool_calls_begin\xEF\xBD\x9C><\xEF\xBD\x9Ctool_call_begin"
    "\xEF\xBD\x9C>function<\xEF\xBD\x9Ctool_sep\xEF\xBD\x9C><steptml:invoke name=\"f\">"
    "<steptml:parameter name=\"n\">5</steptml:parameter></steptml:invoke>"
    "<\xEF\xBD\x9Ctool_call_end\xEF\xBD\x9C>",
    "\x81\x3a\x30<\xEF\xBD\x9CGCML\xEF\xBD\x9Cinvoke name=\"f\"><\xEF\xBD\x9CGCML\xEF\xBD\x9C"
    "parameter name=\"n\" string=\"false\">5</\xEF\xBD\x9CGCML\xEF\xBD\x9Cparameter>",
    "\x82\x43\x30<dots_function_call>\n<invoke name=\"f\">\n<parameter "
    "name=\"n\">5</parameter>\n"
    "</invoke>",
    "\x84>0 to=self<|message|>hm<|eom|><|start|>assistant "
    "to=f<|message|><atem:function_calls>\n"
    "<atem:invoke name=\"f\">\n<atem:parameter name=\"n\">5</atem:parameter>\n</atem:invoke>\n"
    "</atem:function_calls><|eom|><|start|>assistant to=self<|message|>so<|eom|>"
    "<|start|>assistant to=user<|message|>yes<|eom|><|start|>assistant to=self<|message|>hm",
    "\x85?0<|content_thinking|>hm<|end_message|><|message_model|>f<|content_invoke_tool_json|>"
    "{\"name\":\"f\",\"args\":{\"n\":1}}<|end_message|><|message_model|><|content_thinking|>so"
    "<|end_message|><|message_model|><|content_text|>yes<|end_message|><|message_model|>"
    "<|content_thinking|>hm",
    "\x83<0<|think:start|>hm<|think:end|><|tool_call:start|>f\n<|tool_arg:start|>n"
    "<|tool_arg:value|>5<|tool_arg:end|>\n<|tool_call:end|>",
    "}00<start_function_call>call:f{s:<escape>a\"<escape>,o:{k:[1]}}<end_function_call>",
};

int main(void)
{
    static const char cut_name[] = "e00<tool_call>\n<function=\0\0f>\n<parameter=\0>\n5\n"
                                   "</parameter>\n</function>\n</tool_call>"; // found by a fuzzer
    fuzz_one(cut_name, sizeof cut_name - 1);
    return fuzz_main(seeds, sizeof seeds / sizeof seeds[0], 60000);
}
#endif
