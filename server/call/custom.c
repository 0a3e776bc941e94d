// SPDX-License-Identifier: Apache-2.0
/* Custom tools, whose argument is a text: models write it as the only string of a JSON
 * object. */
#include "server/call/custom.h"

#include "engine/base/json_scan.h"
#include "engine/base/optional.h"
#include "server/chat/turn.h"

#include <string.h>

/* False: the text is not JSON, or has no such string. */
static bool read_text(const char *s, size_t n, struct buf *out)
{
    struct json_scan sc;
    bool found = false;
    json_scan_init(&sc, s, n, 8);
    if (json_scan_next(&sc) != JSON_TOKEN_OBJECT) {
        return false;
    }
    while (json_scan_next(&sc) == JSON_TOKEN_KEY) {
        bool is_it = json_scan_is(&sc, TOOL_TEXT_ARGUMENT);
        if (!is_it) {
            if (!json_scan_skip(&sc)) {
                return false;
            }
            continue;
        }
        if (json_scan_next(&sc) != JSON_TOKEN_STRING) {
            return false;
        }
        buf_clear(out);
        json_scan_unescape(&sc, out);
        found = true;
    }
    return found;
}

/* Appends the text as far as it can be decoded: a truncated answer ends in the middle of the
 * JSON. */
void custom_text(const struct buf *arguments, struct buf *out)
{
    /* Length of a pair of \u escapes: this much at the end may be incomplete. */
    enum { ESCAPE_BYTES = 12 };
    struct buf text, whole;
    buf_init(&text, arguments->max_bytes);
    buf_init(&whole, arguments->max_bytes + 8);
    const char *s = or_empty(arguments->data);
    bool found = read_text(s, arguments->n_bytes, &text);
    for (size_t cut = 0; !found && cut <= ESCAPE_BYTES && cut < arguments->n_bytes; cut++) {
        buf_clear(&whole);
        buf_put(&whole, s, arguments->n_bytes - cut);
        buf_puts(&whole, "\"}");
        found = read_text(whole.data, whole.n_bytes, &text);
    }
    if (found) {
        buf_put(out, or_empty(text.data), text.n_bytes);
    }
    buf_deinit(&text);
    buf_deinit(&whole);
}
