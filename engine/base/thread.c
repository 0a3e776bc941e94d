// SPDX-License-Identifier: Apache-2.0
#include "engine/base/thread.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

void thread_name(const char *fmt, ...)
{
    char name[16];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    pthread_setname_np(pthread_self(), name);
}
