// SPDX-License-Identifier: Apache-2.0
/* The time to find the prefixes of a job: 6,400 prompts of 2,200 tokens with 400 prefixes of 2,000,
 * in an order that cycles through the prefixes. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "server/jobs/prefix_groups.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    N_PREFIXES = 400,
    N_MEMBERS = 16,
    PREFIX = 2000,
    OWN = 200,
    VOCABULARY = 1000,
    BLOCK = 64,
    ROUNDS = 9
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    enum { N = N_PREFIXES * N_MEMBERS, LEN = PREFIX + OWN };
    int32_t *ids = xcalloc((size_t)N * LEN, sizeof *ids);
    struct group_prompt *prompts = xcalloc(N, sizeof *prompts);
    for (int32_t i = 0; i < N; i++) {
        int32_t *to = ids + (size_t)i * LEN;
        for (int32_t k = 0; k < LEN; k++) {
            uint64_t source = k < PREFIX ? (uint64_t)(i % N_PREFIXES) : (uint64_t)(N_PREFIXES + i);
            to[k] = (int32_t)(mix(source * LEN + (uint64_t)k + 1) % VOCABULARY);
        }
        prompts[i] = (struct group_prompt){.ids = to, .n = LEN, .est_output = 100};
    }
    double seconds[ROUNDS];
    int32_t n_groups = 0;
    for (int32_t i = 0; i < ROUNDS; i++) {
        struct prefix_groups groups;
        int64_t begin = clock_now_ns();
        prefix_groups_make(prompts, N, BLOCK, GROUP_ORDER_RATIO, &groups);
        seconds[i] = (double)(clock_now_ns() - begin) / 1e9;
        n_groups = groups.n_groups;
        prefix_groups_free(&groups);
    }
    qsort(seconds, ROUNDS, sizeof *seconds, compare);
    printf("%d prompts of %d tokens, %d groups found: median %.3f s, slowest %.3f (limit 0.3)\n", N,
           LEN, n_groups, seconds[ROUNDS / 2], seconds[ROUNDS - 1]);
    free(prompts);
    free(ids);
    return seconds[ROUNDS / 2] > 0.3 || n_groups != N_PREFIXES;
}
