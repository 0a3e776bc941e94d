// SPDX-License-Identifier: Apache-2.0
/* The files of a quantised folder other than tensors: config.json, the index, and copies of the
 * rest. Private to quantise.c.
 * Thread: one. */
#ifndef SLUICE_ENGINE_MODEL_QUANTISE_FILES_H
#define SLUICE_ENGINE_MODEL_QUANTISE_FILES_H

#include "engine/base/buf.h"
#include "engine/model/requantise.h"

/* A module with a matrix, for config.json. */
struct quantise_module {
    const char *name;
    int32_t n_name;
    bool stays;    // the module is not quantised
    int64_t group; // number of inputs that share a scale; 0: all inputs of an output
};

struct quantise_form {
    // The name in this program, and the format's name in compressed-tensors.
    const char *name, *format;
    enum requantise_kind kind;
    bool blocks;
    const char *type; // element type
    int32_t bits;
    const char *dtype;  // dtype of the tensor "weight" or "weight_packed"
    const char *inputs; // JSON of input_activations
};

/* config.json with a quantization_config. */
enum status quantise_write_config(const char *dir, const char *out, const struct quantise_form *f,
                                  const struct quantise_module *modules, size_t n, struct err *err);
enum status quantise_write_text(const char *out, const char *name, const struct buf *text,
                                struct err *err);
/* Copies all files of the folder except weights of any format, the index and config.json. */
enum status quantise_copy_rest(const char *dir, const char *out, struct err *err);
/* Creates the folder, or accepts an empty one. */
enum status quantise_make_folder(const char *out, struct err *err);
enum status quantise_path(char *path, size_t n_bytes, const char *dir, const char *name,
                          struct err *err);

#endif
