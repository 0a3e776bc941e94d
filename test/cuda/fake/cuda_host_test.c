// SPDX-License-Identifier: Apache-2.0
// test/run: long
/* The host side of the CUDA backend, below the whole engine, on a device that computes nothing
 * (fake_cuda.h): its calls keep the contract of a device, and each failure ends every request and
 * leaks nothing. Answers are zeros; op tests and goldens compare real ones, on a GPU. */
#include "test/cuda/fake/host_bed.h"

#ifdef SLUICE_CUDA
#include "cuda/cuda_backend.h"
#include "engine/base/mem.h"
#include "test/cuda/fake/host_shapes.h"

#include <math.h>

#define OWN "test/golden/llama-3"
#define STRANGER "test/golden/llama-tied"

enum { N = 5, MAX_N = 128, MAX_PROMPT = 9000, MAX_OUT = 12, MAX_TURNS = 3000 };

/* One engine with its requests; all results have room here, since an engine writes into
 * its caller's memory. */
struct bed {
    struct engine *e;
    struct engine_request r[N];
    struct engine_output outputs[N][MAX_N];
    struct token_logprobs logprobs[N][MAX_N][MAX_OUT];
    int32_t prompt[MAX_PROMPT], tokens[N][MAX_N][MAX_OUT], top_ids[MAX_TOP_LOGPROBS];
    float top_logprobs[MAX_TOP_LOGPROBS], pooled[1 << 13];
    int32_t n_done, n_failed;
    bool broken; // the model's results are not numbers
};

static void pool_request(struct bed *b, struct engine_request *r, enum pool_kind kind)
{
    r->pool = kind;
    r->pooled = b->pooled;
    r->outputs = NULL;
    r->params.max_tokens = 0;
}

/* Greedy, drawn, several samples, log-probabilities, all sampling parameters, embeddings. Some
 * share a prefix. The model's vocabulary has more than 300 ids. */
static void make_request(struct bed *b, int32_t i, int32_t n_prompt, int32_t n_samples)
{
    static const int32_t ids[] = {5, 6, 7, 300}, lengths[] = {1, 2};
    static const struct logit_bias bias[] = {{9, 2.0f}, {11, -100.0f}};
    struct engine_request *r = &b->r[i];
    *r = (struct engine_request){.prompt = b->prompt, .n_prompt = n_prompt, .n = 1};
    r->params = sampling_params_default();
    r->params.ignore_eos = true;
    r->params.temperature = i % 2 ? 1.0f : 0.0f;
    r->params.max_tokens = MAX_OUT;
    r->outputs = b->outputs[i];
    switch (i) {
    case 0:
    case 1: r->n = n_samples; break;
    case 2:
        r->params.logprobs = true;
        r->params.top_logprobs = 3;
        break;
    case 3:
        r->params.top_k = 20;
        r->params.top_p = 0.9f;
        r->params.repetition_penalty = 1.1f;
        r->params.n_bias = 2;
        r->params.bias = bias;
        r->params.n_bad_words = 2;
        r->params.bad_word_lengths = lengths;
        r->params.bad_word_tokens = ids;
        r->params.n_allowed = 4;
        r->params.allowed = ids;
        break;
    case 4: pool_request(b, r, POOL_LAST); break;
    }
    if (engine_info(b->e)->encoder) {
        static const enum pool_kind kinds[N] = {POOL_MEAN, POOL_FIRST, POOL_MAX, POOL_MEAN,
                                                POOL_LAST};
        r->params = sampling_params_default();
        r->second = n_prompt / 2;
        r->n = 1;
        pool_request(b, r, kinds[i]);
    }
    for (int32_t s = 0; s < r->n && r->outputs; s++) {
        struct engine_output *o = &b->outputs[i][s];
        o->tokens = b->tokens[i][s];
        o->logprobs = r->params.logprobs ? b->logprobs[i][s] : NULL;
        for (int32_t k = 0; k < MAX_OUT; k++) {
            b->logprobs[i][s][k].top_ids = b->top_ids;
            b->logprobs[i][s][k].top_logprobs = b->top_logprobs;
        }
    }
}

static void on_event(struct engine_request *r, void *arg)
{
    struct bed *b = arg;
    b->n_done += r->done;
    b->n_failed += r->done && r->error != OK;
}

