// SPDX-License-Identifier: Apache-2.0
/* Ranks on the CPU: sharded products joined by reduce, and gathered logits, have the bits of one
 * rank; if a rank leaves, the others do not hang. */
#include "test/device/op_harness.h"

#include "engine/base/clock.h"
#include "engine/base/wire.h"

#include <pthread.h>

enum { ROWS = 9, N_IN = 256, N_OUT = 130, SEGMENTS = 8, FFN = 64, EXPERTS = 6, K = 3, HIDDEN = 48 };

/* The data that all ranks take their shards from. */
struct common {
    enum dtype dtype;
    int32_t n_ranks;
    struct comm *comm;
    float *x, *w, *bias, *gu, *down, *down_bias, *moe_x;
    int32_t ids[ROWS * K];
    float picks[ROWS * K];
};

/* A rank is a thread; its outputs are compared afterwards. */
struct rank {
    const struct common *c;
    int32_t rank;
    pthread_t thread;
    float *y, *logits, *moe;
};

/* Opens one rank's part of a weight. */
static struct weight *open_part(struct op_rig *r, enum weight_kind kind, struct weight_desc d)
{
    struct weight *w = NULL;
    struct err err;
    d.kind = kind;
    d.name = "shard";
    CHECK_EQ(r->ops->weight_open(r->be, &d, &w, &err), OK);
    return w;
}

/* A product whose K is cut over ranks, and the reduce that adds the sums and the bias. */
static void row_sharded(struct op_rig *r, struct rank *k)
{
    const struct common *c = k->c;
    int32_t n = N_IN / c->n_ranks;
    struct weight_part part = weight_part_plain(c->w + k->rank * n, DT_F32, N_OUT, n, N_IN);
    struct weight_part bias = weight_part_plain(c->bias, DT_F32, 1, N_OUT, N_OUT);
    struct weight_desc d = {.dtype = c->dtype,
                            .n_out = N_OUT,
                            .n_in = n,
                            .n_experts = 1,
                            .n_parts = 1,
                            .parts = &part,
                            .bias = &bias,
                            .k_segments = SEGMENTS / c->n_ranks};
    struct linear_args a = {.weight = open_part(r, WEIGHT_LINEAR, d),
                            .x = op_tensor(r, c->x, ROWS, N_IN, N_IN),
                            .y = op_tensor(r, NULL, ROWS, N_OUT, N_OUT + 1),
                            .n_rows = ROWS,
                            .partial = true};
    a.x.mem = dmem_at(a.x.mem, sizeof(float) * (size_t)(k->rank * n));
    CHECK_EQ(r->ops->linear(r->be, &a), OK);
    struct reduce_args reduce = {.y = a.y, .n_rows = ROWS, .width = N_OUT, .linear = a.weight};
    CHECK_EQ(r->ops->reduce(r->be, &reduce), OK);
    k->y = op_fetch(r, a.y, ROWS, N_OUT);
}

/* Vocabulary rows are cut over ranks; each rank must get all logits. */
static void gathered(struct op_rig *r, struct rank *k)
{
    const struct common *c = k->c;
    int32_t n = 128 / c->n_ranks;
    struct weight_part part =
        weight_part_plain(c->w + (size_t)k->rank * n * N_IN, DT_F32, n, N_IN, N_IN);
    struct weight_desc d = {.dtype = c->dtype,
                            .n_out = n,
                            .n_in = N_IN,
                            .n_experts = 1,
                            .n_parts = 1,
                            .parts = &part,
                            .k_segments = 1};
    struct linear_args a = {.weight = open_part(r, WEIGHT_LINEAR, d),
                            .x = op_tensor(r, c->x, ROWS, N_IN, N_IN),
                            .y = op_tensor(r, NULL, ROWS, n, n),
                            .n_rows = ROWS};
    CHECK_EQ(r->ops->linear(r->be, &a), OK);
    struct tensor all;
    if (c->n_ranks == 1) {
        all = a.y;
    } else {
        all = op_tensor(r, NULL, ROWS, 128, 128);
    }
    struct logits_args l = {
        .local = a.y, .logits = all, .n_out = ROWS, .vocab = 128, .scale = 0.5f, .softcap = 3.0f};
    CHECK_EQ(r->ops->logits(r->be, &l), OK);
    k->logits = op_fetch(r, all, ROWS, 128);
}

