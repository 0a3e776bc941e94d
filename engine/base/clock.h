// SPDX-License-Identifier: Apache-2.0
/* Time. Below engine.c, time is passed as a parameter (now_ns); nothing there reads a clock.
 * Thread: any. */
#ifndef SLUICE_BASE_CLOCK_H
#define SLUICE_BASE_CLOCK_H

#include <stdint.h>

int64_t clock_now_ns(void);   // monotonic
int64_t clock_wall_sec(void); // seconds since 1970

#endif
