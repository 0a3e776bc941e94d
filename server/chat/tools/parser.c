// SPDX-License-Identifier: Apache-2.0
/* The table of parsers, the choice of a parser for a template, and the loop that drives a
 * parser. */
#include "server/chat/tools/parser.h"

#include <string.h>

enum { HELD_MAX_BYTES = 64 << 20 }; // far above what max_tokens allows

/* vLLM's names, "harmony" and SGLang's "muse". Models with the same format share a row. */
static const struct {
    const char *name;
    const struct tool_parser *parser;
} parsers[] = {
    {"apertus", &tool_parser_apertus},
    {"cohere_command3", &tool_parser_cohere_command3},
    {"cohere_command4", &tool_parser_cohere_command3},
    {"deepseek_v3", &tool_parser_deepseek_v3},
    {"deepseek_v31", &tool_parser_deepseek_v31},
    {"deepseek_v32", &tool_parser_deepseek_v32},
    {"deepseek_v4", &tool_parser_deepseek_v4},
    {"dots", &tool_parser_dots},
    {"ernie45", &tool_parser_hermes},
    {"functiongemma", &tool_parser_functiongemma},
    {"functionary_v31", &tool_parser_functionary_v31},
    {"functionary_v32", &tool_parser_functionary_v32},
    {"gemma4", &tool_parser_gemma4},
    {"gigachat3", &tool_parser_gigachat3},
    {"gigachat35", &tool_parser_gigachat35},
    {"glm45", &tool_parser_glm45},
    {"glm47", &tool_parser_glm45},
    {"granite", &tool_parser_granite},
    {"granite-20b-fc", &tool_parser_granite_20b_fc},
    {"granite4", &tool_parser_hermes},
    {"harmony", &tool_parser_harmony},
    {"hermes", &tool_parser_hermes},
    {"hunyuan_a13b", &tool_parser_hunyuan_a13b},
    {"hy_v3", &tool_parser_hy_v3},
    {"inkling", &tool_parser_inkling},
    {"internlm", &tool_parser_internlm},
    {"jamba", &tool_parser_hunyuan_a13b},
    {"kimi_k2", &tool_parser_kimi_k2},
    {"kimi_k3", &tool_parser_kimi_k3},
    {"lfm2", &tool_parser_lfm2},
    {"ling3", &tool_parser_glm45},
    {"llama3_json", &tool_parser_llama3_json},
    {"llama4_json", &tool_parser_llama3_json},
    {"llama4_pythonic", &tool_parser_pythonic},
    {"longcat", &tool_parser_longcat},
    {"mimo", &tool_parser_qwen3_coder},
    {"minicpm5", &tool_parser_minicpm5},
    {"minimax_m2", &tool_parser_minimax_m2},
    {"minimax_m3", &tool_parser_minimax_m3},
    {"mistral", &tool_parser_mistral},
    {"muse", &tool_parser_muse},
    {"muse_glimmer", &tool_parser_muse},
    {"nemotron_json", &tool_parser_nemotron_json},
    {"olmo3", &tool_parser_olmo3},
    {"openai", &tool_parser_harmony},
    {"phi4_mini_json", &tool_parser_phi4_mini_json},
    {"poolside_v1", &tool_parser_glm45},
    {"pythonic", &tool_parser_pythonic},
    {"qwen3_coder", &tool_parser_qwen3_coder},
    {"qwen3_json", &tool_parser_hermes},
    {"qwen3_xml", &tool_parser_qwen3_coder},
    {"seed_oss", &tool_parser_seed_oss},
    {"solar_open", &tool_parser_solar_open},
    {"solar_open2", &tool_parser_solar_open2},
    {"step3", &tool_parser_step3},
    {"step3p5", &tool_parser_qwen3_coder},
    {"xlam", &tool_parser_xlam},
};

enum { N_PARSERS = sizeof parsers / sizeof parsers[0] };

const char *tool_parser_name(size_t i)
{
    return i < N_PARSERS ? parsers[i].name : NULL;
}

const struct tool_parser *tool_parser_find(const char *name)
{
    for (size_t i = 0; i < N_PARSERS; i++) {
        if (strcmp(parsers[i].name, name) == 0) {
            return parsers[i].parser;
        }
    }
    return NULL;
}

/* DeepSeek's token between a call's parts; the older form has a fence as well. */
#define CALL_SEPARATOR "<\xEF\xBD\x9Ctool\xE2\x96\x81sep\xEF\xBD\x9C>"

/* The token in the tags of later DeepSeek models. */
#define DSML                                                                                       \
    "\xEF\xBD\x9C"                                                                                 \
    "DSML\xEF\xBD\x9C"

