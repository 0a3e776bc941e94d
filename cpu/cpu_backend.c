// SPDX-License-Identifier: Apache-2.0
/* Opens and closes a CPU rank, and has its table of ops. This is the only file that knows all the
 * others. */
#include "cpu/cpu_index.h"
#include "cpu/cpu_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values between ops are fp32. */
static enum status cpu_facts(struct backend *be, struct backend_facts *out)
{
    struct cpu_backend *cpu = cpu_of(be);
    *out = (struct backend_facts){
        .name = "cpu",
        .act = DT_F32,
        .residual = DT_F32,
        .free_bytes = cpu_free_bytes(),
        .preferred_block_tokens = 16,
        .full_rows = 256,
        .async = false,
        .rounds_inputs = true,
        .exact_ranks = true,
        .pooled_keys = true,
        .plain_experts = true,
    };
    snprintf(out->device, sizeof out->device, "%d threads, %s", pool_n_threads(cpu->pool),
             cpu->kernels->name);
    return OK;
}

static enum status cpu_alloc(struct backend *be, size_t n_bytes, struct dmem *out)
{
    out->p = cpu_memory(cpu_of(be), n_bytes);
    return out->p ? OK : ERR_NOMEM;
}

static enum status cpu_write(struct backend *be, struct dmem to, const void *from, size_t n_bytes)
{
    (void)be;
    memcpy(to.p, from, n_bytes);
    return OK;
}

static enum status cpu_read(struct backend *be, void *to, struct dmem from, size_t n_bytes)
{
    (void)be;
    memcpy(to, from.p, n_bytes);
    return OK;
}

/* ---- open and close ----------------------------------------------------------------------- */

/* The communicator is left first, because other ranks may be waiting in a collective. */
static void cpu_close(struct backend *be)
{
    struct cpu_backend *cpu = cpu_of(be);
    if (!cpu) {
        return;
    }
    cpu_comm_leave(cpu);
    pool_destroy(cpu->pool);
    cpu_weights_close(cpu);
    while (cpu->ropes) {
        struct rope_table *rope = cpu->ropes;
        cpu->ropes = rope->next;
        free(rope);
    }
    for (int32_t i = 0; i < MAX_KV_SETS; i++) {
        free(cpu->kv_sets[i].layers);
    }
    cpu_states_close(cpu);
    for (int32_t i = 0; cpu->slots && i < cpu->limits.n_steps; i++) {
        free(cpu->slots[i].passes);
        free(cpu->slots[i].logits);
    }
    free(cpu->slots);
    free(cpu->lanes);
    free(cpu->scratch);
    while (cpu->memories) {
        cpu_memory_free(cpu, cpu->memories->p);
    }
    free(cpu);
}

/* Allocates pages, and the scratch memory that attention over them needs. */
static enum status open_kv(struct backend *be, int32_t set, const struct kv_set_desc *desc,
                           struct err *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    TRY(cpu_kv_open(be, set, desc, err));
    bool sparse = false;
    for (int32_t i = 0; i < desc->n_layers; i++) {
        sparse = sparse || desc->layers[i].index;
    }
    for (int32_t i = 0; i < desc->n_layers; i++) {
        const struct kv_pages *p = &cpu->kv_sets[set].layers[i];
        const size_t n_bytes = cpu_attention_scratch(cpu, p, sparse);
        enum status st =
            p->geometry.index ? cpu_index_need(cpu, &p->geometry) : cpu_need_scratch(cpu, n_bytes);
        if (st != OK) {
            return err_set(err, ERR_NOMEM, "not enough memory for attention's scratch");
        }
    }
    return OK;
}

/* Allocates slots, and the scratch memory of the ops that read them. */
static enum status open_states(struct backend *be, int32_t set, const struct state_set_desc *desc,
                               int32_t n_snapshots, struct err *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    TRY(cpu_state_open(be, set, desc, n_snapshots, err));
    for (int32_t i = 0; i < desc->n_layers; i++) {
        const struct state_pages *p = &cpu->states[set]->layers[i];
        if (cpu_need_scratch(cpu, cpu_recurrence_scratch(p)) != OK ||
            cpu_need_scratch(cpu, cpu_conv_scratch(p)) != OK) {
            return err_set(err, ERR_NOMEM, "not enough memory for the scratch of recurrent layers");
        }
    }
    return OK;
}

/* Moves everything that is stored by slot: pages, raw rows of recurrent layers and, with set 0,
 * hidden states. */
static enum status move_slots(struct backend *be, int32_t n, const struct slot_move *moves,
                              int32_t set)
{
    TRY(cpu_move_slots(be, n, moves, set));
    cpu_state_move_slots(cpu_of(be), n, moves, set);
    if (set == 0) {
        cpu_hidden_move(cpu_of(be), n, moves);
    }
    return OK;
}

