// SPDX-License-Identifier: Apache-2.0
/* `sluice bench-ops`: times each op and whole forward passes over dummy weights of a known shape,
 * using only the backend's table. Results are also given as shares of two rates measured in the
 * same run: the rate of reading the same weights, and the peak of the multiplying instruction. */
#include "bench/ops/bench_ops.h"
#include "bench/ops/command.h"

#include "cpu/cpu.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- timing ------------------------------------------------------------------------------- */

/* Bytes and flops are the least that any implementation of the op needs. */
struct figure {
    const char *name;
    // i: number of the run; successive runs use different layers
    enum status (*run)(struct bench *b, int32_t i);
    double bytes, flops; // per run
};

static enum status run_qkv(struct bench *b, int32_t i)
{
    return bench_linear(b, b->layers[i % b->shape.n_layers].qkv, b->h, b->qkv, b->pass.n_rows);
}

static enum status run_o(struct bench *b, int32_t i)
{
    return bench_linear(b, b->layers[i % b->shape.n_layers].o, b->attn, b->delta, b->pass.n_rows);
}

static enum status run_gate_up(struct bench *b, int32_t i)
{
    return bench_linear(b, b->layers[i % b->shape.n_layers].gate_up, b->h, b->mid, b->pass.n_rows);
}

static enum status run_down(struct bench *b, int32_t i)
{
    return bench_linear(b, b->layers[i % b->shape.n_layers].down, b->act, b->delta, b->pass.n_rows);
}

static enum status run_norm(struct bench *b, int32_t i)
{
    return bench_norm(b, b->layers[i % b->shape.n_layers].norm_1, b->delta, b->x, b->h,
                      b->pass.n_rows);
}

static enum status run_store(struct bench *b, int32_t i)
{
    return bench_store(b, i % b->shape.n_layers, b->pass.n_rows);
}

static enum status run_attention(struct bench *b, int32_t i)
{
    return bench_attention(b, i % b->shape.n_layers, b->pass.n_rows);
}

static enum status run_activation(struct bench *b, int32_t i)
{
    (void)i;
    return bench_activate(b, b->pass.n_rows);
}

static enum status run_mlp(struct bench *b, int32_t i)
{
    return bench_mlp(b, &b->layers[i % b->shape.n_layers], NULL, b->pass.n_rows);
}

static enum status run_head(struct bench *b, int32_t i)
{
    (void)i;
    return bench_head(b);
}

static enum status run_sample(struct bench *b, int32_t i)
{
    (void)i;
    return bench_sample(b);
}

static enum status run_forward(struct bench *b, int32_t i)
{
    (void)i;
    return bench_forward(b);
}

static enum status flush(struct bench *b)
{
    char byte;
    return b->ops->read(b->be, &byte, b->logits.mem, 1);
}

/* Seconds of the best run. There are at least three runs, and they take at least `seconds`. The
 * best run counts, as for the peaks: it shows what the machine reaches undisturbed. Short ops run
 * several times per measurement. */
static enum status time_of(struct bench *b, const struct figure *f, double *out)
{
    int64_t start = clock_now_ns(), now, before = start;
    int32_t n = 0, batch = 1;
    TRY(f->run(b, 0));
    TRY(flush(b));
    now = clock_now_ns();
    while (batch < 64 && (now - before) * batch < 200000) {
        batch *= 2;
    }
    *out = 1e30;
    for (int32_t i = 0; i < 3 || now - start < (int64_t)(b->seconds * 1e9); i++) {
        before = clock_now_ns();
        for (int32_t j = 0; j < batch; j++) {
            TRY(f->run(b, ++n));
        }
        TRY(flush(b));
        now = clock_now_ns();
        double t = (double)(now - before) * 1e-9 / batch;
        *out = lesser(t, *out);
    }
    return OK;
}

/* Prints rates and their shares of the peaks measured in the same run; there are no peaks on a GPU,
 * so only rates. */
