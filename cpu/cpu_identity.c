// SPDX-License-Identifier: Apache-2.0
/* Experts that return their input. One item per row. */
#include "cpu/cpu_internal.h"

static void identity_item(void *arg, int32_t row, int32_t thread)
{
    const struct moe_identity_args *a = arg;
    int32_t *ids = (int32_t *)a->ids.p + (int64_t)row * a->k;
    float *weights = (float *)a->weights.p + (int64_t)row * a->k;
    const float *x = tensor_row(&a->x, row);
    float *y = tensor_row(&a->y, row), sum = 0.0f;
    int32_t other = 0;
    (void)thread;
    for (int32_t i = a->k - 1; i >= 0; i--) {
        other = ids[i] < a->n_experts ? ids[i] : other;
    }
    for (int32_t i = 0; i < a->k; i++) {
        if (ids[i] >= a->n_experts) {
            sum += weights[i];
            ids[i] = other;
            weights[i] = 0.0f;
        }
    }
    for (int32_t i = 0; i < a->width; i++) {
        y[i] = sum * x[i];
    }
}

enum status cpu_moe_identity(struct backend *be, const struct moe_identity_args *a)
{
    struct moe_identity_args args = *a;
    ASSERT(a->k > 0 && a->k <= MAX_PICKS && a->n_experts > 0);
    pool_run(cpu_of(be)->pool, a->n_rows, identity_item, &args);
    return OK;
}
