// SPDX-License-Identifier: Apache-2.0
/* One of several ranks in one process fails: no rank waits forever in a collective, all ranks get
 * the failure and keep it, and every request ends. On the CPU backend, whose ranks communicate. */
#include "cpu/cpu.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/device/ops.h"
#include "engine/engine_state.h"
#include "test/check.h"

#include <stdatomic.h>
#include <time.h>

enum { N_OUT = 60 };

/* Rank `rank` fails in its n-th call of an op, or its device is found lost when idle. */
struct fault {
    int32_t rank, at_attention, at_step;
    _Atomic int32_t n_attention, n_steps;
    _Atomic bool idle;
};

/* The faulty rank has a copy of the CPU backend's table with three functions replaced. */
static struct fault fault;
static struct backend_ops faulty;
static const struct backend_ops *real;

/* Fails at the chosen call, counted over all ranks. */
static enum status attention(struct backend *be, const struct attention_args *a)
{
    bool fails = atomic_fetch_add(&fault.n_attention, 1) + 1 == fault.at_attention;
    if (fails) {
        return ERR_DEVICE;
    }
    return real->attention(be, a);
}

/* Fails before anything of the step is done. */
static enum status step_begin(struct backend *be, int32_t slot)
{
    bool fails = atomic_fetch_add(&fault.n_steps, 1) + 1 == fault.at_step;
    if (fails) {
        return ERR_DEVICE;
    }
    return real->step_begin(be, slot);
}

static enum status alive(struct backend *be)
{
    (void)be;
    return fault.idle ? ERR_DEVICE : OK;
}

/* Wraps the CPU backend of one rank with ops that fail on demand. */
static enum status open(const struct backend_options *o, struct backend **out, struct err *err,
                        void *arg)
{
    (void)arg;
    TRY(cpu_open(o, out, err));
    if (o->rank == fault.rank) {
        real = (*out)->ops;
        faulty = *real;
        faulty.attention = attention;
        faulty.step_begin = step_begin;
        faulty.alive = alive;
        (*out)->ops = &faulty;
    }
    return OK;
}

struct bed {
    struct engine_options o;
    struct engine *e;
    struct engine_request r;
    struct engine_output output;
    int32_t tokens[N_OUT];
    bool done;
};

static const int32_t prompt[] = {5, 6, 7, 8, 9};

/* A fresh engine and a fault whose counters start at 0. */
static void start(struct bed *b, int32_t n_ranks, struct fault f)
{
    struct err err = {""};
    *b = (struct bed){0};
    fault.rank = f.rank;
    fault.at_attention = f.at_attention;
    fault.at_step = f.at_step;
    fault.n_attention = fault.n_steps = 0;
    fault.idle = false;
    b->o = (struct engine_options){.model = "test/golden/llama-3",
                                   .open_backend = open,
                                   .tensor_parallel_size = n_ranks,
                                   .abort_ranks = cpu_comm_abort,
                                   .num_gpu_blocks_override = 64,
                                   .enable_prefix_caching = true,
                                   .enable_chunked_prefill = true,
                                   .backend = {.threads = 1, .comm = cpu_comm_create(n_ranks)}};
    if (engine_open(&b->o, &b->e, &err) != OK) {
        printf("open: %s\n", err.text);
        exit(1);
    }
    b->output.tokens = b->tokens;
    b->r = (struct engine_request){.prompt = prompt,
                                   .n_prompt = 5,
                                   .n = 1,
                                   .outputs = &b->output,
                                   .params = sampling_params_default()};
    b->r.params.max_tokens = N_OUT;
    b->r.params.temperature = 0.0f;
}

static void on_event(struct engine_request *r, void *arg)
{
    ((struct bed *)arg)->done = r->done;
}

/* Seconds until the request's terminal event, at most 30. */
static double wait_done(struct bed *b)
{
    int64_t begin = clock_now_ns();
    while (!b->done && clock_now_ns() - begin < 30000000000LL) {
        engine_drain(b->e, on_event, b);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    CHECK(b->done);
    return (double)(clock_now_ns() - begin) * 1e-9;
}

static void stop(struct bed *b)
{
    engine_stop_all(b->e);
    engine_drain(b->e, on_event, b);
    engine_close(b->e);
    cpu_comm_destroy(b->o.backend.comm);
}

/* The request ends within 10 s with the device's error, and the engine refuses the next
 * one: after a failure the ranks' states differ, so nothing may run until a restart. */
static void expect_failure(struct bed *b)
{
    struct err err;
    struct engine_stats s;
    REQUIRE(engine_submit(b->e, &b->r, &err) == OK);
    CHECK(wait_done(b) < 10.0);
    CHECK_EQ(b->output.finish, FINISH_ERROR);
    CHECK_EQ(b->r.error, ERR_DEVICE);
    engine_stats(b->e, &s);
    CHECK_EQ(s.state, ENGINE_FAILED);
    CHECK(s.failure[0] != '\0');
    CHECK_EQ(engine_submit(b->e, &b->r, &err), ERR_DEVICE); // sticky
}

/* The control: without a fault these wrappers change nothing, so the failures below come from the
 * faults. */
TEST(without_a_fault_the_request_completes)
{
    struct bed b;
    struct err err;
    start(&b, 2, (struct fault){.rank = 1});
    REQUIRE(engine_submit(b.e, &b.r, &err) == OK);
    wait_done(&b);
    CHECK_EQ(b.output.finish, FINISH_LENGTH);
    stop(&b);
}

/* Attention calls 1, 5 and 9 of rank 1: rank 0 already waits in the collective after that
 * layer, and only abort_ranks can wake it. */
TEST(a_rank_that_fails_between_collectives_does_not_hang_the_others)
{
    for (int32_t at = 1; at <= 9; at += 4) {
        struct bed b;
        start(&b, 2, (struct fault){.rank = 1, .at_attention = at});
        expect_failure(&b);
        stop(&b);
    }
}

/* Rank 0 has no separate thread but runs on that of the engine: its failure must reach the threads
 * of the others. */
TEST(the_first_rank_failing_ends_the_rest_too)
{
    struct bed b;
    start(&b, 4, (struct fault){.rank = 0, .at_attention = 6});
    expect_failure(&b);
    stop(&b);
}

/* The rank fails before it has queued anything, while its peers are in the step's first
 * collective. */
TEST(a_rank_that_fails_before_its_step_does_not_hang_the_others)
{
    struct bed b;
    start(&b, 4, (struct fault){.rank = 2, .at_step = 7});
    expect_failure(&b);
    stop(&b);
}

/* An idle engine has no step to fail in; it must poll `alive`, or a lost GPU would go
 * unnoticed until the next request. */
TEST(a_device_found_lost_between_steps_fails_the_engine)
{
    for (int32_t n_ranks = 1; n_ranks <= 2; n_ranks++) {
        struct bed b;
        struct engine_stats s = {0};
        start(&b, n_ranks, (struct fault){.rank = n_ranks - 1});
        fault.idle = true;
        int64_t begin = clock_now_ns();
        while (s.state != ENGINE_FAILED && clock_now_ns() - begin < 10000000000LL) {
            engine_stats(b.e, &s);
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        CHECK_EQ(s.state, ENGINE_FAILED);
        stop(&b);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
