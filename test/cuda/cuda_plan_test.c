// SPDX-License-Identifier: Apache-2.0
/* The attention plan, which the host makes. Deterministic trees: each row is in one tile, which
 * shows it the keys of a plain run in order, through a lane of its own. Prompts: the units are
 * balanced, and codes are expanded where memory allows. Needs CUDA's headers, but no device. */
#include "engine/base/minmax.h"
#include "test/cuda/cuda_pass.h"

#ifdef SLUICE_CUDA
#include "cuda/attention_plan.h"
#include "cuda/cuda_kv.h"

enum { N_ROWS = 512 };

static const struct attention_limits limits = {.max_rows = N_ROWS,
                                               .max_lanes = 24,
                                               .max_len = 1024,
                                               .block_tokens = 16,
                                               .n_sms = 132,
                                               .sm = 90,
                                               .deterministic = true,
                                               .max_paths = 64,
                                               .shapes = {{8, 2, 128}, {8, 2, 128}}};

/* The plan as a kernel sees it: one block of memory with offsets. */
struct plan {
    struct attention_plan_head *head;
    const struct attention_path *paths;
    const struct attention_item *items;
};

/* The size that attention_plan_bytes names must suffice. */
static struct plan make_plan(const struct attention_limits *l, const struct pass *pass)
{
    const size_t n_bytes = attention_plan_bytes(l, l->max_rows);
    size_t used = 0;
    struct plan p = {.head = xcalloc(1, n_bytes)};
    CHECK_EQ(attention_plan(l, pass, l->max_rows, p.head, &used), OK);
    CHECK(used <= n_bytes);
    p.paths = (const void *)((const char *)p.head + p.head->paths_offset);
    p.items = (const void *)((const char *)p.head + p.head->items_offset);
    return p;
}

static bool sees(const struct test_pass *t, int32_t row, int32_t node)
{
    return t->tree_mask[(size_t)row * TREE_MASK_WORDS + (size_t)node / 64] >> (node % 64) & 1;
}

/* A tile of the sequence reads the new keys of `lane`: its own, or one that a path is copied to.
 * Returns the node whose key is number k of these; -1: none. */
static int32_t node_at(const struct test_pass *t, const struct plan *p, const struct pass_seq *s,
                       int32_t lane, int32_t k)
{
    if (lane == s->lane) {
        return k;
    }
    const struct attention_path *path = &p->paths[lane - limits.max_lanes - 1];
    CHECK_EQ(path->lane, s->lane);
    CHECK_EQ(path->n_past, s->n_past);
    for (int32_t node = 0; node < s->n_rows; node++) {
        if (sees(t, path->row, node) && k-- == 0) {
            return node;
        }
    }
    return -1;
}

/* Checks that in all its tiles together a row sees each slot once, up to its own. */
static void check_row(const struct test_pass *t, const struct plan *p, const struct pass_seq *s,
                      int32_t row)
{
    int32_t next = 0, want[MAX_TREE_NODES], n = 0;
    for (int32_t node = 0; node < s->n_rows; node++) {
        if (s->tree ? sees(t, row, node) : node <= row - s->first_row) {
            want[n++] = node;
        }
    }
    for (bool found = true; found;) {
        found = false;
        for (int32_t i = 0; i < p->head->n_items; i++) {
            const struct attention_item *item = &p->items[i];
            if (row < item->first_row || row >= item->first_row + item->n_rows ||
                item->kv_begin != next) {
                continue;
            }
            found = true;
            CHECK(item->mask == ATTENTION_CAUSAL || item->mask == ATTENTION_ALL);
            const int32_t sight = item->n_past + row - item->seq_row + 1;
            next = lesser(item->kv_end, sight);
            for (int32_t at = greater(item->kv_begin, s->n_past); at < next; at++) {
                CHECK_EQ(node_at(t, p, s, item->lane, at - s->n_past), want[at - s->n_past]);
            }
            if (next < item->kv_end || next == sight) {
                CHECK_EQ(next, s->n_past + n);
                return;
            }
            break;
        }
    }
    CHECK_FAIL("row %d sees %d keys of %d", row, next, s->n_past + n);
}

