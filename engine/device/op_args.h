// SPDX-License-Identifier: Apache-2.0
/* What the ops of ops.h take and leave: one args struct per op, whose comment defines what the op
 * computes. The struct is copied at the call. Rows are those of the current pass. From the last
 * layer's output product on, only the "out rows" remain: the rows whose logits or hidden states are
 * needed. They have been gathered by then, unless all rows are out rows.
 * Thread: plain data. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_OP_ARGS_H
#define SLUICE_ENGINE_DEVICE_OP_ARGS_H

#include "engine/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- values that one op leaves for another. They belong to the backend; the caller passes them,
 * without looking inside, from the op that fills them to the op that reads them. A zeroed struct is
 * empty. A value is valid until the next op that fills one of its kind. */

/* A product left as partial sums over ranges of K (split-K), to be added up by the one op that
 * reads it. linear leaves it for norm or rope_store. */
struct product_sums {
    struct dmem first, bias; // bias: to be added to the sums, or NULL
    int64_t stride;          // elements from one partial sum to the next
    int32_t width, n;        // elements per row; number of partial sums
};

/* The best logit of each row in each band of ids, for greedy draws. The head's linear leaves it for
 * sample. Rows that only greedy draws read then need no logits. */
struct logit_bests {
    struct dmem pairs;
    int32_t stride, n_bands; // distance in pairs from one row to the next; pairs per row
    int32_t n_rows, n_drawn; // number of rows; number of leading ids that the bands cover
};

/* The keys that each row of the pass attends to, in layers with sparse attention. index_pick leaves
 * it for the attention of its layer, and of later layers that share its picks. */
struct key_picks {
    struct dmem p;  // NULL: every row attends to all keys that it sees
    int32_t top_k;  // keys or blocks, at most
    int32_t block;  // 0: keys are picked one by one; otherwise blocks of so many
    int32_t n_sets; // of a row's picks: one for all heads, or one for each KV head
};

/* ---- the ops' args */

/* x[row] = table[token(row)] * scale + types[type(row)] + positions[first_position + pos(row)],
 * computed in fp32. The caller has rounded scale to the model's dtype if the family requires that.
 * The type is 1 from the second text of a sequence on (struct pass_seq), if the table has such a
 * row, and otherwise 0. */
struct embed_args {
    const struct weight *table;
    struct tensor x; // [n_rows, hidden], residual dtype
    int32_t n_rows;
    float scale;
    const struct weight *positions; // EMBED, a row per position, of the table's dtype; NULL: none
    int32_t first_position;         // the row of position 0
    const struct weight *types;     // EMBED, a row per token type, of the table's dtype; NULL: none
};

enum norm_kind { NORM_RMS, NORM_LAYER };

/* If delta is given, first x = (x + delta_scale * delta) * x_scale, where x is the residual stream
 * and is stored. Then, if out is given, out = norm(x) * (weight + weight_offset) + bias, per row,
 * in fp32. */
struct norm_args {
    struct tensor x;     // [n_rows, width], activation or residual dtype
    struct tensor delta; // [n_rows, width], act dtype; mem.p NULL: none
    struct tensor out;   // [n_rows, width], act dtype; mem.p NULL: only add; may be x itself
    const struct weight *weight; // VECTOR; NULL: ones
    const struct weight *bias;   // VECTOR or NULL
    int32_t n_rows, width;
    enum norm_kind kind;
    float eps, weight_offset, delta_scale;
    float x_scale;                  // 0: none
    struct product_sums delta_sums; // partial sums of delta, read instead of its memory
};

/* Hyper-connections: a row's residual is n streams of `width` elements, side by side. A sub-layer
 * reads one mixture of them, and its result is added to each. One op does what lies between two
 * sub-layers, all in fp32, with every sum in one order:
 *
 *   1. with delta: stream[k] becomes after[k] * delta + stream[k], or with n_sinkhorn > 0
 *      after[k] * delta + sum over j of cross[j][k] * stream[j], or with `begins` delta itself.
 *      The last op on these rows has left after and cross in `gates`.
 *   2. with fn: z = scale * (fn . streams) / sqrt(mean of the streams' squares + norm_eps) + base,
 *      where rows [0, n) of fn make before, [n, 2n) after, the rest cross, and each of these parts
 *      has one scale; then
 *        before = sigmoid(z) + eps
 *        after = magnitude * sigmoid(z) + after_eps
 *        cross = softmax of each row of z, + eps; its columns are divided by (their sum + eps);
 *                then n_sinkhorn - 1 times its rows and its columns are
 *      x = sum over k of before[k] * stream[k]
 *   3. with `out`: out = x * norm / sqrt(mean of x's squares + norm_eps)
 *
 * `ends`: fn has only the rows of before, and gates are not written. */
