// SPDX-License-Identifier: Apache-2.0
/* Speed of the tokenizer. Without arguments it refers to scripts/bench_tokenizer.py, which compares
 * it with Hugging Face's in the same run. With "FILE.json TEXT..." it loads the file, encodes each
 * text file (documents are NUL-terminated), and prints one line of numbers per text. */
#include "engine/base/file.h"
#include "engine/base/minmax.h"
#include "engine/tokenizer/detok.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds for one pass over all documents. */
static double pass(const struct tokenizer *tok, const char *data, size_t n, struct ids *ids)
{
    struct tokenizer_flags flags = {false, true};
    double start = now();
    ids->n = 0;
    for (size_t i = 0; i < n;) {
        size_t k = strlen(data + i);
        struct text_span span = {data + i, k, false};
        if (tokenizer_encode(tok, &span, 1, flags, ids, NULL) != OK) {
            fprintf(stderr, "encode failed\n");
            exit(1);
        }
        i += k + 1;
    }
    return now() - start;
}

/* Decodes one token at a time, as for a stream. */
static double decode_pass(const struct tokenizer *tok, const struct ids *ids)
{
    struct buf out;
    struct detok d;
    buf_init(&out, (size_t)1 << 30);
    detok_init(&d, tok, true);
    double start = now();
    for (size_t i = 0; i < ids->n; i++) {
        detok_push(&d, ids->v[i], &out);
    }
    double took = now() - start;
    buf_deinit(&out);
    return took;
}

/* `cold`: the first pass, with an empty cache of words. `warm`: the best of five. */
static int measure(const char *tokenizer, const char *text)
{
    struct tokenizer *tok;
    struct err err;
    char *data;
    size_t n;
    double start = now();
    if (tokenizer_load(tokenizer, &tok, &err) != OK ||
        file_read(text, 1 << 30, &data, &n, &err) != OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    double load = now() - start;
    struct ids ids;
    ids_init(&ids, (size_t)1 << 30);
    double cold = pass(tok, data, n, &ids), warm = 1e9, detok = 1e9;
    for (int i = 0; i < 5; i++) {
        double t = pass(tok, data, n, &ids);
        warm = lesser(t, warm);
        t = decode_pass(tok, &ids);
        detok = lesser(t, detok);
    }
    double mb = (double)n * 1e-6;
    printf("%.4f %.2f %.2f %zu %.1f\n", load, mb / cold, mb / warm, ids.n, mb / detok);
    ids_deinit(&ids);
    tokenizer_free(tok);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 1) {
        execlp("python3", "python3", "scripts/bench_tokenizer.py", argv[0], (char *)NULL);
        perror("python3");
        return 1;
    }
    for (int i = 2; i < argc; i++) {
        if (measure(argv[1], argv[i]) != 0) {
            return 1;
        }
    }
    return argc < 3;
}