/* Random trees with pasts around block edges; no row may be in two tiles or miss a key. */
TEST(every_row_of_a_tree_finds_the_keys_of_a_plain_run)
{
    static struct test_pass t;
    const struct seq_spec specs[] = {{60, 25, true}, {505, 19, true}, {7, 1, false},
                                     {600, 1, true}, {33, 40, false}, {511, 12, true}};
    for (uint64_t seed = 0; seed < 50; seed++) {
        pass_of(&t, specs, 6, false, seed);
        struct plan p = make_plan(&limits, &t.pass);
        CHECK(p.head->n_paths > 10 && p.head->n_paths <= limits.max_paths);
        for (int32_t i = 0; i < t.pass.n_seqs; i++) {
            for (int32_t r = 0; r < t.seqs[i].n_rows; r++) {
                check_row(&t, &p, &t.seqs[i], t.seqs[i].first_row + r);
            }
        }
        free(p.head);
    }
}

/* The rows of an encoder see all keys of their sequence, of which the pass itself stores each. */
TEST(every_row_of_an_encoder_finds_all_keys_once)
{
    static struct test_pass t;
    const struct seq_spec specs[] = {{0, 1, false}, {0, 400, false}, {0, 63, false}};
    pass_of(&t, specs, 3, false, 5);
    t.pass.bidirectional = true;
    struct plan p = make_plan(&limits, &t.pass);
    for (int32_t row = 0; row < t.pass.n_rows; row++) {
        int32_t n_keys = 0, seq = 0;
        while (row >= t.seqs[seq].first_row + t.seqs[seq].n_rows) {
            seq++;
        }
        for (int32_t i = 0; i < p.head->n_items; i++) {
            const struct attention_item *item = &p.items[i];
            if (row >= item->first_row && row < item->first_row + item->n_rows) {
                CHECK_EQ(item->mask, ATTENTION_BOTH);
                CHECK_EQ(item->lane, t.seqs[seq].lane);
                CHECK_EQ(item->n_past, 0);
                n_keys += item->kv_end - item->kv_begin;
            }
        }
        CHECK_EQ(n_keys, t.seqs[seq].n_rows);
    }
    free(p.head);
}

/* In other KV sets, and where there is no room for additional lanes, trees are computed with
 * their masks: the result is correct, but does not have the bits of a plain run. */
TEST(trees_without_paths_are_computed_with_masks)
{
    static struct test_pass t;
    const struct seq_spec specs[] = {{60, 25, true}, {505, 19, true}};
    pass_of(&t, specs, 2, false, 3);
    struct attention_limits few = limits;
    few.max_paths = 2;
    for (int32_t how = 0; how < 2; how++) {
        t.pass.kv_set = how;
        struct plan p = make_plan(how == 0 ? &few : &limits, &t.pass);
        CHECK_EQ(p.head->n_paths, 0);
        for (int32_t i = 0; i < p.head->n_items; i++) {
            CHECK_EQ(p.items[i].mask, ATTENTION_TREE);
        }
        free(p.head);
    }
}

/* The number of key tiles of the busiest block, when units are dealt out as in the kernels, in
 * alternating direction. */
static int32_t most_tiles(const struct plan *p, int32_t n_blocks, int32_t n_kv_heads)
{
    int32_t most = 0;
    for (int32_t b = 0; b < n_blocks; b++) {
        int32_t n = 0;
        for (int32_t k = 0; k * n_blocks < p->head->n_items * n_kv_heads; k++) {
            const int32_t unit = k * n_blocks + (k % 2 ? n_blocks - 1 - b : b);
            if (unit < p->head->n_items * n_kv_heads) {
                const struct attention_item *i = &p->items[unit / n_kv_heads];
                n += (i->kv_end - i->kv_begin + ATTENTION_KV_TILE - 1) / ATTENTION_KV_TILE;
            }
        }
        most = greater(n, most);
    }
    return most;
}