enum { MAX_HYPER = 4 }; // streams, a limit of every backend
#define HYPER_GATES(n) ((n) + (n) * (n))
struct hyper_args {
    struct tensor streams;      // [n_rows, n * width], residual dtype
    struct tensor delta;        // [n_rows, width], act or residual dtype; mem.p NULL: none
    struct tensor x;            // [n_rows, width], residual dtype; mem.p NULL: not stored
    struct tensor out;          // [n_rows, width], act dtype; mem.p NULL: none
    struct tensor gates;        // [n_rows, HYPER_GATES(n)], fp32: after, then cross by rows
    const struct weight *fn;    // VECTOR [n or 2n or 2n + n * n, n * width]; NULL: none
    const struct weight *base;  // VECTOR, one per row of fn
    const struct weight *scale; // VECTOR: one, two or three
    const struct weight *norm;  // VECTOR [width]; NULL: ones
    int32_t n_rows, width, n;
    int32_t n_sinkhorn; // 0: streams are not mixed among themselves
    bool begins, ends;
    float norm_eps, eps, magnitude, after_eps;
};

/* The low-rank adapters of one weight. A weight may stack several modules (q, k and v), each of
 * which has a low-rank pair of its own; all are padded to one rank. For a row whose sequence has
 * adapter a, t = down_a x has the ranks of all modules, and output j gets the product of row j of
 * up_a [n_out, rank] with t[first_rank .. + rank) of the run that j belongs to. */
enum { MAX_ADAPTER_RUNS = 12 };
struct adapter_pair {
    const struct weight *down, *up; // ADAPTER
    int32_t n_runs;
    struct adapter_run {
        int32_t first_out, first_rank; // a run ends where the next one begins
    } runs[MAX_ADAPTER_RUNS];          // the first one begins at output 0
};

/* y = x W^T + bias. x: [n_rows, n_in], act dtype; y: [n_rows, n_out], act dtype or fp32. A
 * row-sharded product (partial sums over ranks) adds no bias: see reduce. */
struct linear_args {
    const struct weight *weight; // LINEAR, or EMBED for a tied head
    struct tensor x, y;
    int32_t n_rows;
    bool partial;    // the bias, if any, is added by reduce
    bool accumulate; // y += instead of y =
    bool head;       // the output head: n_rows are out rows
    /* Head only: draws are the only readers of y, and read only its first n_drawn ids, so logits
     * that no draw reads may be left out. 0: all of y is needed. */
    int32_t n_drawn;
    struct logit_bests *bests; // zeroed; used if n_drawn is not 0
    /* A zeroed struct allows the op to leave y as partial sums, for the one op that reads it
     * (norm_adds_sums, rope_store_adds_sums); with `partial` only if reduce would do nothing. NULL:
     * y must be complete. */
    struct product_sums *sums;
    /* NULL: none, or no sequence of the pass has an adapter. Only linear_adapter reads it; then the
     * product has no `sums`. */
    const struct adapter_pair *adapter;
    bool out_rows; // the rows are the pass's out rows
};

/* y[row, h] = x[row, h] W_h^T for each head h: MLA's absorbed products. x: [n_rows, heads, x_head];
 * the first n_in of each head are used. y: [n_rows, heads, y_head]; the first n_out of each head
 * are written. */
struct linear_heads_args {
    const struct weight *weight; // HEADS
    struct tensor x, y;
    int32_t n_rows, x_head, y_head; // elements from one head to the next
};

/* cos and sin of each position, computed once from inv_freq (host memory, read at open). */
struct rope_table;
struct rope_desc {
    int32_t n_pairs;        // rotated pairs; 0: no rotation
    const float *inv_freq;  // [n_pairs]
    float attention_factor; // multiplies cos and sin
    bool interleaved;       // pairs (2i, 2i+1) instead of (i, i + n_pairs)
    int32_t max_pos;
};

enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_WIDTH };