/* Serves the requests, even if the device is lost in the meantime: each ends exactly once. */
static void serve(struct bed *b, int32_t longest, int32_t n_samples)
{
    struct err err;
    int32_t n_taken = 0;
    for (int32_t turn = 0, left = 3; turn < MAX_TURNS && left > 0; turn++) {
        left -= b->n_done == N; // counts down until steps in flight have ended
        if (turn % 2 == 0 && n_taken < N) {
            make_request(b, n_taken, 7 + longest * n_taken / N, n_samples);
            if (engine_submit(b->e, &b->r[n_taken], &err) != OK) {
                CHECK(fake_cuda_failed());
                b->n_failed++;
                b->n_done++;
            }
            n_taken++;
        }
        engine_turn(b->e);
        engine_drain(b->e, on_event, b);
    }
    CHECK_EQ(b->n_done, N);
    struct engine_stats stats;
    engine_stats(b->e, &stats);
    CHECK_EQ(stats.n_running + stats.n_waiting, 0);
    CHECK_EQ(stats.n_blocks_held, 0);
    CHECK(b->n_failed == 0 || b->broken || stats.state == ENGINE_FAILED);
}

/* Opens an engine, serves and closes it. True if it could be opened. */
static bool live(struct engine_options *o, int32_t longest, int32_t n_samples, const char *what)
{
    struct bed *b = xcalloc(1, sizeof *b);
    struct err err = {0};
    o->open_backend = host_open;
    o->no_thread = true;
    for (int32_t i = 0; i < MAX_PROMPT; i++) {
        b->prompt[i] = 3 + i * i * 7 % 290;
    }
    host_open_ranks(o);
    const bool there = o->tensor_parallel_size <= 1 || o->backend.comm;
    const bool opened = there && engine_open(o, &b->e, &err) == OK;
    if (opened) {
        serve(b, longest, n_samples);
        engine_stop_all(b->e);
        engine_drain(b->e, on_event, b);
        engine_close(b->e);
    }
    if (!fake_cuda_failed() && (!opened || b->n_failed > 0)) {
        CHECK_FAIL("%s: %s", what, opened ? "a request failed" : err.text);
    }
    cuda_comm_destroy(o->backend.comm);
    if (there && !opened && !err.text[0]) {
        CHECK_FAIL("%s: an error without a message", what);
    }
    host_check(what, o->tensor_parallel_size);
    free(b);
    return opened;
}

/* Few blocks, places and rows, so that all kinds of steps come soon. */
static struct engine_options small(const char *model)
{
    return (struct engine_options){.model = model,
                                   .block_size = 16,
                                   .num_gpu_blocks_override = 60,
                                   .enable_prefix_caching = true,
                                   .enable_chunked_prefill = true,
                                   .max_num_seqs = 5,
                                   .max_num_batched_tokens = 61};
}

/* Each family uses different ops, so each is opened and run on every architecture that the
 * build has. */
static int all_families(const void *arg)
{
    static const char *const families[] = {
        "llama-3",          "gemma-2",     "gemma-3",       "mixtral",
        "deepseek-v3",      "gpt-oss",     "qwen3-moe",     "phi-3-long",
        "stablelm",         "glm4",        "qwen3.5",       "qwen3.5-moe",
        "qwen3-next",       "kimi-linear", "ling-3",        "nemotron-3-nano",
        "nemotron-3-super", "granite-4",   "falcon-h1",     "bamba",
        "lfm2-moe",         "gemma-4-e",   "gemma-4-moe",   "llama-4",
        "mistral-small-4",  "cohere-2",    "ernie-4.5-moe", "exaone-moe",
        "deepseek-v3.2",    "glm-5",       "minimax-m3",    "apertus",
        "step-3.7",         "laguna",      "mimo-v2-flash", "afmoe",
        "olmo-hybrid",      "lfm3",        "muse-glimmer",  "command-a-plus",
        "granite-swa",      "hy-4",        "gemma-3n",      "longcat-flash",
        "bitnet",           "minimax-1"};
    for (size_t i = 0; i < 4 * sizeof families / sizeof families[0]; i++) {
        char dir[64];
        host_family(dir, sizeof dir, families[i / 4]);
        fake_cuda_reset(1, *(const int32_t *)arg, (size_t)1 << 32);
        fake_cuda_has_products(i % 4 != 1);
        struct engine_options o = small(dir);
        o.window_pages = i % 4 == 1 ? 0 : 20;
        o.backend.enforce_eager = i % 4 == 2;
        o.backend.deterministic = i % 4 == 3;
        live(&o, 90, 2, dir);
        CHECK(fake_cuda_counts().kernels >= 10);
        CHECK(i % 4 == 2 || fake_cuda_counts().replays > 5);
    }
    return 0;
}

