// SPDX-License-Identifier: Apache-2.0
/* The router and the experts of a mixture. */
#include "cuda/cuda_ops.h"
#include "cuda/experts.h"
#include "cuda/moe_fixed.h"
#include "cuda/moe_shared.h"

/* Checks what the router's kernels rely on. */
static enum status route_ok(const struct moe_route_args *a)
{
    const struct weight *w = a->router;
    return !w || w->n_out != a->n_experts || !fits(a->x, (int32_t)w->n_in) || a->k < 1 ||
                   a->k > MOE_MAX_K || a->k > a->n_experts || a->n_experts > MOE_MAX_EXPERTS ||
                   a->n_group > 64 ||
                   (a->n_group > 1 && (a->n_experts % a->n_group != 0 || a->topk_group < 1)) ||
                   (a->expert_scale && vector_length(a->expert_scale) < a->n_experts)
               ? ERR_INVALID
               : OK;
}

/* Computes the scores on the tensor cores if possible. In deterministic mode this choice does not
 * depend on the number of rows. */
static enum status scores_on_tensor_cores(struct cuda_backend *be, const struct moe_route_args *a,
                                          float *logits, bool *done)
{
    const struct weight *w = a->router;
    const int32_t hidden = (int32_t)w->n_in;
    const bool fixed = be->device.options.deterministic;
    *done = fixed ? k_moe_scores_fixed_takes(a, w->dtype, hidden)
                  : k_moe_scores_takes(a, w->dtype, hidden);
    if (!*done) {
        return OK;
    }
    return cuda_check(
        &be->device,
        fixed ? k_moe_scores_fixed(be->device.stream, a, w->data, w->bias, hidden, logits)
              : k_moe_scores(be->device.stream, a, w->data, w->bias, hidden, logits),
        "the router's scores");
}

/* Makes the picks of each row. has_scores: the scores of all experts are in the scratch memory. */
static enum status make_picks(struct cuda_backend *be, const struct moe_route_args *a,
                              bool has_scores)
{
    const struct weight *w = a->router;
    CUDA_TRY(&be->device, k_moe_route(be->device.stream, a, w->data, w->dtype, w->bias,
                                      vector(a->correction), vector(a->expert_scale),
                                      (int32_t)w->n_in, be->scratch.memory, has_scores));
    return OK;
}

/* Computes the scores of all experts by a product, then the picks of each row. */
enum status cuda_op_moe_route(struct backend *base, const struct moe_route_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    TRY(route_ok(a));
    if ((size_t)a->n_rows * (size_t)a->n_experts * sizeof(float) > be->scratch.n_bytes) {
        return ERR_INVALID;
    }
    bool has_scores = false;
    TRY(scores_on_tensor_cores(be, a, be->scratch.memory, &has_scores));
    return make_picks(be, a, has_scores);
}

/* The bytes of scratch that a call with this many picks needs, and the addresses of its parts. */
static size_t moe_layout(char *base, int64_t picks, const struct moe_ffn_args *a, int64_t hidden,
                         struct moe_scratch *s)
{
    size_t at = 0;
    const size_t ints = ((size_t)picks * 4 + 255) / 256 * 256;
    const size_t act = ((size_t)(picks * a->ffn) * dtype_bytes(a->x.dtype) + 255) / 256 * 256;
    s->sorted = (int32_t *)(base + at);
    at += ints;
    s->tile_expert = (int32_t *)(base + at);
    at += ints;
    s->tile_first = (int32_t *)(base + at);
    at += ints;
    s->first = (int32_t *)(base + at);
    at += ((size_t)(a->n_experts + 1) * 4 + 255) / 256 * 256;
    s->n_tiles = (int32_t *)(base + at);
    at += 256;
    s->act = base + at;
    at += act;
    s->out = (float *)(base + at);
    at += (size_t)(picks * hidden) * sizeof(float);
    return at;
}

/* How many of the pass's padded rows, or of its out rows, are real. The device reads the count,
 * because captured graphs are replayed with other counts. */
