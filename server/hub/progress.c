// SPDX-License-Identifier: Apache-2.0
/* Progress of a download: a bar on a terminal, a line now and then elsewhere. */
#include "server/hub/progress.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "server/hub/hub.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BAR_CELLS = 24 };

#define BAR_EVERY_NS 200000000LL
#define LINE_EVERY_NS 10000000000LL

void progress_init(struct progress *p, const char *what)
{
    *p = (struct progress){.what = what, .bar = isatty(STDERR_FILENO) == 1};
}

static void clear_bar(struct progress *p)
{
    if (p->drawn) {
        fputs("\r\033[K", stderr);
        p->drawn = false;
    }
}

void progress_note(struct progress *p, const char *line)
{
    clear_bar(p);
    log_info("%s: %s", p->what, line);
}

/* first_bytes were present before, so they do not count in the speed. */
void progress_begin(struct progress *p, size_t n_files, int64_t total_bytes, int64_t first_bytes)
{
    char total[32], first[32], line[160];
    p->total_bytes = total_bytes;
    p->first_bytes = first_bytes;
    p->began_ns = p->printed_ns = clock_now_ns();
    snprintf(line, sizeof line, "%zu files, %s, %s of it already downloaded", n_files,
             hub_size_text(total_bytes, total), hub_size_text(first_bytes, first));
    progress_note(p, line);
}

/* "1.2 GB of 2.8 GB (43 %), 85 MB/s, 19 s left" */
static void describe(const struct progress *p, int64_t n_bytes, int64_t now, char *out,
                     size_t n_out)
{
    char done[32], total[32], rate[32];
    const double seconds = (double)(now - p->began_ns) * 1e-9;
    double per_second = 0;
    if (seconds > 0) {
        per_second = (double)(n_bytes - p->first_bytes) / seconds;
    }
    double percent = 100;
    if (p->total_bytes > 0) {
        percent = 100.0 * (double)n_bytes / (double)p->total_bytes;
    }
    int n = snprintf(out, n_out, "%s of %s (%.0f %%), %s/s", hub_size_text(n_bytes, done),
                     hub_size_text(p->total_bytes, total), percent,
                     hub_size_text((int64_t)per_second, rate));
    if (per_second > 1 && n > 0 && (size_t)n < n_out) {
        snprintf(out + n, n_out - (size_t)n, ", %.0f s left",
                 (double)(p->total_bytes - n_bytes) / per_second);
    }
}

static void draw(struct progress *p, int64_t n_bytes, const char *text)
{
    char cells[BAR_CELLS + 1];
    const int64_t total = p->total_bytes > 0 ? p->total_bytes : 1;
    const int full = (int)((double)n_bytes / (double)total * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++) {
        cells[i] = i < full ? '#' : '.';
    }
    cells[BAR_CELLS] = '\0';
    fprintf(stderr, "\r\033[K%.40s [%s] %s", p->what, cells, text);
    fflush(stderr);
    p->drawn = true;
}

/* Called often; draws at most a few times per second. */
void progress_at(struct progress *p, int64_t n_bytes)
{
    const int64_t now = clock_now_ns();
    if (now - p->printed_ns < (p->bar ? BAR_EVERY_NS : LINE_EVERY_NS)) {
        return;
    }
    char text[160];
    p->printed_ns = now;
    describe(p, n_bytes, now, text, sizeof text);
    if (p->bar) {
        draw(p, n_bytes, text);
    } else {
        progress_note(p, text);
    }
}

void progress_end(struct progress *p, int64_t n_bytes)
{
    char size[32], line[96];
    const double seconds = (double)(clock_now_ns() - p->began_ns) * 1e-9;
    snprintf(line, sizeof line, "complete: %s received in %.1f s",
             hub_size_text(n_bytes - p->first_bytes, size), seconds);
    progress_note(p, line);
}
