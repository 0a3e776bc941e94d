// SPDX-License-Identifier: Apache-2.0
/* Chooses the implementation of each matrix product. */
#include "cuda/cuda_gemm.h"
#include "cuda/cuda_fixed.h"
#include "cuda/gemm_plans.h"
#include "engine/base/minmax.h"

enum { WORKSPACE_BYTES = 64 << 20, SUMS_BYTES = 32 << 20 };
enum { MAX_EXPANDED_BYTES = 256 << 20 };
enum { CODED_MAX_ROWS = 64 }; // maximum number of rows for gemm_coded, except in deterministic mode

enum status gemms_open(struct gemms *g, struct cuda *device)
{
    g->device = device;
    TRY(gemm_plans_open(g));
    g->workspace_bytes = WORKSPACE_BYTES;
    TRY(cuda_alloc(device, SUMS_BYTES, &g->sums));
    TRY(cuda_alloc(device, INPUT_NORM_READERS * sizeof *g->readers, (void **)&g->readers));
    return cuda_alloc(device, WORKSPACE_BYTES, &g->workspace);
}

/* Allocates room for inputs that are rounded before a product. */
static enum status setup_rounded(struct gemms *g, int32_t max_rows)
{
    const size_t n_in = (size_t)g->device->max_rounded_in, rows = (size_t)max_rows;
    if (n_in == 0) {
        return OK;
    }
    const size_t codes = rows * (n_in + 15) / 16 * 16, scales = rows * (n_in / 128 + 1);
    TRY(cuda_alloc(g->device, codes * sizeof(uint16_t), &g->rounded.rows));
    TRY(cuda_alloc(g->device, 2 * scales * sizeof(float), (void **)&g->rounded.scales));
    g->rounded.after_rows = (uint8_t *)g->rounded.rows + codes; // codes fill half of `rows`
    g->rounded.after_scales = g->rounded.scales + scales;
    return OK;
}

/* Called once the largest sizes are known. */
enum status gemms_setup(struct gemms *g, int32_t vocab, int32_t max_rows)
{
    TRY(setup_rounded(g, max_rows));
    const size_t wanted = g->device->max_expanded_bytes;
    g->expanded_bytes = lesser(wanted, MAX_EXPANDED_BYTES);
    if (g->expanded_bytes > 0) {
        TRY(cuda_alloc(g->device, g->expanded_bytes, &g->expanded));
    }
    g->bests.stride = (vocab + MIN_BEST_BAND - 1) / MIN_BEST_BAND;
    return cuda_alloc(g->device,
                      (size_t)MAX_BEST_ROWS * (size_t)g->bests.stride * sizeof *g->bests.pairs,
                      (void **)&g->bests.pairs);
}

void gemms_close(struct gemms *g)
{
    gemm_plans_close(g);
}

/* ---- products left as sums ------------------------------------------------------------------- */

/* Partial sums are stored one after another. */
static struct sum_parts sums_of(const struct gemms *g, const struct gemm_args *a, int32_t n)
{
    return (struct sum_parts){.first = g->sums,
                              .bias = a->bias,
                              .stride = (int64_t)a->n_rows * a->n_out,
                              .width = a->n_out,
                              .n = n};
}

/* Blocks sum different parts of K. The next op, which reads the product anyway, adds up these
 * partial sums. */
static enum status on_wide(struct gemms *g, const struct gemm_args *a, const struct wide_plan *plan,
                           struct sum_parts *left)
{
    const struct sum_parts sums = sums_of(g, a, plan->n_splits);
    TRY(cuda_check(g->device, gemm_wide(g->device->stream, a, g->device->n_sms, plan, &sums),
                   "gemm_wide"));
    if (plan->n_splits > 1) {
        *left = sums;
    }
    return OK;
}

/* A product of MIN_ROWS to MAX_ROWS rows, with no more outputs than inputs, is a batch of two, each
 * with half of K. cuBLASLt itself would split K and add the partial sums in an extra kernel. */