/* Queries that are scaled by their position: q *= 1 + beta ln(1 + floor((pos + offset) /
 * every)). */
struct query_growth {
    float beta; // 0: no scaling
    int32_t every, offset;
};

/* The same with weights for each head: q of head h *= scale[h] ln(1 + pos) + bias[h]. */
struct head_growth {
    const struct weight *scale, *bias; // VECTOR [n_heads]; both NULL: no scaling
};

/* Works in place on q inside qkv; the rest of qkv need not be preserved. K and V go to the pages of
 * `layer`. With n_kv_heads 0 there is no K and V, because the layer reads those of another layer.
 * Order: qk-norm and rope on the first 2 * n_pairs of each head (or rope first), then the scaling
 * of q, then the store. With QK_NORM_WIDTH, which always precedes rope, the engine gives every rank
 * all heads, so no op has to read another rank's. */
struct rope_store_args {
    struct tensor qkv;             // [n_rows, (n_heads + 2 n_kv_heads) * head_dim]
    const struct rope_table *rope; // NULL: none (a layer without positions)
    int32_t n_rows, layer, n_heads, n_kv_heads, head_dim;
    enum qk_norm qk_norm;
    enum norm_kind qk_norm_kind;
    bool norm_after_rope; // for QK_NORM_HEAD
    bool v_norm;          // V is stored RMS-normed per head, with eps and without a weight
    const struct weight *q_norm, *k_norm; // VECTOR: [head_dim], [heads * head_dim], or for LAYER
                                          // per head [n_heads, head_dim]; NULL: ones
    float eps, norm_offset;
    struct query_growth growth;
    struct product_sums sums; // partial sums of qkv, read instead of its memory
};

/* MLA: c = norm(kv[:kv_lora]); stores [c | rope(kv[kv_lora:])] as the layer's single key head, and
 * writes rope(the part of each q head from q_rope_offset on) to q_out. kv: [n_rows, kv_lora +
 * rope_dim]; q: [n_rows, n_heads, q_head]; q_out: [n_rows, n_heads, q_out_head], at q_out_offset of
 * each head. The two may be the same memory. Scaling by position applies to all of q: the first
 * q_rope_offset of each head are scaled in place. Without kv (mem.p NULL) nothing is stored,
 * because the layer reads the keys of another layer. With rope_dim 0 there is no rotated part to
 * hold the NaN of a latent that is not a number, which is stored as zeros. */
struct mla_store_args {
    struct tensor q, kv, q_out;
    const struct rope_table *rope;
    int32_t n_rows, layer, n_heads, q_head, q_rope_offset, rope_dim, kv_lora;
    int32_t q_out_head, q_out_offset;
    const struct weight *kv_norm; // VECTOR [kv_lora]
    float eps;
    struct query_growth growth;
    struct head_growth head_growth;
};

/* The keys that index_pick compares with: k = norm(k), rotated, is stored as the single key head of
 * `layer`, which has no attention of its own (kv_layer.index). q is rotated and scaled in place,
 * after a norm of each head if q_norm is given. Only 2 * n_pairs elements of each head are rotated,
 * from rope_at on.
 *
 * With pool > 0 groups of `pool` positions, from position 0 on, have one key, which `layer` has at
 * their last position; what it has at others is not defined. A row of k then has head_dim gates
 * after the key. Both are stored in raw_layer and read from there when the group's last row, whose
 * path the group lies on, is stored: element i of the group's key is the sum of those of its keys,
 * weighted by the softmax over the group of gates[i] + places[i]. There is no rope, and q is left
 * as it is. */
struct index_store_args {
    struct tensor q; // [n_rows, n_heads, head_dim]
    struct tensor k; // [n_rows, head_dim], or twice as wide with a pool; need not be preserved
    const struct rope_table *rope; // NULL: no rotation
    int32_t n_rows, layer, n_heads, head_dim, rope_at;
    const struct weight *norm, *norm_bias, *q_norm; // VECTOR [head_dim]; NULL: none
    enum norm_kind norm_kind;                       // of both norms
    float eps, norm_offset;                         // as in norm_args
    struct head_growth growth;
    int32_t pool, raw_layer;     // pool 0: none, and raw_layer is not read
    const struct weight *places; // VECTOR [pool * head_dim], by place in the group
};

/* Limits of every backend: picks per row, of all sets together and without the rest of a
 * group; elements of an index key, or of a key and its gates; positions of a group. */
