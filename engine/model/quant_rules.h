// SPDX-License-Identifier: Apache-2.0
/* The list of rules of a quantised checkpoint (quant.h), and the keys that they are read from. For
 * quant.c and quant_methods.c alone.
 * Thread: one, until it is read; then any. */
#ifndef SLUICE_ENGINE_MODEL_QUANT_RULES_H
#define SLUICE_ENGINE_MODEL_QUANT_RULES_H

#include "engine/base/json.h"
#include "engine/model/quant.h"

/* How a rule's text names modules. */
enum rule_kind {
    RULE_ALL,     // every module
    RULE_NAME,    // the module of this name
    RULE_PART,    // modules whose name has this run of components: "mlp.gate", "layers.1"
    RULE_GLOB,    // as the shell matches a name, or what begins it; "*" also takes dots
    RULE_PATTERN, // as Python's re.match
};

struct quant_rules;

struct quant_rules *quant_rules_new(void);
void quant_rules_free(struct quant_rules *r); // accepts NULL
/* Behind all that are there. scheme NULL: such modules are left alone. */
enum status quant_rules_add(struct quant_rules *r, enum rule_kind kind, const char *text,
                            const struct quant_scheme *scheme, struct err *err);
const struct quant_scheme *quant_rules_find(const struct quant_rules *r, const char *name,
                                            const char *other);

/* One row for each quant_method: makes rules of its part of the config. */
struct quant_method {
    const char *name;
    enum status (*read)(const struct json *j, struct quant_rules *rules, struct err *err);
};
const struct quant_method *quant_method_find(const char *name);
void quant_method_list(char *out, size_t n_bytes); // for messages

#endif
