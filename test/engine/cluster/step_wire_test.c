// SPDX-License-Identifier: Apache-2.0
/* A step's encoding: decoding gives what was encoded, and no input makes the decoder read or write
 * out of bounds. */
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/cluster/step_wire.h"
#include "test/check.h"

enum { ROWS = 12, OUT = 6, LANES = 4, BLOCKS = 20, VOCAB = 50, DRAFTS = 3 };

static const struct scheduler_limits limits = {.max_rows = ROWS,
                                               .max_out = OUT,
                                               .max_draws = OUT + LANES,
                                               .max_lanes = LANES,
                                               .max_sequences = 8,
                                               .max_len = 64,
                                               .n_blocks = BLOCKS,
                                               .block_tokens = 4,
                                               .max_blocks_per_lane = 17,
                                               .n_pages = 9,
                                               .window = 8,
                                               .state_block = 8,
                                               .state_ahead = 3,
                                               .n_snapshots = 5,
                                               .state_interval = 8};
/* A chain of drafts, a draft tree, and an engine without drafts; the two sides must agree
 * on these sizes, which a peer checks when it joins. */
static const struct step_sizes chain = {&limits, VOCAB, 1, DRAFTS, 2, 2, false, 3},
                               tree = {&limits, VOCAB, 1, DRAFTS, 2, 2, true, 3},
                               alone = {&limits, VOCAB, 0, 0, 1, 2, false, 3};
static struct tree_moves sent_moves, moves;

static enum status decode(struct step *st, const void *bytes, size_t n_bytes)
{
    struct err err;
    enum step_frame frame;
    st->begun = false;
    return step_decode(st, &moves, &frame, &chain, bytes, n_bytes, &err);
}

/* Arrays that the step points to rather than contains; the decoder must copy them. */
static const int32_t blocks[] = {3, 19, 0}, pages[] = {8, 0, 5}, prompt[] = {1, 2, 49},
                     generated[] = {7};
static const int32_t stops[] = {4}, allowed[] = {1, 2, 3}, lengths[] = {1, 2}, bad[] = {9, 8, 7};
static const struct logit_bias bias[] = {{5, -1.5f}};
static uint64_t mask[ROWS * TREE_MASK_WORDS];
static const uint32_t masks[2 * ((VOCAB + 31) / 32)] = {1, 2, 3, 0x80000000u};

static void fill_lanes(struct step *st)
{
    st->n_lanes = 2;
    st->lanes[0] = (struct lane_update){.lane = 2,
                                        .first_block = 1,
                                        .n_blocks = 3,
                                        .blocks = blocks,
                                        .fresh = true,
                                        .prompt = prompt,
                                        .n_prompt = 3,
                                        .generated = generated,
                                        .n_generated = 1,
                                        .params = sampling_params_default()};
    struct sampling_params *p = &st->lanes[0].params;
    p->seed = 0x123456789abcdef0u;
    p->logprobs = true;
    p->temperature = 0.75f;
    p->stop_ids = stops;
    p->n_stop_ids = 1;
    p->allowed = allowed;
    p->n_allowed = 3;
    p->bias = bias;
    p->n_bias = 1;
    p->bad_word_lengths = lengths;
    p->n_bad_words = 2;
    p->bad_word_tokens = bad;
    st->lanes[1] = (struct lane_update){.lane = 3, .n_blocks = 1, .blocks = blocks};
}

