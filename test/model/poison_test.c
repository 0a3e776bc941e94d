// SPDX-License-Identifier: Apache-2.0
/* The engine on the CPU with real weights. After every turn all stale memory becomes NaN: free
 * blocks and pages of windows, slots of rejected drafts and of nodes off the path, and rows not yet
 * computed, in every KV set. The answers must be those of an engine without drafts, without pages
 * of windows, and without poison. */
#include "cpu/cpu.h"
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"
#include "engine/engine_state.h"
#include "test/check.h"

/* The second model is sparse: its indexers have keys, too. The last ones have layers with windows
 * of 24 positions or chunks of 32. `make seeded` draws their weights. */
#define DENSE "test/golden/llama-3"
#define SPARSE "build/golden-families/glm-5"
#define WINDOWED "build/golden/gpt-oss"
#define CHUNKED "build/golden-families/llama-4"
#define STRANGER "test/golden/llama-tied"

enum { N = 6, MAX_N = 2, MAX_PROMPT = 80, MAX_OUT = 40, BLOCK = 8, N_BLOCKS = 18, N_PAGES = 30 };

/* An engine, its requests, and for each slot of a set whether it may be read. */
struct bed {
    struct engine *e;
    struct engine_request r[N];
    struct engine_output outputs[N][MAX_N];
    int32_t prompt[N][MAX_PROMPT], tokens[N][MAX_N][MAX_OUT];
    int32_t n_done;
    int64_t n_poisoned, n_accepted;
    bool has_pages;
    bool *keep[MAX_KV_SETS]; // [n_blocks * block_tokens]
    bool *keep_pages;        // [N_PAGES * block_tokens], in set 0
};

static enum status open_cpu(const struct backend_options *options, struct backend **out,
                            struct err *err, void *arg)
{
    struct backend_options o = *options;
    o.comm = arg;
    return cpu_open(&o, out, err);
}

/* ---- what must not be poisoned --------------------------------------------------------------- */

/* Slots of the positions [first, end) of a sequence. */
static void keep_slots(struct bed *b, int32_t set, const struct sequence *q, int32_t first,
                       int32_t end)
{
    struct scheduler *s = &b->e->scheduler;
    int32_t size = s->limits.block_tokens;
    end = lesser(end, q->n_blocks * size);
    for (int32_t pos = first; pos < end; pos++) {
        b->keep[set][holdings_blocks(&s->holdings, q)[pos / size] * size + pos % size] = true;
    }
}

static void keep_in_window(struct bed *b, const struct sequence *q, int32_t first, int32_t end)
{
    struct scheduler *s = &b->e->scheduler;
    int32_t size = s->limits.block_tokens, from = q->page_first * size;
    end = lesser(end, q->page_end * size);
    for (int32_t pos = greater(first, from); s->limits.n_pages > 0 && pos < end; pos++) {
        b->keep_pages[holdings_pages(&s->holdings, q)[pos / size] * size + pos % size] = true;
    }
}

/* The pages of valid blocks, and those that the next step copies. */
static void find_kept_pages(struct bed *b)
{
    struct scheduler *s = &b->e->scheduler;
    const struct held_windows *w = &s->holdings.windows;
    size_t size = (size_t)s->limits.block_tokens;
    memset(b->keep_pages, 0, N_PAGES * size);
    for (int32_t i = 0; s->limits.n_pages > 0 && i < s->limits.n_blocks; i++) {
        bool copied = false;
        for (int32_t k = 0; k < s->holdings.n_pending_forks; k++) {
            const struct pending_fork *f = &s->holdings.pending_forks[k];
            copied |= f->has_copy && f->copy.from == i;
        }
        if (w->page_of[i] >= 0 && (copied || s->holdings.cache.nodes[i].state == NODE_VALID)) {
            memset(b->keep_pages + (size_t)w->page_of[i] * size, 1, size);
        }
    }
}

static void keep_block(struct bed *b, int32_t set, int32_t block)
{
    int32_t size = b->e->scheduler.limits.block_tokens;
    memset(b->keep[set] + block * size, 1, (size_t)size);
}

/* Slots that must keep their content: valid blocks of the cache, computed positions of
 * sequences, and sources of copies and moves of the next step. */
