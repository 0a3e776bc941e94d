// SPDX-License-Identifier: Apache-2.0
/* Formats with tags that carry names:
 *     qwen3_coder    Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5
 *     seed_oss       the same within <seed:tool_call>
 *     minimax_m2     <invoke name="NAME"><parameter name="KEY">
 *     dots           the same within <dots_function_call>
 *     deepseek_v32   the same with a special token in each tag; marks values as strings or JSON
 * (V3.2, V4)
 *     gigachat35     the same with another token
 *     minicpm5       <function name="NAME"><param name="KEY">, values perhaps in CDATA
 *     kimi_k3        tags made of tokens: <|open|>call tool="NAME" ...<|sep|>, values with a type
 *     step3          <steptml:invoke name="NAME"><steptml:parameter name="KEY">, within tokens
 *     muse           <atem:invoke name="NAME">, in messages to the tool
 *     solar_open2    tokens: <|tool_call:start|>NAME, <|tool_arg:start|>KEY<|tool_arg:value|>VALUE
 */
#include "server/chat/tools/xml.h"

#define FUNCTION_TAGS                                                                              \
    .call = "<function=", .name_end = ">", .call_end = "</function>",                              \
    .key = "<parameter=", .value_end = "</parameter>", .key_ends = {{">", TOOL_VALUE_BY_SCHEMA}},  \
    .lines = true

static const char *const qwen3_coder_markers[] = {"<tool_call>", "</tool_call>", NULL};
static const struct xml_form qwen3_coder = {
    .opens = {"<tool_call>"},
    .closes = {"</tool_call>"},
    FUNCTION_TAGS,
};
static const struct tool_writing qwen3_coder_writing = {
    .call = "<tool_call>\n<function=",
    .name_end = ">\n",
    .call_end = "</function>\n</tool_call>",
    .style = "qwen_xml",
    .between = "\n",
    .trigger = "<tool_call>",
    .bars = {"<function="},
};
const struct tool_parser tool_parser_qwen3_coder = {
    .name = "qwen3_coder",
    .step = tool_xml_step,
    .form = &qwen3_coder,
    .markers = qwen3_coder_markers,
    .ends_reasoning = qwen3_coder.opens,
    .writing = &qwen3_coder_writing,
};

static const char *const seed_oss_markers[] = {"<seed:tool_call>", "</seed:tool_call>", NULL};
static const struct xml_form seed_oss = {
    .opens = {"<seed:tool_call>"},
    .closes = {"</seed:tool_call>"},
    .trim = true,
    FUNCTION_TAGS,
};
static const struct tool_writing seed_oss_writing = {
    .call = "<seed:tool_call>\n<function=",
    .name_end = ">\n",
    .call_end = "</function>\n</seed:tool_call>",
    .style = "seed_xml",
    .between = "\n",
    .trigger = "<seed:tool_call>",
    .bars = {"<function="},
};
const struct tool_parser tool_parser_seed_oss = {
    .name = "seed_oss",
    .step = tool_xml_step,
    .form = &seed_oss,
    .markers = seed_oss_markers,
    .ends_reasoning = seed_oss.opens,
    .writing = &seed_oss_writing,
};

#define INVOKE_PARSER(its_name, its_open, its_close)                                               \
    static const char *const its_name##_markers[] = {its_open, its_close, NULL};                   \
    static const struct xml_form its_name = {                                                      \
        .opens = {its_open},                                                                       \
        .closes = {its_close},                                                                     \
        .call = "<invoke name=\"",                                                                 \
        .name_end = "\">",                                                                         \
        .call_end = "</invoke>",                                                                   \
        .key = "<parameter name=\"",                                                               \
        .value_end = "</parameter>",                                                               \
        .key_ends = {{"\">", TOOL_VALUE_BY_SCHEMA}},                                               \
        .trim = true,                                                                              \
    };                                                                                             \
    static const struct tool_writing its_name##_writing = {                                        \
        .open = its_open "\n",                                                                     \
        .call = "<invoke name=\"",                                                                 \
        .name_end = "\">\n",                                                                       \
        .call_end = "</invoke>\n",                                                                 \
        .style = "minimax_xml",                                                                    \
        .close = its_close,                                                                        \
        .trigger = its_open,                                                                       \
        .bars = {"<invoke name=\""},                                                               \
    };                                                                                             \
    const struct tool_parser tool_parser_##its_name = {                                            \
        .name = #its_name,                                                                         \
        .step = tool_xml_step,                                                                     \
        .form = &its_name,                                                                         \
        .markers = its_name##_markers,                                                             \
        .ends_reasoning = its_name.opens,                                                          \
        .writing = &its_name##_writing,                                                            \
    }
INVOKE_PARSER(minimax_m2, "<minimax:tool_call>", "</minimax:tool_call>");
INVOKE_PARSER(dots, "<dots_function_call>", "</dots_function_call>");

