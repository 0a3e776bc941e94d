// SPDX-License-Identifier: Apache-2.0
/* URLs below the endpoint. */
#include "server/hub/pull.h"

#include <string.h>

static void put_escaped(struct buf *b, const char *text, size_t n_bytes)
{
    char *escaped = NULL;
    if (n_bytes > 0) {
        escaped = curl_easy_escape(NULL, text, (int)n_bytes);
    }
    if (escaped) {
        buf_puts(b, escaped);
    }
    curl_free(escaped);
}

/* The address of a file at the commit of the list. */
char *pull_file_url(const struct pull *p, const char *path)
{
    struct buf url;
    buf_init(&url, 1 << 16);
    buf_printf(&url, "%s/%s/resolve/%s/", p->settings->endpoint, p->name->id, p->commit);
    for (const char *at = path; *at;) { // escapes each path component, keeping the slashes
        const size_t n = strcspn(at, "/");
        put_escaped(&url, at, n);
        if (at[n]) {
            buf_puts(&url, "/");
        }
        at += n + (at[n] == '/');
    }
    return url.data;
}

char *pull_list_url(const struct pull *p)
{
    struct buf url;
    buf_init(&url, 1 << 16);
    buf_printf(&url, "%s/api/models/%s/revision/", p->settings->endpoint, p->name->id);
    put_escaped(&url, p->name->revision, strlen(p->name->revision));
    return url.data;
}
