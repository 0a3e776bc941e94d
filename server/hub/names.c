// SPDX-License-Identifier: Apache-2.0
/* Validates names of models, revisions, paths in a repository and blobs: all of them become parts
 * of local paths, so each is checked before use. Also formats sizes. */
#include "server/hub/private.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ORG or NAME: letters, digits and "-_.", not at the start or end; no "--", which would make the
 * cache's folder names ambiguous, and no "..". */
static bool is_part(const char *s, size_t n_bytes)
{
    if (n_bytes == 0 || n_bytes > 96 || strchr("-.", s[0]) || strchr("-.", s[n_bytes - 1])) {
        return false;
    }
    for (size_t i = 0; i < n_bytes; i++) {
        if (!isalnum((unsigned char)s[i]) && (s[i] == '\0' || !strchr("-_.", s[i]))) {
            return false;
        }
        if (i > 0 && (s[i] == '-' || s[i] == '.') && s[i] == s[i - 1]) {
            return false;
        }
    }
    return true;
}

/* No empty parts, "." or "..", backslashes or control characters: the path stays within its
 * folder. */
bool hub_path_is_safe(const char *path)
{
    const size_t n_bytes = strlen(path);
    if (n_bytes == 0 || n_bytes > 1000) {
        return false;
    }
    for (const char *at = path;; at++) {
        const size_t n = strcspn(at, "/");
        if (n == 0 || n > NAME_MAX || (n == 1 && at[0] == '.') ||
            (n == 2 && memcmp(at, "..", 2) == 0)) {
            return false;
        }
        for (size_t i = 0; i < n; i++) {
            if (at[i] == '\\' || (unsigned char)at[i] < 0x20 || at[i] == 0x7F) {
                return false;
            }
        }
        at += n;
        if (*at == '\0') {
            return true;
        }
    }
}

/* Git's rules are wider, but names in use satisfy these. */
static bool is_revision(const char *text)
{
    for (const char *c = text; *c; c++) {
        if (!isalnum((unsigned char)*c) && !strchr("-_./+", *c)) {
            return false;
        }
    }
    return hub_path_is_safe(text) && strlen(text) < HUB_REVISION_BYTES && text[0] != '-' &&
           !strstr(text, "..");
}

/* ORG/NAME, perhaps with @REVISION. */
bool hub_name_read(const char *text, struct hub_name *name)
{
    const char *slash = strchr(text, '/'), *at = strchr(text, '@');
    const char *end = at ? at : text + strlen(text);
    if (!slash || slash > end || !is_part(text, (size_t)(slash - text)) ||
        !is_part(slash + 1, (size_t)(end - slash - 1)) || (at && !is_revision(at + 1))) {
        return false;
    }
    snprintf(name->id, sizeof name->id, "%.*s", (int)(end - text), text);
    snprintf(name->revision, sizeof name->revision, "%s", at ? at + 1 : "main");
    name->revision_given = at != NULL;
    return true;
}

enum status hub_name_set_revision(struct hub_name *name, const char *revision, struct err *err)
{
    if (!is_revision(revision)) {
        return err_set(err, ERR_INVALID, "revision: '%.100s' is not a valid branch, tag or commit",
                       revision);
    }
    if (name->revision_given && strcmp(name->revision, revision) != 0) {
        return err_set(err, ERR_INVALID, "revision: '%.100s' differs from the model's @%.100s",
                       revision, name->revision);
    }
    snprintf(name->revision, sizeof name->revision, "%s", revision);
    name->revision_given = true;
    return OK;
}

static bool is_hex(const char *text, size_t n_bytes)
{
    return strlen(text) == n_bytes && strspn(text, "0123456789abcdef") == n_bytes;
}

bool hub_is_commit(const char *text)
{
    return is_hex(text, 40);
}

bool hub_is_hash(const char *text)
{
    return is_hex(text, 40) || is_hex(text, 64);
}

/* Three significant digits. */
const char *hub_size_text(int64_t n_bytes, char out[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)n_bytes;
    int unit = 0;
    while (v >= 999.5 && unit < 6) {
        v /= 1000;
        unit++;
    }
    snprintf(out, 32, unit == 0 || v >= 99.95 ? "%.0f %s" : "%.1f %s", v, units[unit]);
    return out;
}
