// SPDX-License-Identifier: Apache-2.0
/* Shared by tests on the fake device: engines on it, and a process for each run, because launches
 * query the device once per process. Without CUDA such a test is skipped; its body is under
 * SLUICE_CUDA. */
#ifndef SLUICE_TEST_HOST_BED_H
#define SLUICE_TEST_HOST_BED_H

#include "test/check.h"

#ifdef SLUICE_CUDA
#include "cuda/cuda.h"
#include "cuda/cuda_backend.h"
#include "cuda/cuda_graph.h"
#include "engine/engine_state.h"
#include "test/cuda/fake/fake_cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

/* cuBLASLt has scales of blocks for FP8 only if the number of rows is a multiple of 4, so long
 * passes are padded as far as the limit allows. */
static inline enum status host_pass_begin(struct backend *be, const struct pass *pass,
                                          struct pass_shape *shape)
{
    TRY(cuda_ops.pass_begin(be, pass, shape));
    const bool is_full = shape->n_rows == cuda_backend_of(be)->passes.limits.max_rows;
    const bool is_padded = shape->n_rows % 4 == 0 || is_full || pass->n_rows <= GRAPH_MAX_ROWS;
    if (shape->n_rows < pass->n_rows || !is_padded) {
        CHECK_FAIL("a pass of %d rows becomes one of %d", pass->n_rows, shape->n_rows);
    }
    return OK;
}

static struct backend_ops host_ops;

static inline void host_make_ops(void)
{
    host_ops = cuda_ops;
    host_ops.pass_begin = host_pass_begin;
}

/* Each rank is opened by a thread of its own. */
static inline enum status host_open(const struct backend_options *options, struct backend **out,
                                    struct err *err, void *arg)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)arg;
    TRY(cuda_open(options, out, err));
    pthread_once(&once, host_make_ops);
    (*out)->ops = &host_ops;
    return OK;
}

/* A communicator if there are several ranks; none if it cannot be opened. */
static inline void host_open_ranks(struct engine_options *o)
{
    struct err err = {0};
    const struct comm_place place = {.n_ranks = o->tensor_parallel_size, .n_nodes = 1};
    o->abort_ranks = cuda_comm_abort;
    if (o->tensor_parallel_size > 1 && cuda_comm_open(&place, &o->backend.comm, &err) != OK) {
        CHECK(fake_cuda_failed() && err.text[0]);
    }
}

/* Ranks that were aborted keep memory that the device may still use, until the process ends. */
static inline void host_check(const char *what, int32_t n_ranks)
{
    if (fake_cuda_complaint()) {
        CHECK_FAIL("%s: %s", what, fake_cuda_complaint());
    }
    if (fake_cuda_counts().left != 0 && (n_ranks <= 1 || !fake_cuda_failed())) {
        CHECK_FAIL("%s: %" PRId64 " objects are left", what, fake_cuda_counts().left);
    }
}

/* A model of test/golden or test/golden-families, with its weights (test/model/seeded.py). */
static inline void host_family(char *dir, size_t n_bytes, const char *name)
{
    snprintf(dir, n_bytes, "build/golden/%s", name);
    if (access(dir, F_OK) != 0) {
        snprintf(dir, n_bytes, "build/golden-families/%s", name);
    }
}

/* The architectures that this build has code for, 0 at the end. */
static inline const int32_t *host_archs(void)
{
    static int32_t found[3];
    int32_t n = 0;
    for (int32_t sm = 80; sm <= 90; sm += 10) {
        if (cuda_arch_runs(SLUICE_CUARCH, sm)) {
            found[n++] = sm;
        }
    }
    return found;
}

/* Runs body in a child process and returns its result, which is below 100. */
static inline int host_in_child(int (*body)(const void *arg), const void *arg)
{
    enum { FAILED = 100 };
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        check_failures = 0;
        alarm(30);
        const int result = body(arg);
        exit(check_failures > 0 ? FAILED : result);
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        CHECK_FAIL("a child ended by signal %d", WTERMSIG(status));
        return FAILED;
    }
    CHECK(WEXITSTATUS(status) != FAILED);
    return WEXITSTATUS(status);
}

/* Loads the library that cuda_comm.c will look for. */
static inline void host_load_nccl(void)
{
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 20);
    char *end = n > 0 ? memrchr(path, '/', (size_t)n) : NULL;
    if (end) {
        memcpy(end + 1, "libnccl.so.2", sizeof "libnccl.so.2");
    }
    if (!end || !dlopen(path, RTLD_NOW | RTLD_GLOBAL)) {
        printf("%s cannot be loaded: %s\n", path, dlerror());
        exit(1);
    }
}

#else

TEST(the_fake_device)
{
    SKIP("built without CUDA");
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}

#endif
#endif
