// SPDX-License-Identifier: Apache-2.0
/* The order of waiting sequences: each prefix is computed once if the pool has room for one of
 * them, and no sequence is overtaken by more than the bound. */
#include "engine/base/minmax.h"
#include "test/engine/bed.h"

enum { GROUPS = 10, MEMBERS = 6, N = GROUPS * MEMBERS, PREFIX = 128, OWN = 8, OUT = 4, BLOCK = 16 };

static int32_t shares[N]; // the group of request i

/* Requests with GROUPS prefixes, in turn or in random order. */
static void make_groups(uint32_t seed)
{
    for (int32_t i = 0; i < N; i++) {
        shares[i] = i % GROUPS;
    }
    for (int32_t i = N - 1; seed && i > 0; i--) {
        seed = seed * 1664525u + 1013904223u;
        int32_t k = (int32_t)(seed >> 8) % (i + 1), t = shares[i];
        shares[i] = shares[k];
        shares[k] = t;
    }
    for (int32_t i = 0; i < N; i++) {
        struct test_request *q = make(i, 0, PREFIX + OWN, OUT);
        for (int32_t k = 0; k < PREFIX; k++) {
            q->prompt[k] = (shares[i] * 7 + k * (shares[i] + 1)) % 300;
        }
        for (int32_t k = 0; k < OWN; k++) {
            q->prompt[PREFIX + k] = (i * 11 + k) % 300;
        }
    }
}

/* Tokens that were computed, which is what a good order saves. */
static int64_t computed(void)
{
    int64_t n = 0;
    for (int32_t i = 0; i < N; i++) {
        n += requests[i].r.n_prompt - requests[i].r.n_cached;
    }
    return n;
}

/* A pool for four sequences, so that a prefix is evicted before its next use. */
static bool start_small(struct bed *b, int64_t overtake_tokens)
{
    struct engine_options o = options_of(b, BLOCK, 4 * (PREFIX + OWN + OUT + BLOCK) / BLOCK);
    o.max_num_seqs = 4;
    o.max_num_batched_tokens = 256;
    o.max_waiting = 80;
    o.max_model_len = 256;
    o.prefix_overtake_tokens = overtake_tokens;
    return start(b, &o);
}

/* Returns how many tokens all groups computed. */
static int64_t run_groups(int64_t overtake_tokens, uint32_t seed)
{
    struct bed b = {0};
    make_groups(seed);
    if (!start_small(&b, overtake_tokens)) {
        return 0;
    }
    for (int32_t i = 0; i < N; i++) {
        submit(&b, &requests[i]);
    }
    run(&b, N, 10000);
    for (int32_t i = 0; i < N; i++) {
        check_answer(i);
    }
    stop(&b);
    return computed();
}

/* With a large bound each prefix is computed once; in the order of arrival it is evicted
 * before its next use. */
TEST(a_prefix_serves_all_that_wait_for_it)
{
    int64_t once = GROUPS * PREFIX + N * OWN;
    CHECK_EQ(run_groups(1 << 20, 0), once);
    CHECK_EQ(run_groups(1 << 20, 77), once);
    CHECK(run_groups(0, 0) > 3 * once); // in the order of arrival each comes too late
}

/* The order of admission, found by walking the order after each turn. */
static int32_t admitted[N], n_admitted;
static bool slipped[N], seen[N];

static int32_t index_of(const struct engine_request *r)
{
    for (int32_t i = 0; i < N; i++) {
        if (&requests[i].r == r) {
            return i;
        }
    }
    return -1;
}

/* Called after each turn: records newly admitted sequences, and whether each had been moved ahead
 * of others. */
static void note_admissions(const struct scheduler *s)
{
    for (const struct sequence *q = s->order.next; q != &s->order; q = q->next) {
        int32_t i = q->was_admitted ? index_of(q->request) : -1;
        if (i >= 0 && !seen[i]) {
            seen[i] = true;
            slipped[i] = q->slip != 0;
            admitted[n_admitted++] = i;
        }
    }
}

/* The tokens computed by later requests that were admitted before request i. */
static int64_t overtaken_by(int32_t i)
{
    int64_t sum = 0;
    for (int32_t k = 0; k < n_admitted && admitted[k] != i; k++) {
        int32_t j = admitted[k];
        if (j > i && slipped[j]) {
            sum += requests[j].r.n_prompt - requests[j].r.n_cached;
        }
    }
    return sum;
}

/* Several bounds and many random orders; 0 means first come, first served. */
TEST(no_sequence_is_overtaken_by_more_than_the_bound)
{
    static const int64_t bounds[] = {0, 1, 50, 200, 1000};
    for (uint32_t seed = 1; seed <= 60; seed++) {
        int64_t bound = bounds[seed % 5];
        struct bed b = {0};
        make_groups(seed * 2654435761u);
        REQUIRE(start_small(&b, bound));
        memset(seen, 0, sizeof seen);
        n_admitted = 0;
        int32_t next = 0;
        for (int32_t turn = 0; turn < 20000 && b.n_done < N; turn++) {
            // Arrivals in bursts and one by one: late ones find cached prefixes.
            int32_t burst = turn % 7 == 0 ? (int32_t)(seed % 13) : turn % 3 == 0;
            for (; next < N && burst > 0; burst--) {
                submit(&b, &requests[next++]);
            }
            engine_turn(b.e);
            scheduler_check(&b.e->scheduler);
            note_admissions(&b.e->scheduler);
            engine_drain(b.e, on_event, &b);
        }
        REQUIRE(b.n_done == N);
        int64_t worst = 0;
        for (int32_t i = 0; i < N; i++) {
            int64_t by = overtaken_by(i);
            worst = greater(by, worst);
            check_answer(i);
        }
        CHECK(worst <= bound);
        stop(&b);
    }
}

/* Priorities always come first, and a request that has already run is not delayed again. */
TEST(a_later_priority_does_not_overtake)
{
    struct bed b = {0};
    make_groups(0);
    REQUIRE(start_small(&b, 1 << 20));
    memset(seen, 0, sizeof seen);
    n_admitted = 0;
    for (int32_t i = 0; i < N; i++) {
        if (i < N / 2) {
            requests[i].r.priority = 0;
        } else {
            requests[i].r.priority = 1;
        } // the second half shares all prefixes of the first
        submit(&b, &requests[i]);
    }
    for (int32_t turn = 0; turn < 20000 && b.n_done < N; turn++) {
        engine_turn(b.e);
        note_admissions(&b.e->scheduler);
        engine_drain(b.e, on_event, &b);
    }
    REQUIRE(n_admitted == N);
    for (int32_t k = 0; k < N / 2; k++) {
        CHECK(admitted[k] < N / 2);
    }
    stop(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
