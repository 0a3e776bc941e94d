// SPDX-License-Identifier: Apache-2.0
/* Plain matrices that are quantised while they load (--quantization): one at a time, into memory
 * that lives until the backend has taken the weight. The codecs are those of published checkpoints,
 * so nothing else knows that these were made here.
 *
 *     fp8   E4M3, a scale for each output, or, with `blocks`, for each 128 x 128; inputs are
 * rounded to E4M3, with a scale for each row or for each 128 of them int4  symmetric, a scale for
 * each 128 inputs of an output (of 32 where 128 do not divide them); inputs are left as they are
 *     int8  symmetric, a scale for each output; inputs are rounded to 8 bits, with a scale for each
 *           row. No option of loading has it
 *
 * Thread: the loader's; the rows of a large matrix are shared among some of its own. */
#ifndef SLUICE_ENGINE_MODEL_REQUANTISE_H
#define SLUICE_ENGINE_MODEL_REQUANTISE_H

#include "engine/device/codec.h"

enum requantise_kind { REQUANTISE_NOT, REQUANTISE_FP8, REQUANTISE_INT4, REQUANTISE_INT8 };

struct requantise {
    enum requantise_kind kind;
    bool blocks; // of FP8
    void **made; // what is to be freed
    int32_t n_made, room;
};

/* Turns a part of plain weights into one that is quantised; any other is left as it is. A window of
 * a tensor, too: its scales are of the window. */
void requantise_part(struct requantise *q, struct weight_part *part);
/* How many inputs of n_in share a scale. */
int64_t requantise_group(const struct requantise *q, int64_t n_in);
/* Frees what the parts so far read. */
void requantise_clear(struct requantise *q);
void requantise_deinit(struct requantise *q);

#endif