TEST(all_families_make_only_valid_calls)
{
    for (const int32_t *sm = host_archs(); *sm; sm++) {
        host_in_child(all_families, sm);
    }
}

/* Windows with all kinds of drafts: paths of trees are moved, and copied in deterministic mode, in
 * the pages of windows, too. */
static int windows_and_drafts(const void *arg)
{
    static const char *const configs[] = {
        "{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"prompt_lookup_min\":1,\"fixed\":"
        "true}",
        "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\",\"expansion\":[1,3,1],"
        "\"fixed\":true}",
        "{\"method\":\"tree\",\"model\":\"test/golden/"
        "llama-tied\",\"expansion\":[4,2],\"fixed\":true}"};
    for (size_t i = 0; i < 4 * sizeof configs / sizeof configs[0]; i++) {
        char dir[64];
        host_family(dir, sizeof dir, i % 2 ? "gpt-oss" : "llama-4");
        fake_cuda_reset(1, *(const int32_t *)arg, (size_t)1 << 32);
        struct engine_options o = small(dir);
        o.window_pages = 20;
        o.load_format = "dummy";
        o.speculative_config = configs[i / 4];
        o.backend.deterministic = i % 4 >= 2;
        CHECK(live(&o, 90, 2, dir));
    }
    return 0;
}

TEST(windows_and_drafts_make_only_valid_calls)
{
    for (const int32_t *sm = host_archs(); *sm; sm++) {
        host_in_child(windows_and_drafts, sm);
    }
}

/* ---- real shapes ---------------------------------------------------------------------------- */

static const struct {
    int32_t n_samples, max_rows;
} loads[] = {{1, 8192}, {8, 512}, {40, 1000}, {64, 8192}, {128, 8192}};

/* A bit for each of those kernels that serving the model launched. */
static uint32_t serve_model(const char *dir, size_t model, int32_t sm, const char *const *kernels)
{
    uint32_t launched = 0;
    for (size_t k = 0; k < 2 * sizeof loads / sizeof loads[0]; k++) {
        fake_cuda_reset(1, sm, (size_t)141 << 30);
        struct engine_options o = {.model = dir,
                                   .load_format = "dummy",
                                   .max_num_seqs = 300,
                                   .enable_prefix_caching = true,
                                   .enable_chunked_prefill = true,
                                   .max_num_batched_tokens = loads[k / 2].max_rows,
                                   .backend.deterministic = k % 2};
        live(&o, 8192, loads[k / 2].n_samples, models[model].name);
        CHECK(!fake_cuda_launched("join_sums")); // the op that reads partial sums adds them
        for (uint32_t i = 0; kernels[i]; i++) {
            launched |= (uint32_t)fake_cuda_launched(kernels[i]) << i;
        }
    }
    return launched;
}

/* Kernels that only large shapes use are launched, too: sizes of published models, with
 * weights that are never filled. Each architecture must launch what it is listed with. */
static int real_shapes(const void *arg)
{
    static const char *const of_80[] = {"gemm_mma", "attention_mma", "moe_gate_up", NULL};
    static const char *const of_90[] = {"gemm_small",        "gemm_wide",       "gemm_batch",
                                        "gemm_head",         "attention_sm90",  "attention_prompt",
                                        "attention_few",     "moe_product",     "moe_eight",
                                        "gemm_fixed_kernel", "gemm_fixed_many", NULL};
    const int32_t sm = *(const int32_t *)arg;
    const char *const *kernels = sm == 90 ? of_90 : of_80;
    uint32_t launched = 0;
    char dir[] = "/tmp/fake-cuda-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/config.json", dir);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        FILE *f = fopen(path, "w");
        CHECK(f && fputs(models[i].config, f) >= 0 && fclose(f) == 0);
        launched |= serve_model(dir, i, sm, kernels);
    }
    for (uint32_t i = 0; kernels[i]; i++) {
        if (!(launched >> i & 1)) {
            CHECK_FAIL("sm_%d: no %s was launched", sm, kernels[i]);
        }
    }
    unlink(path);
    rmdir(dir);
    return 0;
}

