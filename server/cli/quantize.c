// SPDX-License-Identifier: Apache-2.0
/* `sluice quantize`: writes a quantised copy of a model folder. */
#include "engine/model/quantise.h"
#include "server/cli/commands.h"
#include "server/cli/model_folder.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: sluice quantize MODEL OUT --format " QUANTISE_FORMATS " [--max-shard-size MB]\n"
    "\n"
    "Copies the model folder MODEL to a new folder OUT with quantised matrices, in the format of\n"
    "compressed-tensors, which transformers and vLLM can load, too:\n"
    "  fp8        8-bit floats, one scale per output row; inputs too, one scale per token\n"
    "  fp8-block  8-bit floats, one scale per block of 128 x 128; inputs too, one per 128 values\n"
    "  int4       4-bit integers, one scale per 128 inputs; inputs are not quantised\n"
    "  int8       8-bit integers, one scale per output row; inputs too, one scale per token\n"
    "Embeddings, heads, norms and routers are not quantised. Files have at most 5000 MB, or\n"
    "--max-shard-size.\n";

struct arguments {
    const char *paths[2], *format;
    int64_t shard_bytes;
};

static int wrong(const char *what, const char *argument)
{
    fprintf(stderr, "sluice: quantize: %s%s\n\n%s", what, argument, usage);
    return 2;
}

static bool read_megabytes(const char *text, int64_t *n_bytes)
{
    char *end;
    const long n = strtol(text, &end, 10);
    *n_bytes = (int64_t)n * 1000000;
    return *text && *end == '\0' && n > 0 && n < 1000000000;
}

/* Returns 0, or the exit code. */
static int read_arguments(int argc, char **argv, struct arguments *a)
{
    int n_paths = 0;
    for (int i = 1; i < argc; i++) {
        const bool is_format = strcmp(argv[i], "--format") == 0;
        if (is_format || strcmp(argv[i], "--max-shard-size") == 0) {
            const char *value = i + 1 < argc ? argv[++i] : NULL;
            if (!value) {
                return wrong("a value is missing after ", argv[i]);
            }
            if (is_format) {
                a->format = value;
            } else if (!read_megabytes(value, &a->shard_bytes)) {
                return wrong("--max-shard-size must be a number of megabytes, not ", value);
            }
        } else if (argv[i][0] == '-' || n_paths == 2) {
            return wrong("unknown argument: ", argv[i]);
        } else {
            a->paths[n_paths++] = argv[i];
        }
    }
    if (n_paths < 2) {
        return wrong("MODEL and OUT must be folders", "");
    }
    if (a->format) {
        return 0;
    }
    return wrong("--format is missing", "");
}

int cmd_quantize(int argc, char **argv)
{
    struct arguments a = {.shard_bytes = 5000000000};
    struct quantise_report done;
    struct err err = {""};
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return 0;
    }
    const int rc = read_arguments(argc, argv, &a);
    if (rc != 0) {
        return rc;
    }
    if (model_folder_check(a.paths[0], &err) != OK ||
        quantise_folder(a.paths[0], a.paths[1], a.format, a.shard_bytes, &done, &err) != OK) {
        fprintf(stderr, "sluice: quantize: %s\n", err.text);
        return 1;
    }
    printf("%s: %lld matrices quantised, %.1f MB of %.1f, in %lld %s\n", a.paths[1],
           (long long)done.n_modules, (double)done.bytes_after / 1e6,
           (double)done.bytes_before / 1e6, (long long)done.n_files,
           done.n_files == 1 ? "file" : "files");
    return 0;
}
