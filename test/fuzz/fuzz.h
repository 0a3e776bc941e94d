// SPDX-License-Identifier: Apache-2.0
/* Runs LLVMFuzzerTestOneInput as an ordinary test: over its seeds, then over mixtures of them, for
 * a fixed number of rounds (FUZZ_ROUNDS, or the caller's) and as many more as fit into
 * FUZZ_SECONDS. FUZZ_SEED changes the mixtures. Seeds are built in, or the files of
 * test/corpus/NAME or of the folders on the command line, and besides them the files of the folders
 * in FUZZ_SEEDS_FROM (separated by colons), such as a fuzzer's corpus. With a fuzzer
 * (-fsanitize=fuzzer -DLIBFUZZER) the file's main is left out; FUZZ_SEEDS_TO is a folder that
 * built-in seeds are written to, as its corpus.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_FUZZ_H
#define SLUICE_TEST_FUZZ_H

#include "engine/base/minmax.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_MAX_BYTES = 8192, FUZZ_MAX_FILE = 1 << 20 };

struct fuzz_seed {
    const char *bytes;
    size_t n;
    char *file; // the same bytes, if they are to be freed
};

struct fuzz_seeds {
    struct fuzz_seed *v;
    size_t n, cap;
};

static uint64_t fuzz_state = 0x9e3779b97f4a7c15ULL;
static struct fuzz_seed fuzz_now; // the input that is running

static inline size_t fuzz_below(size_t n)
{
    fuzz_state = fuzz_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return n ? (size_t)((fuzz_state >> 33) % n) : 0;
}

/* A copy of its exact size, so that a sanitizer sees an overrun. */
static inline void fuzz_one(const char *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (copy) {
        memcpy(copy, data, n);
        fuzz_now = (struct fuzz_seed){data, n, NULL};
        LLVMFuzzerTestOneInput(copy, n);
        free(copy);
    }
}

/* Writes the input that is running; the program then ends as it would have. */
static inline void fuzz_keep(int sig)
{
    const char *path = getenv("FUZZ_FINDING");
    const int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    if (fd >= 0) {
        (void)!write(fd, fuzz_now.bytes, fuzz_now.n);
        close(fd);
    }
    signal(sig, SIG_DFL);
    raise(sig);
}

static inline void fuzz_add_seed(struct fuzz_seeds *seeds, struct fuzz_seed seed)
{
    if (seeds->n == seeds->cap) {
        seeds->cap = seeds->cap ? 2 * seeds->cap : 64;
        seeds->v = realloc(seeds->v, seeds->cap * sizeof seeds->v[0]);
        if (!seeds->v) {
            abort();
        }
    }
    seeds->v[seeds->n++] = seed;
}

static inline void fuzz_add_file(struct fuzz_seeds *seeds, const char *path)
{
    static char data[FUZZ_MAX_FILE];
    FILE *f = fopen(path, "rb");
    if (!f) {
        return;
    }
    const size_t n = fread(data, 1, sizeof data, f);
    char *bytes = malloc(n ? n : 1);
    if (bytes && !ferror(f)) {
        fuzz_add_seed(seeds, (struct fuzz_seed){memcpy(bytes, data, n), n, bytes});
    } else {
        free(bytes);
    }
    fclose(f);
}

static inline void fuzz_free_seeds(struct fuzz_seeds *seeds)
{
    for (size_t i = 0; i < seeds->n; i++) {
        free(seeds->v[i].file);
    }
    free(seeds->v);
}

/* The files of a folder, if it is there, in the order of their names, so that FUZZ_SEED repeats a
 * run. */
static inline void fuzz_add_folder(struct fuzz_seeds *seeds, const char *folder)
{
    struct dirent **names = NULL;
    const int n = scandir(folder, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[4096];
        if (names[i]->d_name[0] != '.' &&
            snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name) < (int)sizeof path) {
            fuzz_add_file(seeds, path);
        }
        free(names[i]);
    }
    free(names);
}

static inline void fuzz_add_folders(struct fuzz_seeds *seeds, const char *folders)
{
    char one[4096];
    while (folders && *folders) {
        const size_t n = strcspn(folders, ":");
        snprintf(one, sizeof one, "%.*s", (int)n, folders);
        fuzz_add_folder(seeds, one);
        folders += n + (folders[n] == ':');
    }
}

