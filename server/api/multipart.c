// SPDX-License-Identifier: Apache-2.0
/* Reads multipart/form-data in place: parts point into the body, names are copied. */
#include "server/api/multipart.h"
#include "engine/base/minmax.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static enum status broken(struct err *err, const char *why)
{
    return err_set(err, ERR_INVALID, "the multipart body is malformed: %s", why);
}

/* ---- header values: "form-data; name=\"file\"; filename=\"a.jsonl\"" ------------------------- */

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t')) {
        p++;
    }
    return p;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return -1;
}

/* Reads a character. Browsers write a quote in a name as %22, other clients as \"; a backslash
 * before the last quote of the line is only a character. */
static char unescape(const char **p, const char *end)
{
    const char *c = *p;
    bool escapes = *c == '\\' && c + 1 < end && (c[1] == '"' || c[1] == '\\');
    if (escapes && memchr(c + 2, '"', (size_t)(end - c - 2))) {
        *p += 2;
        return c[1];
    }
    if (*c == '%' && end - c > 2 && hex_digit(c[1]) >= 0 && hex_digit(c[2]) >= 0 &&
        strchr("\"\r\n", hex_digit(c[1]) * 16 + hex_digit(c[2]))) {
        *p += 3;
        return (char)(hex_digit(c[1]) * 16 + hex_digit(c[2]));
    }
    ++*p;
    return *c;
}

/* The value at p, quoted or not, truncated to the space; returns the position after it, NULL if it
 * is not terminated. */
static const char *take_value(const char *p, const char *end, char *out, size_t room)
{
    size_t n = 0;
    bool quoted = p < end && *p == '"';
    p += quoted;
    while (p < end && (quoted ? *p != '"' : *p != ';' && *p != ' ' && *p != '\t')) {
        char c = quoted ? unescape(&p, end) : *p++;
        if (n + 1 < room && c) {
            out[n++] = c;
        }
    }
    out[n] = '\0';
    if (quoted && p == end) {
        return NULL;
    }
    return p + quoted;
}

/* The parameter `key` of a header's value. */
static bool find_parameter(const char *p, const char *end, const char *key, char *out, size_t room)
{
    size_t n_key = strlen(key);
    char other[MULTIPART_NAME_BYTES];
    p = memchr(p, ';', (size_t)(end - p));
    while (p && p < end) {
        p = skip_space(p + 1, end);
        const char *equals = memchr(p, '=', (size_t)(end - p));
        if (!equals) {
            return false;
        }
        bool found = (size_t)(equals - p) == n_key && strncasecmp(p, key, n_key) == 0;
        p = take_value(equals + 1, end, found ? out : other, found ? room : sizeof other);
        if (found) {
            return p != NULL;
        }
        p = p ? memchr(p, ';', (size_t)(end - p)) : NULL;
    }
    return false;
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* True for a valid boundary by RFC 2046: at most 70 allowed characters, without a space at the
 * end. */
static bool is_boundary(const char *b)
{
    static const char others[] = "'()+_,-./:=? ";
    size_t n = strlen(b);
    for (size_t i = 0; i < n; i++) {
        char c = (char)(b[i] | 0x20);
        if (!(c >= 'a' && c <= 'z') && !(b[i] >= '0' && b[i] <= '9') && !strchr(others, b[i])) {
            return false;
        }
    }
    return n > 0 && n <= 70 && b[n - 1] != ' ';
}

/* The delimiter consists of a line end, two dashes and the boundary. */
enum status multipart_open(struct multipart *m, const char *content_type, const char *body,
                           size_t n_bytes, struct err *err)
{
    static const char type[] = "multipart/form-data";
    char boundary[MULTIPART_NAME_BYTES];
    *m = (struct multipart){.at = body, .end = body + n_bytes};
    if (!content_type || strncasecmp(content_type, type, strlen(type)) != 0) {
        return err_set(err, ERR_UNSUPPORTED, "the Content-Type must be %s", type);
    }
    if (!find_parameter(content_type, content_type + strlen(content_type), "boundary", boundary,
                        sizeof boundary) ||
        !is_boundary(boundary)) {
        return broken(err, "its Content-Type has no valid boundary");
    }
    int n = snprintf(m->delimiter, sizeof m->delimiter, "\r\n--%s", boundary);
    size_t n_first = (size_t)n - 2; // the first boundary has no line end before it
    if (n_bytes < n_first || memcmp(body, m->delimiter + 2, n_first) != 0) {
        return broken(err, "it does not begin with the boundary");
    }
    m->at += n_first;
    return OK;
}

/* Reads what follows a boundary: a line end, or "--" after the last part. */
static enum status end_boundary(struct multipart *m, struct err *err)
{
    if (m->end - m->at >= 2 && memcmp(m->at, "--", 2) == 0) {
        m->over = true;
        return OK;
    }
    m->at = skip_space(m->at, m->end);
    if (m->end - m->at < 2 || memcmp(m->at, "\r\n", 2) != 0) {
        return broken(err, "the line of a boundary is not terminated");
    }
    m->at += 2;
    return OK;
}

/* Reads a header of a part. Only Content-Disposition is used. */
static enum status take_header(struct multipart_part *part, const char *line, const char *end,
                               struct err *err)
{
    static const char key[] = "content-disposition:";
    static const char kind[] = "form-data";
    if ((size_t)(end - line) < strlen(key) || strncasecmp(line, key, strlen(key)) != 0) {
        return OK; // Content-Type and other headers
    }
    line = skip_space(line + strlen(key), end);
    if ((size_t)(end - line) < strlen(kind) || strncasecmp(line, kind, strlen(kind)) != 0 ||
        !find_parameter(line, end, "name", part->name, sizeof part->name)) {
        return broken(err, "a part has no name");
    }
    part->has_name = true; // which may be empty
    part->has_filename =
        find_parameter(line, end, "filename", part->filename, sizeof part->filename);
    return OK;
}

/* Reads the headers of a part, up to an empty line. */
static enum status take_head(struct multipart *m, struct multipart_part *part, struct err *err)
{
    const char *first = m->at;
    for (;;) {
        size_t most = (size_t)(m->end - m->at);
        most = lesser(most, MULTIPART_MAX_HEAD);
        const char *end = memmem(m->at, most, "\r\n", 2);
        if (!end || end - first > MULTIPART_MAX_HEAD) {
            return broken(err, "the head of a part is not terminated, or is too long");
        }
        const char *line = m->at;
        m->at = end + 2;
        if (line == end) {
            if (part->has_name) {
                return OK;
            }
            return broken(err, "a part has no name");
        }
        TRY(take_header(part, line, end, err));
    }
}

/* The next part, or `over` after the closing delimiter. Bounds on parts and on a head
 * limit the work per body. */
enum status multipart_next(struct multipart *m, struct multipart_part *part, struct err *err)
{
    *part = (struct multipart_part){.bytes = ""};
    TRY(end_boundary(m, err));
    if (m->over) {
        return OK;
    }
    if (++m->n_parts > MULTIPART_MAX_PARTS) {
        return broken(err, "it has too many parts");
    }
    TRY(take_head(m, part, err));
    size_t n_delimiter = strlen(m->delimiter);
    /* The delimiter of a part without content begins with the line end of the head. */
    const char *from = m->at - 2;
    const char *next = memmem(from, (size_t)(m->end - from), m->delimiter, n_delimiter);
    if (!next) {
        return broken(err, "its closing boundary is missing");
    }
    part->bytes = m->at;
    part->n_bytes = next > m->at ? (size_t)(next - m->at) : 0;
    m->at = next + n_delimiter;
    return OK;
}
