#include "engine/base/words.h"

#include "test/check.h"

TEST(words_are_found_whole_and_alone)
{
    static const char list[] = "user|system|a";
    CHECK_EQ(words_find(list, "user"), 0);
    CHECK_EQ(words_find(list, "system"), 1);
    CHECK_EQ(words_find(list, "a"), 2);
    static const char *const none[] = {"",      "|",    "use",         "users",    "ser",
                                       "|user", "a|",   "user|system", "system|a", "user|system|a"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        CHECK_EQ(words_find(list, none[i]), -1);
    }
    CHECK_EQ(words_find("", ""), -1);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