static void print_figure(const struct bench *b, const struct figure *f, double t, int32_t rows)
{
    double gbs = f->bytes / t * 1e-9, gflops = f->flops / t * 1e-9;
    printf("%-12s %5d rows %12.1f us %9.2f GB/s %10.1f GFLOP/s", f->name, rows, t * 1e6, gbs,
           gflops);
    if (b->read_rate > 0.0) {
        printf("   %5.1f %% read %5.1f %% product %5.1f %% FMA", 1e11 * gbs / b->read_rate,
               1e11 * gflops / b->product_rate, 1e11 * gflops / b->fma_rate);
    }
    printf("\n");
    fflush(stdout);
}

static double kv_bytes(const struct bench *b, double tokens)
{
    return tokens * 2.0 * b->shape.n_kv_heads * b->shape.head_dim * (double)dtype_bytes(b->dtype);
}

static double layer_params(const struct shape *s)
{
    double q = (double)s->n_heads * s->head_dim, kv = (double)s->n_kv_heads * s->head_dim;
    return (q + 2 * kv + q + 3.0 * s->ffn) * s->hidden;
}

/* Runs all measurements for n_seqs sequences, each with `rows` new rows after `past` tokens. */
static enum status measure(struct bench *b, int32_t n_seqs, int32_t rows, int32_t past)
{
    const struct shape *s = &b->shape;
    double n = (double)n_seqs * rows, w = (double)dtype_bytes(b->dtype), hidden = s->hidden;
    double q = (double)s->n_heads * s->head_dim, kv = (double)s->n_kv_heads * s->head_dim;
    double keys = n_seqs * (double)(past + rows); // each is read at least once
    double pairs = n * (past + (rows + 1) / 2.0); // pairs of a query and a visible key
    double attn = 4.0 * pairs * q, all = layer_params(s) * s->n_layers;
    double head = (double)s->vocab * s->hidden;
    const struct figure figures[] = {
        {"norm", run_norm, 16.0 * n * hidden, 0.0},
        {"qkv", run_qkv, w * (q + 2 * kv) * hidden, 2.0 * n * (q + 2 * kv) * hidden},
        {"rope+store", run_store, 4.0 * n * (2 * q + 2 * kv) + kv_bytes(b, n), 0.0},
        {"attention", run_attention, kv_bytes(b, keys), attn},
        {"o", run_o, w * q * hidden, 2.0 * n * q * hidden},
        {"gate+up", run_gate_up, w * 2 * s->ffn * hidden, 4.0 * n * s->ffn * hidden},
        {"activation", run_activation, 12.0 * n * s->ffn, 0.0},
        {"down", run_down, w * s->ffn * hidden, 2.0 * n * s->ffn * hidden},
        {"mlp", run_mlp, w * 3 * s->ffn * hidden, 6.0 * n * s->ffn * hidden},
        {"head", run_head, w * head, 2.0 * n_seqs * head},
        {"sample", run_sample, 4.0 * n_seqs * s->vocab, 0.0},
        {"forward", run_forward, w * (all + head) + s->n_layers * kv_bytes(b, keys),
         2.0 * (all * n + head * n_seqs) + attn * s->n_layers},
    };
    TRY(bench_begin(b, n_seqs, rows, past));
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        double t;
        TRY(time_of(b, &figures[i], &t));
        print_figure(b, &figures[i], t, (int32_t)n);
        if (figures[i].run == run_forward) {
            printf("%-12s %5d rows after %d tokens: %.2f tokens/s\n\n", "", (int32_t)n, past,
                   n / t);
        }
    }
    return bench_end(b);
}

/* ---- ratios with a bound ------------------------------------------------------------------ */

/* Bytes of the weights; every pass reads all of them. */
static double weight_bytes(const struct bench *b)
{
    const struct shape *s = &b->shape;
    return (double)dtype_bytes(b->dtype) *
           (layer_params(s) * s->n_layers + (double)s->vocab * s->hidden);
}

/* The lower bound applies to wall-clock time. On a busy machine, the ratio of CPU times shows what
 * to expect of an idle one. */