static const int32_t *real_rows(const struct cuda_backend *be, int32_t n_rows)
{
    if (!be->passes.pass ||
        (n_rows != be->passes.shape.n_rows && n_rows != be->passes.shape.n_out)) {
        return NULL;
    }
    return n_rows == be->passes.shape.n_rows ? &be->passes.view.counts->n_rows
                                             : &be->passes.view.counts->n_out;
}

/* The kernels that compute the experts: moe.cu, sm90.cu, coded_many.cu, or eight_sm90.cu. */
enum experts_on { ON_ANY, ON_MANY, ON_CODED, ON_EIGHT };

/* What is known about a call before its rows are divided. */
struct experts {
    struct moe_weights weights;
    struct moe_rounding rounding;
    bool are_rounded; // the inputs of one or both products
    enum experts_on on;
    const struct moe_shared *shared; // a second product to launch with the first rows; NULL: none
};

static size_t moe_bytes(struct cuda_backend *be, const struct moe_ffn_args *a, struct experts *e,
                        int32_t n_rows, struct moe_scratch *s)
{
    const int32_t hidden = (int32_t)a->down->n_out;
    if (e->on == ON_MANY || e->on == ON_CODED) {
        return k_moe_sm90_scratch(a, hidden, n_rows);
    }
    if (e->on == ON_EIGHT) {
        return k_moe_eight_scratch(a, hidden, n_rows);
    }
    char *base = be->scratch.memory;
    const size_t n = (moe_layout(base, (int64_t)n_rows * a->k, a, hidden, s) + 255) / 256 * 256;
    e->rounding.x = base + n;
    return n + moe_rounded_bytes(a, &e->rounding, hidden, n_rows);
}

/* Both products must match each other and the number of experts. */
static enum status experts_ok(const struct moe_ffn_args *a)
{
    const struct weight *up = a->gate_up, *down = a->down;
    if (!up || !down || up->kind != WEIGHT_EXPERTS || down->kind != WEIGHT_EXPERTS ||
        up->n_experts != a->n_experts || down->n_experts != a->n_experts ||
        up->n_out != (a->plain ? 1 : 2) * (int64_t)a->ffn || down->n_in != a->ffn ||
        up->n_in != down->n_out || up->dtype != down->dtype || (a->weigh_inputs && up->bias) ||
        !fits(a->x, (int32_t)up->n_in) || !fits(a->y, (int32_t)up->n_in) ||
        a->x.dtype != a->y.dtype || a->k < 1) {
        return ERR_INVALID;
    }
    return OK;
}

/* The pointers and types for the kernels. */
static struct moe_weights weights_of(const struct moe_ffn_args *a)
{
    const struct weight *up = a->gate_up, *down = a->down;
    return (struct moe_weights){
        .gate_up = up->data,
        .down = down->data,
        .gate_up_coded = weight_coded(up),
        .down_coded = weight_coded(down),
        .gate_up_bias = up->bias,
        .down_bias = down->bias,
        .dtype = up->dtype,
        .hidden = (int32_t)up->n_in,
    };
}

/* Chooses the kernels. Whether inputs are rounded depends on the weights alone. In deterministic
 * mode moe.cu computes any number of rows of quantised experts in the same order. */
static struct experts experts_of(const struct cuda_backend *be, const struct moe_ffn_args *a)
{
    const struct weight *up = a->gate_up, *down = a->down;
    struct experts e = {
        .weights = weights_of(a),
        .rounding = {.up = {weight_inputs(up), up->input_scales},
                     .down = {weight_inputs(down), down->input_scales},
                     .has_blocks = up->has_blocks && down->has_blocks},
        .are_rounded = (weight_inputs(up) || weight_inputs(down)) && up->n_in % 8 == 0 &&
                       a->ffn % 8 == 0, // other sizes have only kernels without rounding
    };
    const int32_t sm = be->device.sm, n_sms = be->device.n_sms;
    const bool any_order = !be->device.options.deterministic;
    if (e.are_rounded) {
        if (any_order && k_moe_eight_takes(a, &e.weights, &e.rounding, sm)) {
            e.on = ON_EIGHT;
        }
    } else if (any_order && k_moe_coded_many_takes(a, &e.weights, sm)) {
        e.on = ON_CODED;
    } else if (k_moe_sm90_takes(a, &e.weights, sm, n_sms)) {
        e.on = ON_MANY;
    }
    return e;
}

