// SPDX-License-Identifier: Apache-2.0
/* Sorts the rows of a pass by their adapters. */
#include "cuda/adapter.h"
#include "engine/base/minmax.h"

#include <string.h>

int32_t adapter_items_make(const int32_t *of_row, const int32_t *picks, int32_t n, int32_t tile,
                           int32_t n_adapters, int32_t *counts, int32_t *rows,
                           struct adapter_item *items)
{
    int32_t n_items = 0, first = 0;
    memset(counts, 0, ((size_t)n_adapters + 1) * sizeof *counts);
    for (int32_t i = 0; i < n; i++) {
        counts[of_row[picks ? picks[i] : i]]++;
    }
    for (int32_t a = 1; a <= n_adapters; a++) {
        const int32_t end = first + counts[a];
        counts[a] = first; // from here on where the adapter's next row goes
        for (; first < end; first += tile) {
            const int32_t left = end - first;
            items[n_items++] = (struct adapter_item){a, first, lesser(left, tile), 0};
        }
        first = end;
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t a = of_row[picks ? picks[i] : i];
        if (a > 0) {
            rows[counts[a]++] = i;
        }
    }
    return n_items;
}
