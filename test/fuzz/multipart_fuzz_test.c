// SPDX-License-Identifier: Apache-2.0
/* Multipart forms: for any bytes, the parts lie within them, one after another and without a
 * boundary inside, or there is an error with a message. */
#include "server/api/multipart.h"

#include "engine/base/assert.h"
#include "test/fuzz/fuzz.h"

static void check_parts(const char *type, const char *body, size_t n_bytes)
{
    struct multipart m;
    struct multipart_part p;
    struct err err = {""};
    const char *last = body;
    enum status st = multipart_open(&m, type, body, n_bytes, &err);
    for (int n = 0; st == OK; n++) {
        ASSERT(n <= MULTIPART_MAX_PARTS);
        st = multipart_next(&m, &p, &err);
        if (st != OK || m.over) {
            break;
        }
        ASSERT(p.has_name && strlen(p.name) < sizeof p.name &&
               strlen(p.filename) < sizeof p.filename);
        ASSERT(p.bytes >= last && p.bytes + p.n_bytes <= body + n_bytes);
        ASSERT(!memmem(p.bytes, p.n_bytes, m.delimiter, strlen(m.delimiter)));
        last = p.bytes + p.n_bytes;
    }
    ASSERT(st == OK || err.text[0]);
}

/* A line for the type, and the body after it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, '\n', size);
    check_parts("multipart/form-data; boundary=X", (const char *)data, size);
    if (end) {
        char *type = calloc(1, (size_t)(end - data) + 1);
        memcpy(type, data, (size_t)(end - data));
        check_parts(type, (const char *)end + 1, size - (size_t)(end + 1 - data));
        free(type);
    }
    return 0;
}

#ifndef LIBFUZZER
int main(void)
{
#define HEAD "\r\nContent-Disposition: form-data; name="
    static const char *const seeds[] = {
        "--X" HEAD "\"a\"\r\n\r\n1\r\n--X--",
        "--X" HEAD "\"f\"; filename=\"q%22.jsonl\"\r\nContent-Type: x\r\n\r\n{}\r\n\r\n--X" HEAD
        "b\r\n\r\n\r\n--X--\r\n",
        "multipart/form-data; boundary=\"b-b\"\n--b-b" HEAD "\"a\\\"b\"\r\n\r\n--b\r\n--b-b--",
        "multipart/form-data; charset=x; boundary=Y\n--Y" HEAD "\"purpose\"\r\n\r\nbatch\r\n--Y--",
        "\r\n--X",
        "; filename=",
        "%22",
        "--",
    };
    return fuzz_main(seeds, sizeof seeds / sizeof seeds[0], 200000);
}
#endif