static bool in_halves(struct gemms *g, const struct gemm_args *a, struct sum_parts *left,
                      cudaError_t *e)
{
    enum { MIN_ROWS = 65, MAX_ROWS = 256, HALVES = 2 };
    const struct sum_parts sums = sums_of(g, a, HALVES);
    if (!a->may_split || a->accumulate || a->n_batch > 1 || a->n_rows < MIN_ROWS ||
        a->n_rows > MAX_ROWS || a->n_out > a->n_in || a->n_in % (8 * HALVES) != 0 ||
        a->y_dtype == DT_F32 || (size_t)sums.stride * HALVES * sizeof(float) > SUMS_BYTES) {
        return false;
    }
    struct gemm_args b = *a;
    b.n_batch = HALVES;
    b.n_in = a->n_in / HALVES;
    b.w_stride = a->n_in;
    b.x_batch = b.w_batch = b.n_in;
    b.y = g->sums;
    b.y_batch = sums.stride;
    b.y_stride = a->n_out;
    b.y_dtype = DT_F32;
    b.bias = NULL;
    if (!gemm_on_cublas(g, &b, e)) {
        return false;
    }
    *left = sums;
    return true;
}

static bool is_fixed(const struct gemms *g, const struct gemm_args *a)
{
    return g->device->options.deterministic && fixed_takes(a, g->device->sm, g->device->n_sms);
}

/* In deterministic mode, the number of parts depends only on the weight's shape. */
static enum status on_fixed(struct gemms *g, const struct gemm_args *a, struct sum_parts *left)
{
    struct sum_parts sums = sums_of(g, a, 0);
    TRY(cuda_check(g->device,
                   fixed_product(g->device->stream, a, g->device->n_sms, SUMS_BYTES, &sums),
                   "fixed_product"));
    if (sums.n > 0) {
        *left = sums;
    }
    return OK;
}

/* Computes gate and up in one product, and applies the activation before the result is written. */
static bool gated_of_numbers(struct gemms *g, const struct gemm_args *a, enum status *st)
{
    struct wide_plan wide;
    if (!a->gated || a->n_rows <= 0) {
        return false;
    }
    if (g->device->options.deterministic) {
        const bool fixed = is_fixed(g, a);
        *st = fixed ? on_fixed(g, a, NULL) : OK;
        return fixed;
    }
    if (gemm_wide_takes(a, g->device->sm, g->device->n_sms, 0, &wide)) {
        // Without memory for partial sums, the kernel writes y itself.
        *st = on_wide(g, a, &wide, NULL);
        return true;
    }
    if (gemm_batch_takes(a, g->device->sm, g->device->n_sms)) {
        *st =
            cuda_check(g->device, gemm_batch(g->device->stream, a, g->device->n_sms), "gemm_batch");
        return true;
    }
    if (gemm_small_takes(a, g->device->sm, g->device->n_sms)) {
        *st =
            cuda_check(g->device, gemm_small(g->device->stream, a, g->device->n_sms), "gemm_small");
        return true;
    }
    return false;
}

/* Tries, in this order: kernels for few rows, cuBLASLt, and a general kernel that supports
 * everything. */
static enum status product_of_numbers(struct gemms *g, const struct gemm_args *a,
                                      struct sum_parts *sums)
{
    if (a->n_rows <= 0 || a->n_out <= 0) {
        return OK;
    }
    cudaError_t e = cudaSuccess;
    struct wide_plan plan;
    if (g->device->options.deterministic) {
        if (is_fixed(g, a)) {
            return on_fixed(g, a, sums);
        }
        return cuda_check(g->device, gemm_tile(g->device->stream, a), "gemm_tile");
    }
    if (!a->is_fresh && gemm_wide_takes(a, g->device->sm, g->device->n_sms, SUMS_BYTES, &plan)) {
        return on_wide(g, a, &plan, sums);
    }
    if (!a->is_fresh && gemm_single_takes(a, g->device->sm, g->device->n_sms)) {
        return cuda_check(g->device, gemm_single(g->device->stream, a, g->device->n_sms),
                          "gemm_single");
    }
    if (!a->is_fresh && gemm_small_takes(a, g->device->sm, g->device->n_sms)) {
        return cuda_check(g->device, gemm_small(g->device->stream, a, g->device->n_sms),
                          "gemm_small");
    }
    if (fixed_fills(a, g->device->sm, g->device->n_sms)) {
        return cuda_check(g->device, fixed_whole(g->device->stream, a, g->device->n_sms),
                          "fixed_whole");
    }
    if (in_halves(g, a, sums, &e) || gemm_on_cublas(g, a, &e)) {
        return cuda_check(g->device, e, "cublasLtMatmul");
    }
    return cuda_check(g->device, gemm_tile(g->device->stream, a), "gemm_tile");
}

