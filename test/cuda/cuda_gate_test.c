// SPDX-License-Identifier: Apache-2.0
/* What surrounds a recurrence, compared with the scalar backend: short convolutions by themselves,
 * and gated norms. */
#include "engine/device/ops_default.h"
#include "test/cuda/cuda_pass.h"

/* Convolutions of several lengths, whose only state is their last inputs. */
TEST(short_convolutions_agree)
{
    NEED_GPU();
    static const int32_t widths[] = {1, 72, 200};
    for (int32_t i = 0; i < 9; i++) {
        struct pair p;
        struct backend_limits limits = pair_limits();
        const int32_t width = widths[i % 3], kernel = 2 + i % 4;
        const struct state_layer g = {
            .kind = STATE_CONV, .conv_width = width, .conv_kernel = kernel};
        const struct state_set_desc d = {1, &g, pair_dtypes[i / 3], 32, i};
        limits.max_lanes = 6;
        REQUIRE(pair_open(&p, pair_dtypes[i / 3], false, &limits));
        for (int b = 0; b < 2; b++) {
            struct err err = {""};
            CHECK_EQ(p.be[b]->ops->state_open(p.be[b], 0, &d, 0, &err), OK);
        }
        struct pair_weight weight = vector_make(&p, kernel * width, 0.5f);
        struct pair_weight bias = vector_make(&p, width, 0.5f);
        static const struct seq_spec specs[][3] = {{{0, 70, false}, {0, 1, false}, {0, 9, false}},
                                                   {{70, 1, false}, {1, 80, false}, {9, 3, false}}};
        for (int32_t j = 0; j < 2; j++) {
            static struct test_pass t;
            pass_of(&t, specs[j], 3, false, p.seed++);
            struct pair_tensor x = tensor_random(&p, t.pass.n_rows, width, width + 3, 1.0f);
            struct pair_tensor out =
                tensor_poisoned(&p, t.pass.n_rows, width + 2, pair_dtypes[i / 3]);
            struct short_conv_args a = {
                .n_rows = t.pass.n_rows, .width = width, .kernel = kernel, .silu = i % 2 == 1};
            step_begin(&p);
            pass_begin(&p, &t);
            BOTH(&p, short_conv, a, a.x = x.t[b]; a.out = out.t[b]; a.weight = weight.w[b];
                 a.bias = i % 2 ? bias.w[b] : NULL);
            pass_end(&p);
            step_end(&p, NULL);
            check_tensor(&p, "a short convolution", &out, width, pair_tolerance(&p));
        }
        pair_close(&p);
    }
}

/* Sets the lane's state back to its last boundary. Returns the boundary; 0: it has none. */
static int32_t go_back(struct pair *p, int32_t lane, int32_t snapshot, int32_t n_past)
{
    const int32_t boundary = n_past / 32 * 32;
    const struct state_copy copies[2] = {{lane, snapshot, boundary}, {snapshot, lane, boundary}};
    step_begin(p);
    for (int b = FIRST; b <= GPU && boundary > 0; b++) {
        for (int32_t i = 0; i < 2; i++) {
            CHECK_EQ(p->be[b]->ops->copy_states(p->be[b], 0, 1, &copies[i]), OK);
        }
    }
    step_end(p, NULL);
    return boundary;
}

/* The same between two gates, as one op, for few and many rows. The last step begins at the last
 * boundary. */
