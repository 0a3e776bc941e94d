// SPDX-License-Identifier: Apache-2.0
/* The gated norm after a recurrent layer, compared with its formula in double precision. */
#include "test/device/op_harness.h"

static double gate_ref(enum gate_act act, double x)
{
    double sigmoid = 1.0 / (1.0 + exp(-x));
    double of[] = {x, sigmoid, x * sigmoid, log1p(exp(x))};
    return of[act];
}

OP_TEST(gates_follow_their_formulas)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    for (int32_t i = 0; i < 72; i++) {
        int32_t group = op_int(1, 40), width = group * op_int(1, 5), rows = op_int(1, 4);
        struct gate_args a = {.n_rows = rows,
                              .width = width,
                              .group = group,
                              .act = i % 4,
                              .gate_first = i / 4 % 2 == 1,
                              .per_group = i / 4 % 3 == 0,
                              .scale = 0.8f,
                              .eps = 1e-5f};
        const int32_t norms[] = {0, group, width}, n_norm = norms[i % 6 / 2];
        int32_t gates = a.per_group ? width / group : width;
        float *x = op_random((size_t)(rows * width), 1.0f);
        float *g = op_random((size_t)(rows * gates), 2.0f), *w = op_random((size_t)width, 1.0f);
        double *wanted = xcalloc((size_t)(rows * width), sizeof *wanted);
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t c = 0; c < width; c += group) {
                double square = 0.0, opened[64];
                for (int32_t j = 0; j < group; j++) {
                    double z =
                        (double)a.scale * (double)g[r * gates + (a.per_group ? c / group : c + j)];
                    opened[j] = gate_ref(a.act, z);
                    double v = (double)x[r * width + c + j] * (a.gate_first ? opened[j] : 1.0);
                    square += v * v;
                }
                for (int32_t j = 0; j < group; j++) {
                    double norm;
                    if (n_norm) {
                        norm = (double)w[n_norm == width ? c + j : j] / sqrt(square / group + 1e-5);
                    } else {
                        norm = 1.0;
                    }
                    wanted[r * width + c + j] = (double)x[r * width + c + j] * opened[j] * norm;
                }
            }
        }
        a.x = op_tensor(&rig, x, rows, width, width + 1);
        if (i % 5) {
            a.out = op_tensor(&rig, NULL, rows, width, width + 2);
        } else {
            a.out = a.x;
        }
        a.gate = op_tensor(&rig, g, rows, gates, gates + 1);
        a.norm = op_vector(&rig, n_norm ? w : NULL, n_norm);
        CHECK_EQ(rig.ops->gate(rig.be, &a), OK);
        float *out = op_fetch(&rig, a.out, rows, width);
        CHECK(op_distance(out, wanted, (size_t)(rows * width)) < 2e-5);
        free(out);
        free(wanted);
        free(x);
        free(g);
        free(w);
    }
    op_close(&rig);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