static void fill_pass(struct step *st)
{
    st->pass = (struct pass){.n_rows = 3,
                             .rows = st->rows,
                             .n_seqs = 2,
                             .seqs = st->seqs,
                             .n_keeps = 1,
                             .keeps = st->keeps,
                             .n_groups = 1,
                             .groups = st->groups,
                             .n_out = 2,
                             .out_rows = st->out_rows,
                             .n_draws = 1,
                             .draws = st->draws,
                             .n_pool = 1,
                             .pool = st->pools,
                             .tree_mask = mask,
                             .n_masks = 2,
                             .masks = masks,
                             .hidden = {2, {1, 5}}};
    st->rows[0] = (struct pass_row){2, -1, 3, 3};
    st->rows[1] = (struct pass_row){3, 49, 0, 0};
    st->rows[2] = (struct pass_row){3, 1, 1, 2};
    st->seqs[0] = (struct pass_seq){2, 0, 1, 3, false, 0, 0};
    st->seqs[1] = (struct pass_seq){3, 1, 2, 0, true, 2, 1};
    st->groups[0] = (struct pass_group){0, 2, 1};
    st->out_rows[0] = 0;
    st->out_rows[1] = 2;
    st->draws[0] = (struct pass_draw){.out_row = 1,
                                      .lane = 3,
                                      .pos = 1,
                                      .n_prompt = 2,
                                      .kind = DRAW_DRAFT,
                                      .keep = true,
                                      .noise = true,
                                      .top_n = 5,
                                      .tree_row = -1,
                                      .mask = 2};
    st->pools[0] = (struct pass_pool){2, 0, 1, true, false};
    mask[5] = 77;
}

static void fill_draft(struct step *st)
{
    st->n_draft_passes = 1;
    struct draft_pass *d = &st->draft[0];
    d->pass = (struct pass){.model = 1, // the second of two draft models
                            .n_rows = 1,
                            .rows = d->rows,
                            .n_seqs = 1,
                            .seqs = d->seqs,
                            .n_out = 1,
                            .out_rows = d->out_rows,
                            .n_draws = 1,
                            .draws = d->draws};
    d->rows[0] = (struct pass_row){1, 5, 2, 2};
    d->seqs[0] = (struct pass_seq){1, 0, 1, 2, false, 3, 0};
    d->out_rows[0] = 0;
    d->draws[0] = (struct pass_draw){
        .lane = 1, .pos = 2, .kind = DRAW_DRAFT, .tree_row = -1, .more = 3, .more_slot = 5};
}

/* A step with something in every field that travels, each with a value that differs from
 * its neighbours, so that two fields swapped on the wire are seen. */
static void fill(struct step *st)
{
    step_init(st, 1, &chain);
    if (!moves.paths) {
        tree_moves_init(&moves, &limits);
        tree_moves_init(&sent_moves, &limits);
    }
    sent_moves.n_paths = 1;
    sent_moves.paths[0] = (struct tree_path){.lane = 1, .first = 3, .n = 2, .tokens = {5, 6}};
    sent_moves.n_moves[1] = 1;
    sent_moves.moves[1][0] = (struct slot_move){1, 9, 4};
    st->moves = &sent_moves;
    st->want = (struct model_outputs){.logits = true};
    fill_lanes(st);
    st->n_copies = 1;
    st->copies[0] = (struct block_copy){4, 5};
    st->n_page_updates = 2;
    st->page_updates[0] = (struct page_update){2, 14, 3, pages};
    st->page_updates[1] = (struct page_update){3, 0, 1, pages};
    st->n_page_copies = 1;
    st->page_copies[0] = (struct block_copy){8, 7};
    st->n_state_copies = 3;
    st->state_copies[0] = (struct state_copy){1, LANES + 4, 16};
    st->state_copies[1] = (struct state_copy){1, 3, 13};
    st->state_copies[2] = (struct state_copy){LANES, 1, 8};
    st->keeps[0] = (struct state_keep){3, 8, LANES + 1};
    fill_pass(st);
    fill_draft(st);
}

/* All fields of the wire format: some are compared by value, and encoding the decoded step
 * again must give the same bytes, which covers the rest. */
