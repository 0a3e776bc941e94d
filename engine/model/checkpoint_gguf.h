// SPDX-License-Identifier: Apache-2.0
/* A GGUF file's tensors, under the names and with the shapes that Hugging Face's files of the same
 * family use.
 * Thread: any. */
#ifndef SLUICE_ENGINE_MODEL_CHECKPOINT_GGUF_H
#define SLUICE_ENGINE_MODEL_CHECKPOINT_GGUF_H

#include "engine/gguf/gguf.h"
#include "engine/model/checkpoint.h"

/* The caller frees *out and the names in it, even on failure. A tensor that is not part of the
 * family is an error. */
enum status checkpoint_gguf_read(const struct gguf *g, struct checkpoint_tensor **out, size_t *n,
                                 struct err *err);

#endif