TEST(real_shapes_make_only_valid_calls)
{
    for (const int32_t *sm = host_archs(); *sm; sm++) {
        host_in_child(real_shapes, sm);
    }
}

/* Encoders: passes whose rows see each other, with windows and without, pooled in all ways. */
static int encoders(const void *arg)
{
    static const struct {
        const char *name, *config;
        int32_t longest;
    } shapes[] = {
        {"a BERT",
         "{\"model_type\":\"bert\",\"vocab_size\":30522,\"hidden_size\":384,\"num_hidden_layers\":"
         "3,"
         "\"num_attention_heads\":12,\"intermediate_size\":1536}",
         500},
        {"an XLM-RoBERTa",
         "{\"model_type\":\"xlm-roberta\",\"vocab_size\":250002,\"hidden_size\":1024,\"num_hidden_"
         "layers\":2,"
         "\"num_attention_heads\":16,\"intermediate_size\":4096,\"max_position_embeddings\":8194,"
         "\"type_vocab_size\":1}",
         8000},
        {"a ModernBERT",
         "{\"model_type\":\"modernbert\",\"vocab_size\":50368,\"hidden_size\":768,\"num_hidden_"
         "layers\":4,"
         "\"num_attention_heads\":12}",
         8000},
        {"an EmbeddingGemma",
         "{\"model_type\":\"gemma3_text\",\"vocab_size\":262144,\"hidden_size\":768,\"num_hidden_"
         "layers\":7,"
         "\"num_attention_heads\":3,\"num_key_value_heads\":1,\"intermediate_size\":1152,"
         "\"max_position_embeddings\":2048,\"sliding_window\":512,"
         "\"use_bidirectional_attention\":true}",
         2000}};
    char dir[] = "/tmp/fake-cuda-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/config.json", dir);
    for (size_t i = 0; i < 4 * sizeof shapes / sizeof shapes[0]; i++) {
        FILE *f = fopen(path, "w");
        CHECK(f && fputs(shapes[i / 4].config, f) >= 0 && fclose(f) == 0);
        fake_cuda_reset(1, *(const int32_t *)arg, (size_t)141 << 30);
        struct engine_options o = {.model = dir,
                                   .load_format = "dummy",
                                   .max_num_seqs = 30,
                                   .enable_prefix_caching = true,
                                   .enable_chunked_prefill = true,
                                   .kv_cache_dtype = i % 4 == 3 ? "fp8" : NULL,
                                   .backend.deterministic = i % 4 == 1,
                                   .backend.enforce_eager = i % 4 == 2};
        live(&o, shapes[i / 4].longest, 1, shapes[i / 4].name);
        CHECK(fake_cuda_counts().kernels >= 8);
        CHECK(!fake_cuda_launched("attention_few"));
    }
    unlink(path);
    rmdir(dir);
    return 0;
}

TEST(encoders_make_only_valid_calls)
{
    for (const int32_t *sm = host_archs(); *sm; sm++) {
        host_in_child(encoders, sm);
    }
}

/* ---- failures ------------------------------------------------------------------------------ */

/* What fails, and at which call of the runtime. */
struct loss {
    int32_t n_ranks;
    const char *config; // the speculative config
    cudaError_t e;
    int64_t n; // the call that fails
};
enum { NOT_OPENED, OPENED, NOT_REACHED, MAX_CALLS = 20000 };

/* FAKE_STRIDE=1 tests every call, which takes a minute. */
static int64_t stride(void)
{
    const char *s = getenv("FAKE_STRIDE");
    if (s && atoi(s) > 0) {
        return atoi(s);
    }
    return 11;
}

/* Runs in a separate process. The failure must end every request, and the engine must free all
 * that it took. */
