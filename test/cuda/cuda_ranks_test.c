// SPDX-License-Identifier: Apache-2.0
/* Ranks on several GPUs: a sum with its norm in one op has the bits of separate ops for any
 * sequence of sizes; logits are gathered; an abort ends waiting ranks. Needs two GPUs with peer
 * access. */
#include "test/cuda/cuda_pair.h"

#include <pthread.h>
#include <time.h>

#ifdef SLUICE_CUDA

enum { RANKS = 2, WIDTH = 1024, ROWS = 300, CALLS = 120, VOCAB = 16384 };

/* A rank is a thread with a backend of its own. */
struct rank {
    struct comm *comm;
    int32_t index;
    enum dtype dtype;
    bool deterministic;
    pthread_t thread;
    struct backend *be;
    struct tensor y, x, out, local, logits;
    float *sums; // [CALLS]: a digest of each call's x and out
    enum status st;
};

static struct tensor tensor_in(struct rank *r, int32_t n_rows, int32_t width, enum dtype dtype)
{
    struct tensor t = {.dtype = dtype, .stride = width};
    CHECK_EQ(r->be->ops->alloc(r->be, (size_t)n_rows * (size_t)width * dtype_bytes(dtype), &t.mem),
             OK);
    return t;
}

static struct tensor tensor_of(struct rank *r, int32_t width)
{
    return tensor_in(r, ROWS, width, r->dtype);
}

/* Equal seeds give equal numbers on all ranks, so that each can compute the whole sum. */
static void put(struct rank *r, struct tensor t, uint64_t seed, int32_t n_rows, void *host)
{
    const int64_t n = (int64_t)n_rows * t.stride;
    for (int64_t i = 0; i < n; i++) {
        // Some zeros of both signs, whose bits together are those of PEER_ABSENT ("not here yet").
        float f = random_float(seed, i, 1.0f, r->dtype);
        if (i % 11 == 3 || i % 11 == 4) {
            f = i % 11 == 3 ? -0.0f : 0.0f;
        }
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        if (r->dtype == DT_F32) {
            memcpy((char *)host + i * 4, &u, 4);
        } else {
            uint16_t h = (uint16_t)(u >> 16); // bf16
            memcpy((char *)host + i * 2, &h, 2);
        }
    }
    CHECK_EQ(r->be->ops->write(r->be, t.mem, host, (size_t)n * dtype_bytes(r->dtype)), OK);
}

/* FNV-1a over all bytes, so that ranks can be compared without keeping their tensors. */
static uint64_t digest(struct rank *r, struct tensor t, int32_t n_rows, void *host)
{
    const size_t n = (size_t)n_rows * (size_t)t.stride * dtype_bytes(r->dtype);
    uint64_t h = 1469598103934665603u;
    CHECK_EQ(r->be->ops->read(r->be, host, t.mem, n), OK);
    for (size_t i = 0; i < n; i++) {
        h = (h ^ ((unsigned char *)host)[i]) * 1099511628211u;
    }
    return h;
}

/* Rows of call i: small and large ones mixed. */
static int32_t rows_of(int32_t i)
{
    static const int32_t rows[] = {1, 300, 2, 1, 7, 64, 1, 133, 3, 299};
    return rows[i % 10];
}

/* The number of an element in the backend's dtype. */
static float value(const struct rank *r, const void *host, int64_t i)
{
    uint32_t u = 0;
    float f;
    if (r->dtype == DT_F32) {
        memcpy(&u, (const char *)host + i * 4, 4);
    } else {
        uint16_t h;
        memcpy(&h, (const char *)host + i * 2, 2);
        u = (uint32_t)h << 16;
    }
    memcpy(&f, &u, sizeof f);
    return f;
}

/* One call, fused or separate, on fresh inputs. Returns the residual's digest; the output is in
 * `out`. */