static enum status copy_blocks(struct backend *be, int32_t n, const struct block_copy *copies)
{
    TRY(cpu_copy_blocks(be, n, copies));
    cpu_hidden_copy(cpu_of(be), n, copies);
    return OK;
}

static enum status poison_blocks(struct backend *be, int32_t n, const int32_t *blocks)
{
    TRY(cpu_poison_blocks(be, n, blocks));
    cpu_hidden_poison(cpu_of(be), n, blocks);
    return OK;
}

static const struct backend_ops cpu_ops = {
    .facts = cpu_facts,
    .alloc = cpu_alloc,
    .weight_open = cpu_weight_open,
    .weight_bytes = cpu_weight_bytes,
    .rope_open = cpu_rope_open,
    .kv_bytes = cpu_kv_bytes,
    .setup = cpu_setup,
    .kv_open = open_kv,
    .close = cpu_close,
    .step_begin = cpu_step_begin,
    .lane_tokens = cpu_lane_tokens,
    .lane_blocks = cpu_lane_blocks,
    .lane_params = cpu_lane_params,
    .copy_blocks = copy_blocks,
    .lane_pages = cpu_lane_pages,
    .copy_pages = cpu_copy_pages,
    .poison_pages = cpu_poison_pages,
    .move_slots = move_slots,
    .poison_blocks = poison_blocks,
    .pass_begin = cpu_pass_begin,
    .pass_end = cpu_pass_end,
    .step_end = cpu_step_end,
    .step_wait = cpu_step_wait,
    .step_done = cpu_step_done,
    .embed = cpu_embed,
    .norm = cpu_norm,
    .linear = cpu_linear,
    .linear_heads = cpu_linear_heads,
    .rope_store = cpu_rope_store,
    .mla_store = cpu_mla_store,
    .attention = cpu_attention,
    .activation = cpu_activation,
    .moe_route = cpu_moe_route,
    .moe_ffn = cpu_moe_ffn,
    .row_gate = cpu_row_gate,
    .reduce = cpu_reduce,
    .gather = cpu_gather,
    .logits = cpu_logits,
    .sample = cpu_sample,
    .pool = cpu_pool_rows,
    .linear_act = cpu_linear_act,
    .linear_adapter = cpu_linear_adapter,
    .weight_adapter_set = cpu_weight_adapter_set,
    .mlp = cpu_mlp,
    .norm_linear = cpu_norm_linear,
    .state_bytes = cpu_state_bytes,
    .state_open = open_states,
    .copy_states = cpu_copy_states,
    .short_conv = cpu_short_conv,
    .recurrence = cpu_recurrence,
    .gate = cpu_gate,
    .streams = cpu_streams,
    .rms_match = cpu_rms_match,
    .cutoff = cpu_cutoff,
    .moe_identity = cpu_moe_identity,
    .hyper = cpu_hyper,
    .index_store = cpu_index_store,
    .index_pick = cpu_index_pick,
    .hidden_open = cpu_hidden_open,
    .hidden_store = cpu_hidden_store,
    .hidden_load = cpu_hidden_load,
    .write = cpu_write,
    .read = cpu_read,
};

/* The caller chooses the kernels, so that tests can run every table that the processor supports. */
enum status cpu_open_with(const struct backend_options *options, const struct cpu_kernels *kernels,
                          struct backend **out, struct err *err)
{
    *out = NULL;
    if (options->threads < 0 || options->threads > 1024) {
        return err_set(err, ERR_INVALID, "threads: %d is not between 0 and 1024", options->threads);
    }
    struct cpu_backend *cpu = xcalloc(1, sizeof *cpu);
    cpu->base = (struct backend){
        .ops = &cpu_ops,
        .rank = options->rank,
        .n_ranks = options->n_ranks > 0 ? options->n_ranks : 1,
    };
    cpu->options = *options;
    cpu->kernels = kernels;
    cpu->pool = pool_create(options->threads);
    if (!cpu->pool) {
        cpu_close(&cpu->base);
        return err_set(err, ERR_NOMEM, "cannot start %d threads", options->threads);
    }
    cpu->n_scratch = pool_n_threads(cpu->pool);
    cpu->scratch = xcalloc((size_t)cpu->n_scratch, sizeof *cpu->scratch);
    *out = &cpu->base;
    return OK;
}

enum status cpu_open(const struct backend_options *options, struct backend **out, struct err *err)
{
    return cpu_open_with(options, cpu_kernels_best(), out, err);
}

enum status cpu_open_scalar(const struct backend_options *options, struct backend **out,
                            struct err *err)
{
    return cpu_open_with(options, &cpu_kernels_scalar, out, err);
}