/* Joins pieces of seeds, and changes or cuts out some bytes. */
static inline size_t fuzz_mix(char *out, const struct fuzz_seeds *seeds)
{
    static const char bytes[] = "{}[]<>()\"'\\,:;=/|_ \n\t\0\x01\x7f\x80\xc3\xe2\xf0\xff"
                                "0159aeftnuxTFN-.";
    size_t n = 0;
    bool whole = fuzz_below(2) == 0; // a whole seed, so that changes reach deep into valid input
    for (size_t i = 0, parts = whole ? 1 : 1 + fuzz_below(3); i < parts; i++) {
        const struct fuzz_seed *s = &seeds->v[fuzz_below(seeds->n)];
        size_t from = whole || fuzz_below(2) ? 0 : fuzz_below(s->n + 1);
        size_t take;
        if (whole || fuzz_below(2)) {
            take = s->n - from;
        } else {
            take = fuzz_below(s->n - from + 1);
        }
        take = lesser(take, FUZZ_MAX_BYTES - n);
        memcpy(out + n, s->bytes + from, take);
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

static inline int fuzz_write_seeds(const char *folder, const struct fuzz_seeds *seeds)
{
    for (size_t i = 0; i < seeds->n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed-%zu", folder, i);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(seeds->v[i].bytes, 1, seeds->v[i].n, f) != seeds->v[i].n ||
            fclose(f) != 0) {
            perror(path);
            return 1;
        }
    }
    printf("%zu seeds\n", seeds->n);
    return 0;
}

/* Runs the seeds, then the mixtures; ends with the line that check_main prints, so that scripts
 * read both. A failure aborts. */
static inline int fuzz_run(struct fuzz_seeds *seeds, int rounds)
{
    static char text[FUZZ_MAX_BYTES];
    const char *more = getenv("FUZZ_ROUNDS"), *seed = getenv("FUZZ_SEED");
    const char *seconds = getenv("FUZZ_SECONDS");
    const time_t end = seconds ? time(NULL) + atoi(seconds) : 0;
    int done = 0;
    signal(SIGABRT, fuzz_keep);
    fuzz_add_folders(seeds, getenv("FUZZ_SEEDS_FROM"));
    if (more) {
        rounds = atoi(more);
    }
    if (seed) {
        fuzz_state += strtoull(seed, NULL, 10);
    }
    for (size_t i = 0; i < seeds->n; i++) {
        fuzz_one(seeds->v[i].bytes, seeds->v[i].n);
    }
    while (seeds->n > 0 && (done < rounds || time(NULL) < end)) {
        fuzz_one(text, fuzz_mix(text, seeds));
        done++;
    }
    printf("%zu seeds, %d rounds\n%d passed, %d failed, 0 skipped\n", seeds->n, done, seeds->n > 0,
           seeds->n == 0);
    return seeds->n == 0;
}

/* For a target with built-in seeds. */
static inline int fuzz_main(const char *const *texts, size_t n, int rounds)
{
    struct fuzz_seeds seeds = {0};
    const char *folder = getenv("FUZZ_SEEDS_TO");
    for (size_t i = 0; i < n; i++) {
        fuzz_add_seed(&seeds, (struct fuzz_seed){texts[i], strlen(texts[i]), NULL});
    }
    const int rc = folder ? fuzz_write_seeds(folder, &seeds) : fuzz_run(&seeds, rounds);
    fuzz_free_seeds(&seeds);
    return rc;
}

/* For a target whose seeds are test/corpus/NAME: runs them alone, unless FUZZ_ROUNDS or
 * FUZZ_SECONDS ask for mixtures. */
static inline int fuzz_replay(const char *name, int argc, char **argv)
{
    struct fuzz_seeds seeds = {0};
    char folder[4096];
    snprintf(folder, sizeof folder, "test/corpus/%s", name);
    if (argc < 2) {
        fuzz_add_folder(&seeds, folder);
    }
    for (int i = 1; i < argc; i++) {
        fuzz_add_folder(&seeds, argv[i]);
    }
    const int rc = fuzz_run(&seeds, 0);
    fuzz_free_seeds(&seeds);
    return rc;
}

#ifdef __SANITIZE_FUZZER__
#define FUZZ_MAIN(name)
#else
#define FUZZ_MAIN(name)                                                                            \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return fuzz_replay(name, argc, argv);                                                      \
    }
#endif

#endif
