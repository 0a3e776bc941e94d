// SPDX-License-Identifier: Apache-2.0
/* The points of GGUF's IQ1, IQ2 and IQ3 formats, whose blocks store indices of points instead of
 * numbers. A point is a few digits, one for each number: eight digits from 0 to 2 (two bits each),
 * or in IQ3 four digits from 0 to 7 (three bits each), the first in the lowest bits.
 * Thread: any. */
#ifndef SLUICE_ENGINE_DEVICE_GRIDS_H
#define SLUICE_ENGINE_DEVICE_GRIDS_H

#include <stdint.h>

enum grid { GRID_IQ1, GRID_IQ2_XXS, GRID_IQ2_XS, GRID_IQ2_S, GRID_IQ3_XXS, GRID_IQ3_S };

/* 2048 points of IQ1; 256, 512 and 1024 of IQ2; 256 and 512 of IQ3. */
const uint16_t *grid_points(enum grid grid);

#endif
