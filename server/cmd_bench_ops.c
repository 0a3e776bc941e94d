/* `sluice bench-ops`: the time of each op and of whole forward passes over dummy weights of a known
 * shape, through the backend's table alone. A composition root like main.c: it names the backends.
 * Shares are of what the machine does in the same run: reads of the same weights, and the peak of
 * the instruction that multiplies. */
#include "cpu/cpu.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/ops.h"
#include "server/commands.h"
#ifdef SLUICE_CUDA
#include "cuda/cuda.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    const char *name;
    int32_t hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn, vocab;
};

static const struct shape shapes[] = {
    {"1b", 2048, 16, 32, 8, 64, 8192, 128256},
    {"8b", 4096, 32, 32, 8, 128, 14336, 128256},
    {"tiny", 256, 2, 8, 2, 32, 512, 1000},
};

enum { BLOCK = 16, MAX_LANES = 64 };

struct layer {
    struct weight *norm_1, *qkv, *o, *norm_2, *gate_up, *down;
};

struct bench {
    struct shape shape;
    const char *device;
    const char *only; // lines of the CUDA bench, NULL: all
    bool deterministic;
    int32_t threads, context, max_rows;
    enum dtype dtype;
    double seconds; // of each figure, at least
    struct backend *be;
    const struct backend_ops *ops;
    struct layer *layers;
    struct weight *embed, *norm;
    struct rope_table *rope;
    struct tensor x, h, qkv, attn, mid, act, delta, out, logits;
    double read_rate, fma_rate, product_rate; // 0: not known
    struct pass_row *rows;
    struct pass_seq *seqs;
    int32_t *out_rows;
    struct pass_draw *draws;
    struct pass pass;
};

/* ---- set-up ------------------------------------------------------------------------------- */

static enum status open_weight(struct bench *b, enum weight_kind kind, int64_t n_out, int64_t n_in,
                               struct weight **out, struct err *err)
{
    static uint64_t seed = 1;
    struct weight_part part = {NULL, DT_F32, n_out, n_in, n_in, 1};
    struct weight_desc d = {
        .name = "dummy",
        .kind = kind,
        .dtype = kind == WEIGHT_VECTOR ? DT_F32 : b->dtype,
        .n_out = n_out,
        .n_in = n_in,
        .n_experts = 1,
        .n_parts = 1,
        .parts = &part,
        .k_segments = 1,
        .dummy_seed = seed++,
        .dummy_scale = 0.02f,
    };
    return b->ops->weight_open(b->be, &d, out, err);
}

static enum status open_weights(struct bench *b, struct err *err)
{
    const struct shape *s = &b->shape;
    int64_t q = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    b->layers = xcalloc((size_t)s->n_layers, sizeof *b->layers);
    for (int32_t i = 0; i < s->n_layers; i++) {
        struct layer *l = &b->layers[i];
        TRY(open_weight(b, WEIGHT_VECTOR, 1, s->hidden, &l->norm_1, err));
        TRY(open_weight(b, WEIGHT_LINEAR, q + 2 * kv, s->hidden, &l->qkv, err));
        TRY(open_weight(b, WEIGHT_LINEAR, s->hidden, q, &l->o, err));
        TRY(open_weight(b, WEIGHT_VECTOR, 1, s->hidden, &l->norm_2, err));
        TRY(open_weight(b, WEIGHT_LINEAR, 2 * (int64_t)s->ffn, s->hidden, &l->gate_up, err));
        TRY(open_weight(b, WEIGHT_LINEAR, s->hidden, s->ffn, &l->down, err));
    }
    TRY(open_weight(b, WEIGHT_VECTOR, 1, s->hidden, &b->norm, err));
    TRY(open_weight(b, WEIGHT_EMBED, s->vocab, s->hidden, &b->embed, err));
    float inv_freq[256];
    for (int32_t i = 0; i < s->head_dim / 2; i++) {
        inv_freq[i] = 1.0f / (1.0f + (float)(i * i)); // any; only the time matters
    }
    struct rope_desc rope = {s->head_dim / 2, inv_freq, 1.0f, false, b->context + b->max_rows + 1};
    return b->ops->rope_open(b->be, &rope, &b->rope);
}

