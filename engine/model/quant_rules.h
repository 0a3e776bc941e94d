// SPDX-License-Identifier: Apache-2.0
/* The rules of a quantised checkpoint (quant.h), and the methods that produce them. Private to
 * quant.c and quant_methods.c.
 * Thread: one while it is read; then any. */
#ifndef SLUICE_ENGINE_MODEL_QUANT_RULES_H
#define SLUICE_ENGINE_MODEL_QUANT_RULES_H

#include "engine/base/json.h"
#include "engine/model/quant.h"

/* How a rule's text names modules. */
enum rule_kind {
    RULE_ALL,     // every module
    RULE_NAME,    // the module of this name
    RULE_PART,    // modules whose name contains these consecutive components: "mlp.gate",
                  // "layers.1"
    RULE_GLOB,    // shell-style match of a name or a prefix of it; "*" also matches dots
    RULE_PATTERN, // Python's re.match
};

struct quant_rules;

struct quant_rules *quant_rules_new(void);
void quant_rules_free(struct quant_rules *r); // accepts NULL
/* Appends a rule. scheme NULL: the modules are not quantised. */
enum status quant_rules_add(struct quant_rules *r, enum rule_kind kind, const char *text,
                            const struct quant_scheme *scheme, struct err *err);
const struct quant_scheme *quant_rules_find(const struct quant_rules *r, const char *name,
                                            const char *other);

/* One row per quant_method: translates the quantization_config of this method to rules. */
struct quant_method {
    const char *name;
    const char *also; // vLLM's other names of it for --quantization, "a|b"; NULL: none
    enum status (*read)(const struct json *j, struct quant_rules *rules, struct err *err);
};
const struct quant_method *quant_method_find(const char *name);
void quant_method_list(char *out, size_t n_bytes); // for messages

#endif
