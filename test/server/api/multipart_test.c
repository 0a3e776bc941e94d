// SPDX-License-Identifier: Apache-2.0
/* Bodies of multipart/form-data (RFC 7578): names, files and contents, malformed bodies,
 * and bounds. */
#include "server/api/multipart.h"

#include "test/check.h"

static const char type[] = "multipart/form-data; boundary=XX";

/* The parts as "name|filename|content;"; NULL: an error. */
static const char *parts_of(const char *content_type, const char *body, size_t n_bytes)
{
    static char out[4096];
    struct multipart m;
    struct multipart_part p;
    struct err err = {""};
    size_t n = 0;
    out[0] = '\0';
    if (multipart_open(&m, content_type, body, n_bytes, &err) != OK) {
        return NULL;
    }
    for (;;) {
        if (multipart_next(&m, &p, &err) != OK) {
            CHECK(err.text[0] != '\0');
            return NULL;
        }
        if (m.over) {
            return out;
        }
        n += (size_t)snprintf(out + n, sizeof out - n, "%s|%s|%.*s;", p.name,
                              p.has_filename ? p.filename : "-", (int)p.n_bytes, p.bytes);
    }
}

static const char *parts(const char *body)
{
    return parts_of(type, body, strlen(body));
}

#define PART(head, content)                                                                        \
    "--XX\r\nContent-Disposition: form-data; " head "\r\n\r\n" content "\r\n"

/* The forms that clients send: quoted and bare values, other headers in any case, content
 * that contains almost a boundary, and none. */
TEST(fields_and_files_are_found)
{
    CHECK_STR(parts(PART("name=\"a\"", "1")
                        PART("name=\"f\"; filename=\"x.jsonl\"", "{}\r\n{}") "--XX--\r\n"),
              "a|-|1;f|x.jsonl|{}\r\n{};");
    CHECK_STR(parts(PART("name=a; filename=b", "") "--XX--"), "a|b|;");
    CHECK_STR(
        parts("--XX\r\nContent-Type: text/plain\r\ncontent-disposition:form-data;NAME=\"a\"\r\n"
              "X: y\r\n\r\n--X\r\n-XX\r\n--XX--"),
        "a|-|--X\r\n-XX;");
    CHECK_STR(parts("--XX  \r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n\r\n--XX--"),
              "a|-|;");
    CHECK_STR(parts(PART("name=\"\"", "1") PART("name=\"a\\\"", "2") "--XX--\r\n"),
              "|-|1;a\\|-|2;");
    CHECK_STR(parts("--XX--\r\n"), "");
}

/* Browsers write a quote as %22, other clients as \"; a name that is too long for its field is
 * truncated. */
TEST(only_names_are_unescaped_and_truncated)
{
    CHECK_STR(parts(PART("name=\"a\"; filename=\"q%22\\\"\\\\%41.txt\"", "x") "--XX--"),
              "a|q\"\"\\%41.txt|x;");
    CHECK_STR(parts(PART("filename=\"name=no\"; name=\"a\"", "x") "--XX--"), "a|name=no|x;");
    char body[2000], name[1000];
    memset(name, 'n', sizeof name);
    name[999] = '\0';
    snprintf(body, sizeof body, PART("name=\"%s\"", "x") "--XX--", name);
    const char *got = parts(body);
    CHECK(got && strchr(got, '|') - got == MULTIPART_NAME_BYTES - 1);
}

/* Every way in which a body can end too early or lack a part of its structure, and types
 * that are not ours or have an impossible boundary. */
TEST(what_is_malformed_is_an_error)
{
    static const char *const bodies[] = {
        "",
        "-",
        "--X",
        "--XX",
        "--XY\r\n",
        "--XX\r\n",
        "--XXn\r\n",
        "x" PART("name=\"a\"", "1") "--XX--",
        PART("name=\"a\"", "1"),
        PART("name=\"a\"", "1") "--XX",
        PART("name=\"a\"", "1") "--XX-",
        PART("nam=\"a\"", "1") "--XX--",
        PART("name=\"a", "1") "--XX--",
        "--XX\r\n\r\nx\r\n--XX--",
        "--XX\r\nContent-Disposition: inline; name=\"a\"\r\n\r\nx\r\n--XX--",
        "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\nno end",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        if (parts(bodies[i])) {
            CHECK_FAIL("%zu was taken: %s", i, bodies[i]);
        }
    }
    static const char good[] = PART("name=\"a\"", "1") "--XX--";
    static const char *const types[] = {
        NULL,
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"XX",
        "multipart/form-data; boundary=X\tX",
        "multipart/mixed; boundary=XX",
        "multipart/form-data; boundary="
        "XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX",
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        CHECK(parts_of(types[i], good, strlen(good)) == NULL);
    }
    CHECK_STR(parts_of("Multipart/Form-Data; charset=utf-8; Boundary=\"XX\"", good, strlen(good)),
              "a|-|1;");
}

/* An attacker's body may have many parts or an endless header. */
TEST(parts_and_headers_are_limited)
{
    static char body[MULTIPART_MAX_HEAD * 2 + 4096];
    size_t n = 0;
    for (int i = 0; i < MULTIPART_MAX_PARTS + 1; i++) {
        n += (size_t)snprintf(body + n, sizeof body - n, PART("name=\"a\"", "1"));
    }
    snprintf(body + n, sizeof body - n, "--XX--");
    CHECK(parts(body) == NULL);
    n = (size_t)snprintf(body, sizeof body,
                         "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n");
    while (n < MULTIPART_MAX_HEAD + 100) {
        n += (size_t)snprintf(body + n, sizeof body - n, "X: yyyyyyyyyyyyyyyyyyyyyy\r\n");
    }
    snprintf(body + n, sizeof body - n, "\r\nx\r\n--XX--");
    CHECK(parts(body) == NULL);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
