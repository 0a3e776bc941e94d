// SPDX-License-Identifier: Apache-2.0
/* Words of a "a|b|c" list, and the characters allowed in request ids. */
#include "engine/base/words.h"

#include "test/check.h"

#include <string.h>

/* No prefix, suffix or range across the separator counts as a word. */
TEST(words_are_found_whole_and_alone)
{
    static const char list[] = "user|system|a";
    CHECK_EQ(words_find(list, "user"), 0);
    CHECK_EQ(words_find(list, "system"), 1);
    CHECK_EQ(words_find(list, "a"), 2);
    static const char *const none[] = {"",      "|",  "use",         "users",    "ser",
                                       "|user", "a|", "user|system", "system|a", "user|system|a"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        CHECK_EQ(words_find(list, none[i]), -1);
    }
    CHECK_EQ(words_find("", ""), -1);
}

/* Ids from clients are echoed in headers, logs and JSON, so they may hold nothing that needs
 * escaping in any of these, and must fit every buffer. */
TEST(ids_of_requests_are_safe_everywhere)
{
    char longest[129];
    memset(longest, 'x', sizeof longest);
    CHECK(words_is_id("aZ09._:-", 8));
    CHECK(words_is_id(longest, 128));
    CHECK(!words_is_id(longest, 129));
    CHECK(!words_is_id("", 0));
    static const char *const bad[] = {"a b", "a\n", "a\"", "a/b", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(!words_is_id(bad[i], strlen(bad[i])));
    }
    CHECK(!words_is_id("a\0b", 3));
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