/* One token in each tag, with full-width bars. */
#define BARRED(word) "\xEF\xBD\x9C" word "\xEF\xBD\x9C"
#define DSML BARRED("DSML")
#define GCML BARRED("GCML")
#define BARRED_TAGS(token)                                                                         \
    .call = "<" token "invoke name=\"", .name_end = "\">", .call_end = "</" token "invoke>",       \
    .key = "<" token "parameter name=\"", .value_end = "</" token "parameter>",                    \
    .key_ends = {{"\" string=\"true\">", TOOL_VALUE_TEXT},                                         \
                 {"\" string=\"false\">", TOOL_VALUE_JSON}},                                       \
    .trim = true
static const char *const deepseek_v32_markers[] = {DSML, NULL};
static const struct xml_form deepseek_v32 = {
    .opens = {"<" DSML "function_calls>", "<" DSML "tool_calls>"},
    .closes = {"</" DSML "function_calls>", "</" DSML "tool_calls>"},
    BARRED_TAGS(DSML),
};
static const char *const gigachat35_markers[] = {"<" GCML "tool_calls>", "</" GCML "tool_calls>",
                                                 GCML, NULL};
static const struct xml_form gigachat35 = {
    .opens = {"<" GCML "tool_calls>"},
    .closes = {"</" GCML "tool_calls>"},
    BARRED_TAGS(GCML),
};
#define BARRED_PARSER(its_name, its_form, token, its_style, its_tag, ...)                          \
    static const struct tool_writing its_name##_writing = {                                        \
        .open = "<" token its_tag ">\n",                                                           \
        .call = "<" token "invoke name=\"",                                                        \
        .name_end = "\">\n",                                                                       \
        .call_end = "</" token "invoke>\n",                                                        \
        .style = its_style,                                                                        \
        .close = "</" token its_tag ">",                                                           \
        .trigger = "<" token its_tag ">",                                                          \
        .bars = {"<" token "invoke name=\"", ##__VA_ARGS__},                                       \
    };                                                                                             \
    const struct tool_parser tool_parser_##its_name = {                                            \
        .name = #its_name,                                                                         \
        .step = tool_xml_step,                                                                     \
        .form = &its_form,                                                                         \
        .markers = its_form##_markers,                                                             \
        .ends_reasoning = its_form.opens,                                                          \
        .writing = &its_name##_writing,                                                            \
    }
BARRED_PARSER(deepseek_v32, deepseek_v32, DSML, "deepseek_xml", "function_calls",
              "<" DSML "tool_calls>");
BARRED_PARSER(deepseek_v4, deepseek_v32, DSML, "deepseek_xml", "tool_calls",
              "<" DSML "function_calls>");
BARRED_PARSER(gigachat35, gigachat35, GCML, "gigachat_xml", "tool_calls", NULL);

static const char *const minicpm5_markers[] = {"<function", "</function>", "<param", "</param>",
                                               NULL};
static const struct xml_form minicpm5 = {
    .call = "<function name=\"",
    .name_end = "\">",
    .call_end = "</function>",
    .key = "<param name=\"",
    .value_end = "</param>",
    .key_ends = {{"\">", TOOL_VALUE_BY_SCHEMA}},
    .trim = true,
    .cdata_end = "]]></param>",
};
static const struct tool_writing minicpm5_writing = {
    .call = "<function name=\"",
    .name_end = "\">",
    .call_end = "</function>",
    .style = "minicpm_xml",
    .between = "\n",
    .trigger = "<function name=\"",
};
const struct tool_parser tool_parser_minicpm5 = {
    .name = "minicpm5",
    .step = tool_xml_step,
    .form = &minicpm5,
    .markers = minicpm5_markers,
    .writing = &minicpm5_writing,
};

#define TAG(kind, words) "<|" kind "|>" words "<|sep|>"
static const char *const kimi_k3_markers[] = {"<|open|>", "<|close|>", "<|sep|>", NULL};
static const struct xml_form kimi_k3 = {
    .opens = {TAG("open", "tools")},
    .closes = {TAG("close", "tools"), TAG("close", "message")},
    .call = "<|open|>call tool=\"",
    .name_end = "\"",
    .name_tail = "<|sep|>",
    .call_end = TAG("close", "call"),
    .key = "<|open|>argument key=\"",
    .value_end = TAG("close", "argument"),
    .key_ends = {{"\" type=\"string\"<|sep|>", TOOL_VALUE_TEXT},
                 {"\" type=\"number\"<|sep|>", TOOL_VALUE_JSON},
                 {"\" type=\"boolean\"<|sep|>", TOOL_VALUE_JSON},
                 {"\" type=\"null\"<|sep|>", TOOL_VALUE_JSON},
                 {"\" type=\"object\"<|sep|>", TOOL_VALUE_JSON},
                 {"\" type=\"array\"<|sep|>", TOOL_VALUE_JSON}},
    .trim = true,
};
static const struct tool_writing kimi_k3_writing = {
    .open = TAG("open", "tools"),
    .call = "<|open|>call tool=\"",
    .name_end = "\" index=\"%d\"<|sep|>",
    .call_end = TAG("close", "call"),
    .style = "kimi_k3_xml",
    .close = TAG("close", "tools"),
    .trigger = TAG("open", "tools"),
    .bars = {"<|open|>call tool=\""},
};
const struct tool_parser tool_parser_kimi_k3 = {
    .name = "kimi_k3",
    .step = tool_xml_step,
    .form = &kimi_k3,
    .markers = kimi_k3_markers,
    .ends_reasoning = kimi_k3.opens,
    .writing = &kimi_k3_writing,
};

