// SPDX-License-Identifier: Apache-2.0
/* Random engines and loads on the fake device: bucket edges, odd budgets, few blocks, trees, ranks,
 * cancelled requests. FAKE_RUNS random lives (40) from FAKE_SEED (1); a failure names its seed. */
#include "engine/base/minmax.h"
#include "test/cuda/fake/host_bed.h"

#ifdef SLUICE_CUDA
#include "engine/base/mem.h"

enum {
    MAX_REQUESTS = 40,
    MAX_SAMPLES_HERE = 6,
    MAX_PROMPT = 700,
    MAX_OUT = 40,
    MAX_TURNS = 20000,
    MANY_LOGPROBS = 64
}; // more than a draw lists

/* A request with room for the largest answer. */
struct ask {
    struct engine_request r;
    struct engine_output outputs[MAX_SAMPLES_HERE];
    int32_t prompt[MAX_PROMPT], tokens[MAX_SAMPLES_HERE][MAX_OUT];
    struct token_logprobs logprobs[MAX_SAMPLES_HERE][MAX_OUT], prompt_logprobs[MAX_PROMPT];
};

/* One random engine from its options to its end. */
struct life {
    uint64_t random;
    struct engine *e;
    struct ask asks[MAX_REQUESTS];
    int32_t n_asks, n_done, n_failed;
    int32_t top_ids[MANY_LOGPROBS]; // shared by all requests, since nobody reads them
    float top_logprobs[MANY_LOGPROBS], pooled[1 << 23];
};

static int32_t pick(struct life *l, int32_t least, int32_t most)
{
    l->random = l->random * 6364136223846793005u + 1442695040888963407u;
    return least + (int32_t)((l->random >> 33) % (uint64_t)(most - least + 1));
}

static const char *pick_dtype(struct life *l)
{
    if (pick(l, 0, 2)) {
        return "bfloat16";
    }
    return pick(l, 0, 1) ? "float16" : "float32";
}

static const char *one_of(struct life *l, const char *const *all, size_t n)
{
    return all[pick(l, 0, (int32_t)n - 1)];
}
#define ONE_OF(l, all) one_of(l, all, sizeof all / sizeof all[0])

static void room_for_top(struct life *l, struct token_logprobs *lp, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        lp[i].top_ids = l->top_ids;
        lp[i].top_logprobs = l->top_logprobs;
    }
}

/* Prompts share prefixes of random lengths. */
static void make_request(struct life *l, struct ask *a, int32_t longest)
{
    struct engine_request *r = &a->r;
    const int32_t n_shared = pick(l, 0, longest), kind = pick(l, 0, 9);
    *r = (struct engine_request){.prompt = a->prompt, .n_prompt = pick(l, 1, longest), .n = 1};
    for (int32_t i = 0; i < r->n_prompt; i++) {
        a->prompt[i] = i < n_shared ? 3 + i % 200 : pick(l, 3, 300);
    }
    r->params = sampling_params_default();
    r->params.ignore_eos = true;
    r->params.temperature = pick(l, 0, 1) ? 0.7f : 0.0f;
    r->params.max_tokens = pick(l, 1, MAX_OUT);
    r->params.top_k = pick(l, 0, 3) ? 0 : 40;
    r->params.top_p = pick(l, 0, 3) ? 1.0f : 0.8f;
    r->params.repetition_penalty = pick(l, 0, 3) ? 1.0f : 1.3f;
    r->params.presence_penalty = pick(l, 0, 3) ? 0.0f : 0.5f;
    if (kind == 0) {
        r->pool = (enum pool_kind)pick(l, POOL_LAST, POOL_TOKENS);
        r->pooled = l->pooled;
        r->params.max_tokens = 0;
        return;
    }
    r->n = kind == 1 ? pick(l, 2, MAX_SAMPLES_HERE) : 1;
    r->outputs = a->outputs;
    r->params.logprobs = kind == 2;
    if (kind == 2) {
        r->params.top_logprobs = pick(l, 0, 1) ? pick(l, 0, MAX_TOP_LOGPROBS) : MANY_LOGPROBS;
    } else {
        r->params.top_logprobs = 0;
    }
    r->params.prompt_logprobs = kind == 3;
    r->params.prompt_top_logprobs = kind == 3 && pick(l, 0, 1) ? MANY_LOGPROBS : 0;
    r->prompt_logprobs = kind == 3 ? a->prompt_logprobs : NULL;
    room_for_top(l, a->prompt_logprobs, r->n_prompt);
    for (int32_t s = 0; s < r->n; s++) {
        a->outputs[s].tokens = a->tokens[s];
        a->outputs[s].logprobs = kind == 2 ? a->logprobs[s] : NULL;
        room_for_top(l, a->logprobs[s], MAX_OUT);
    }
}

static void on_event(struct engine_request *r, void *arg)
{
    struct life *l = arg;
    l->n_done += r->done;
    l->n_failed += r->done && r->error != OK;
}

/* Families, ranks, budgets and speculation are independent of each other, so pairs occur
 * that nobody would write a test for. */
