// SPDX-License-Identifier: Apache-2.0
/* Runs LLVMFuzzerTestOneInput as an ordinary test: over the seeds, then over mixtures of them, for
 * a fixed number of rounds (FUZZ_ROUNDS, or the caller's) and as many more as fit into
 * FUZZ_SECONDS. FUZZ_SEED changes the mixtures. With a fuzzer (-fsanitize=fuzzer -DLIBFUZZER) the
 * file's main is left out; FUZZ_SEEDS_TO is a folder that the seeds are written to, as its corpus.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_FUZZ_H
#define SLUICE_TEST_FUZZ_H

#include "engine/base/minmax.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_MAX_BYTES = 2048 };

static uint64_t fuzz_state = 0x9e3779b97f4a7c15ULL;

static inline size_t fuzz_below(size_t n)
{
    fuzz_state = fuzz_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return n ? (size_t)((fuzz_state >> 33) % n) : 0;
}

/* A copy of its exact size, so that a sanitizer sees an overrun. */
static inline void fuzz_one(const char *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

/* Joins pieces of seeds, and changes or cuts out some bytes. */
static inline size_t fuzz_mix(char *out, const char *const *seeds, size_t n_seeds)
{
    static const char bytes[] = "{}[]<>()\"'\\,:;=/|_ \n\t\0\x01\x7f\x80\xc3\xe2\xf0\xff"
                                "0159aeftnuxTFN-.";
    size_t n = 0;
    bool whole = fuzz_below(2) == 0; // a whole seed, so that changes reach deep into valid input
    for (size_t i = 0, parts = whole ? 1 : 1 + fuzz_below(3); i < parts; i++) {
        const char *s = seeds[fuzz_below(n_seeds)];
        size_t len = strlen(s), from = whole || fuzz_below(2) ? 0 : fuzz_below(len + 1);
        size_t take;
        if (whole || fuzz_below(2)) {
            take = len - from;
        } else {
            take = fuzz_below(len - from + 1);
        }
        take = lesser(take, FUZZ_MAX_BYTES - n);
        memcpy(out + n, s + from, take);
        n += take;
    }
    for (size_t i = 0, changes = fuzz_below(whole ? 3 : 6); i < changes && n > 0; i++) {
        size_t at = fuzz_below(n);
        if (fuzz_below(4) == 0) {
            memmove(out + at, out + at + 1, n - at - 1);
            n--;
        } else {
            out[at] = bytes[fuzz_below(sizeof bytes - 1)];
        }
    }
    return n;
}

static inline int fuzz_write_seeds(const char *folder, const char *const *seeds, size_t n_seeds)
{
    for (size_t i = 0; i < n_seeds; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed-%zu", folder, i);
        FILE *f = fopen(path, "wb");
        if (!f || fputs(seeds[i], f) < 0 || fclose(f) != 0) {
            perror(path);
            return 1;
        }
    }
    printf("%zu seeds\n", n_seeds);
    return 0;
}

static inline int fuzz_main(const char *const *seeds, size_t n_seeds, int rounds)
{
    static char text[FUZZ_MAX_BYTES];
    const char *more = getenv("FUZZ_ROUNDS"), *seed = getenv("FUZZ_SEED");
    const char *seconds = getenv("FUZZ_SECONDS"), *folder = getenv("FUZZ_SEEDS_TO");
    const time_t end = seconds ? time(NULL) + atoi(seconds) : 0;
    int done = 0;
    if (folder) {
        return fuzz_write_seeds(folder, seeds, n_seeds);
    }
    if (more) {
        rounds = atoi(more);
    }
    if (seed) {
        fuzz_state += strtoull(seed, NULL, 10);
    }
    for (size_t i = 0; i < n_seeds; i++) {
        fuzz_one(seeds[i], strlen(seeds[i]));
    }
    while (done < rounds || time(NULL) < end) {
        fuzz_one(text, fuzz_mix(text, seeds, n_seeds));
        done++;
    }
    printf("%d rounds\n", done);
    puts("1 passed, 0 failed, 0 skipped"); // a failure aborts
    return 0;
}

#endif
