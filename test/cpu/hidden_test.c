// SPDX-License-Identifier: Apache-2.0
/* Hidden states by slot: each row of a pass gets the state stored for the previous row on its path,
 * and copies, moves and poison apply to states too. Logits of a head with a reduced vocabulary. */
#include "test/device/op_harness.h"

enum { WIDTH = 24, STRIDE = 27, N_PARTS = 2 };

static int32_t part; // which WIDTH values of a slot's row are used: 0 or 1

/* What is stored for a slot of a lane: numbers that bf16 holds. */
static float value(int32_t lane, int32_t slot, int32_t d)
{
    const float x = ((float)(slot + 1) + 0.25f * (float)(d % 4)) * (float)(1 + part);
    return lane == 0 ? x : -x;
}

/* States whose value is a function of lane and position, so a row can be recognised. */
static struct tensor rows_of(struct op_rig *rig, const struct op_pass *p)
{
    float *x = xcalloc((size_t)p->pass.n_rows * WIDTH, sizeof *x);
    for (int32_t i = 0; i < p->pass.n_rows * WIDTH; i++) {
        const struct pass_row *r = &p->rows[i / WIDTH];
        x[i] = value(r->lane, r->slot_pos, i % WIDTH);
    }
    struct tensor t = op_tensor(rig, x, p->pass.n_rows, WIDTH, STRIDE);
    free(x);
    return t;
}

static void store(struct op_rig *rig, struct op_pass *p)
{
    struct hidden_args a = {
        .x = rows_of(rig, p), .n_rows = p->pass.n_rows, .width = WIDTH, .first = part * WIDTH};
    op_begin(rig, p);
    CHECK_EQ(rig->ops->hidden_store(rig->be, &a), OK);
    op_end(rig);
}

/* slots[i]: the slot whose state row i must get; -1: zeros. */
static void check_load(struct op_rig *rig, struct op_pass *p, const int32_t *slots)
{
    const int32_t n = p->pass.n_rows;
    struct hidden_args a = {.x = op_tensor(rig, NULL, n, WIDTH, STRIDE),
                            .n_rows = n,
                            .width = WIDTH,
                            .first = part * WIDTH};
    op_begin(rig, p);
    CHECK_EQ(rig->ops->hidden_load(rig->be, &a), OK);
    op_end(rig);
    float *x = op_fetch(rig, a.x, n, WIDTH);
    for (int32_t i = 0; i < n * WIDTH; i++) {
        const int32_t slot = slots[i / WIDTH], lane = p->rows[i / WIDTH].lane;
        CHECK_EQ(x[i], slot < 0 ? 0.0f : value(lane, slot, i % WIDTH));
    }
    free(x);
}

/* Two lanes with scattered blocks. */
static struct op_rig open_lanes(const char *backend, enum dtype dtype)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    struct err err = {""};
    static const int32_t blocks[2][3] = {{7, 2, 9}, {3, 11, 0}};
    CHECK_EQ(rig.ops->hidden_open(rig.be, 0, dtype, &err), ERR_INVALID);
    CHECK_EQ(rig.ops->hidden_open(rig.be, N_PARTS * WIDTH, dtype, &err), OK);
    struct kv_layer layer = {.n_heads = 1, .n_kv_heads = 1, .head_dim_k = 16, .head_dim_v = 16};
    struct kv_set_desc kv = {.n_layers = 1, .layers = &layer, .dtype = DT_BF16};
    CHECK_EQ(rig.ops->kv_open(rig.be, 0, &kv, &err), OK);
    for (int32_t lane = 0; lane < 2; lane++) {
        CHECK_EQ(rig.ops->lane_blocks(rig.be, lane, 0, 3, blocks[lane]), OK);
    }
    return rig;
}

/* All dtypes, since states are stored in the dtype of activations. */
OP_TEST(a_row_reads_the_one_before_it)
{
    static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        struct op_rig rig = open_lanes(backend, dtypes[d]);
        static struct op_pass all, later;
        all = later = (struct op_pass){.pass = {.n_rows = 0}};
        op_add_seq(&all, 0, 0, 20);
        op_add_seq(&all, 1, 0, 33);
        store(&rig, &all);
        op_add_seq(&later, 1, 0, 3);
        op_add_seq(&later, 0, 16, 3); // across a block boundary
        check_load(&rig, &later, (const int32_t[]){-1, 0, 1, 15, 16, 17});
        op_close(&rig);
    }
}

/* Several heads have their inputs side by side, and no head writes to those of another. */
OP_TEST(the_parts_of_a_row_are_separate)
{
    struct op_rig rig = open_lanes(backend, DT_BF16);
    static struct op_pass all, later;
    all = later = (struct op_pass){.pass = {.n_rows = 0}};
    op_add_seq(&all, 0, 0, 20);
    op_add_seq(&later, 0, 16, 3);
    for (part = 0; part < N_PARTS; part++) {
        store(&rig, &all);
    }
    for (part = 0; part < N_PARTS; part++) {
        check_load(&rig, &later, (const int32_t[]){15, 16, 17});
    }
    part = 0;
    op_close(&rig);
}

/* The root at 18; 19 and 20 below it, 21 below 19: positions by depth. */
OP_TEST(a_row_of_a_tree_reads_its_parent)
{
    struct op_rig rig = open_lanes(backend, DT_F32);
    static struct op_pass all, tree;
    all = tree = (struct op_pass){.pass = {.n_rows = 0}};
    op_add_seq(&all, 0, 0, 22);
    store(&rig, &all);
    op_add_seq(&tree, 0, 18, 4);
    const uint64_t masks[] = {1, 3, 5, 11};
    const int32_t depths[] = {0, 1, 1, 2};
    for (int32_t i = 0; i < 4; i++) {
        tree.mask[i * TREE_MASK_WORDS] = masks[i];
        tree.rows[i].pos = 18 + depths[i];
    }
    tree.seqs[0].tree = true;
    tree.pass.tree_mask = tree.mask;
    check_load(&rig, &tree, (const int32_t[]){17, 18, 18, 19});
    op_close(&rig);
}

