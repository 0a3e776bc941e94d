/* The status page: one file, no outside requests; live plots from /status.json and a chat box. It
 * is status_page.html, taken in by the assembler. */
#include "server/api/api.h"

__asm__(".pushsection .rodata\n"
        "status_page_begin:\n"
        ".incbin \"server/api/status_page.html\"\n"
        "status_page_end:\n"
        ".popsection\n");

extern const char status_page_begin[], status_page_end[];

void api_status_page(struct http_request *req, void *arg)
{
    (void)arg;
    http_reply_header(req, "content-security-policy",
                      "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                      "connect-src 'self'");
    http_reply_header(req, "x-content-type-options", "nosniff");
    http_reply(req, 200, "text/html; charset=utf-8", status_page_begin,
               (size_t)(status_page_end - status_page_begin));
}
