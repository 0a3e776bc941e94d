/* Hermes, Qwen 2.5 and Qwen 3: <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, any
 * number of them, after any text. */
#include "server/chat/tools/parser.h"

enum state { TEXT, CALL, BETWEEN };

static bool step(struct tool_parse *p, bool final)
{
    static const char *const open[] = {"<tool_call>", NULL};
    static const char close[] = "</tool_call>";
    int which;
    if (p->state == TEXT) {
        if (!tool_find(p, open, true, final, &which)) {
            return false;
        }
        json_call_reset(&p->call, false, false);
        p->state = CALL;
        return true;
    }
    if (p->state == CALL) {
        enum json_call_result r = json_call_step(&p->call, p);
        if (r == CALL_MORE) {
            return false;
        }
        const bool begun = p->in_call;
        if (r == CALL_BAD) {
            json_call_drop(p);
        }
        p->state = r == CALL_DONE || begun ? BETWEEN : TEXT; // a brace may be missing at its end
        return true;
    }
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match m = tool_match(p, close, final);
    if (m == MATCH_MAYBE) {
        return false;
    }
    if (m == MATCH_YES) {
        p->scan += sizeof close - 1;
    }
    tool_commit(p);
    bool another = m == MATCH_NO && *tool_held(p) == '{'; // two objects in one pair of tags
    if (another) {
        json_call_reset(&p->call, false, false);
    }
    p->state = another ? CALL : TEXT;
    return true;
}

static const char *const markers[] = {"<tool_call>", "</tool_call>", NULL};
const struct tool_parser tool_parser_hermes = {
    .name = "hermes",
    .step = step,
    .markers = markers,
};