/* Only some rows give logits; their states must still go to their own slots. */
OP_TEST(out_rows_store_in_their_own_slots)
{
    struct op_rig rig = open_lanes(backend, DT_F32);
    static struct op_pass all, some;
    all = some = (struct op_pass){.pass = {.n_rows = 0}};
    op_add_seq(&all, 0, 0, 8);
    store(&rig, &all);
    op_add_seq(&some, 0, 3, 4);
    const int32_t out[] = {1, 3};
    some.pass.out_rows = out;
    some.pass.n_out = 2;
    float *x = op_random(2 * WIDTH, 1.0f);
    struct hidden_args a = {
        .x = op_tensor(&rig, x, 2, WIDTH, STRIDE), .n_rows = 2, .width = WIDTH, .out_rows = true};
    struct hidden_args b = {
        .x = op_tensor(&rig, NULL, 4, WIDTH, STRIDE), .n_rows = 4, .width = WIDTH};
    op_begin(&rig, &some);
    CHECK_EQ(rig.ops->hidden_store(rig.be, &a), OK);
    CHECK_EQ(rig.ops->hidden_load(rig.be, &b), OK);
    op_end(&rig);
    float *y = op_fetch(&rig, b.x, 4, WIDTH);
    for (int32_t d = 0; d < WIDTH; d++) {
        CHECK_EQ(y[2 * WIDTH + d], x[d]);           // row 2 reads row 1, which this pass stored
        CHECK_EQ(y[1 * WIDTH + d], value(0, 3, d)); // row 1 reads row 0, not stored here
        CHECK_EQ(y[3 * WIDTH + d], value(0, 5, d));
    }
    free(x);
    free(y);
    op_close(&rig);
}

/* States are addressed by slot, like keys; whatever moves keys must move them. */
OP_TEST(copies_moves_and_poison_apply_to_hidden_states)
{
    struct op_rig rig = open_lanes(backend, DT_BF16);
    static struct op_pass all, later;
    all = later = (struct op_pass){.pass = {.n_rows = 0}};
    op_add_seq(&all, 0, 0, 24);
    store(&rig, &all);
    CHECK_EQ(rig.ops->step_begin(rig.be, 0), OK);
    rig.in_step = true;
    const struct slot_move moves[] = {{0, 20, 17}, {0, 22, 18}};
    const struct block_copy copy = {2, 11}; // from lane 0 to lane 1, which then holds lane 0's
                                            // numbers
    CHECK_EQ(rig.ops->move_slots(rig.be, 2, moves, 0), OK);
    CHECK_EQ(rig.ops->copy_blocks(rig.be, 1, &copy), OK);
    op_add_seq(&later, 1, 18, 3);
    struct hidden_args a = {
        .x = op_tensor(&rig, NULL, 3, WIDTH, STRIDE), .n_rows = 3, .width = WIDTH};
    op_begin(&rig, &later);
    CHECK_EQ(rig.ops->hidden_load(rig.be, &a), OK);
    op_end(&rig);
    float *x = op_fetch(&rig, a.x, 3, WIDTH);
    for (int32_t d = 0; d < WIDTH; d++) {
        CHECK_EQ(x[d], value(0, 20, d));
        CHECK_EQ(x[WIDTH + d], value(0, 22, d));
        CHECK_EQ(x[2 * WIDTH + d], value(0, 19, d));
    }
    free(x);
    const int32_t block = 11;
    CHECK_EQ(rig.ops->poison_blocks(rig.be, 1, &block), OK);
    op_begin(&rig, &later);
    CHECK_EQ(rig.ops->hidden_load(rig.be, &a), OK);
    op_end(&rig);
    x = op_fetch(&rig, a.x, 3, WIDTH);
    CHECK(isnan(x[0]) && isnan(x[3 * WIDTH - 1]));
    free(x);
    op_close(&rig);
}

/* Draft heads with a vocabulary of their own: other ids must be impossible, not merely
 * unlikely. */
OP_TEST(ids_outside_a_heads_vocabulary_are_impossible)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    const int32_t ids[] = {4, 0, 17, 5002};
    float *x = op_random(2 * 4, 1.0f);
    struct dmem on_device;
    CHECK_EQ(rig.ops->alloc(rig.be, sizeof ids, &on_device), OK);
    CHECK_EQ(rig.ops->write(rig.be, on_device, ids, sizeof ids), OK);
    struct logits_args a = {.local = op_tensor(&rig, x, 2, 4, 5),
                            .logits = op_tensor(&rig, NULL, 2, 5003, 5003),
                            .n_out = 2,
                            .vocab = 5003,
                            .scale = 0.5f,
                            .ids = on_device,
                            .n_ids = 4};
    CHECK_EQ(rig.ops->logits(rig.be, &a), OK);
    float *y = op_fetch(&rig, a.logits, 2, 5003);
    for (int32_t r = 0; r < 2; r++) {
        int32_t n_finite = 0;
        for (int32_t i = 0; i < 5003; i++) {
            n_finite += y[r * 5003 + i] > -INFINITY;
        }
        CHECK_EQ(n_finite, 4);
        for (int32_t k = 0; k < 4; k++) {
            CHECK_EQ(y[r * 5003 + ids[k]], 0.5f * x[r * 4 + k]);
        }
    }
    free(x);
    free(y);
    op_close(&rig);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