/* A causal prompt's rows have different numbers of keys, so equal shares of rows would be
 * unequal work. */
TEST(the_units_of_a_prompt_are_balanced)
{
    struct attention_limits l = {.max_rows = 1024,
                                 .max_lanes = 1,
                                 .max_len = 65536,
                                 .block_tokens = 32,
                                 .n_sms = 132,
                                 .sm = 90,
                                 .shapes = {{32, 8, 128}}};
    struct pass_seq seq = {.lane = 0, .first_row = 0, .n_rows = 1024, .n_past = 0};
    const struct pass pass = {.n_rows = 1024, .n_seqs = 1, .seqs = &seq};
    struct plan p = make_plan(&l, &pass);
    CHECK_EQ(attention_plan_facts(p.head).n_slots, 0);
    CHECK_EQ(most_tiles(&p, l.n_sms, 8), 9); // 1,152 tiles on 132 blocks
    free(p.head);
    /* Units are sorted by length, longest first, for any length of the prompt. */
    for (int32_t n_past = 0; n_past < 60000; n_past += 2500) {
        seq.n_past = n_past;
        p = make_plan(&l, &pass);
        for (int32_t i = 1; i < p.head->n_items; i++) {
            const int32_t keys = p.items[i].kv_end - p.items[i].kv_begin;
            CHECK(keys < p.items[i - 1].kv_end - p.items[i - 1].kv_begin + 2 * ATTENTION_KV_TILE);
        }
        free(p.head);
    }
}

/* Decoding rows beside a prompt: the items of the former come first, and every second block begins
 * at the end. A plan with hardly any work of one kind has the usual order. */
TEST(decoding_rows_and_prompts_are_processed_at_the_same_time)
{
    enum { N_DECODING = 64, PROMPT = 960 };
    const struct attention_limits l = {.max_rows = 1024,
                                       .max_lanes = N_DECODING + 1,
                                       .max_len = 65536,
                                       .block_tokens = 32,
                                       .n_sms = 132,
                                       .sm = 90,
                                       .shapes = {{32, 8, 128}}};
    for (int32_t n_past = 511; n_past >= 0; n_past -= 511) {
        struct pass_seq seqs[N_DECODING + 1];
        for (int32_t i = 0; i < N_DECODING; i++) {
            seqs[i] = (struct pass_seq){.lane = i, .first_row = i, .n_rows = 1, .n_past = n_past};
        }
        seqs[N_DECODING] = (struct pass_seq){
            .lane = N_DECODING, .first_row = N_DECODING, .n_rows = PROMPT, .n_past = 0};
        const struct pass pass = {
            .n_rows = N_DECODING + PROMPT, .n_seqs = N_DECODING + 1, .seqs = seqs};
        struct plan p = make_plan(&l, &pass);
        const bool mixed = n_past > 0;
        CHECK_EQ(p.head->both_ways, mixed);
        const int32_t first = mixed ? 0 : p.head->n_items - N_DECODING;
        int32_t n_rows = 0;
        for (int32_t i = 0; i < p.head->n_items; i++) {
            n_rows += p.items[i].n_rows;
            CHECK_EQ(p.items[i].n_rows == 1, i >= first && i < first + N_DECODING);
        }
        CHECK_EQ(n_rows, N_DECODING + PROMPT);
        free(p.head);
    }
}

