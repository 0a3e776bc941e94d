// SPDX-License-Identifier: Apache-2.0
/* Which names may become part of a path of the cache. */
#include "server/hub/private.h"
#include "test/check.h"

/* A name comes from a command line or a request, and becomes part of a path and a URL. It must
 * consist of two parts of safe characters, without "..", so that it cannot lead out of the cache's
 * folder. */
TEST(names_are_org_and_name_and_perhaps_a_revision)
{
    struct hub_name n;
    REQUIRE(hub_name_read("Org-1/a.b_c-D", &n));
    CHECK_STR(n.id, "Org-1/a.b_c-D");
    CHECK_STR(n.revision, "main");
    CHECK(!n.revision_given);
    REQUIRE(hub_name_read("o/n@refs/pr/1", &n));
    CHECK_STR(n.id, "o/n");
    CHECK_STR(n.revision, "refs/pr/1");
    CHECK(n.revision_given);
    static const char *const others[] = {
        "",       "a",      "/a",     "a/",     "a/b/c",   "a//b",     "../a", "a/..",   "./a",
        "-a/b",   "a-/b",   "a--b/c", "a/b..c", "a b/c",   "a/b\n",    "a/b@", "a/b@..", "a/b@../c",
        "a/b@/c", "a/b@c/", "a@b/c",  "a/b@-c", "a/b@c d", "a/b@c\\d", "~/a"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (hub_name_read(others[i], &n)) {
            CHECK_FAIL("'%s' is taken for a name", others[i]);
        }
    }
}

/* 96 bytes for each part are accepted, one more is not; a revision is limited as well. */
TEST(a_name_that_is_too_long_is_invalid)
{
    char text[400];
    struct hub_name n;
    memset(text, 'a', sizeof text);
    text[96] = '/';
    text[193] = '\0';
    CHECK(hub_name_read(text, &n));
    text[193] = 'a';
    text[194] = '\0';
    CHECK(!hub_name_read(text, &n));
    memset(text, 'a', sizeof text);
    memcpy(text, "o/n@", 4);
    text[399] = '\0';
    CHECK(!hub_name_read(text, &n));
}

/* --revision and NAME@REVISION may both be given if they agree. */
TEST(a_separate_revision_must_agree_with_the_name)
{
    struct hub_name n;
    struct err err = {""};
    REQUIRE(hub_name_read("o/n", &n));
    CHECK_EQ(hub_name_set_revision(&n, "v1", &err), OK);
    CHECK_STR(n.revision, "v1");
    CHECK_EQ(hub_name_set_revision(&n, "v1", &err), OK);
    CHECK_EQ(hub_name_set_revision(&n, "v2", &err), ERR_INVALID);
    CHECK_EQ(hub_name_set_revision(&n, "../v1", &err), ERR_INVALID);
}

TEST(safe_paths_stay_in_their_folder)
{
    // Paths of files come from the hub's listing, which is not trusted: only relative ones,
    // without empty, "." or ".." parts, and no longer than a file system allows.
    static const char *const safe[] = {"a", "a/b", "a..b", "..a", ".a/b", "a b"};
    static const char *const others[] = {"",       "/a", "a/",  "a//b",  "..",   "../a", "a/..",
                                         "a/../b", ".",  "./a", "a/./b", "a\\b", "a\nb", "\x7F"};
    for (size_t i = 0; i < sizeof safe / sizeof safe[0]; i++) {
        CHECK(hub_path_is_safe(safe[i]));
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (hub_path_is_safe(others[i])) {
            CHECK_FAIL("'%s' is taken for safe", others[i]);
        }
    }
    char text[1200];
    memset(text, 'a', sizeof text);
    text[NAME_MAX] = '\0';
    CHECK(hub_path_is_safe(text));
    text[NAME_MAX] = 'a';
    text[NAME_MAX + 1] = '\0';
    CHECK(!hub_path_is_safe(text));
}

/* SHA-1 (git) and SHA-256 (large files), in lower case hex. */
TEST(hashes_are_of_two_lengths)
{
    CHECK(hub_is_hash("0123456789abcdef0123456789abcdef01234567"));
    CHECK(hub_is_hash("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"));
    CHECK(!hub_is_hash("0123456789ABCDEF0123456789abcdef01234567"));
    CHECK(!hub_is_hash("../3456789abcdef0123456789abcdef01234567"));
    CHECK(!hub_is_hash(""));
    CHECK(hub_is_commit("0123456789abcdef0123456789abcdef01234567"));
    CHECK(!hub_is_commit("main"));
}

/* Three digits with decimal units, as in the hub's own pages. */
TEST(sizes_read_well)
{
    char out[32];
    CHECK_STR(hub_size_text(0, out), "0 B");
    CHECK_STR(hub_size_text(999, out), "999 B");
    CHECK_STR(hub_size_text(1000, out), "1.0 kB");
    CHECK_STR(hub_size_text(99949, out), "99.9 kB");
    CHECK_STR(hub_size_text(99950, out), "100 kB");
    CHECK_STR(hub_size_text(16060522496, out), "16.1 GB");
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
