// SPDX-License-Identifier: Apache-2.0
/* The numbers of KV formats: worked examples, the largest error of encoding, equal codes and
 * numbers from all kernel tables, and that a token in a page does not touch its neighbours. */
#include "cpu/cpu_kv_codes.h"

#include "test/device/op_harness.h"

enum { N = 16, ROWS = 3 };

/* Numbers whose codes and scales were worked out independently of this code. */
static const float worked[ROWS][N] = {
    {1.171875f, 0.58203125f, -0.95703125f, -0.40625f, 1.921875f, 0.73828125f, 0.12890625f,
     -0.80078125f, -1.15625f, -0.96875f, -1.1796875f, 0.8046875f, 1.640625f, 0.365234375f,
     -0.46875f, -0.94921875f},
    {0.166015625f, 0.1728515625f, 0.1552734375f, 0.212890625f, 0.2353515625f, 0.15234375f,
     0.1630859375f, 0.2216796875f, 0.1796875f, 0.2353515625f, 0.177734375f, 0.28515625f,
     0.2177734375f, 0.220703125f, 0.244140625f, 0.1708984375f},
    {-34.25f, 25.625f, 36.5f, 11.0625f, 26.375f, -5.8125f, -2.109375f, 30.125f, 5.625f, 40.75f,
     14.375f, -1.1015625f, -24.125f, 0.5703125f, -24.875f, 23.625f},
};

/* The codes, scales and zeros that each format gives for these rows. */
static const struct worked_case {
    enum kv_format format;
    float stored;
    float scale[ROWS], zero[ROWS];
    int16_t codes[ROWS][N];
} cases[] = {
    {KV_FP8,
     0.0f,
     {0.0042898994870483875f, 0.0006365095032379031f, 0.0909598246216774f},
     {0},
     {{121, 112, 246, 236, 126, 115, 95, 244, 248, 246, 249, 116, 124, 107, 238, 246},
      {120, 120, 119, 122, 124, 119, 120, 123, 121, 124, 121, 126, 123, 123, 124, 120},
      {252, 121, 125, 111, 121, 232, 220, 122, 103, 126, 114, 212, 248, 77, 249, 120}}},
    {KV_FP8,
     0.25f,
     {0.25f, 0.25f, 0.25f},
     {0},
     {{73, 65, 199, 189, 79, 68, 48, 197, 201, 200, 201, 69, 77, 60, 191, 199},
      {51, 51, 50, 54, 55, 50, 50, 54, 52, 55, 51, 57, 54, 54, 56, 51},
      {241, 109, 113, 99, 109, 220, 208, 111, 91, 114, 102, 201, 236, 65, 236, 108}}},
    {KV_INT8_SYMMETRIC,
     0.0f,
     {0.015132874250411987f, 0.002245324896648526f, 0.3208661377429962f},
     {0},
     {{77, 38, -63, -27, 127, 49, 9, -53, -76, -64, -78, 53, 108, 24, -31, -63},
      {74, 77, 69, 95, 105, 68, 73, 99, 80, 105, 79, 127, 97, 98, 109, 76},
      {-107, 80, 114, 34, 82, -18, -7, 94, 18, 127, 45, -3, -75, 2, -78, 74}}},
    {KV_INT8,
     0.0f,
     {0.012162989936769009f, 0.0005208333604969084f, 0.29411765933036804f},
     {96.98992919921875f, -292.5f, 116.44999694824219f},
     {{193, 145, 18, 64, 255, 158, 108, 31, 2, 17, 0, 163, 232, 127, 58, 19},
      {26, 39, 6, 116, 159, 0, 21, 133, 52, 159, 49, 255, 126, 131, 176, 36},
      {0, 204, 241, 154, 206, 97, 109, 219, 136, 255, 165, 113, 34, 118, 32, 197}}},
    {KV_INT4,
     0.0f,
     {0.20677083730697632f, 0.008854166604578495f, 5.0f},
     {5.705289363861084f, -17.205883026123047f, 6.849999904632568f},
     {{11, 9, 1, 4, 15, 9, 6, 2, 0, 1, 0, 10, 14, 7, 3, 1},
      {2, 2, 0, 7, 9, 0, 1, 8, 3, 9, 3, 15, 7, 8, 10, 2},
      {0, 12, 14, 9, 12, 6, 6, 13, 8, 15, 10, 7, 2, 7, 2, 12}}},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* Codes, scales and zeros are exactly those worked out. */
TEST(worked_values)
{
    for (int32_t i = 0; i < N_CASES; i++) {
        const struct worked_case *c = &cases[i];
        const struct kv_plane p = kv_plane_make(c->format, DT_F32, true, 16, N, c->stored, 0);
        for (int32_t r = 0; r < ROWS; r++) {
            uint8_t codes[N];
            struct kv_scale s;
            kv_encode_scalar(&p, worked[r], N, codes, &s);
            CHECK_NEAR(s.scale, c->scale[r], 0.0);
            CHECK_NEAR(s.zero, c->zero[r], 0.0);
            for (int32_t d = 0; d < N; d++) {
                CHECK_EQ(codes[d], c->codes[r][d] & 0xFF);
            }
        }
    }
    const struct kv_plane p = kv_plane_make(KV_INT4, DT_F32, true, 16, N, 0.0f, 0);
    CHECK_NEAR(kv_decode(&p, (struct kv_scale){5.0f, 6.849999904632568f}, 12), 25.75, 0.0);
}

/* The error is at most half a step. E4M3 has eight steps between two powers of two. */
static double worst_error(const struct kv_plane *p, struct kv_scale s, float x)
{
    double a = fabs((double)x);
    if (p->format == KV_FP8) {
        double code = a / (double)s.scale;
        double step;
        if (code < 0.015625) {
            step = 0.001953125;
        } else {
            step = exp2(floor(log2(code))) / 8.0;
        }
        return 0.5001 * step * (double)s.scale;
    }
    return 0.5001 * (double)s.scale + 1e-6 * a;
}

/* Heads of all sizes and offsets, some far from 0. */
static void make_head(float *x, int32_t n)
{
    float size = exp2f((float)op_int(-12, 8)), off = op_int(0, 2) == 0 ? op_normal() * 5.0f : 0.0f;
    for (int32_t d = 0; d < n; d++) {
        x[d] = (op_normal() + off) * size;
    }
    if (op_int(0, 9) == 0) {
        x[op_int(0, n - 1)] *= 30.0f;
    }
}

/* The bound is half a step of the scale that was chosen. */
TEST(a_number_is_the_nearest_that_its_scale_allows)
{
    static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};
    for (int32_t round = 0; round < 3000; round++) {
        const struct worked_case *c = &cases[round % N_CASES];
        int32_t n = op_int(1, 200);
        float x[200];
        uint8_t codes[200];
        struct kv_scale s;
        const struct kv_plane p =
            kv_plane_make(c->format, dtypes[op_int(0, 2)], true, 16, n, c->stored, 0);
        make_head(x, n);
        kv_encode_scalar(&p, x, n, codes, &s);
        for (int32_t d = 0; d < n; d++) {
            float most = c->stored > 0.0f ? 448.0f * s.scale : INFINITY;
            float want = fmaxf(fminf(x[d], most), -most);
            CHECK_NEAR(kv_decode(&p, s, codes[d]), want, worst_error(&p, s, want));
        }
    }
}