static enum status matrix(struct bench *b, int64_t rows, int64_t width, enum dtype dtype,
                          struct tensor *out)
{
    *out = (struct tensor){.dtype = dtype, .stride = (int32_t)width};
    return b->ops->alloc(b->be, (size_t)(rows * width) * dtype_bytes(dtype), &out->mem);
}

static enum status open_memory(struct bench *b, struct err *err)
{
    const struct shape *s = &b->shape;
    int32_t per_lane = (b->context + b->max_rows) / BLOCK + 1;
    int32_t n_blocks = per_lane + MAX_LANES * (b->context / BLOCK + 2);
    struct backend_limits limits = {
        .max_rows = b->max_rows,
        .max_out_rows = MAX_LANES,
        .max_lanes = MAX_LANES,
        .max_len = b->context + b->max_rows,
        .max_blocks_per_lane = per_lane,
        .n_blocks = n_blocks,
        .block_tokens = BLOCK,
        .vocab = s->vocab,
        .hidden = s->hidden,
        .n_steps = 1,
        .max_passes = 1,
    };
    TRY(b->ops->setup(b->be, &limits, err));
    struct kv_layer *layers = xcalloc((size_t)s->n_layers, sizeof *layers);
    for (int32_t i = 0; i < s->n_layers; i++) {
        layers[i] = (struct kv_layer){s->n_kv_heads, s->head_dim, s->head_dim, false};
    }
    struct kv_set_desc kv = {s->n_layers, layers, b->dtype};
    enum status st = b->ops->kv_open(b->be, 0, &kv, err);
    free(layers);
    TRY(st);
    struct backend_facts facts;
    TRY(b->ops->facts(b->be, &facts));
    int32_t q = s->n_heads * s->head_dim;
    TRY(matrix(b, b->max_rows, s->hidden, facts.residual, &b->x));
    TRY(matrix(b, b->max_rows, s->hidden, facts.act, &b->h));
    TRY(matrix(b, b->max_rows, q + 2 * s->n_kv_heads * s->head_dim, facts.act, &b->qkv));
    TRY(matrix(b, b->max_rows, q, facts.act, &b->attn));
    TRY(matrix(b, b->max_rows, 2 * s->ffn, facts.act, &b->mid));
    TRY(matrix(b, b->max_rows, s->ffn, facts.act, &b->act));
    TRY(matrix(b, b->max_rows, s->hidden, facts.act, &b->delta));
    TRY(matrix(b, MAX_LANES, s->hidden, facts.act, &b->out));
    return matrix(b, MAX_LANES, s->vocab, DT_F32, &b->logits);
}

static enum status open_backend(struct bench *b, struct err *err)
{
    struct backend_options o = {.n_ranks = 1, .dtype = b->dtype, .n_threads = b->threads};
    if (strcmp(b->device, "cpu") == 0) {
        return cpu_open(&o, &b->be, err);
    }
    if (strcmp(b->device, "scalar") == 0) {
        return cpu_open_scalar(&o, &b->be, err);
    }
#ifdef SLUICE_CUDA
    if (strncmp(b->device, "cuda", 4) == 0) {
        o.device = b->device[4] == ':' ? (int32_t)strtol(b->device + 5, NULL, 10) : 0;
        return cuda_open(&o, &b->be, err);
    }
#endif
    return err_set(err, ERR_INVALID, "no such device: %s (cpu, scalar, cuda, cuda:N)", b->device);
}

/* ---- passes ------------------------------------------------------------------------------- */