/* Experts cut along ffn: gate and up rows of the rank's share, and its columns of down. */
static void experts(struct op_rig *r, struct rank *k)
{
    const struct common *c = k->c;
    int32_t n = FFN / c->n_ranks;
    struct weight_part gu[2 * EXPERTS], down[EXPERTS], bias[EXPERTS];
    for (int32_t e = 0; e < EXPERTS; e++) {
        float *first = c->gu + (size_t)e * 2 * FFN * HIDDEN;
        for (int32_t half = 0; half < 2; half++) {
            gu[2 * e + half] = weight_part_plain(
                first + (size_t)(half * FFN + k->rank * n) * HIDDEN, DT_F32, n, HIDDEN, HIDDEN);
        }
        down[e] = weight_part_plain(c->down + (size_t)e * HIDDEN * FFN + k->rank * n, DT_F32,
                                    HIDDEN, n, FFN);
        bias[e] = weight_part_plain(c->down_bias + e * HIDDEN, DT_F32, 1, HIDDEN, HIDDEN);
    }
    struct weight_desc d = {.dtype = c->dtype,
                            .n_out = 2 * n,
                            .n_in = HIDDEN,
                            .n_experts = EXPERTS,
                            .n_parts = 2 * EXPERTS,
                            .parts = gu,
                            .k_segments = 1};
    struct weight_desc d2 = {.dtype = c->dtype,
                             .n_out = HIDDEN,
                             .n_in = n,
                             .n_experts = EXPERTS,
                             .n_parts = EXPERTS,
                             .parts = down,
                             .bias = bias,
                             .k_segments = SEGMENTS / c->n_ranks};
    struct moe_ffn_args a = {.gate_up = open_part(r, WEIGHT_EXPERTS, d),
                             .down = open_part(r, WEIGHT_EXPERTS, d2),
                             .x = op_tensor(r, c->moe_x, ROWS, HIDDEN, HIDDEN),
                             .y = op_tensor(r, NULL, ROWS, HIDDEN, HIDDEN),
                             .n_rows = ROWS,
                             .n_experts = EXPERTS,
                             .k = K,
                             .ffn = n,
                             .kind = ACT_SILU,
                             .partial = true};
    r->ops->alloc(r->be, sizeof c->ids, &a.ids);
    r->ops->alloc(r->be, sizeof c->picks, &a.weights);
    r->ops->write(r->be, a.ids, c->ids, sizeof c->ids);
    r->ops->write(r->be, a.weights, c->picks, sizeof c->picks);
    CHECK_EQ(r->ops->moe_ffn(r->be, &a), OK);
    struct reduce_args reduce = {.y = a.y, .n_rows = ROWS, .width = HIDDEN, .moe = &a};
    CHECK_EQ(r->ops->reduce(r->be, &reduce), OK);
    k->moe = op_fetch(r, a.y, ROWS, HIDDEN);
}

/* Ranks share the communicator and nothing else. */
static struct op_rig open_rank(const struct rank *k)
{
    struct backend_limits limits = op_limits();
    struct op_rig r = {.dtype = k->c->dtype};
    struct backend_options o = {.rank = k->rank,
                                .n_ranks = k->c->n_ranks,
                                .comm = k->c->comm,
                                .dtype = k->c->dtype,
                                .threads = 2};
    struct err err = {""};
    if (cpu_open(&o, &r.be, &err) != OK) {
        printf("rank: %s\n", err.text);
        exit(1);
    }
    r.ops = r.be->ops;
    CHECK_EQ(r.ops->setup(r.be, &limits, &err), OK);
    return r;
}

/* All ranks make the same calls in the same order. */
static void *rank_main(void *p)
{
    struct rank *k = p;
    struct op_rig r = open_rank(k);
    row_sharded(&r, k);
    gathered(&r, k);
    experts(&r, k);
    op_close(&r);
    return NULL;
}

/* A single rank, without a communicator, is the reference. */
static void run_ranks(struct common *c, int32_t n, struct rank *ranks)
{
    c->n_ranks = n;
    c->comm = n > 1 ? cpu_comm_create(n) : NULL;
    for (int32_t i = 0; i < n; i++) {
        ranks[i] = (struct rank){.c = c, .rank = i};
        pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]);
    }
    for (int32_t i = 0; i < n; i++) {
        pthread_join(ranks[i].thread, NULL);
    }
    cpu_comm_destroy(c->comm);
}

static void free_rank(struct rank *k)
{
    free(k->y);
    free(k->logits);
    free(k->moe);
}

