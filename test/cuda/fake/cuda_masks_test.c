// SPDX-License-Identifier: Apache-2.0
/* The draws of each pass find the right masks on the device, wherever the cache has put them,
 * although each pass's masks are at the same address on the host and later passes are sent before
 * earlier ones run. A mask that is on the device is not sent again. */
#include "test/cuda/fake/host_bed.h"

#ifdef SLUICE_CUDA
#include "cuda/cuda_backend.h"
#include "engine/base/rng.h"

enum { VOCAB = 1000, N_WORDS = (VOCAB + 31) / 32, MAX_MASKS = 40, MAX_PASSES = 4000 };

static struct backend *backend;
static struct sent_pass {
    int32_t n, mask[MAX_MASKS]; // numbers of masks
} passes[MAX_PASSES];
static int32_t n_passes, n_read;
static uint32_t n_drawn;

static int32_t pick(int32_t least, int32_t most)
{
    return least + (int32_t)(rng_bits(9, 0, RNG_TEST, n_drawn++) % (uint32_t)(most - least + 1));
}

static void write_mask(int32_t number, uint32_t *words)
{
    for (int32_t w = 0; w < N_WORDS; w++) {
        words[w] = (uint32_t)rng_bits(7, number, RNG_TEST, (uint32_t)w);
    }
}

/* A kernel that is launched after the masks of a pass were sent, in place of the sampler. */
static void read_masks(dim3 grid, const void *const *args)
{
    const struct draw_masks *m = &cuda_backend_of(backend)->passes.masks;
    const struct sent_pass *p = &passes[n_read++];
    (void)grid;
    (void)args;
    for (int32_t i = 0; i < p->n; i++) {
        uint32_t expected[N_WORDS];
        const int32_t slot = m->slots[i];
        write_mask(p->mask[i], expected);
        REQUIRE(slot >= 0 && slot < m->n_slots);
        CHECK_MEM(m->words + (size_t)slot * N_WORDS, expected, sizeof expected);
    }
}

static void open_backend(void)
{
    static const size_t arg_bytes[] = {sizeof(void *), sizeof(void *)};
    struct err err = {0};
    const struct backend_options o = {.dtype = DT_BF16, .n_ranks = 1};
    const struct backend_limits limits = {.max_rows = 64,
                                          .max_out_rows = 64,
                                          .max_lanes = 4,
                                          .max_len = 1 << 10,
                                          .max_blocks_per_lane = 16,
                                          .n_blocks = 100,
                                          .block_tokens = 64,
                                          .vocab = VOCAB,
                                          .hidden = 64,
                                          .n_steps = 2,
                                          .max_passes = 3,
                                          .max_masks = MAX_MASKS};
    fake_cuda_reset(1, host_archs()[0], (size_t)1 << 32);
    fake_cuda_emulate("patch_kernel", 2, arg_bytes, read_masks);
    if (cuda_open(&o, &backend, &err) != OK || backend->ops->setup(backend, &limits, &err) != OK) {
        printf("open: %s\n", err.text);
        exit(1);
    }
    n_passes = n_read = 0;
}

/* A pass's masks, then an update of a lane, which launches the kernel. */
static void send(const struct sent_pass *p)
{
    static uint32_t words[MAX_MASKS * N_WORDS]; // the same memory for all passes
    struct cuda_backend *be = cuda_backend_of(backend);
    const int32_t token = n_passes;
    REQUIRE(n_passes < MAX_PASSES);
    passes[n_passes++] = *p;
    for (int32_t i = 0; i < p->n; i++) {
        write_mask(p->mask[i], words + (size_t)i * N_WORDS);
    }
    CHECK_EQ(draw_masks_send(&be->passes.masks, &be->lanes, words, p->n), OK);
    memset(words, 0xa5, sizeof words);
    CHECK_EQ(backend->ops->lane_tokens(backend, 0, 0, 1, &token), OK);
    CHECK_EQ(lanes_flush(&be->lanes), OK);
}

/* Sends n passes, up to three in a step, with two steps at once. Returns how many masks were sent
 * for them. */
