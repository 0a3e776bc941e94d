// SPDX-License-Identifier: Apache-2.0
#include "server/cli/json_line.h"

#include <string.h>

enum status json_line_read(const char *s, size_t n_bytes, int depth, json_line_member *member,
                           void *arg, struct err *err)
{
    struct json_scan sc;
    json_scan_init(&sc, s, n_bytes, depth);
    enum json_token t = json_scan_next(&sc);
    if (t == JSON_TOKEN_ERROR) {
        return json_scan_error(&sc, err);
    }
    if (t != JSON_TOKEN_OBJECT) {
        return err_set(err, ERR_INVALID, "the line is not a JSON object");
    }
    while ((t = json_scan_next(&sc)) == JSON_TOKEN_KEY) {
        enum status st = member(&sc, arg, err);
        if (sc.why) {
            return json_scan_error(&sc, err);
        }
        if (st != OK) {
            return st;
        }
    }
    if (t != JSON_TOKEN_OBJECT_END || json_scan_next(&sc) != JSON_TOKEN_END) {
        return json_scan_error(&sc, err);
    }
    return OK;
}

enum status json_line_flag(struct json_scan *sc, const char *name, bool *flag, struct err *err)
{
    enum json_token t = json_scan_next(sc);
    if (t != JSON_TOKEN_TRUE && t != JSON_TOKEN_FALSE) {
        return err_set(err, ERR_INVALID, "\"%s\" must be true or false", name);
    }
    *flag = t == JSON_TOKEN_TRUE;
    return OK;
}

void json_line_put_error(struct buf *out, const char *text)
{
    buf_puts(out, "{\"error\":");
    buf_put_json(out, text, strlen(text));
    buf_puts(out, "}\n");
}
