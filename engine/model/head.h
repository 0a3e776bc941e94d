// SPDX-License-Identifier: Apache-2.0
/* Draft heads: one layer that drafts from the tokens and from the hidden states of the model it
 * belongs to, the target. The head's row for the token at position p reads the state that the
 * target (or while drafting, the head itself) left at p - 1 (backend.h, "hidden states by slot").
 *
 *   MTP      a module in the target's own checkpoint. x = fc [norm(embedding), norm(state)]; the
 *            state is that of the last layer after the final norm, for target and module alike.
 *            Of several modules each reads the states of the one before it, and makes the next
 *            draft; the last one then continues with its own.
 *   EAGLE-3  a folder of its own. x = the state; q, k and v read [norm(embedding), norm(x)]. The
 *            target's state is fc of three of its layers; the head's is the input of its final
 * norm. It may know only some of the target's ids.
 *
 * Thread: the rank's owner. */
#ifndef SLUICE_ENGINE_MODEL_HEAD_H
#define SLUICE_ENGINE_MODEL_HEAD_H

#include "engine/model/model.h"

/* Derives the config of a module in the target's checkpoint. */
enum status head_config_mtp(const struct model_config *target, int32_t index,
                            struct model_config *out, struct err *err);
/* Turns the config of the folder `dir`, read with model_config_load, into a head's config for this
 * target. */
enum status head_config_eagle3(const char *dir, const struct model_config *target,
                               struct model_config *c, struct err *err);

/* Start of a head's pass, once the tokens' embeddings are in x: computes x, and the input that its
 * layer reads instead of its own norm (no memory: it uses the norm). */
enum status head_enter(struct model *m, int32_t n_rows, struct tensor *input);
/* Stores the states of its out rows, given x after the layer and its norm. */
enum status head_leave(struct model *m, struct tensor x, struct tensor normed, int32_t n_out);

/* In a target's pass, for all of its rows: how often it feeds its drafter; feeds x after a layer if
 * the drafter reads that one, and tells whether it did; and feeds the normed x after the last
 * layer. */
int32_t head_feeds(const struct model *target);
/* Values that a slot's row of hidden states has for all heads of the target; 0: it has none. */
int32_t head_row_width(const struct model *target);
enum status head_feed(struct model *target, int32_t layer, struct tensor x, int32_t n_rows,
                      bool *fed);
enum status head_feed_normed(struct model *target, struct tensor normed, int32_t n_rows);

#endif