static void find_kept(struct bed *b, int32_t n_sets)
{
    struct scheduler *s = &b->e->scheduler;
    const struct tree_moves *m = &b->e->moves;
    size_t n = (size_t)s->limits.n_blocks * (size_t)s->limits.block_tokens;
    find_kept_pages(b);
    for (int32_t set = 0; set < n_sets; set++) {
        memset(b->keep[set], 0, n);
        for (int32_t i = 0; i < s->limits.n_blocks; i++) {
            bool valid = s->holdings.cache.nodes[i].state == NODE_VALID;
            if (set == 0 ? valid : s->holdings.draft_valid[i]) {
                keep_block(b, set, i);
            }
        }
        for (int32_t i = 0; i < s->holdings.n_pending_forks; i++) { // the next step copies these
                                                                    // blocks
            const struct pending_fork *f = &s->holdings.pending_forks[i];
            if (f->has_copy) {
                keep_block(b, set, f->copy.from);
            }
        }
    }
    for (const struct sequence *q = s->order.next; q != &s->order; q = q->next) {
        for (int32_t set = 0; set < n_sets && q->lane >= 0; set++) {
            bool judged = q->n_verifying > 0; // drafts in flight are judged by the step's results
            keep_slots(b, set, q, 0, set == 0 || judged ? q->n_computed : q->draft_computed);
        }
        keep_in_window(b, q, 0, q->n_computed);
    }
    for (int32_t set = 0; set < n_sets; set++) {
        for (int32_t i = 0; i < m->n_moves[set]; i++) {
            const struct slot_move *move = &m->moves[set][i];
            for (const struct sequence *q = s->order.next; q != &s->order; q = q->next) {
                if (q->lane == move->lane) {
                    keep_slots(b, set, q, move->from, move->from + 1);
                    keep_in_window(b, q, move->from, set == 0 ? move->from + 1 : 0);
                }
            }
        }
    }
}

/* Writes NaN to every other slot of this rank. Pages are bf16, with K by dimension and V
 * by token. */
static void poison(struct bed *b, int32_t rank, int32_t n_sets)
{
    struct cpu_backend *cpu = cpu_of(b->e->ranks.rank[rank].be);
    int32_t size = cpu->limits.block_tokens;
    for (int32_t set = 0; set < n_sets; set++) {
        for (int32_t l = 0; l < cpu->kv_sets[set].n_layers; l++) {
            const struct kv_pages *p = &cpu->kv_sets[set].layers[l];
            CHECK_EQ(p->dtype, DT_BF16);
            const bool *keep = p->geometry.windowed ? b->keep_pages : b->keep[set];
            for (int32_t at = 0; at < p->n_pages * size; at++) {
                char *block = p->base + (size_t)(at / size) * p->block_bytes;
                for (int32_t h = 0; h < p->geometry.n_kv_heads && !keep[at]; h++) {
                    char *head = block + (size_t)h * p->head_bytes;
                    uint16_t *k = (uint16_t *)(void *)(head + p->k.at);
                    uint16_t *v = (uint16_t *)(void *)(head + p->v.at) + at % size * p->v_stride;
                    for (int32_t d = 0; d < p->geometry.head_dim_k; d++) {
                        k[d * size + at % size] = 0x7FC0;
                    }
                    for (int32_t d = 0; d < p->geometry.head_dim_v && !p->geometry.v_in_k; d++) {
                        v[d] = 0x7FC0;
                    }
                    b->n_poisoned++;
                }
            }
        }
    }
}

/* ---- a run -------------------------------------------------------------------------------- */

/* Common prefixes, so that blocks are shared between sequences. */
static void make_request(struct bed *b, int32_t i)
{
    struct engine_request *r = &b->r[i];
    r->n_prompt = 11 + 13 * i;
    for (int32_t k = 0; k < r->n_prompt; k++) { // longer prompts share their beginning
        b->prompt[i][k] = 3 + (k * k * 7 + (k > 20 ? i : 0)) % 300;
    }
    r->prompt = b->prompt[i];
    r->params = sampling_params_default();
    r->params.temperature = i % 2 ? 1.0f : 0.0f;
    r->params.repetition_penalty = i % 3 ? 1.0f : 1.2f;
    r->params.seed = (uint64_t)i;
    r->params.max_tokens = MAX_OUT;
    r->n = i % 4 == 3 ? MAX_N : 1;
    r->outputs = b->outputs[i];
    for (int32_t s = 0; s < r->n; s++) {
        b->outputs[i][s].tokens = b->tokens[i][s];
    }
}

/* Counts accepted drafts: without any the test would prove less. */
static void on_event(struct engine_request *r, void *arg)
{
    struct bed *b = arg;
    b->n_done += r->done;
    if (r->done) {
        b->n_accepted += r->n_accepted;
    }
}