static uint64_t call(struct rank *r, int32_t i, bool fused, void *host, void *out)
{
    const int32_t n = rows_of(i);
    put(r, r->y, 1000 * (uint64_t)i + (uint64_t)r->index, n, host);
    put(r, r->x, 7000 + (uint64_t)i, n, host);
    struct reduce_args reduce = {.y = r->y, .n_rows = n, .width = WIDTH};
    struct norm_args norm = {.x = r->x,
                             .delta = r->y,
                             .out = r->out,
                             .n_rows = n,
                             .width = WIDTH,
                             .kind = i % 3 == 0 ? NORM_LAYER : NORM_RMS,
                             .eps = 1e-5f,
                             .delta_scale = i % 2 ? 1.0f : 0.5f};
    if (fused) {
        r->st = r->be->ops->reduce_norm(r->be, &reduce, &norm);
    } else {
        r->st = r->be->ops->reduce(r->be, &reduce);
        if (r->st == OK) {
            r->st = r->be->ops->norm(r->be, &norm);
        }
    }
    CHECK_EQ(r->st, OK);
    digest(r, r->out, n, out);
    return digest(r, r->x, n, host);
}

/* Residuals and outputs are equal to the bit, fused or apart, and on all ranks. */
static void *compare(void *arg)
{
    struct rank *r = arg;
    const size_t bytes = (size_t)ROWS * WIDTH * 4;
    void *host = xmalloc(bytes), *apart = xmalloc(bytes), *fused = xmalloc(bytes);
    for (int32_t i = 0; i < CALLS; i++) {
        const uint64_t x_apart = call(r, i, false, host, apart);
        const uint64_t x_fused = call(r, i, true, host, fused);
        CHECK_EQ(x_apart, x_fused);
        float worst = 0.0f, sum = 0.0f;
        for (int64_t k = 0; k < (int64_t)rows_of(i) * WIDTH; k++) {
            const float a = value(r, apart, k), b = value(r, fused, k);
            if (fabsf(a - b) > worst || b != b) {
                worst = fabsf(a - b);
            }
            sum += b * (float)(k % 13);
        }
        if (worst > 0.0f) {
            printf("call %d, %zu bytes a number: off by %g\n", i, dtype_bytes(r->dtype),
                   (double)worst);
        }
        CHECK(worst == 0.0f);
        r->sums[i] = sum;
    }
    free(host);
    free(apart);
    free(fused);
    return NULL;
}

/* Zeros with a sign, which a gather must not lose. */
static float logit(int32_t rank, int32_t i)
{
    if (i % 17 == 5) {
        return -0.0f;
    }
    return random_float(40 + (uint64_t)rank, i, 3.0f, DT_F32);
}

/* Every rank has all ranks' columns, below and above the number of rows up to which our own kernel
 * is used. */
static void *join_logits(void *arg)
{
    struct rank *r = arg;
    const int32_t width = VOCAB / RANKS;
    float *host = xmalloc((size_t)ROWS * VOCAB * 4);
    for (int32_t n = 1; n <= ROWS && r->st == OK; n = n * 3 + 1) {
        for (int32_t i = 0; i < n * width; i++) {
            host[i] = logit(r->index, i);
        }
        CHECK_EQ(r->be->ops->write(r->be, r->local.mem, host, (size_t)n * (size_t)width * 4), OK);
        struct logits_args a = {
            .local = r->local, .logits = r->logits, .n_out = n, .vocab = VOCAB, .scale = 1.0f};
        r->st = r->be->ops->logits(r->be, &a);
        CHECK_EQ(r->be->ops->read(r->be, host, r->logits.mem, (size_t)n * VOCAB * 4), OK);
        int32_t wrong = 0;
        for (int32_t i = 0; i < n * VOCAB; i++) {
            const int32_t row = i / VOCAB, from = i % VOCAB / width, at = i % VOCAB % width;
            wrong += host[i] != logit(from, row * width + at);
        }
        CHECK_EQ(wrong, 0);
    }
    free(host);
    return NULL;
}

/* All ranks open at the same time, because they wait for each other. */
static void *open_rank(void *arg)
{
    struct rank *r = arg;
    struct err err = {""};
    struct backend_options o = {.rank = r->index,
                                .n_ranks = RANKS,
                                .comm = r->comm,
                                .dtype = r->dtype,
                                .deterministic = r->deterministic};
    struct backend_limits limits = pair_limits();
    limits.hidden = WIDTH;
    limits.vocab = VOCAB;
    r->st = cuda_open(&o, &r->be, &err);
    if (r->st == OK) {
        r->st = r->be->ops->setup(r->be, &limits, &err);
    }
    if (r->st != OK) {
        printf("rank %d: %s\n", r->index, err.text);
        return NULL;
    }
    r->y = tensor_of(r, WIDTH);
    r->x = tensor_of(r, WIDTH);
    r->out = tensor_of(r, WIDTH);
    r->local = tensor_in(r, ROWS, VOCAB / RANKS, DT_F32);
    r->logits = tensor_in(r, ROWS, VOCAB, DT_F32);
    return NULL;
}

