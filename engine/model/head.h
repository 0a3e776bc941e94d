// SPDX-License-Identifier: Apache-2.0
/* Draft heads: one layer that drafts from the tokens and from the hidden states of the model it
 * belongs to, the target. The head's row for the token at position p reads the state at p - 1,
 * which the target has stored or, while drafting, the head itself (backend.h, "hidden states by
 * slot").
 *
 *   MTP      a module in the target's own checkpoint. x = fc [norm(embedding), norm(state)]; the
 *            state is that of the last layer after the final norm, for target and module alike.
 *            If there are several modules, each reads the states of the module before it and makes
 *            the next draft; the last module then continues with its own states.
 *   EAGLE-3  a folder of its own. x = the state; q, k and v read [norm(embedding), norm(x)]. The
 *            target's state is fc applied to three of its layers; the head's own state is the input
 *            of its final norm. The head may know only some of the target's ids.
 *
 * Thread: the rank's owner. */
#ifndef SLUICE_ENGINE_MODEL_HEAD_H
#define SLUICE_ENGINE_MODEL_HEAD_H

#include "engine/model/model.h"

/* Derives the config of a module in the target's checkpoint. */
enum status head_config_mtp(const struct model_config *target, int32_t index,
                            struct model_config *out, struct err *err);
/* Reads the config of the folder `dir`, as a head's for this target. */
enum status head_config_eagle3(const char *dir, const struct model_config *target,
                               struct model_config *c, struct err *err);

/* Start of a head's pass, once the embeddings of the tokens are in x. Replaces x by the head's own
 * input. If the head's layer does not read the norm of x, `input` is what it reads instead;
 * otherwise `input` has no memory. */
enum status head_enter(struct model *m, int32_t n_rows, struct tensor *input);
/* Stores the hidden states of a head's out rows, given x after the layer and its norm. */
enum status head_leave(struct model *m, struct tensor x, struct tensor normed, int32_t n_out);

/* For the target's pass, and all of its rows. head_feeds: how many times a pass stores states for
 * the draft head. head_feed: stores x after a layer if the draft head reads that layer; *fed says
 * whether it does. head_feed_normed: stores the normed x after the last layer if the draft head
 * reads that. */
int32_t head_feeds(const struct model *target);
/* The width of a slot's row of hidden states, over all heads of the target; 0: the target has no
 * head. */
int32_t head_row_width(const struct model *target);
enum status head_feed(struct model *target, int32_t layer, struct tensor x, int32_t n_rows,
                      bool *fed);
enum status head_feed_normed(struct model *target, struct tensor normed, int32_t n_rows);

#endif