static int live_until_lost(const void *arg)
{
    const struct loss *l = arg;
    char what[64];
    snprintf(what, sizeof what, "%s at call %" PRId64,
             l->e == cudaErrorMemoryAllocation ? "out of memory" : "lost", l->n);
    fake_cuda_reset(l->n_ranks, host_archs()[0], (size_t)1 << 32);
    fake_cuda_fail(l->n, l->e);
    struct engine_options o = small(OWN);
    o.speculative_config = l->config;
    o.tensor_parallel_size = l->n_ranks;
    const bool opened = live(&o, 90, 2, what);
    if (!fake_cuda_failed()) {
        return NOT_REACHED;
    }
    return opened ? OPENED : NOT_OPENED;
}

/* For calls from all phases: failures during the opening return an error, later ones end every
 * request. */
static void lose_at_every_call(cudaError_t e)
{
    static const char *const configs[] = {
        NULL,
        "{\"method\":\"tree\",\"model\":\"" STRANGER "\",\"expansion\":[3,2],\"fixed\":true}",
    };
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct loss l = {.n_ranks = 1, .config = configs[i], .e = e};
        int64_t n_opened = 0;
        for (int how = OPENED; how != NOT_REACHED && l.n < MAX_CALLS; l.n += stride()) {
            how = host_in_child(live_until_lost, &l);
            n_opened += how == OPENED;
        }
        CHECK(l.n > 1000 && n_opened * stride() > 900);
    }
}

/* Several ranks as threads, each on a device of its own. */
static int ranks(const void *arg)
{
    static const char *const families[] = {"llama-3",    "mixtral",     "deepseek-v3",
                                           "gpt-oss",    "qwen3.5-moe", "nemotron-3-nano",
                                           "kimi-linear"};
    for (size_t i = 0; i < 4 * sizeof families / sizeof families[0]; i++) {
        char dir[64];
        host_family(dir, sizeof dir, families[i / 4]);
        fake_cuda_reset(3, *(const int32_t *)arg, (size_t)1 << 32);
        struct engine_options o = small(dir);
        o.tensor_parallel_size = 2;
        o.backend.enforce_eager = i % 4 == 2;
        o.backend.deterministic = i % 4 == 3;
        live(&o, 90, 2, dir);
        CHECK(i % 4 == 2 || fake_cuda_counts().replays > 5);
    }
    return 0;
}

TEST(each_rank_uses_only_its_device)
{
    for (const int32_t *sm = host_archs(); *sm; sm++) {
        host_in_child(ranks, sm);
    }
}

/* Opens and runs an engine for each call that can fail, with a stride, until a run ends before its
 * call is reached. */
TEST(a_rank_that_is_lost_ends_every_request)
{
    struct loss l = {.n_ranks = 2, .e = cudaErrorIllegalAddress};
    for (int how = OPENED; how != NOT_REACHED && l.n < MAX_CALLS; l.n += stride()) {
        how = host_in_child(live_until_lost, &l);
    }
    CHECK(l.n > 3000);
}

TEST(a_device_that_is_lost_ends_every_request)
{
    lose_at_every_call(cudaErrorIllegalAddress);
}

/* As on a device, a wait during a capture is refused, and the capture is lost. */
TEST(a_capture_allows_no_wait)
{
    for (int what = 0; what < 3; what++) {
        cudaStream_t stream;
        cudaEvent_t event;
        cudaGraph_t graph;
        void *p = NULL;
        fake_cuda_reset(1, 90, 1 << 20);
        REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
        REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
        REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        CHECK(fake_cuda_complaint() == NULL);
        cudaError_t e;
        switch (what) {
        case 0: e = cudaStreamSynchronize(stream); break;
        case 1: e = cudaEventSynchronize(event); break;
        default: e = cudaMalloc(&p, 16); break;
        }
        CHECK_EQ(e, cudaErrorStreamCaptureUnsupported);
        CHECK(fake_cuda_complaint() != NULL);
        CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
        CHECK(graph == NULL);
        CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        cudaEventDestroy(event);
        cudaStreamDestroy(stream);
        CHECK_EQ(fake_cuda_counts().left, 0);
    }
    fake_cuda_reset(1, 90, 1 << 20);
}

/* ---- results that are not numbers ----------------------------------------------------------- */

/* The CUDA backend, except that no draw is valid, and the hidden states after layer 1 and later
 * ones are NaN. */
