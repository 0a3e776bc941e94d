// SPDX-License-Identifier: Apache-2.0
/* Rounding of inputs: each number is the nearest that the format has, ties to the even code. */
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"
#include "test/check.h"
#include "test/device/op_harness.h"

enum { N = 400 };

/* The nearest number of the type, found by trying all. */
static float nearest(enum dtype dtype, float x)
{
    uint32_t best = 0, n = dtype == DT_E2M1 ? 8 : 0x7F; // codes without signs; the last of E4M3 is
                                                        // NaN
    double distance = INFINITY, a = fabs((double)x);
    for (uint32_t i = 0; i < n; i++) {
        double d = fabs((double)dtype_value(dtype, i) - a);
        if (d < distance || (d == distance && i % 2 == 0)) {
            best = i;
            distance = d;
        }
    }
    return copysignf(dtype_value(dtype, best), x);
}

static void round_row(struct input_rule rule, struct input_scale stored, int64_t first,
                      const float *x, float *out)
{
    struct weight w = {.n_in = N, .inputs = rule, .input_scales = &stored, .first_input = first};
    struct input_group group = {.at = -1};
    for (int64_t k = 0, n; k < N; k += n) {
        n = cpu_round_inputs(&w, 0, x, NULL, k, op_int(1, 60), out + k, &group);
    }
}

static float largest_of(const float *x, int64_t n)
{
    float largest = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        largest = greater(fabsf(x[i]), largest);
    }
    return largest;
}

/* Numbers of all sizes, including ties and numbers above the largest code. */
static float *inputs(float scale)
{
    float *x = op_random(N, 1.0f);
    for (int32_t i = 0; i < N; i++) {
        x[i] *= ldexpf(scale, op_int(-12, 1));
        if (i % 5 == 0) {
            x[i] = nearest(DT_E4M3, x[i] / scale) * scale;
        }
    }
    return x;
}

/* Random numbers, and those half way between two codes. */
TEST(stored_scales_of_e4m3)
{
    struct input_rule rule = {.numbers = INPUT_E4M3, .n_inputs = N};
    float *x = inputs(300.0f), y[N];
    round_row(rule, (struct input_scale){0.25f, 0.0f}, 0, x, y);
    for (int32_t i = 0; i < N; i++) {
        CHECK_NEAR(y[i], nearest(DT_E4M3, x[i] / 0.25f) * 0.25f, 0.0);
    }
    for (uint32_t i = 0; i < 0x7E; i++) { // half way between two
        float tie = 0.5f * (dtype_value(DT_E4M3, i) + dtype_value(DT_E4M3, i + 1));
        x[i] = i % 3 ? tie : -tie;
    }
    round_row(rule, (struct input_scale){1.0f, 0.0f}, 0, x, y);
    for (uint32_t i = 0; i < 0x7E; i++) {
        CHECK_NEAR(y[i], nearest(DT_E4M3, x[i]), 0.0);
    }
    free(x);
}

/* Scales from the row's largest number, and from each group's. */
TEST(scales_of_rows_and_groups)
{
    float *x = inputs(2.0f), y[N];
    round_row((struct input_rule){.numbers = INPUT_E4M3, .from_row = true, .n_inputs = N},
              (struct input_scale){0}, 0, x, y);
    float scale = largest_of(x, N) / 448.0f;
    for (int32_t i = 0; i < N; i++) {
        CHECK_NEAR(y[i], nearest(DT_E4M3, x[i] / scale) * scale, 0.0);
    }
    const float limit = 0.25f * largest_of(x, N);
    round_row(
        (struct input_rule){.numbers = INPUT_E4M3, .from_row = true, .limit = limit, .n_inputs = N},
        (struct input_scale){0}, 0, x, y);
    for (int32_t i = 0; i < N; i++) { // numbers above the limit become the limit
        CHECK_NEAR(y[i], nearest(DT_E4M3, x[i] / (limit / 448.0f)) * (limit / 448.0f), 0.0);
        CHECK(fabsf(y[i]) <= limit);
    }
    struct input_rule rule = {
        .numbers = INPUT_E4M3, .from_row = true, .group = 128, .n_inputs = N + 40};
    for (int32_t pass = 0; pass < 2; pass++) {
        rule.power_of_two = pass == 1;
        round_row(rule, (struct input_scale){0}, 40, x, y); // groups begin at 88, 216, 344
        for (int32_t i = 0; i < N; i++) {
            int32_t first = i < 88 ? 0 : (i - 88) / 128 * 128 + 88;
            int32_t end = i < 88 ? 88 : lesser(first + 128, N);
            scale = largest_of(x + first, end - first) / 448.0f;
            if (pass) {
                scale = exp2f(ceilf(log2f(scale)));
            }
            CHECK_NEAR(y[i], nearest(DT_E4M3, x[i] / scale) * scale, 0.0);
        }
    }
    free(x);
}

/* Symmetric codes are exact; asymmetric ones are within a step of the scale. */
TEST(int8_codes)
{
    float *x = op_random(N, 3.0f), y[N];
    struct input_rule rule = {.numbers = INPUT_I8, .from_row = true, .n_inputs = N};
    round_row(rule, (struct input_scale){0}, 0, x, y);
    float scale = largest_of(x, N) / 127.0f;
    for (int32_t i = 0; i < N; i++) {
        CHECK_NEAR(y[i], rintf(x[i] / scale) * scale, 0.0);
        x[i] = x[i] + 5.0f; // so that they are not centred at 0
    }
    rule.asymmetric = true;
    round_row(rule, (struct input_scale){0}, 0, x, y);
    float low = 0.0f, high = 0.0f;
    for (int32_t i = 0; i < N; i++) {
        low = lesser(x[i], low);
        high = greater(x[i], high);
    }
    for (int32_t i = 0; i < N; i++) {
        CHECK_NEAR(y[i], x[i], (high - low) / 255.0f);
    }
    free(x);
}

/* Two scales: one per group, itself in e4m3, and one of the tensor. */
TEST(four_bits_with_scales_of_e4m3)
{
    float *x = inputs(2.0f), y[N], stored = 0.003f;
    struct input_rule rule = {.numbers = INPUT_E2M1, .from_row = true, .group = 16, .n_inputs = N};
    round_row(rule, (struct input_scale){stored, 0.0f}, 0, x, y);
    for (int32_t i = 0; i < N; i++) {
        float scale = nearest(DT_E4M3, largest_of(x + i / 16 * 16, 16) / 6.0f / stored) * stored;
        CHECK_NEAR(y[i], scale > 0 ? nearest(DT_E2M1, x[i] / scale) * scale : 0.0f, 0.0);
    }
    free(x);
}

/* A row of zeros has no scale; division by it must not give NaN. */
TEST(a_row_of_zeros_stays_zero)
{
    static const float zeros[N];
    static const enum input_numbers all[] = {INPUT_E4M3, INPUT_I8, INPUT_E2M1};
    float y[N];
    for (int32_t i = 0; i < 3; i++) {
        struct input_rule rule = {.numbers = all[i], .from_row = true, .n_inputs = N};
        round_row(rule, (struct input_scale){0.5f, 0.0f}, 0, zeros, y);
        CHECK(largest_of(y, N) == 0.0f);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
