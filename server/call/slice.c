// SPDX-License-Identifier: Apache-2.0
#include "server/call/slice.h"

#include <string.h>

static struct slice trimmed(struct slice v)
{
    while (v.n > 0 && strchr(":, \t\r\n", v.s[0])) {
        v.s++;
        v.n--;
    }
    return v;
}

static struct slice member(struct slice value, const char *key)
{
    struct json_scan sc;
    struct slice found = {NULL, 0};
    json_scan_init(&sc, value.s, value.n, JSON_SCAN_MAX_DEPTH);
    if (json_scan_next(&sc) != JSON_TOKEN_OBJECT) {
        return found;
    }
    while (json_scan_next(&sc) == JSON_TOKEN_KEY) {
        bool is_it = json_scan_is(&sc, key);
        size_t begin = sc.at;
        if (!json_scan_skip(&sc)) {
            break;
        }
        if (is_it) {
            found = trimmed((struct slice){value.s + begin, sc.at - begin});
        }
    }
    return found;
}

struct slice slice_at(struct slice value, const char *path)
{
    while (*path && value.s) {
        char key[32];
        size_t n = strcspn(path, "/");
        memcpy(key, path, n);
        key[n] = '\0';
        path += n + (path[n] == '/');
        value = member(value, key);
    }
    return value;
}

void slice_items(struct slice_items *it, struct slice array)
{
    it->array = array;
    json_scan_init(&it->scan, array.s, array.n, JSON_SCAN_MAX_DEPTH);
    json_scan_next(&it->scan);
}

struct slice slice_next(struct slice_items *it)
{
    size_t begin = it->scan.at;
    enum json_token t = json_scan_next(&it->scan);
    if (t == JSON_TOKEN_ERROR || t == JSON_TOKEN_ARRAY_END || t == JSON_TOKEN_END) {
        return (struct slice){NULL, 0};
    }
    if ((t == JSON_TOKEN_OBJECT || t == JSON_TOKEN_ARRAY) && !json_scan_skip(&it->scan)) {
        return (struct slice){NULL, 0};
    }
    return trimmed((struct slice){it->array.s + begin, it->scan.at - begin});
}