/* Work that contains a collective must run on all ranks at once. */
static void on_all(struct rank *ranks, void *(*work)(void *arg))
{
    for (int32_t i = 0; i < RANKS; i++) {
        pthread_create(&ranks[i].thread, NULL, work, &ranks[i]);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
    }
}

static bool open_all(struct rank *ranks, enum dtype dtype, bool deterministic)
{
    struct err err = {""};
    struct comm_place place = {.n_ranks = RANKS, .n_nodes = 1};
    struct comm *comm = NULL;
    if (cuda_comm_open(&place, &comm, &err) != OK) {
        CHECK_FAIL("%s", err.text);
        return false;
    }
    for (int32_t i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.comm = comm,
                                 .index = i,
                                 .dtype = dtype,
                                 .deterministic = deterministic,
                                 .sums = xcalloc(CALLS, sizeof(float))};
    }
    on_all(ranks, open_rank);
    return ranks[0].st == OK && ranks[1].st == OK;
}

/* All ranks use the communicator, so it is closed last. */
static void close_all(struct rank *ranks)
{
    for (int32_t i = 0; i < RANKS; i++) {
        ranks[i].be->ops->close(ranks[i].be);
        free(ranks[i].sums);
    }
    cuda_comm_destroy(ranks[0].comm);
}

/* Both ranks' digests of each call must be equal, and equal to those of separate ops (in
 * `compare`). */
static bool compare_sums(enum dtype dtype, bool deterministic)
{
    struct rank ranks[RANKS];
    if (!open_all(ranks, dtype, deterministic)) {
        return false;
    }
    on_all(ranks, compare);
    CHECK(memcmp(ranks[0].sums, ranks[1].sums, CALLS * sizeof(float)) == 0);
    close_all(ranks);
    return true;
}

TEST(a_fused_sum_and_norm_has_the_bits_of_separate_ops_on_all_ranks)
{
    if (cuda_device_count() < RANKS) {
        SKIP("fewer than two CUDA devices");
    }
    REQUIRE(compare_sums(DT_F32, false));
    REQUIRE(compare_sums(DT_BF16, false));
}

/* In deterministic mode the algorithm is fixed, and none is measured at the start. */
TEST(a_deterministic_fused_sum_and_norm_has_the_bits_of_separate_ops_on_all_ranks)
{
    if (cuda_device_count() < RANKS) {
        SKIP("fewer than two CUDA devices");
    }
    REQUIRE(compare_sums(DT_BF16, true));
}

TEST(the_logits_of_all_ranks_are_gathered_on_each)
{
    struct rank ranks[RANKS];
    if (cuda_device_count() < RANKS) {
        SKIP("fewer than two CUDA devices");
    }
    REQUIRE(open_all(ranks, DT_BF16, false));
    on_all(ranks, join_logits);
    CHECK(ranks[0].st == OK && ranks[1].st == OK);
    close_all(ranks);
}

/* One rank launches a sum; the other never does. */
static void *wait_alone(void *arg)
{
    struct rank *r = arg;
    struct reduce_args reduce = {.y = r->y, .n_rows = 4, .width = WIDTH};
    struct pass_results results[1];
    r->st = r->be->ops->step_begin(r->be, 0);
    if (r->st == OK) {
        r->st = r->be->ops->reduce(r->be, &reduce);
    }
    if (r->st == OK) {
        r->st = r->be->ops->step_end(r->be);
    }
    if (r->st == OK) {
        r->st = r->be->ops->step_wait(r->be, 0, results, 1);
    }
    return NULL;
}

TEST(an_abort_ends_a_wait_for_a_rank_that_never_comes)
{
    struct rank ranks[RANKS];
    if (cuda_device_count() < RANKS) {
        SKIP("fewer than two CUDA devices");
    }
    REQUIRE(open_all(ranks, DT_BF16, false));
    pthread_create(&ranks[0].thread, NULL, wait_alone, &ranks[0]);
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    cuda_comm_abort(ranks[0].comm);
    pthread_join(ranks[0].thread, NULL);
    CHECK_EQ(ranks[0].st, ERR_DEVICE);
    // Aborted communicators are left to the exit of the process.
}

#else

TEST(ranks_on_several_gpus)
{
    SKIP("built without CUDA");
}

#endif

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
