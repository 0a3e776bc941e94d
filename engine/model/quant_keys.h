// SPDX-License-Identifier: Apache-2.0
/* Members of a quantization_config that several quant_methods have, and the methods whose modules
 * have words of several numbers. Private to quant_methods*.c.
 * Thread: one. */
#ifndef SLUICE_ENGINE_MODEL_QUANT_KEYS_H
#define SLUICE_ENGINE_MODEL_QUANT_KEYS_H

#include "engine/model/quant_rules.h"

/* An integer from min to max. Null counts as absent. */
enum status quant_read_int(const struct json *j, const char *key, int64_t min, int64_t max,
                           int32_t otherwise, int32_t *out, struct err *err);
/* The group size of AWQ, GPTQ and compressed-tensors; -1 means a whole row, returned as 0. */
enum status quant_read_group(const struct json *j, const char *key, int32_t otherwise, int32_t *out,
                             struct err *err);
/* 2, 4 or 8; without the key, *out stays. */
enum status quant_read_bits(const struct json *j, const char *key, int32_t *out, struct err *err);
/* Checks that a string, if present, equals `want`. */
enum status quant_check_string(const struct json *j, const char *key, const char *want,
                               struct err *err);
/* Reads [rows, columns], or in older files "rowsxcolumns". */
enum status quant_read_block(const struct json *node, const char *key, struct quant_scheme *s,
                             struct err *err);
/* Adds rules for modules that stay unquantised, given by name or by pattern ("re:..."). */
enum status quant_leave_alone(const struct json *j, const char *key, enum rule_kind otherwise,
                              struct quant_rules *rules, struct err *err);

/* quant_methods_packed.c */
enum status quant_read_awq(const struct json *j, struct quant_rules *rules, struct err *err);
enum status quant_read_auto_round(const struct json *j, struct quant_rules *rules, struct err *err);
enum status quant_read_gptq(const struct json *j, struct quant_rules *rules, struct err *err);

#endif