static void print_ratio(const char *what, double have, double by_processor, double least)
{
    printf("%-46s %6.2f (by processor time %6.2f)   at least %.2f: %s\n", what, have, by_processor,
           least, have >= least ? "ok" : "too low");
    fflush(stdout);
}

/* The time of a pass, measured in three ways: the time of the best run, the sum of the best times
 * of its ops, and the CPU time of all threads, which other programs affect least. */
struct pass_time {
    double whole, processor;
    double *laps;
};

static double processor_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Runs one pass and keeps the lower times in `best`; `laps` are the times of its ops. */
static enum status time_forward(struct bench *b, int32_t n_seqs, int32_t rows, int32_t past,
                                struct pass_time *best)
{
    TRY(bench_begin(b, n_seqs, rows, past));
    b->laps = best->laps;
    double processor = processor_now();
    int64_t start = clock_now_ns();
    TRY(bench_forward(b));
    double t = (double)(clock_now_ns() - start) * 1e-9;
    best->whole = fmin(best->whole, t);
    best->processor = fmin(best->processor, processor_now() - processor);
    b->laps = NULL;
    return bench_end(b);
}

static double sum_of(const double *x, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum;
}

static void print_pass(const char *what, double t, const struct pass_time *p, double rate,
                       const char *unit)
{
    printf("%-22s %9.2f ms (whole %9.2f, processor %9.2f) %9.1f %s\n", what, t * 1e3,
           p->whole * 1e3, p->processor * 1e3, rate, unit);
}

/* Compares decoding with only reading the same weights, with the same threads. The two alternate,
 * so that both suffer the same disturbances. A pass counts as the sum of the best times of its ops,
 * and the read as the sum of the best times of the weights: on a busy machine a whole pass is never
 * undisturbed, but a millisecond may be. */
static enum status decode_ratios(struct bench *b)
{
    int32_t n = bench_n_laps(b), n_weights = 0;
    double *laps = xcalloc(3 * (size_t)n, sizeof *laps), *reads = laps + 2 * n;
    struct pass_time one = {1e30, 1e30, laps}, sixteen = {1e30, 1e30, laps + n};
    struct pass_time all = {1e30, 1e30, reads}; // times of reading the weights
    for (int32_t i = 0; i < 3 * n; i++) {
        laps[i] = 1e30;
    }
    enum status st = OK;
    int64_t start = clock_now_ns();
    for (int32_t i = 0;
         st == OK && (i < 8 || clock_now_ns() - start < (int64_t)(2e10 * b->seconds)); i++) {
        int64_t before = clock_now_ns();
        double processor = processor_now();
        n_weights = cpu_read_weights(b->be, reads, n);
        all.whole = fmin(all.whole, (double)(clock_now_ns() - before) * 1e-9);
        all.processor = fmin(all.processor, processor_now() - processor);
        st = time_forward(b, 1, 1, b->context, &one);
        if (st == OK && i % 3 == 0) {
            st = time_forward(b, 16, 1, b->context, &sixteen);
        }
    }
    double read = sum_of(reads, n_weights), first = sum_of(one.laps, n);
    double many = sum_of(sixteen.laps, n), bytes = weight_bytes(b);
    free(laps);
    TRY(st);
    print_pass("read of the weights", read, &all, bytes / read * 1e-9, "GB/s");
    print_pass("decode of 1 row", first, &one, 1.0 / first, "tokens/s");
    print_pass("decode of 16 rows", many, &sixteen, 16.0 / many, "tokens/s");
    print_ratio("decode, 1 row: share of the speed of a read", read / first,
                all.processor / one.processor, 0.85);
    print_ratio("decode, 16 rows: tokens/s against 1 row", 16.0 * first / many,
                16.0 * one.processor / sixteen.processor, 8.0);
    return OK;
}

/* The least number of passes: with one or two, some op may never have run undisturbed. */
enum { LEAST_PREFILLS = 3 };

/* Measures prefill as a share of the peak of products, and the times of the other parts of the
 * pass. */