enum { MAX_INDEX_PICKS = 2048, MAX_INDEX_DIM = 256, MAX_INDEX_POOL = 64 };

/* Picks for each row the top_k keys with the highest scores among those that it sees (struct
 * pass_seq), or all if there are no more; of equal scores the earlier positions win. The score of a
 * key, in fp32: the sum over heads h, in ascending order, of weights[h] * max(q[h] . key, 0). A
 * row's picks do not depend on the other rows.
 *
 * With block > 0 there are no weights, and each head picks for itself: the keys that a row sees
 * form blocks of `block` positions, from position 0 on, and the score of a block is the highest
 * q[h] . key of those in it. The n_local last blocks, of which one has the row's own key, are
 * picked before all others. Attention has as many KV heads as there are heads here.
 *
 * With pool > 0 the groups of index_store_args are picked, as many as have top_k positions, among
 * those whose positions the row sees all. It attends to these positions, and to those that it sees
 * after the last whole group. */
struct index_pick_args {
    struct tensor q;       // [n_rows, n_heads, head_dim], as index_store left it
    struct tensor weights; // [n_rows, n_heads], act dtype; only with block 0
    int32_t n_rows, layer, n_heads, head_dim, top_k;
    int32_t block, n_local;  // n_local: at most top_k
    int32_t pool;            // a divisor of top_k, only with block 0; 0: none
    struct key_picks *picks; // filled
};

/* The keys of a row's picks, at most. */
static inline int64_t index_most_keys(int32_t top_k, int32_t block)
{
    return (int64_t)top_k * (block > 0 ? block : 1);
}

/* key_picks.top_k: with the rest of a group. */
static inline int32_t index_most_picks(const struct index_pick_args *a)
{
    return a->top_k + (a->pool > 0 ? a->pool - 1 : 0);
}

/* One op for prefill, decoding and trees; struct pass_seq defines which keys a row sees. K and V
 * are always read from pages, even those of the pass's own rows. q: [n_rows, n_heads, head_dim_k]
 * with rows q.stride apart (it may lie inside qkv); out: [n_rows, n_heads, head_dim_v]. */
struct attention_args {
    struct tensor q, out;
    int32_t n_rows, layer, n_heads, n_kv_heads, head_dim_k, head_dim_v;
    float scale;
    int32_t window; // key j is visible to position i iff i - window < j, and in a bidirectional
                    // pass also j < i + window; 0: no window
    int32_t chunk;  // only keys from i / chunk * chunk on are visible; 0: no chunks
    float softcap;  // 0: none; otherwise scores become cap * tanh(score / cap) before masking
    const struct weight *sinks;    // VECTOR [n_heads]: added to the denominator only; NULL: none
    const struct key_picks *picks; // only these keys are visible, without windows, chunks and caps;
                                   // NULL: all
};

/* The kinds before ACT_XIELU are also those of experts. */
enum activation {
    ACT_SILU,
    ACT_GELU_TANH,
    ACT_GELU,
    ACT_RELU,
    ACT_GPT_OSS,
    ACT_RELU2,
    ACT_SILU_CLAMPED,
    ACT_XIELU
};

/* ACT_RELU2: max(x, 0) squared. ACT_SILU_CLAMPED, which is always gated: min(silu(gate), alpha) *
 * clamp(up, -limit, limit). ACT_XIELU, which is never gated: rise * x * x + slope * x if x > 0,
 * otherwise fall * (exp(x) - 1 - x) + slope * x. */

/* Parameters: limit and alpha of ACT_GPT_OSS and ACT_SILU_CLAMPED, the rest of ACT_XIELU; other
 * activations ignore them. */
struct act_shape {
    float limit, alpha;
    float rise, fall, slope;
};
#define ACT_SHAPE_PUBLISHED ((struct act_shape){7.0f, 1.702f, 0.8f, 0.8f, 0.5f})

/* gated: out = act(x[:, :width]) * x[:, width:2 width]; otherwise out = act(x). ACT_GPT_OSS is
 * gated: g = min(gate, limit), u = clamp(up, -limit, limit): g * sigmoid(alpha g) * (u + 1). With
 * `up`, which no fused op supports: act(x[:, :width]) * up. */
