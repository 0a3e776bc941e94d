// SPDX-License-Identifier: Apache-2.0
#include "engine/device/dtype.h"

bool dtype_find(const char *name, enum dtype *out)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } rows[] = {{"bfloat16", DT_BF16}, {"float16", DT_F16}, {"float32", DT_F32}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(name, rows[i].name) == 0) {
            *out = rows[i].dtype;
            return true;
        }
    }
    return false;
}
