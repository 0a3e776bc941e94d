// SPDX-License-Identifier: Apache-2.0
/* JSON objects {"name": ..., "arguments": {...}} after a marker, following any text: one, several,
 * or a list of them, up to a closing marker, which some formats lack. One row per format:
 *     hermes           Hermes, Qwen 2.5 and 3, Granite 4, ERNIE 4.5
 *     hunyuan_a13b     Hunyuan, Jamba, MiniMax-M1, Apriel
 *     granite          Granite 3
 *     cohere_command3  Command R7B and A, with keys of its own
 *     apertus          Apertus: {NAME: {...}}
 *     ...              as their names say */
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { TEXT, OPENED, CALL, BETWEEN };

enum { MAX_OPENS = 4 };

struct tagged_form {
    const char *opens[MAX_OPENS]; // NULL-terminated
    const char *close;            // NULL: the format has none
    bool by_key;                  // objects are {NAME: ARGUMENTS}
};

static const struct tagged_form *form_of(const struct tool_parse *p)
{
    return p->parser->form;
}

static bool begin_object(struct tool_parse *p)
{
    const bool by_key = form_of(p)->by_key;
    json_call_reset(&p->call, by_key, false);
    p->call.by_key = by_key;
    p->state = CALL;
    return true;
}

/* After the marker: expects an object, or the bracket of a list. */
static bool opened(struct tool_parse *p)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    if (*tool_held(p) == '[' && !p->in_list) {
        p->in_list = true;
        p->scan++;
        return true;
    }
    return begin_object(p);
}

static bool call(struct tool_parse *p)
{
    enum json_call_result r = json_call_step(&p->call, p);
    if (r == CALL_MORE) {
        return false;
    }
    const bool begun = p->in_call;
    if (r == CALL_BAD) {
        json_call_drop(p);
    }
    p->state = r == CALL_DONE || begun ? BETWEEN : TEXT; // the final brace may be missing
    return true;
}

/* After an object: expects another one, the end of the list, the closing marker, or text. */
static bool between(struct tool_parse *p, bool final)
{
    const char *close = form_of(p)->close;
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    char c = *tool_held(p);
    if (c == '{') {
        tool_commit(p);
        return begin_object(p);
    }
    if (p->in_list && (c == ',' || c == ']')) {
        p->in_list = c == ',';
        p->scan++;
        tool_commit(p);
        return true;
    }
    enum tool_match m = close ? tool_match(p, close, final) : MATCH_NO;
    if (m == MATCH_MAYBE) {
        return false;
    }
    p->scan = m == MATCH_YES ? p->scan + strlen(close) : p->at;
    tool_commit(p);
    p->state = TEXT;
    return true;
}

static bool step(struct tool_parse *p, bool final)
{
    int which;
    switch (p->state) {
    case TEXT:
        if (!tool_find(p, form_of(p)->opens, true, final, &which)) {
            return false;
        }
        p->in_list = false;
        p->state = OPENED;
        return true;
    case OPENED: return opened(p);
    case CALL: return call(p);
    default: return between(p, final);
    }
}

/* How calls are written: each between the markers, or all of them as one list. */
#define WRITES(its_name, its_open, its_close)                                                      \
    static const struct tool_writing its_name##_writing = {                                        \
        .call = its_open "\n{\"name\": \"",                                                        \
        .name_end = "\", \"arguments\": ",                                                         \
        .call_end = "}\n" its_close,                                                               \
        .between = "\n",                                                                           \
        .open_after = "\n",                                                                        \
        .trigger = its_open,                                                                       \
    }
#define WRITES_LIST(its_name, its_open, its_close)                                                 \
    static const struct tool_writing its_name##_writing = {                                        \
        .open = its_open "[",                                                                      \
        .call = "{\"name\": \"",                                                                   \
        .name_end = "\", \"arguments\": ",                                                         \
        .call_end = "}",                                                                           \
        .between = ", ",                                                                           \
        .close = "]" its_close,                                                                    \
        .trigger = its_open,                                                                       \
    }

WRITES(hermes, "<tool_call>", "</tool_call>");
WRITES(longcat, "<longcat_tool_call>", "</longcat_tool_call>");
WRITES_LIST(hunyuan_a13b, "<tool_calls>", "</tool_calls>");
WRITES_LIST(nemotron_json, "<TOOLCALL>", "</TOOLCALL>");
WRITES_LIST(phi4_mini_json, "functools", "");
static const struct tool_writing granite_writing = {
    .open = "<|tool_call|>[",
    .call = "{\"name\": \"",
    .name_end = "\", \"arguments\": ",
    .call_end = "}",
    .between = ", ",
    .close = "]",
    .trigger = "<|tool_call|>",
    .bars = {"<tool_call>"},
};
static const struct tool_writing cohere_command3_writing = {
    .open = "<|START_ACTION|>[\n",
    .call = "    {\"tool_call_id\": \"%d\", \"tool_name\": \"",
    .name_end = "\", \"parameters\": ",
    .call_end = "}",
    .between = ",\n",
    .close = "\n]<|END_ACTION|>",
    .trigger = "<|START_ACTION|>",
};

