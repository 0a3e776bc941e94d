// SPDX-License-Identifier: Apache-2.0
/* The web pages: files of server/api/page, included by the assembler; they load nothing from
 * elsewhere. The page at / has live plots of /status.json and a chat, the one at /docs lists
 * /openapi.json. Styles and scripts are separate files, so that the policy can forbid inline
 * code. */
#include "server/api/api.h"

#include <string.h>

#define PAGE(name, file)                                                                           \
    __asm__(".pushsection .rodata\n" #name "_begin:\n"                                             \
            ".incbin \"server/api/page/" file "\"\n" #name "_end:\n"                               \
            ".popsection\n");                                                                      \
    extern const char name##_begin[], name##_end[]

PAGE(page_docs, "docs.html");
PAGE(page_status, "status.html");
PAGE(page_style, "style.css");
PAGE(page_markdown, "markdown.js");
PAGE(page_plots, "plots.js");
PAGE(page_chat, "chat.js");
PAGE(page_docs_style, "docs.css");
PAGE(page_docs_script, "docs.js");

#define HTML "text/html; charset=utf-8"
#define STYLE "text/css; charset=utf-8"
#define SCRIPT "text/javascript; charset=utf-8"

static const struct part {
    const char *name, *begin, *end, *type;
} parts[] = {
    {"style.css", page_style_begin, page_style_end, STYLE},
    {"markdown.js", page_markdown_begin, page_markdown_end, SCRIPT},
    {"plots.js", page_plots_begin, page_plots_end, SCRIPT},
    {"chat.js", page_chat_begin, page_chat_end, SCRIPT},
    {"docs.css", page_docs_style_begin, page_docs_style_end, STYLE},
    {"docs.js", page_docs_script_begin, page_docs_script_end, SCRIPT},
};

/* The policy allows only the files above: no other code, no external content, and no requests to
 * other servers. */
static void reply_file(struct http_request *req, const char *type, const char *begin,
                       const char *end)
{
    http_reply_header(
        req, "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'");
    http_reply_header(req, "x-content-type-options", "nosniff");
    http_reply_header(req, "cache-control", "no-cache"); // a newer version of the program has newer
                                                         // files
    http_reply(req, 200, type, begin, (size_t)(end - begin));
}

void api_status_page(struct http_request *req, void *arg)
{
    if (!api_is_disabled(arg, req, "/", true)) {
        reply_file(req, HTML, page_status_begin, page_status_end);
    }
}

void api_docs_page(struct http_request *req, void *arg)
{
    if (api_hides_docs(arg, req)) {
        return;
    }
    reply_file(req, HTML, page_docs_begin, page_docs_end);
}

void api_page_part(struct http_request *req, void *arg)
{
    const char *name = http_param(req);
    (void)arg;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strcmp(parts[i].name, name) == 0) {
            reply_file(req, parts[i].type, parts[i].begin, parts[i].end);
            return;
        }
    }
    reply_errorf(req, 404, "unknown_url", NULL, "The page has no such part.");
}
