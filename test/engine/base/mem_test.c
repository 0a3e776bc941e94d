// SPDX-License-Identifier: Apache-2.0
/* The reserve that small allocations take when the process may have no more memory. */
#include "engine/base/mem.h"
#include "test/check.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SMALL = 2400, N_SMALL = 1000 };

/* No address space beyond what is mapped, and none of that free. */
static void use_up_memory(void)
{
    struct rlimit none = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_AS, &none);
    for (size_t size = (size_t)1 << 20; size >= 16; size /= 2) {
        while (malloc(size)) {
        }
    }
}

/* The exit status of a process that allocates with or without a reserve. */
static int allocate_without_memory(bool reserve)
{
    static void *blocks[N_SMALL];
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (reserve && !mem_reserve_fill()) {
            _exit(10);
        }
        use_up_memory();
        for (int i = 0; i < N_SMALL; i++) {
            blocks[i] = i % 2 ? xmalloc(SMALL) : xcalloc(SMALL, 1);
            memset(blocks[i], 1, SMALL);
        }
        if (!mem_is_short() || mem_reserve_fill()) {
            _exit(11);
        }
        for (int i = 0; i < N_SMALL; i++) {
            free(blocks[i]);
        }
        _exit(mem_reserve_fill() && !mem_is_short() ? 0 : 12);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(small_allocations_take_the_reserve_and_give_it_back)
{
    CHECK_EQ(allocate_without_memory(true), 0);
    CHECK_EQ(allocate_without_memory(false), 128 + SIGABRT);
}

TEST(large_allocations_do_not_take_the_reserve)
{
    CHECK(mem_reserve_fill());
    void *p = mem_try_calloc((size_t)1 << 40, 1 << 20);
    CHECK_EQ(p != NULL, false);
    CHECK_EQ(mem_is_short(), false);
    mem_reserve_free();
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
