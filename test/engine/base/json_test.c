// SPDX-License-Identifier: Apache-2.0
/* The JSON tree: strings that it refuses, with the byte where they are, and renaming of
 * members. */
#include "engine/base/json.h"

#include "test/check.h"

#include <string.h>

/* The message for a text that is refused, "" for one that is accepted. */
static const char *refusal(const char *text)
{
    static struct err err;
    struct json *root;
    err.text[0] = '\0';
    if (json_parse(text, strlen(text), NULL, &root, &err) == OK) {
        json_free(root);
        return "";
    }
    return err.text;
}

/* A high surrogate must be followed by a low one, at once; each case breaks the pair in
 * another place. The position names the string, so a client can find it in a large body. */
TEST(invalid_strings_are_refused_with_their_position)
{
    CHECK_STR(refusal("{\"a\":\"b\\u0000\"}"),
              "a string contains the character U+0000, which is not supported, at byte 7");
    CHECK_STR(refusal("{\"\\u0000\":1}"),
              "a string contains the character U+0000, which is not supported, at byte 2");
    CHECK_STR(refusal("[\"x\\ud800\"]"), "an unpaired surrogate in a string at byte 3");
    CHECK_STR(refusal("[\"\\uD83Dx12345\"]"), "an unpaired surrogate in a string at byte 2");
    CHECK_STR(refusal("[\"\\ud83d\\u0041\"]"), "an unpaired surrogate in a string at byte 2");
    CHECK_STR(refusal("[\"\\ud83d\\ud83d\\ude00\"]"),
              "an unpaired surrogate in a string at byte 2");
    CHECK_STR(refusal("[\"\\ud83d\\ude00\\udE00\"]"),
              "an unpaired surrogate in a string at byte 14");
}

/* A backslash that is itself escaped does not begin \u, and upper and lower case hex
 * digits are equal. */
TEST(escaped_backslashes_and_whole_pairs_are_accepted)
{
    CHECK_STR(refusal("[\"\\\\u0000\\\\ud800\"]"), "");
    CHECK_STR(refusal("[\"\\ud83d\\ude00 \\uD83D\\uDE00 \\u00e9\\u0001\"]"), "");
    CHECK_STR(refusal("[\"\\\\\\ud83d\\ude00\"]"), "");
    CHECK_STR(refusal("[\"ud800\"]"), "");
}

/* Old names of members become new ones, but an explicit new name wins, and no member may
 * appear twice. */
TEST(a_member_is_renamed_unless_the_new_name_exists)
{
    struct json *j;
    struct err err;
    static const char text[] = "{\"a\":[1,2],\"b\":3,\"c\":4}";
    CHECK(json_parse(text, strlen(text), NULL, &j, &err) == OK);
    json_rename(j, "a", "d");
    json_rename(j, "b", "c");
    json_rename(j, "none", "e");
    CHECK(!json_get(j, "a") && json_count(json_get(j, "d")) == 2);
    CHECK(json_get_int(j, "b", 0) == 3 && json_get_int(j, "c", 0) == 4);
    CHECK(!json_get(j, "e") && json_count(j) == 3);
    json_free(j);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
