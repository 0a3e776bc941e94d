// SPDX-License-Identifier: Apache-2.0
/* functionary 3.2: messages RECIPIENT\nTEXT with ">>>" between them; the prompt ends with the first
 * ">>>". The text for "all" is content, and that for a tool of the request is the call's arguments.
 * All else is content as it is. */
#include "engine/base/optional.h"
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { RECIPIENT, BRACE, ARGUMENTS, TEXT };

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

static bool no_message(struct tool_parse *p)
{
    tool_give_up(p);
    p->state = TEXT;
    return true;
}

/* Reads the recipient up to the end of its line. */
static bool recipient(struct tool_parse *p)
{
    const char *name = or_empty(p->name.data);
    while (tool_n_held(p) > 0 && is_name(*tool_held(p)) && !p->name.failed) {
        buf_putc(&p->name, *tool_held(p));
        name = p->name.data;
        p->scan++;
    }
    if (tool_n_held(p) == 0) {
        return false;
    }
    bool good = *tool_held(p) == '\n' && p->name.n_bytes > 0 && !p->name.failed;
    if (good && strcmp(name, "all") == 0) {
        p->scan++;
        tool_commit(p);
        p->state = TEXT;
        return true;
    }
    if (!good || !tool_function(p->tools, name)) {
        return no_message(p);
    }
    p->scan++;
    p->state = BRACE;
    return true;
}

/* Text for a tool that is not an object is content. */
static bool brace(struct tool_parse *p)
{
    if (tool_n_held(p) == 0) {
        return false;
    }
    if (*tool_held(p) != '{') {
        return no_message(p);
    }
    tool_commit(p);
    tool_begin(p, p->name.data, "");
    tool_object_begin(p);
    p->state = ARGUMENTS;
    return true;
}

static bool step(struct tool_parse *p, bool final)
{
    static const char *const words[] = {">>>", NULL};
    int which;
    switch (p->state) {
    case RECIPIENT: return recipient(p);
    case BRACE: return brace(p);
    case ARGUMENTS:
        if (!tool_object(p)) {
            return false;
        }
        tool_end(p);
        p->state = TEXT;
        return true;
    default:
        if (!tool_find(p, words, true, final, &which)) {
            return false;
        }
        buf_clear(&p->name);
        p->state = RECIPIENT;
        return true;
    }
}

static const char *const markers[] = {NULL};
/* Any name but "all", whose text may be an object. */
#define NAME_BYTE "[A-Za-z0-9_.-]"
#define NOT_L "[A-Za-km-z0-9_.-]" NAME_BYTE "*"
#define RECIPIENT_OF_CALL                                                                          \
    "(?:[A-Zb-z0-9_.-]" NAME_BYTE "*|a(?:" NOT_L ")?|al(?:" NOT_L ")?|all" NAME_BYTE "+)"
static const struct tool_writing writing = {
    .call = "",
    .name_end = "\n",
    .between = ">>>",
    .open_after = ">>>",
    .starts = RECIPIENT_OF_CALL "\\n\\{",
    .bars = {">>>"},
};
const struct tool_parser tool_parser_functionary_v32 = {
    .name = "functionary_v32",
    .step = step,
    .markers = markers,
    .writing = &writing,
};
