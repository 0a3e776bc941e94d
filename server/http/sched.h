// SPDX-License-Identifier: Apache-2.0
/* How the kernel schedules the loop thread. Thread: the loop, which calls it for itself. */
#ifndef SLUICE_SERVER_HTTP_SCHED_H
#define SLUICE_SERVER_HTTP_SCHED_H

void http_sched_prefer_short_slices(void);

#endif