/* n_seqs sequences of `rows` new rows each after `past` ones. */
static enum status begin(struct bench *b, int32_t n_seqs, int32_t rows, int32_t past)
{
    int32_t next = 0, blocks = (past + rows) / BLOCK + 1;
    int32_t *table = xcalloc((size_t)blocks, sizeof *table);
    struct pass_shape shape;
    TRY(b->ops->step_begin(b->be, 0));
    for (int32_t i = 0; i < n_seqs; i++) {
        for (int32_t j = 0; j < blocks; j++) {
            table[j] = next++;
        }
        TRY(b->ops->lane_blocks(b->be, i, 0, blocks, table));
        b->seqs[i] = (struct pass_seq){i, i * rows, rows, past, false};
        for (int32_t r = 0; r < rows; r++) {
            b->rows[i * rows + r] =
                (struct pass_row){i, (i + r) % b->shape.vocab, past + r, past + r};
        }
        b->out_rows[i] = (i + 1) * rows - 1;
        b->draws[i] = (struct pass_draw){.out_row = i, .lane = i, .pos = past + rows - 1,
                                         .n_prompt = past + rows, .tree_row = -1};
    }
    free(table);
    b->pass = (struct pass){.n_rows = n_seqs * rows,
                            .rows = b->rows,
                            .n_seqs = n_seqs,
                            .seqs = b->seqs,
                            .n_out = n_seqs,
                            .out_rows = b->out_rows,
                            .n_draws = n_seqs,
                            .draws = b->draws};
    return b->ops->pass_begin(b->be, &b->pass, &shape);
}

static enum status end(struct bench *b)
{
    struct pass_results results;
    TRY(b->ops->pass_end(b->be));
    TRY(b->ops->step_end(b->be));
    return b->ops->step_wait(b->be, 0, &results, 1);
}

static enum status linear(struct bench *b, struct weight *w, struct tensor x, struct tensor y,
                          int32_t n)
{
    struct linear_args a = {.weight = w, .x = x, .y = y, .n_rows = n};
    return b->ops->linear(b->be, &a);
}

static enum status norm(struct bench *b, struct weight *w, struct tensor delta, struct tensor x,
                        struct tensor out, int32_t n)
{
    struct norm_args a = {.x = x, .delta = delta, .out = out, .weight = w, .n_rows = n,
                          .width = b->shape.hidden, .eps = 1e-5f, .delta_scale = 1.0f};
    return b->ops->norm(b->be, &a);
}

static enum status store(struct bench *b, int32_t layer, int32_t n)
{
    const struct shape *s = &b->shape;
    struct rope_store_args a = {.qkv = b->qkv, .rope = b->rope, .n_rows = n, .layer = layer,
                                .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads,
                                .head_dim = s->head_dim};
    return b->ops->rope_store(b->be, &a);
}

static enum status attention(struct bench *b, int32_t layer, int32_t n)
{
    const struct shape *s = &b->shape;
    struct attention_args a = {.q = b->qkv, .out = b->attn, .n_rows = n, .layer = layer,
                               .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads,
                               .head_dim_k = s->head_dim, .head_dim_v = s->head_dim,
                               .scale = 0.125f};
    return b->ops->attention(b->be, &a);
}

static enum status activate(struct bench *b, int32_t n)
{
    struct activation_args a = {b->mid, b->act, n, b->shape.ffn, ACT_SILU, true};
    return b->ops->activation(b->be, &a);
}

static enum status sample(struct bench *b)
{
    struct sample_args a = {b->logits, b->pass.n_out, b->pass.n_draws, b->shape.vocab};
    return b->ops->sample(b->be, &a);
}

/* A plain Llama's forward pass. */
static enum status forward(struct bench *b)
{
    int32_t n = b->pass.n_rows, n_out = b->pass.n_out;
    struct tensor none = {{NULL}, DT_F32, 0};
    struct embed_args embed = {b->embed, b->x, n, 1.0f};
    TRY(b->ops->embed(b->be, &embed));
    for (int32_t i = 0; i < b->shape.n_layers; i++) {
        struct layer *l = &b->layers[i];
        TRY(norm(b, l->norm_1, i > 0 ? b->delta : none, b->x, b->h, n));
        TRY(linear(b, l->qkv, b->h, b->qkv, n));
        TRY(store(b, i, n));
        TRY(attention(b, i, n));
        TRY(linear(b, l->o, b->attn, b->delta, n));
        TRY(norm(b, l->norm_2, b->delta, b->x, b->h, n));
        TRY(linear(b, l->gate_up, b->h, b->mid, n));
        TRY(activate(b, n));
        TRY(linear(b, l->down, b->act, b->delta, n));
    }
    TRY(norm(b, b->norm, b->delta, b->x, b->h, n));
    struct gather_args gather = {b->h, b->out, n_out, b->shape.hidden};
    TRY(b->ops->gather(b->be, &gather));
    struct linear_args head = {.weight = b->embed, .x = b->out, .y = b->logits, .n_rows = n_out,
                               .head = true};
    TRY(b->ops->linear(b->be, &head));
    struct logits_args logits = {b->logits, b->logits, n_out, b->shape.vocab, 1.0f, 0.0f};
    TRY(b->ops->logits(b->be, &logits));
    return sample(b);
}

