// SPDX-License-Identifier: Apache-2.0
/* The thread pool: each item runs once, for any number of items. */
#include "cpu/cpu_pool.h"

#include "engine/base/mem.h"
#include "test/check.h"

#include <stdatomic.h>
#include <stdlib.h>

static void count_item(void *arg, int32_t item, int32_t thread)
{
    (void)thread;
    _Atomic unsigned char *seen = arg;
    atomic_fetch_add_explicit(&seen[item], 1, memory_order_relaxed);
}

/* A counter per item finds those that ran twice or not at all. */
static void check_items(int32_t n_threads, int32_t n_items)
{
    struct pool *pool = pool_create(n_threads);
    _Atomic unsigned char *seen = xcalloc((size_t)n_items + 1, sizeof *seen);
    pool_run(pool, n_items, count_item, seen);
    int32_t wrong = 0;
    for (int32_t i = 0; i < n_items; i++) {
        wrong += seen[i] != 1;
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(seen[n_items], 0);
    free(seen);
    pool_destroy(pool);
}

TEST(every_item_runs_once)
{
    check_items(1, 5);
    check_items(3, 0);
    check_items(3, 1);
    check_items(3, 1000);
}

/* A job's item numbers are small integers. A rope table for 10 million positions has more items. */
TEST(more_items_than_one_job_can_number)
{
    check_items(3, (1 << 20) - 1);
    check_items(3, 1 << 20);
    check_items(2, 2500000);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