/* Poisons after every turn. A NaN that is read reaches the logits and changes the answer. */
static struct bed *run(const char *model, const char *config, int32_t n_ranks, bool poisoned)
{
    struct bed *b = xcalloc(1, sizeof *b);
    struct err err;
    struct comm *comm = n_ranks > 1 ? cpu_comm_create(n_ranks) : NULL;
    struct engine_options o = {.model = model,
                               .open_backend = open_cpu,
                               .open_arg = comm,
                               .no_thread = true,
                               .enable_prefix_caching = true,
                               .enable_chunked_prefill = true,
                               .block_size = BLOCK,
                               .num_gpu_blocks_override = N_BLOCKS,
                               .window_pages = poisoned ? N_PAGES : 0,
                               .disable_hybrid_kv_cache_manager = !poisoned,
                               .max_num_seqs = 5,
                               .max_num_batched_tokens = 61,
                               .speculative_config = config,
                               .tensor_parallel_size = n_ranks,
                               .backend.threads = 1};
    if (engine_open(&o, &b->e, &err) != OK) {
        CHECK_FAIL("open: %s", err.text);
        return b;
    }
    b->keep_pages = xcalloc(N_PAGES * BLOCK, sizeof(bool));
    for (int32_t set = 0; set < MAX_KV_SETS; set++) {
        b->keep[set] = xcalloc(N_BLOCKS * BLOCK, sizeof(bool));
    }
    int32_t n_sets = 1 + b->e->spec.options.n_models;
    for (int32_t turn = 0; turn < 3000 && b->n_done < N; turn++) {
        if (turn % 2 == 0 && turn / 2 < N) {
            make_request(b, turn / 2);
            CHECK_EQ(engine_submit(b->e, &b->r[turn / 2], &err), OK);
        }
        if (poisoned) {
            find_kept(b, n_sets);
        }
        for (int32_t rank = 0; poisoned && rank < n_ranks; rank++) {
            poison(b, rank, n_sets);
        }
        engine_turn(b->e);
        scheduler_check(&b->e->scheduler);
        engine_drain(b->e, on_event, b);
    }
    CHECK_EQ(b->n_done, N);
    CHECK(!poisoned || b->e->scheduler.n_preemptions > 0);
    b->has_pages = b->e->scheduler.limits.n_pages > 0;
    engine_stop_all(b->e);
    engine_drain(b->e, on_event, b);
    engine_close(b->e);
    if (comm) {
        cpu_comm_destroy(comm);
    }
    return b;
}

static void finish(struct bed *b)
{
    for (int32_t set = 0; set < MAX_KV_SETS; set++) {
        free(b->keep[set]);
    }
    free(b->keep_pages);
    free(b);
}

/* Each kind of speculation leaves different slots unused. */
#define CONFIGS(own)                                                                               \
    {NULL,                                                                                         \
     "{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"prompt_lookup_min\":1,\"fixed\":true}", \
     "{\"method\":\"draft_model\",\"model\":\"" own                                                \
     "\",\"num_speculative_tokens\":3,\"fixed\":true}",                                            \
     "{\"method\":\"draft_model\",\"model\":\"" STRANGER                                           \
     "\",\"num_speculative_tokens\":2,\"fixed\":true}",                                            \
     "{\"method\":\"tree\",\"model\":\"" own "\",\"expansion\":[1,3,1],\"fixed\":true}",           \
     "{\"method\":\"tree\",\"model\":\"" STRANGER "\",\"expansion\":[4,2],\"fixed\":true}",        \
     "{\"method\":\"tree\",\"model\":[\"" STRANGER "\",\"" own                                     \
     "\"],\"num_speculative_tokens\":4,\"tree_nodes\":30,\"prompt_lookup_max\":3,\"fixed\":true}"}
enum { N_CONFIGS = 7 };

static void try_configs(const char *model, const char *const *configs)
{
    struct bed *plain = run(model, NULL, 1, false);
    for (size_t i = 0; i < 2 * N_CONFIGS && check_failures == 0; i++) {
        const char *config = configs[i / 2];
        struct bed *b = run(model, config, 1 + (int32_t)(i % 2), true);
        CHECK(b->n_poisoned > 10000);
        CHECK_EQ(b->has_pages, strcmp(model, WINDOWED) == 0 || strcmp(model, CHUNKED) == 0);
        CHECK(!config || !strstr(config, model) || b->n_accepted > 50);
        for (int32_t r = 0; r < N; r++) {
            for (int32_t s = 0; s < plain->r[r].n; s++) {
                CHECK_EQ(b->outputs[r][s].n_tokens, MAX_OUT);
                CHECK_MEM(b->tokens[r][s], plain->tokens[r][s], sizeof plain->tokens[r][s]);
            }
        }
        if (check_failures > 0) {
            printf("%s, config %zu: %s\n", model, i, config ? config : "none");
        }
        finish(b);
    }
    finish(plain);
}

TEST(nan_in_every_slot_that_holds_nothing_changes_no_answer)
{
    static const char *const dense[N_CONFIGS] = CONFIGS(DENSE);
    static const char *const sparse[N_CONFIGS] = CONFIGS(SPARSE);
    static const char *const windowed[N_CONFIGS] = CONFIGS(WINDOWED);
    static const char *const chunked[N_CONFIGS] = CONFIGS(CHUNKED);
    try_configs(WINDOWED, windowed);
    try_configs(CHUNKED, chunked);
    try_configs(DENSE, dense);
    try_configs(SPARSE, sparse);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
