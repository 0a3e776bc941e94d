// SPDX-License-Identifier: Apache-2.0
/* The addresses of the codes and scales of a weight that stays quantised. Shared by cpu_coded*.c.
 * Thread: any; the functions are pure. */
#ifndef SLUICE_CPU_CPU_CODED_H
#define SLUICE_CPU_CPU_CODED_H

#include "cpu/cpu_internal.h"

/* The description of the piece that contains the tile. */
static inline const struct coded *coded_of(const struct weight *w, int64_t tile)
{
    int32_t i = w->n_coded - 1;
    while (w->coded[i].first_tile > tile) {
        i--;
    }
    return &w->coded[i];
}

static inline char *tile_at(const struct weight *w, const struct coded *c, int64_t matrix,
                            int64_t tile)
{
    return w->packed + matrix * (int64_t)w->matrix_bytes + c->at +
           (tile - c->first_tile) * c->tile_bytes;
}

/* The index of the scale of the tile's first output in block (or unit) i of a segment, if there are
 * n blocks (or units) per segment. */
static inline int64_t scale_at(const struct weight *w, const struct coded *c, int64_t n,
                               int64_t matrix, int64_t tile, int64_t segment, int64_t i)
{
    int64_t at = matrix * c->n_tiles + tile - c->first_tile;
    return ((at * w->k_segments + segment) * n + i) * w->panels * PANEL;
}

/* The whole-tensor scale of the tile's first output. */
static inline float *whole_at(const struct weight *w, const struct coded *c, int64_t matrix,
                              int64_t tile)
{
    return c->whole + (matrix * c->n_tiles + tile - c->first_tile) * w->panels * PANEL;
}

/* The address of the group that contains input k of a segment, in the panel of output j. */
static inline uint8_t *group_at(const struct weight *w, const struct coded *c, int64_t matrix,
                                int64_t tile, int64_t segment, int64_t k, int64_t j)
{
    int32_t n = code_group(c->kind);
    int64_t group = (segment * w->segment_padded + k) / n * w->panels + j / PANEL;
    return (uint8_t *)tile_at(w, c, matrix, tile) + code_bytes(c->kind, group * n * PANEL);
}

/* The code that means 0 in packed 8-bit codes. Packing flips bit 7, so that this bit becomes the
 * sign. */
static inline float middle_of(enum dtype dtype)
{
    return dtype == DT_U8 ? 128.0f : 0.0f;
}

#endif
