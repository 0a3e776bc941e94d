// SPDX-License-Identifier: Apache-2.0
/* Writes a copy of a model folder with its matrices quantised, in the format of compressed-tensors,
 * which other programs read too. The arithmetic is requantise.h's, so the copy gives the same
 * answers as quantising at load.
 *
 *     fp8        float-quantized: E4M3, a scale per output; inputs E4M3 by row
 *     fp8-block  float-quantized: E4M3, a scale per 128 x 128; inputs E4M3 by 128
 *     int4       pack-quantized: a scale per 128 inputs of an output, inputs not rounded
 *     int8       int-quantized: a scale per output; inputs 8 bits by row
 *
 * Thread: one, which splits large matrices among threads of its own. */
#ifndef SLUICE_ENGINE_MODEL_QUANTISE_H
#define SLUICE_ENGINE_MODEL_QUANTISE_H

#include "engine/base/status.h"

#include <stdint.h>

#define QUANTISE_FORMATS "fp8|fp8-block|int4|int8"

struct quantise_report {
    int64_t n_modules, n_files;
    int64_t bytes_before, bytes_after; // of all tensors
};

/* Processes one tensor at a time. `out` must be empty or not exist. The new config.json is written
 * last, so that an incomplete folder is not mistaken for a model. A file holds at most shard_bytes
 * of tensors, unless a single module is larger. */
enum status quantise_folder(const char *dir, const char *out, const char *format,
                            int64_t shard_bytes, struct quantise_report *report, struct err *err);

#endif
