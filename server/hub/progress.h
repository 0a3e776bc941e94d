// SPDX-License-Identifier: Apache-2.0
/* Progress of a download on standard error: a bar on a terminal, otherwise a line now and then.
 * Thread: one owner. */
#ifndef SLUICE_SERVER_HUB_PROGRESS_H
#define SLUICE_SERVER_HUB_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
    const char *what; // the model
    bool bar, drawn;
    int64_t total_bytes, first_bytes; // first_bytes: present before this download
    int64_t began_ns, printed_ns;
};

void progress_init(struct progress *p, const char *what);
void progress_begin(struct progress *p, size_t n_files, int64_t total_bytes, int64_t first_bytes);
void progress_at(struct progress *p, int64_t n_bytes); // may be called at any rate
void progress_end(struct progress *p, int64_t n_bytes);
void progress_note(struct progress *p, const char *line); // prints a line without disturbing the
                                                          // bar

#endif