static void gated_conv_case(enum dtype dtype, int32_t width, int32_t kernel, int32_t first_rows,
                            bool is_last)
{
    enum { STEPS = 6 };
    struct pair p;
    struct backend_limits limits = pair_limits();
    const struct state_layer g = {.kind = STATE_CONV, .conv_width = width, .conv_kernel = kernel};
    const struct state_set_desc d = {1, &g, dtype, 32, 2};
    limits.max_lanes = 6;
    REQUIRE(pair_open(&p, dtype, false, &limits));
    for (int b = 0; b < 2; b++) {
        struct err err = {""};
        CHECK_EQ(p.be[b]->ops->state_open(p.be[b], 0, &d, 1, &err), OK);
    }
    struct pair_weight weight = vector_make(&p, kernel * width, 0.5f);
    struct seq_spec specs[2] = {{0, first_rows, false}, {0, 1, false}};
    for (int32_t step = 0; step < STEPS; step++) {
        static struct test_pass t;
        if (step == STEPS - 1) {
            specs[0].n_past = go_back(&p, 0, limits.max_lanes, specs[0].n_past);
        }
        pass_of(&t, specs, 2, false, p.seed++);
        const int32_t n = t.pass.n_rows;
        struct pair_tensor x = tensor_random(&p, n, 3 * width, 3 * width + 8, 1.0f);
        struct pair_tensor out = tensor_poisoned(&p, n, width + 2, dtype);
        step_begin(&p);
        pass_begin(&p, &t);
        for (int b = FIRST; b <= GPU; b++) {
            struct gate_args before = {.x = x.t[b],
                                       .out = x.t[b],
                                       .gate = x.t[b],
                                       .n_rows = n,
                                       .width = width,
                                       .group = width,
                                       .act = GATE_AS_IS,
                                       .scale = 1.0f};
            struct gate_args after = before;
            const size_t bytes = (size_t)width * dtype_bytes(x.t[b].dtype);
            before.gate.mem = dmem_at(x.t[b].mem, bytes);
            after.gate.mem = dmem_at(x.t[b].mem, 2 * bytes);
            after.x = after.out = out.t[b];
            const struct short_conv_args conv = {.x = x.t[b],
                                                 .out = out.t[b],
                                                 .weight = weight.w[b],
                                                 .n_rows = n,
                                                 .width = width,
                                                 .kernel = kernel};
            CHECK_EQ(ops_gated_conv(p.be[b], &before, &conv, is_last ? NULL : &after), OK);
        }
        pass_end(&p);
        step_end(&p, NULL);
        check_tensor(&p, "a convolution between gates", &out, width, 2.0 * pair_tolerance(&p));
        specs[0] = (struct seq_spec){specs[0].n_past + specs[0].n_new, 1, false};
        specs[1] = (struct seq_spec){specs[1].n_past + specs[1].n_new, 1 + step % 2, false};
    }
    pair_close(&p);
}

TEST(gated_convolutions_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < 3; d++) {
        gated_conv_case(pair_dtypes[d], 72, 3, 35, false);
        gated_conv_case(pair_dtypes[d], 200, 4, 90, false);
        gated_conv_case(pair_dtypes[d], 256, 3, 31, true);
        gated_conv_case(pair_dtypes[d], 256, 4, 31, false);
        gated_conv_case(pair_dtypes[d], 70, 5, 31, false); // for the kernel of any pass
    }
}

/* Gates before and after the norm, in groups and per element, at any alignment. */
TEST(gates_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < 168; i++) {
        struct pair p;
        const int32_t pad = i % 2 ? 8 : 3; // rows are aligned to 16 bytes, or not
        REQUIRE(pair_open(&p, pair_dtypes[i % 3], false, NULL));
        static const int32_t groups[] = {1, 64, 128, 256, 300, 320, 2064};
        const int32_t group = groups[i / 3 % 7], width = group * (1 + i % 5), n_rows = 1 + i % 7;
        const struct backend_limits limits = pair_limits();
        struct gate_args a = {.n_rows = n_rows,
                              .width = width,
                              .group = group,
                              .act = (enum gate_act)(i / 2 % 4),
                              .gate_first = i % 4 == 1,
                              .per_group = i % 4 == 0,
                              .scale = 0.8f,
                              .eps = 1e-5f};
        struct pair_weight norm = vector_make(&p, i % 5 < 2 ? group : width, 1.0f);
        for (int b = 0; b < 2; b++) {
            struct err err;
            CHECK_EQ(p.be[b]->ops->setup(p.be[b], &limits, &err), OK);
        }
        struct pair_tensor x = tensor_random(&p, n_rows, width, width + pad, 1.0f);
        struct pair_tensor gate =
            tensor_random(&p, n_rows, a.per_group ? width / group : width, width + pad, 2.0f);
        struct pair_tensor out = tensor_poisoned(&p, n_rows, width + pad, p.dtype);
        BOTH(&p, gate, a, a.x = x.t[b]; a.gate = gate.t[b]; a.out = out.t[b];
             a.norm = i % 5 < 4 ? norm.w[b] : NULL);
        check_tensor(&p, "a gate", &out, width, pair_tolerance(&p));
        pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
