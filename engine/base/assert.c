// SPDX-License-Identifier: Apache-2.0
#include "engine/base/assert.h"
#include "engine/base/write.h"

#include <stdio.h>
#include <stdlib.h>

void assert_failed(const char *what, const char *file, int line)
{
    char text[512];
    snprintf(text, sizeof text, "sluice: %s:%d: assertion failed: %s\n", file, line, what);
    write_last(text);
    abort();
}