struct activation_args {
    struct tensor x, out; // out [n_rows, width]
    struct tensor up;     // mem.p NULL: the second half of x
    int32_t n_rows, width;
    enum activation kind;
    bool gated;
    struct act_shape shape;
};

/* Limits of every backend: experts per layer, and experts picked per row. */
enum { MAX_EXPERTS = 1024, MAX_PICKS = 32 };

enum moe_scoring {
    MOE_SOFTMAX_TOPK, // softmax over all experts, then top-k; `renormalise` divides by their sum
    MOE_TOPK_SOFTMAX, // top-k of the logits, then softmax over those
    MOE_SIGMOID,      // DeepSeek V3: picked by sigmoid + correction bias, weighted by sigmoid
    MOE_LOGITS,       // picked by logit + correction bias, weighted by sigmoid
    MOE_MIXER,        // SparseMixer: picked by logit, each weighted by a softmax of its own
};

/* logits = x W^T (+ bias) in fp32; picks k experts for each row; of equal scores the lowest id
 * wins. With n_group > 1 only experts of the topk_group best groups are candidates (SOFTMAX: by a
 * group's best score; SIGMOID: by the sum of its two best). The weights are multiplied by `scale`
 * and by their expert's own scale. MOE_MIXER has neither corrections, groups nor renormalisation:
 * the softmax of a pick with the logit s includes itself and, of the experts that were not picked
 * before it, those whose logit t is near: (s - t) / max(|t|, s) is not above `spread`. */
struct moe_route_args {
    const struct weight *router;       // LINEAR, fp32, with a bias if the family has one
    const struct weight *correction;   // VECTOR [n_experts], added to the scores for picking only
                                       // (not MOE_TOPK_SOFTMAX), or NULL
    const struct weight *expert_scale; // VECTOR [n_experts]; NULL: ones
    struct tensor x;
    struct dmem ids;     // [n_rows, k] int32
    struct dmem weights; // [n_rows, k] fp32
    int32_t n_rows, n_experts, k;
    enum moe_scoring scoring;
    bool renormalise;
    float scale, spread;
    int32_t n_group, topk_group;
};

/* y = (accumulate ? y : 0) + sum over picks, in order of expert id, of weight *
 * down(act(gate_up(x))). Biases of experts are included unless `partial`. With weigh_inputs, for
 * experts whose gate_up has no bias: down(act(gate_up(weight * x))). With `plain` there are no
 * gates. */
struct moe_ffn_args {
    const struct weight *gate_up; // EXPERTS [2 ffn, hidden]: gate rows, then up rows; plain: [ffn]
    const struct weight *down;    // EXPERTS [hidden, ffn]
    struct tensor x, y;
    struct dmem ids, weights;
    int32_t n_rows, n_experts, k, ffn;
    enum activation kind;
    bool accumulate, partial, weigh_inputs, plain;
    struct act_shape shape;
};

/* Experts that return their input, those with ids from n_experts on: y = (sum over these picks of
 * weight) * x. The picks become the row's first other one, or expert 0 if it has none, with weight
 * 0, so that moe_ffn can have them. */
struct moe_identity_args {
    struct tensor x, y; // [n_rows, width]
    struct dmem ids, weights;
    int32_t n_rows, width, n_experts, k;
};

/* y[row] *= sigmoid(x[row] . weight): the gate of a shared expert. */
struct row_gate_args {
    struct tensor x, y;
    const struct weight *weight; // VECTOR [width of x]
    int32_t n_rows, x_width, y_width;
};

/* Copies between rows of a pass and the hidden states by slot (backend.h), which are stored in the
 * dtype given to hidden_open. The values [first, first + width) of each slot's row are copied;
 * first is a multiple of width. hidden_store: x has one row for each of the pass's rows, or of its
 * out rows. hidden_load: x of each row becomes the state of the row before it on its path, or 0 at
 * position 0. */
struct hidden_args {
    struct tensor x; // [n_rows, width]; act or residual dtype
    int32_t n_rows, width, first;
    bool out_rows; // for store
};

/* ---- recurrent layers: see "recurrent state" in backend.h. A row's path is the sequence of
 * earlier rows that it would attend to. */

/* Depthwise, over the row's input and the kernel - 1 inputs before it on its path (0 before
 * position 0): out[c] = act(bias[c] + sum over ascending i of x(row - (kernel - 1 - i))[c] *
 * weight[i][c]). Inputs are rounded to the set's dtype and kept. x and out must not be the same
 * memory. */
