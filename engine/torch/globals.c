// SPDX-License-Identifier: Apache-2.0
#include "engine/torch/globals.h"

#include <string.h>

#define STORAGE(name, dtype, n) {"torch", name "Storage", TORCH_STORAGE, dtype, n}
#define DTYPE(name, dtype, n) {"torch", name, TORCH_DTYPE, dtype, n}

static const struct torch_global_row rows[] = {
    {"collections", "OrderedDict", TORCH_DICT, NULL, 0},
    {"torch._utils", "_rebuild_tensor", TORCH_TENSOR, NULL, 0},
    {"torch._utils", "_rebuild_tensor_v2", TORCH_TENSOR, NULL, 0},
    {"torch._utils", "_rebuild_tensor_v3", TORCH_TENSOR_OF_DTYPE, NULL, 0},
    {"torch._utils", "_rebuild_parameter", TORCH_PARAMETER, NULL, 0},
    {"torch._utils", "_rebuild_parameter_with_state", TORCH_PARAMETER, NULL, 0},
    {"torch._tensor", "_rebuild_from_type_v2", TORCH_CALL_OF_TYPE, NULL, 0},
    {"torch", "Tensor", TORCH_TYPE, NULL, 0},
    {"torch.nn.parameter", "Parameter", TORCH_TYPE, NULL, 0},
    {"torch", "Size", TORCH_SIZE, NULL, 0},
    {"torch.storage", "UntypedStorage", TORCH_STORAGE_OF_BYTES, NULL, 0},
    {"torch", "UntypedStorage", TORCH_STORAGE_OF_BYTES, NULL, 0},
    STORAGE("Double", "F64", 8),
    STORAGE("Float", "F32", 4),
    STORAGE("Half", "F16", 2),
    STORAGE("BFloat16", "BF16", 2),
    STORAGE("Long", "I64", 8),
    STORAGE("Int", "I32", 4),
    STORAGE("Short", "I16", 2),
    STORAGE("Char", "I8", 1),
    STORAGE("Byte", "U8", 1),
    STORAGE("Bool", "BOOL", 1),
    DTYPE("float64", "F64", 8),
    DTYPE("float32", "F32", 4),
    DTYPE("float16", "F16", 2),
    DTYPE("bfloat16", "BF16", 2),
    DTYPE("int64", "I64", 8),
    DTYPE("int32", "I32", 4),
    DTYPE("int16", "I16", 2),
    DTYPE("int8", "I8", 1),
    DTYPE("uint8", "U8", 1),
    DTYPE("uint16", "U16", 2),
    DTYPE("uint32", "U32", 4),
    DTYPE("uint64", "U64", 8),
    DTYPE("bool", "BOOL", 1),
    DTYPE("float8_e4m3fn", "F8_E4M3", 1),
    DTYPE("float8_e5m2", "F8_E5M2", 1),
    DTYPE("float8_e8m0fnu", "F8_E8M0", 1),
};

int32_t torch_find_global(const char *module, const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].module, module) == 0 && strcmp(rows[i].name, name) == 0) {
            return (int32_t)i;
        }
    }
    return -1;
}

const struct torch_global_row *torch_global_row(int64_t number)
{
    return &rows[number];
}