/* With one rank, the experts' kernels add the biases; with several, cuda_op_reduce does. */
static struct moe_ffn_args with_bias(const struct cuda_backend *be, const struct moe_ffn_args *a)
{
    struct moe_ffn_args own = *a;
    own.partial = a->partial && be->device.options.n_ranks > 1;
    return own;
}

/* Issues the kernels for some of a call's rows, from `first` on. */
static cudaError_t issue_experts(struct cuda_backend *be, const struct moe_ffn_args *a,
                                 const struct experts *e, const float *gate,
                                 const struct moe_scratch *s, const int32_t *real, int32_t first)
{
    cudaStream_t stream = be->device.stream;
    void *scratch = be->scratch.memory;
    switch (e->on) {
    case ON_MANY:
        return moe_ffn_beside(stream, a, &e->weights, gate, first == 0 ? e->shared : NULL, scratch,
                              real, first, be->device.n_sms);
    case ON_CODED:
        return k_moe_ffn_coded_many(stream, a, &e->weights, gate, scratch, real, first,
                                    be->device.n_sms);
    case ON_EIGHT:
        return k_moe_ffn_eight(stream, a, &e->weights, &e->rounding, gate, scratch, real, first,
                               be->device.n_sms);
    default: break;
    }
    return e->are_rounded ? k_moe_ffn_rounded(stream, a, &e->weights, &e->rounding, s, real, first)
                          : k_moe_ffn(stream, a, &e->weights, s, real, first);
}

/* Processes as many rows at a time as the scratch memory holds. shared: NULL unless its second
 * product is left to sm90.cu. gate: as for k_moe_ffn_sm90; NULL if k_moe_ffn computes the rows. */
static enum status run_experts(struct cuda_backend *be, const struct moe_ffn_args *given,
                               const struct moe_shared *shared, const float *gate)
{
    const struct moe_ffn_args own = with_bias(be, given), *a = &own;
    struct experts e = experts_of(be, a);
    e.shared = shared;
    struct moe_scratch s;
    int32_t slice = a->n_rows;
    while (slice > 1 && moe_bytes(be, a, &e, slice, &s) > be->scratch.n_bytes) {
        slice = (slice + 1) / 2;
    }
    if (moe_bytes(be, a, &e, slice, &s) > be->scratch.n_bytes) {
        return ERR_LIMIT;
    }
    const int32_t *real = real_rows(be, a->n_rows);
    for (int32_t first = 0; first < a->n_rows; first += slice) {
        struct moe_ffn_args part = *a;
        part.n_rows = a->n_rows - first < slice ? a->n_rows - first : slice;
        const size_t element = dtype_bytes(a->x.dtype), picks = (size_t)first * (size_t)a->k;
        part.x.mem = dmem_at(a->x.mem, (size_t)first * (size_t)a->x.stride * element);
        part.y.mem = dmem_at(a->y.mem, (size_t)first * (size_t)a->y.stride * element);
        part.ids = dmem_at(a->ids, picks * sizeof(int32_t));
        part.weights = dmem_at(a->weights, picks * sizeof(float));
        TRY(cuda_check(&be->device, issue_experts(be, &part, &e, gate, &s, real, first),
                       "the experts"));
    }
    return OK;
}

enum status cuda_op_moe_ffn(struct backend *base, const struct moe_ffn_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    TRY(experts_ok(a));
    return run_experts(be, a, NULL, NULL);
}

enum status cuda_op_moe_identity(struct backend *base, const struct moe_identity_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!fits(a->x, a->width) || !fits(a->y, a->width) || a->x.dtype != a->y.dtype || a->k < 1 ||
        a->k > MOE_MAX_K || a->n_experts < 1) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_moe_identity(be->device.stream, a));
    return OK;
}

