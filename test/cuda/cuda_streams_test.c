// SPDX-License-Identifier: Apache-2.0
/* Several residual streams, and MLPs of which few gates are open, compared with the scalar
 * backend. */
#include "test/cuda/cuda_pass.h"

static bool open_pair(struct pair *p, enum dtype dtype)
{
    const struct backend_limits limits = pair_limits();
    return pair_open(p, dtype, false, &limits);
}

/* Numbers of streams up to the largest, before and after a layer, at any alignment. */
TEST(streams_agree)
{
    NEED_GPU();
    static const int32_t widths[] = {1, 64, 300, 2048};
    for (int32_t i = 0; i < 84; i++) {
        struct pair p;
        const int32_t n = 2 + i % 7, width = widths[i / 3 % 4], n_rows = 1 + i % 5;
        const bool after = i % 2 == 1;
        REQUIRE(open_pair(&p, pair_dtypes[i % 3]));
        struct pair_weight router = vector_make(&p, n * width, sqrtf((float)width));
        struct pair_weight coefs = vector_make(&p, (after ? n : n * n) * n, 0.3f);
        struct pair_weight scale = vector_make(&p, width, 1.0f);
        const int32_t all = n * width, pad = i % 4 ? 8 : 3;
        struct pair_tensor streams = tensor_random(&p, n_rows, all, all + pad, 1.0f);
        struct pair_tensor x = tensor_random(&p, n_rows, width, width + pad, 1.0f);
        struct pair_tensor in = tensor_random(&p, n_rows, width, width + pad, 1.0f);
        struct streams_args a = {.n_rows = n_rows,
                                 .width = width,
                                 .n = n,
                                 .active = i % n,
                                 .router_scale = 1.0f / (float)width,
                                 .after = after};
        BOTH(&p, streams, a, a.streams = streams.t[b]; a.x = x.t[b]; a.in = in.t[b];
             a.router = router.w[b]; a.coefs = coefs.w[b];
             a.scale = after && i % 4 == 1 ? scale.w[b] : NULL);
        check_tensor(&p, "streams", &streams, all, 2.0 * pair_tolerance(&p));
        check_tensor(&p, "the active stream", &x, width, 2.0 * pair_tolerance(&p));
        pair_close(&p);
    }
}

/* Also of rows below the floor, and in place. */
TEST(matched_sizes_agree)
{
    NEED_GPU();
    static const int32_t widths[] = {1, 40, 513, 2048};
    for (int32_t i = 0; i < 36; i++) {
        struct pair p;
        const int32_t width = widths[i / 3 % 4], n_rows = 1 + i % 7, pad = i % 2 ? 8 : 3;
        REQUIRE(open_pair(&p, pair_dtypes[i % 3]));
        struct pair_tensor x = tensor_random(&p, n_rows, width, width + pad, i % 5 ? 1.0f : 2e-3f);
        struct pair_tensor like = tensor_random(&p, n_rows, width, width + pad, 2.0f);
        struct pair_tensor other = tensor_poisoned(&p, n_rows, width + pad, p.dtype);
        struct pair_tensor *out = i % 4 < 2 ? &x : &other;
        struct rms_match_args a = {.n_rows = n_rows, .width = width, .floor = 1e-5f};
        BOTH(&p, rms_match, a, a.x = x.t[b]; a.like = like.t[b]; a.out = out->t[b]);
        check_tensor(&p, "a matched size", out, width, pair_tolerance(&p));
        pair_close(&p);
    }
}

TEST(cutoffs_agree)
{
    NEED_GPU();
    static const int32_t widths[] = {1, 96, 700, 16384};
    for (int32_t i = 0; i < 36; i++) {
        struct pair p;
        const int32_t width = widths[i / 3 % 4], n_rows = 1 + i % 7;
        REQUIRE(open_pair(&p, pair_dtypes[i % 3]));
        struct pair_tensor x = tensor_random(&p, n_rows, width, 2 * width + i % 2, 1.0f);
        struct cutoff_args a = {
            .n_rows = n_rows, .width = width, .deviations = (float)(i % 5 - 1) * 0.8f};
        BOTH(&p, cutoff, a, a.x = x.t[b]);
        check_tensor(&p, "a cutoff", &x, width, pair_tolerance(&p));
        pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
