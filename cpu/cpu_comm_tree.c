// SPDX-License-Identifier: Apache-2.0
/* The order in which the values of ranks are added. It is the same within a process and between
 * nodes. */
#include "cpu/cpu_comm.h"

float cpu_comm_tree_sum(const struct comm *c, int64_t row, int64_t col)
{
    float open[16];
    int32_t level = 0;
    for (int32_t i = 0; i < c->n_ranks; i++) {
        open[level++] = c->ranks[i].in[row * c->ranks[i].in_stride + col];
        for (int32_t bits = i + 1; bits % 2 == 0; bits /= 2, level--) {
            open[level - 2] += open[level - 1];
        }
    }
    for (; level > 1; level--) { // the number of ranks is not a power of two
        open[level - 2] += open[level - 1];
    }
    return open[0];
}