/* ---- weights that stay quantised ------------------------------------------------------------- */

/* True if gemm_coded should compute all rows, reading the weight once per 32 rows. With more rows,
 * it is cheaper to dequantise the whole weight. Deterministic mode always uses gemm_coded, because
 * its bits do not depend on the number of rows. */
static bool is_few(const struct gemms *g, const struct gemm_args *a)
{
    return a->n_rows <= CODED_MAX_ROWS || g->device->options.deterministic;
}

/* If the next op cannot add up partial sums (with several ranks, each rank's product must be
 * complete), products of at least this many rows are still split along K, and a separate kernel
 * adds up the parts: with few features and no splits, most multiprocessors would be idle. */
enum { MIN_JOINED_ROWS = 17 };

static bool joins(const struct gemm_args *a, int32_t min_rows)
{
    return !a->may_split && !a->accumulate && !a->gated && a->y_dtype != DT_F32 &&
           a->n_rows >= min_rows;
}

static cudaError_t leave_or_join(struct gemms *g, const struct gemm_args *a, bool is_joined,
                                 struct sum_parts *left, struct sum_parts *sums)
{
    if (left->n > 0 && is_joined) {
        left->bias = a->bias;
        return gemm_join(g->device->stream, a, left);
    }
    if (left->n > 0) {
        *sums = *left;
    }
    return cudaSuccess;
}

static struct coded_args coded_args_of(const struct gemm_args *a)
{
    return (struct coded_args){.x = a->x,
                               .y = a->y,
                               .bias = a->bias,
                               .x_dtype = a->x_dtype,
                               .y_dtype = a->y_dtype,
                               .n_rows = a->n_rows,
                               .x_stride = a->x_stride,
                               .y_stride = a->y_stride,
                               .accumulate = a->accumulate,
                               .gated = a->gated,
                               .activation = ACT_SILU};
}

static cudaError_t on_four(struct gemms *g, const struct gemm_args *a, const struct coded_args *c,
                           struct sum_parts *sums)
{
    const bool is_joined = joins(a, MIN_JOINED_ROWS), is_left = a->may_split && sums;
    struct sum_parts left = sums_of(g, a, 0);
    const cudaError_t e = gemm_four(g->device->stream, a->coded, c, g->device->n_sms,
                                    is_joined || is_left ? SUMS_BYTES : 0, &left);
    return e == cudaSuccess ? leave_or_join(g, a, is_joined, &left, sums) : e;
}

static bool on_coded(struct gemms *g, const struct gemm_args *a, struct sum_parts *sums,
                     cudaError_t *e)
{
    const struct coded_args c = coded_args_of(a);
    if (!g->device->options.deterministic && gemm_four_takes(a->coded, &c, g->device->sm)) {
        *e = on_four(g, a, &c, sums);
        return true;
    }
    if (!is_few(g, a) || !gemm_coded_takes(a->coded, &c)) {
        return false;
    }
    *e = gemm_coded(g->device->stream, a->coded, &c);
    return true;
}