TEST(a_step_arrives_as_it_was_sent)
{
    struct step sent, got;
    struct buf first, second;
    fill(&sent);
    step_init(&got, 1, &chain);
    buf_init(&first, 1 << 20);
    buf_init(&second, 1 << 20);
    step_encode(&sent, NULL, &first);
    REQUIRE(decode(&got, first.data, first.n_bytes) == OK);
    CHECK_EQ(got.lanes[0].params.seed, 0x123456789abcdef0u);
    CHECK_EQ(got.lanes[0].params.bad_word_tokens[2], 7);
    CHECK_EQ(got.lanes[0].blocks[1], 19);
    CHECK_EQ(got.rows[0].token, -1);
    CHECK_EQ(got.pass.hidden.n, 2);
    CHECK_EQ(got.pass.hidden.ids[1], 5);
    CHECK_EQ(moves.moves[1][0].from, 9);
    CHECK_EQ(moves.paths[0].tokens[1], 6);
    CHECK_EQ(got.draws[0].kind, DRAW_DRAFT);
    CHECK(got.draws[0].keep && got.draws[0].noise && !got.draws[0].logprobs);
    CHECK_EQ(got.pass.tree_mask[5], 77);
    CHECK_EQ(got.pass.n_masks, 2);
    CHECK_EQ(got.pass.masks[3], 0x80000000u);
    CHECK_EQ(got.draws[0].mask, 2);
    CHECK(got.n_page_updates == 2 && got.page_updates[0].first == 14 && got.page_updates[0].n == 3);
    CHECK_EQ(got.page_updates[0].pages[2], 5);
    CHECK(got.n_page_copies == 1 && got.page_copies[0].from == 8 && got.page_copies[0].to == 7);
    CHECK_EQ(got.n_state_copies, 3);
    CHECK(got.state_copies[1].to == 3 && got.state_copies[1].pos == 13);
    CHECK(got.pass.n_keeps == 1 && got.pass.keeps[0].slot == LANES + 1);
    CHECK_EQ(got.draft[0].draws[0].more, 3);
    CHECK_EQ(got.draft[0].draws[0].more_slot, 5);
    CHECK(got.seqs[1].tree && !got.seqs[0].tree);
    CHECK(got.seqs[1].adapter == 2 && got.seqs[0].adapter == 0);
    CHECK(got.seqs[1].second == 1 && got.seqs[0].second == 0);
    CHECK(!got.pass.bidirectional);
    // Encoding twice gives equal fields.
    step_encode(&got, NULL, &second);
    CHECK_EQ(second.n_bytes, first.n_bytes);
    CHECK(memcmp(first.data, second.data, first.n_bytes) == 0);
    buf_deinit(&first);
    buf_deinit(&second);
    step_deinit(&sent);
    step_deinit(&got);
}

/* With trees, each level of drafts is a frame of its own before the step's main frame. The
 * receiver tracks with `begun` which one it expects, and a frame that does not fit this
 * state is refused instead of run twice. */
TEST(a_level_of_a_tree_comes_before_its_step)
{
    struct step sent, got;
    struct buf b;
    struct err err;
    enum step_frame frame;
    fill(&sent);
    step_init(&got, 1, &tree);
    buf_init(&b, 1 << 20);
    step_encode(&sent, &sent.draft[0].pass, &b);
    // Only an engine with draft models accepts a level.
    got.begun = false;
    CHECK_EQ(step_decode(&got, &moves, &frame, &alone, b.data, b.n_bytes, &err), ERR_FORMAT);
    got.begun = false;
    REQUIRE(step_decode(&got, &moves, &frame, &tree, b.data, b.n_bytes, &err) == OK);
    CHECK(frame == STEP_LEVEL && !got.begun);
    CHECK_EQ(got.level.pass.n_rows, 1);
    CHECK_EQ(got.level.rows[0].token, 5);
    // Later passes of the step repeat no lanes and do not begin the step.
    buf_clear(&b);
    sent.begun = true;
    step_encode(&sent, NULL, &b);
    got.begun = true;
    CHECK_EQ(step_decode(&got, &moves, &frame, &tree, b.data, b.n_bytes, &err), OK);
    CHECK(frame == STEP_WHOLE && got.begun);
    got.begun = false;
    CHECK_EQ(step_decode(&got, &moves, &frame, &tree, b.data, b.n_bytes, &err), ERR_FORMAT);
    buf_deinit(&b);
    step_deinit(&sent);
    step_deinit(&got);
}

/* Grammar masks may be computed while the model already runs. The step is then sent
 * without masks, and a second frame with the draws brings them; it is accepted once. */