#define STEP(words) "<\xEF\xBD\x9C" words "\xEF\xBD\x9C>"
#define STEP_CALLS STEP("tool_calls_begin")
#define STEP_CALLS_END STEP("tool_calls_end")
#define STEP_CALL STEP("tool_call_begin")
#define STEP_CALL_END STEP("tool_call_end")
#define STEP_SEPARATOR STEP("tool_sep")
static const char *const step3_markers[] = {STEP_CALLS,    STEP_CALLS_END, STEP_CALL,
                                            STEP_CALL_END, STEP_SEPARATOR, NULL};
static const char *const step3_ends_reasoning[] = {STEP_CALLS, STEP_CALL, NULL};
static const struct xml_form step3 = {
    .opens = {STEP_CALLS, STEP_CALL},
    .closes = {STEP_CALL_END, STEP_CALLS_END, STEP_SEPARATOR},
    .inner = {STEP_CALL, "function", STEP_SEPARATOR},
    .call = "<steptml:invoke name=\"",
    .name_end = "\">",
    .call_end = "</steptml:invoke>",
    .key = "<steptml:parameter name=\"",
    .value_end = "</steptml:parameter>",
    .key_ends = {{"\">", TOOL_VALUE_BY_SCHEMA}},
    .trim = true,
};
static const struct tool_writing step3_writing = {
    .open = STEP_CALLS,
    .call = STEP_CALL "function" STEP_SEPARATOR "<steptml:invoke name=\"",
    .name_end = "\">",
    .call_end = "</steptml:invoke>" STEP_CALL_END,
    .style = "step_xml",
    .close = STEP_CALLS_END,
    .trigger = STEP_CALLS,
    .bars = {STEP_CALL, "<steptml:invoke name=\""},
};
const struct tool_parser tool_parser_step3 = {
    .name = "step3",
    .step = tool_xml_step,
    .form = &step3,
    .markers = step3_markers,
    .ends_reasoning = step3_ends_reasoning,
    .writing = &step3_writing,
};

static const char *const solar_open2_markers[] = {"<|tool_call:start|>", "<|tool_call:end|>",
                                                  "<|tool_arg:start|>",  "<|tool_arg:value|>",
                                                  "<|tool_arg:end|>",    NULL};
static const char *const solar_open2_ends_reasoning[] = {"<|tool_call:start|>", NULL};
static const struct xml_form solar_open2 = {
    .call = "<|tool_call:start|>",
    .name_end = "\n",
    .call_end = "<|tool_call:end|>",
    .key = "<|tool_arg:start|>",
    .value_end = "<|tool_arg:end|>",
    .key_ends = {{"<|tool_arg:value|>", TOOL_VALUE_BY_SCHEMA}},
    .trim = true,
};
static const struct tool_writing solar_open2_writing = {
    .call = "<|tool_call:start|>",
    .name_end = "\n",
    .call_end = "<|tool_call:end|>",
    .style = "solar_xml",
    .between = "\n",
    .trigger = "<|tool_call:start|>",
};
const struct tool_parser tool_parser_solar_open2 = {
    .name = "solar_open2",
    .step = tool_xml_step,
    .form = &solar_open2,
    .markers = solar_open2_markers,
    .ends_reasoning = solar_open2_ends_reasoning,
    .writing = &solar_open2_writing,
};

static const char *const muse_markers[] = {"<|start|>", "<|message|>", "<|eom|>", NULL};
static const struct xml_form muse = {
    .opens = {" to=", "<|start|>assistant to=", "<atem:function_calls>"},
    .closes = {"</atem:function_calls>", "<|eom|>", "<|eot|>"},
    .inner = {"<atem:function_calls>"},
    .recipient_end = "<|message|>",
    .call = "<atem:invoke name=\"",
    .name_end = "\">",
    .call_end = "</atem:invoke>",
    .key = "<atem:parameter name=\"",
    .value_end = "</atem:parameter>",
    .key_ends = {{"\">", TOOL_VALUE_BY_SCHEMA}},
    .trim = true,
};
static const struct tool_writing muse_writing = {
    .head = " to=",
    .call = "<|message|><atem:function_calls>\n<atem:invoke name=\"",
    .name_end = "\">\n",
    .call_end = "</atem:invoke>\n</atem:function_calls>",
    .style = "muse_xml",
    .between = "<|eom|><|start|>assistant",
    .starts = " to=[A-Za-z0-9_.-]+<\\|message\\|><atem:",
    .bars = {"<atem:invoke name=\""},
};
const struct tool_parser tool_parser_muse = {
    .name = "muse",
    .step = tool_xml_step,
    .form = &muse,
    .markers = muse_markers,
    .writing = &muse_writing,
};