struct short_conv_args {
    struct tensor x, out;        // [n_rows, width]
    const struct weight *weight; // VECTOR [kernel, width]
    const struct weight *bias;   // VECTOR [width]; NULL: none
    int32_t n_rows, layer, width, kernel;
    bool silu;
};

/* For each head, S is the state at the start of the row's block; j runs over the rows of the block
 * up to row t itself, in position order. Log decays g_t <= 0 are one value per head, or one for
 * each of S's key_dim rows; G_t is their sum from the start of the block. With a = decay_scale
 * decay + dt_bias and dt = softplus(a), clamped to [dt_min, dt_max]:
 *
 *   g_t = -exp(a_log) dt, or, with decay_bound < 0, decay_bound sigmoid(exp(a_log) a)
 *   STATE_DELTA  q, k are divided by sqrt(sum of squares + 1e-6), and q also by sqrt(key_dim)
 *                u_t = beta_scale sigmoid(beta) (v_t - (exp(G_t) k_t) S
 *                                         - sum over j < t of (k_t . exp(G_t - G_j) k_j) u_j)
 *   STATE_DECAY  u_t = dt v_t
 *   out_t = (exp(G_t) q_t) S + sum over j <= t of (q_t . exp(G_t - G_j) k_j) u_j + skip v_t
 *   at the block's last row e: S becomes exp(G_e) S + sum over j of (exp(G_e - G_j) k_j) u_j
 *
 * k and u are rounded to the set's dtype as soon as they are computed. x is overwritten. */
struct recurrence_args {
    struct tensor x; // [n_rows, ...]: queries and keys of n_key_heads, then values of n_heads,
                     // starting at these columns
    int32_t q_at, k_at, v_at;
    struct tensor decay;          // [n_rows, n_heads], or [n_rows, n_heads, key_dim]
    struct tensor beta;           // [n_rows, n_heads]; STATE_DELTA only
    struct tensor out;            // [n_rows, n_heads, value_dim]
    const struct weight *a_log;   // VECTOR [n_heads]
    const struct weight *dt_bias; // VECTOR, as wide as decay
    const struct weight *skip;    // VECTOR [n_heads]; NULL: none
    int32_t n_rows, layer;
    float decay_scale;    // multiplies decay before dt_bias is added
    float beta_scale;     // STATE_DELTA only
    float decay_bound;    // 0: none
    float dt_min, dt_max; // dt_max 0: no clamping
};

/* out = norm(x) act(scale gate), or with gate_first norm(x act(scale gate)). The norm is RMS over
 * each `group` of a row's elements. */
enum gate_act { GATE_AS_IS, GATE_SIGMOID, GATE_SILU, GATE_SOFTPLUS };
struct gate_args {
    struct tensor x, out;      // [n_rows, width]; may be the same
    struct tensor gate;        // [n_rows, width], or one per group: [n_rows, width / group]
    const struct weight *norm; // VECTOR [group], or [width]; NULL: no norm
    int32_t n_rows, width, group;
    enum gate_act act;
    bool gate_first, per_group;
    float scale, eps;
};

/* ---- models with several residual streams per row (AltUp) */

enum { MAX_STREAMS = 8 };

/* One stream, `active`, passes through a layer, and the layer changes the others by coefficients of
 * the row: with m[k] = tanh(router_scale * in . router[k]) and c = coefs m,
 *
 *   before it:  streams[i] += sum over ascending j of c[i * n + j] * streams[j];
 *               x = streams[active]
 *   after it:   streams[i] += (1 + c[i]) * (x - streams[active]);
 *               x = streams[active] * scale
 *
 * where the right sides have the values from before the op, except that x is assigned last. */
struct streams_args {
    struct tensor streams;       // [n_rows, n, width], residual dtype; changed in place
    struct tensor x;             // [n_rows, width], residual dtype
    struct tensor in;            // [n_rows, width], act dtype
    const struct weight *router; // VECTOR [n, width]
    const struct weight *coefs;  // VECTOR [n * n, n], or after the layer [n, n]
    const struct weight *scale;  // VECTOR [width], for `after`; NULL: ones
    int32_t n_rows, width, n, active;
    float router_scale;
    bool after;
};

