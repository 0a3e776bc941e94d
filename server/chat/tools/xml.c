// SPDX-License-Identifier: Apache-2.0
/* Calls in tags that carry names: <function=NAME><parameter=KEY>VALUE</parameter>...</function>,
 * each, or all of them, within an outer pair of tags that may be missing. Values are bare text.
 *     qwen3_coder    Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5
 *     seed_oss       the same within <seed:tool_call>
 *     minimax_m2     <invoke name="NAME"><parameter name="KEY">
 *     deepseek_v32   the same with a special token in each tag; marks values as strings or JSON
 * (V3.2, V4)
 *     minicpm5       <function name="NAME"><param name="KEY">, values perhaps in CDATA
 *     kimi_k3        tags made of tokens: <|open|>call tool="NAME" ...<|sep|>, values with a type
 */
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { TEXT, OPENED, NAME, NAME_TAIL, BODY, KEY, VALUE, AFTER };

enum { MAX_WORDS = 4, MAX_TYPES = 7 };

struct key_end {
    const char *text;
    enum tool_value type;
};

/* The words of one format. The parser below is the same for all of them. */
struct xml_form {
    const char *opens[MAX_WORDS], *closes[MAX_WORDS]; // tags of the outer pair
    const char *call, *name_end, *call_end;
    const char *name_tail; // ends a call's tag if the name is not last in it; otherwise NULL
    const char *key, *value_end;
    struct key_end key_ends[MAX_TYPES];
    bool trim;             // white space before a call is not content
    bool lines;            // one line break before and after a value is not part of it
    const char *cdata_end; // end of a <![CDATA[...]]> value; NULL: not supported
};

static const struct xml_form *form_of(const struct tool_parse *p)
{
    return p->parser->form;
}

/* The name of a call or parameter is complete: n_end bytes that end it are at `scan`. */
static void take_name(struct tool_parse *p, size_t n_end, enum tool_value type)
{
    p->scan += n_end;
    tool_commit(p);
    if (p->state == NAME) {
        tool_begin(p, p->name.data, "");
        p->state = form_of(p)->name_tail ? NAME_TAIL : BODY;
    } else {
        p->value_type = type;
        p->state = VALUE;
    }
}

/* Reads a name up to the text that ends it. Control characters are rejected, because a NUL would
 * truncate it. */
static bool name(struct tool_parse *p, struct buf *into, const struct key_end *ends, bool final)
{
    while (tool_n_held(p) > 0) {
        char c = *tool_held(p);
        if (c == ends[0].text[0]) {
            enum tool_match m = MATCH_NO;
            for (const struct key_end *e = ends; into->n_bytes > 0 && e->text; e++) {
                enum tool_match one = tool_match(p, e->text, final);
                if (one == MATCH_YES) {
                    take_name(p, strlen(e->text), e->type);
                    return true;
                }
                if (one == MATCH_MAYBE) {
                    m = one;
                }
            }
            if (m == MATCH_MAYBE) {
                return false;
            }
            return tool_abandon_parameters(p, TEXT);
        }
        if ((c >= '\0' && c < ' ') || c == '<' || into->failed) {
            return tool_abandon_parameters(p, TEXT);
        }
        buf_putc(into, c);
        p->scan++;
    }
    return false;
}

/* Skips attributes after the name in a call's tag. */
static bool name_tail(struct tool_parse *p)
{
    const char *tail = form_of(p)->name_tail;
    const char *found = memmem(tool_held(p), tool_n_held(p), tail, strlen(tail));
    if (!found) {
        return false;
    }
    p->scan = (size_t)(found - p->held.data) + strlen(tail);
    tool_commit(p);
    p->state = BODY;
    return true;
}

static bool starts(const char *s, size_t n, const char *word)
{
    size_t n_word = strlen(word);
    return n >= n_word && memcmp(s, word, n_word) == 0;
}

static const char cdata[] = "<![CDATA[";

/* The text that ends the value at `at`. */
static const char *value_end(const struct tool_parse *p)
{
    const struct xml_form *f = form_of(p);
    bool quoted = f->cdata_end && starts(p->held.data + p->at, p->held.n_bytes - p->at, cdata);
    return quoted ? f->cdata_end : f->value_end;
}

