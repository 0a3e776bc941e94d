// SPDX-License-Identifier: Apache-2.0
/* Suggestions for mistyped options and commands ("did you mean"). */
#include "engine/base/nearest.h"

#include "test/check.h"

/* The word suggested for `typed`, "" for none. */
static const char *meant(const char *typed)
{
    static const char *const words[] = {"serve", "version", "max-model-len",
                                        "port",  "pull",    "tags"};
    struct nearest n = {.typed = typed, .n_bytes = strlen(typed)};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        nearest_try(&n, words[i]);
    }
    if (nearest_word(&n)) {
        return nearest_word(&n);
    }
    return "";
}

/* A word with a missing letter or with two swapped ones is found; "quantum" is too far from all of
 * them, and nothing is suggested for a word too long to be a typing error. */
TEST(a_misspelling_finds_its_word_and_an_unrelated_word_finds_none)
{
    CHECK_STR(meant("serv"), "serve");
    CHECK_STR(meant("vresion"), "version");
    CHECK_STR(meant("prot"), "port");
    CHECK_STR(meant("max_model_len"), "max-model-len");
    CHECK_STR(meant("serve"), "serve");
    CHECK_STR(meant("quantum"), "");
    CHECK_STR(meant("help"), "");
    CHECK_STR(meant("bogus"), "");
    CHECK_STR(meant(""), "");
    char longest[300];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    CHECK_STR(meant(longest), "");
}

TEST(without_candidates_there_is_no_suggestion)
{
    struct nearest n = {.typed = "x", .n_bytes = 1};
    CHECK(nearest_word(&n) == NULL);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