/* ---- all of a mixture at once ---------------------------------------------------------------- */

/* True if the shared expert has the experts' activation and plain weights without biases. */
static bool is_like_experts(const struct shared_expert_args *s, const struct moe_ffn_args *a,
                            const struct moe_weights *w)
{
    const struct weight *up = s->up.weight, *down = s->down.weight;
    return up && down && !weight_coded(up) && !weight_coded(down) && up->dtype == w->dtype &&
           down->dtype == up->dtype && !up->bias && !down->bias && !s->down.accumulate &&
           up->n_out == (a->plain ? 1 : 2) * down->n_in && up->n_in == w->hidden &&
           down->n_out == w->hidden && s->act.gated != a->plain && s->act.kind == a->kind &&
           !s->act.up.mem.p && s->act.shape.limit == a->shape.limit &&
           s->act.shape.alpha == a->shape.alpha && s->up.n_rows == a->n_rows;
}

/* Fills in the shared expert. False if k_moe_few cannot compute the mixture because of it. With
 * more than one row, a shared expert with a y of its own is computed before the experts by other
 * ops, and so is one whose experts' weights stay quantised. */
static bool add_shared(struct moe_few *m, const struct shared_expert_args *s)
{
    if (!s || m->weights.gate_up_coded) {
        return true;
    }
    const struct weight *up = s->up.weight, *down = s->down.weight;
    const struct moe_ffn_args *a = m->ffn;
    const struct tensor *x = &s->up.x, *y = &s->down.y;
    const struct row_gate_args *gate = s->gate;
    if (y->mem.p != a->y.mem.p) {
        if (a->n_rows != 1 || gate || x->dtype != a->x.dtype || y->dtype != a->y.dtype ||
            !is_like_experts(s, a, &m->weights)) {
            return true;
        }
        m->own_x = x->mem.p;
        m->own_y = y->mem.p;
    } else if (!is_like_experts(s, a, &m->weights) || x->mem.p != a->x.mem.p ||
               x->stride != a->x.stride ||
               (gate && (gate->x.mem.p != a->x.mem.p || gate->y.mem.p != a->y.mem.p ||
                         vector_length(gate->weight) < m->weights.hidden))) {
        return false;
    }
    m->shared_gate_up = up->data;
    m->shared_down = down->data;
    m->shared_gate = gate ? vector(gate->weight) : NULL;
    m->shared_ffn = (int32_t)down->n_in;
    return true;
}

/* True if k_moe_few should compute these rows; fills in its arguments. False if a row's bits must
 * not depend on the number of rows. */
static bool are_few(struct cuda_backend *be, const struct shared_expert_args *shared,
                    const struct moe_route_args *route, const struct moe_ffn_args *ffn,
                    struct moe_few *m)
{
    const struct weight *router = route->router;
    if (be->device.options.deterministic || route_ok(route) != OK || experts_ok(ffn) != OK ||
        experts_of(be, ffn).are_rounded || router->dtype != DT_F32 ||
        router->n_in != ffn->gate_up->n_in) {
        return false;
    }
    *m = (struct moe_few){
        .route = route,
        .ffn = ffn,
        .weights = weights_of(ffn),
        .router = router->data,
        .router_bias = router->bias,
        .correction = vector(route->correction),
        .expert_scale = vector(route->expert_scale),
        .real = real_rows(be, ffn->n_rows),
        .n_sms = be->device.n_sms,
    };
    return add_shared(m, shared) && k_moe_few_takes(m) &&
           k_moe_few_scratch(m) <= be->scratch.n_bytes;
}

/* The weight of the shared expert's gate, if the sum over a row's picks can apply it; else NULL. It
 * cannot in deterministic mode, because it sums the gate in another order than k_row_gate. */
