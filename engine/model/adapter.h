// SPDX-License-Identifier: Apache-2.0
/* Low-rank adapters (LoRA) in the folders that PEFT writes: adapter_config.json and
 * adapter_model.safetensors, or adapter_model.bin. A module is one linear layer that an adapter
 * changes: its product of x also has scale * B (A x), where A is [rank, n_in] and B [n_out, rank].
 * Thread: one while they are opened; then any. */
#ifndef SLUICE_ENGINE_MODEL_ADAPTER_H
#define SLUICE_ENGINE_MODEL_ADAPTER_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_ADAPTER_RANK = 512 }; // chosen

struct adapters;
struct adapter_module {
    char *name;                                // from "layers." on, where all forms of names agree
    const struct checkpoint_tensor *down, *up; // A and B
    int64_t rank;
    float scale;
};

/* Reads and checks the folders of n adapters, whose names are for messages and must stay valid.
 * What would change an answer and is not supported is refused by name, and so is a GGUF file as
 * model: it may have rows of q and k in another order than the modules that adapters were trained
 * on. */
enum status adapters_open(const char *model, const char *const *names, const char *const *dirs,
                          int32_t n, struct adapters **out, struct err *err);
void adapters_close(struct adapters *a);          // accepts NULL
int32_t adapters_count(const struct adapters *a); // 0 for NULL
/* The modules of all adapters have numbers from 0 on. */
int32_t adapters_n_modules(const struct adapters *a);
/* NULL: adapter i does not change the module. *number: the number of the module. */
const struct adapter_module *adapters_find(const struct adapters *a, int32_t i, const char *module,
                                           int32_t *number);
/* ERR_UNSUPPORTED, with the names, if `used` is not set for some module. */
enum status adapters_check_used(const struct adapters *a, const bool *used, struct err *err);
/* The name of an adapter, for messages. */
const char *adapters_name(const struct adapters *a, int32_t i);

/* A module's name from "layers." on; the whole name if it is not in a layer. */
const char *adapters_tail(const char *name);

#endif