/* Equal numbers and zeros leave no range for a scale. A NaN must stay a NaN, since it shows that
 * something is broken. */
TEST(odd_heads)
{
    for (int32_t i = 0; i < N_CASES; i++) {
        for (int32_t half = 0; half < 2; half++) {
            const struct kv_plane p = kv_plane_make(cases[i].format, half ? DT_BF16 : DT_F32, true,
                                                    16, 4, cases[i].stored, 0);
            float same[4] = {0.3f, 0.3f, 0.3f, 0.3f}, none[4] = {0.0f}, nan[4] = {1.0f, NAN, 2.0f};
            uint8_t codes[4];
            struct kv_scale s;
            kv_encode_scalar(&p, same, 4, codes, &s);
            CHECK_NEAR(kv_decode(&p, s, codes[2]), 0.3, 0.02);
            kv_encode_scalar(&p, none, 4, codes, &s);
            CHECK_NEAR(kv_decode(&p, s, codes[2]), 0.0, 0.0);
            kv_encode_scalar(&p, nan, 4, codes, &s);
            CHECK(isnan(kv_decode(&p, s, codes[1])));
            CHECK(cases[i].stored > 0.0f || isnan(kv_decode(&p, s, codes[0])));
        }
    }
}

/* A page in which each token is written, moved and read while others are present. */
struct page {
    struct kv_plane p;
    char *head;
    float (*want)[200]; // [tokens]
};

/* Writes one token through the kernel table, and keeps the numbers that reading it must give. */
static void put_token(struct page *page, const struct cpu_kernels *k, int32_t token, int32_t n)
{
    float x[200];
    uint8_t codes[200];
    struct kv_scale s;
    make_head(x, n);
    memset(page->want[token], 0, sizeof page->want[token]);
    if (page->p.format == KV_PLAIN) {
        kv_put_plain(&page->p, page->head, token, x, n);
    } else {
        k->encode(&page->p, x, n, codes, &s);
        kv_put_codes(&page->p, page->head, token, codes, n, s);
    }
    for (int32_t d = 0; d < n; d++) {
        if (page->p.format == KV_PLAIN) {
            page->want[token][d] = op_rounded(page->p.dtype, x[d]);
        } else {
            page->want[token][d] = kv_decode(&page->p, s, codes[d]);
        }
    }
}

