// SPDX-License-Identifier: Apache-2.0
/* Quantises plain matrices at load (--quantization): one at a time, into memory that lives until
 * the backend has taken the weight. The codecs are those of published checkpoints, so no other code
 * needs to know that the weights were quantised here.
 *
 *     fp8   E4M3, a scale per output, or with `blocks` per 128 x 128; inputs are rounded to E4M3,
 *           with a scale per row, or per 128 inputs
 *     int4  symmetric, a scale per 128 inputs of an output (per 32 if 128 does not divide them);
 *           inputs are not rounded
 *     int8  symmetric, a scale per output; inputs are rounded to 8 bits, with a scale per row. Not
 *           available at load
 *
 * Thread: the loader's, which splits the rows of large matrices among threads of its own. */
#ifndef SLUICE_ENGINE_MODEL_REQUANTISE_H
#define SLUICE_ENGINE_MODEL_REQUANTISE_H

#include "engine/device/codec.h"

enum requantise_kind { REQUANTISE_NOT, REQUANTISE_FP8, REQUANTISE_INT4, REQUANTISE_INT8 };

#define REQUANTISE_AT_LOAD "fp8|int4" // in the order of enum requantise_kind

/* The kind of this name, or REQUANTISE_NOT. */
enum requantise_kind requantise_named(const char *name);

struct requantise {
    enum requantise_kind kind;
    bool blocks; // for FP8
    void **made; // memory to free in requantise_clear
    int32_t n_made, room;
};

/* Replaces a part that has plain weights by a quantised one; other parts are unchanged. The part
 * may be a window of a tensor; the scales are then those of the window. */
void requantise_part(struct requantise *q, struct weight_part *part);
/* The number of inputs that share a scale, for a matrix of n_in inputs. */
int64_t requantise_group(const struct requantise *q, int64_t n_in);
/* Frees the memory of all parts made so far. */
void requantise_clear(struct requantise *q);
void requantise_deinit(struct requantise *q);

#endif