TEST(draws_that_wait_bring_their_masks_later)
{
    struct step sent, got;
    struct buf b;
    struct err err;
    enum step_frame frame;
    fill(&sent);
    step_init(&got, 1, &chain);
    buf_init(&b, 1 << 20);
    sent.pass.draws_wait = true;
    step_encode(&sent, NULL, &b);
    size_t n_without = b.n_bytes;
    REQUIRE(decode(&got, b.data, b.n_bytes) == OK);
    CHECK(got.lacks_masks && got.pass.n_masks == 2 && got.draws[0].mask == 2);
    buf_clear(&b);
    step_encode_draws(&sent, &b);
    REQUIRE(step_decode(&got, &moves, &frame, &chain, b.data, b.n_bytes, &err) == OK);
    CHECK_EQ(frame, STEP_DRAWS);
    CHECK(!got.lacks_masks && got.pass.draws_wait); // the backends still have to issue the draws
    CHECK_EQ(got.pass.masks[3], 0x80000000u);
    CHECK_EQ(got.pass.tree_mask[5], 77);
    // No further pass is expected.
    CHECK_EQ(step_decode(&got, &moves, &frame, &chain, b.data, b.n_bytes, &err), ERR_FORMAT);
    buf_clear(&b);
    step_encode(&sent, NULL, &b);
    REQUIRE(decode(&got, b.data, b.n_bytes) == OK);
    CHECK_EQ(decode(&got, b.data, b.n_bytes), ERR_FORMAT); // the draws have to come first
    buf_clear(&b);
    sent.pass.draws_wait = false;
    step_encode(&sent, NULL, &b);
    CHECK(b.n_bytes > n_without);
    buf_deinit(&b);
    step_deinit(&sent);
    step_deinit(&got);
}

/* Rows of encoders have no past, and are no trees. */
TEST(a_bidirectional_pass_arrives)
{
    struct step sent, got;
    struct buf b;
    fill(&sent);
    step_init(&got, 1, &chain);
    buf_init(&b, 1 << 20);
    sent.pass.bidirectional = true;
    step_encode(&sent, NULL, &b);
    CHECK_EQ(decode(&got, b.data, b.n_bytes), ERR_FORMAT);
    sent.pass.tree_mask = NULL;
    sent.seqs[1].tree = false;
    buf_clear(&b);
    step_encode(&sent, NULL, &b);
    CHECK_EQ(decode(&got, b.data, b.n_bytes), ERR_FORMAT);
    sent.seqs[0].n_past = 0;
    buf_clear(&b);
    step_encode(&sent, NULL, &b);
    REQUIRE(decode(&got, b.data, b.n_bytes) == OK);
    CHECK(got.pass.bidirectional);
    buf_deinit(&b);
    step_deinit(&sent);
    step_deinit(&got);
}

/* Every prefix of a valid frame is refused, and so are bytes after its end: a length that
 * is checked too late would show here under a sanitizer. */
TEST(a_step_that_was_cut_or_lengthened_is_refused)
{
    struct step sent, got;
    struct buf b;
    fill(&sent);
    step_init(&got, 1, &chain);
    buf_init(&b, 1 << 20);
    step_encode(&sent, NULL, &b);
    for (size_t n = 0; n < b.n_bytes; n++) {
        char *exact = xmalloc(n + 1); // so that a sanitizer sees a read past the end
        memcpy(exact, b.data, n);
        CHECK_EQ(decode(&got, exact, n), ERR_FORMAT);
        free(exact);
    }
    buf_puts(&b, "more");
    CHECK_EQ(decode(&got, b.data, b.n_bytes), ERR_FORMAT);
    buf_deinit(&b);
    step_deinit(&sent);
    step_deinit(&got);
}

/* Checks that indices are in range, because backends address memory with them without further
 * checks. */
static void check_pass(const struct pass *p, int32_t max_rows, int32_t max_out, int32_t max_draws)
{
    CHECK(p->n_rows <= max_rows && p->n_out <= max_out && p->n_draws <= max_draws &&
          p->n_seqs <= LANES && p->n_groups <= LANES && p->n_pool <= LANES);
    for (int32_t i = 0; i < p->n_rows; i++) {
        CHECK(p->rows[i].lane >= 0 && p->rows[i].lane < LANES && p->rows[i].token >= -1 &&
              p->rows[i].token < VOCAB);
    }
    for (int32_t i = 0; i < p->n_seqs; i++) {
        CHECK(p->seqs[i].first_row + p->seqs[i].n_rows <= p->n_rows);
    }
    for (int32_t i = 0; i < p->n_out; i++) {
        CHECK(p->out_rows[i] >= 0 && p->out_rows[i] < p->n_rows);
    }
    for (int32_t i = 0; i < p->n_draws; i++) {
        CHECK(p->draws[i].out_row < p->n_out && p->draws[i].kind <= DRAW_SCORE &&
              p->draws[i].top_n <= MAX_TOP_LOGPROBS);
    }
}