/* Reports the text between the tags of a parameter. */
static void report_value(struct tool_parse *p, const char *text, size_t n)
{
    if (form_of(p)->lines && starts(text, n, "\n")) {
        text++;
        n--;
    }
    if (form_of(p)->lines && n > 0 && text[n - 1] == '\n') {
        n--;
    }
    if (form_of(p)->cdata_end && starts(text, n, cdata)) {
        text += sizeof cdata - 1;
        n -= sizeof cdata - 1;
    }
    tool_parameter(p, text, n, p->value_type);
}

/* Reports a value when it is complete, because its type may depend on the whole text. Text that was
 * searched once is not searched again. */
static bool value(struct tool_parse *p)
{
    const char *end = value_end(p);
    size_t n_end = strlen(end), n = tool_n_held(p);
    const char *found = memmem(tool_held(p), n, end, n_end);
    if (!found) {
        if (n > n_end) {
            p->scan += n - n_end; // this text was searched; `at` stays
        }
        return false;
    }
    const char *text = p->held.data + p->at;
    report_value(p, text, (size_t)(found - text));
    p->scan = (size_t)(found - p->held.data) + n_end;
    tool_commit(p);
    p->state = BODY;
    return true;
}

/* Between parameters: expects the next one, or the call's end. */
static bool body(struct tool_parse *p, bool final)
{
    const struct xml_form *f = form_of(p);
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match key = tool_match(p, f->key, final), end = tool_match(p, f->call_end, final);
    if (key == MATCH_YES) {
        p->scan += strlen(f->key);
        buf_clear(&p->id);
        p->state = KEY;
        return true;
    }
    if (end == MATCH_YES) {
        p->scan += strlen(f->call_end);
        tool_commit(p);
        tool_end_parameters(p);
        p->state = AFTER;
        return true;
    }
    if (key == MATCH_MAYBE || end == MATCH_MAYBE) {
        return false;
    }
    return tool_abandon_parameters(p, TEXT);
}

/* After a call: drops the tags that close the outer pairs. */
static bool after(struct tool_parse *p, bool final)
{
    const struct xml_form *f = form_of(p);
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match m = tool_match(p, f->call, final);
    bool closed = false;
    for (const char *const *close = f->closes; m == MATCH_NO && *close; close++) {
        m = tool_match(p, *close, final);
        closed = m == MATCH_YES;
        if (closed) {
            p->scan += strlen(*close);
        }
    }
    if (m == MATCH_MAYBE) {
        return false;
    }
    tool_commit(p);
    p->state = closed ? AFTER : TEXT;
    return true;
}

/* After the tag that opens the outer pair. */
static bool opened(struct tool_parse *p, bool final)
{
    const struct xml_form *f = form_of(p);
    tool_skip_space(p);
    enum tool_match m = tool_match(p, f->call, final);
    if (m == MATCH_YES) {
        p->scan += strlen(f->call);
        buf_clear(&p->name);
        p->state = NAME;
        return true;
    }
    if (m == MATCH_MAYBE || tool_n_held(p) == 0) {
        return false;
    }
    return tool_abandon_parameters(p, TEXT);
}

/* Outside of calls: text is reported as soon as it can no longer be the beginning of a call. */
static bool text(struct tool_parse *p, bool final)
{
    const struct xml_form *f = form_of(p);
    const char *words[MAX_WORDS + 1] = {f->call};
    int which;
    for (int i = 0; f->opens[i]; i++) {
        words[i + 1] = f->opens[i];
    }
    if (!tool_find(p, words, f->trim, final, &which)) {
        return false;
    }
    buf_clear(&p->name);
    p->state = which == 0 ? NAME : OPENED;
    return true;
}