static struct engine_options random_options(struct life *l, char *dir, size_t n_bytes)
{
    static const char *const families[] = {
        "llama-3",    "gemma-2",     "gemma-3",         "mixtral",    "deepseek-v3",
        "gpt-oss",    "qwen3-moe",   "phi-3",           "smollm-3",   "stablelm-2",
        "glm4",       "granite",     "olmo-2",          "starcoder2", "qwen2",
        "llama-yarn", "mistral",     "gemma",           "qwen3",      "deepseek-v2",
        "qwen3.5",    "kimi-linear", "nemotron-3-nano", "lfm2-moe",   "gemma-4-e",
        "llama-4",    "gpt2",        "falcon",          "gpt-neox",   "gemma-3n"};
    static const char *const configs[] = {
        NULL,
        NULL,
        "{\"method\":\"ngram\",\"num_speculative_tokens\":5,\"prompt_lookup_min\":1,"
        "\"fixed\":true}",
        "{\"method\":\"draft_model\",\"model\":\"test/golden/llama-tied\","
        "\"num_speculative_tokens\":3,\"fixed\":true}",
        "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\",\"expansion\":[4,2,2],"
        "\"fixed\":true}",
        "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\",\"num_speculative_tokens\":4,"
        "\"tree_nodes\":30,\"fixed\":true}",
    };
    static const int32_t sizes[] = {8, 16, 32, 64, 128};
    const char *config = ONE_OF(l, configs);
    host_family(dir, n_bytes, config ? "llama-3" : ONE_OF(l, families));
    const int32_t block = sizes[pick(l, 0, 4)];
    return (struct engine_options){
        .model = dir,
        .open_backend = host_open,
        .no_thread = true,
        .dtype = pick_dtype(l),
        .speculative_config = config,
        .block_size = block,
        .num_gpu_blocks_override = (pick(l, 200, 2000) + block - 1) / block + 1,
        .max_num_seqs = pick(l, 1, 40),
        .max_num_batched_tokens = pick(l, 1, 3) == 1 ? pick(l, 64, 80) : pick(l, 64, 700),
        .enable_prefix_caching = pick(l, 0, 4) != 0,
        .enable_chunked_prefill = pick(l, 0, 6) != 0,
        .tensor_parallel_size = pick(l, 0, 3) ? 1 : 2,
        .backend = {.deterministic = pick(l, 0, 2) == 0, .enforce_eager = pick(l, 0, 4) == 0}};
}

/* Requests arrive at random times; some are cancelled. */
static void serve(struct life *l, int32_t longest)
{
    struct err err;
    const int32_t n = pick(l, 1, MAX_REQUESTS), pause = pick(l, 0, 4);
    for (int32_t turn = 0, left = 3; turn < MAX_TURNS && left > 0; turn++) {
        left -= l->n_asks == n && l->n_done == n;
        while (l->n_asks < n && pick(l, 0, pause) == 0) {
            struct ask *a = &l->asks[l->n_asks++];
            make_request(l, a, longest);
            if (engine_submit(l->e, &a->r, &err) != OK) { // for example because it is too long for
                                                          // the pool
                a->r.done = true;
                l->n_done++;
            }
        }
        if (l->n_asks > 0 && pick(l, 0, 30) == 0) {
            struct engine_request *r = &l->asks[pick(l, 0, l->n_asks - 1)].r;
            if (!r->done) {
                engine_cancel(l->e, r);
            }
        }
        engine_turn(l->e);
        engine_drain(l->e, on_event, l);
    }
    CHECK_EQ(l->n_done, n);
    CHECK_EQ(l->n_failed, 0);
}

/* Random options may be refused only because too few KV blocks are left. */
static int random_life(const void *arg)
{
    const uint64_t seed = *(const uint64_t *)arg;
    const int32_t *archs = host_archs();
    struct life *l = xcalloc(1, sizeof *l);
    struct err err = {0};
    char dir[64], what[160];
    l->random = seed * 0x9e3779b97f4a7c15u;
    fake_cuda_reset(2, archs[1] && pick(l, 0, 3) ? archs[1] : archs[0], (size_t)1 << 33);
    fake_cuda_has_products(pick(l, 0, 5) > 0);
    struct engine_options o = random_options(l, dir, sizeof dir);
    snprintf(what, sizeof what, "FAKE_SEED=%" PRIu64 ": %s", seed, dir);
    host_open_ranks(&o);
    if (engine_open(&o, &l->e, &err) == OK) {
        const int32_t most = engine_info(l->e)->max_model_len - MAX_OUT - 1;
        serve(l, most < 1 ? 1 : lesser(most, MAX_PROMPT));
        engine_stop_all(l->e);
        engine_drain(l->e, on_event, l);
        engine_close(l->e);
    } else if (!strstr(err.text, "KV blocks") && !strstr(err.text, "it must divide 64")) {
        CHECK_FAIL("%s: %s", what, err.text);
    }
    cuda_comm_destroy(o.backend.comm);
    host_check(what, 1);
    if (check_failures > 0) {
        printf("%s\n", what);
    }
    free(l);
    return 0;
}

static uint64_t from_env(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);
    if (s) {
        return strtoull(s, NULL, 10);
    }
    return otherwise;
}

TEST(random_loads_make_only_valid_calls)
{
    const uint64_t first = from_env("FAKE_SEED", 1), n = from_env("FAKE_RUNS", 40);
    for (uint64_t seed = first; seed < first + n; seed++) {
        host_in_child(random_life, &seed);
    }
}

int main(int argc, char **argv)
{
    host_load_nccl();
    return check_main(argc, argv);
}

#endif
