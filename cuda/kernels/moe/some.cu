// SPDX-License-Identifier: Apache-2.0
/* The products of moe/few.cu for 2 to 8 rows on Hopper, as in verifying drafts. Rows that pick the
 * same expert share its weights: the tensor cores multiply a feature's weights with all rows, the 8
 * columns of mma, and the products of rows that did not pick the expert are not used.
 *
 * One block per multiprocessor lists the experts that the rows picked. One of its warps loads their
 * weights (bulk copies) into a ring of stages. Eight warps multiply, each every n-th span of K of a
 * stage, and another warp adds their sums and stores the results. So a row's bits do not depend on
 * other rows, but differ from those of few.cu.
 *
 * `up` loads the shared expert's weights before its wait (pdl_wait). `down` lists the experts and
 * fills its ring before its wait, beside the blocks of `up`. A multiprocessor's shared memory holds
 * one block of each kernel if it suffices, but not two of `up`, which would leave another
 * multiprocessor without one. Bound by reading the weights of the picks. */
#include "cuda/kernels/moe/some_down.cuh"
#include "cuda/kernels/moe/some_up.cuh"

/* Bytes of shared memory: of a multiprocessor, that a block needs besides, and limits of a block.
 * No two blocks of `up` may share a multiprocessor. */
enum {
    SM_BYTES = 228 << 10,
    BESIDES = 3 << 10,
    MOST_BYTES = 220 << 10,
    UP_LEAST_BYTES = 115 << 10
};
enum { RING_BYTES = 97 << 10, LEAST_RING_BYTES = 46 << 10, LEAST_STAGES = 3, MOST_PART = 2048 };

static int32_t at_least(int32_t n, int32_t least)
{
    return n > least ? n : least;
}

static int32_t rounded_up(int32_t n)
{
    return (n + 127) / 128 * 128;
}

/* The inputs of a stage, if K has n of them: all, or an even part. */
static int32_t part_of(int32_t n, int32_t most)
{
    const int32_t parts = (n + most - 1) / most;
    return parts > 1 ? padded((n + parts - 1) / parts) : n;
}

/* Shared memory that the picks need. */
static int32_t pick_bytes(const struct few_params &p)
{
    return p.route.n_experts * MOST_ROWS +
           p.route.n_rows * (p.route.k + pick_floats(p.route)) * (int32_t)sizeof(float);
}

/* Divides shared memory, of which the ring takes the first `ring` bytes. */
static struct some_plan with_room(const struct few_params &p, struct some_plan plan, int32_t ring,
                                  int32_t inputs)
{
    plan.inputs = rounded_up(ring);
    plan.sums = plan.inputs + rounded_up(inputs * (int32_t)sizeof(uint16_t));
    plan.list = plan.sums + SUM_BYTES;
    plan.bytes = plan.list + most_listed(p) * LISTED_BYTES;
    return plan;
}

/* The stages of a ring of so many bytes. */
static int32_t stages_of(const struct some_plan &plan, int32_t bytes)
{
    const int32_t n = bytes / plan.stage_bytes;
    return n < MOST_STAGES ? n : (int32_t)MOST_STAGES;
}

static struct some_plan up_plan(const struct few_params &p, enum activation kind)
{
    struct some_plan plan = {};
    plan.kind = kind;
    plan.features = UP_FEATURES;
    plan.part = part_of(p.hidden, MOST_PART);
    plan.stage_bytes = UP_ROWS * plan.part * (int32_t)sizeof(uint16_t);
    plan.stages = at_least(stages_of(plan, RING_BYTES), LEAST_STAGES);
    const int32_t last = at_least(plan.stage_bytes, pick_bytes(p));
    plan = with_room(p, plan, (plan.stages - 1) * plan.stage_bytes + last,
                     p.route.n_rows * x_pitch(p));
    plan.bytes = at_least(plan.bytes, UP_LEAST_BYTES);
    return plan;
}

/* The ring is as long as fits beside a block of `up` or, if it would be too short, alone. */
static struct some_plan down_plan(const struct few_params &p, int32_t up_bytes)
{
    struct some_plan plan = {};
    const bool is_wide = p.ffn > MOST_PART / 2;
    plan.features = is_wide ? MOST_FEATURES / 2 : MOST_FEATURES;
    plan.part = part_of(at_least(p.ffn, p.shared_ffn), is_wide ? MOST_PART : MOST_PART / 2);
    plan.stage_bytes = rounded_up(plan.features * plan.part * (int32_t)sizeof(uint16_t));
    const int32_t acts = p.route.n_rows * p.n_acts, rest = with_room(p, plan, 0, acts).bytes;
    plan.stages = stages_of(plan, SM_BYTES - BESIDES - up_bytes - rest);
    if (plan.stages * plan.stage_bytes < LEAST_RING_BYTES) {
        const int32_t most = MOST_BYTES - rest;
        plan.stages = stages_of(plan, most < RING_BYTES ? most : (int32_t)RING_BYTES);
    }
    plan.stages = at_least(plan.stages, LEAST_STAGES);
    return with_room(p, plan, at_least(plan.stages * plan.stage_bytes, pick_bytes(p)), acts);
}

bool k_moe_some_takes(const struct few_params &p)
{
    if (launch_sm() != 90 || p.route.n_rows < LEAST_ROWS || p.route.n_rows > MOST_ROWS) {
        return false;
    }
    const int32_t up = up_plan(p, ACT_SILU).bytes;
    return up <= MOST_BYTES && down_plan(p, up).bytes <= MOST_BYTES;
}

template <typename T, int EACH>
static cudaError_t some(cudaStream_t stream, const struct few_params &p, enum activation kind)
{
    const auto up = some_up_kernel<T, EACH>;
    const auto down = some_down_kernel<T, EACH>;
    const struct some_plan plan = up_plan(p, kind), after = down_plan(p, plan.bytes);
    const dim3 blocks((unsigned)n_multiprocessors());
    cudaError_t e = allow_shared(up, MOST_BYTES);
    e = e != cudaSuccess ? e : allow_shared(down, MOST_BYTES);
    e = e != cudaSuccess ? e
                         : launch(up, blocks, dim3(THREADS), (size_t)plan.bytes, stream, p, plan);
    return e != cudaSuccess
               ? e
               : launch(down, blocks, dim3(THREADS), (size_t)after.bytes, stream, p, after);
}

cudaError_t k_moe_some(cudaStream_t stream, const struct few_params &p, enum dtype dtype,
                       enum activation kind)
{
    const bool many = p.route.n_experts > 256;
    if (dtype == DT_BF16) {
        return many ? some<bf16_t, 16>(stream, p, kind) : some<bf16_t, 8>(stream, p, kind);
    }
    return many ? some<f16_t, 16>(stream, p, kind) : some<f16_t, 8>(stream, p, kind);
}