/* Repeatedly dequantises as many outputs as fit into the buffer, and multiplies by them. */
static enum status in_bands(struct gemms *g, const struct gemm_args *a, struct sum_parts *sums)
{
    const struct coded_matrix *m = a->coded;
    const size_t row_bytes = (size_t)a->n_in * dtype_bytes(a->x_dtype);
    const int32_t most = (int32_t)(g->expanded_bytes / row_bytes / CODED_ROWS * CODED_ROWS);
    if (dtype_bytes(a->x_dtype) != sizeof(uint16_t) || (most == 0 && a->n_out > 0)) {
        return ERR_INVALID;
    }
    for (int32_t first = 0, n; first < a->n_out; first += n) {
        n = a->n_out - first < most ? a->n_out - first : most;
        CUDA_TRY(g->device, coded_expand(g->device->stream, m, first, n, g->expanded, a->x_dtype));
        struct gemm_args band = *a;
        band.coded = NULL;
        band.weight = g->expanded;
        band.w_dtype = a->x_dtype;
        band.n_out = n;
        band.y = (char *)a->y + (size_t)first * dtype_bytes(a->y_dtype);
        band.bias = a->bias ? a->bias + first : NULL;
        band.bias_act = a->bias_act
                            ? (const char *)a->bias_act + (size_t)first * dtype_bytes(a->x_dtype)
                            : NULL;
        band.may_split = a->may_split && n == a->n_out;
        band.is_fresh = true;
        TRY(product_of_numbers(g, &band, sums));
    }
    return OK;
}

/* ---- the output head ------------------------------------------------------------------------- */

/* The number of bands of which the head leaves the best logits; 0: it leaves none. */
static int32_t head_bands(const struct gemms *g, const struct gemm_args *a)
{
    const int32_t sm = g->device->sm, n_sms = g->device->n_sms;
    if (a->coded) {
        const struct coded_args c = coded_args_of(a);
        const bool takes = !g->device->options.deterministic && !a->inputs &&
                           gemm_four_takes(a->coded, &c, sm) &&
                           gemm_four_head_takes(a->coded, &c, n_sms);
        return takes ? n_sms : 0;
    }
    const bool takes =
        (!g->device->options.deterministic || is_fixed(g, a)) && gemm_head_takes(a, sm, n_sms);
    return takes ? gemm_head_bands(a) : 0;
}

static enum status on_head(struct gemms *g, const struct gemm_args *a, const struct row_bests *rows,
                           const struct pass_view *pass)
{
    const cudaStream_t stream = g->device->stream;
    if (a->coded) {
        const struct coded_args c = coded_args_of(a);
        return cuda_check(g->device,
                          gemm_four_head(stream, a->coded, &c, g->device->n_sms, rows, pass),
                          "gemm_four_head");
    }
    return cuda_check(g->device, gemm_head(stream, a, g->device->n_sms, rows, pass), "gemm_head");
}

/* Computes the output head with the best logit of each band. This is possible only if the draws may
 * choose among all ids that the head computes. */
bool cuda_gemm_head(struct gemms *g, const struct gemm_args *a, int32_t n_drawn,
                    const struct pass_view *pass, struct logit_bests *bests, enum status *st)
{
    struct row_bests rows = g->bests;
    rows.n_bands = n_drawn > 0 && n_drawn == a->n_out ? head_bands(g, a) : 0;
    if (rows.n_bands == 0 || rows.n_bands > rows.stride) {
        return false;
    }
    *bests = (struct logit_bests){.pairs = {rows.pairs},
                                  .stride = rows.stride,
                                  .n_bands = rows.n_bands,
                                  .n_rows = a->n_rows,
                                  .n_drawn = n_drawn};
    *st = on_head(g, a, &rows, pass);
    return true;
}

/* ---- inputs that are rounded -------------------------------------------------------------------
 */

static struct round_args rounding_of(const struct gemm_args *a)
{
    return (struct round_args){.x = a->x,
                               .x_dtype = a->x_dtype,
                               .x_stride = a->x_stride,
                               .n_rows = a->n_rows,
                               .n_in = a->n_in,
                               .group = a->inputs->group,
                               .power_of_two = a->inputs->power_of_two,
                               .limit = a->inputs->limit,
                               .scale = a->inputs->scale};
}