/* Defines a format whose markers may be special tokens. */
#define TAGGED(its_name, its_close, ...)                                                           \
    static const char *const its_name##_markers[] = {__VA_ARGS__, its_close, NULL};                \
    static const struct tagged_form its_name = {.opens = {__VA_ARGS__}, .close = its_close};       \
    const struct tool_parser tool_parser_##its_name = {                                            \
        .name = #its_name,                                                                         \
        .step = step,                                                                              \
        .form = &its_name,                                                                         \
        .markers = its_name##_markers,                                                             \
        .writing = &its_name##_writing,                                                            \
    }

TAGGED(hermes, "</tool_call>", "<tool_call>");
TAGGED(hunyuan_a13b, "</tool_calls>", "<tool_calls>");
TAGGED(granite, "</tool_call>", "<|tool_call|>", "<tool_call>"); // rarely writes "</tool_call>"
TAGGED(longcat, "</longcat_tool_call>", "<longcat_tool_call>");
TAGGED(nemotron_json, "</TOOLCALL>", "<TOOLCALL>");
TAGGED(phi4_mini_json, NULL, "functools");
TAGGED(cohere_command3, "<|END_ACTION|>", "<|START_ACTION|>");

static const char *const granite_20b_fc_markers[] = {"<function_call>", NULL};
static const struct tagged_form granite_20b_fc = {.opens = {"<function_call>"}};
static const struct tool_writing granite_20b_fc_writing = {
    .call = "<function_call> {\"name\": \"",
    .name_end = "\", \"arguments\": ",
    .call_end = "}",
    .trigger = "<function_call>",
};
const struct tool_parser tool_parser_granite_20b_fc = {
    .name = "granite-20b-fc",
    .step = step,
    .form = &granite_20b_fc,
    .markers = granite_20b_fc_markers,
    .writing = &granite_20b_fc_writing,
};

static const char *const apertus_markers[] = {"<|tools_prefix|>", "<|tools_suffix|>", NULL};
static const struct tagged_form apertus = {
    .opens = {"<|tools_prefix|>"},
    .close = "<|tools_suffix|>",
    .by_key = true,
};
static const struct tool_writing apertus_writing = {
    .open = "<|tools_prefix|>[",
    .call = "{\"",
    .name_end = "\": ",
    .call_end = "}",
    .between = ", ",
    .close = "]<|tools_suffix|>",
    .trigger = "<|tools_prefix|>",
};
const struct tool_parser tool_parser_apertus = {
    .name = "apertus",
    .step = step,
    .form = &apertus,
    .markers = apertus_markers,
    .ends_reasoning = apertus.opens, // calls are part of the model's deliberation
    .writing = &apertus_writing,
};

static const char *const internlm_markers[] = {"<|action_start|>", "<|plugin|>", "<|action_end|>",
                                               NULL};
static const struct tagged_form internlm = {
    .opens = {"<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"},
    .close = "<|action_end|>",
};
static const struct tool_writing internlm_writing = {
    .call = "<|action_start|><|plugin|>\n{\"name\": \"",
    .name_end = "\", \"parameters\": ",
    .call_end = "}<|action_end|>",
    .between = "\n",
    .trigger = "<|action_start|><|plugin|>",
    .bars = {"<|action_start|> <|plugin|>"},
};
const struct tool_parser tool_parser_internlm = {
    .name = "internlm",
    .step = step,
    .form = &internlm,
    .markers = internlm_markers,
    .writing = &internlm_writing,
};

static const char *const gigachat3_markers[] = {"<|message_sep|>", "<|role_sep|>",
                                                "<|function_call|>", NULL};
static const struct tagged_form gigachat3 = {
    .opens = {"<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>",
              "<|function_call|>"},
};
static const struct tool_writing gigachat3_writing = {
    .call = "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"",
    .name_end = "\", \"arguments\": ",
    .call_end = "}",
    .trigger = "<|message_sep|>\n\nfunction call<|role_sep|>",
    .bars = {"function call<|role_sep|>", "<|function_call|>"},
    .once = true,
};
const struct tool_parser tool_parser_gigachat3 = {
    .name = "gigachat3",
    .step = step,
    .form = &gigachat3,
    .markers = gigachat3_markers,
    .writing = &gigachat3_writing,
};
