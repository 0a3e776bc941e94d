// SPDX-License-Identifier: Apache-2.0
/* Streaming text: characters cut between tokens, invalid bytes, special tokens. Byte
 * tokens of a Llama 2 vocabulary give each byte a token of its own. */
#include "engine/tokenizer/detok.h"

#include "test/engine/tokenizer/own_tokenizer.h"

static void push_bytes(struct detok *d, const char *bytes, struct buf *out)
{
    for (; *bytes; bytes++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)(unsigned char)*bytes);
        int32_t id = tokenizer_find(d->tok, name, 6);
        CHECK(id >= 0);
        detok_push(d, id, out);
    }
}

/* The text before and after the flush at the stream's end. */
static void check_stream(const char *bytes, const char *before_flush, const char *all)
{
    struct tokenizer *tok = load("llama2");
    REQUIRE(tok);
    struct detok d;
    struct buf out;
    buf_init(&out, 1000);
    buf_puts(&out, "");
    detok_init(&d, tok, true);
    push_bytes(&d, bytes, &out);
    CHECK_STR(out.data, before_flush);
    detok_flush(&d, &out);
    CHECK_STR(out.data, all);
    CHECK_EQ(d.n_pending, 0);
    buf_deinit(&out);
    tokenizer_free(tok);
}

TEST(characters_come_out_whole)
{
    check_stream("\xE4\xB8\xAD", "\xE4\xB8\xAD", "\xE4\xB8\xAD");
    check_stream("\xF0\x9F\x98\x80!", "\xF0\x9F\x98\x80!", "\xF0\x9F\x98\x80!");
}

/* A client must never receive half a character; at the end it becomes U+FFFD, as the
 * library's decoder makes it. */
TEST(half_a_character_waits_and_is_replaced_at_the_end)
{
    check_stream("a\xF0\x9F\x98", "a", "a\xEF\xBF\xBD");
    check_stream("\xC3", "", "\xEF\xBF\xBD");
}

/* As soon as the bytes cannot become a character, they are replaced; waiting for more
 * would delay the stream without end. U+D800 in UTF-8 is three invalid bytes. */
TEST(what_cannot_become_a_character_does_not_wait)
{
    check_stream("\xFF", "\xEF\xBF\xBD", "\xEF\xBF\xBD");
    check_stream("\xE4\xB8\x41", "\xEF\xBF\xBD\x41", "\xEF\xBF\xBD\x41");
    check_stream("\xE4\xE4\xB8\xAD", "\xEF\xBF\xBD\xE4\xB8\xAD", "\xEF\xBF\xBD\xE4\xB8\xAD");
    check_stream("\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD",
                 "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

/* An id outside the vocabulary gives no text; the model may have more rows than the
 * tokenizer has ids. */
TEST(special_tokens_are_skipped_or_shown)
{
    struct tokenizer *tok = load("llama2");
    REQUIRE(tok);
    for (int skip = 0; skip < 2; skip++) {
        struct detok d;
        struct buf out;
        buf_init(&out, 1000);
        buf_puts(&out, "");
        detok_init(&d, tok, skip);
        detok_push(&d, tokenizer_find(tok, "<s>", 3), &out);
        detok_push(&d, INT32_MAX, &out);
        CHECK_STR(out.data, skip ? "" : "<s>");
        buf_deinit(&out);
    }
    tokenizer_free(tok);
}

/* To look for stop strings, the server decodes a pending character on a copy of the stream, which
 * is a plain struct assignment. */
TEST(a_copy_looks_ahead_without_touching_the_stream)
{
    struct tokenizer *tok = load("llama2");
    REQUIRE(tok);
    struct detok d;
    struct buf out, other;
    buf_init(&out, 1000);
    buf_init(&other, 1000);
    detok_init(&d, tok, true);
    push_bytes(&d, "\xE4\xB8", &out);
    struct detok copy = d;
    detok_flush(&copy, &other);
    CHECK_STR(other.data, "\xEF\xBF\xBD");
    push_bytes(&d, "\xAD", &out);
    CHECK_STR(out.data, "\xE4\xB8\xAD");
    buf_deinit(&out);
    buf_deinit(&other);
    tokenizer_free(tok);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