static bool can_round(const struct gemms *g, const struct gemm_args *a)
{
    return a->inputs && g->rounded.rows && (uintptr_t)a->x % 16 == 0 && a->x_stride % 8 == 0 &&
           a->n_in % 8 == 0 && (a->x_dtype == DT_BF16 || a->x_dtype == DT_F16);
}

static bool is_for_codes(const struct gemms *g, const struct gemm_args *a)
{
    const struct coded_matrix *m = a->coded;
    return m && m->product_scales && !g->device->options.deterministic && g->device->sm >= 90 &&
           a->n_in % 16 == 0 && a->n_out % 16 == 0 &&
           (m->product_blocks > 0) == (a->inputs->group > 0);
}

/* A product of FP8 codes with FP8 codes on the 8-bit tensor cores; by cuBLASLt, unless a kernel is
 * named. */
struct codes_product {
    struct gemm_args args;
    struct product_scales scales;
    struct round_args round; // how the codes of x are computed
    bool is_few;             // for gemm_eight
    bool is_many;            // for gemm_eight_many
    bool is_rows;            // for gemm_eight_rows
    bool is_joined;          // partial sums are added up here
};

/* False if this product cannot multiply codes. */
static bool codes_product_init(struct gemms *g, const struct gemm_args *a, struct codes_product *p)
{
    const struct coded_matrix *m = a->coded;
    if (!can_round(g, a) || !is_for_codes(g, a)) {
        return false;
    }
    p->round = rounding_of(a);
    p->round.codes = a->is_after_codes ? g->rounded.after_rows : g->rounded.rows;
    p->round.code_stride = a->n_in;
    p->round.scales = a->is_after_codes ? g->rounded.after_scales : g->rounded.scales;
    p->scales = (struct product_scales){m->product_scales, p->round.scales, m->product_blocks};
    p->args = *a;
    p->args.x = p->round.codes;
    p->args.x_stride = a->n_in;
    p->args.weight = m->tiles;
    p->args.w_stride = (int32_t)coded_row_bytes(m);
    p->args.x_dtype = p->args.w_dtype = DT_E4M3;
    p->args.scales = &p->scales;
    p->is_joined = joins(a, g->device->options.n_ranks > 1 ? 1 : MIN_JOINED_ROWS);
    p->args.may_split = a->may_split || p->is_joined;
    p->is_few = gemm_eight_takes(&p->args, g->device->sm);
    p->is_many = !p->is_few && gemm_eight_many_takes(&p->args, g->device->sm, g->device->n_sms);
    p->is_rows = gemm_eight_rows_takes(&p->args, g->device->sm, g->device->n_sms);
    return p->is_few || p->is_many || p->is_rows || (!a->gated && gemm_plans_take(g, &p->args));
}

/* True if gemm_eight rounds x itself. */
static bool rounds_itself(const struct gemms *g, const struct gemm_args *a,
                          const struct codes_product *p)
{
    return p->is_few && !a->is_rounded &&
           gemm_eight_rounds(&p->args, g->device->n_sms, SUMS_BYTES, a->x_is_gated);
}

static cudaError_t on_eight(struct gemms *g, const struct gemm_args *a,
                            const struct codes_product *p, struct sum_parts *sums)
{
    struct sum_parts left = sums_of(g, a, 0);
    const cudaError_t e =
        gemm_eight(g->device->stream, &p->args, g->device->n_sms,
                   rounds_itself(g, a, p) ? &p->round : NULL, a->x_is_gated, SUMS_BYTES, &left);
    return e == cudaSuccess ? leave_or_join(g, a, p->is_joined, &left, sums) : e;
}

static cudaError_t on_eight_many(struct gemms *g, const struct codes_product *p,
                                 struct sum_parts *sums)
{
    struct sum_parts left = sums_of(g, &p->args, 0);
    const cudaError_t e =
        gemm_eight_many(g->device->stream, &p->args, g->device->n_sms, SUMS_BYTES, &left);
    return e == cudaSuccess ? leave_or_join(g, &p->args, p->is_joined, &left, sums) : e;
}

