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

enum { SMALL = 2400, N_SMALL = 1000, LARGE = 48 << 10 };

/* Forbids new mappings, and allocates all that malloc still has. */
static void use_up_memory(void)
{
    struct rlimit none = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_AS, &none);
    for (size_t size = (size_t)1 << 20; size >= 16; size /= 2) {
        while (malloc(size)) {
        }
    }
}

/* Runs in a child process: uses up its memory, then makes n small allocations. Returns the child's
 * exit status. */
static int allocate(bool reserve, int n, size_t size)
{
    static void *blocks[N_SMALL];
    if (reserve && !mem_reserve_fill()) {
        return 10;
    }
    use_up_memory();
    for (int i = 0; i < n; i++) {
        blocks[i] = i % 2 ? xmalloc(size) : xcalloc(size, 1);
        memset(blocks[i], 1, size);
    }
    if (!mem_is_short() || mem_reserve_fill()) {
        return 11;
    }
    for (int i = 0; i < n; i++) {
        free(blocks[i]);
    }
    return mem_reserve_fill() && !mem_is_short() ? 0 : 12;
}

/* Runs `allocate` in a child process. Returns its exit status, or 128 plus the signal that ended
 * it. */
static int outcome(bool reserve, int n, size_t size)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        _exit(allocate(reserve, n, size));
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_WITH_SANITIZERS() SKIP("a sanitizer needs address space")
#else
#define SKIP_WITH_SANITIZERS() ((void)0)
#endif

TEST(small_allocations_take_the_reserve_and_give_it_back)
{
    SKIP_WITH_SANITIZERS();
    CHECK_EQ(outcome(true, N_SMALL, SMALL), 0);
    CHECK_EQ(outcome(false, N_SMALL, SMALL), 128 + SIGABRT);
}

TEST(large_allocations_do_not_take_the_reserve)
{
    SKIP_WITH_SANITIZERS();
    CHECK_EQ(outcome(true, 1, LARGE), 128 + SIGABRT);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
