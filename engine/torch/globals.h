// SPDX-License-Identifier: Apache-2.0
/* The globals of Python that state dicts name, and the types of elements among them.
 * Thread: any. */
#ifndef SLUICE_ENGINE_TORCH_GLOBALS_H
#define SLUICE_ENGINE_TORCH_GLOBALS_H

#include <stddef.h>
#include <stdint.h>

enum torch_global {
    TORCH_DICT,             // collections.OrderedDict()
    TORCH_TENSOR,           // (storage, offset, size, stride, ...)
    TORCH_TENSOR_OF_DTYPE,  // (storage, offset, size, stride, requires_grad, hooks, dtype, ...)
    TORCH_PARAMETER,        // (tensor, ...)
    TORCH_CALL_OF_TYPE,     // (function, type, arguments, ...)
    TORCH_TYPE,             // the second argument of the last one
    TORCH_SIZE,             // (a tuple)
    TORCH_STORAGE,          // of elements of one type
    TORCH_STORAGE_OF_BYTES, // of elements of any type
    TORCH_DTYPE,
};

struct torch_global_row {
    const char *module, *name;
    enum torch_global what;
    const char *dtype_name; // STORAGE and DTYPE: as in safetensors files
    size_t element_bytes;
};

/* The row's number, or -1. */
int32_t torch_find_global(const char *module, const char *name);
const struct torch_global_row *torch_global_row(int64_t number);

#endif
