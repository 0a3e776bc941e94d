// SPDX-License-Identifier: Apache-2.0
/* Draft heads: one layer that drafts from the hidden states of the model that it belongs to, the
 * target, and from the tokens. The head's row of the token at position p reads the state that the
 * target, or while it drafts the head itself, left at p - 1 (backend.h, "hidden states by slot").
 *
 *   MTP      a module of the target's own checkpoint. x = fc [norm(embedding), norm(state)]; the
 *            state is the last layer's, behind the final norm, of the target as of the module.
 *   EAGLE-3  a folder of its own. x = the state; q, k and v read [norm(embedding), norm(x)]; the
 *            state is fc of three of the target's layers, of the head what its final norm reads.
 *            It may know only some of the target's ids.
 *
 * Thread: the rank's owner. */
#ifndef SLUICE_ENGINE_MODEL_HEAD_H
#define SLUICE_ENGINE_MODEL_HEAD_H

#include "engine/model/model.h"

/* The config of the module in the target's checkpoint. */
enum status head_config_mtp(const struct model_config *target, struct model_config *out,
                            struct err *err);
/* That of the folder `dir`, read with model_config_load, becomes a head's for this target. */
enum status head_config_eagle3(const char *dir, const struct model_config *target,
                               struct model_config *c, struct err *err);

/* A head's pass, once its tokens' embedding is in x: x, and what its layer reads in place of its
 * norm; without memory, if that. */
enum status head_enter(struct model *m, int32_t n_rows, struct tensor *input);
/* The states of its out rows, x behind the layer and its norm. */
enum status head_leave(struct model *m, struct tensor x, struct tensor normed, int32_t n_out);

/* A target's pass, of all its rows: how often it feeds its drafter; x behind a layer, if that is
 * read, and whether it was; and x behind the last layer, normed. */
int32_t head_feeds(const struct model *target);
enum status head_feed(struct model *target, int32_t layer, struct tensor x, int32_t n_rows,
                      bool *fed);
enum status head_feed_normed(struct model *target, struct tensor normed, int32_t n_rows);

#endif