/* ---- timing ------------------------------------------------------------------------------- */

struct figure {
    const char *name;
    enum status (*run)(struct bench *b, int32_t i); // i: the run, to vary the layer
    double bytes, flops;                            // of one run
};

static enum status run_qkv(struct bench *b, int32_t i)
{
    return linear(b, b->layers[i % b->shape.n_layers].qkv, b->h, b->qkv, b->pass.n_rows);
}

static enum status run_o(struct bench *b, int32_t i)
{
    return linear(b, b->layers[i % b->shape.n_layers].o, b->attn, b->delta, b->pass.n_rows);
}

static enum status run_gate_up(struct bench *b, int32_t i)
{
    return linear(b, b->layers[i % b->shape.n_layers].gate_up, b->h, b->mid, b->pass.n_rows);
}

static enum status run_down(struct bench *b, int32_t i)
{
    return linear(b, b->layers[i % b->shape.n_layers].down, b->act, b->delta, b->pass.n_rows);
}

static enum status run_norm(struct bench *b, int32_t i)
{
    return norm(b, b->layers[i % b->shape.n_layers].norm_1, b->delta, b->x, b->h, b->pass.n_rows);
}

static enum status run_store(struct bench *b, int32_t i)
{
    return store(b, i % b->shape.n_layers, b->pass.n_rows);
}

static enum status run_attention(struct bench *b, int32_t i)
{
    return attention(b, i % b->shape.n_layers, b->pass.n_rows);
}

static enum status run_activation(struct bench *b, int32_t i)
{
    (void)i;
    return activate(b, b->pass.n_rows);
}

static enum status run_head(struct bench *b, int32_t i)
{
    (void)i;
    struct linear_args a = {.weight = b->embed, .x = b->out, .y = b->logits,
                            .n_rows = b->pass.n_out, .head = true};
    return b->ops->linear(b->be, &a);
}

static enum status run_sample(struct bench *b, int32_t i)
{
    (void)i;
    return sample(b);
}

static enum status run_forward(struct bench *b, int32_t i)
{
    (void)i;
    return forward(b);
}

static enum status flush(struct bench *b)
{
    char byte;
    return b->ops->read(b->be, &byte, b->logits.mem, 1);
}

/* Seconds of the best run in at least `seconds` of runs, and three: like the peaks, what the
 * machine does when nobody else takes its time. Short ops run several times per reading. */
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
        *out = t < *out ? t : *out;
    }
    return OK;
}

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

/* All figures for n_seqs sequences of `rows` new rows after `past` tokens. */
static enum status measure(struct bench *b, int32_t n_seqs, int32_t rows, int32_t past)
{
    const struct shape *s = &b->shape;
    double n = (double)n_seqs * rows, w = (double)dtype_bytes(b->dtype), hidden = s->hidden;
    double q = (double)s->n_heads * s->head_dim, kv = (double)s->n_kv_heads * s->head_dim;
    double keys = n_seqs * (double)(past + rows); // read at least once
    double pairs = n * (past + (rows + 1) / 2.0); // of a query and a key that it sees
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
        {"head", run_head, w * head, 2.0 * n_seqs * head},
        {"sample", run_sample, 4.0 * n_seqs * s->vocab, 0.0},
        {"forward", run_forward, w * (all + head) + s->n_layers * kv_bytes(b, keys),
         2.0 * (all * n + head * n_seqs) + attn * s->n_layers},
    };
    TRY(begin(b, n_seqs, rows, past));
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        double t;
        TRY(time_of(b, &figures[i], &t));
        print_figure(b, &figures[i], t, (int32_t)n);
        if (figures[i].run == run_forward) {
            printf("%-12s %5d rows after %d tokens: %.2f tokens/s\n\n", "", (int32_t)n, past,
                   n / t);
        }
    }
    return end(b);
}