/* Selects the parser by words in the template. */
const struct tool_parser *tool_parser_for_template(const char *chat_template)
{
    static const struct {
        const char *text, *without; // `without`: must not occur; may be NULL
        const struct tool_parser *parser;
    } signs[] = {
        // The first one that a template contains decides, so the more specific come first.
        {"<|channel|>analysis<|message|>", NULL, &tool_parser_harmony},
        {"<seed:tool_call>", NULL, &tool_parser_seed_oss},
        {"]<]minimax[>[", NULL, &tool_parser_minimax_m3},
        {"<minimax:tool_call>", NULL, &tool_parser_minimax_m2},
        // V4's templates have tool_calls> where V3.2's have function_calls>.
        {DSML, "tool_calls>", &tool_parser_deepseek_v32},
        {DSML, NULL, &tool_parser_deepseek_v4},
        {"\xEF\xBD\x9C"
         "GCML\xEF\xBD\x9C",
         NULL, &tool_parser_gigachat35},
        {"<steptml:invoke", NULL, &tool_parser_step3},
        {"<|content_invoke_tool_json|>", NULL, &tool_parser_inkling},
        {"<atem:function_calls>", NULL, &tool_parser_muse},
        {"<dots_function_call>", NULL, &tool_parser_dots},
        {"<|tool_arg:start|>", NULL, &tool_parser_solar_open2},
        {"<|tool_calls_section_begin|>", NULL, &tool_parser_kimi_k2},
        {"<|open|>", NULL, &tool_parser_kimi_k3},
        {CALL_SEPARATOR, "```", &tool_parser_deepseek_v31},
        {CALL_SEPARATOR, NULL, &tool_parser_deepseek_v3},
        {"<tool_sep>", "<function name=\"", &tool_parser_hy_v3},
        {"<arg_key>", NULL, &tool_parser_glm45},
        {"<parameter=", NULL, &tool_parser_qwen3_coder},
        {"<function name=\"", NULL, &tool_parser_minicpm5},
        {"<function=", NULL, &tool_parser_functionary_v31},
        {"<|tool_call>call:", NULL, &tool_parser_gemma4},
        {"<start_function_call>", NULL, &tool_parser_functiongemma},
        {"<|tool_call:begin|>", NULL, &tool_parser_solar_open},
        {"<|tools_prefix|>", NULL, &tool_parser_apertus},
        {"[TOOL_CALLS]", NULL, &tool_parser_mistral},
        {"<|START_ACTION|>", NULL, &tool_parser_cohere_command3},
        {"<longcat_tool_call>", NULL, &tool_parser_longcat},
        {"<TOOLCALL>", NULL, &tool_parser_nemotron_json},
        {"<tool_calls>", NULL, &tool_parser_hunyuan_a13b},
        {"<function_calls>", NULL, &tool_parser_olmo3},
        {"<|tool_call|>", NULL, &tool_parser_granite},
        {"<tool_call>", NULL, &tool_parser_hermes},
        {"<|action_start|>", NULL, &tool_parser_internlm},
        {"<function_call>", NULL, &tool_parser_granite_20b_fc},
        {">>>all", NULL, &tool_parser_functionary_v32},
        {"functools", NULL, &tool_parser_phi4_mini_json},
        {"<|function_call|>", NULL, &tool_parser_gigachat3},
        {"'function call'", NULL, &tool_parser_gigachat3},
        {"<|tool_call_start|>", NULL, &tool_parser_lfm2},
        {"<|tool_list_start|>", NULL, &tool_parser_lfm2},
        {"List of tools: [", NULL, &tool_parser_lfm2},
        {"<|python_start|>", NULL, &tool_parser_pythonic},
        {"[func_name1(params_name1=params_value1", NULL, &tool_parser_pythonic},
        {"<|python_tag|>", NULL, &tool_parser_llama3_json},
        {"calls in a single JSON array", NULL, &tool_parser_xlam},
        {"{\"name\": \"func_name1\", \"arguments\": ", NULL, &tool_parser_xlam},
        {"\"parameters\": ", NULL, &tool_parser_llama3_json},
    };
    if (!chat_template ||
        !(strstr(chat_template, "tools") || strstr(chat_template, "tool_calls"))) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        bool barred = signs[i].without && strstr(chat_template, signs[i].without);
        if (!barred && strstr(chat_template, signs[i].text)) {
            return signs[i].parser;
        }
    }
    return NULL;
}

void tool_parse_init(struct tool_parse *p, const struct tool_parser *parser,
                     const struct json *tools, struct tool_sink sink)
{
    *p = (struct tool_parse){.parser = parser, .tools = tools, .sink = sink};
    buf_init(&p->held, HELD_MAX_BYTES);
    buf_init(&p->name, TOOL_NAME_MAX_BYTES);
    buf_init(&p->id, TOOL_NAME_MAX_BYTES);
}

void tool_parse_deinit(struct tool_parse *p)
{
    buf_deinit(&p->held);
    buf_deinit(&p->name);
    buf_deinit(&p->id);
    json_call_deinit(&p->call);
}

/* Drops consumed text. It does so in large pieces, so that long calls take linear time. */
static void forget_taken(struct tool_parse *p)
{
    if (p->at > 4096 || p->at == p->held.n_bytes) {
        buf_consume(&p->held, p->at);
        p->scan -= p->at;
        p->at = 0;
    }
}

void tool_parse_text(struct tool_parse *p, const char *text, size_t n_bytes)
{
    buf_put(&p->held, text, n_bytes);
    while (p->parser->step(p, false)) {
        forget_taken(p);
    }
    forget_taken(p);
}

/* No more text follows: an unfinished call ends as it is, and other held text is content. */
/* What is held within or right after a call is content if the model ended there. */
void tool_parse_finish(struct tool_parse *p)
{
    p->drops = p->cut && (p->in_call || p->n_calls > 0);
    while (p->parser->step(p, true)) {
    }
    p->scan = p->held.n_bytes;
    if (p->in_call) {
        tool_end(p);
        tool_commit(p);
    }
    tool_report(p, p->scan);
    p->drops = false;
}

void tool_parse_next(struct tool_parse *p)
{
    tool_parse_finish(p);
    buf_clear(&p->held);
    p->at = p->scan = p->n_seen = 0;
    p->state = 0;
}