static enum status prefill_ratio(struct bench *b)
{
    const struct shape *s = &b->shape;
    double n = b->max_rows, q = (double)s->n_heads * s->head_dim;
    int32_t n_laps = bench_n_laps(b);
    double *laps = xcalloc((size_t)n_laps, sizeof *laps);
    struct pass_time best = {1e30, 1e30, laps};
    for (int32_t i = 0; i < n_laps; i++) {
        laps[i] = 1e30;
    }
    double flops = 2.0 * (layer_params(s) * s->n_layers * n + (double)s->vocab * s->hidden) +
                   2.0 * n * (n + 1.0) * q * s->n_layers;
    /* Only the last row needs logits, so the last layer skips part of its work. */
    double left_out = 2.0 * (n - 1.0) * (q + 3.0 * s->ffn) * s->hidden;
    enum status st = OK;
    int64_t start = clock_now_ns();
    for (int32_t i = 0;
         st == OK && (i < LEAST_PREFILLS || clock_now_ns() - start < (int64_t)(4e9 * b->seconds));
         i++) {
        st = time_forward(b, 1, b->max_rows, 0, &best);
    }
    double t = sum_of(laps, n_laps);
    free(laps);
    TRY(st);
    struct cpu_peaks p; // measured again, since the machine may have been busy the first time
    TRY(cpu_peaks(b->be, &p));
    b->product_rate = fmax(b->product_rate, p.product_flops_per_s);
    b->fma_rate = fmax(b->fma_rate, p.fma_flops_per_s);
    print_pass("prefill", t, &best, n / t, "tokens/s");
    double peak = p.has_matrix_unit ? b->product_rate : b->fma_rate;
    print_ratio(p.has_matrix_unit ? "prefill: share of the AMX peak"
                                  : "prefill: share of the FMA peak",
                flops / t / peak, flops / (best.processor / p.n_threads) / peak,
                p.has_matrix_unit ? 0.35 : 0.5);
    printf("%-46s %6.2f\n", "  the same, counting only computed rows",
           (flops - left_out) / t / peak);
    return OK;
}

/* Peaks first, then ops, then whole passes. */
static enum status run(struct bench *b, struct err *err)
{
    struct backend_facts facts;
    TRY(bench_open(b, err));
    TRY(b->ops->facts(b->be, &facts));
    printf("%s: %s; shape %s, %d layers, context %d\n", facts.name, facts.device, b->shape.name,
           b->shape.n_layers, b->context);
    struct cpu_peaks p;
    TRY(cpu_peaks(b->be, &p));
    b->read_rate = p.read_bytes_per_s;
    b->fma_rate = p.fma_flops_per_s;
    b->product_rate = p.product_flops_per_s;
    printf("peaks: read %.2f GB/s, FMA %.1f GFLOP/s, product %.1f GFLOP/s\n\n",
           p.read_bytes_per_s * 1e-9, p.fma_flops_per_s * 1e-9, p.product_flops_per_s * 1e-9);
    if (!b->brief && !b->only) {
        TRY(measure(b, 1, 1, b->context));
        TRY(measure(b, 16, 1, b->context));
        TRY(measure(b, 1, b->max_rows, 0));
    }
    if (b->only && strcmp(b->only, "kv") == 0) {
        return bench_kv(b);
    }
    bool decode = !b->only || strcmp(b->only, "decode") == 0;
    bool prefill = !b->only || strcmp(b->only, "prefill") == 0;
    if (!decode && !prefill) {
        return err_set(err, ERR_INVALID, "--only %s: none of decode, prefill, kv", b->only);
    }
    if (decode) {
        TRY(decode_ratios(b));
    }
    if (prefill) {
        return prefill_ratio(b);
    }
    return OK;
}

