// SPDX-License-Identifier: Apache-2.0
/* Writes a model's folder once more with its matrices quantised, in the form of compressed-tensors,
 * which other programs read too. The arithmetic is requantise.h's, so the folder gives the answers
 * that quantising while loading gives.
 *
 *     fp8        float-quantized: E4M3, a scale for each output; inputs E4M3 by row
 *     fp8-block  float-quantized: E4M3, a scale for each 128 x 128; inputs E4M3 by 128
 *     int4       pack-quantized: a scale for each 128 inputs of an output, inputs as they are
 *     int8       int-quantized: a scale for each output; inputs 8 bits by row
 *
 * Thread: one; a large matrix is shared among some of its own. */
#ifndef SLUICE_ENGINE_MODEL_QUANTISE_H
#define SLUICE_ENGINE_MODEL_QUANTISE_H

#include "engine/base/status.h"

#include <stdint.h>

#define QUANTISE_FORMATS "fp8|fp8-block|int4|int8"

struct quantise_report {
    int64_t n_modules, n_files;
    int64_t bytes_before, bytes_after; // of all tensors
};

/* One tensor at a time. `out` is made, or is empty; its config.json is written last, so that what
 * was left half-way is no model. A file has at most shard_bytes, unless one module has more. */
enum status quantise_folder(const char *dir, const char *out, const char *format,
                            int64_t shard_bytes, struct quantise_report *report, struct err *err);

#endif