static uint64_t run_passes(int32_t n, void (*choose)(struct sent_pass *p, int32_t index))
{
    struct pass_results results[3];
    const struct draw_masks *m = &cuda_backend_of(backend)->passes.masks;
    const uint64_t before = m->n_sent;
    for (int32_t i = 0, step = 0; i < n; step++) {
        CHECK_EQ(backend->ops->step_begin(backend, step % 2), OK);
        for (int32_t more = pick(1, 3); more > 0 && i < n; more--, i++) {
            struct sent_pass p = {0};
            choose(&p, i);
            send(&p);
        }
        CHECK_EQ(backend->ops->step_end(backend), OK);
    }
    CHECK_EQ(backend->ops->step_wait(backend, 0, results, 3), OK);
    CHECK_EQ(backend->ops->step_wait(backend, 1, results, 3), OK);
    CHECK_EQ(n_read, n_passes);
    return m->n_sent - before;
}

/* Some of 300 masks, often the same ones at the same places. */
static void choose_few(struct sent_pass *p, int32_t index)
{
    p->n = index == 0 ? 0 : pick(1, MAX_MASKS);
    for (int32_t i = 0; i < p->n; i++) {
        p->mask[i] = pick(0, 1) ? i : pick(0, 299);
    }
}

/* One mask that all passes have, among masks that occur only once. */
static void choose_new(struct sent_pass *p, int32_t index)
{
    p->n = MAX_MASKS;
    for (int32_t i = 0; i < p->n; i++) {
        p->mask[i] = i == index % p->n ? 1000 : 1001 + index * MAX_MASKS + i;
    }
}

/* More masks than there is room for, each used again and again. */
static void choose_many(struct sent_pass *p, int32_t index)
{
    (void)index;
    p->n = pick(1, MAX_MASKS);
    for (int32_t i = 0; i < p->n; i++) {
        p->mask[i] = pick(100000, 109999);
    }
}

/* Exactly as many masks as there is room for, one after another in turn. */
static void choose_all(struct sent_pass *p, int32_t index)
{
    const int32_t n_slots = cuda_backend_of(backend)->passes.masks.n_slots;
    p->n = MAX_MASKS;
    for (int32_t i = 0; i < p->n; i++) {
        p->mask[i] = 200000 + (index * MAX_MASKS + i) % n_slots;
    }
}

static int32_t mask_in(const struct draw_masks *m, int32_t slot)
{
    uint32_t words[N_WORDS];
    for (int32_t k = 0; k < m->n_slots; k++) {
        write_mask(200000 + k, words);
        if (memcmp(m->copies + (size_t)slot * N_WORDS, words, sizeof words) == 0) {
            return 200000 + k;
        }
    }
    return -1;
}

/* Half of the pass's masks are in the slots that would be replaced next; the others are new. All
 * slots have been used equally recently. */
static void choose_next(struct sent_pass *p, int32_t index)
{
    const struct draw_masks *m = &cuda_backend_of(backend)->passes.masks;
    p->n = MAX_MASKS;
    for (int32_t i = 0; i < p->n / 2; i++) {
        p->mask[i] = mask_in(m, (m->hand + 1 + i) % m->n_slots);
        p->mask[p->n / 2 + i] = 300000 + index * MAX_MASKS + i;
    }
}

static int run(const void *arg)
{
    enum { NEW = 400 };
    static bool seen[300];
    uint64_t n_different = 0;
    (void)arg;
    open_backend();
    const uint64_t n_sent = run_passes(200, choose_few);
    for (int32_t k = 0; k < n_passes; k++) {
        for (int32_t i = 0; i < passes[k].n; i++) {
            n_different += !seen[passes[k].mask[i]];
            seen[passes[k].mask[i]] = true;
        }
    }
    CHECK_EQ(n_sent, n_different);
    CHECK(NEW * MAX_MASKS > 2 * cuda_backend_of(backend)->passes.masks.n_slots);
    CHECK_EQ(run_passes(NEW, choose_new), NEW * (MAX_MASKS - 1) + 1);
    const uint64_t n_again = run_passes(1500, choose_many);
    CHECK(n_again > 10000 && n_again < 25000); // out of about 30,000
    run_passes(500, choose_all);
    CHECK_EQ(run_passes(110, choose_all), 0);
    CHECK_EQ(run_passes(1, choose_next), MAX_MASKS / 2);
    backend->ops->close(backend);
    host_check("masks", 1);
    return 0;
}

TEST(passes_find_their_masks_and_known_ones_are_not_sent)
{
    host_in_child(run, NULL);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}

#endif
