// SPDX-License-Identifier: Apache-2.0
/* The examples of FIPS 180 and RFC 4231, and equal digests for pieces of any size. */
#include "engine/base/sha256.h"
#include "test/check.h"

#include <stdlib.h>
#include <string.h>

static void put_hex(const unsigned char digest[SHA256_BYTES], char *to)
{
    for (int i = 0; i < SHA256_BYTES; i++) {
        snprintf(to + 2 * i, 3, "%02x", digest[i]);
    }
}

/* Texts around the block size, where padding needs one block or two. */
TEST(digests_are_those_of_the_standard)
{
    static const struct {
        const char *text;
        size_t times;
        const char *hex;
    } rows[] = {
        {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sha256 s;
        unsigned char digest[SHA256_BYTES];
        char hex[65];
        sha256_begin(&s);
        for (size_t k = 0; k < rows[i].times; k++) {
            sha256_add(&s, rows[i].text, strlen(rows[i].text));
        }
        sha256_end(&s, digest);
        put_hex(digest, hex);
        CHECK_STR(hex, rows[i].hex);
    }
}

/* Lengths 0 to 299 cover every offset in the 64-byte block and both paddings (one block or
 * two), and each is also added in two pieces. One flipped byte, a different one each time,
 * must show in the constant-time comparison. */
TEST(digests_do_not_depend_on_pieces)
{
    unsigned char text[300], whole[SHA256_BYTES], cut[SHA256_BYTES];
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (unsigned char)(i * 7);
    }
    for (size_t n = 0; n < sizeof text; n++) {
        struct sha256 s;
        sha256_begin(&s);
        sha256_add(&s, text, n);
        sha256_end(&s, whole);
        sha256_begin(&s);
        sha256_add(&s, text, n / 3);
        sha256_add(&s, text + n / 3, n - n / 3);
        sha256_end(&s, cut);
        CHECK(sha256_equal(whole, cut));
        cut[n % SHA256_BYTES] ^= 1;
        CHECK(!sha256_equal(whole, cut));
    }
}

/* Keys of 20, 4 and 131 bytes: the last is longer than a block, so it is hashed first. */
TEST(hmacs_are_those_of_the_standard)
{
    static const struct {
        int key_byte;
        size_t n_key;
        const char *key, *text, *hex;
    } rows[] = {
        {0x0b, 20, NULL, "Hi There",
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {0, 4, "Jefe", "what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {0xaa, 131, NULL, "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hmac_sha256 m;
        unsigned char key[131], digest[SHA256_BYTES];
        char hex[65];
        memset(key, rows[i].key_byte, sizeof key);
        hmac_sha256_key(&m, rows[i].key ? (const void *)rows[i].key : key, rows[i].n_key);
        hmac_sha256_add(&m, rows[i].text, strlen(rows[i].text));
        hmac_sha256_end(&m, digest);
        put_hex(digest, hex);
        CHECK_STR(hex, rows[i].hex);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