/* One transition of the state machine; called until it needs more text to continue. */
static bool step(struct tool_parse *p, bool final)
{
    const struct key_end name_ends[] = {{form_of(p)->name_end, TOOL_VALUE_BY_SCHEMA}, {NULL, 0}};
    bool more = false;
    switch (p->state) {
    case TEXT: return text(p, final);
    case OPENED: more = opened(p, final); break;
    case NAME: more = name(p, &p->name, name_ends, final); break;
    case NAME_TAIL: more = name_tail(p); break;
    case BODY: more = body(p, final); break;
    case KEY: more = name(p, &p->id, form_of(p)->key_ends, final); break;
    case VALUE: more = value(p); break;
    default: return after(p, final);
    }
    return more || (final && tool_cut_parameters(p, TEXT));
}

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
    .step = step,
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
    .step = step,
    .form = &seed_oss,
    .markers = seed_oss_markers,
    .ends_reasoning = seed_oss.opens,
    .writing = &seed_oss_writing,
};

static const char *const minimax_m2_markers[] = {"<minimax:tool_call>", "</minimax:tool_call>",
                                                 NULL};
static const struct xml_form minimax_m2 = {
    .opens = {"<minimax:tool_call>"},
    .closes = {"</minimax:tool_call>"},
    .call = "<invoke name=\"",
    .name_end = "\">",
    .call_end = "</invoke>",
    .key = "<parameter name=\"",
    .value_end = "</parameter>",
    .key_ends = {{"\">", TOOL_VALUE_BY_SCHEMA}},
    .trim = true,
};
static const struct tool_writing minimax_m2_writing = {
    .open = "<minimax:tool_call>\n",
    .call = "<invoke name=\"",
    .name_end = "\">\n",
    .call_end = "</invoke>\n",
    .style = "minimax_xml",
    .close = "</minimax:tool_call>",
    .trigger = "<minimax:tool_call>",
    .bars = {"<invoke name=\""},
};
const struct tool_parser tool_parser_minimax_m2 = {
    .name = "minimax_m2",
    .step = step,
    .form = &minimax_m2,
    .markers = minimax_m2_markers,
    .ends_reasoning = minimax_m2.opens,
    .writing = &minimax_m2_writing,
};

#define DSML                                                                                       \
    "\xEF\xBD\x9C"                                                                                 \
    "DSML"                                                                                         \
    "\xEF\xBD\x9C" // one token, with full-width bars
static const char *const deepseek_v32_markers[] = {DSML, NULL};
static const struct xml_form deepseek_v32 = {
    .opens = {"<" DSML "function_calls>", "<" DSML "tool_calls>"},
    .closes = {"</" DSML "function_calls>", "</" DSML "tool_calls>"},
    .call = "<" DSML "invoke name=\"",
    .name_end = "\">",
    .call_end = "</" DSML "invoke>",
    .key = "<" DSML "parameter name=\"",
    .value_end = "</" DSML "parameter>",
    .key_ends = {{"\" string=\"true\">", TOOL_VALUE_TEXT},
                 {"\" string=\"false\">", TOOL_VALUE_JSON}},
    .trim = true,
};
#define DSML_PARSER(its_name, its_tag, other_tag)                                                  \
    static const struct tool_writing its_name##_writing = {                                        \
        .open = "<" DSML its_tag ">\n",                                                            \
        .call = "<" DSML "invoke name=\"",                                                         \
        .name_end = "\">\n",                                                                       \
        .call_end = "</" DSML "invoke>\n",                                                         \
        .style = "deepseek_xml",                                                                   \
        .close = "</" DSML its_tag ">",                                                            \
        .trigger = "<" DSML its_tag ">",                                                           \
        .bars = {"<" DSML "invoke name=\"", "<" DSML other_tag ">"},                               \
    };                                                                                             \
    const struct tool_parser tool_parser_##its_name = {                                            \
        .name = #its_name,                                                                         \
        .step = step,                                                                              \
        .form = &deepseek_v32,                                                                     \
        .markers = deepseek_v32_markers,                                                           \
        .ends_reasoning = deepseek_v32.opens,                                                      \
        .writing = &its_name##_writing,                                                            \
    }
DSML_PARSER(deepseek_v32, "function_calls", "tool_calls");
DSML_PARSER(deepseek_v4, "tool_calls", "function_calls");

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
    .step = step,
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
    .step = step,
    .form = &kimi_k3,
    .markers = kimi_k3_markers,
    .ends_reasoning = kimi_k3.opens,
    .writing = &kimi_k3_writing,
};
