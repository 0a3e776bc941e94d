// SPDX-License-Identifier: Apache-2.0
/* Updates of lanes as the device sees them: random updates, some of them larger than the staging
 * memory, arrive complete, and of two to the same place the later one wins. The kernel that applies
 * the writes of a flush is the only one emulated; it applies them in a random order, as a device
 * may. */
#include "engine/base/minmax.h"
#include "test/cuda/fake/host_bed.h"

#ifdef SLUICE_CUDA
#include "cuda/cuda_backend.h"
#include "engine/base/mem.h"

enum { LANES = 5, LEN = 1 << 19, STEPS = 12, UPDATES = 60 };

static uint64_t random_state;

static int32_t pick(int32_t least, int32_t most)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return least + (int32_t)((random_state >> 33) % (uint64_t)(most - least + 1));
}

/* patch_kernel of cuda/kernels/step.cu, a block for each write. */
static void apply(dim3 grid, const void *const *args)
{
    const struct patch *patches = *(const struct patch *const *)args[0];
    const uint32_t *data = *(const uint32_t *const *)args[1];
    const int32_t n = (int32_t)grid.x, stride = 7919, first = pick(0, n - 1);
    for (int32_t i = 0; i < n; i++) { // a prime stride reaches each write once
        int32_t at = i;
        if (n != stride) {
            at = (int32_t)((first + (int64_t)i * stride) % n);
        }
        const struct patch *p = &patches[at];
        memcpy(p->to, data + p->from, (size_t)p->n_words * sizeof *data);
    }
}

/* Only lanes are updated here, so two steps and one pass are enough. */
static struct backend *open_backend(void)
{
    struct backend *be = NULL;
    struct err err = {0};
    const struct backend_options o = {.dtype = DT_BF16, .n_ranks = 1};
    const struct backend_limits limits = {.max_rows = 64,
                                          .max_out_rows = 64,
                                          .max_lanes = LANES,
                                          .max_len = LEN,
                                          .max_blocks_per_lane = LEN / 64,
                                          .n_blocks = 100,
                                          .block_tokens = 64,
                                          .vocab = 1000,
                                          .hidden = 64,
                                          .n_steps = 2,
                                          .max_passes = 1};
    if (cuda_open(&o, &be, &err) != OK || be->ops->setup(be, &limits, &err) != OK) {
        printf("open: %s\n", err.text);
        exit(1);
    }
    return be;
}

/* Sizes are drawn so that both many small updates and one that fills the lane occur. */
static void update(struct backend *be, int32_t lane, int32_t *expected)
{
    static int32_t tokens[LEN], next;
    const int32_t first = pick(0, 3) ? pick(0, 300) : pick(0, LEN - 1);
    const int32_t room = LEN - first, n = pick(0, 5) ? pick(0, lesser(room, 90)) : room;
    for (int32_t i = 0; i < n; i++) {
        expected[first + i] = tokens[i] = ++next & 0xfffffff;
    }
    CHECK_EQ(be->ops->lane_tokens(be, lane, first, n, tokens), OK);
    struct sampling_params params = sampling_params_default();
    const int32_t block = pick(0, 99);
    if (pick(0, 3) == 0) {
        CHECK_EQ(be->ops->lane_blocks(be, lane, pick(0, LEN / 64 - 1), 1, &block), OK);
        CHECK_EQ(be->ops->lane_params(be, lane, &params), OK);
    }
}

/* `expected` is what a device must have after the flush. */
static int run(const void *arg)
{
    static const size_t arg_bytes[] = {sizeof(void *), sizeof(void *)};
    random_state = *(const uint64_t *)arg;
    fake_cuda_reset(1, host_archs()[0], (size_t)1 << 32);
    fake_cuda_emulate("patch_kernel", 2, arg_bytes, apply);
    struct backend *be = open_backend();
    int32_t *expected = xcalloc(LANES * (size_t)LEN, sizeof *expected);
    struct pass_results results;
    for (int32_t step = 0; step < STEPS; step++) {
        CHECK_EQ(be->ops->step_begin(be, step % 2), OK);
        for (int32_t i = pick(0, UPDATES); i > 0; i--) {
            const int32_t lane = pick(0, LANES - 1);
            update(be, lane, expected + (size_t)lane * LEN);
        }
        CHECK_EQ(be->ops->step_end(be), OK);
    }
    CHECK_EQ(be->ops->step_wait(be, 0, &results, 1), OK);
    CHECK_EQ(be->ops->step_wait(be, 1, &results, 1), OK);
    const struct lanes *lanes = &cuda_backend_of(be)->lanes;
    for (int32_t lane = 0; lane < LANES; lane++) {
        CHECK_MEM(lanes->history + (size_t)lane * (size_t)lanes->history_stride,
                  expected + (size_t)lane * LEN, LEN * sizeof *expected);
    }
    be->ops->close(be);
    host_check("lanes", 1);
    free(expected);
    return 0;
}

TEST(updates_arrive_whole_and_the_later_one_wins)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        host_in_child(run, &seed);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}

#endif