static const float *gate_of_sum(const struct cuda_backend *be, const struct row_gate_args *gate,
                                const struct moe_ffn_args *a)
{
    if (!gate || be->device.options.deterministic || !a->accumulate ||
        gate->x.mem.p != a->x.mem.p || gate->x.stride != a->x.stride ||
        gate->y.mem.p != a->y.mem.p || gate->y.stride != a->y.stride || gate->n_rows != a->n_rows ||
        experts_ok(a) != OK || vector_length(gate->weight) < a->gate_up->n_in ||
        gate->x_width != a->gate_up->n_in || gate->y_width != a->gate_up->n_in) {
        return NULL;
    }
    return experts_of(be, a).on != ON_ANY ? vector(gate->weight) : NULL;
}

/* True if shared.cu should compute the shared expert with the router's scores; fills in its
 * arguments. In deterministic mode fewer rows would get other bits from other kernels. */
static bool is_beside_router(const struct cuda_backend *be, const struct shared_expert_args *s,
                             const struct moe_route_args *route, const struct moe_ffn_args *a,
                             struct moe_shared *m)
{
    const struct weight *router = route->router;
    if (be->device.options.deterministic || route_ok(route) != OK || experts_ok(a) != OK) {
        return false;
    }
    const struct experts e = experts_of(be, a);
    const int32_t hidden = e.weights.hidden;
    if (e.on != ON_MANY || e.weights.dtype != DT_BF16 || a->kind != ACT_SILU ||
        !is_like_experts(s, a, &e.weights) || router->n_in != hidden ||
        !k_moe_scores_takes(route, router->dtype, hidden) || s->up.x.mem.p != route->x.mem.p ||
        s->up.x.stride != route->x.stride || route->n_rows != a->n_rows ||
        (size_t)a->n_rows * (size_t)a->n_experts * sizeof(float) > be->scratch.n_bytes) {
        return false;
    }
    *m = (struct moe_shared){.route = route,
                             .router = router->data,
                             .router_bias = router->bias,
                             .gate_up = s->up.weight->data,
                             .down = s->down.weight->data,
                             .logits = be->scratch.memory,
                             .act = s->act.out,
                             .y = s->down.y,
                             .hidden = hidden,
                             .ffn = (int32_t)s->down.weight->n_in};
    return moe_shared_takes(m, be->device.sm, be->device.n_sms);
}

/* In deterministic mode the picks of few rows are not a separate op: the kernels after the
 * scores make them. The scores are at the end of the scratch memory. False if this is not
 * possible. */
static bool makes_picks(struct cuda_backend *be, const struct moe_route_args *route,
                        const struct moe_ffn_args *a, struct moe_scratch *s,
                        struct moe_picks *picks)
{
    if (!be->device.options.deterministic || a->n_rows > MOE_PLAN_ROWS || route_ok(route) != OK ||
        experts_ok(a) != OK || route->n_rows != a->n_rows || route->n_experts != a->n_experts ||
        route->k != a->k || route->ids.p != a->ids.p || route->weights.p != a->weights.p) {
        return false;
    }
    struct experts experts = experts_of(be, a);
    const size_t n = (size_t)a->n_rows * (size_t)a->n_experts * sizeof(float);
    const size_t at = (be->scratch.n_bytes - n) / 256 * 256;
    if (experts.on != ON_ANY || experts.are_rounded || n > be->scratch.n_bytes ||
        moe_bytes(be, a, &experts, a->n_rows, s) > at || !k_moe_ffn_picks(a, &experts.weights)) {
        return false;
    }
    *picks = (struct moe_picks){route, (float *)(void *)((char *)be->scratch.memory + at),
                                vector(route->correction), vector(route->expert_scale)};
    return true;
}

