// SPDX-License-Identifier: Apache-2.0
/* Plain assertions for tests: they print both sides, are never compiled out, and do not stop the
 * other tests of the binary. A test file is
 *
 *     TEST(a_sentence_about_what_holds) { CHECK_EQ(1 + 1, 2); }
 *     int main(int argc, char **argv) { return check_main(argc, argv); }
 *
 * A test registers itself. `SKIP("why")` ends a test and counts it as skipped. The binary prints
 * one line per failure and "N passed, N failed, N skipped" at the end; with an argument it runs
 * the test of that name or, if there is none, those whose names contain it; with `--list` it
 * prints the names. Thread: the main thread. */
#ifndef SLUICE_TEST_CHECK_H
#define SLUICE_TEST_CHECK_H

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A test, registered before main. */
struct check_test {
    const char *name;
    void (*run)(void);
    struct check_test *next;
};

static struct check_test *check_tests, **check_tail = &check_tests;
static int check_failures; // failures of the running test
static const char *check_skipped;

static inline void check_register(struct check_test *t)
{
    *check_tail = t;
    check_tail = &t->next;
}

#define TEST(test_name)                                                                            \
    static void test_name(void);                                                                   \
    static struct check_test test_name##_row = {#test_name, test_name, NULL};                      \
    __attribute__((constructor)) static void test_name##_register(void)                            \
    {                                                                                              \
        check_register(&test_name##_row);                                                          \
    }                                                                                              \
    static void test_name(void)

#define CHECK_FAIL(...)                                                                            \
    do {                                                                                           \
        check_failures++;                                                                          \
        if (check_failures <= 10) {                                                                \
            printf("%s:%d: ", __FILE__, __LINE__);                                                 \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            CHECK_FAIL("not true: %s", #x);                                                        \
        }                                                                                          \
    } while (0)

#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        intmax_t check_a = (intmax_t)(a), check_b = (intmax_t)(b);                                 \
        if (check_a != check_b) {                                                                  \
            CHECK_FAIL("%s is %" PRIdMAX ", %s is %" PRIdMAX, #a, check_a, #b, check_b);           \
        }                                                                                          \
    } while (0)

#define CHECK_NEAR(a, b, tolerance)                                                                \
    do {                                                                                           \
        double check_a = (double)(a), check_b = (double)(b);                                       \
        if (!(fabs(check_a - check_b) <= (double)(tolerance))) {                                   \
            CHECK_FAIL("%s is %.9g, %s is %.9g", #a, check_a, #b, check_b);                        \
        }                                                                                          \
    } while (0)

#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *check_a = (a), *check_b = (b);                                                 \
        if (!check_a || !check_b || strcmp(check_a, check_b) != 0) {                               \
            CHECK_FAIL("%s is \"%s\", expected \"%s\"", #a, check_a ? check_a : "(null)",          \
                       check_b ? check_b : "(null)");                                              \
        }                                                                                          \
    } while (0)

#define CHECK_MEM(a, b, n)                                                                         \
    do {                                                                                           \
        if (memcmp((a), (b), (n)) != 0) {                                                          \
            CHECK_FAIL("%s and %s differ", #a, #b);                                                \
        }                                                                                          \
    } while (0)

/* Like CHECK, but a failure ends the test, for conditions that later lines rely on. */
#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            CHECK_FAIL("not true: %s", #x);                                                        \
            return;                                                                                \
        }                                                                                          \
    } while (0)

#define SKIP(why)                                                                                  \
    do {                                                                                           \
        check_skipped = (why);                                                                     \
        return;                                                                                    \
    } while (0)

/* True if long lists should be tested in full (`make nightly`). */
static inline bool check_nightly(void)
{
    const char *s = getenv("SLUICE_NIGHTLY");
    return s && s[0] && strcmp(s, "0") != 0;
}

/* The folder of third-party data; NULL if this checkout has none. */
static inline const char *check_shared(void)
{
    const char *dir = getenv("SLUICE_SHARED");
    if (!dir) {
        dir = "../shared";
    }
    static char probe[4096];
    snprintf(probe, sizeof probe, "%s/data/README.md", dir);
    FILE *f = fopen(probe, "r");
    if (f) {
        fclose(f);
        return dir;
    }
    return NULL;
}

/* `--list` prints the names; a name, or a part of one, runs those tests only. */
static inline int check_main(int argc, char **argv)
{
    int passed = 0, failed = 0, skipped = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const bool list = argc > 1 && strcmp(argv[1], "--list") == 0;
    bool exact = false;
    for (struct check_test *t = check_tests; argc > 1 && t; t = t->next) {
        exact |= strcmp(t->name, argv[1]) == 0;
        if (list) {
            puts(t->name);
        }
    }
    for (struct check_test *t = list ? NULL : check_tests; t; t = t->next) {
        if (argc > 1 && (exact ? strcmp(t->name, argv[1]) != 0 : !strstr(t->name, argv[1]))) {
            continue;
        }
        check_failures = 0;
        check_skipped = NULL;
        t->run();
        if (check_failures > 0) {
            printf("FAILED %s (%d)\n", t->name, check_failures);
            failed++;
        } else if (check_skipped) {
            printf("skipped %s: %s\n", t->name, check_skipped);
            skipped++;
        } else {
            passed++;
        }
    }
    if (!list) {
        printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    }
    return failed > 0;
}

#endif