/* One row over many keys is cut into pieces, and each needs a slot for its partial result. */
TEST(a_row_in_pieces_has_slots_to_join)
{
    const struct attention_limits l = {.max_rows = 1,
                                       .max_lanes = 1,
                                       .max_len = 65536,
                                       .block_tokens = 32,
                                       .n_sms = 132,
                                       .sm = 90,
                                       .shapes = {{32, 8, 128}}};
    const struct pass_seq seq = {.lane = 0, .first_row = 0, .n_rows = 1, .n_past = 2047};
    const struct pass pass = {.n_rows = 1, .n_seqs = 1, .seqs = &seq};
    struct plan p = make_plan(&l, &pass);
    CHECK_EQ(attention_plan_facts(p.head).n_slots, p.head->n_items);
    CHECK(p.head->n_items > 1);
    free(p.head);
}

// How many runs, with how many rows, are expanded if there are this many pages. The first run takes
// 107 pages, the next 7.
static const struct fitting {
    int32_t most_pages, n_runs, n_rows;
} fittings[] = {{7, 0, 0}, {107, 1, 100}, {114, 1, 700}, {150, 2, 800}};

static const struct fitting *fitting(int32_t n_pages)
{
    const struct fitting *f = fittings;
    while (n_pages >= f->most_pages) {
        f++;
    }
    return f;
}

/* Codes that many rows read are expanded to runs with pages of their own; those that few rows read
 * are read through the lane's own table. */
TEST(keys_that_many_rows_read_are_expanded)
{
    const struct kv_layer layer = {
        .n_heads = 32, .n_kv_heads = 8, .head_dim_k = 128, .head_dim_v = 128};
    const struct kv_set_desc set = {
        .n_layers = 1, .layers = &layer, .dtype = DT_BF16, .format = KV_INT4};
    const struct kv_view view = kv_view_make(&layer, &set, 16, 1, NULL);
    const struct pass_seq seqs[] = {{3, 0, 700, 1000, false, 0, 0},
                                    {1, 700, 1, 5000, false, 0, 0},
                                    {0, 701, 100, 0, false, 0, 0},
                                    {2, 801, 63, 20, false, 0, 0}};
    const struct pass pass = {.n_rows = 864, .n_seqs = 4, .seqs = seqs};
    for (int32_t n_pages = 0; n_pages < 150; n_pages++) {
        struct attention_limits l = {.max_rows = 1024,
                                     .max_lanes = 4,
                                     .max_len = 65536,
                                     .block_tokens = 16,
                                     .n_sms = 132,
                                     .sm = 90,
                                     .max_runs = 5,
                                     .run_bytes = (size_t)n_pages * 16 * 8 * 2 * 128 * 2};
        attention_learn(&l, 0, 32, &view);
        struct plan p = make_plan(&l, &pass);
        const struct attention_run *runs =
            (const void *)((const char *)p.head + p.head->runs_offset);
        const struct attention_plan_facts facts = attention_plan_facts(p.head);
        /* The first run takes 107 pages, the third takes seven. */
        CHECK_EQ(facts.n_runs, fitting(n_pages)->n_runs);
        CHECK(facts.has_others);
        int32_t n_run_rows = 0;
        for (int32_t i = 0; i < p.head->n_items; i++) {
            const struct attention_item *item = &p.items[i];
            const int32_t run = item->lane - l.max_lanes - 1;
            if (run < 0) {
                continue;
            }
            CHECK(run < facts.n_runs && item->n_past == runs[run].low_pos);
            CHECK(item->kv_begin >= runs[run].begin && item->kv_end <= runs[run].end);
            CHECK_EQ(runs[run].lane, item->first_row < 700 ? 3 : 0);
            if (item->kv_begin == 0) {
                n_run_rows += item->n_rows;
            }
        }
        CHECK_EQ(n_run_rows, fitting(n_pages)->n_rows);
        for (int32_t i = 0; i < facts.n_runs; i++) {
            CHECK(runs[i].first_page + (runs[i].end + 15) / 16 - runs[i].begin / 16 <= n_pages);
            CHECK_EQ(runs[i].first_page, i == 0 ? 0 : 107);
        }
        free(p.head);
    }
}
#else
TEST(every_row_of_a_tree_finds_the_keys_of_a_plain_run)
{
    SKIP("built without CUDA");
}
#endif

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