/* out = x * rms(like) / max(rms(x), sqrt(floor)), where rms is the root of the mean square. */
struct rms_match_args {
    struct tensor x, like, out; // [n_rows, width]; x and out may be the same
    int32_t n_rows, width;
    float floor;
};

/* x = max(x - mean - deviations * deviation, 0), with the mean and the standard deviation of the
 * row's own elements: zero for all elements but the few that stand out. */
struct cutoff_args {
    struct tensor x; // [n_rows, width]; changed in place
    int32_t n_rows, width;
    float deviations;
};

/* The shared expert of a mixture, or an MLP beside it: writes down(act(up(x))), times the row's
 * gate if there is one, to down.y. */
struct shared_expert_args {
    struct linear_args up, down;
    struct activation_args act;
    const struct row_gate_args *gate; // of down.y; NULL: none
};

/* Adds up the ranks' partial sums of y (not needed with one rank, or if each rank's y is `whole`).
 * Then adds the biases of the products that computed y: of the row-sharded product and of the
 * experts' down products. With one rank a backend may have these products add their biases. */
struct reduce_args {
    struct tensor y;
    int32_t n_rows, width;
    bool whole;
    const struct weight *linear;    // its bias is added; NULL: none
    const struct moe_ffn_args *moe; // its down biases are added, by each row's picks; NULL: none
};

/* out[i] = x[out_rows[i]] */
struct gather_args {
    struct tensor x, out;
    int32_t n_out, width;
};

/* logits = cap(logits * scale); softcap 0 means none. Ranks hold column shards of the head: `local`
 * [n_out, vocab / n_ranks] is gathered into `logits` [n_out, vocab]; if both are the same memory,
 * nothing is gathered. With `ids` the head has only n_ids ids, and every rank has the whole head:
 * `local` is [n_out, n_ids], and every other id's logit is -infinity. */
struct logits_args {
    struct tensor local, logits; // fp32
    int32_t n_out, vocab;
    float scale, softcap;
    struct dmem ids; // [n_ids] int32, distinct, below vocab; NULL: all
    int32_t n_ids;
};

/* The pass's draws from logits [n_out, vocab]; ids at or above n_vocab_used are never drawn.
 * Defined by cpu/cpu_sample.c, step 1 by engine/device/scores.c:
 *  1. scores = logits; bias added; repetition penalty over history[0 .. pos], then frequency and
 *     presence over history[n_prompt .. pos]; bans (not allowed, bad words, stop ids before
 *     min_tokens) are -infinity. If everything is banned, the bans of stop ids are dropped, and if
 *     everything still is, all bans. Ids outside the draw's mask are -infinity in any case.
 *  2. temperature 0: arg-max, ties to the lowest id (engine_submit turns temperatures below
 *     MIN_TEMPERATURE into 0).
 *  3. else scores / temperature; top-k keeps the k highest (ties at the threshold: lowest ids
 *     first); top-p keeps the smallest set of highest probability whose sum reaches top_p (same
 *     order); min-p keeps p >= min_p * p_max. The three are applied in that order, each to the
 *     renormalised rest.
 *  4. token = arg-max over kept ids of score - log(-log(u(seed, pos + 1, RNG_SAMPLE, id))), in
 *     float; ties to the lowest id.
 * With a law (struct pass_draw) and a temperature above 0, drafts are tested in turn. p and q are
 * the masses of step 3 divided by their totals. Draft number i, token d, is accepted if p(d) >
 * u(seed, pos + 1, RNG_ACCEPT, i) q(d). Otherwise p becomes max(p - q, 0), in units of 2^-52,
 * divided by its total; q(d) becomes 0; and the next draft is tested. If no draft is accepted, the
 * token is the arg-max of log(p - q) + noise of stream RNG_RESIDUAL over the ids with p > q, or of
 * log p + noise if there are none. Drafts with q(d) = 0 are skipped. logprob is the log-softmax of
 * the raw logits (before step 1) at the token, for DRAW_SCORE at history[pos + 1]. */
struct sample_args {
    struct tensor logits;
    int32_t n_out, n_draws, n_vocab_used;
    struct logit_bests bests; // the best of these logits, for greedy draws
};

/* The pass's pool list over hidden [n_out, width], in fp32: the out rows after the final norm, or
 * after one of the layers. */
struct pool_args {
    struct tensor hidden;
    int32_t n_out, width;
};

#ifdef __cplusplus
}
#endif
#endif
