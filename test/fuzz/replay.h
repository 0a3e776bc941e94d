// SPDX-License-Identifier: Apache-2.0
/* Runs a fuzz target over its corpus without a fuzzer: each file of the folders named on the
 * command line, or of test/corpus/NAME. A target is one file that defines LLVMFuzzerTestOneInput
 * and ends with FUZZ_MAIN("NAME"); under -fsanitize=fuzzer the macro is empty, since the fuzzer has
 * a main. Thread: main. */
#ifndef SLUICE_TEST_FUZZ_REPLAY_H
#define SLUICE_TEST_FUZZ_REPLAY_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The number of files, or -1 without the folder. */
static inline int fuzz_replay_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    int n_files = 0;
    if (!dir) {
        return -1;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!f) {
            continue;
        }
        static uint8_t data[1 << 20];
        size_t n = fread(data, 1, sizeof data, f);
        fclose(f);
        // A copy of exactly its size, so that sanitizers see a read past the end.
        uint8_t *copy = malloc(n ? n : 1);
        if (copy) {
            memcpy(copy, data, n);
            LLVMFuzzerTestOneInput(copy, n);
            free(copy);
            n_files++;
        }
    }
    closedir(dir);
    return n_files;
}

/* Prints what check_main does, so that scripts read both. */
static inline int fuzz_replay(const char *name, int argc, char **argv)
{
    char folder[4096];
    snprintf(folder, sizeof folder, "test/corpus/%s", name);
    int n = argc > 1 ? 0 : fuzz_replay_folder(folder);
    for (int i = 1; i < argc; i++) {
        n += fuzz_replay_folder(argv[i]);
    }
    printf("%s: %d inputs\n%d passed, %d failed, 0 skipped\n", name, n, n > 0, n <= 0);
    return n <= 0;
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