/* FP8 by FP8: x is rounded first, unless the preceding op has done so. */
static bool on_codes(struct gemms *g, const struct gemm_args *a, struct sum_parts *sums,
                     cudaError_t *e)
{
    struct codes_product p;
    if (!codes_product_init(g, a, &p)) {
        return false;
    }
    *e = a->is_rounded || rounds_itself(g, a, &p) ? cudaSuccess
                                                  : round_inputs(g->device->stream, &p.round);
    if (*e == cudaSuccess && p.is_few) {
        *e = on_eight(g, a, &p, sums);
        return true;
    }
    if (*e == cudaSuccess && p.is_many) {
        *e = on_eight_many(g, &p, sums);
        return true;
    }
    if (*e == cudaSuccess && p.is_rows) {
        *e = gemm_eight_rows(g->device->stream, &p.args, g->device->n_sms);
        return true;
    }
    return *e != cudaSuccess || gemm_on_cublas(g, &p.args, e);
}

bool cuda_gemm_takes_gates(struct gemms *g, const struct gemm_args *a)
{
    struct codes_product p;
    return a->n_rows > 0 && codes_product_init(g, a, &p) && rounds_itself(g, a, &p);
}

/* How the preceding op should round x to codes. False: it should write floating-point values. */
bool cuda_gemm_codes(struct gemms *g, const struct gemm_args *a, struct round_args *round)
{
    struct codes_product p;
    if (a->n_rows <= 0 || !codes_product_init(g, a, &p)) {
        return false;
    }
    *round = p.round;
    return true;
}

/* Computes the product with x rounded to E4M3 and dequantised again. */
static enum status with_rounded(struct gemms *g, struct gemm_args *a)
{
    struct round_args r = rounding_of(a);
    r.numbers = g->rounded.rows;
    CUDA_TRY(g->device, round_inputs(g->device->stream, &r));
    a->x = r.numbers;
    a->x_stride = a->n_in;
    return OK;
}

/* Returns false if the caller must compute the activation separately. */
bool cuda_gemm_gated(struct gemms *g, const struct gemm_args *a, enum status *st)
{
    if (!a->coded) {
        return !a->y_codes && gated_of_numbers(g, a, st);
    }
    struct gemm_args b = *a;
    cudaError_t e = cudaSuccess;
    if (a->n_rows > 0 && on_codes(g, a, NULL, &e)) {
        *st = cuda_check(g->device, e, "a gated product of codes");
        return true;
    }
    if (a->y_codes) {
        return false;
    }
    if (a->n_rows > 0 && can_round(g, a)) {
        if (a->is_rounded || is_for_codes(g, a) || !is_few(g, a)) {
            return false;
        }
        *st = with_rounded(g, &b);
        if (*st != OK) {
            return true;
        }
    }
    if (a->n_rows <= 0 || !on_coded(g, &b, NULL, &e)) {
        return false;
    }
    *st = cuda_check(g->device, e, "gemm_coded");
    return true;
}

/* For a quantised weight there are three ways: codes are multiplied by codes, converted by the
 * kernel that multiplies, or dequantised in bands before the product. The number of rows
 * decides. */
enum status cuda_gemm(struct gemms *g, const struct gemm_args *a, struct sum_parts *sums)
{
    struct gemm_args b = *a;
    cudaError_t e = cudaSuccess;
    if (a->n_rows > 0 && can_round(g, a)) {
        if (on_codes(g, a, sums, &e)) {
            return cuda_check(g->device, e, "a product of codes");
        }
        TRY(with_rounded(g, &b));
    }
    if (!a->coded || a->n_rows <= 0) {
        return product_of_numbers(g, &b, sums);
    }
    return on_coded(g, &b, sums, &e) ? cuda_check(g->device, e, "gemm_coded")
                                     : in_bands(g, &b, sums);
}
