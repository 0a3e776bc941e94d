// SPDX-License-Identifier: Apache-2.0
/* The log writer: lines are whole and in order, and no caller ever blocks on a slow or
 * full sink. */
#include "engine/base/clock.h"
#include "engine/base/line_writer.h"
#include "engine/base/minmax.h"
#include "engine/base/write.h"
#include "test/check.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

/* The line that reports lost lines. */
static size_t lost_report(uint64_t n_lost, char *line, size_t n_bytes)
{
    return (size_t)snprintf(line, n_bytes, "%d lost\n", (int)n_lost);
}

/* Reads from fd until a line ends with `last`, or nothing arrives for 20 s. */
static size_t read_until(int fd, char *text, size_t n_bytes, const char *last)
{
    size_t n = 0, n_last = strlen(last);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    while (n < n_bytes - 1 && poll(&wait, 1, 20000) > 0) {
        ssize_t m = read(fd, text + n, n_bytes - 1 - n);
        if (m <= 0) {
            break;
        }
        n += (size_t)m;
        if (n >= n_last && memcmp(text + n - n_last, last, n_last) == 0) {
            break;
        }
    }
    text[n] = '\0';
    return n;
}

/* The queue has room for all 200 lines, so none may be lost; closing waits for the last. */
TEST(lines_come_out_whole_and_in_order)
{
    int fds[2];
    REQUIRE(pipe(fds) == 0);
    struct line_writer *w = line_writer_open(fds[1], "test", 1 << 16, NULL);
    REQUIRE(w != NULL);
    char line[32], text[8192];
    for (int i = 0; i < 200; i++) {
        int n = snprintf(line, sizeof line, "line %d\n", i);
        line_writer_put(w, line, (size_t)n);
    }
    CHECK(line_writer_close(w, 5000));
    read_until(fds[0], text, sizeof text, "line 199\n");
    char *at = text;
    for (int i = 0; i < 200; i++) {
        snprintf(line, sizeof line, "line %d\n", i);
        REQUIRE(strncmp(at, line, strlen(line)) == 0);
        at += strlen(line);
    }
    CHECK_EQ(*at, 0);
    close(fds[0]);
    close(fds[1]);
}

/* The server logs from its event loop, so put must return at once although nobody reads
 * the pipe. 20,000 lines of 64 bytes are far more than the pipe (64 KiB) and the queue (16
 * KiB) hold, so some are lost; those are counted, none is torn, and lost and delivered
 * lines sum to all. */
TEST(an_unread_pipe_blocks_nobody_and_lost_lines_are_reported)
{
    enum { LINE = 64, LINES = 20000 };
    static char text[4 << 20];
    int fds[2];
    REQUIRE(pipe(fds) == 0);
    struct line_writer *w = line_writer_open(fds[1], "test", 16 << 10, lost_report);
    REQUIRE(w != NULL);
    char line[LINE + 1];
    int64_t longest = 0;
    for (int i = 0; i < LINES; i++) {
        snprintf(line, sizeof line, "%-*d\n", LINE - 1, i);
        int64_t start = clock_now_ns();
        line_writer_put(w, line, LINE);
        int64_t took = clock_now_ns() - start;
        longest = greater(took, longest);
    }
    CHECK(longest < 200000000);
    uint64_t lost = line_writer_lost(w);
    CHECK(lost > 0 && lost < LINES);

    /* The pipe is read again: the waiting lines arrive whole, and the number of lost lines is
     * reported. */
    uint64_t n_reported = 0, n_whole = 0;
    while (n_reported < lost || n_whole < LINES - lost) { // the report is not always the last line
        size_t n = read_until(fds[0], text, sizeof text, "\n");
        REQUIRE(n > 0 && text[n - 1] == '\n');
        for (char *at = text, *end; at < text + n; at = end + 1) {
            end = strchr(at, '\n');
            bool tells = end - at > 5 && strncmp(end - 5, " lost", 5) == 0;
            if (tells) {
                n_reported += strtoull(at, NULL, 10);
            }
            n_whole += !tells && end - at == LINE - 1;
        }
    }
    CHECK_EQ(n_reported, lost);
    CHECK_EQ(n_whole, LINES - lost);
    CHECK(line_writer_close(w, 5000));
    close(fds[0]);
    close(fds[1]);
}

/* Every write to /dev/full fails with ENOSPC: the lines count as lost and closing does not
 * hang. */
TEST(a_full_disk_costs_lines_and_nothing_else)
{
    int fd = open("/dev/full", O_WRONLY);
    if (fd < 0) {
        SKIP("no /dev/full here");
    }
    struct line_writer *w = line_writer_open(fd, "test", 1 << 16, lost_report);
    REQUIRE(w != NULL);
    line_writer_put(w, "one\ntwo\n", 8);
    int64_t until = clock_now_ns() + 5000000000;
    while (line_writer_lost(w) < 2 && clock_now_ns() < until) {
        usleep(1000);
    }
    CHECK_EQ(line_writer_lost(w), 2);
    CHECK(line_writer_close(w, 5000));
    close(fd);
}

/* The thread that ends the process writes why. If somebody reads, it writes all of it; otherwise it
 * waits no longer than it was told. */
TEST(the_last_words_wait_for_a_reader_but_not_for_ever)
{
    static char text[1 << 20];
    int fds[2];
    REQUIRE(pipe(fds) == 0);
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    while (write(fds[1], text, sizeof text) > 0) {
    }
    fcntl(fds[1], F_SETFL, 0); // as for a process that inherits the pipe
    const int64_t start = clock_now_ns();
    write_bounded(fds[1], "why\n", 4, 100);
    const int64_t took = clock_now_ns() - start;
    CHECK(took >= 90000000 && took < 5000000000);
    ssize_t n = read(fds[0], text, sizeof text);
    CHECK(n > 0 && memchr(text, 'w', (size_t)n) == NULL);
    write_bounded(fds[1], "why\n", 4, 100);
    close(fds[1]);
    size_t n_last = 0;
    while ((n = read(fds[0], text + n_last, sizeof text - n_last)) > 0) {
        n_last += (size_t)n;
    }
    CHECK(n_last >= 4 && memcmp(text + n_last - 4, "why\n", 4) == 0);
    close(fds[0]);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
