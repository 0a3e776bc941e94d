// SPDX-License-Identifier: Apache-2.0
/* Mixture of experts: the router's choice, and the feed-forward of the chosen experts. Rows are
 * sorted by expert, and each expert's products run over its rows. A row's outputs are summed in the
 * order of expert ids, separately for each segment of K, so that ranks that hold whole segments get
 * the same bits. */
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

/* Number of picks (rows x k) whose intermediate values are in memory at a time. */
enum { CHUNK_PICKS = 2048 };

/* ---- route -------------------------------------------------------------------------------- */

struct route_job {
    const struct cpu_backend *cpu;
    const struct moe_route_args *a;
};

/* The index of the highest score that is not taken yet; of equal scores the lowest index. -1: none
 * is left. */
static int32_t best_of(const float *score, const bool *taken, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (!taken[i] && (best < 0 || score[i] > score[best])) {
            best = i;
        }
    }
    return best;
}

static void softmax(float *x, int32_t n)
{
    float max = -INFINITY, sum = 0.0f;
    for (int32_t i = 0; i < n; i++) {
        max = greater(x[i], max);
    }
    for (int32_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - max);
        sum += x[i];
    }
    for (int32_t i = 0; i < n; i++) {
        x[i] /= sum;
    }
}

/* A group's score: its best choice, or the sum of its two best choices. */
static float group_score(const float *choice, int32_t n, bool two)
{
    float first = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (choice[i] > first) {
            second = first;
            first = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    if (two && n > 1) {
        return first + second;
    }
    return first;
}

/* Marks the experts of all but the topk_group best groups as taken. */
static void limit_groups(const struct moe_route_args *a, const float *choice, bool *taken)
{
    float score[MAX_EXPERTS];
    bool chosen[MAX_EXPERTS] = {false};
    int32_t size = a->n_experts / a->n_group;
    for (int32_t g = 0; g < a->n_group; g++) {
        score[g] = group_score(choice + g * size, size, a->scoring == MOE_SIGMOID);
    }
    for (int32_t i = 0; i < a->topk_group; i++) {
        int32_t g = best_of(score, chosen, a->n_group);
        if (g >= 0) {
            chosen[g] = true;
        }
    }
    for (int32_t e = 0; e < a->n_experts; e++) {
        taken[e] = !chosen[e / size];
    }
}

static void router_logits(const struct cpu_backend *cpu, const struct moe_route_args *a,
                          int32_t row, float *scratch, float *logits)
{
    const struct weight *w = a->router;
    char *packed = (char *)scratch;
    int64_t row_bytes = cpu_row_bytes(cpu, w);
    cpu_pack_row(cpu, w, 0, tensor_row(&a->x, row), NULL, packed);
    for (int64_t tile = 0; tile < w->n_tiles; tile++) {
        cpu_gemm_tile(cpu, &(struct gemm_tile){.weight = w,
                                               .tile = tile,
                                               .rows = packed,
                                               .row_bytes = row_bytes,
                                               .n_rows = 1,
                                               .y = logits,
                                               .y_stride = a->n_experts,
                                               .bias = w->bias,
                                               .scratch = (float *)(packed + row_bytes)});
    }
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The weights of picks by MOE_MIXER, whose logits are `score`. */
static void mix(const struct moe_route_args *a, const float *score, const int32_t *ids,
                float *weights)
{
    bool picked[MAX_EXPERTS] = {false};
    for (int32_t i = 0; i < a->k; i++) {
        const float best = score[ids[i]];
        float sum = 0.0f;
        for (int32_t e = 0; e < a->n_experts; e++) {
            const float t = score[e];
            if (!picked[e] && !((best - t) / fmaxf(fabsf(t), best) > a->spread)) {
                sum += expf(t - best);
            }
        }
        picked[ids[i]] = true;
        weights[i] = 1.0f / sum;
    }
}

/* Picks the k experts of a row, and computes their weights. Groups and corrections only affect
 * which experts are picked. */
static void pick(const struct moe_route_args *a, float *score, int32_t *ids, float *weights)
{
    float choice[MAX_EXPERTS];
    bool taken[MAX_EXPERTS] = {false};
    if (a->scoring == MOE_SOFTMAX_TOPK) {
        softmax(score, a->n_experts);
    }
    for (int32_t e = 0; e < a->n_experts; e++) {
        if (a->scoring == MOE_SIGMOID) {
            score[e] = sigmoid(score[e]);
        }
        choice[e] = a->correction ? score[e] + a->correction->vector[e] : score[e];
    }
    if (a->n_group > 1) {
        limit_groups(a, choice, taken);
    }
    float sum = 0.0f;
    for (int32_t i = 0; i < a->k; i++) {
        int32_t e = best_of(choice, taken, a->n_experts);
        e = greater(e, 0); // there are fewer experts than picks, which loading reports as an error
        taken[e] = true;
        ids[i] = e;
        weights[i] = a->scoring == MOE_LOGITS ? sigmoid(score[e]) : score[e];
        sum += weights[i];
    }
    if (a->scoring == MOE_MIXER) {
        mix(a, score, ids, weights);
    } else if (a->scoring == MOE_TOPK_SOFTMAX) {
        softmax(weights, a->k);
    } else if (a->renormalise) {
        float divisor = a->scoring == MOE_SIGMOID ? sum + 1e-20f : sum;
        for (int32_t i = 0; i < a->k; i++) {
            weights[i] /= divisor;
        }
    }
    for (int32_t i = 0; i < a->k; i++) {
        weights[i] *= a->scale * (a->expert_scale ? a->expert_scale->vector[ids[i]] : 1.0f);
    }
}

static void route_item(void *arg, int32_t row, int32_t thread)
{
    const struct route_job *job = arg;
    const struct moe_route_args *a = job->a;
    float logits[MAX_EXPERTS];
    router_logits(job->cpu, a, row, (float *)job->cpu->scratch[thread].p, logits);
    pick(a, logits, (int32_t *)a->ids.p + (int64_t)row * a->k,
         (float *)a->weights.p + (int64_t)row * a->k);
}

enum status cpu_moe_route(struct backend *be, const struct moe_route_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    if (a->n_experts > MAX_EXPERTS || a->k > MAX_PICKS || a->k > a->n_experts ||
        (a->n_group > 1 && a->n_experts % a->n_group != 0)) {
        return ERR_UNSUPPORTED;
    }
    ASSERT(a->router->n_out == a->n_experts);
    struct route_job job = {cpu, a};
    pool_run(cpu->pool, a->n_rows, route_item, &job);
    return OK;
}

/* ---- the experts -------------------------------------------------------------------------- */

/* The current chunk: picks sorted by expert, then by row. */
struct ffn_job {
    const struct cpu_backend *cpu;
    const struct moe_ffn_args *a;
    int32_t first_row, n_rows, n_picks;
    int32_t n_active;      // number of experts that have picks
    int32_t *expert;       // [n_active]
    int32_t *expert_first; // [n_active + 1] first pick of each expert
    int32_t *pick_row;     // [n_picks] row in the chunk
    // [n_rows * k]: a row's picks in the order of expert ids, as indices of sorted picks
    int32_t *order;
    float *order_weight; // [n_rows * k]: the weights of these picks, applied to outputs
    float *pick_weight;  // [n_picks]: weights applied to the experts' inputs
    char *rows;          // [n_picks]: packed inputs of the current product
    int64_t row_bytes, row_bytes_2;
    float *hidden;                    // [n_picks, up]: gate and up, then the activation
    int32_t up;                       // outputs of the first product: 2 * ffn, or ffn
    float *out;                       // [segments, n_picks, hidden]
    const struct weight *w;           // weight of the current product
    const struct input_range *ranges; // ranges of the hidden rows, if ranks share them
};

/* Bytes of these arrays for CHUNK_PICKS picks. */
static size_t moe_layout(const struct cpu_backend *cpu, struct ffn_job *job, char *base)
{
    size_t at = 0;
    size_t ints = (CHUNK_PICKS + 16) * sizeof(int32_t);
    size_t n_picks = CHUNK_PICKS, floats = (size_t)cpu->max_moe_n * sizeof(float);
#define CARVE(field, n_bytes)                                                                      \
    do {                                                                                           \
        if (job) {                                                                                 \
            job->field = (void *)(base + at);                                                      \
        }                                                                                          \
        at += (size_t)round_up((int64_t)(n_bytes), 64);                                            \
    } while (0)
    CARVE(expert, ints);
    CARVE(expert_first, ints);
    CARVE(pick_row, ints);
    CARVE(order, ints);
    CARVE(order_weight, ints);
    CARVE(pick_weight, ints);
    CARVE(rows, n_picks * (size_t)cpu->max_moe_k);
    CARVE(hidden, n_picks * floats);
    CARVE(out, n_picks * floats * (size_t)cpu->max_moe_segments);
#undef CARVE
    return at;
}

enum status cpu_need_moe(struct cpu_backend *cpu)
{
    if (cpu->max_moe_k == 0) {
        return OK;
    }
    size_t n_bytes = moe_layout(cpu, NULL, NULL);
    if (cpu->moe_bytes >= n_bytes) {
        return OK;
    }
    char *p = cpu_memory(cpu, n_bytes);
    if (!p) {
        return ERR_NOMEM;
    }
    cpu_memory_free(cpu, cpu->moe);
    cpu->moe = p;
    cpu->moe_bytes = n_bytes;
    return OK;
}

/* Counting sort of the chunk's picks by expert. */
static void sort_picks(struct ffn_job *job)
{
    const struct moe_ffn_args *a = job->a;
    int32_t count[MAX_EXPERTS + 1] = {0}, place[MAX_EXPERTS];
    const int32_t *ids = (const int32_t *)a->ids.p + (int64_t)job->first_row * a->k;
    const float *weights = (const float *)a->weights.p + (int64_t)job->first_row * a->k;
    for (int32_t i = 0; i < job->n_picks; i++) {
        ASSERT(ids[i] >= 0 && ids[i] < a->n_experts);
        count[ids[i]]++;
    }
    job->n_active = 0;
    for (int32_t e = 0, first = 0; e < a->n_experts; e++) {
        place[e] = first;
        if (count[e] > 0) {
            job->expert[job->n_active] = e;
            job->expert_first[job->n_active++] = first;
        }
        first += count[e];
    }
    job->expert_first[job->n_active] = job->n_picks;
    for (int32_t row = 0; row < job->n_rows; row++) {
        int32_t *order = job->order + row * a->k;
        for (int32_t j = 0; j < a->k; j++) { // insertion sort by expert id
            int32_t e = ids[row * a->k + j], at = j;
            for (; at > 0 && order[at - 1] > place[e]; at--) {
                order[at] = order[at - 1];
                job->order_weight[row * a->k + at] = job->order_weight[row * a->k + at - 1];
            }
            order[at] = place[e];
            const float weight = weights[row * a->k + j];
            job->order_weight[row * a->k + at] = a->weigh_inputs ? 1.0f : weight;
            job->pick_weight[place[e]] = weight;
            job->pick_row[place[e]++] = row;
        }
    }
}

static int32_t expert_of(const struct ffn_job *job, int32_t pick)
{
    int32_t e = 0;
    while (job->expert_first[e + 1] <= pick) {
        e++;
    }
    return job->expert[e];
}

static void pack_gate_up(void *arg, int32_t pick_index, int32_t thread)
{
    const struct ffn_job *job = arg;
    (void)thread;
    cpu_pack_row(job->cpu, job->a->gate_up, expert_of(job, pick_index),
                 tensor_row(&job->a->x, job->first_row + job->pick_row[pick_index]), NULL,
                 job->rows + pick_index * job->row_bytes);
}

static float *hidden_of(const struct ffn_job *job, int32_t pick)
{
    return job->hidden + (int64_t)pick * job->up;
}

static void activate_pick(void *arg, int32_t pick_index, int32_t thread)
{
    const struct ffn_job *job = arg;
    int32_t ffn = job->a->ffn;
    float *h = hidden_of(job, pick_index);
    (void)thread;
    if (job->a->weigh_inputs) { // the product is linear, so weighting its output equals weighting
                                // its input
        job->cpu->kernels->scale(h, job->pick_weight[pick_index], job->up);
    }
    job->cpu->kernels->activate(job->a->kind, job->a->shape, h, job->a->plain ? NULL : h + ffn, h,
                                ffn);
}

static void pack_down(void *arg, int32_t pick_index, int32_t thread)
{
    const struct ffn_job *job = arg;
    const struct weight *w = job->a->down;
    (void)thread;
    cpu_pack_row(job->cpu, w, expert_of(job, pick_index), hidden_of(job, pick_index),
                 job->ranges ? job->ranges + pick_index * w->input_groups : NULL,
                 job->rows + pick_index * job->row_bytes_2);
}

/* Like share_ranges in cpu_linear.c, for the picks' hidden rows. */
static bool share_ranges(struct cpu_backend *cpu, struct ffn_job *job)
{
    const struct weight *w = job->a->down;
    struct input_range *own = (struct input_range *)(void *)cpu->ranges;
    for (int32_t i = 0; i < job->n_picks; i++) {
        cpu_input_ranges(w, hidden_of(job, i), own + i * w->input_groups);
    }
    job->ranges = cpu_share_ranges(cpu, w, job->n_picks);
    return job->ranges != NULL;
}

/* The items are the tiles of all active experts, one expert after the other. */
static void expert_item(void *arg, int32_t item, int32_t thread)
{
    const struct ffn_job *job = arg;
    const struct weight *w = job->w;
    int32_t i = item / (int32_t)w->n_tiles, first = job->expert_first[i];
    bool is_down = w == job->a->down;
    int64_t row_bytes = is_down ? job->row_bytes_2 : job->row_bytes;
    struct gemm_tile t = {
        .weight = w,
        .matrix = job->expert[i],
        .tile = item % w->n_tiles,
        .row_bytes = row_bytes,
        .scratch = (float *)job->cpu->scratch[thread].p,
        .y_stride = w->n_out,
        .bias = w->bias && !is_down ? w->bias + (int64_t)job->expert[i] * w->n_out : NULL,
        .split_stride = is_down ? (int64_t)job->n_picks * w->n_out : 0,
    };
    for (int32_t row = first; row < job->expert_first[i + 1]; row += PACK_ROWS) {
        int32_t n = job->expert_first[i + 1] - row;
        t.n_rows = lesser(n, PACK_ROWS);
        t.rows = job->rows + row * row_bytes;
        t.y = (is_down ? job->out : job->hidden) + row * w->n_out;
        cpu_gemm_tile(job->cpu, &t);
    }
}

/* Computes one row of y: for each segment the weighted sum over the picks, then the tree over the
 * segments. */
static void combine_item(void *arg, int32_t row, int32_t thread)
{
    const struct ffn_job *job = arg;
    const struct moe_ffn_args *a = job->a;
    const struct cpu_kernels *kernels = job->cpu->kernels;
    int64_t n = a->down->n_out;
    float *open = (float *)job->cpu->scratch[thread].p; // one sum for each level of the tree
    int32_t level = 0;
    for (int32_t s = 0; s < a->down->k_segments; s++) {
        float *sum = open + level++ * n;
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int32_t i = 0; i < a->k; i++) {
            int64_t at = (int64_t)s * job->n_picks + job->order[row * a->k + i];
            kernels->add_scaled(sum, job->out + at * n, job->order_weight[row * a->k + i], n);
        }
        for (int32_t bits = s + 1; bits % 2 == 0; bits /= 2, level--) {
            kernels->add_scaled(open + (level - 2) * n, open + (level - 1) * n, 1.0f, n);
        }
    }
    for (int32_t i = 0; i < a->k && a->down->bias && !a->partial; i++) {
        int32_t expert = expert_of(job, job->order[row * a->k + i]);
        kernels->add_scaled(open, a->down->bias + expert * n, job->order_weight[row * a->k + i], n);
    }
    float *y = tensor_row(&a->y, job->first_row + row);
    if (a->accumulate) {
        kernels->add_scaled(y, open, 1.0f, n);
    } else {
        memcpy(y, open, (size_t)n * sizeof *y);
    }
}

enum status cpu_moe_ffn(struct backend *be, const struct moe_ffn_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(a->n_experts <= MAX_EXPERTS && a->k > 0 && a->k <= MAX_PICKS);
    const int32_t up = a->plain ? a->ffn : 2 * a->ffn;
    ASSERT(a->gate_up->n_out == up && a->down->n_in == a->ffn);
    ASSERT(!a->weigh_inputs || !a->gate_up->bias);
    struct ffn_job job = {.cpu = cpu, .a = a, .up = up};
    moe_layout(cpu, &job, cpu->moe);
    job.row_bytes = cpu_row_bytes(cpu, a->gate_up);
    job.row_bytes_2 = cpu_row_bytes(cpu, a->down);
    int32_t step = CHUNK_PICKS / a->k;
    for (int32_t row = 0; row < a->n_rows; row += step) {
        job.first_row = row;
        job.n_rows = lesser(a->n_rows - row, step);
        job.n_picks = job.n_rows * a->k;
        sort_picks(&job);
        pool_run(cpu->pool, job.n_picks, pack_gate_up, &job);
        job.w = a->gate_up;
        pool_run(cpu->pool, job.n_active * (int32_t)job.w->n_tiles, expert_item, &job);
        pool_run(cpu->pool, job.n_picks, activate_pick, &job);
        if (a->down->shared_ranges && !share_ranges(cpu, &job)) {
            return ERR_DEVICE;
        }
        pool_run(cpu->pool, job.n_picks, pack_down, &job);
        job.w = a->down;
        pool_run(cpu->pool, job.n_active * (int32_t)job.w->n_tiles, expert_item, &job);
        pool_run(cpu->pool, job.n_rows, combine_item, &job);
    }
    return OK;
}
