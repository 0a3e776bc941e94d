/* The table of parsers, which of them a template asks for, and how a parse is driven. */
#include "server/chat/tools/parser.h"

#include <string.h>

enum { HELD_MAX_BYTES = 64 << 20 }; // far above what max_tokens allows

static const struct tool_parser *const parsers[] = {
    &tool_parser_harmony, &tool_parser_hermes,   &tool_parser_llama3_json,
    &tool_parser_mistral, &tool_parser_pythonic, &tool_parser_qwen3_coder,
};

const struct tool_parser *tool_parser_find(const char *name)
{
    for (size_t i = 0; i < sizeof parsers / sizeof parsers[0]; i++) {
        if (strcmp(parsers[i]->name, name) == 0) {
            return parsers[i];
        }
    }
    return NULL;
}

const struct tool_parser *tool_parser_for_template(const char *chat_template)
{
    static const struct {
        const char *text;
        const struct tool_parser *parser;
    } signs[] = {
        // the first that a template contains decides, so the more special come first
        {"<|channel|>analysis<|message|>", &tool_parser_harmony},
        {"<parameter=", &tool_parser_qwen3_coder},
        {"[TOOL_CALLS]", &tool_parser_mistral},
        {"<tool_call>", &tool_parser_hermes},
        {"<|tool_call_start|>", &tool_parser_pythonic},
        {"<|tool_list_start|>", &tool_parser_pythonic},
        {"<|python_start|>", &tool_parser_pythonic},
        {"<|python_tag|>", &tool_parser_llama3_json},
        {"\"parameters\": ", &tool_parser_llama3_json},
    };
    if (!chat_template || !strstr(chat_template, "tools")) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        if (strstr(chat_template, signs[i].text)) {
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

void tool_parse_finish(struct tool_parse *p)
{
    while (p->parser->step(p, true)) {
    }
    p->scan = p->held.n_bytes;
    if (p->in_call) {
        tool_end(p);
        tool_commit(p);
    }
    tool_report(p, p->scan);
}
