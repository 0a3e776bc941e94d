// SPDX-License-Identifier: Apache-2.0
/* Hidden states by slot. Passes of the target and of the draft head store them; the draft head
 * reads them. */
#include "cpu/cpu_state.h"

#include <math.h>
#include <string.h>

/* There is a row per slot of the KV cache, so the same block ids serve for both. */
enum status cpu_hidden_open(struct backend *be, int32_t width, enum dtype dtype, struct err *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct hidden_rows *h = &cpu->hidden;
    bool known = dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16;
    ASSERT(cpu->is_set_up && !h->base);
    if (width < 1 || !known) {
        return err_set(err, ERR_INVALID, "rows of %d hidden states are not usable", width);
    }
    size_t n_bytes, block = hidden_block_bytes(width, dtype, cpu->limits.block_tokens);
    h->width = width;
    h->dtype = dtype;
    h->row_bytes = (size_t)width * dtype_bytes(dtype);
    if (mem_mul(block, (size_t)cpu->limits.n_blocks, &n_bytes)) {
        h->base = cpu_memory(cpu, n_bytes);
    }
    return h->base ? OK : err_set(err, ERR_NOMEM, "not enough memory for hidden states by slot");
}

static char *row_at(const struct cpu_backend *cpu, int32_t lane, int32_t slot)
{
    int32_t tokens = cpu->limits.block_tokens, block = cpu->lanes[lane].blocks[slot / tokens];
    ASSERT(block >= 0 && block < cpu->limits.n_blocks);
    size_t row = (size_t)block * (size_t)tokens + (size_t)(slot % tokens);
    return cpu->hidden.base + row * cpu->hidden.row_bytes;
}

static bool in_row(const struct cpu_backend *cpu, const struct hidden_args *a)
{
    return a->width > 0 && a->first >= 0 && a->first % a->width == 0 &&
           a->first + a->width <= cpu->hidden.width;
}

/* Stores all rows of the pass, or only those with logits. */
enum status cpu_hidden_store(struct backend *be, const struct hidden_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    const struct pass *pass = cpu->pass;
    ASSERT(pass && cpu->hidden.base && in_row(cpu, a));
    ASSERT(a->n_rows <= (a->out_rows ? pass->n_out : pass->n_rows));
    for (int32_t i = 0; i < a->n_rows; i++) {
        const struct pass_row *r = &pass->rows[a->out_rows ? pass->out_rows[i] : i];
        cpu_state_put(cpu->hidden.dtype, row_at(cpu, r->lane, r->slot_pos), a->first, 1,
                      tensor_row(&a->x, i), a->width);
    }
    return OK;
}

/* The slot of the row before `row` on its path; -1: `row` is the first. */
static int32_t slot_before(const struct cpu_backend *cpu, int32_t row)
{
    const struct pass *pass = cpu->pass;
    const struct pass_seq *seq = &pass->seqs[cpu->row_seq[row]];
    int32_t pos = pass->rows[row].pos;
    if (pos == 0) {
        return -1;
    }
    int32_t before = cpu_path_row(pass, seq, row, pos - 1);
    return before >= 0 ? pass->rows[before].slot_pos : seq->n_past - 1;
}

/* The row of the first token has no predecessor and reads zeros. */
enum status cpu_hidden_load(struct backend *be, const struct hidden_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    const struct pass *pass = cpu->pass;
    ASSERT(pass && cpu->hidden.base && in_row(cpu, a));
    ASSERT(a->n_rows <= pass->n_rows);
    for (int32_t i = 0; i < a->n_rows; i++) {
        float *x = tensor_row(&a->x, i);
        int32_t slot = slot_before(cpu, i);
        if (slot < 0) {
            memset(x, 0, (size_t)a->width * sizeof *x);
            continue;
        }
        const char *row = row_at(cpu, pass->rows[i].lane, slot);
        for (int32_t d = 0; d < a->width; d++) {
            x[d] = dtype_load(row, cpu->hidden.dtype, a->first + d);
        }
    }
    return OK;
}

/* ---- whole blocks and slots ---------------------------------------------------------------- */

void cpu_hidden_copy(struct cpu_backend *cpu, int32_t n, const struct block_copy *copies)
{
    const struct hidden_rows *h = &cpu->hidden;
    size_t block = h->row_bytes * (size_t)cpu->limits.block_tokens;
    for (int32_t i = 0; h->base && i < n; i++) {
        memmove(h->base + (size_t)copies[i].to * block, h->base + (size_t)copies[i].from * block,
                block);
    }
}

void cpu_hidden_move(struct cpu_backend *cpu, int32_t n, const struct slot_move *moves)
{
    for (int32_t i = 0; cpu->hidden.base && i < n; i++) {
        memmove(row_at(cpu, moves[i].lane, moves[i].to), row_at(cpu, moves[i].lane, moves[i].from),
                cpu->hidden.row_bytes);
    }
}

/* Fills the rows with NaN, as is done with KV pages. */
void cpu_hidden_poison(struct cpu_backend *cpu, int32_t n, const int32_t *blocks)
{
    const struct hidden_rows *h = &cpu->hidden;
    int32_t tokens = cpu->limits.block_tokens;
    float nan = NAN;
    for (int32_t i = 0; h->base && i < n * tokens; i++) {
        size_t row = (size_t)blocks[i / tokens] * (size_t)tokens + (size_t)(i % tokens);
        for (int32_t d = 0; d < h->width; d++) {
            cpu_state_put(h->dtype, h->base + row * h->row_bytes, d, 1, &nan, 1);
        }
    }
}
