// SPDX-License-Identifier: Apache-2.0
/* Values of keys, for the reader of files. Private to this folder. Thread: any. */
#ifndef SLUICE_ENGINE_GGUF_VALUE_H
#define SLUICE_ENGINE_GGUF_VALUE_H

#include "engine/gguf/gguf.h"

/* The size of one value of an enum gguf_type. 0 for strings and lists, which store their own
 * length, and for unknown types. */
size_t gguf_value_bytes(uint32_t type);

/* gguf_get_int and gguf_get_number for a value that has already been looked up; false if v is
 * NULL. */
bool gguf_value_int(const struct gguf_value *v, int64_t *out);
bool gguf_value_number(const struct gguf_value *v, double *out);

#endif