/* A rank has SEGMENTS / n segments of K, so that the order of additions is the same for
 * every number of ranks. */
static void compare(enum dtype dtype)
{
    struct common c = {.dtype = dtype,
                       .x = op_random(ROWS * N_IN, 1.0f),
                       .w = op_random(N_OUT * N_IN, 0.1f),
                       .bias = op_random(N_OUT, 1.0f),
                       .gu = op_random((size_t)EXPERTS * 2 * FFN * HIDDEN, 0.2f),
                       .down = op_random((size_t)EXPERTS * FFN * HIDDEN, 0.2f),
                       .down_bias = op_random(EXPERTS * HIDDEN, 1.0f),
                       .moe_x = op_random(ROWS * HIDDEN, 1.0f)};
    for (int32_t i = 0; i < ROWS * K; i++) {
        c.ids[i] = (i / K + 2 * (i % K)) % EXPERTS;
        c.picks[i] = op_uniform();
    }
    struct rank one[1], several[4];
    run_ranks(&c, 1, one);
    for (int32_t n = 2; n <= 4; n += 2) {
        run_ranks(&c, n, several);
        for (int32_t i = 0; i < n; i++) {
            CHECK_MEM(several[i].y, one[0].y, ROWS * N_OUT * sizeof(float));
            CHECK_MEM(several[i].logits, one[0].logits, ROWS * 128 * sizeof(float));
            CHECK_MEM(several[i].moe, one[0].moe, ROWS * HIDDEN * sizeof(float));
            free_rank(&several[i]);
        }
    }
    free_rank(&one[0]);
    free(c.x);
    free(c.w);
    free(c.bias);
    free(c.gu);
    free(c.down);
    free(c.down_bias);
    free(c.moe_x);
}

TEST(ranks_give_the_bits_of_one)
{
    compare(DT_BF16);
    compare(DT_F32);
}

/* The other rank never comes to the collective. */
static void *wait_alone(void *p)
{
    struct rank *k = p;
    struct op_rig r = open_rank(k);
    struct reduce_args a = {.y = op_tensor(&r, NULL, 1, 8, 8), .n_rows = 1, .width = 8};
    CHECK_EQ(r.ops->reduce(r.be, &a), ERR_DEVICE);
    CHECK_EQ(r.ops->step_begin(r.be, 0), ERR_DEVICE); // and later steps fail, too
    op_close(&r);
    return NULL;
}

TEST(a_rank_that_leaves_does_not_hang_the_others)
{
    struct common c = {.dtype = DT_F32, .n_ranks = 2, .comm = cpu_comm_create(2)};
    struct rank stays = {.c = &c, .rank = 0}, leaves = {.c = &c, .rank = 1};
    pthread_create(&stays.thread, NULL, wait_alone, &stays);
    struct op_rig r = open_rank(&leaves);
    op_close(&r);
    pthread_join(stays.thread, NULL);
    cpu_comm_destroy(c.comm);
}

/* ---- between nodes ---- */

/* Whether a connection to this port is accepted. */
static bool is_open(const char *host, int32_t port)
{
    int fd;
    struct err err;
    bool open = wire_connect(host, port, clock_now_ns() + 1000000000, &fd, &err) == OK;
    wire_close(&fd);
    return open;
}

struct shared {
    int32_t port;
    bool here, elsewhere;
};

/* Called in place of node 0's exchange with other nodes: checks which addresses the port is open
 * on, and then fails. */
static enum status look_at_port(void *bytes, size_t n_bytes, void *arg, struct err *err)
{
    struct shared *s = arg;
    CHECK(n_bytes >= 2 * sizeof(uint64_t) + sizeof s->port);
    memcpy(&s->port, (char *)bytes + 2 * sizeof(uint64_t), sizeof s->port);
    s->here = is_open("127.0.0.2", s->port);
    s->elsewhere = is_open("127.0.0.1", s->port);
    return err_set(err, ERR_CANCELLED, "seen");
}

TEST(the_port_for_sums_listens_only_at_node_0s_address)
{
    struct shared s = {0};
    struct comm_place place = {.n_ranks = 2,
                               .n_nodes = 2,
                               .leader = "127.0.0.2",
                               .bind = "127.0.0.2",
                               .share = look_at_port,
                               .share_arg = &s};
    struct comm *comm;
    struct err err;
    CHECK_EQ(cpu_comm_open(&place, &comm, &err), ERR_CANCELLED);
    CHECK(s.here);
    CHECK(!s.elsewhere);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