static enum status run(struct bench *b, struct err *err)
{
    struct backend_facts facts;
    b->rows = xcalloc((size_t)b->max_rows, sizeof *b->rows);
    b->seqs = xcalloc(MAX_LANES, sizeof *b->seqs);
    b->out_rows = xcalloc(MAX_LANES, sizeof *b->out_rows);
    b->draws = xcalloc(MAX_LANES, sizeof *b->draws);
    TRY(open_backend(b, err));
    b->ops = b->be->ops;
    TRY(open_weights(b, err));
    TRY(open_memory(b, err));
    TRY(b->ops->facts(b->be, &facts));
    printf("%s: %s; shape %s, %d layers, context %d\n", facts.name, facts.device, b->shape.name,
           b->shape.n_layers, b->context);
    if (strncmp(b->device, "cuda", 4) != 0) {
        struct cpu_peaks p;
        TRY(cpu_peaks(b->be, &p));
        b->read_rate = p.read_bytes_per_s;
        b->fma_rate = p.fma_flops_per_s;
        b->product_rate = p.product_flops_per_s;
        printf("peaks: read %.2f GB/s, FMA %.1f GFLOP/s, product %.1f GFLOP/s\n\n",
               p.read_bytes_per_s * 1e-9, p.fma_flops_per_s * 1e-9, p.product_flops_per_s * 1e-9);
    }
    TRY(measure(b, 1, 1, b->context));
    TRY(measure(b, 16, 1, b->context));
    return measure(b, 1, b->max_rows, 0);
}

/* A GPU's ops are timed by the hundred in a captured pass: see cuda/cuda_bench.c. */
static enum status run_cuda(struct bench *b, struct err *err)
{
#ifdef SLUICE_CUDA
    const struct backend_options options = {
        .device = b->device[4] == ':' ? (int32_t)strtol(b->device + 5, NULL, 10) : 0,
        .n_ranks = 1,
        .dtype = b->dtype,
        .deterministic = b->deterministic,
    };
    return cuda_bench(&options, b->only, err);
#else
    return err_set(err, ERR_UNSUPPORTED, "'%s': built without CUDA", b->device);
#endif
}

/* ---- the command -------------------------------------------------------------------------- */

static int usage(int code)
{
    fprintf(code == 0 ? stdout : stderr,
            "usage: sluice bench-ops [--device cpu|scalar|cuda:N] [--shape 1b|8b|tiny]\n"
            "    [--layers N] [--context N] [--rows N] [--threads N] [--dtype bf16|f32]\n"
            "    [--seconds S]\n"
            "Times each op and the forward pass of dummy weights: one sequence, sixteen, and a\n"
            "prompt of --rows tokens (2048).\n"
            "On CUDA: each op at an 8B model's shapes; [--only NAME] [--deterministic 1].\n");
    return code;
}

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
    for (size_t i = 0; strcmp(key, "--shape") == 0 && i < sizeof shapes / sizeof shapes[0]; i++) {
        if (strcmp(shapes[i].name, value) == 0) {
            b->shape = shapes[i];
            return true;
        }
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
    struct bench b = {.shape = shapes[0], .device = "cpu", .context = 128, .max_rows = 2048,
                      .dtype = DT_BF16, .seconds = 0.5};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            return usage(0);
        }
        if (i + 1 >= argc || !set_option(&b, argv[i], argv[i + 1])) {
            fprintf(stderr, "sluice bench-ops: %s: not understood\n", argv[i]);
            return usage(2);
        }
    }
    struct err err = {""};
    enum status st = strncmp(b.device, "cuda", 4) == 0 ? run_cuda(&b, &err) : run(&b, &err);
    if (st != OK) {
        fprintf(stderr, "sluice bench-ops: %s\n", err.text[0] ? err.text : status_name(st));
    }
    if (b.be) {
        b.ops = b.be->ops;
        b.ops->close(b.be);
    }
    free(b.layers);
    free(b.rows);
    free(b.seqs);
    free(b.out_rows);
    free(b.draws);
    return st == OK ? 0 : 1;
}