static void check_pages(const struct step *st)
{
    CHECK(st->n_page_updates <= max_page_grants(&limits) &&
          st->n_page_copies <= max_page_copies(&limits));
    for (int32_t i = 0; i < st->n_page_updates; i++) {
        const struct page_update *u = &st->page_updates[i];
        CHECK(u->lane >= 0 && u->lane < LANES && u->first >= 0 && u->n >= 0 &&
              u->first + u->n <= limits.max_blocks_per_lane);
        for (int32_t k = 0; k < u->n; k++) {
            CHECK(u->pages[k] >= 0 && u->pages[k] < limits.n_pages);
        }
    }
    for (int32_t i = 0; i < st->n_page_copies; i++) {
        const struct block_copy *c = &st->page_copies[i];
        CHECK(c->from >= 0 && c->from < limits.n_pages && c->to >= 0 && c->to < limits.n_pages);
    }
}

/* States are addressed by slot: lanes first, then snapshots. A copy from a snapshot goes
 * to a lane, at a multiple of the state's block. */
static void check_states(const struct step *st)
{
    const int32_t n_slots = LANES + limits.n_snapshots;
    CHECK(st->n_state_copies <= max_state_copies(&limits) &&
          st->pass.n_keeps <= max_keeps(&limits));
    for (int32_t i = 0; i < st->n_state_copies; i++) {
        const struct state_copy *c = &st->state_copies[i];
        CHECK(c->from >= 0 && c->from < n_slots && c->to >= 0 && c->to < n_slots && c->pos > 0);
        CHECK(c->from < LANES || (c->to < LANES && c->pos % limits.state_block == 0));
    }
    for (int32_t i = 0; i < st->pass.n_keeps; i++) {
        const struct state_keep *k = &st->pass.keeps[i];
        CHECK(k->lane >= 0 && k->lane < LANES && k->slot >= LANES && k->slot < n_slots);
        CHECK(k->pos > 0 && k->pos % limits.state_block == 0);
    }
}

/* Replaces each word of the frame by each of eight values. A corrupted frame is either
 * refused or decodes to a step within all bounds; both must happen often, so that the test
 * is known to reach the decoder's checks. */
TEST(any_word_changed_is_refused_or_within_bounds)
{
    struct step sent, got;
    struct buf b;
    int32_t refused = 0, taken = 0;
    fill(&sent);
    step_init(&got, 1, &chain);
    buf_init(&b, 1 << 20);
    step_encode(&sent, NULL, &b);
    static const int32_t values[] = {0, -1, 1, 2, 7, 1 << 20, INT32_MAX, INT32_MIN};
    for (size_t at = 0; at + 4 <= b.n_bytes; at += 4) {
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            char *copy = xmalloc(b.n_bytes);
            memcpy(copy, b.data, b.n_bytes);
            memcpy(copy + at, &values[v], 4);
            if (decode(&got, copy, b.n_bytes) == OK) {
                taken++;
                check_pass(&got.pass, ROWS, OUT, OUT + LANES);
                for (int32_t i = 0; i < got.n_draft_passes; i++) {
                    check_pass(&got.draft[i].pass, i == 0 ? ROWS : LANES, LANES, LANES);
                }
                check_pages(&got);
                check_states(&got);
                for (int32_t i = 0; i < got.n_lanes; i++) {
                    const struct lane_update *u = &got.lanes[i];
                    CHECK(u->lane < LANES && u->first_block + u->n_blocks <= 17);
                    for (int32_t k = 0; k < u->n_blocks; k++) {
                        CHECK(u->blocks[k] >= 0 && u->blocks[k] < BLOCKS);
                    }
                }
            } else {
                refused++;
            }
            free(copy);
        }
    }
    CHECK(refused > 100 && taken > 100);
    buf_deinit(&b);
    step_deinit(&sent);
    step_deinit(&got);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
