#include "engine/ops.h"

enum status backend_check(const struct backend *be, struct err *err)
{
    const struct backend_ops *o = be->ops;
    const struct {
        const char *name;
        bool present;
    } basic[] = {
        {"facts", o->facts != 0},           {"alloc", o->alloc != 0},
        {"weight_open", o->weight_open != 0}, {"rope_open", o->rope_open != 0},
        {"kv_bytes", o->kv_bytes != 0},     {"setup", o->setup != 0},
        {"kv_open", o->kv_open != 0},       {"close", o->close != 0},
        {"step_begin", o->step_begin != 0}, {"lane_tokens", o->lane_tokens != 0},
        {"lane_blocks", o->lane_blocks != 0}, {"lane_params", o->lane_params != 0},
        {"copy_blocks", o->copy_blocks != 0}, {"move_slots", o->move_slots != 0},
        {"poison_blocks", o->poison_blocks != 0}, {"pass_begin", o->pass_begin != 0},
        {"pass_end", o->pass_end != 0},     {"step_end", o->step_end != 0},
        {"step_wait", o->step_wait != 0},   {"step_done", o->step_done != 0},
        {"embed", o->embed != 0},           {"norm", o->norm != 0},
        {"linear", o->linear != 0},         {"linear_heads", o->linear_heads != 0},
        {"rope_store", o->rope_store != 0}, {"mla_store", o->mla_store != 0},
        {"attention", o->attention != 0},   {"activation", o->activation != 0},
        {"moe_route", o->moe_route != 0},   {"moe_ffn", o->moe_ffn != 0},
        {"row_gate", o->row_gate != 0},     {"reduce", o->reduce != 0},
        {"gather", o->gather != 0},         {"logits", o->logits != 0},
        {"sample", o->sample != 0},         {"pool", o->pool != 0},
        {"write", o->write != 0},           {"read", o->read != 0},
    };
    for (size_t i = 0; i < sizeof basic / sizeof basic[0]; i++) {
        if (!basic[i].present) {
            return err_set(err, ERR_UNSUPPORTED, "the backend lacks the op '%s'", basic[i].name);
        }
    }
    return OK;
}
