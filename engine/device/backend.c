// SPDX-License-Identifier: Apache-2.0
/* Checks a backend's table before the engine relies on it. */
#include "engine/device/ops.h"

enum status backend_check(const struct backend *be, struct err *err)
{
    const struct backend_ops *o = be->ops;
#define OP(name) {#name, o->name != 0}
    const struct {
        const char *name;
        bool present;
    } basic[] = {
        OP(facts),         OP(alloc),       OP(weight_open), OP(weight_bytes), OP(rope_open),
        OP(kv_bytes),      OP(setup),       OP(kv_open),     OP(close),        OP(step_begin),
        OP(lane_tokens),   OP(lane_blocks), OP(lane_params), OP(copy_blocks),  OP(move_slots),
        OP(poison_blocks), OP(pass_begin),  OP(pass_end),    OP(step_end),     OP(step_wait),
        OP(step_done),     OP(embed),       OP(norm),        OP(linear),       OP(linear_heads),
        OP(rope_store),    OP(mla_store),   OP(attention),   OP(activation),   OP(moe_route),
        OP(moe_ffn),       OP(row_gate),    OP(reduce),      OP(gather),       OP(logits),
        OP(sample),        OP(pool),        OP(write),       OP(read),
    };
#undef OP
    enum {
        N_BASIC = sizeof basic / sizeof basic[0],
        /* 10 fused ops, 2 ops for adapters, 2 queries about partial sums, `alive`, 5 ops for
         * states, `gate`, `hyper`, 2 ops for sparse attention, 2 for several streams, `cutoff`,
         * `moe_identity`, 2 for draws that wait for their masks, 3 for pages of windows, and 3 for
         * hidden states by slot. */
        N_OPTIONAL = 36,
    };
    _Static_assert(N_BASIC + N_OPTIONAL == sizeof *o / sizeof o->facts, "an op has no row above");
    for (size_t i = 0; i < N_BASIC; i++) {
        if (!basic[i].present) {
            return err_set(err, ERR_UNSUPPORTED, "the backend lacks the op '%s'", basic[i].name);
        }
    }
    return OK;
}