static struct backend_ops broken_ops;
static struct hidden_layers asked; // of the last pass

static enum status broken_pass_begin(struct backend *be, const struct pass *pass,
                                     struct pass_shape *shape)
{
    asked = pass->hidden;
    return cuda_ops.pass_begin(be, pass, shape);
}

static enum status broken_step_wait(struct backend *be, int32_t slot, struct pass_results *results,
                                    int32_t max_passes)
{
    TRY(cuda_ops.step_wait(be, slot, results, max_passes));
    struct pass_results *last = &results[max_passes - 1];
    for (int32_t i = 0; i < last->n_draws; i++) {
        ((struct draw_result *)last->draws)[i].broken = true;
    }
    if (asked.n > 0 && asked.ids[0] >= 1) {
        *(float *)last->pooled = NAN;
    }
    return OK;
}

static enum status open_broken(const struct backend_options *options, struct backend **out,
                               struct err *err, void *arg)
{
    TRY(host_open(options, out, err, arg));
    broken_ops = cuda_ops;
    broken_ops.pass_begin = broken_pass_begin;
    broken_ops.step_wait = broken_step_wait;
    (*out)->ops = &broken_ops;
    return OK;
}

/* The passes that look for the layer are valid calls, and nothing but the requests with such
 * results fails. */
static int live_broken(const void *arg)
{
    struct bed *b = xcalloc(1, sizeof *b);
    struct err err = {0};
    fake_cuda_reset(1, *(const int32_t *)arg, (size_t)1 << 32);
    struct engine_options o = small(OWN);
    o.no_thread = true;
    o.open_backend = open_broken;
    b->broken = true;
    for (int32_t i = 0; i < MAX_PROMPT; i++) {
        b->prompt[i] = 3 + i * i * 7 % 290;
    }
    if (engine_open(&o, &b->e, &err) != OK) {
        CHECK_FAIL("%s", err.text);
        return 0;
    }
    serve(b, 90, 2);
    for (int32_t i = 0; i < N; i++) {
        CHECK_EQ(b->r[i].error, b->r[i].pool ? OK : ERR_NAN);
    }
    CHECK(b->e->broken.named);
    CHECK_EQ(b->e->broken.layer, 1);
    engine_stop_all(b->e);
    engine_close(b->e);
    host_check("broken", 1);
    free(b);
    return 0;
}

TEST(the_layer_of_results_that_are_not_numbers_is_found)
{
    for (const int32_t *sm = host_archs(); *sm; sm++) {
        host_in_child(live_broken, sm);
    }
}

TEST(a_call_without_memory_is_an_error_or_a_loss)
{
    lose_at_every_call(cudaErrorMemoryAllocation);
}

/* A pool of all memory leaves room for the code of kernels, which is loaded later. */
static int fill_device(const void *arg)
{
    enum { LEFT = 128 << 20 };
    struct bed *b = xcalloc(1, sizeof *b);
    struct err err = {0};
    size_t left = 0, all = 0;
    fake_cuda_reset(1, *(const int32_t *)arg, (size_t)780 << 20);
    struct engine_options o = small(OWN);
    o.no_thread = true;
    o.open_backend = host_open;
    o.num_gpu_blocks_override = 0;
    o.max_num_seqs = 1024;
    o.max_num_batched_tokens = 2048;
    o.gpu_memory_utilization = 1.0;
    if (engine_open(&o, &b->e, &err) != OK) {
        CHECK_FAIL("%s", err.text);
        return 0;
    }
    CHECK_EQ(cudaMemGetInfo(&left, &all), cudaSuccess);
    if (left < LEFT) {
        CHECK_FAIL("%zu MB of %zu are left", left >> 20, all >> 20);
    }
    CHECK(b->e->info.n_blocks < o.max_num_seqs * b->e->info.max_model_len / o.block_size);
    engine_stop_all(b->e);
    engine_close(b->e);
    host_check("a full device", 1);
    free(b);
    return 0;
}

TEST(a_pool_of_all_memory_leaves_some_for_what_is_loaded_later)
{
    for (const int32_t *sm = host_archs(); *sm; sm++) {
        host_in_child(fill_device, sm);
    }
}

int main(int argc, char **argv)
{
    host_load_nccl();
    return check_main(argc, argv);
}

#endif
