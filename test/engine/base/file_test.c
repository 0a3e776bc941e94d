// SPDX-License-Identifier: Apache-2.0
/* Files that change while they are mapped. */
#include "engine/base/file.h"
#include "test/check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20 }; // whole pages, even of 64 KiB

/* A file of BYTES zeros, which the test cuts while it is mapped. */
static int open_file(char *path, size_t n)
{
    snprintf(path, n, "/tmp/sluice-map-XXXXXX");
    const int fd = mkstemp(path);
    if (fd >= 0 && ftruncate(fd, BYTES) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Runs in a child process: its output goes to the pipe, its exit status is returned. */
static int in_child(void (*run)(const char *path, int fd), const char *path, int fd, char *printed,
                    size_t n)
{
    int ends[2];
    if (pipe(ends) != 0) {
        return -1;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        run(path, fd);
        _exit(0);
    }
    close(ends[1]);
    size_t have = 0;
    ssize_t got;
    while (have + 1 < n && (got = read(ends[0], printed + have, n - 1 - have)) > 0) {
        have += (size_t)got;
    }
    printed[have] = '\0';
    close(ends[0]);
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

/* Maps the file after another map was made and removed, truncates it to `left`, and reads it
 * all. */
static void read_cut(const char *path, int fd, off_t left)
{
    struct err err;
    struct file_map gone, map;
    file_maps_explain();
    if (file_map_open(path, &gone, &err) != OK || file_map_open(path, &map, &err) != OK) {
        _exit(3);
    }
    file_unmap(&gone);
    if (ftruncate(fd, left) != 0) {
        _exit(3);
    }
    unsigned sum = 0;
    for (size_t i = 0; i < map.n_bytes; i++) {
        sum += *(const volatile unsigned char *)(map.data + i);
    }
    file_unmap(&map);
    _exit(sum == 0 ? 0 : 3);
}

static void read_half(const char *path, int fd)
{
    read_cut(path, fd, BYTES / 2);
}

static void read_whole(const char *path, int fd)
{
    read_cut(path, fd, BYTES);
}

/* A SIGBUS that has nothing to do with a map must keep its default action. */
static void fail_elsewhere(const char *path, int fd)
{
    struct err err;
    struct file_map map;
    (void)fd;
    file_maps_explain();
    if (file_map_open(path, &map, &err) == OK) {
        raise(SIGBUS);
    }
}

/* A model file truncated while it is mapped raises SIGBUS on the next read of a lost page.
 * The process must end with a message that names the file; the whole file, read first,
 * shows that the handler is silent otherwise. The child also maps and unmaps the file once
 * before, so a stale entry of the handler's table would be found. */
TEST(a_file_that_is_cut_under_its_map_is_named)
{
    char path[64], printed[1024];
    const int fd = open_file(path, sizeof path);
    REQUIRE(fd >= 0);
    CHECK_EQ(in_child(read_whole, path, fd, printed, sizeof printed), 0);
    CHECK_STR(printed, "");
    const int status = in_child(read_half, path, fd, printed, sizeof printed);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    CHECK(strstr(printed, path) && strstr(printed, "truncated") && strchr(printed, '\n'));
    close(fd);
    unlink(path);
}

/* A SIGBUS with no address in a mapped file belongs to another handler: it must reach the
 * default action and not be blamed on a model file. */
TEST(other_bus_errors_keep_their_default_action)
{
    char path[64], printed[4096];
    const int fd = open_file(path, sizeof path);
    REQUIRE(fd >= 0);
    const int status = in_child(fail_elsewhere, path, fd, printed, sizeof printed);
    CHECK(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) > 1));
    CHECK(!strstr(printed, path));
    close(fd);
    unlink(path);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
