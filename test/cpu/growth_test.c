// SPDX-License-Identifier: Apache-2.0
/* MLA whose queries are scaled by position, with weights for each head: rotated or not, and in a
 * layer that reads the keys of another. */
#include "test/device/op_harness.h"

#include <math.h>
#include <string.h>

enum { ROWS = 7, PAST = 21, HEADS = 3, LORA = 24, ROPE = 8, NOPE = 10 };

struct bed {
    struct op_rig rig;
    struct rope_table *rope;
    float inv[ROPE / 2];
    float *rise, *base, *norm;
    int32_t rope_dim;
};

/* What the query of a head must become. */
static void wanted_query(const struct bed *t, const float *q, int32_t head, int32_t pos,
                         double *out)
{
    const double by = (double)t->rise[head] * log(1.0 + pos) + (double)t->base[head];
    for (int32_t i = 0; i < NOPE + t->rope_dim; i++) {
        out[i] = (double)q[i];
    }
    for (int32_t i = 0; i < t->rope_dim; i += 2) {
        double *x = out + NOPE + i, angle = (double)((float)pos * t->inv[i / 2]), u = x[0],
               v = x[1];
        x[0] = u * cos(angle) - v * sin(angle);
        x[1] = v * cos(angle) + u * sin(angle);
    }
    for (int32_t i = 0; i < NOPE + t->rope_dim; i++) {
        out[i] *= by;
    }
}

/* The latent of a row in its page. */
static void stored_latent(struct bed *t, int32_t pos, float *out)
{
    struct cpu_backend *cpu = (struct cpu_backend *)t->rig.be;
    const struct kv_pages *pages = cpu_kv_layer(cpu, 0);
    const struct kv_slot slot = cpu_kv_slot(cpu, pages, 0, pos);
    for (int32_t i = 0; i < LORA; i++) {
        out[i] = kv_get(&pages->k, slot.block, slot.token, i);
    }
}

/* Runs the op on random queries. kv NULL: the layer stores nothing. */
static void run_store(struct bed *t, const float *kv)
{
    const int32_t head = NOPE + t->rope_dim, key = LORA + t->rope_dim;
    float *q = op_random((size_t)ROWS * HEADS * head, 1.0f);
    struct tensor tq = op_tensor(&t->rig, q, ROWS, HEADS * head, HEADS * head + 3);
    struct tensor out = op_tensor(&t->rig, NULL, ROWS, HEADS * key, HEADS * key);
    struct mla_store_args a = {.q = tq,
                               .q_out = out,
                               .rope = t->rope_dim > 0 ? t->rope : NULL,
                               .n_rows = ROWS,
                               .n_heads = HEADS,
                               .q_head = head,
                               .q_rope_offset = NOPE,
                               .rope_dim = t->rope_dim,
                               .kv_lora = LORA,
                               .q_out_head = key,
                               .q_out_offset = LORA,
                               .kv_norm = op_vector(&t->rig, t->norm, LORA),
                               .eps = 1e-6f};
    a.head_growth = (struct head_growth){op_vector(&t->rig, t->rise, HEADS),
                                         op_vector(&t->rig, t->base, HEADS)};
    if (kv) {
        a.kv = op_tensor(&t->rig, kv, ROWS, key, key + 1);
    }
    CHECK_EQ(t->rig.ops->mla_store(t->rig.be, &a), OK);
    float *plain = op_fetch(&t->rig, tq, ROWS, HEADS * head);
    float *turned = op_fetch(&t->rig, out, ROWS, HEADS * key);
    for (int32_t r = 0; r < ROWS; r++) {
        for (int32_t h = 0; h < HEADS; h++) {
            const size_t at = ((size_t)r * HEADS + (size_t)h) * (size_t)head;
            double wanted[NOPE + ROPE];
            wanted_query(t, q + at, h, PAST + r, wanted);
            CHECK(op_distance(plain + at, wanted, NOPE) < 1e-5);
            if (t->rope_dim > 0) {
                CHECK(op_distance(turned + (r * HEADS + h) * key + LORA, wanted + NOPE, ROPE) <
                      1e-5);
            }
        }
    }
    free(q);
    free(plain);
    free(turned);
}

static void growth_case(const char *backend, int32_t rope_dim)
{
    struct backend_limits limits = op_limits();
    struct bed t = {.rig = op_open(backend, DT_F32, &limits), .rope_dim = rope_dim};
    struct err err;
    struct kv_layer layer = {.n_heads = HEADS,
                             .n_kv_heads = 1,
                             .head_dim_k = LORA + rope_dim,
                             .head_dim_v = LORA,
                             .v_in_k = true};
    struct kv_set_desc set = {.n_layers = 1, .layers = &layer, .dtype = DT_F32};
    CHECK_EQ(t.rig.ops->kv_open(t.rig.be, 0, &set, &err), OK);
    for (int32_t i = 0; i < ROPE / 2; i++) {
        t.inv[i] = 1.0f / (float)(1 + i);
    }
    struct rope_desc desc = {ROPE / 2, t.inv, 1.0f, true, 100};
    CHECK_EQ(t.rig.ops->rope_open(t.rig.be, &desc, &t.rope), OK);
    t.rise = op_random(HEADS, 1.0f);
    t.base = op_random(HEADS, 1.0f);
    t.norm = op_random(LORA, 1.0f);
    float *kv = op_random((size_t)ROWS * (LORA + (size_t)rope_dim), 1.0f);
    struct op_pass *p = xcalloc(1, sizeof *p);
    op_add_seq(p, 0, PAST, ROWS);
    CHECK_EQ(t.rig.ops->step_begin(t.rig.be, 0), OK);
    t.rig.in_step = true;
    CHECK_EQ(t.rig.ops->lane_blocks(t.rig.be, 0, 0, 3, (int32_t[]){7, 2, 9}), OK);
    op_begin(&t.rig, p);
    run_store(&t, kv);
    float before[ROWS][LORA], after[LORA];
    for (int32_t r = 0; r < ROWS; r++) {
        const float *row = kv + (size_t)r * (size_t)(LORA + rope_dim);
        double sum = 0.0, wanted[LORA];
        for (int32_t i = 0; i < LORA; i++) {
            sum += (double)row[i] * (double)row[i];
        }
        for (int32_t i = 0; i < LORA; i++) {
            wanted[i] = (double)row[i] / sqrt(sum / LORA + 1e-6) * (double)t.norm[i];
        }
        stored_latent(&t, PAST + r, before[r]);
        CHECK(op_distance(before[r], wanted, LORA) < 1e-5);
    }
    run_store(&t, NULL);
    for (int32_t r = 0; r < ROWS; r++) {
        stored_latent(&t, PAST + r, after);
        CHECK(memcmp(after, before[r], sizeof after) == 0);
    }
    op_end(&t.rig);
    free(p);
    free(kv);
    free(t.rise);
    free(t.base);
    free(t.norm);
    op_close(&t.rig);
}

OP_TEST(heads_of_mla_grow)
{
    growth_case(backend, ROPE);
    growth_case(backend, 0);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
