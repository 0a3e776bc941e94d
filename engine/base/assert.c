#include "engine/base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void assert_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "sluice: %s:%d: assertion failed: %s\n", file, line, what);
    abort();
}