/* On a GPU, a captured pass runs an op hundreds of times: see cuda_table.c. */
static enum status run_cuda(struct bench *b, struct err *err)
{
#ifdef SLUICE_CUDA
    const struct backend_options options = {
        .device = b->device[4] == ':' ? (int32_t)strtol(b->device + 5, NULL, 10) : 0,
        .n_ranks = 1,
        .dtype = b->dtype,
        .deterministic = b->deterministic,
    };
    return cuda_bench(b, &options, err);
#else
    return err_set(err, ERR_UNSUPPORTED, "'%s': built without CUDA", b->device);
#endif
}

/* ---- the command -------------------------------------------------------------------------- */

static int usage(int code)
{
    fprintf(
        code == 0 ? stdout : stderr,
        "usage: sluice bench-ops [--device cpu|scalar|cuda:N] [--shape 1b|8b|tiny]\n"
        "    [--layers N] [--context N] [--rows N] [--threads N] [--dtype bf16|f32]\n"
        "    [--seconds S] [--brief 1]\n"
        "Times each op and the forward pass of dummy weights: one sequence, sixteen, and a\n"
        "prompt of --rows tokens (2048); then ratios with a lower bound. --brief prints only\n"
        "these, and [--only decode|prefill] one of them. The ratio of a prefill is measured over "
        "at\n"
        "least three passes and 4 S seconds; on a busy machine use --seconds 5.\n"
        "[--only kv]: one row, and four, after --context tokens with each KV format.\n"
        "On CUDA: each op at an 8B model's shapes; [--only NAME] [--deterministic 1].\n");
    return code;
}

/* Every option takes a value; unknown options are errors. */
static bool set_option(struct bench *b, const char *key, const char *value)
{
    char *rest;
    long n = strtol(value, &rest, 10);
    bool is_number = *value != '\0' && *rest == '\0' && n >= 0 && n <= 1 << 20;
    if (strcmp(key, "--device") == 0) {
        b->device = value;
        return true;
    }
    if (strcmp(key, "--only") == 0) {
        b->only = value;
        return true;
    }
    if (strcmp(key, "--brief") == 0 && is_number) {
        b->brief = n != 0;
        return true;
    }
    if (strcmp(key, "--deterministic") == 0 && is_number) {
        b->deterministic = n != 0;
        return true;
    }
    if (strcmp(key, "--dtype") == 0) {
        b->dtype = strcmp(value, "f32") == 0 ? DT_F32 : DT_BF16;
        return strcmp(value, "f32") == 0 || strcmp(value, "bf16") == 0;
    }
    if (strcmp(key, "--seconds") == 0) {
        b->seconds = strtod(value, &rest);
        return *rest == '\0' && b->seconds >= 0.0;
    }
    if (strcmp(key, "--shape") == 0 && bench_shape(value)) {
        b->shape = *bench_shape(value);
        return true;
    }
    if (strcmp(key, "--layers") == 0 && is_number && n > 0) {
        b->shape.n_layers = (int32_t)n;
        return true;
    }
    if (strcmp(key, "--threads") == 0 && is_number) {
        b->threads = (int32_t)n;
        return true;
    }
    if (strcmp(key, "--context") == 0 && is_number) {
        b->context = (int32_t)n;
        return true;
    }
    if (strcmp(key, "--rows") == 0 && is_number && n >= 16) {
        b->max_rows = (int32_t)n;
        return true;
    }
    return false;
}

int cmd_bench_ops(int argc, char **argv)
{
    struct bench b = {.shape = *bench_shape("1b"),
                      .device = "cpu",
                      .context = 128,
                      .max_rows = 2048,
                      .dtype = DT_BF16,
                      .seconds = 0.5};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            return usage(0);
        }
        if (i + 1 >= argc || !set_option(&b, argv[i], argv[i + 1])) {
            fprintf(stderr, "sluice bench-ops: unknown or incomplete option %s\n", argv[i]);
            return usage(2);
        }
    }
    struct err err = {""};
    enum status st = strncmp(b.device, "cuda", 4) == 0 ? run_cuda(&b, &err) : run(&b, &err);
    if (st != OK) {
        fprintf(stderr, "sluice bench-ops: %s\n", err.text[0] ? err.text : status_name(st));
    }
    bench_close(&b);
    return st != OK;
}
