/* The pages: one file each, taken in by the assembler, without outside requests. status_page.html
 * has live plots from /status.json and a chat box, docs_page.html lists what /openapi.json says. */
#include "server/api/api.h"

#define PAGE(name)                                                                                 \
    __asm__(".pushsection .rodata\n" #name "_begin:\n"                                             \
            ".incbin \"server/api/" #name ".html\"\n" #name "_end:\n"                              \
            ".popsection\n");                                                                      \
    extern const char name##_begin[], name##_end[]

PAGE(status_page);
PAGE(docs_page);

static void reply_page(struct http_request *req, const char *begin, const char *end)
{
    http_reply_header(req, "content-security-policy",
                      "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                      "connect-src 'self'");
    http_reply_header(req, "x-content-type-options", "nosniff");
    http_reply(req, 200, "text/html; charset=utf-8", begin, (size_t)(end - begin));
}

void api_status_page(struct http_request *req, void *arg)
{
    (void)arg;
    reply_page(req, status_page_begin, status_page_end);
}

void api_docs_page(struct http_request *req, void *arg)
{
    (void)arg;
    reply_page(req, docs_page_begin, docs_page_end);
}