/* Reads the whole page, with tokens in any order of writing. */
static void check_page(const struct page *page, const struct cpu_kernels *k, int32_t n)
{
    const struct kv_plane *p = &page->p;
    int32_t tokens = p->tokens;
    float *out = xcalloc((size_t)tokens * p->width, sizeof *out);
    uint16_t *rounded = xcalloc((size_t)tokens * p->width, sizeof *rounded);
    k->unpack(p, page->head, 0, tokens, p->width, false, out);
    k->unpack(p, page->head, 0, tokens, p->width, true, rounded);
    for (int32_t t = 0; t < tokens; t++) {
        for (int32_t d = 0; d < n; d++) {
            int32_t at = p->by_dim ? d * tokens + t : t * p->width + d;
            float want = page->want[t][d];
            CHECK(kv_get(p, page->head, t, d) == want);
            CHECK(out[at] == want);
            CHECK(bf16_to_f32(rounded[at]) == op_bf16(want) || fabsf(want) < 1e-37f);
        }
    }
    free(out);
    free(rounded);
}

/* Tokens share bytes with their neighbours in formats below eight bits. */
OP_TEST(tokens_of_a_page_do_not_overlap)
{
    static const int32_t sizes[][2] = {{16, 64}, {5, 20}, {1, 7}, {32, 80}, {48, 16}, {3, 33}};
    const struct cpu_kernels *k = op_kernels(backend);
    for (int32_t i = 0; i < (N_CASES + 1) * 24; i++) {
        int32_t tokens = sizes[i % 6][0], n = sizes[i % 6][1];
        bool by_dim = i / 6 % 2 == 0;
        enum dtype dtype = i / 12 % 2 ? DT_BF16 : DT_F32;
        const struct worked_case *c = &cases[i / 24 % N_CASES];
        enum kv_format format = i / 24 == N_CASES ? KV_PLAIN : c->format;
        int32_t width = by_dim ? n : (n + 15) / 16 * 16;
        struct page page = {.p =
                                kv_plane_make(format, dtype, by_dim, tokens, width, c->stored, 64)};
        page.head = xcalloc(page.p.n_bytes + 128, 1);
        page.want = xcalloc((size_t)tokens, sizeof *page.want);
        memset(page.head, 0x5A, page.p.n_bytes + 128);
        kv_poison(&page.p, page.head);
        for (int32_t t = 0; t < tokens; t++) {
            CHECK(isnan(kv_get(&page.p, page.head, t, n - 1)));
        }
        for (int32_t t = tokens - 1; t >= 0; t--) {
            put_token(&page, k, t, n);
        }
        check_page(&page, k, n);
        for (int32_t round = 0; round < 6; round++) {
            int32_t from = op_int(0, tokens - 1), to = op_int(0, tokens - 1);
            kv_move(&page.p, page.head, from, page.head, to);
            memmove(page.want[to], page.want[from], sizeof page.want[0]);
            put_token(&page, k, op_int(0, tokens - 1), n);
            check_page(&page, k, n);
        }
        for (size_t b = 0; b < 64; b++) { // nothing before and after it was written
            CHECK_EQ(page.head[b], 0x5A);
            CHECK_EQ(page.head[64 + page.p.n_bytes + b], 0x5A);
        }
        free(page.head);
        free(page.want);
    }
}

/* Vectorised tables must have the bits of the scalar one, so that an answer does not
 * depend on the processor. */
OP_TEST(all_tables_give_the_same_codes)
{
    const struct cpu_kernels *k = op_kernels(backend);
    for (int32_t round = 0; round < 2000; round++) {
        const struct worked_case *c = &cases[round % N_CASES];
        int32_t n = op_int(1, 200);
        float x[200];
        uint8_t have[200], want[200];
        struct kv_scale a, b;
        const struct kv_plane p =
            kv_plane_make(c->format, op_int(0, 1) ? DT_BF16 : DT_F32, true, 16, n, c->stored, 0);
        make_head(x, n);
        if (round % 50 == 0) {
            x[op_int(0, n - 1)] = round % 100 ? NAN : INFINITY;
        }
        kv_encode_scalar(&p, x, n, want, &a);
        k->encode(&p, x, n, have, &b);
        CHECK_MEM(have, want, (size_t)n);
        CHECK_MEM(&a, &b, sizeof a);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