static enum status on_picks(struct cuda_backend *be, const struct moe_ffn_args *a,
                            const struct moe_scratch *s, const struct moe_picks *picks)
{
    const struct moe_route_args *route = picks->route;
    const struct moe_weights w = weights_of(a);
    const struct weight *router = route->router;
    float *logits = (float *)(uintptr_t)picks->logits;
    bool done = false;
    cudaError_t e = cudaSuccess;
    TRY(scores_on_tensor_cores(be, route, logits, &done));
    if (!done) {
        e = k_moe_route_scores(be->device.stream, route, router->data, router->dtype, router->bias,
                               (int32_t)router->n_in, logits);
    }
    if (e == cudaSuccess) {
        e = k_moe_ffn_of_scores(be->device.stream, a, &w, s, real_rows(be, a->n_rows), picks);
    }
    return cuda_check(&be->device, e, "the experts with their picks");
}

/* The same with the norm before the mixture, for fewer rows. False if this is not possible. */
static bool on_norm_and_picks(struct cuda_backend *be, const struct norm_args *norm,
                              const struct moe_route_args *route, const struct moe_ffn_args *a,
                              enum status *st)
{
    struct moe_scratch s;
    struct moe_picks picks;
    if (!norm || !makes_picks(be, route, a, &s, &picks)) {
        return false;
    }
    const struct moe_weights w = weights_of(a);
    const struct weight *router = route->router;
    const struct moe_few m = {.route = route, .ffn = a, .weights = w};
    if (norm_ok(norm) != OK || router->n_in != w.hidden || !k_moe_few_takes_norm(&m, norm) ||
        !k_moe_scores_norm_takes(route, router->dtype, w.hidden) || !moe_few_fixed_takes(a, &w)) {
        return false;
    }
    float *logits = (float *)(uintptr_t)picks.logits;
    cudaError_t e = k_moe_scores_norm(be->device.stream, route, norm, vector(norm->weight),
                                      router->data, router->bias, w.hidden, logits);
    if (e == cudaSuccess) {
        e = moe_few_fixed(be->device.stream, a, &w, s.act, real_rows(be, a->n_rows), &picks, norm);
    }
    *st = cuda_check(&be->device, e, "a mixture of few rows");
    return true;
}

/* With few rows a chain of special kernels computes everything. Otherwise the norm, the shared
 * experts, the router and the experts follow one another. */
enum status cuda_op_moe(struct backend *base, const struct norm_args *norm,
                        const struct shared_expert_args *shared, const struct moe_route_args *route,
                        const struct moe_ffn_args *ffn)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    struct moe_few m;
    struct moe_scratch s;
    struct moe_picks picks;
    enum status st = OK;
    const struct moe_ffn_args own = with_bias(be, ffn);
    if (!shared && on_norm_and_picks(be, norm, route, &own, &st)) {
        return st;
    }
    const bool few = are_few(be, shared, route, &own, &m);
    const bool apart = shared && (!few || m.shared_ffn == 0);
    if (norm && few && !apart && norm_ok(norm) == OK && k_moe_few_takes_norm(&m, norm)) {
        m.norm = norm;
        m.norm_weight = vector(norm->weight);
    } else if (norm) {
        TRY(cuda_op_norm(base, norm));
    }
    const float *gate = few ? NULL : gate_of_sum(be, shared ? shared->gate : NULL, ffn);
    struct moe_shared beside;
    if (apart && !few && (gate || !shared->gate) &&
        is_beside_router(be, shared, route, ffn, &beside)) {
        TRY(cuda_check(&be->device, moe_shared_up(be->device.stream, &beside),
                       "the shared expert and the router's scores"));
        TRY(make_picks(be, route, true));
        return run_experts(be, ffn, &beside, gate);
    }
    if (apart) {
        TRY(cuda_op_mlp(base, &shared->up, &shared->act, &shared->down));
        TRY(shared->gate && !gate ? cuda_op_row_gate(base, shared->gate) : OK);
    }
    if (few) {
        return cuda_check(&be->device, k_moe_few(be->device.stream, &m, be->scratch.memory),
                          "the experts of few rows");
    }
    if (makes_picks(be, route, &own, &s, &picks)) {
        return on_picks(be, &own, &s, &picks);
    }
    TRY(cuda_op_moe_route(base, route));
    TRY(experts_ok(ffn));
    return run_experts(be, ffn, NULL, gate);
}
